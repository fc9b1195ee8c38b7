package failover

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// work is a place with something of everything under way.
type work struct {
	*place
	before                   decision
	queued, claimed, waiting *fixture.Lane
	minted                   fixture.Effect // of claimed
	flying, ending           flight
	done                     *fixture.Lane // its run has ended
	due                      fixture.Task  // nobody has planned its slots
	nonceAt                  time.Time
}

// flight is an admitted effect that nobody has settled.
type flight struct {
	*fixture.Lane
	effect  fixture.Effect
	attempt fixture.Ref
}

// newWork sets everything going in a database.
func newWork(t *testing.T, db *teststack.DB) *work {
	t.Helper()
	p := newPlace(t, db)
	w := &work{place: p, queued: p.Lane(t, fixture.TaskOptions{}), claimed: p.Held(t, fixture.TaskOptions{}), waiting: p.Held(t, fixture.TaskOptions{}), minted: fixture.NewEffect(),
		due: p.Task(t, fixture.TaskOptions{FirstAt: p.Now(t).Add(-time.Hour)})}
	require.Equal(t, "ok", w.verdict(w.claimed.Mint(w.minted)))
	p.Exec(t, `UPDATE nw.runs SET state = 'waiting', holder = NULL, lease_until = NULL WHERE id = $1`, w.waiting.Run.ID)
	w.flying, w.ending = p.fly(p.Held(t, fixture.TaskOptions{})), p.fly(p.Held(t, fixture.TaskOptions{}))
	require.Equal(t, "ok", w.verdict(p.Revoke(w.ending.Task)))
	require.Equal(t, "ending", p.RunByID(t, w.ending.Run.ID).State)
	w.done = p.Held(t, fixture.TaskOptions{})
	p.finish(w.done)
	// As long as a test may take on a busy machine.
	p.Exec(t, `UPDATE nw.runs SET lease_until = deadline WHERE state = 'claimed'`)
	p.Exec(t, `UPDATE nw.effects SET expires_at = clock_timestamp() + interval '1 hour' WHERE state = 'minted'`)
	w.remember()
	return w
}

// remember takes down the decision, and a nonce that is good.
func (w *work) remember() {
	w.t.Helper()
	w.before, w.nonceAt = w.decision(), w.Now(w.t)
	require.Equal(w.t, "ok", w.spend(w.nonceAt))
}

// fly has an effect of a held run admitted, and the guard sees it.
func (p *place) fly(l *fixture.Lane) flight {
	p.t.Helper()
	f := flight{l, fixture.NewEffect(), fixture.NewRef()}
	require.Equal(p.t, "ok", p.verdict(l.Mint(f.effect)))
	p.goAhead(l.Admit(f.effect, f.attempt))
	return f
}

// goAhead asks for an admission, which the guard then has seen, and returns its number.
func (p *place) goAhead(c fixture.Call) int64 {
	p.t.Helper()
	type answer struct {
		Verdict       string
		Fence, Number int64
	}
	a := one[answer](p, `SELECT verdict, coalesce(fence, 0), coalesce(number, 0) FROM `+c.From, c.Args...)
	require.Equal(p.t, "ok", a.Verdict)
	p.guard.Fence, p.guard.Admission = max(p.guard.Fence, a.Fence), max(p.guard.Admission, a.Number)
	return a.Number
}

// again is a new run of a lane's task, claimed.
func (p *place) again(l *fixture.Lane) *fixture.Lane {
	p.t.Helper()
	next := *l
	next.Run, next.Key = p.NewRun(p.t, l.Task), fixture.Random()
	return p.claim(&next)
}

// claim claims a lane's run.
func (p *place) claim(l *fixture.Lane) *fixture.Lane {
	p.t.Helper()
	type answer struct {
		Verdict                       string
		Fence, Readiness, Incarnation int64
	}
	c := l.Claim(fixture.Random())
	a := one[answer](p, `SELECT verdict, coalesce(fence, 0), coalesce(readiness_epoch, 0), coalesce(incarnation, 0) FROM `+c.From, c.Args...)
	require.Equal(p.t, "ok", a.Verdict)
	held := *l
	held.Fence, held.Readiness, held.Incarnation = a.Fence, a.Readiness, a.Incarnation
	return &held
}

// finish ends a held run, well.
func (p *place) finish(l *fixture.Lane) {
	p.t.Helper()
	p.Exec(p.t, `SELECT nw.finish_run($1, 'succeeded')`, l.Run.ID)
}

// spend uses a nonce that was issued at some time.
func (p *place) spend(issued time.Time) string {
	p.t.Helper()
	return p.verdict(fixture.Call{From: `nw.spend_component($1, 'guard', $2, 1, $3, $4, $5)`, Args: []any{p.guard.Name, p.guard.Instance, p.guard.Key, issued, fixture.Random()}})
}

// settle records that an effect was committed. It tells whether that came as late evidence.
func (p *place) settle(f flight) (verdict, state string, late bool) {
	p.t.Helper()
	type answer struct {
		Verdict, State string
		Late           bool
	}
	c := p.SettleEffect(f.effect, f.attempt, "committed")
	a := one[answer](p, `SELECT verdict, coalesce(effect_state, ''), late FROM `+c.From, c.Args...)
	return a.Verdict, a.State, a.Late
}

// plan plans all slots of a task up to now, without a word of the timetable.
func (p *place) plan(k fixture.Task, slots ...time.Time) string {
	p.t.Helper()
	list := make([]map[string]any, len(slots))
	for i, at := range slots {
		list[i] = map[string]any{"at": at}
	}
	text, err := json.Marshal(list)
	require.NoError(p.t, err)
	run := fixture.NewRef()
	return p.verdict(fixture.Call{From: `nw.plan($1, 1, $2, $3, $4, $5, $6, 1000)`,
		Args: []any{k.ID, p.NextAt(p.t, k), string(text), slots[len(slots)-1].Add(time.Hour), fixture.Random(), run[:]}})
}

// check looks for one violation after the database has been replaced. It
// returns what it saw, or nothing.
type check func(w *work) (violation string)

// checks are all of them, in an order in which one place can pass them. The first evaluation is goesOn's.
var checks = []check{admitsAtOnce, goesOn, keepsNonces, keepsRuns, opensEarly, plansLostSlots, reusesFences, reusesNumbers, believesTheOld}

// sound makes every check.
func (w *work) sound() {
	w.t.Helper()
	for _, c := range checks {
		require.Empty(w.t, c(w))
	}
}

// admitsAtOnce: before anybody has evaluated, the decision of the other place still says open.
func admitsAtOnce(w *work) string {
	require.Equal(w.t, "open", w.decision().State)
	for _, g := range w.gated {
		if v := w.verdict(g.Call); v != "admission_closed" {
			return fmt.Sprintf("%s: %s", g.Verb, v)
		}
	}
	return ""
}

// goesOn: an evaluation must find a new incarnation, once, and begin it closed.
func goesOn(w *work) string {
	d := w.evaluate()
	last := one[struct {
		Incarnation int64
		Timeline    int32
	}](w.place, `SELECT incarnation, timeline FROM nw.incarnations ORDER BY id DESC LIMIT 1`)
	rows := fixture.Value[int64](w.t, w.World, `SELECT count(*) FROM nw.readiness_log l JOIN nw.audit a ON a.verb = 'incarnation' AND (convert_from(a.body, 'UTF8')::json->'more'->>'incarnation')::bigint = l.incarnation
		WHERE l.state = 'closed' AND l.incarnation = $1 AND l.epoch <= $2`, d.Incarnation, d.Epoch)
	switch {
	case d.State != "closed" || d.Incarnation <= w.before.Incarnation:
		return fmt.Sprintf("%+v after %+v", d, w.before)
	case d.Epoch <= w.before.Epoch || d.Sequence <= w.before.Sequence:
		return fmt.Sprintf("epoch or sequence do not rise: %+v after %+v", d, w.before)
	case last.Incarnation != d.Incarnation || last.Timeline != d.Timeline || d.Timeline != fixture.Value[int32](w.t, w.World, `SELECT nw.timeline()`):
		return fmt.Sprintf("the decision is of another place: %+v, %+v", d, last)
	case rows != 1:
		return fmt.Sprintf("%d rows of log and audit", rows)
	}
	if again := w.evaluate(); again.Incarnation != d.Incarnation {
		return "each evaluation is a new incarnation"
	}
	return ""
}

// keepsRuns: what had not ended may have gone on elsewhere.
func keepsRuns(w *work) string {
	w.evaluate()
	for what, run := range map[string]int64{"queued": w.queued.Run.ID, "claimed": w.claimed.Run.ID, "waiting": w.waiting.Run.ID, "in flight": w.flying.Run.ID, "ending": w.ending.Run.ID} {
		if r := w.RunByID(w.t, run); r.State != "ambiguous" || r.Queued || r.Inflight != 0 {
			return fmt.Sprintf("a run that was %s: %+v", what, r)
		}
	}
	if s := w.RunByID(w.t, w.done.Run.ID).State; s != "succeeded" {
		return "a run that had ended is " + s
	}
	for _, f := range []flight{w.flying, w.ending} {
		if verdict, state, late := w.settle(f); verdict != "ok" || state != "ambiguous" || !late {
			return fmt.Sprintf("settling an effect that was in flight: %s %s %t", verdict, state, late)
		}
	}
	return ""
}

// keepsNonces: a restored ring has forgotten who has used them.
func keepsNonces(w *work) string {
	w.evaluate()
	if v := w.spend(w.nonceAt); v != "use_dpop_nonce" {
		return "a nonce from before: " + v
	}
	if v := w.spend(w.Now(w.t).Add(6 * time.Second)); v != "ok" {
		return "a nonce from after: " + v
	}
	return ""
}

// opensEarly: reports from before do not count, whatever else is fulfilled, and one good round is not enough; then it opens, with a higher epoch.
func opensEarly(w *work) string {
	closed := w.evaluate()
	w.Exec(w.t, `UPDATE nw.readiness_decision SET good_rounds = 2, round_at = '-infinity', closed_ms = 0`)
	if d := w.evaluate(); d.State != "closed" || closed.State != "closed" || d.Epoch != closed.Epoch {
		return fmt.Sprintf("reports from before have opened it: %+v", d)
	}
	w.Exec(w.t, `UPDATE nw.readiness_decision SET closed_ms = 1000`)
	w.allGood()
	if d := w.evaluate(); d.State != "closed" {
		return "one round has opened it"
	}
	since := fixture.Value[time.Time](w.t, w.World, `SELECT since FROM nw.readiness_decision`)
	d := w.open()
	if opened := fixture.Value[time.Time](w.t, w.World, `SELECT since FROM nw.readiness_decision`); d.Epoch != closed.Epoch+1 || opened.Sub(since) < time.Second {
		return fmt.Sprintf("it has opened after %s: %+v after %+v", opened.Sub(since), d, closed)
	}
	return ""
}

// plansLostSlots: what became of a slot before the start is not known, and a task is not run twice for it.
func plansLostSlots(w *work) string {
	w.evaluate()
	w.open()
	start := fixture.Value[time.Time](w.t, w.World, `SELECT max(at) FROM nw.incarnations`)
	require.Equal(w.t, "ok", w.plan(w.due, start.Add(-time.Hour), start, w.Now(w.t)))
	var got []string
	for _, s := range w.Slots(w.t, w.due) {
		if s.Reason != nil {
			s.Outcome += " " + *s.Reason
		}
		got = append(got, s.Outcome)
	}
	if want := []string{"skipped failover", "skipped failover", "run"}; fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Sprint(got)
	}
	return ""
}

// reusesFences: in every lane, at every later claim.
func reusesFences(w *work) string {
	w.evaluate()
	start := (w.open().Incarnation - 1) << 40
	for _, lane := range []*fixture.Lane{w.queued, w.claimed, w.flying.Lane} {
		last := max(start, w.guard.Fence)
		for range 2 {
			l := w.again(lane)
			w.finish(l)
			if l.Fence <= last {
				return fmt.Sprintf("a claim has fence %d after %d", l.Fence, last)
			}
			last = l.Fence
		}
	}
	return ""
}

// reusesNumbers: guards compare them, so they go on above all that were given out.
func reusesNumbers(w *work) string {
	w.evaluate()
	start, last := (w.open().Incarnation-1)<<40, w.guard.Admission
	l := w.again(w.waiting)
	e := fixture.NewEffect()
	require.Equal(w.t, "ok", w.verdict(l.Mint(e)))
	number := w.goAhead(l.Admit(e, fixture.NewRef()))
	if number <= max(start, last) {
		return fmt.Sprintf("admission %d after %d in the incarnation from %d", number, last, start)
	}
	if w.allGood(); w.evaluate().Incarnation != start>>40+1 {
		return "the guard's report of it was taken for news"
	}
	return ""
}

// believesTheOld: no capability from before is good for anything, neither for its own run nor for another of the lane.
func believesTheOld(w *work) string {
	w.evaluate()
	w.open()
	var verdicts []string
	ask := func(c fixture.Call) { verdicts = append(verdicts, w.verdict(c)) }
	ask(w.claimed.Renew(fixture.Random()))
	ask(w.claimed.Mint(fixture.NewEffect()))
	ask(w.claimed.Admit(w.minted, fixture.NewRef()))
	l, e := w.again(w.claimed), fixture.NewEffect()
	require.Equal(w.t, "ok", w.verdict(l.Mint(e)))
	old := *l
	old.Incarnation = w.before.Incarnation
	ask(old.Renew(fixture.Random()))
	ask(old.Mint(fixture.NewEffect()))
	ask(old.Admit(e, fixture.NewRef()))
	if want := "[run_ended run_ended run_ended authority_changed authority_changed authority_changed]"; fmt.Sprint(verdicts) != want {
		return fmt.Sprint(verdicts)
	}
	require.Equal(w.t, "ok", w.verdict(l.Renew(fixture.Random())), "the new one is good")
	return ""
}
