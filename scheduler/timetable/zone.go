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
		return nil, fmt.Errorf("zone is UTC or an IANA name like Europe/Berlin, not %.64q", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("zone %q is not known", name)
	}
	return zone, nil
}

// ZoneFingerprint names the version of a zone's rules: a digest over its
// changes of offset from two years before the UTC year of around until five
// years after it. Only fingerprints taken around the same year compare.
func ZoneFingerprint(zone *time.Location, around time.Time) [32]byte {
	year := around.UTC().Year()
	from := time.Date(year-2, 1, 1, 0, 0, 0, 0, time.UTC)
	to := time.Date(year+5, 1, 1, 0, 0, 0, 0, time.UTC)
	var changes []byte
	last := 0
	for t := from.In(zone); t.Before(to); {
		_, offset := t.Zone()
		// Packagings of the zone files differ in changes that change nothing.
		if len(changes) == 0 || offset != last {
			changes = binary.BigEndian.AppendUint64(changes, uint64(t.Unix()))
			changes = binary.BigEndian.AppendUint64(changes, uint64(offset))
			last = offset
		}
		_, end := t.ZoneBounds()
		if end.IsZero() {
			break
		}
		t = end
	}
	return canonical.Digest(zoneDomain, []byte(zone.String()), changes)
}

const zoneDomain = "nightwarrant/zone/v1"

// fall returns the first instant at which the zone's clock shows the wall time
// or anything later. The wall time's date and clock are read from its UTC
// fields.
func fall(wall time.Time, zone *time.Location) time.Time {
	// No offset was ever further from UTC than 16 hours, so the walk starts
	// before any instant that can show the wall time.
	t := wall.Add(-36 * time.Hour).In(zone)
	for {
		start, end := t.ZoneBounds()
		_, offset := t.Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if !start.IsZero() && at.Before(start) {
			return start // the clock jumped over the wall time
		}
		if end.IsZero() || at.Before(end) {
			return at.In(zone)
		}
		t = end
	}
}

// wallOf returns what the zone's clock shows at t, as a time whose UTC fields
// are the date and clock.
func wallOf(t time.Time, zone *time.Location) time.Time {
	t = t.In(zone)
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}
