package planted

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// stage is a claimed run with a minted effect and a guard that is about to admit it.
type stage struct {
	task   string
	worker *authoritytest.Holder
	guard  *authoritytest.Guard
	minted api.TokenResponse
	ask    api.AdmitRequest
}

func setUp(h *authoritytest.House) stage {
	task := h.Consent(h.Task("race"))
	s := stage{task: task, worker: h.Claim(h.Plan(task)), guard: h.Guard()}
	s.minted = s.worker.Minted("book", "rent")
	s.ask = s.guard.Ask(s.worker, s.minted, "rent", authoritytest.NewAttempt())
	return s
}

// staleFenceAdmitted: while an admit under fence 1 is under way, the lease is over and another key claims.
func staleFenceAdmitted(t *testing.T, h *authoritytest.House) string {
	s := setUp(h)
	admitted := async(func() authoritytest.Answer { return s.guard.Admit(s.ask) })
	sleeping(t, h)
	// Another replica's view: the lease is over. What the claim then reads and locks is its own affair.
	claimed := make(chan bool, 1)
	go func() {
		c := session(t, h)
		ctx := context.Background()
		tx, err := c.Begin(ctx)
		if err != nil {
			claimed <- false
			return
		}
		_, _ = tx.Exec(ctx, `SELECT FROM nw.lanes FOR NO KEY UPDATE`)
		tag, _ := tx.Exec(ctx, `UPDATE nw.runs SET fence = fence + 1, holder = sha256('other'), lease_until = clock_timestamp() + interval '1 minute' WHERE state = 'claimed' AND inflight = 0`)
		_, _ = tx.Exec(ctx, `UPDATE nw.lanes SET fence = fence + $1`, tag.RowsAffected())
		claimed <- tx.Commit(ctx) == nil && tag.RowsAffected() == 1
	}()
	a, c := <-admitted, <-claimed
	require.True(t, a.Status == http.StatusOK || c, "nobody won the race: %s", a.Body)
	if a.Status == http.StatusOK && c {
		return "an admit under fence 1 and a claim with fence 2 have both committed"
	}
	return ""
}

// deadlocks: a claim that holds a lane waits for the gate, whose holder waits for the lane.
func deadlocks(t *testing.T, h *authoritytest.House) string {
	task := h.Consent(h.Task("race"))
	run := h.Plan(task)
	operator := h.Person(authoritytest.OperatorName)
	retired := async(func() error {
		return operator.JSON("POST", api.PathRetire, api.RetireRequest{Kind: "Policy", Name: "default", Revision: 1}, nil)
	})
	sleeping(t, h)
	k := h.Key()
	claim := h.Send(h.Form(k, authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim))))
	err := <-retired
	if err != nil || claim.Status == http.StatusServiceUnavailable {
		return say("retire: %v, claim: %d", err, claim.Status)
	}
	return ""
}

// claimedAfterClose: a claim waits while the gate closes; after the close has committed nothing may be admitted.
func claimedAfterClose(t *testing.T, h *authoritytest.House, level pgx.TxIsoLevel) string {
	run := h.Plan(h.Consent(h.Task("race")))
	ctx := context.Background()
	closer := session(t, h)
	closing, err := closer.Begin(ctx)
	require.NoError(t, err)
	_, err = closing.Exec(ctx, `SELECT nw.alone()`)
	require.NoError(t, err)
	_, err = closing.Exec(ctx, `SELECT nw.shut('unhealthy', 'queue', false)`)
	require.NoError(t, err)

	verdict := async(func() string {
		c := session(t, h)
		tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
		if err != nil {
			return err.Error()
		}
		defer tx.Rollback(ctx) //nolint:errcheck // committed below, or not wanted
		var profile int64
		if err := tx.QueryRow(ctx, `SELECT id FROM nw.registry WHERE kind = 'attestation_profile' ORDER BY id LIMIT 1`).Scan(&profile); err != nil {
			return err.Error()
		}
		var verdict string
		err = tx.QueryRow(ctx, `SELECT verdict FROM nw.claim($1, NULL, ARRAY[$2]::bigint[], sha256('a'), clock_timestamp() + interval '1 hour', true, sha256('k'), clock_timestamp(), sha256('p'), sha256('c'), 30000,
			(SELECT array_agg(owner) FROM nw.tasks), (SELECT array_agg(clock_timestamp()) FROM nw.tasks))`,
			authoritytest.Raw(run), profile).Scan(&verdict)
		if err != nil {
			return err.Error()
		}
		if err := tx.Commit(ctx); err != nil {
			return err.Error()
		}
		return verdict
	})
	// A build without the gate does not wait for it: then the claim commits by itself, before or after.
	answered := ""
	require.Eventually(t, func() bool {
		select {
		case answered = <-verdict:
			return true
		default:
			return h.Count(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
		}
	}, 10*time.Second, 2*time.Millisecond)
	require.NoError(t, closing.Commit(ctx))
	if answered == "" {
		answered = <-verdict
	}
	if answered == "ok" {
		return "a claim has committed that did not see the close"
	}
	require.Regexp(t, "^admission_closed$|NW002", answered, "another refusal than the one that this is about")
	return ""
}

// expiredDecisionAdmits: the decision runs out while a transaction is open.
func expiredDecisionAdmits(t *testing.T, h *authoritytest.House) string {
	ctx := context.Background()
	tx, err := session(t, h).Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
	_, err = tx.Exec(ctx, `SELECT`)
	require.NoError(t, err)
	h.Exec(`UPDATE nw.readiness_decision SET valid_until = clock_timestamp()`)
	var open bool
	require.NoError(t, tx.QueryRow(ctx, `SELECT (nw.admitting()).state IS NOT NULL`).Scan(&open))
	if open {
		return "a decision that has expired still admits"
	}
	return ""
}

func expiredLeaseMints(t *testing.T, h *authoritytest.House) string {
	s := setUp(h)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	if a := s.worker.Mint("second", "gas"); a.Status == http.StatusOK {
		return "a run whose lease is over mints"
	}
	if a := s.guard.Admit(s.ask); a.Status == http.StatusOK {
		return "an effect of a run whose lease is over is admitted"
	}
	return ""
}

// reaperOverwrites: the run is settled while the reaper is on its way with what it read.
func reaperOverwrites(t *testing.T, h *authoritytest.House) string {
	w := h.Claim(h.Plan(h.Consent(h.Task("race"))))
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	ctx := context.Background()
	holder := session(t, h)
	tx, err := holder.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `UPDATE nw.runs SET state = 'succeeded', holder = NULL, lease_until = NULL, ended_at = clock_timestamp() WHERE ref = $1`, authoritytest.Raw(w.Run))
	require.NoError(t, err)
	reaped := async(func() string {
		c := session(t, h)
		var state *string
		_ = c.QueryRow(ctx, `SELECT nw.reap(id) FROM nw.runs WHERE ref = $1`, authoritytest.Raw(w.Run)).Scan(&state)
		return ""
	})
	require.Eventually(t, func() bool {
		return h.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep') AND query LIKE '%reap%'`) > 0
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, tx.Commit(ctx))
	<-reaped
	if n := h.Count(`SELECT count(*) FROM nw.runs WHERE ref = $1 AND state <> 'succeeded'`, authoritytest.Raw(w.Run)); n > 0 {
		return "the reaper has overwritten a settled run"
	}
	return ""
}

func twoAttemptsAdmitted(_ *testing.T, h *authoritytest.House) string {
	s := setUp(h)
	first := s.guard.Admit(s.ask)
	other := s.ask
	other.Attempt = authoritytest.NewAttempt()
	if second := s.guard.Admit(other); first.Status == http.StatusOK && second.Status == http.StatusOK {
		return "two attempts have the go-ahead for one effect"
	}
	return ""
}

func proofSpentTwice(_ *testing.T, h *authoritytest.House) string {
	w := h.Claim(h.Plan(h.Consent(h.Task("race"))))
	proof := h.Proof(w.Key, "POST", api.PathRenew, w.Token)
	send := func() authoritytest.Answer {
		r := h.Bearing(w.Key, w.Token, "POST", api.PathRenew, api.RenewRequest{})
		r.Header.Set(api.HeaderProof, proof)
		return h.Send(r)
	}
	if first, second := send(), send(); first.Status == http.StatusOK && second.Status == http.StatusOK {
		return "one proof was good for two requests"
	}
	return ""
}

func assertionSharedByKeys(_ *testing.T, h *authoritytest.House) string {
	task := h.Consent(h.Task("race"))
	run := h.Plan(task)
	assertion := h.Assertion(authoritytest.WorkerClaim)
	owner, thief := h.Key(), h.Key()
	h.Into(h.Send(h.Form(owner, authoritytest.ClaimForm(run, assertion))), nil)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	if a := h.Send(h.Form(thief, authoritytest.ClaimForm(run, assertion))); a.Status == http.StatusOK {
		return "another key claims with the same assertion"
	}
	return ""
}

func revokedStillMints(_ *testing.T, h *authoritytest.House) string {
	task := h.Consent(h.Task("race"))
	w := h.Claim(h.Plan(task))
	if err := h.Person(authoritytest.MemberName).JSON("POST", api.PathTasks+"/"+task+"/revoke", struct{}{}, nil); err != nil {
		return ""
	}
	if a := w.Mint("book", "rent"); a.Status == http.StatusOK {
		return "a revoked task mints"
	}
	return ""
}

func ambiguousMintedAgain(_ *testing.T, h *authoritytest.House) string {
	s := setUp(h)
	h.Into(s.guard.Admit(s.ask), nil)
	h.Into(s.guard.Settle(s.minted.Effect, s.ask.Attempt, api.Ambiguous), nil)
	next := h.Claim(h.Plan(s.task))
	if a := next.Mint("book", "rent"); a.Status == http.StatusOK {
		return "an effect whose outcome nobody knows is minted again"
	}
	return ""
}

func async[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}
