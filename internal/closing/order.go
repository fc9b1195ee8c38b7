package closing

import (
	"fmt"

	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// Our own message in the log of changes. It is written by whoever holds the
// gate alone and has seen that it is not open, so that nothing is in between:
// the end of a decision that ran out has no row of its own.
const (
	markPrefix = "nightwarrant-closing"
	markSealed = "sealed"
)

// admits are the verbs that admit something.
var admits = func() map[string]bool {
	all := map[string]bool{}
	for _, verb := range demo.Admitting {
		all[verb] = true
	}
	return all
}()

// order follows what happened in the order in which it was committed, and no
// clock. It begins closed: a slot is made before the gate has ever opened.
type order struct {
	open    bool
	epoch   int64 // of the last row of the decision
	seal    int64 // no decision of this epoch opens any more
	highest int64 // number of an admitted effect
	in      bool  // a transaction
	whole   []event

	counted
}

// counted is what was found since the last look.
type counted struct {
	admitted int            // altogether
	late     int            // between a close and the next opening: must be 0
	lateVerb map[string]int // by verb
	closes   int
	last     int64    // the highest number of an effect that was admitted before the last close
	wrong    []string // what else must not be
}

// take reads the next line. Lines of one transaction count when it has committed.
func (o *order) take(line string) error {
	e, matters, err := parse(line)
	if err != nil || !matters {
		return err
	}
	switch {
	case e.kind == began && !o.in:
		o.in, o.whole = true, o.whole[:0]
	case e.kind == committed && o.in:
		o.in = false
		for _, one := range o.whole {
			o.follow(one)
		}
	case e.kind > committed && o.in:
		o.whole = append(o.whole, e)
	default:
		return fmt.Errorf("the line %.80q stands outside of its transaction", line)
	}
	return nil
}

func (o *order) follow(e event) {
	switch e.kind {
	case sealed:
		o.shut()
		o.seal = o.epoch
	case decided:
		o.decide(e)
	case admitted:
		o.admitted++
		switch {
		case !o.open:
			o.late++
			if o.lateVerb == nil {
				o.lateVerb = map[string]int{}
			}
			o.lateVerb[e.verb]++
		default:
			o.highest = max(o.highest, e.number)
		}
	}
}

func (o *order) decide(e event) {
	if e.epoch < o.epoch {
		o.wrong = append(o.wrong, fmt.Sprintf("epoch %d came after %d", e.epoch, o.epoch))
	}
	switch {
	case !e.open:
		o.shut()
	case e.epoch <= o.seal:
		o.wrong = append(o.wrong, fmt.Sprintf("the decision of epoch %d had run out and was renewed", e.epoch))
	case !o.open && e.epoch <= o.epoch:
		o.wrong = append(o.wrong, fmt.Sprintf("it opened without a new epoch: %d", e.epoch))
		o.open = true
	default:
		o.open = true
	}
	o.epoch = max(o.epoch, e.epoch)
}

func (o *order) shut() {
	if !o.open {
		return
	}
	o.last = o.highest
	o.closes++
	o.open = false
}

// look returns what was found since the last look, and begins anew.
func (o *order) look() counted {
	c := o.counted
	o.counted = counted{}
	return c
}
