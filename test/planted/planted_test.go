// Package planted plants bugs that model checking and experiment have found
// (protocol.md), one at a time, in a database of a test's own, and shows that
// the check which guards against each one catches it. The same check passes on
// the sound database: a check that cannot fail is a defect.
package planted

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// check looks for one violation. It returns what it saw, or nothing.
type check func(t *testing.T, h *authoritytest.House) (violation string)

// bug is an edit of one verb: the text that is there and what stands in its
// place. Without a verb, new is SQL of its own.
type bug struct {
	verb     string
	old, new string
}

func TestPlantedBugs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		check check
		slow  []bug // widen the race, in both builds: timing must not be what keeps it sound
		bugs  []bug
	}{
		{"P1 decide before locking", staleFenceAdmitted,
			[]bug{{"admit", "  again := e.state = 'admitted' AND e.attempt = p_attempt;", "  PERFORM pg_sleep(0.5);\n  again := e.state = 'admitted' AND e.attempt = p_attempt;"}},
			[]bug{
				{"admit", "WHERE task_id = (SELECT effects.task_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE", "WHERE task_id = (SELECT effects.task_id FROM effects WHERE ref = p_effect)"},
				{"admit", "WHERE id = (SELECT effects.run_id FROM effects WHERE ref = p_effect) FOR NO KEY UPDATE", "WHERE id = (SELECT effects.run_id FROM effects WHERE ref = p_effect)"},
				{"admit", "UPDATE runs SET inflight = inflight + 1 WHERE id = r.id AND state = 'claimed' AND runs.fence = p_fence AND holder = p_jkt AND lease_until > t AND runs.deadline > t;",
					"UPDATE runs SET inflight = inflight + 1 WHERE id = r.id;"},
			}},
		{"P2 a row lock before the advisory lock", deadlocks,
			[]bug{{"retire", "  SELECT * INTO g FROM registry", "  PERFORM pg_sleep(0.4);\n  SELECT * INTO g FROM registry"}},
			[]bug{{"claim", "  PERFORM nw.enter();\n  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;",
				"  SELECT lanes.* INTO l FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE;\n  PERFORM nw.enter();"}}},
		{"P3 repeatable read", func(t *testing.T, h *authoritytest.House) string { return claimedAfterClose(t, h, pgx.RepeatableRead) }, nil,
			[]bug{{"enter", "current_setting('transaction_isolation') <> 'read committed'", "false"}}},
		{"P3 serializable", func(t *testing.T, h *authoritytest.House) string { return claimedAfterClose(t, h, pgx.Serializable) }, nil,
			[]bug{{"enter", "current_setting('transaction_isolation') <> 'read committed'", "false"}}},
		{"one statement locks and reads", func(t *testing.T, h *authoritytest.House) string { return claimedAfterClose(t, h, pgx.ReadCommitted) }, nil,
			[]bug{
				{"claim", "  PERFORM nw.enter();\n", ""},
				{"claim", "  d := nw.admitting();", "  SELECT readiness_decision.* INTO d FROM (SELECT pg_advisory_xact_lock_shared(nw.gate_key())) locked, readiness_decision WHERE readiness_decision.state = 'open' AND readiness_decision.valid_until > clock_timestamp();"},
			}},
		{"a verb without the gate", func(t *testing.T, h *authoritytest.House) string { return claimedAfterClose(t, h, pgx.ReadCommitted) }, nil,
			[]bug{{"claim", "  PERFORM nw.enter();\n", ""}, {"claim", "WHEN d.state IS NULL THEN 'admission_closed'", "WHEN false THEN 'admission_closed'"}, {"claim", "readiness_epoch = d.epoch", "readiness_epoch = 99"}}},
		{"now() for clock_timestamp()", expiredDecisionAdmits, nil,
			[]bug{{"admitting", "valid_until > clock_timestamp()", "valid_until > now()"}}},
		{"P9 a lease that nobody looks at", expiredLeaseMints, nil,
			[]bug{{"holder_verdict", "WHEN r.state <> 'claimed' OR r.lease_until <= t THEN 'lease_lost'", "WHEN r.state <> 'claimed' THEN 'lease_lost'"}}},
		{"P10 the reaper writes what it read before", reaperOverwrites,
			[]bug{{"reap", "  t := clock_timestamp();", "  PERFORM pg_sleep(0.5);\n  t := clock_timestamp();"}},
			[]bug{
				{"reap", "  PERFORM FROM lanes WHERE task_id = (SELECT task_id FROM runs WHERE id = p_run) FOR NO KEY UPDATE;\n", ""},
				{"reap", "SELECT runs.* INTO r FROM runs WHERE id = p_run FOR NO KEY UPDATE", "SELECT runs.* INTO r FROM runs WHERE id = p_run"},
				{"reap", "state := nw.finish_run(p_run, 'lease_lost');", "UPDATE runs SET state = 'queued', holder = NULL, lease_until = NULL, ended_at = NULL WHERE id = p_run;"},
				{"", "", "DROP TRIGGER runs_terminal ON nw.runs"}, // which would have caught it too
			}},
		{"P13 any attempt gets the go-ahead", twoAttemptsAdmitted, nil,
			[]bug{{"admit", "again := e.state = 'admitted' AND e.attempt = p_attempt;", "again := e.state = 'admitted';"}}},
		{"P31 a proof that is spent twice", proofSpentTwice, nil,
			[]bug{{"spend_proof", "IF NOT FOUND THEN RAISE EXCEPTION 'proof_replayed' USING ERRCODE = 'NW409'; END IF;", ""}}},
		{"A3 an assertion that any key may use", assertionSharedByKeys, nil,
			[]bug{{"owner_verdict", "IF owner <> p_jkt THEN RETURN 'assertion_bound'; END IF;", ""},
				{"own_assertion", "AND digest = p_assertion AND jkt = p_jkt", "AND digest = p_assertion"}}},
		{"A5 an epoch that does not advance", revokedStillMints, nil,
			[]bug{{"advance_epoch", "SET activation_epoch = activation_epoch + 1", "SET activation_epoch = activation_epoch"},
				{"advance_epoch", "IF live.id IS NOT NULL THEN", "IF false THEN"}, {"end_consent", "UPDATE consents SET state", "UPDATE consents SET ref = ref WHERE false; UPDATE consents SET state"}, {"mint", "WHEN l.consent_id IS DISTINCT FROM r.consent_id OR c.state <> 'active' OR c.expires_at <= t THEN 'consent_ended'", ""}}},
		{"A10 an ambiguous digest that is minted again", ambiguousMintedAgain, nil,
			[]bug{{"mint", "AND x.digest = p_digest AND x.state = 'ambiguous'", "AND x.digest = p_digest AND false"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sound := patient(t)
			plant(t, sound, c.slow)
			require.Empty(t, c.check(t, sound), "the sound database is found guilty")
			planted := patient(t)
			plant(t, planted, append(c.slow, c.bugs...))
			violation := c.check(t, planted)
			require.NotEmpty(t, violation, "the planted bug was not caught")
			t.Log("caught:", violation)
		})
	}
}

// patient is a house whose replica waits longer than production does, so that a
// widened race ends by itself on a busy machine too.
func patient(t *testing.T) *authoritytest.House {
	t.Helper()
	h := authoritytest.New(t)
	h.Unsound()
	root, err := pgx.Connect(context.Background(), h.DB.URL(teststack.Superuser))
	require.NoError(t, err)
	defer root.Close(context.Background()) //nolint:errcheck // nothing is pending on it
	for _, setting := range []string{"statement_timeout", "lock_timeout"} {
		_, err = root.Exec(context.Background(), fmt.Sprintf("ALTER ROLE nw_authority IN DATABASE %s SET %s = '4s'", h.DB.Name, setting))
		require.NoError(t, err)
	}
	h.Pool.Reset()
	h.See() // on the new connections, before its copy of the decision is too old
	return h
}

// plant edits verbs in this database.
func plant(t *testing.T, h *authoritytest.House, bugs []bug) {
	t.Helper()
	ctx := context.Background()
	for _, b := range bugs {
		if b.verb == "" {
			h.Exec(b.new)
			continue
		}
		var source string
		require.NoError(t, h.Owner.QueryRow(ctx, `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'nw'::regnamespace AND proname = $1`, b.verb).Scan(&source))
		require.Equal(t, 1, strings.Count(source, b.old), "the text to edit stands %d times in %s: %s", strings.Count(source, b.old), b.verb, b.old)
		_, err := h.Owner.Exec(ctx, strings.Replace(source, b.old, b.new, 1))
		require.NoError(t, err)
	}
}

// session is a connection of the owner's for a transaction that the test paces.
func session(t *testing.T, h *authoritytest.House) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), h.DB.URL(teststack.Owner))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// sleeping returns when another backend is inside a widened race. Only a
// superuser sees what other roles wait for.
func sleeping(t *testing.T, h *authoritytest.House) {
	t.Helper()
	eyes, err := pgx.Connect(context.Background(), h.DB.URL(teststack.Superuser))
	require.NoError(t, err)
	defer eyes.Close(context.Background()) //nolint:errcheck // nothing is pending on it
	require.Eventually(t, func() bool {
		var n int
		err := eyes.QueryRow(context.Background(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&n)
		return err == nil && n > 0
	}, 10*time.Second, time.Millisecond, "nobody is in the widened race")
}

func say(format string, args ...any) string { return fmt.Sprintf(format, args...) }
