package history

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// recording is many workers, each on a lane of its own, and those who close,
// open, look and kill under them.
type recording struct {
	*stage
	workers     []*worker
	enough      context.Context
	seen        atomic.Int64 // admissions so far
	reports     *fixture.Reports
	bell        bell
	from        gate
	incarnation int64 // as far as the one who restores knows
	lock        sync.Mutex
	counts      map[string]int // verdicts by verb
}

// cast says who plays.
type cast struct {
	workers, operations int
	crashEvery          int64 // admissions; 0 for never
	restoreEvery        int   // closes; 0 for never
}

const (
	closeEvery = 120 // admissions
	lookEvery  = 20 * time.Millisecond
	judgeEvery = 10 * time.Millisecond
	judges     = 2
)

func newRecording(t *testing.T, c cast) *recording {
	t.Helper()
	r := &recording{stage: newStage(t, int32(c.workers+judges+4)), counts: map[string]int{}}
	r.reports = r.Reports(t)
	for i := range c.workers {
		r.workers = append(r.workers, &worker{Lane: r.Lane(t, fixture.TaskOptions{MaxEffects: 10000}), r: r, number: i})
	}
	require.NoError(t, r.Owner.QueryRow(within(t), `SELECT `+asGate+` FROM nw.readiness_decision`).Scan(&r.from.Open, &r.from.Held, &r.from.Epoch, &r.from.Incarnation))
	r.incarnation = r.from.Incarnation
	return r
}

func (r *recording) count(verb, verdict string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.counts[verb+" "+verdict]++
}

// play runs until there are operations enough, and everybody is done.
func (r *recording) play(c cast) {
	var stop context.CancelFunc
	r.enough, stop = context.WithTimeout(context.Background(), patience)
	defer stop()
	r.good()
	var all sync.WaitGroup
	for range judges {
		all.Go(func() { r.each(time.NewTicker(judgeEvery), r.judge) })
	}
	all.Go(func() { r.each(time.NewTicker(lookEvery), r.tend) })
	all.Go(func() { r.every(closeEvery, func(n int) { r.close(n, c) }) })
	if c.crashEvery > 0 {
		all.Go(func() { r.every(c.crashEvery, r.crash) })
	}
	for _, w := range r.workers {
		all.Go(w.work)
	}
	for ring := r.bell.next(); r.enough.Err() == nil && r.record.size() < c.operations; ring = r.bell.next() {
		r.wait(ring)
	}
	assert.GreaterOrEqual(r.t, r.record.size(), c.operations, "the time was over first")
	stop()
	r.bell.ring()
	all.Wait()
}

// each acts at each tick.
func (r *recording) each(ticker *time.Ticker, act func()) {
	defer ticker.Stop()
	for {
		select {
		case <-r.enough.Done():
			return
		case <-ticker.C:
			act()
		}
	}
}

// every acts once in so many admissions.
func (r *recording) every(admissions int64, act func(n int)) {
	for n := 0; ; n++ {
		for due := int64(n+1) * admissions; r.seen.Load() < due; {
			ring := r.bell.next()
			if r.seen.Load() < due && !r.wait(ring) {
				return
			}
		}
		act(n)
	}
}

// wait is for the next admission, or for an open gate; false at the end.
func (r *recording) wait(ring <-chan struct{}) bool {
	select {
	case <-r.enough.Done():
		return false
	case <-ring:
		return true
	}
}

// bell wakes whoever waits for the next ring.
type bell struct {
	lock sync.Mutex
	c    chan struct{}
}

func (b *bell) next() <-chan struct{} {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *bell) ring() {
	b.lock.Lock()
	defer b.lock.Unlock()
	if b.c != nil {
		close(b.c)
	}
	b.c = nil
}

// crash ends a session or a client in the middle of a call.
func (r *recording) crash(n int) {
	if n%2 == 0 {
		r.endSession()
	} else {
		r.killClient()
	}
}

// close closes in turns: by hand, by a bad report of a replica and of a guard; now and then somebody remembers more than the database does.
func (r *recording) close(n int, c cast) {
	switch {
	case c.restoreEvery > 0 && n%c.restoreEvery == c.restoreEvery-1:
		r.restore()
	case n%2 == 0:
		r.on(hold, r.operator, `epoch`, fixture.Call{From: `nw.gate_close('drill') AS x(epoch)`}, func(out *output) []any { return []any{&out.gate.Epoch} })
	case n%4 == 1:
		r.on(report, r.scheduler, `verdict = 'ok'`, r.reports.Say("queue", "unhealthy"), admitted)
	default:
		r.on(report, r.authority, `verdict = 'ok'`, r.reports.Say("guards", "unhealthy"), admitted)
	}
	r.look()
}

// tend looks, and does what makes an open gate again of a closed one.
func (r *recording) tend() {
	seen := r.look()
	if seen.Held {
		r.on(release, r.operator, `released`, fixture.Call{From: `nw.gate_release() AS x(released)`}, func(out *output) []any { return []any{&out.gate.Held} })
	}
	if !seen.Open {
		r.good()
	}
	r.on(reading, r.authority, `open, held, epoch, incarnation`, fixture.Call{From: `nw.decision()`}, whole)
}

// on records an operation on the gate.
func (r *recording) on(k kind, by *pgxpool.Pool, columns string, c fixture.Call, dest func(*output) []any) output {
	return r.record.write(input{kind: k, lane: everybody}, func() (out output) {
		out.ok = true
		out.outcome = r.call(by, columns, c, dest(&out)...)
		return out
	})
}

const asGate = `state = 'open', held, epoch, incarnation`

func whole(out *output) []any {
	return []any{&out.gate.Open, &out.gate.Held, &out.gate.Epoch, &out.gate.Incarnation}
}

func admitted(out *output) []any { return []any{&out.ok} }

// judge is one turn of an evaluator. The owner's hand makes the closed time
// short, so that there are many epochs; it changes nothing of the register.
func (r *recording) judge() {
	_, _ = r.Owner.Exec(context.Background(), `UPDATE nw.readiness_decision SET closed_ms = 0, round_at = '-infinity' WHERE state = 'closed'`)
	if r.on(evaluation, r.authority, asGate, fixture.Call{From: `nw.evaluate()`}, whole).gate.Open {
		r.bell.ring()
	}
}

// restore is a turn of an evaluator that remembers a later state of this incarnation than stands here.
func (r *recording) restore() {
	out := r.on(restoring, r.authority, asGate, fixture.Call{From: `nw.evaluate($1, 1::bigint << 40)`, Args: []any{r.incarnation}}, whole)
	r.incarnation = max(r.incarnation, out.gate.Incarnation)
}

// good reports every family as good, so that the gate may open. Whoever closes reports too, and may be later.
func (r *recording) good() {
	for _, family := range fixture.Families() {
		_, _ = r.reports.Say(family, "good").Verdict(context.Background(), r.Owner)
	}
}

// look reads the rows in one snapshot: the decision, and the newest admission of each lane.
func (r *recording) look() gate {
	tasks := make([]int64, len(r.workers))
	for i, w := range r.workers {
		tasks[i] = w.Task.ID
	}
	const newest = `ARRAY(SELECT coalesce((SELECT x.stamp FROM nw.runs u CROSS JOIN LATERAL (
		SELECT a.id, a.verb || ' ' || left(convert_from(a.body, 'UTF8')::json #>> '{more,capability}', 8) AS stamp FROM nw.audit a
		 WHERE a.run_id = u.id AND a.verdict = 'ok' AND a.verb IN ('claim', 'renew', 'mint', 'admit') ORDER BY a.id DESC LIMIT 1) x
		WHERE u.task_id = lane.task ORDER BY x.id DESC LIMIT 1), '') FROM unnest($1::bigint[]) WITH ORDINALITY lane(task, n) ORDER BY n)`
	return r.on(looking, r.eyes, asGate+`, `+newest, fixture.Call{From: `nw.readiness_decision`, Args: []any{tasks}}, func(out *output) []any {
		return append(whole(out), &out.stamps)
	}).gate
}
