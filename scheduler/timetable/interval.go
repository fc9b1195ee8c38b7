package timetable

import (
	"fmt"
	"time"
)

// interval places a slot at its anchor and at every whole step after it.
type interval struct{ anchor, step int64 } // Unix seconds, seconds

func newInterval(step int64, anchor Instant) (interval, error) {
	if step < 1 || step > maxEveryS {
		return interval{}, fmt.Errorf("every_s must be between 1 and %d seconds", maxEveryS)
	}
	return interval{int64(anchor), step}, anchor.check("anchor")
}

// upTo returns how many slots lie at or before t.
func (v interval) upTo(t time.Time) int64 {
	since := t.Unix() - v.anchor
	if since < 0 {
		return 0
	}
	return since/v.step + 1
}

func (v interval) next(after time.Time) (time.Time, bool) {
	return time.Unix(v.anchor+v.upTo(after)*v.step, 0), true
}

func (v interval) count(after, until time.Time) int {
	return max(0, int(v.upTo(until)-v.upTo(after)))
}

// once is a single slot.
type once struct{ at time.Time }

func (o once) next(after time.Time) (time.Time, bool) {
	return o.at, o.at.After(after)
}

func (o once) count(after, until time.Time) int {
	if o.at.After(after) && !o.at.After(until) {
		return 1
	}
	return 0
}
