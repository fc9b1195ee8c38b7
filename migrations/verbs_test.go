package migrations_test

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// gated are the verbs that nothing passes while the gate is closed. Each is one admission (design.md §3).
var gated = []string{"claim", "renew", "mint", "admit", "plan", "rezone", "take_outbox", "give_consent", "narrow", "offer_task", "apply", "approve"}

// possible is everything else that a process role may call: what stays possible while closed (design.md §3), each for its reason.
var possible = map[string]string{
	// A closed gate must be able to open.
	"evaluate": "derives the decision", "register_replica": "boot report", "boot_component": "component token", "spend_component": "nonces",
	"report_replica": "readiness report", "report_component": "readiness report", "store_health": "a probe for reports", "register_keys": "comes before the first start", "alive": "only undoes",
	// Signing in admits nothing: what its person then does takes sides by itself.
	"begin_session": "signing in", "find_session": "reading", "end_session": "signing out", "expire_sessions": "reaper",
	// Less is always possible.
	"audit_health": "a probe for reports", "board": "reading", "show_builds": "reading", "show_uncertain": "reading", "require": "adds to what is required, and closes",
	"gate_close": "close", "gate_release": "ends a hold and opens nothing", "gate_standby": "opens nothing", "revoke": "revoke", "cut_off": "revoke", "cut_off_many": "revoke", "withdraw": "revoke", "retire": "revoke", "decline": "deny", "deny": "deny", "depart": "revoke", "record_finding": "finding",
	// Of a product, which can end what it has asked for.
	"product_revoke": "revoke", "product_withdraw": "revoke", "product_offer": "reading", "product_consent": "reading",
	// A close must not make finished work ambiguous (P16).
	"settle_effect": "settle effect", "unsettled": "unsettled", "settle_run": "settle run", "effect_for_holder": "status",
	// Time passes while closed.
	"reapable": "reaper", "reap": "reaper", "expire_effects": "reaper", "expire_consents": "reaper", "expire_decisions": "reaper", "release_reservations": "reaper",
	"take_notices": "telling owners, who must be able to say no", "take_digest": "telling owners", "set_notices": "how a member is told: it grants nothing", "show_notice_settings": "reading", "notice_delivered": "telling owners", "notice_refused": "telling owners", "retry_notices": "telling owners",
	"raise_floors": "reaper: a floor only refuses more", "drain": "reaper: changes nothing", "recycle": "reaper: drops what is refused by the floor",
	// The log goes on while closed: its lag closes, so it must be able to catch up.
	"audit_lead": "sequencer", "audit_append": "sequencer", "audit_sign": "sequencer", "audit_cosign": "sequencer", "audit_resume": "begins an incarnation, closed", "audit_last": "reading", "audit_records": "reading", "audit_notes": "reading", "audit_lag": "a probe for reports",
	// Keys must be changed, and cut off, whatever the gate says.
	"rotate_keys": "admits nothing", "cut_off_keys": "revoke", "hold_keys": "a replica's report of itself", "key_state": "reading",
	"show_receipt": "reading", "audit_stretches": "reading", "audit_disclosed": "reading", "audit_plan": "reading", "audit_cut": "reading",
	"audit_redact": "takes out what is disclosed, and grants nothing", "audit_keep": "how long rows stay: it grants nothing", "audit_prune": "takes out rows behind a checkpoint, and grants nothing",
	// Reading, and the record of it.
	"present": "reading", "show_offers": "reading", "show_tasks": "reading", "show_revisions": "reading", "show_consents": "reading", "show_runs": "reading", "show_coalesced": "reading",
	"show_timeline": "reading", "show_decisions": "reading", "show_ambiguous": "reading", "show_epoch": "reading", "revocation_scope": "reading", "would_run": "reading", "cut_off_scope": "reading",
	"show_entries": "reading", "show_requirements": "reading", "show_gate": "reading", "audit_position": "reading", "show_audit": "reading", "task_reference": "reading", "entries": "reading",
	"decision": "reading", "due": "reading", "zones": "reading", "queues": "reading", "notices_health": "reading", "show_notices": "reading", "stranded": "reading", "note_refusal": "audit", "count_refusals": "audit",
}

// settling has no lock in common with a close either.
var settling = []string{"settle_effect", "unsettled", "effect_for_holder", "expire_effects"}

type callable struct{ Name, Body string }

// callables are the functions that some process role may execute, by whatever grant.
func callables(t *testing.T, by querier) []callable {
	t.Helper()
	return rows[callable](t, by, `SELECT p.proname, p.prosrc FROM pg_proc p WHERE p.pronamespace = 'nw'::regnamespace AND EXISTS (
		SELECT FROM pg_roles r WHERE r.rolname LIKE 'nw\_%' AND r.rolcanlogin AND has_function_privilege(r.oid, p.oid, 'EXECUTE')) ORDER BY 1`)
}

// judge says what is wrong with where the callable functions stand: each is on exactly one side, and behind the gate if that is its side.
func judge(all []callable) (wrong []string) {
	known := map[string]bool{}
	for _, c := range all {
		if known[c.Name] {
			wrong = append(wrong, c.Name+": two verbs of one name")
		}
		known[c.Name] = true
		behind, free := slices.Contains(gated, c.Name), possible[c.Name] != ""
		switch {
		case behind == free:
			wrong = append(wrong, c.Name+": is a new verb gated, or possible while closed? Say so, and why")
		case behind:
			wrong = append(wrong, prefix(c.Name, behindTheGate(c.Body))...)
		case strings.Contains(c.Body, "nw.admitting"):
			wrong = append(wrong, c.Name+": asks the gate, and is listed as possible while closed")
		case slices.Contains(settling, c.Name) && regexp.MustCompile(`nw\.(enter|alone)\b`).MatchString(c.Body):
			wrong = append(wrong, c.Name+": settling waits for nobody (P16)")
		}
	}
	for _, name := range slices.Concat(gated, slices.Sorted(maps.Keys(possible)), settling) {
		if !known[name] {
			wrong = append(wrong, name+": is listed and does not exist")
		}
	}
	return wrong
}

func prefix(name string, sentences []string) []string {
	for i, s := range sentences {
		sentences[i] = name + ": " + s
	}
	return sentences
}

var (
	comment = regexp.MustCompile(`--[^\n]*`)
	// acts is what no statement may do before the decision is read: write, or call something that may.
	acts = regexp.MustCompile(`(?is)\b(INSERT|DELETE|TRUNCATE|MERGE|EXECUTE|CALL|COPY)\b|\bUPDATE\s+(ONLY\s+)?[\w.]+\s+(AS\s+)?(\w+\s+)?SET\b|\bnw\.\w+\s*\(`)
)

// behindTheGate holds a body against the one pattern (design.md §3): the first statement takes the shared lock, row locks may follow, a
// statement of its own reads the decision, and only then anything is done.
func behindTheGate(body string) (wrong []string) {
	_, body, _ = strings.Cut(comment.ReplaceAllString(body, ""), "BEGIN")
	statements := strings.Split(body, ";")
	for i := range statements {
		statements[i] = strings.TrimSpace(statements[i])
	}
	if statements[0] != "PERFORM nw.enter()" {
		wrong = append(wrong, "the first statement is not the shared lock")
	}
	read := slices.Index(statements, "d := nw.admitting()")
	if read < 1 {
		return append(wrong, "no statement of its own reads the decision after the lock")
	}
	for _, s := range statements[1:read] {
		if acts.MatchString(s) {
			wrong = append(wrong, "acts before it has read the decision: "+s)
		}
	}
	if !strings.Contains(strings.Join(statements[read:], ";"), "d.state IS NULL") {
		wrong = append(wrong, "does not look at the decision that it has read")
	}
	return wrong
}

// A15: every verb takes sides, and those behind the gate are built so that a close is exact.
func TestEveryVerbTakesSides(t *testing.T) {
	t.Parallel()
	assert.Empty(t, judge(callables(t, teststack.Database(t).Pool(t, teststack.Owner))))
}

// edit is SQL that puts with in the place of old in a verb, where it stands.
func edit(verb, old, with string) string {
	return fmt.Sprintf(`DO $x$ DECLARE f text := pg_get_functiondef('nw.%s'::regproc); BEGIN
		IF strpos(f, $o$%s$o$) = 0 THEN RAISE 'nothing to edit'; END IF; EXECUTE replace(f, $o$%s$o$, $n$%s$n$); END $x$`, verb, old, old, with)
}

// The test above can fail: each of these is found.
func TestAVerbOnTheWrongSideIsFound(t *testing.T) {
	t.Parallel()
	novel := `CREATE FUNCTION nw.novel() RETURNS void LANGUAGE plpgsql AS 'BEGIN END'; `
	for name, c := range map[string]struct{ plant, found string }{
		"a new verb":                     {novel + `GRANT EXECUTE ON FUNCTION nw.novel() TO nw_scheduler`, "novel: is a new verb"},
		"a new verb for everybody":       {novel + `GRANT EXECUTE ON FUNCTION nw.novel() TO PUBLIC`, "novel: is a new verb"},
		"a new verb by another role":     {novel + `GRANT EXECUTE ON FUNCTION nw.novel() TO nw_owner; GRANT nw_owner TO nw_authority`, "novel: is a new verb"},
		"another form of a verb":         {`CREATE FUNCTION nw.claim() RETURNS void LANGUAGE plpgsql AS 'BEGIN END'; GRANT EXECUTE ON FUNCTION nw.claim() TO PUBLIC`, "claim: two verbs of one name"},
		"a verb that is gone":            {`DROP FUNCTION nw.decline`, "decline: is listed and does not exist"},
		"no lock":                        {edit("renew", "PERFORM nw.enter();", ""), "renew: the first statement is not"},
		"a row before the lock":          {edit("admit", "PERFORM nw.enter();", "PERFORM FROM lanes FOR NO KEY UPDATE; PERFORM nw.enter();"), "admit: the first statement is not"},
		"a lock in a comment":            {edit("mint", "PERFORM nw.enter();", "-- PERFORM nw.enter();"), "mint: the first statement is not"},
		"lock and read in one statement": {edit("claim", "d := nw.admitting();", "SELECT a.* INTO d FROM (SELECT nw.enter()) locked, nw.admitting() a;"), "claim: no statement of its own reads"},
		"a write before the decision":    {edit("plan", "d := nw.admitting();", "UPDATE start_rate SET next_at = next_at; d := nw.admitting();"), "plan: acts before"},
		"a call before the decision":     {edit("give_consent", "d := nw.admitting();", "PERFORM nw.advance_epoch(1); d := nw.admitting();"), "give_consent: acts before"},
		"a decision that nobody heeds":   {edit("rezone", "d.state IS NULL", "false"), "rezone: does not look"},
		"a settling that asks":           {edit("settle_run", "PERFORM nw.enter();", "PERFORM nw.enter(); PERFORM nw.admitting();"), "settle_run: asks the gate"},
		"a settling that waits":          {edit("settle_effect", "wait_ms := 1000;", "wait_ms := 1000; PERFORM nw.enter();"), "settle_effect: settling waits for nobody"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := teststack.Database(t).Pool(t, teststack.Superuser)
			ctx := context.Background()
			tx, err := pool.Begin(ctx) // roles belong to the cluster: nothing of this is committed
			require.NoError(t, err)
			defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
			_, err = tx.Exec(ctx, c.plant)
			require.NoError(t, err)
			assert.Contains(t, strings.Join(judge(callables(t, tx)), "\n"), c.found)
		})
	}
}

// contents is a digest of every table but the audit log.
func contents(t *testing.T, w *fixture.World) map[string]string {
	t.Helper()
	all := map[string]string{}
	type name struct{ Name string }
	for _, table := range rows[name](t, w.Owner, `SELECT relname FROM pg_class WHERE relnamespace = 'nw'::regnamespace AND relkind IN ('r', 'p') AND relname NOT IN ('audit', 'audit_waiting')`) {
		all[table.Name] = fixture.Value[string](t, w, `SELECT md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM nw.`+table.Name+` x`)
	}
	return all
}

// Each gated verb is called as its process role: with the gate open it is admitted, and undone; with the gate closed the same call is refused
// and has changed nothing.
func TestGatedVerbsRefuseWhileClosed(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	calls := w.Gated(t)
	ctx := context.Background()
	var driven []string
	for _, c := range calls {
		driven = append(driven, c.Verb)
		// The role's transactions may not idle for longer than a test may be kept waiting.
		tx, err := w.DB.Pool(t, c.Role).BeginTx(ctx, pgx.TxOptions{BeginQuery: `BEGIN; SET LOCAL idle_in_transaction_session_timeout = '1min'`})
		require.NoError(t, err)
		verdict, err := c.Call.Verdict(ctx, tx)
		require.NoError(t, tx.Rollback(ctx))
		require.NoError(t, err)
		require.Equal(t, "ok", verdict, "%s while open: what is refused anyway shows nothing", c.Verb)
	}
	assert.ElementsMatch(t, gated, driven)

	w.CloseGate(t)
	before := contents(t, w)
	require.Greater(t, len(before), 40)
	for _, c := range calls {
		verdict, err := c.Call.Verdict(ctx, w.DB.Pool(t, c.Role))
		require.NoError(t, err)
		assert.Equal(t, "admission_closed", verdict, c.Verb)
		assert.Equal(t, before, contents(t, w), "%s has changed something while closed", c.Verb)
	}
	assert.Zero(t, fixture.Value[int](t, w, `SELECT count(*) FROM nw.audit WHERE verdict = 'ok' AND id > (SELECT max(id) FROM nw.audit WHERE verb = 'close')`))
}
