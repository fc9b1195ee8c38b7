package timetable

import (
	"sort"
	"time"
)

// Reason says why a slot is skipped.
type Reason string

// The reasons that a timetable gives; a planner has others of its own.
const (
	ReasonMissed Reason = "missed" // nobody could start it in time
	ReasonWindow Reason = "window" // and it is later than the window allows
)

// Slot is one nominal fire time and what becomes of it: Skip is empty for one
// that shall run.
type Slot struct {
	Nominal time.Time
	Skip    Reason
}

// Span stands for slots which are too many to list; all of them are missed.
// Count is 0 when there are none.
type Span struct {
	First, Last time.Time
	Count       int
}

// Plan is what became due. Older comes before Slots, and Slots are in order;
// together they are every slot in the looked-at time exactly once. Next is the
// next slot after that time, zero when there is none.
type Plan struct {
	Older Span
	Slots []Slot
	Next  time.Time
}

// lookBack bounds how far Due looks into the past; no consent lives so long.
const lookBack = 5 * 366 * day

// Due returns what became due in (last, now], where last is the last slot that
// was planned, or the instant the task became active. At most limit slots, the
// newest, are listed; older ones are one span. A now before last plans nothing,
// and Next stays after last: a clock that steps back fires nothing twice.
func (s Schedule) Due(last, now time.Time, limit int) Plan {
	if s.rhythm == nil {
		return Plan{}
	}
	if earliest := now.Add(-lookBack); last.Before(earliest) {
		last = earliest
	}
	var plan Plan
	from := last
	if surplus := s.rhythm.count(last, now) - max(limit, 1); surplus > 0 {
		from = s.advance(last, now, surplus)
		first, _ := s.Next(last)
		plan.Older = Span{First: first, Last: from.In(s.zone), Count: surplus}
	}
	at, ok := s.Next(from)
	for ; ok && !at.After(now); at, ok = s.Next(at) {
		plan.Slots = append(plan.Slots, Slot{Nominal: at})
	}
	if ok {
		plan.Next = at
	}
	s.judge(plan.Slots, now)
	return plan
}

// advance returns the n-th slot after last. Slots are whole seconds, so that a
// search over seconds finds it.
func (s Schedule) advance(last, now time.Time, n int) time.Time {
	base := last.Unix()
	seconds := sort.Search(int(now.Unix()-base), func(i int) bool {
		return s.rhythm.count(last, time.Unix(base+int64(i), 0)) >= n
	})
	return time.Unix(base+int64(seconds), 0)
}

// judge applies the missed-fire policy. Slots that are on time all run; runs of
// one task never overlap, so that the planner coalesces them.
func (s Schedule) judge(slots []Slot, now time.Time) {
	for i := range slots {
		late := now.Sub(slots[i].Nominal)
		newest := i == len(slots)-1
		switch {
		case late <= OnTime:
		case s.missed == Latest && late > s.window:
			slots[i].Skip = ReasonWindow
		case s.missed == Latest && newest:
		default:
			slots[i].Skip = ReasonMissed
		}
	}
}
