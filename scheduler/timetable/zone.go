package timetable

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// zoneForm keeps out names whose meaning depends on the machine (Local,
// localtime, posixrules) and the leap-second family (right/…).
var zoneForm = regexp.MustCompile(`^(UTC|[A-Z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){1,2})$`)

// LoadZone returns the zone of that IANA name: UTC, or Area/Place.
func LoadZone(name string) (*time.Location, error) {
	if !zoneForm.MatchString(name) {
		return nil, fmt.Errorf("zone must be UTC or an IANA name like Europe/Berlin, not %.64q", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("zone %q is not known", name)
	}
	return zone, nil
}

// changes returns the instants in (after, until] at which the zone's offset
// changes. Zone files also hold changes that change nothing; different
// packagings hold different ones, and they are left out.
func changes(zone *time.Location, after, until time.Time) []time.Time {
	var found []time.Time
	_, at := after.In(zone).ZoneBounds()
	for !at.IsZero() && !at.After(until) {
		if offset(at, zone) != offset(at.Add(-time.Second), zone) {
			found = append(found, at)
		}
		_, at = at.In(zone).ZoneBounds()
	}
	return found
}

// NextClockChange returns the first instant in (after, until] at which the
// zone's clock is put forward or back.
func NextClockChange(zone *time.Location, after, until time.Time) (time.Time, bool) {
	found := changes(zone, after, until)
	if len(found) == 0 {
		return time.Time{}, false
	}
	return found[0], true
}

// ZoneFingerprint names the version of a zone's rules: a digest over its
// changes of offset from two years before the UTC year of around until five
// years after it. Only fingerprints taken around the same year compare.
func ZoneFingerprint(zone *time.Location, around time.Time) [32]byte {
	year := around.UTC().Year()
	from := time.Date(year-2, 1, 1, 0, 0, 0, 0, time.UTC)
	until := time.Date(year+5, 1, 1, 0, 0, 0, 0, time.UTC)
	var rules []byte
	for _, at := range append([]time.Time{from}, changes(zone, from, until)...) {
		rules = binary.BigEndian.AppendUint64(rules, uint64(at.Unix()))
		rules = binary.BigEndian.AppendUint64(rules, uint64(offset(at, zone)))
	}
	return canonical.Digest(zoneDomain, []byte(zone.String()), rules)
}

const zoneDomain = "nightwarrant/zone/v1"

// offset returns what the zone's clock is ahead of UTC.
func offset(t time.Time, zone *time.Location) time.Duration {
	_, seconds := t.In(zone).Zone()
	return time.Duration(seconds) * time.Second
}

// A wall time is a date and clock without a zone, kept in the UTC fields of a
// time.Time so that calendar arithmetic on it is free of surprises.

// farthest is longer than any zone's clock was ever put forward or back, and
// than any offset from UTC.
const farthest = 36 * time.Hour

// shown returns the latest wall time that the zone's clock has shown up to t.
// It stands still while autumn repeats an hour.
func shown(t time.Time, zone *time.Location) time.Time {
	latest := t.UTC().Add(offset(t, zone))
	for _, at := range changes(zone, t.Add(-farthest), t) {
		before := at.Add(-time.Second)
		if wall := before.UTC().Add(offset(before, zone)); wall.After(latest) {
			latest = wall
		}
	}
	return latest
}

// fall returns the first instant at which the zone's clock shows the wall time
// or anything later.
func fall(wall time.Time, zone *time.Location) time.Time {
	t := wall.Add(-farthest).In(zone)
	for {
		start, end := t.ZoneBounds()
		at := wall.Add(-offset(t, zone))
		if !start.IsZero() && at.Before(start) {
			return start // the clock jumped over the wall time
		}
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
	}
}
