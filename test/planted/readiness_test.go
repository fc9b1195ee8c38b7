package planted

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// patience is beyond what any step of these tests takes.
const patience = 30 * time.Second

// board is a gate with one reporter of each kind. Only reports and evaluations open it.
type board struct {
	*fixture.World
	t       *testing.T
	reports *fixture.Reports
}

func newBoard(t *testing.T) *board {
	t.Helper()
	w := fixture.New(t)
	w.GuardInstance(t)
	return &board{w, t, w.Reports(t)}
}

func (b *board) say(family, reason string) string { return b.verdict(b.reports.Say(family, reason)) }

func (b *board) verdict(c fixture.Call) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	verdict, err := c.Verdict(ctx, b.Owner)
	require.NoError(b.t, err)
	return verdict
}

// allGood reports every family but some.
func (b *board) allGood(but ...string) {
	b.t.Helper()
	for _, family := range fixture.Families() {
		if len(but) == 0 || family != but[0] {
			require.Equal(b.t, "ok", b.say(family, "good"))
		}
	}
}

// opens evaluates until it opens, or would have: the closed time is short, and rounds follow at once.
func (b *board) opens() bool {
	b.t.Helper()
	for range 5 {
		b.Exec(b.t, `UPDATE nw.readiness_decision SET closed_ms = 0, round_at = '-infinity' WHERE state = 'closed'`)
		if fixture.Value[string](b.t, b.World, `SELECT state FROM nw.evaluate()`) == "open" {
			return true
		}
	}
	return false
}

func (b *board) open() int64 {
	b.t.Helper()
	b.allGood()
	require.True(b.t, b.opens())
	return b.epoch()
}

func (b *board) epoch() int64 {
	return fixture.Value[int64](b.t, b.World, `SELECT epoch FROM nw.readiness_decision`)
}

func (b *board) isOpen() bool {
	return fixture.Value[bool](b.t, b.World, `SELECT open FROM nw.decision()`)
}

// wrong is what a story says when something is not as it must be.
func wrong(is bool, what string) string {
	if is {
		return what
	}
	return ""
}

// oldReports: all but one family were last good before the close.
func oldReports(b *board) string {
	b.open()
	b.say("queue", "unhealthy")
	b.say("queue", "good")
	return wrong(b.opens(), "it opens from reports that are older than the close")
}

// silentReporter: one family's last report has run out.
func silentReporter(b *board) string {
	b.open()
	b.Exec(b.t, `UPDATE nw.readiness_reports SET sequence = sequence + 1, expires_at = clock_timestamp() WHERE family = 'clock'`)
	return wrong(b.opens(), "a report that has run out counts as good")
}

// clockWentBack: one family's last report is from a time that is yet to come.
func clockWentBack(b *board) string {
	b.allGood()
	b.Exec(b.t, `UPDATE nw.readiness_reports SET sequence = sequence + 1, began_at = began_at + interval '1 hour', expires_at = expires_at + interval '1 hour' WHERE family = 'audit'`)
	return wrong(b.opens(), "a report from the future counts as good")
}

// postdated: a reporter claims that its probe has yet to begin, which would make its report last longer.
func postdated(b *board) string {
	verdict := fixture.Value[string](b.t, b.World, `SELECT nw.record_report(id, boot, 'queue', 1, true, 'good', -60000) FROM nw.instances WHERE kind = 'scheduler'`)
	return wrong(verdict == "ok", "a report from the future is accepted")
}

// replayed: an older good report comes after a newer bad one.
func replayed(b *board) string {
	b.open()
	older := b.reports.Say("queue", "good")
	b.say("queue", "unhealthy")
	b.allGood("queue")
	b.verdict(older)
	return wrong(b.opens(), "an older report has undone a newer one")
}

// neverReported: one required family has no reporter at all.
func neverReported(b *board) string {
	b.allGood("attestation")
	return wrong(b.opens(), "it opens without a required family")
}

// outvoted: of two instances one is bad.
func outvoted(b *board) string {
	b.open()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.Owner.Exec(ctx, `SELECT nw.record_report(r.instance_id, r.boot, 'queue', 1, false, 'unreachable', 0) FROM nw.register_replica('scheduler', sha256('second')) r`)
	require.NoError(b.t, err)
	b.allGood()
	return wrong(b.opens(), "a bad instance is outvoted by a good one")
}

// badNews: a report of something bad closes in its own transaction.
func badNews(b *board) string {
	before := b.open()
	b.say("signing", "material")
	return wrong(b.isOpen() || b.epoch() != before+1, "a bad report has not closed at once")
}

// foreignGuard: the guard speaks a protocol that nobody requires.
func foreignGuard(b *board) string {
	b.open()
	report := b.reports.Say("guards", "good")
	report.From = strings.Replace(report.From, "1::smallint", "9::smallint", 1)
	b.verdict(report)
	return wrong(b.isOpen(), "a guard of another protocol counts as good")
}

// expiredDecision: all evaluators were silent for longer than the decision is valid. Then all is good.
func expiredDecision(b *board) string {
	before := b.open()
	b.Exec(b.t, `UPDATE nw.readiness_decision SET valid_until = clock_timestamp()`)
	fixture.Value[string](b.t, b.World, `SELECT state FROM nw.evaluate()`)
	return wrong(b.isOpen() || b.epoch() == before, "a decision that has run out is renewed")
}

// oneRound: all is good, and is looked at for the first time.
func oneRound(b *board) string {
	b.allGood()
	b.Exec(b.t, `UPDATE nw.readiness_decision SET closed_ms = 0`)
	return wrong(fixture.Value[string](b.t, b.World, `SELECT state FROM nw.evaluate()`) == "open", "it opens at first sight")
}

// Bugs in how the decision is derived, each with the story that must notice it.
func TestPlantedInReadiness(t *testing.T) {
	t.Parallel()
	const since, fresh = "(p_since IS NULL OR s.began_at > p_since)", "r.expires_at > t AND r.began_at <= t AS fresh"
	for name, c := range map[string]struct {
		story func(*board) string
		bugs  []bug
	}{
		"opening from an old report":               {oldReports, []bug{{"judge", since, "true"}}},
		"a report that has run out counts":         {silentReporter, []bug{{"judge", fresh, "r.began_at <= t AS fresh"}}},
		"a report from the future counts":          {clockWentBack, []bug{{"judge", fresh, "r.expires_at > t AS fresh"}}},
		"a report from the future is accepted":     {postdated, []bug{{"record_report", "OR p_age_ms < 0 OR", "OR"}}},
		"a required family that nobody reports":    {neverReported, []bug{{"judge", "WHEN j.good >= j.needed THEN NULL", "WHEN j.good >= least(j.needed, j.reported) THEN NULL"}}},
		"a bad instance that others outvote":       {outvoted, []bug{{"judge", "WHEN j.bad IS NOT NULL THEN j.bad WHEN", "WHEN"}}},
		"a bad report that waits for an evaluator": {badNews, []bug{{"record_report", "IF NOT sound THEN PERFORM nw.shut(", "IF false THEN PERFORM nw.shut("}}},
		"a guard of any protocol":                  {foreignGuard, []bug{{"compatible", "p_protocol = ANY (q.protocols)", "true"}}},
		"renewing an expired decision": {expiredDecision, []bug{{"evaluate", "i.good AND d.valid_until > t THEN", "i.good THEN"},
			{"evaluate", "AND valid_until > clock_timestamp() RETURNING", "RETURNING"}}},
		"opening at first sight": {oneRound, []bug{{"evaluate", "d.good_rounds + 1 < q.rounds", "false"}, {"evaluate", "d.good_rounds + 1 >= q.rounds", "true"}}},
		"a report that is replayed": {replayed, []bug{{"record_report", "WHERE r.boot < EXCLUDED.boot OR (r.boot = EXCLUDED.boot AND r.sequence < EXCLUDED.sequence)", ""},
			{"", "", "DROP TRIGGER reports_rise ON nw.readiness_reports"}}}, // which would have caught it too
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, c.story(newBoard(t)), "the sound database is found guilty")
			planted := newBoard(t)
			plantIn(t, planted.World, c.bugs)
			violation := c.story(planted)
			require.NotEmpty(t, violation, "the planted bug was not caught")
			t.Log("caught:", violation)
		})
	}
}

// plantIn edits verbs in a world's database.
func plantIn(t *testing.T, w *fixture.World, bugs []bug) {
	t.Helper()
	for _, b := range bugs {
		if b.verb == "" {
			w.Exec(t, b.new)
		} else {
			w.Plant(t, b.verb, b.old, b.new)
		}
	}
}
