package history

import (
	"encoding/hex"
	"math/rand/v2"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// worker does one thing after the other on its lane.
type worker struct {
	*fixture.Lane
	r       *recording
	number  int
	claimed bool
	behind  bool            // of the readiness epoch: renew first
	minted  *fixture.Effect // to be admitted next
}

func (w *worker) work() {
	for w.r.enough.Err() == nil {
		ring := w.r.bell.next()
		verb, verdict := w.act()
		w.r.count(verb, verdict)
		switch verdict {
		case "ok":
			w.r.seen.Add(1)
			w.r.bell.ring()
		case "readiness_changed":
			w.behind = true
		case "admission_closed":
			w.r.wait(ring)
		case "run_ended":
			w.Queue(w.r.t)
			w.claimed, w.minted = false, nil
		}
	}
}

func (w *worker) act() (verb, verdict string) {
	switch n := rand.IntN(10); {
	case !w.claimed:
		return "claim", w.claim()
	case w.behind:
		return "renew", w.renew()
	case w.minted != nil:
		return "admit", w.admit()
	case n == 0:
		return "claim", w.claim() // again: its answer could have been lost
	case n < 4:
		return "mint", w.mint()
	default:
		return "renew", w.renew()
	}
}

// renewed is what a claim and a renewal answer.
const renewed = `verdict, coalesce(readiness_epoch, 0), coalesce(incarnation, 0), coalesce(fence, 0)`

func (w *worker) claim() string {
	capability := fixture.Random()
	verdict := w.renewal("claim", w.Claim(capability), capability)
	w.claimed = w.claimed || verdict == "ok"
	return verdict
}

func (w *worker) renew() string {
	capability := fixture.Random()
	return w.renewal("renew", w.Renew(capability), capability)
}

func (w *worker) renewal(verb string, c fixture.Call, capability []byte) (verdict string) {
	var fence int64
	out := w.admission(verb, capability, func(out *output) {
		out.outcome = w.r.call(w.r.authority, renewed, c, &verdict, &out.gate.Epoch, &out.gate.Incarnation, &fence)
		out.ok = verdict == "ok"
	})
	if out.ok {
		w.Fence, w.Readiness, w.Incarnation, w.behind = fence, out.gate.Epoch, out.gate.Incarnation, false
	}
	return said(out, verdict)
}

func (w *worker) mint() string {
	e := fixture.NewEffect()
	verdict := w.effect("mint", w.Mint(e), e)
	if verdict == "ok" || verdict == "unknown" {
		w.minted = &e
	}
	return verdict
}

func (w *worker) admit() string {
	e, attempt := *w.minted, fixture.NewRef()
	w.minted = nil
	verdict := w.effect("admit", w.Admit(e, attempt), e)
	if verdict == "ok" || verdict == "unknown" {
		w.r.call(w.r.authority, `verdict`, w.r.SettleEffect(e, attempt, "committed"), new(string))
	}
	return verdict
}

// effect is an admission under the epoch that the worker holds, which the verb compares with the present one.
func (w *worker) effect(verb string, c fixture.Call, e fixture.Effect) (verdict string) {
	out := w.admission(verb, e.Capability, func(out *output) {
		out.gate.Epoch, out.gate.Incarnation = w.Readiness, w.Incarnation
		out.outcome = w.r.call(w.r.authority, `verdict`, c, &verdict)
		out.ok = verdict == "ok"
	})
	return said(out, verdict)
}

func (w *worker) admission(verb string, capability []byte, ask func(*output)) output {
	in := input{kind: admission, lane: w.number, stamp: stamp(verb + " " + hex.EncodeToString(capability[:4]))}
	return w.r.record.write(in, func() (out output) {
		ask(&out)
		return out
	})
}

func said(out output, verdict string) string {
	if out.outcome == pg.Committed {
		return verdict
	}
	return map[pg.Outcome]string{pg.Ambiguous: "unknown", pg.NotApplied: "not_applied"}[out.outcome]
}
