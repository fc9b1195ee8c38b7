package guardtest

import (
	"bytes"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// step is where a process is killed. try brings it there with one effect or more, or returns nil when that cannot be done.
type step struct {
	name string
	try  func(w *world, p *process) *crash
}

// crash is what is under way when the process is killed. release lets go of what is held; called after the kill.
type crash struct {
	effects []*effect
	release func()
}

var (
	beforeIntend = step{"before intend", halfSent}
	afterIntend  = step{"after intend", questionAsked}
	duringAdmit  = step{"during admit", admitted}
	afterGoAhead = step{"after go-ahead", goneAhead}
	duringApply  = step{"during apply", applying}
	afterApply   = step{"after apply", happened}
	beforeSettle = step{"before settle", settling}
	duringSettle = step{"during settle", settled}
	underLoad    = step{"under load", manyAtOnce}
)

var steps = []step{beforeIntend, afterIntend, duringAdmit, afterGoAhead, duringApply, afterApply, beforeSettle, duringSettle, underLoad}

// halfSent: the request has not arrived.
func halfSent(w *world, p *process) *crash {
	e := w.next()
	r := w.request(e)
	var raw bytes.Buffer
	require.NoError(w, r.Write(&raw))
	conn := p.dial()
	_, err := conn.Write(raw.Bytes()[:raw.Len()-10])
	require.NoError(w, err)
	return &crash{[]*effect{e}, func() { _ = conn.Close() }}
}

// caught is an effect whose call of a path is held.
func (w *world) caught(p *process, path string) (*effect, *authoritytest.Catch, <-chan answer) {
	w.Helper()
	e := w.next()
	held := w.authority.Catch(path, e.ref)
	done := w.begin(p, e)
	w.arrive(path, held.Arrived())
	return e, held, done
}

// questionAsked: the authority has not acted, and never will.
func questionAsked(w *world, p *process) *crash {
	e, held, done := w.caught(p, api.PathAdmit)
	return &crash{[]*effect{e}, func() { held.Lose(); <-done }}
}

// admitted: the authority acts on a question whose asker is gone, so nobody owns the admission.
func admitted(w *world, p *process) *crash {
	e, held, done := w.caught(p, api.PathAdmit)
	return &crash{[]*effect{e}, func() { held.Act(); held.Lose(); <-done }}
}

// goneAhead: the go-ahead was sent; how far the guard came with it is up to chance.
func goneAhead(w *world, p *process) *crash {
	e, held, done := w.caught(p, api.PathAdmit)
	held.Deliver()
	return &crash{[]*effect{e}, func() { <-done }}
}

func applying(w *world, p *process) *crash { return w.stopped(p, w.guard.HoldBefore) }

func happened(w *world, p *process) *crash { return w.stopped(p, w.guard.HoldAfter) }

// stopped: the effect waits at the resource.
func (w *world) stopped(p *process, at func(n int) (*Hold, error)) *crash {
	w.Helper()
	if at == nil {
		return nil
	}
	e := w.next()
	held := w.hold(at, e)
	done := w.begin(p, e)
	w.arrive("the effect at the resource", held.Reached)
	return &crash{[]*effect{e}, func() { held.Release(); <-done }}
}

// settling: the effect has its end at the resource, and the authority has not heard of it.
func settling(w *world, p *process) *crash {
	e, held, done := w.caught(p, api.PathSettle)
	return &crash{[]*effect{e}, func() { held.Lose(); <-done }}
}

// settled: the authority has heard of it, and the guard does not know.
func settled(w *world, p *process) *crash {
	e, held, done := w.caught(p, api.PathSettle)
	held.Act()
	return &crash{[]*effect{e}, func() { held.Lose(); <-done }}
}

// manyAtOnce: several effects, wherever they are when one of them gets its go-ahead.
func manyAtOnce(w *world, p *process) *crash {
	c := &crash{}
	var all []<-chan answer
	first, held, done := w.caught(p, api.PathAdmit)
	c.effects, all = append(c.effects, first), append(all, done)
	for range 7 {
		e := w.next()
		c.effects, all = append(c.effects, e), append(all, w.begin(p, e))
	}
	held.Deliver()
	pause(time.Duration(len(w.effects)*5%9) * time.Millisecond)
	c.release = func() {
		for _, done := range all {
			<-done
		}
	}
	return c
}

// campaign kills so many processes, one after the other at each of the steps. Each finds what the one before has left. In the
// first round what was held goes on late, in the next one it does not, as in the cases that kill once.
func (w *world) campaign(kills int) {
	w.Helper()
	began, count := time.Now(), map[string]int{}
	p := w.start()
	for done, turn := 0, 0; done < kills; turn++ {
		s := steps[turn%len(steps)]
		c := s.try(w, p)
		if c == nil {
			continue
		}
		p = w.replace(p, c, turn/len(steps)%2 == 0)
		w.again(c, p)
		count[s.name]++
		done++
	}
	w.recover(&crash{effects: w.effects}, p)
	for _, e := range w.effects {
		require.True(w, isEnd(w.state(e)), "effect %d is %s", e.n, w.state(e))
	}
	w.Logf("%d kills in %.1f s, with %d effects: %v; at %v", kills, time.Since(began).Seconds(), len(w.effects), w.ends(), count)
}

// replace kills a process and starts another one. What was held goes on before that, or, late, when the other has swept.
func (w *world) replace(p *process, c *crash, late bool) *process {
	w.Helper()
	w.kill(p)
	if !late {
		c.release()
	}
	w.overdue(c.effects...)
	before := w.authority.Count(api.PathUnsettled)
	p = w.start()
	if late {
		w.await("the guard sweeps", func(a *authoritytest.Authority) bool { return a.Calls[api.PathUnsettled] > before })
		c.release()
		w.overdue(c.effects...)
	}
	return p
}

// again presents what the kill left unconsumed, which must work, and what it did not, which must not.
func (w *world) again(c *crash, p *process) {
	w.Helper()
	for _, e := range c.effects {
		if w.state(e) == "minted" {
			w.requireCommitted(e, w.present(p, e))
			continue
		}
		before := w.applied(e)
		a := w.present(p, e)
		require.NotEqual(w, http.StatusOK, a.status, "effect %d was admitted before the kill; it was presented again and answered with %s", e.n, a)
		require.LessOrEqual(w, w.applied(e), max(before, 1))
	}
}

// recover waits until a later process has settled what was under way.
func (w *world) recover(c *crash, p *process) {
	w.Helper()
	w.overdue(c.effects...)
	w.await("what was under way is settled", func(a *authoritytest.Authority) bool {
		for _, e := range c.effects {
			if a.Effects[e.ref].State == "admitted" {
				return false
			}
		}
		return true
	})
	for _, e := range c.effects {
		if w.state(e) == "minted" { // a kill before the admission has consumed nothing
			w.requireCommitted(e, w.present(p, e))
		}
	}
}

// ends counts the effects by what is recorded of them.
func (w *world) ends() map[string]int {
	count := map[string]int{}
	for _, e := range w.effects {
		count[w.state(e)]++
	}
	return count
}
