package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// bug is an edit of one verb.
type bug struct{ verb, from, to string }

// elsewhere makes believe that the decision was made on another timeline.
func (w *work) elsewhere() {
	w.t.Helper()
	w.Exec(w.t, `INSERT INTO nw.incarnations (incarnation, system_id, timeline, reason) SELECT incarnation, system_id, timeline + 7, reason FROM nw.incarnations`)
	w.Exec(w.t, `UPDATE nw.readiness_decision SET timeline = timeline + 7`)
	w.before = w.decision()
	w.allGood() // too early
}

// here is an older state of the same place, whose sequence has run ahead as it does after a crash.
func (w *work) here() {
	w.t.Helper()
	w.Exec(w.t, `SELECT setval('nw.admissions', last_value + 32) FROM nw.admissions`)
}

// unaware: the guard has seen an admission, and then a fence, of which nothing is known here.
func unaware(w *work) string {
	w.guard.Admission += 5
	for range 2 {
		require.Equal(w.t, "ok", w.verdict(w.report()))
	}
	w.guard.Fence = 6 << 40
	for range 2 {
		require.Equal(w.t, "ok", w.verdict(w.report()))
	}
	if h := w.history(); fmt.Sprint(h) != "[first 1 restored 2 restored 8]" {
		return fmt.Sprint(h)
	}
	return ""
}

// forgetful: an evaluator remembers more, in this incarnation and of a later one.
func forgetful(w *work) string {
	for _, remembered := range []decision{{Incarnation: 1, Sequence: w.before.Sequence + 1}, {Incarnation: 3}} {
		for range 2 {
			w.remembering(remembered)
		}
	}
	if h := w.history(); fmt.Sprint(h) != "[first 1 restored 2 restored 4]" {
		return fmt.Sprint(h)
	}
	return ""
}

// credulous: a reporter that is no guard has seen nothing.
func credulous(w *work) string {
	w.Exec(w.t, `WITH r AS (INSERT INTO nw.registry (kind, name, revision, document) SELECT 'reporter', sha256('reporter'), 1, document FROM nw.registry WHERE id = $1 RETURNING id),
		c AS (INSERT INTO nw.components (id, profile_id) SELECT id, $2 FROM r), f AS (INSERT INTO nw.component_families SELECT id, 'x_' || repeat('0', 64) FROM r)
		INSERT INTO nw.instances (kind, component_id, instance, jkt) SELECT 'component', id, sha256('instance'), sha256('key') FROM r`, w.Guard, w.Profile)
	verdict := w.verdict(fixture.Call{From: `nw.report_component(sha256('reporter'), 'reporter', sha256('instance'), 1, sha256('key'), clock_timestamp() + interval '6 seconds', sha256('proof'),
		'x_' || repeat('0', 64), 1, true, 'good', 0, NULL, NULL, '{}', '{}', 6::bigint << 40, 1::bigint << 40)`})
	require.Equal(w.t, "ok", verdict)
	if h := w.history(); len(h) > 1 {
		return fmt.Sprint(h)
	}
	return ""
}

// crowded: every evaluator finds it at the same moment.
func crowded(w *work) string {
	gate, err := w.Owner.Begin(within(w.t))
	require.NoError(w.t, err)
	_, err = gate.Exec(within(w.t), `SELECT nw.alone()`)
	require.NoError(w.t, err)
	var all errgroup.Group
	for range 4 {
		all.Go(func() error {
			_, err := w.Owner.Exec(within(w.t), `SELECT nw.evaluate()`)
			return err
		})
	}
	require.Eventually(w.t, func() bool {
		return fixture.Value[int64](w.t, w.World, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) == 4
	}, patience, 10*time.Millisecond)
	require.NoError(w.t, gate.Commit(within(w.t)))
	require.NoError(w.t, all.Wait())
	if h := w.history(); len(h) != 3 { // with the place that was made believe
		return fmt.Sprint(h)
	}
	return ""
}

// Where nothing is planted every check passes.
func TestChecksPass(t *testing.T) {
	t.Parallel()
	moved := newWork(t, teststack.Database(t))
	moved.elsewhere()
	moved.sound()
	for _, c := range []struct {
		lose  func(*work)
		check check
	}{{(*work).elsewhere, crowded}, {(*work).here, credulous}, {(*work).here, forgetful}, {(*work).here, unaware}} {
		w := newWork(t, teststack.Database(t))
		c.lose(w)
		require.Empty(t, c.check(w))
	}
}

// Each check fails on a database in which a bug of its kind is planted.
func TestPlantedFailovers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		lose  func(*work)
		check check
		bugs  []bug
	}{
		{"admitting on any timeline", (*work).elsewhere, admitsAtOnce, []bug{{"admitting", " AND timeline = nw.timeline()", ""}}},
		{"a failover that goes on", (*work).elsewhere, goesOn, []bug{{"relocate", "IF NOT known THEN", "IF false THEN"}}},
		{"a new incarnation at each evaluation", (*work).elsewhere, goesOn, []bug{{"reincarnate", "VALUES (n, h.system_id, h.timeline, p_reason, t)", "VALUES (n, h.system_id, h.timeline + 1, p_reason, t)"}}},
		{"an incarnation for each evaluator", (*work).elsewhere, crowded, []bug{{"relocate", "PERFORM nw.alone();\n  SELECT * INTO STRICT i FROM incarnations ORDER BY id DESC LIMIT 1;", "PERFORM nw.alone();"}}},
		{"runs that go on", (*work).elsewhere, keepsRuns, []bug{{"end_lost", "WHERE live AND created_at <=", "WHERE live AND state <> 'queued' AND created_at <="}}},
		{"effects that stay in flight", (*work).elsewhere, keepsRuns, []bug{{"end_lost", "AND x.state = 'admitted'", "AND false"}}},
		{"nonces that live on", (*work).elsewhere, keepsNonces, []bug{{"reincarnate", "after = greatest(after, t + interval '5 seconds')", "after = after"}}},
		{"reports from before that count", (*work).elsewhere, opensEarly, []bug{{"judge", "(p_since IS NULL OR s.began_at > p_since)", "true"}}},
		{"slots that are planned again", (*work).elsewhere, plansLostSlots, []bug{{"plan", "WHEN (x->>'at')::timestamptz <= lost THEN 'failover'", "WHEN false THEN 'failover'"}}},
		{"a slot at the very start", (*work).elsewhere, plansLostSlots, []bug{{"plan", "(x->>'at')::timestamptz <= lost", "(x->>'at')::timestamptz < lost"}}},
		{"fences that go on from the row", (*work).elsewhere, reusesFences, []bug{{"claim", "greatest(l.fence, (d.incarnation - 1) << 40) + 1", "l.fence + 1"}}},
		{"numbers that go on from the sequence", (*work).elsewhere, reusesNumbers, []bug{{"reincarnate", "PERFORM setval('admissions', (n - 1) << 40);", ""}}},
		{"renewing an older capability", (*work).elsewhere, believesTheOld, []bug{{"renew", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
		{"minting with an older capability", (*work).elsewhere, believesTheOld, []bug{{"mint", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
		{"admitting under an older capability", (*work).elsewhere, believesTheOld, []bug{{"admit", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
		{"numbers that are held against the sequence", (*work).here, unaware, []bug{{"unheard", "NOT EXISTS (SELECT FROM effects e WHERE e.admission = p_admission)", "p_admission > (SELECT last_value FROM admissions)"}}},
		{"fences that nobody looks at", (*work).here, unaware, []bug{{"unheard", "p_seen > n OR ", ""}}},
		{"an incarnation that is not above what was seen", (*work).here, unaware, []bug{{"reincarnate", "greatest(incarnation, p_seen) + 1", "incarnation + 1"}}},
		{"a replica that is not asked", (*work).here, forgetful, []bug{{"evaluate", "PERFORM nw.reincarnate('restored', p_incarnation);", "NULL;"}}},
		{"a reporter that is believed", (*work).here, credulous, []bug{{"report_component", "p_kind = 'guard' AND nw.unheard", "nw.unheard"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			planted := newWork(t, teststack.Database(t))
			c.lose(planted)
			for _, b := range c.bugs {
				planted.Plant(t, b.verb, b.from, b.to)
			}
			violation := c.check(planted)
			require.NotEmpty(t, violation, "the planted bug was not caught")
			t.Log("caught:", violation)
		})
	}
}
