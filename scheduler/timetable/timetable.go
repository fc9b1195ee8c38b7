// Package timetable computes when a task's schedule fires. It is pure: no
// clock, no database, no files besides the zone rules.
//
// A slot is a nominal fire time, always a whole second. A cron schedule names
// wall times of a zone, and a wall time falls on the first instant at which the
// zone's clock shows it or anything later. So a wall time that a spring gap
// swallows falls on the first valid instant after the gap, several of them on
// the same one and that one fires once; and a wall time that autumn repeats
// falls on its first occurrence only. Who wants an even rhythm through the
// change of clocks takes an interval.
package timetable

import (
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // a host without zone files must not change what a schedule means
)

// Missed says what happens to slots that nobody could start in time.
type Missed string

// The missed-fire policies.
const (
	Skip   Missed = "skip"   // the default: they are recorded and never run
	Latest Missed = "latest" // the latest runs, if its lateness is within the window
)

const (
	// OnTime is the lateness up to which a slot is not missed.
	OnTime    = time.Minute
	maxEveryS = 366 * 24 * 3600
	maxWindow = 31 * 24 * time.Hour
)

// Document is a schedule as it stands in a task: exactly one of Cron, EveryS
// and At. Cron is five fields; EveryS is an interval in seconds counted from
// Anchor; At is one instant. Zone is UTC or an IANA name with a slash. WindowS
// is a number of seconds and belongs to the policy latest.
type Document struct {
	Cron    string  `json:"cron,omitempty"`
	EveryS  int64   `json:"every_s,omitempty"`
	Anchor  Instant `json:"anchor,omitempty"`
	At      Instant `json:"at,omitempty"`
	Zone    string  `json:"zone"`
	Missed  Missed  `json:"missed,omitempty"`
	WindowS int64   `json:"window_s,omitempty"`
}

// rhythm is one way to place slots in time.
type rhythm interface {
	// next returns the first slot after an instant.
	next(after time.Time) (time.Time, bool)
	// count returns how many slots lie in (after, until].
	count(after, until time.Time) int
}

// Schedule is a checked [Document]. The zero value never fires.
type Schedule struct {
	rhythm rhythm
	zone   *time.Location
	missed Missed // anything but Latest is Skip
	window time.Duration
}

// Parse checks a document. Its errors are one sentence each and name the field.
func Parse(d Document) (Schedule, error) {
	zone, err := LoadZone(d.Zone)
	if err != nil {
		return Schedule{}, err
	}
	if err := checkMissed(d); err != nil {
		return Schedule{}, err
	}
	r, err := rhythmOf(d, zone)
	if err != nil {
		return Schedule{}, err
	}
	return Schedule{r, zone, d.Missed, time.Duration(d.WindowS) * time.Second}, nil
}

func rhythmOf(d Document, zone *time.Location) (rhythm, error) {
	given := 0
	for _, has := range []bool{d.Cron != "", d.EveryS != 0, d.At != 0} {
		if has {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("a schedule has exactly one of cron, every_s and at")
	case d.Anchor != 0 && d.EveryS == 0:
		return nil, errors.New("anchor belongs to every_s")
	case d.Cron != "":
		return parseCron(d.Cron, zone)
	case d.EveryS != 0:
		return newInterval(d.EveryS, d.Anchor)
	}
	return once{d.At.Time()}, d.At.check("at")
}

func checkMissed(d Document) error {
	switch d.Missed {
	case "", Skip:
		if d.WindowS != 0 {
			return errors.New("window_s belongs to the missed policy latest")
		}
	case Latest:
		if d.WindowS < 1 || d.WindowS > int64(maxWindow/time.Second) {
			return fmt.Errorf("window_s must be between 1 and %d seconds", int64(maxWindow/time.Second))
		}
	default:
		return fmt.Errorf("missed must be skip or latest, not %.16q", string(d.Missed))
	}
	return nil
}

// Zone returns the schedule's zone.
func (s Schedule) Zone() *time.Location { return s.zone }

// Next returns the first slot after an instant, in the schedule's zone; false
// when there is none.
func (s Schedule) Next(after time.Time) (time.Time, bool) {
	if s.rhythm == nil {
		return time.Time{}, false
	}
	slot, ok := s.rhythm.next(after)
	if !ok || slot.Year() > 9999 {
		return time.Time{}, false
	}
	return slot.In(s.zone), true
}
