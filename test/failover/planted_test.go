package failover

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// bug is an edit of one verb.
type bug struct{ verb, from, to string }

// elsewhere makes believe that the decision was made on another timeline.
func (w *work) elsewhere() {
	w.t.Helper()
	w.Exec(w.t, `INSERT INTO nw.incarnations (incarnation, system_id, timeline, reason) SELECT incarnation, system_id, timeline + 7, reason FROM nw.incarnations`)
	w.Exec(w.t, `UPDATE nw.readiness_decision SET timeline = timeline + 7`)
	w.before = w.decision()
}

// Each check fails on a database in which a bug of its kind is planted, and on a sound one all pass.
func TestPlantedFailovers(t *testing.T) {
	t.Parallel()
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		w := newWork(t, teststack.Database(t))
		w.elsewhere()
		w.sound()
	})
	for _, c := range []struct {
		name  string
		check check
		bugs  []bug
	}{
		{"admitting on any timeline", admitsAtOnce, []bug{{"admitting", " AND timeline = nw.timeline()", ""}}},
		{"a failover that goes on", goesOn, []bug{{"relocate", "IF NOT known THEN", "IF false THEN"}}},
		{"a new incarnation at each evaluation", goesOn, []bug{{"reincarnate", "VALUES (n, h.system_id, h.timeline, p_reason, t)", "VALUES (n, h.system_id, h.timeline + 1, p_reason, t)"}}},
		{"runs that go on", keepsRuns, []bug{{"reincarnate", "FOR r IN SELECT id FROM runs WHERE live ORDER BY id LOOP", "FOR r IN SELECT id FROM runs WHERE live AND state <> 'queued' ORDER BY id LOOP"}}},
		{"effects that stay in flight", keepsRuns, []bug{{"reincarnate", "AND x.state = 'admitted'", "AND false"}}},
		{"nonces that live on", keepsNonces, []bug{{"reincarnate", "after = greatest(after, t + interval '5 seconds')", "after = after"}}},
		{"reports from before that count", opensEarly, []bug{{"judge", "(p_since IS NULL OR s.began_at > p_since)", "true"}}},
		{"slots that are planned again", plansLostSlots, []bug{{"plan", "WHEN (x->>'at')::timestamptz <= lost THEN 'failover'", "WHEN false THEN 'failover'"}}},
		{"a slot at the very start", plansLostSlots, []bug{{"plan", "(x->>'at')::timestamptz <= lost", "(x->>'at')::timestamptz < lost"}}},
		{"fences that go on from the row", reusesFences, []bug{{"claim", "greatest(l.fence, (d.incarnation - 1) << 40) + 1", "l.fence + 1"}}},
		{"numbers that go on from the sequence", reusesNumbers, []bug{{"reincarnate", "PERFORM setval('admissions', (n - 1) << 40);", ""}}},
		{"renewing an older capability", believesTheOld, []bug{{"renew", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
		{"minting with an older capability", believesTheOld, []bug{{"mint", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
		{"admitting under an older capability", believesTheOld, []bug{{"admit", "WHEN d.incarnation <> p_incarnation THEN 'authority_changed'", ""}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			planted := newWork(t, teststack.Database(t))
			planted.elsewhere()
			planted.allGood()
			for _, b := range c.bugs {
				planted.Plant(t, b.verb, b.from, b.to)
			}
			violation := c.check(planted)
			require.NotEmpty(t, violation, "the planted bug was not caught")
			t.Log("caught:", violation)
		})
	}
}
