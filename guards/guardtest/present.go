package guardtest

import (
	"net/http"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// presentationCases are about one effect that is asked for more than once, and about fences.
var presentationCases = []named{
	{"once", once, calm},
	{"once, whatever the authority says", onceAgain, alone},
	{"replay", replay, calm},
	{"two handlers with one presentation", twoHandlers, calm},
	{"two replicas with one presentation", twoReplicas, alone},
	{"two presentations at once", twoPresentations, calm},
	{"each presentation is an attempt", attempts, calm},
	{"fence", fence, alone},
	{"fence after a crash", fenceAfterCrash, alone},
}

// works: a good request to a good process.
func works(w *world) {
	p := w.start()
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
}

// once: an effect that has its end is refused, and its answer is not given again (P19).
func once(w *world) {
	p := w.start()
	e := w.next()
	first := w.present(p, e)
	w.requireCommitted(e, first)
	again := w.present(p, e)
	require.True(w, again.refused(), "it was presented again and answered with %d %s", again.status, again)
	require.NotEqual(w, string(first.body), string(again.body))
	require.Equal(w, 1, w.applied(e))
}

// onceAgain: an authority that was restored from a backup may give a go-ahead for what has happened. The guard knows.
func onceAgain(w *world) {
	w.mistrusts = true
	p := w.start()
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
	w.forget(e)
	w.present(p, e)
	require.Equal(w, 1, w.applied(e), "times that it happened, after the authority forgot it")
	w.kill(p)
	w.forget(e)
	w.present(w.start(), e)
	require.Equal(w, 1, w.applied(e), "times that it happened, after a crash too")
	w.authority.Do(func(a *authoritytest.Authority) { a.Effects[e.ref].State = api.Committed })
}

// forget makes the authority forget what became of an effect.
func (w *world) forget(e *effect) {
	w.authority.Do(func(a *authoritytest.Authority) { a.Effects[e.ref].State, a.Effects[e.ref].Attempt = "minted", "" })
}

// replay: a whole request, sent again, does nothing; and its proof is good for no other effect.
func replay(w *world) {
	p := w.start()
	e, other := w.next(), w.next()
	r := w.request(e)
	proof := r.Header.Get(api.HeaderProof)
	w.requireCommitted(e, p.send(r))
	for range 3 {
		a := p.send(w.request(e, func(r *http.Request) { r.Header.Set(api.HeaderProof, proof) }))
		require.True(w, a.refused(), "a replay was answered with %d %s", a.status, a)
	}
	require.Equal(w, 1, w.applied(e))
	w.requireUntouched(other, p.send(w.request(other, func(r *http.Request) { r.Header.Set(api.HeaderProof, proof) })))
	w.requireCommitted(other, w.present(p, other))
}

const copies = 12 // of one presentation

// twoHandlers: one capability and one proof, many times at once.
func twoHandlers(w *world) {
	p := w.start()
	w.presentCopies(w.next(), p)
}

func twoReplicas(w *world) {
	w.needReplicas()
	w.presentCopies(w.next(), w.start(), w.start())
}

func (w *world) needReplicas() {
	if !w.guard.Replicas {
		w.Skip("the guard has no replicas over one ledger")
	}
	w.authority.Do(func(a *authoritytest.Authority) { a.Replicas = true })
}

func (w *world) presentCopies(e *effect, processes ...*process) {
	w.Helper()
	proof := w.proof(e)
	requests := make([]*http.Request, copies)
	for i := range requests {
		requests[i] = w.request(e, func(r *http.Request) { r.Header.Set(api.HeaderProof, proof) })
	}
	w.requireOne(e, w.together(requests, processes...))
}

// twoPresentations: one capability, each time with a proof of its own.
func twoPresentations(w *world) {
	p := w.start()
	e := w.next()
	requests := make([]*http.Request, copies)
	for i := range requests {
		requests[i] = w.request(e)
	}
	w.requireOne(e, w.together(requests, p))
}

// together sends all requests at once, to each process in turn.
func (w *world) together(requests []*http.Request, processes ...*process) []answer {
	var group sync.WaitGroup
	answers := make([]answer, len(requests))
	for i, r := range requests {
		group.Go(func() { answers[i] = processes[i%len(processes)].send(r) })
	}
	group.Wait()
	return answers
}

// requireOne: one of the answers is a yes, and all others are refusals.
func (w *world) requireOne(e *effect, answers []answer) {
	w.Helper()
	yes := 0
	for _, a := range answers {
		if a.status == http.StatusOK {
			yes++
			continue
		}
		assert.True(w, a.refused(), "a copy was answered with %d %s", a.status, a)
	}
	require.Equal(w, 1, yes, "answers that say yes")
	require.Equal(w, api.Committed, w.endOf(e))
	require.Equal(w, 1, w.applied(e))
}

// attempts: a second presentation is another attempt, so that the authority can tell a lost answer from a second handler
// (P13).
func attempts(w *world) {
	p := w.start()
	e := w.next()
	first := w.authority.Catch(api.PathAdmit, e.ref)
	one := w.begin(p, e)
	w.arrive("the question about the first presentation", first.Arrived())
	first.Act()
	two := w.present(p, e)
	require.True(w, two.refused(), "the second presentation was answered with %d %s", two.status, two)
	require.Len(w, w.authority.Effect(e.ref).Asked, 2, "attempts that asked")
	first.Deliver()
	w.requireCommitted(e, <-one)
}

// fence: nothing is applied under a lower fence than the guard has seen in the lane, even with a go-ahead (P7).
func fence(w *world) {
	p := w.start()
	w.fenced(func() *process { return p })
}

func fenceAfterCrash(w *world) {
	p := w.start()
	w.fenced(func() *process { w.kill(p); return w.start() })
}

func (w *world) fenced(then func() *process) {
	w.Helper()
	p := w.running[0]
	lane, other := authoritytest.Ref(), authoritytest.Ref()
	high, low, same, elsewhere := w.mint(w.fresh(), lane, 7), w.mint(w.fresh(), lane, 6), w.mint(w.fresh(), lane, 7), w.mint(w.fresh(), other, 1)
	w.requireCommitted(high, w.present(p, high))
	p = then()
	w.present(p, low)
	require.NotEqual(w, api.Committed, w.endOf(low), "under a lower fence")
	require.Zero(w, w.applied(low), "times that it happened under a lower fence")
	w.requireCommitted(same, w.present(p, same))
	w.requireCommitted(elsewhere, w.present(p, elsewhere))
	w.await("the guard reports the highest fence that it has seen", func(a *authoritytest.Authority) bool {
		last := a.Reports[len(a.Reports)-1]
		return last.MaxFence >= 7 && last.MaxAdmission >= 1
	})
}

// timeCases are about the time to apply (P18).
var timeCases = []named{
	{"late go-ahead", lateGoAhead, calm},
	{"go-ahead without time", noTime, calm},
	{"late at the resource", lateAtResource, calm},
	{"a sweep beside a living attempt", sweepBeside, calm},
	{"a sweep leaves what still has time", sweepLeaves, calm},
}

const short = 400 * time.Millisecond

// lateGoAhead: the time counts from before the question was sent, so an answer that took too long is worth nothing.
func lateGoAhead(w *world) {
	p := w.start()
	w.authority.Do(func(a *authoritytest.Authority) { a.ApplyWithin = short })
	e := w.next()
	held := w.authority.Catch(api.PathAdmit, e.ref)
	done := w.begin(p, e)
	w.arrive("the question", held.Arrived())
	pause(short + 200*time.Millisecond)
	w.authority.Do(func(a *authoritytest.Authority) { a.ApplyWithin = short })
	held.Deliver() // its apply_within_ms is whole
	a := <-done
	require.NotEqual(w, api.Committed, a.outcome, "after a late go-ahead: %s", a)
	require.NotEqual(w, api.Committed, w.endOf(e), "after its time")
	require.Zero(w, w.applied(e), "times that it happened after its time")
}

func noTime(w *world) {
	p := w.start()
	for _, within := range []time.Duration{0, -time.Second} {
		w.authority.Do(func(a *authoritytest.Authority) { a.ApplyWithin = within })
		e := w.next()
		w.present(p, e)
		require.NotEqual(w, api.Committed, w.endOf(e), "with a go-ahead for %s", within)
		require.Zero(w, w.applied(e), "times that it happened")
	}
}

// lateAtResource: a guard that can prove also keeps the time at the resource, up to one commit.
func lateAtResource(w *world) {
	if !w.guard.Provable {
		w.Skip("the guard cannot take back what it has sent")
	}
	const enough = 2 * time.Second // to reach the resource, on a busy machine too
	p := w.start()
	w.authority.Do(func(a *authoritytest.Authority) { a.ApplyWithin = enough })
	e := w.next()
	held := w.holdBefore(e)
	done := w.begin(p, e)
	w.arrive("the effect at the resource", held.Reached)
	pause(enough + 200*time.Millisecond)
	held.Release()
	<-done
	require.NotEqual(w, api.Committed, w.endOf(e), "after its time")
	require.Zero(w, w.applied(e), "times that it happened after its time")
}

func (w *world) holdBefore(e *effect) *Hold {
	w.Helper()
	if w.guard.HoldBefore == nil {
		w.Skip("the resource cannot be stopped before an effect")
	}
	return w.hold(w.guard.HoldBefore, e)
}

// hold is released when the case ends, if not before.
func (w *world) hold(at func(n int) (*Hold, error), e *effect) *Hold {
	w.Helper()
	h, err := at(e.n)
	require.NoError(w, err)
	held := &Hold{Reached: h.Reached, Release: sync.OnceFunc(h.Release)}
	w.Cleanup(held.Release)
	return held
}

// sweepBeside: while an attempt is applied its time passes; the sweep and it must come to the same end.
func sweepBeside(w *world) {
	p := w.start()
	e := w.next()
	held := w.holdBefore(e)
	done := w.begin(p, e)
	w.arrive("the effect at the resource", held.Reached)
	w.overdue(e)
	w.sweeps(2)
	held.Release()
	<-done
	w.endOf(e)
}

// sweeps waits until the guard has asked so many times for what is unsettled.
func (w *world) sweeps(n int) {
	w.Helper()
	before := w.authority.Count(api.PathUnsettled)
	w.await("the guard asks what is unsettled", func(a *authoritytest.Authority) bool { return a.Calls[api.PathUnsettled] >= before+n })
}

// sweepLeaves: an effect that another process works on is not settled before its time has passed.
func sweepLeaves(w *world) {
	w.start()
	e := w.next()
	w.authority.Do(func(a *authoritytest.Authority) {
		known := a.Effects[e.ref]
		known.State, known.Attempt, known.ApplyUntil = "admitted", authoritytest.Ref(), time.Now().Add(time.Minute)
	})
	w.sweeps(2)
	require.Equal(w, "admitted", w.state(e), "it still has a minute")
	w.authority.Do(func(a *authoritytest.Authority) { a.Effects[e.ref].ApplyUntil = time.Now() })
	require.NotEqual(w, api.Committed, w.endOf(e), "of an attempt that no process has ever heard of")
}
