package console

import (
	"fmt"
	"net/http"
	"time"

	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// moment is an instant as a page shows it: absolute in the page's zone, and from now.
type moment struct {
	ISO      string
	Text     string
	Relative string
}

// IsZero tells that there is no such instant.
func (m moment) IsZero() bool { return m.ISO == "" }

const timeForm = "Mon 2 Jan 2006, 15:04:05 MST"

// at shows an instant in a zone.
func (v *visit) at(t time.Time, zone *time.Location) moment {
	if t.IsZero() {
		return moment{}
	}
	return moment{t.UTC().Format(time.RFC3339), t.In(zone).Format(timeForm), relative(t.Sub(v.now))}
}

// day shows the date of an instant, for buttons and sentences.
func day(t time.Time, zone *time.Location) string {
	return t.In(zone).Format("2 January 2006, 15:04 MST")
}

// relative says how long ago or until an instant, roughly.
func relative(d time.Duration) string {
	switch {
	case d > -time.Second && d < time.Second:
		return "now"
	case d < 0:
		return rough(-d) + " ago"
	}
	return "in " + rough(d)
}

// rough is a duration in its largest unit, rounded down so that nothing is promised to last longer.
func rough(d time.Duration) string {
	for _, u := range units {
		if d >= 2*u.of || u.of == time.Second {
			return count(int64(d/u.of), u.name)
		}
	}
	return ""
}

var units = []struct {
	of   time.Duration
	name string
}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}}

// lasting is a duration in whole units, exactly.
func lasting(d time.Duration) string {
	for _, u := range units {
		if d >= u.of && d%u.of == 0 {
			return count(int64(d/u.of), u.name)
		}
	}
	return d.String()
}

func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// chosenZone is the zone that a person set in this browser; nil when there is none.
func (c *Console) chosenZone(r *http.Request) *time.Location {
	zone, err := timetable.LoadZone(c.kept(r, cookieZone))
	if err != nil {
		return nil
	}
	return zone
}

// in is the zone of a page about schedules: the chosen one, else theirs when they have one in common, else UTC.
func (v *visit) in(schedules ...timetable.Document) *time.Location {
	if v.zone != nil {
		return v.zone
	}
	for i := range schedules {
		if schedules[i].Zone != schedules[0].Zone {
			return time.UTC
		}
	}
	if len(schedules) > 0 {
		if zone, err := timetable.LoadZone(schedules[0].Zone); err == nil {
			return zone
		}
	}
	return time.UTC
}

// someZones are suggested; any other may be written.
var someZones = []string{"UTC", "Africa/Cairo", "Africa/Johannesburg", "Africa/Lagos", "Africa/Nairobi", "America/Bogota", "America/Chicago", "America/Denver",
	"America/Los_Angeles", "America/Mexico_City", "America/New_York", "America/Sao_Paulo", "America/Toronto", "Asia/Dubai", "Asia/Hong_Kong", "Asia/Jakarta",
	"Asia/Kolkata", "Asia/Seoul", "Asia/Shanghai", "Asia/Singapore", "Asia/Tokyo", "Australia/Sydney", "Europe/Amsterdam", "Europe/Berlin", "Europe/Istanbul",
	"Europe/Lisbon", "Europe/London", "Europe/Madrid", "Europe/Paris", "Europe/Rome", "Europe/Stockholm", "Europe/Warsaw", "Europe/Zurich", "Pacific/Auckland"}
