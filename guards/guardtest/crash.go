package guardtest

import (
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// crashCases are about processes that end, or stop, in the middle.
var crashCases = []named{
	{"crash before the question", crashAt(beforeIntend), alone},
	{"crash while the question is on its way", crashAt(afterIntend), alone},
	{"orphan admission", crashAt(duringAdmit), alone},
	{"crash after the go-ahead", crashAt(afterGoAhead), alone},
	{"crash while it is applied", crashAt(duringApply), alone},
	{"crash when it has been applied", crashAt(afterApply), alone},
	{"crash before it is settled", crashAt(beforeSettle), alone},
	{"crash while it is settled", crashAt(duringSettle), alone},
	{"tombstone", tombstone, alone},
	{"a stopped process comes back", comesBack, alone},
}

func crashAt(s step) func(w *world) {
	return func(w *world) {
		p := w.start()
		c := s.try(w, p)
		if c == nil {
			w.Skip("the resource cannot be stopped there")
		}
		w.kill(p)
		c.release()
		w.recover(c, w.start())
	}
}

// tombstone: what was said not to have been applied never will be, whoever says so (P14).
func tombstone(w *world) {
	w.mistrusts = true
	p := w.start()
	c := duringAdmit.try(w, p)
	e := c.effects[0]
	w.kill(p)
	c.release()
	w.overdue(e)
	p = w.start()
	if state := w.endOf(e); state == api.Ambiguous {
		require.False(w, w.guard.Provable, "a guard that can prove it left it ambiguous")
		return
	}
	require.Equal(w, api.NotApplied, w.state(e))
	w.forget(e)
	w.present(p, e)
	require.Zero(w, w.applied(e), "times that it happened after it was recorded as not applied")
	w.kill(p)
	w.forget(e)
	w.present(w.start(), e)
	require.Zero(w, w.applied(e), "times that it happened after another crash")
	w.forget(e)
}

// comesBack: a process is stopped with a go-ahead in its hands, a second one sweeps after it, and the first goes on, sure
// that it still has time.
func comesBack(w *world) {
	w.needReplicas()
	first := w.start()
	stopped, ok := first.Process.(Pauser)
	if !ok {
		w.Skip("the process cannot be stopped")
	}
	e := w.next()
	held := w.authority.Catch(api.PathAdmit, e.ref)
	done := w.begin(first, e)
	w.arrive("the question", held.Arrived())
	held.Act()
	require.NoError(w, stopped.Pause())
	held.Deliver()
	w.overdue(e)
	w.start()
	end := w.endOf(e)
	require.NotEqual(w, api.Committed, end)
	require.NoError(w, stopped.Resume())
	<-done
	if end == api.NotApplied {
		require.Zero(w, w.applied(e), "times that it happened after it was recorded as not applied")
	}
}
