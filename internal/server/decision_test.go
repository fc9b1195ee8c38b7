package server_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// deleting is a mint above the dial of the standard task.
func deleting(h *authoritytest.House, w *authoritytest.Holder, key string, id int) authoritytest.Answer {
	return h.Send(h.Form(w.Key, authoritytest.MintDetails(w.Token, key, []api.Detail{{Type: api.DetailTypeEffect, Actions: []string{"row.delete"}, Locations: []string{authoritytest.GuardURI},
		Identifier: "table:entries", Parameters: json.RawMessage(fmt.Sprintf(`{"table":"entries","key":{"id":%d}}`, id))}})))
}

// asked mints above the dial and returns the card that its owner sees.
func asked(t *testing.T, h *authoritytest.House, w *authoritytest.Holder, key string, id int) api.OwnerDecision {
	t.Helper()
	p := deleting(h, w, key, id).Problem()
	require.Equal(t, api.ApprovalRequired, p.Code)
	require.NotEmpty(t, p.Decision)
	return card(t, h, p.Decision)
}

func card(t *testing.T, h *authoritytest.House, reference string) (d api.OwnerDecision) {
	t.Helper()
	require.NoError(t, h.Person(authoritytest.MemberName).JSON("GET", api.PathDecisions+"/"+reference, nil, &d))
	return d
}

func decide(h *authoritytest.House, who, reference, digest, answer string) error {
	return h.Person(who).JSON("POST", api.PathDecisions+"/"+reference+"/"+answer, api.Answer{Digest: digest}, nil)
}

type runState struct {
	State  string
	Fence  int64
	Queued bool
}

func stateOf(t *testing.T, h *authoritytest.House, run string) (s runState) {
	t.Helper()
	require.NoError(t, h.Owner.QueryRow(t.Context(), `SELECT r.state, r.fence, o.run_id IS NOT NULL FROM nw.runs r LEFT JOIN nw.outbox o ON o.run_id = r.id WHERE r.ref = $1`,
		authoritytest.Raw(run)).Scan(&s.State, &s.Fence, &s.Queued))
	return s
}

// A18, P21: above the dial the run waits without worker and lease; its owner decides on the exact effect; exactly that effect is minted, once.
func TestAnOwnerDecides(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	run := h.Plan(task)
	w := h.Claim(run)
	d := asked(t, h, w, "tidy", 7)
	assert.Equal(t, []string{"pending", "high", "stop", "Close the day", run}, []string{d.State, d.Risk, d.Silence, d.Title, d.Run})
	assert.JSONEq(t, `{"guard":"`+authoritytest.GuardURI+`","action":"row.delete","resource":"table:entries","parameters":{"table":"entries","key":{"id":7}}}`, string(d.Effect))
	assert.Equal(t, runState{"waiting", 1, false}, stateOf(t, h, run))

	// The hold is over; nobody else can take the run; a later fire goes into it.
	refusedWith(t, h, api.LeaseLost, func() authoritytest.Answer { return w.Mint("book", "rent") })
	refusedWith(t, h, api.LeaseLost, func() authoritytest.Answer { return w.Settle("succeeded") })
	refusedWith(t, h, api.Held, func() authoritytest.Answer {
		return h.Send(h.Form(h.Key(), authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim))))
	})
	h.Plan(task)
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.slots WHERE outcome = 'coalesced'`))

	// Nobody but the owner, and on nothing but what was shown.
	for _, answer := range []string{"approve", "deny"} {
		before := h.Consumed()
		assert.Equal(t, api.NotFound, codeOf(decide(h, "member-2", d.Decision, d.Digest, answer)), "a foreign card looks like none")
		assert.Equal(t, api.NotFound, codeOf(decide(h, authoritytest.OperatorName, d.Decision, d.Digest, answer)), "no administrator answers in the owner's name")
		assert.Equal(t, api.NotFound, codeOf(decide(h, authoritytest.MemberName, authoritytest.NewAttempt(), d.Digest, answer)))
		assert.Equal(t, api.DecisionChanged, codeOf(decide(h, authoritytest.MemberName, d.Decision, strings.Repeat("A", 43), answer)))
		assert.Equal(t, api.DecisionChanged, codeOf(decide(h, authoritytest.MemberName, d.Decision, "", answer)))
		assert.Equal(t, before, h.Consumed())
	}

	require.NoError(t, decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve"))
	assert.Equal(t, api.DecisionEnded, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve")), "once")
	assert.Equal(t, api.DecisionEnded, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "deny")))
	assert.Equal(t, runState{"queued", 1, true}, stateOf(t, h, run))

	again := h.Claim(run)
	assert.EqualValues(t, 2, again.State.Fence)
	assert.Equal(t, w.State.DeadlineUnixMS, again.State.DeadlineUnixMS, "A6: waiting moves no deadline")
	other := deleting(h, again, "tidy", 8)
	assert.Equal(t, api.EffectKeyConflict, other.Problem().Code, "a changed argument is another effect")
	left := h.Count(`SELECT effects_left FROM nw.runs`)
	var minted api.TokenResponse
	h.Into(deleting(h, again, "tidy", 7), &minted)
	assert.Equal(t, left-1, h.Count(`SELECT effects_left FROM nw.runs`))
	assert.Equal(t, "used", card(t, h, d.Decision).State)
	h.Into(deleting(h, again, "tidy", 7), &minted) // minting it again needs no new decision
	assert.Equal(t, left-1, h.Count(`SELECT effects_left FROM nw.runs`))
	p := deleting(h, again, "tidy-more", 7).Problem()
	assert.Equal(t, api.ApprovalRequired, p.Code, "the same effect under another key is another use, and needs another decision")
}

// P21: a changed argument needs a decision of its own; a no stays a no in the run, and the run never says that it succeeded; three cards at most.
func TestANoIsANo(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	for n := range 3 {
		w := h.Claim(run)
		d := asked(t, h, w, fmt.Sprintf("tidy-%d", n), n)
		require.NoError(t, decide(h, authoritytest.MemberName, d.Decision, d.Digest, "deny"))
	}
	w := h.Claim(run)
	refusedWith(t, h, api.ApprovalDenied, func() authoritytest.Answer { return deleting(h, w, "tidy-0", 0) })
	refusedWith(t, h, api.ApprovalDenied, func() authoritytest.Answer { return deleting(h, w, "another-name", 2) })
	refusedWith(t, h, api.ApprovalUnavailable, func() authoritytest.Answer { return deleting(h, w, "tidy-4", 4) })
	h.Into(w.Mint("book", "rent"), nil)
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "failed", receipt.State)
}

// A yes needs an open gate, a no does not.
func TestDecidingWhileClosed(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	d := asked(t, h, h.Claim(run), "tidy", 1)
	h.Close()
	h.See()
	assert.Equal(t, api.AdmissionClosed, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve")))
	assert.Equal(t, "pending", card(t, h, d.Decision).State)
	require.NoError(t, decide(h, authoritytest.MemberName, d.Decision, d.Digest, "deny"))
}

// A18: a decision older than the epoch, the policy or the requirement is refused when it is used, and a card of an older one cannot be answered.
func TestADecisionStandsForItsTime(t *testing.T) {
	t.Parallel()
	t.Run("the requirement changed before the answer", func(t *testing.T) {
		t.Parallel()
		h := authoritytest.New(t)
		d := asked(t, h, h.Claim(h.Plan(h.Consent(h.Task("close-the-day")))), "tidy", 1)
		require.NoError(t, h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", requirement(2), nil))
		h.Open()
		assert.Equal(t, api.DecisionEnded, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve")))
	})
	t.Run("the requirement changed before its use", func(t *testing.T) {
		t.Parallel()
		h := authoritytest.New(t)
		run := h.Plan(h.Consent(h.Task("close-the-day")))
		d := asked(t, h, h.Claim(run), "tidy", 1)
		require.NoError(t, decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve"))
		require.NoError(t, h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", requirement(2), nil))
		h.Open()
		next := asked(t, h, h.Claim(run), "tidy", 1)
		assert.NotEqual(t, d.Decision, next.Decision, "it is asked anew")
		assert.Equal(t, "expired", card(t, h, d.Decision).State)
	})
	t.Run("the consent was taken back", func(t *testing.T) {
		t.Parallel()
		h := authoritytest.New(t)
		task := h.Consent(h.Task("close-the-day"))
		run := h.Plan(task)
		d := asked(t, h, h.Claim(run), "tidy", 1)
		require.NoError(t, h.Person(authoritytest.MemberName).JSON("POST", api.PathTasks+"/"+task+"/revoke", nil, nil))
		assert.Equal(t, "expired", card(t, h, d.Decision).State, "a card closes in the transaction that ends its run")
		assert.Equal(t, "revoked", stateOf(t, h, run).State)
		assert.Equal(t, api.DecisionEnded, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve")))
	})
}

// P22: a card ends in time for its effect, and silence does what its owner chose.
func TestSilence(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{"stop": "failed", "wait": "expired"} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			h := authoritytest.New(t)
			yaml := h.Task("close-the-day") + "when_more_is_needed: " + rule + "\ndecision_window_s: 60\n"
			run := h.Plan(h.Consent(yaml))
			w := h.Claim(run)
			d := asked(t, h, w, "tidy", 1)
			until := time.UnixMilli(w.State.DeadlineUnixMS).Add(-120 * time.Second)
			if rule == "stop" {
				until = d.AskedAt.Add(60 * time.Second)
			}
			assert.WithinDuration(t, until, d.ExpiresAt, time.Second)
			expire := func() (n int64) {
				require.NoError(t, h.Owner.QueryRow(t.Context(), `SELECT nw.expire_decisions(10)`).Scan(&n))
				return n
			}
			assert.Zero(t, expire())
			h.Exec(`ALTER TABLE nw.decisions DISABLE TRIGGER decisions_fixed`)
			h.Exec(`UPDATE nw.decisions SET expires_at = clock_timestamp()`)
			h.Exec(`ALTER TABLE nw.decisions ENABLE TRIGGER decisions_fixed`)
			assert.Equal(t, api.DecisionEnded, codeOf(decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve")), "refused, and not accepted and lost")
			assert.EqualValues(t, 1, expire())
			assert.Zero(t, expire())
			assert.Equal(t, want, stateOf(t, h, run).State)
			assert.Equal(t, "expired", card(t, h, d.Decision).State)
		})
	}
}

// When there is no time left to ask and act, nobody is asked.
func TestTooLateToAsk(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(strings.Replace(h.Task("close-the-day"), "runtime_s: 600", "runtime_s: 125", 1)))
	w := h.Claim(run)
	assert.Equal(t, api.ApprovalUnavailable, deleting(h, w, "tidy", 1).Problem().Code)
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.decisions`)+h.Count(`SELECT count(*) FROM nw.effects`))
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "failed", receipt.State)
}

// While an effect is in flight the run cannot wait: nothing is asked until it is settled.
func TestNobodyIsAskedWhileAnEffectIsInFlight(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	attempt := authoritytest.NewAttempt()
	h.Into(g.Admit(g.Ask(w, minted, "rent", attempt)), nil)
	refusedWith(t, h, api.EffectsInFlight, func() authoritytest.Answer { return deleting(h, w, "tidy", 1) })
	h.Into(g.Settle(minted.Effect, attempt, "committed"), nil)
	asked(t, h, w, "tidy", 1)
}

// Many asks for one effect open one card; many answers are one answer.
func TestOneCard(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	w := h.Claim(run)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() { deleting(h, w, fmt.Sprintf("tidy-%d", n%2), 1) })
	}
	all.Wait()
	require.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.decisions`))
	var cards api.Page[api.OwnerDecision]
	require.NoError(t, h.Person(authoritytest.MemberName).JSON("GET", api.PathDecisions, nil, &cards))
	require.Len(t, cards.Items, 1)
	d := cards.Items[0]
	var yes, no atomic.Int64
	for n := range 8 {
		all.Go(func() {
			answer := []string{"approve", "deny"}[n%2]
			if decide(h, authoritytest.MemberName, d.Decision, d.Digest, answer) == nil {
				if n%2 == 0 {
					yes.Add(1)
				} else {
					no.Add(1)
				}
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 1, yes.Load()+no.Load())
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.outbox`))
}

// The approved effect goes through its guard like any other, and once.
func TestAnApprovedEffectIsAdmittedOnce(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	d := asked(t, h, h.Claim(run), "tidy", 7)
	require.NoError(t, decide(h, authoritytest.MemberName, d.Decision, d.Digest, "approve"))
	w, g := h.Claim(run), h.Guard()
	var minted api.TokenResponse
	h.Into(deleting(h, w, "tidy", 7), &minted)
	proof, err := capability.NewProof(w.Key, capability.ProofParams{Method: "POST", URL: authoritytest.GuardURI + "/operations/row.delete", Nonce: minted.GuardNonce,
		AccessToken: capability.Token(minted.AccessToken), Now: time.Now()})
	require.NoError(t, err)
	guard, err := url.Parse(authoritytest.GuardURI)
	require.NoError(t, err)
	ask := api.AdmitRequest{Attempt: authoritytest.NewAttempt(), Capability: minted.AccessToken, Proof: proof, Method: "POST", Path: guard.Path + "/operations/row.delete", Effect: minted.Details[0]}
	h.Into(g.Admit(ask), nil)
	h.Into(g.Settle(minted.Effect, ask.Attempt, "committed"), nil)
	ask.Attempt = authoritytest.NewAttempt()
	assert.Equal(t, api.EffectSettled, g.Admit(ask).Problem().Code)
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, []any{"succeeded", int64(1)}, []any{receipt.State, receipt.Committed})
}
