package timetable

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

const (
	day       = 24 * time.Hour
	maxCron   = 256     // bytes of an expression
	searchFor = 9 * 366 // days: 29 February is at most eight years away
	anyValue  = 1 << 63 // the parser's mark of a field that restricts nothing
)

// The parser is more lenient than its documentation: it takes an empty list,
// +5, *-5 and a missing zone. This form comes first.
var (
	cronValue = `(?:[0-9]{1,2}|[A-Za-z]{3})`
	cronItem  = `(?:\*|` + cronValue + `(?:-` + cronValue + `)?)(?:/[0-9]{1,2})?`
	cronField = cronItem + `(?:,` + cronItem + `)*`
	cronForm  = regexp.MustCompile(`^` + cronField + `(?:[ \t]+` + cronField + `){4}$`)
	cronText  = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
)

// daily is a cron expression: the wall times of the days that match. As in
// cron(8), days match by either of day-of-month and day-of-week when both are
// restricted.
type daily struct {
	minute, hour, dom, month, dow uint64 // bit n set: value n matches
	zone                          *time.Location
}

func parseCron(text string, zone *time.Location) (daily, error) {
	if len(text) > maxCron || !cronForm.MatchString(text) {
		return daily{}, fmt.Errorf("cron is five fields (minute, hour, day of month, month, day of week), not %.80q", text)
	}
	parsed, err := cronText.Parse(text)
	if err != nil {
		return daily{}, fmt.Errorf("cron: %s", strings.TrimSpace(err.Error()))
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return daily{}, errors.New("cron is five fields and nothing else")
	}
	d := daily{spec.Minute, spec.Hour, spec.Dom, spec.Month, spec.Dow, zone}
	if !d.possible() {
		return daily{}, fmt.Errorf("cron %q names a date that no year has", text)
	}
	return d, nil
}

// possible reports whether any year has a matching day. A leap year that
// begins on any weekday comes within 28 years.
func (d daily) possible() bool {
	for at := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() < 2028; at = at.Add(day) {
		if d.matches(at) {
			return true
		}
	}
	return false
}

func (d daily) matches(date time.Time) bool {
	if d.month>>date.Month()&1 == 0 {
		return false
	}
	dom, dow := d.dom>>date.Day()&1 == 1, d.dow>>date.Weekday()&1 == 1
	if (d.dom|d.dow)&anyValue != 0 {
		return dom && dow
	}
	return dom || dow
}

// slotsADay returns how many wall times a matching day has.
func (d daily) slotsADay() int {
	return bits.OnesCount64(d.hour&^anyValue) * bits.OnesCount64(d.minute&^anyValue)
}

// nextWall returns the first matching wall time at or after one.
func (d daily) nextWall(wall time.Time) (time.Time, bool) {
	date := wall.Truncate(day)
	first := int(wall.Sub(date) / time.Minute)
	if wall.Second() != 0 {
		first++
	}
	for range searchFor {
		if d.matches(date) {
			for m := first; m < 24*60; m++ {
				if d.hour>>(m/60)&1 == 1 && d.minute>>(m%60)&1 == 1 {
					return date.Add(time.Duration(m) * time.Minute), true
				}
			}
		}
		date, first = date.Add(day), 0
	}
	return time.Time{}, false
}

func (d daily) next(after time.Time) (time.Time, bool) {
	wall, ok := d.nextWall(wallOf(after, d.zone).Truncate(time.Minute))
	for ok {
		if at := fall(wall, d.zone); at.After(after) {
			return at, true
		}
		wall, ok = d.nextWall(wall.Add(time.Minute))
	}
	return time.Time{}, false
}

func (d daily) count(after, until time.Time) int {
	n := 0
	for at, ok := d.next(after); ok && !at.After(until); at, ok = d.next(at) {
		n++
	}
	return n
}
