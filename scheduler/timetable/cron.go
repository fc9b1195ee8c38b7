package timetable

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
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

// The parser is more lenient than cron(5): it takes an empty list, +5, *-5 and
// a zone without a schedule. This form comes first.
const (
	cronValue = `(?:[0-9]{1,2}|[A-Za-z]{3})`
	cronItem  = `(?:\*|` + cronValue + `(?:-` + cronValue + `)?)(?:/[0-9]{1,2})?`
	cronField = cronItem + `(?:,` + cronItem + `)*`
)

var (
	cronForm = regexp.MustCompile(`^` + cronField + `(?: +` + cronField + `){4}$`)
	cronText = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)
)

// calendar is a cron expression in a zone. As in cron(5), days match by either
// of day-of-month and day-of-week when both are restricted.
type calendar struct {
	minute, hour, dom, month, dow uint64 // bit n set: value n matches
	zone                          *time.Location
}

func parseCron(text string, zone *time.Location) (calendar, error) {
	if len(text) > maxCron || !cronForm.MatchString(text) {
		return calendar{}, fmt.Errorf("cron must be five fields (minute, hour, day of month, month, day of week), not %.80q", text)
	}
	if err := checkSteps(text); err != nil {
		return calendar{}, err
	}
	parsed, err := cronText.Parse(text)
	if err != nil {
		return calendar{}, fmt.Errorf("cron %.80q does not hold: %w", text, err)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return calendar{}, errors.New("cron must be five fields and nothing else")
	}
	c := calendar{spec.Minute &^ anyValue, spec.Hour &^ anyValue, spec.Dom, spec.Month, spec.Dow, zone}
	if _, possible := c.nextWall(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !possible {
		return calendar{}, fmt.Errorf("cron %.80q names a date that no year has", text)
	}
	return c, nil
}

// checkSteps refuses a step over a field's end. Its author means every ninety
// minutes and would get every hour.
func checkSteps(text string) error {
	values := [...]int{60, 24, 31, 12, 7}
	for i, field := range strings.Fields(text) {
		for item := range strings.SplitSeq(field, ",") {
			_, step, has := strings.Cut(item, "/")
			if n, _ := strconv.Atoi(step); has && n >= values[i] {
				return fmt.Errorf("cron has a step of %d in a field of %d values; an even rhythm is every_s", n, values[i])
			}
		}
	}
	return nil
}

func (c calendar) matches(date time.Time) bool {
	if c.month>>date.Month()&1 == 0 {
		return false
	}
	dom, dow := c.dom>>date.Day()&1 == 1, c.dow>>date.Weekday()&1 == 1
	if (c.dom|c.dow)&anyValue != 0 {
		return dom && dow
	}
	return dom || dow
}

// next finds the first matching wall time that was not shown yet. What a gap
// swallowed counts as shown when the gap is over, so that it fires once.
func (c calendar) next(after time.Time) (time.Time, bool) {
	wall, ok := c.nextWall(shown(after, c.zone))
	if !ok {
		return time.Time{}, false
	}
	return fall(wall, c.zone), true
}

// nextWall returns the first matching wall time after one.
func (c calendar) nextWall(wall time.Time) (time.Time, bool) {
	wall = wall.Truncate(time.Minute).Add(time.Minute)
	date := wall.Truncate(day)
	from := int(wall.Sub(date) / time.Minute)
	for range searchFor {
		if c.matches(date) {
			for m := from; m < 24*60; m++ {
				if c.hour>>(m/60)&1 == 1 && c.minute>>(m%60)&1 == 1 {
					return date.Add(time.Duration(m) * time.Minute), true
				}
			}
		}
		date, from = date.Add(day), 0
	}
	return time.Time{}, false
}

// count counts wall times, which needs no zone, and then takes away those that
// a gap lets fall on one instant.
func (c calendar) count(after, until time.Time) int {
	n := c.walls(shown(after, c.zone), shown(until, c.zone))
	for _, at := range changes(c.zone, after, until) {
		together := c.walls(shown(at.Add(-time.Second), c.zone), shown(at, c.zone))
		n -= max(0, together-1)
	}
	return n
}

// walls returns how many matching wall times lie in (after, until].
func (c calendar) walls(after, until time.Time) int {
	if !until.After(after) {
		return 0
	}
	n := c.wallsOfDay(until) - c.wallsOfDay(after)
	whole := bits.OnesCount64(c.hour) * bits.OnesCount64(c.minute)
	for date := after.Truncate(day); date.Before(until.Truncate(day)); date = date.Add(day) {
		if c.matches(date) {
			n += whole
		}
	}
	return n
}

// wallsOfDay returns how many matching wall times the day has up to this one.
func (c calendar) wallsOfDay(wall time.Time) int {
	if !c.matches(wall) {
		return 0
	}
	n := bits.OnesCount64(c.hour&(1<<wall.Hour()-1)) * bits.OnesCount64(c.minute)
	if c.hour>>wall.Hour()&1 == 1 {
		n += bits.OnesCount64(c.minute & (2<<wall.Minute() - 1))
	}
	return n
}
