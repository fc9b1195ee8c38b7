package history

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// kind of operation on the register.
type kind int

const (
	admission  kind = iota // claim, renew, mint, admit: the gate is open, at exactly the epoch and incarnation that it answers
	hold                   // by hand: closes, and keeps closed
	release                // ends a hold and opens nothing
	report                 // of something bad: closes
	evaluation             // opens, closes or leaves as it is
	restoring              // an evaluation by somebody who may remember more than stands here: then a new incarnation, closed
	reading                // of the published decision, which may have run out
	looking                // at the rows themselves, in one snapshot: the decision, and the last admission of each lane
	kinds
)

// gate is the register.
type gate struct {
	Open, Held         bool
	Epoch, Incarnation int64
}

// stamp names one admission: the verb, and the capability that it admits.
type stamp string

// everybody is the lane of an operation on the gate: it concerns all.
const everybody = -1

type input struct {
	kind  kind
	lane  int
	stamp stamp // what an admission leaves behind
}

// output is what came back. Its zero value is an unknown outcome (P6).
type output struct {
	outcome pg.Outcome
	ok      bool    // not a refusal
	gate    gate    // as answered; of an admission, the epoch and incarnation
	stamps  []stamp // of each lane, in what was looked at
}

// state is the register, the last admission of the one lane that is looked at, and what may still come: an operation of unknown outcome can
// take effect at any time after its call, for ever, or never.
type state struct {
	gate
	last stamp
	owed [kinds]uint8 // operations on the gate
	late string       // stamps of admissions, each with a bar behind it
}

// step says which states may follow. An operation that is refused, or that has not happened, changes nothing; one whose outcome is unknown
// is owed from now on.
func step(s state, in input, out output) (next []state) {
	switch {
	case out.outcome == pg.Ambiguous:
		return []state{s.owing(in)}
	case refused(out):
		return []state{s}
	}
	for _, before := range s.reach(out.gate.Epoch) {
		for _, after := range effects(before, in) {
			if fits(before, after, in, out) {
				next = append(next, after)
			}
		}
	}
	return next
}

func refused(out output) bool {
	return out.outcome == pg.NotApplied || out.outcome == pg.Committed && !out.ok
}

func (s state) owing(in input) state {
	if in.kind == admission {
		s.late += string(in.stamp) + "|"
	} else {
		s.owed[in.kind]++
	}
	return s
}

// reach is the state and all that it may have become by what is owed, up to the epoch of the answer if it says one: epochs only rise.
func (s state) reach(epoch int64) []state {
	all := []state{s}
	for i := 0; i < len(all); i++ {
		for in, paid := range all[i].debts() {
			for _, n := range effects(paid, in) {
				late := epoch > 0 && n.Epoch > epoch
				if !late && !slices.ContainsFunc(all, func(known state) bool { return covers(known, n) }) {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// debts are what is owed, each with the state that owes it no longer.
func (s state) debts() iter.Seq2[input, state] {
	return func(yield func(input, state) bool) {
		for k, n := range s.owed {
			paid := s
			if n > 0 {
				paid.owed[k]--
				if !yield(input{kind: kind(k)}, paid) {
					return
				}
			}
		}
		for late := range strings.SplitSeq(s.late, "|") {
			paid := s
			paid.late = strings.Replace(s.late, late+"|", "", 1)
			if late != "" && !yield(input{kind: admission, stamp: stamp(late)}, paid) {
				return
			}
		}
	}
}

// best drops each state than which another is the same and owes more: whatever may follow the one may follow the other.
func best(all []state) (kept []state) {
	for i, s := range all {
		if !slices.ContainsFunc(kept, func(k state) bool { return covers(k, s) }) &&
			!slices.ContainsFunc(all[i+1:], func(k state) bool { return covers(k, s) && k != s }) {
			kept = append(kept, s)
		}
	}
	return kept
}

func covers(more, less state) bool {
	if more.gate != less.gate || more.last != less.last {
		return false
	}
	for k, n := range less.owed {
		if more.owed[k] < n {
			return false
		}
	}
	for late := range strings.SplitSeq(less.late, "|") {
		if !strings.Contains(more.late, late) {
			return false
		}
	}
	return true
}

// effects are what an operation may do to a state, if it happens.
func effects(s state, in input) []state {
	switch in.kind {
	case admission:
		if !s.Open {
			return nil
		}
		s.last = in.stamp
	case hold:
		s = closed(s)
		s.Held = true
	case release:
		s.Held = false
	case report:
		s = closed(s)
	case evaluation:
		if turned := turn(s); turned != s {
			return []state{s, turned}
		}
	case restoring:
		n := closed(s)
		n.Epoch++
		n.Incarnation++
		return append(effects(s, input{kind: evaluation}), n)
	case reading, looking:
	}
	return []state{s}
}

func closed(s state) state {
	if s.Open {
		s.Open = false
		s.Epoch++
	}
	return s
}

// turn is the other state of the gate, where an evaluation may bring it: what is held stays closed.
func turn(s state) state {
	if !s.Open && !s.Held {
		s.Open = true
		s.Epoch++
		return s
	}
	return closed(s)
}

// fits says whether an answer can be that of an operation that has brought the register from s to n.
func fits(s, n state, in input, out output) bool {
	switch in.kind {
	case admission:
		return out.gate.Epoch == n.Epoch && out.gate.Incarnation == n.Incarnation
	case hold:
		return out.gate.Epoch == n.Epoch
	case release:
		return out.gate.Held == s.Held
	case reading:
		// What has run out is published as closed, in the epoch in which it was open.
		expired := gate{Held: n.Held, Epoch: n.Epoch, Incarnation: n.Incarnation}
		return out.gate == n.gate || out.gate == expired
	case looking:
		return out.gate == n.gate && out.stamps[in.lane] == n.last
	case evaluation, restoring:
		return out.gate == n.gate
	case report:
	}
	return true
}

// project keeps of a history what concerns one lane: everything that happened to the gate, and what was admitted in the lane. If a history is
// linearizable, so is each of its projections; and one lane is fast to check, because its worker does one thing at a time. An operation of
// unknown outcome is owed from its call on, so that is all of it that has a place in time.
func project(history []porcupine.Operation, lane int) (kept []porcupine.Operation) {
	for _, o := range history {
		in, out := o.Input.(input), o.Output.(output)
		if in.kind == admission && (in.lane != lane || refused(out)) {
			continue // a refusal fits anywhere and changes nothing
		}
		if out.outcome == pg.Ambiguous {
			o.Return = o.Call
		}
		in.lane = lane
		o.Input = in
		kept = append(kept, o)
	}
	return kept
}

// model is the register from where it was, with lanes in which nothing was admitted yet. Its states are sets, because of what is owed.
func model(from gate, lanes int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return []state{{gate: from}} },
		Step: func(before, in, out any) (bool, any) {
			var after []state
			for _, s := range before.([]state) {
				after = append(after, step(s, in.(input), out.(output))...)
			}
			after = best(after)
			return len(after) > 0, after
		},
		Equal: func(a, b any) bool {
			x, y := a.([]state), b.([]state)
			return len(x) == len(y) && !slices.ContainsFunc(x, func(s state) bool { return !slices.Contains(y, s) })
		},
		Partition: func(history []porcupine.Operation) (all [][]porcupine.Operation) {
			for lane := range lanes {
				all = append(all, project(history, lane))
			}
			return all
		},
	}
}

// check holds a history against the model. It is neither Ok nor Illegal when the time was too short.
func check(history []porcupine.Operation, from gate, lanes int) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(model(from, lanes), history, patience)
}

// stuck shows, of each lane that is not linearizable, what comes first after the longest part of it that is.
func stuck(history []porcupine.Operation, from gate, lanes int) (lines []string) {
	result, info := porcupine.CheckOperationsVerbose(model(from, lanes), history, patience)
	for lane, partial := range info.PartialLinearizationsOperations() {
		ops, fitting := project(history, lane), map[int64]bool{}
		longest := slices.MaxFunc(append(partial, nil), func(a, b []porcupine.Operation) int { return cmp.Compare(len(a), len(b)) })
		if len(longest) == len(ops) {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s in lane %d: %d of %d operations fit", result, lane, len(longest), len(ops)))
		for _, o := range longest {
			fitting[o.Call] = true
		}
		for _, o := range ops {
			if !fitting[o.Call] && len(lines) < 20*(lane+1) {
				lines = append(lines, fmt.Sprintf("  not so: %+v", o))
			}
		}
	}
	return lines
}
