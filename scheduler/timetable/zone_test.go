package timetable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func zoneNamed(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := LoadZone(name)
	require.NoError(t, err)
	return zone
}

func TestEveryUsualZoneLoads(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTC", "Etc/UTC", "Etc/GMT+12", "America/Argentina/Buenos_Aires", "America/Port-au-Prince", "Asia/Kolkata", "Pacific/Chatham"} {
		assert.Equal(t, name, zoneNamed(t, name).String())
	}
}

func TestFingerprintNamesTheRules(t *testing.T) {
	t.Parallel()
	around := instant(t, "2026-06-01T00:00:00Z")
	seen := map[[32]byte]string{}
	for _, name := range append(zonesUnderTest, "Etc/UTC", "Europe/Paris", "Europe/Rome") {
		print := ZoneFingerprint(zoneNamed(t, name), around)
		assert.NotContains(t, seen, print, name)
		seen[print] = name
		assert.Equal(t, print, ZoneFingerprint(zoneNamed(t, name), around.In(zoneNamed(t, "Asia/Tokyo"))))
	}
}

func TestFingerprintStandsStillForAYear(t *testing.T) {
	t.Parallel()
	berlin := zoneNamed(t, "Europe/Berlin")
	first := ZoneFingerprint(berlin, instant(t, "2026-01-01T00:00:00Z"))
	assert.Equal(t, first, ZoneFingerprint(berlin, instant(t, "2026-07-15T12:00:00Z")))
	assert.Equal(t, first, ZoneFingerprint(berlin, instant(t, "2026-12-31T23:59:59Z")))
	assert.Equal(t, first, ZoneFingerprint(berlin, instant(t, "2027-01-01T08:59:59+09:00")), "the year is UTC's")
	assert.NotEqual(t, first, ZoneFingerprint(berlin, instant(t, "2027-01-01T00:00:00Z")))
}

// A country that abolishes its change of clocks keeps the zone's name.
func TestFingerprintChangesWithTheRules(t *testing.T) {
	t.Parallel()
	around := instant(t, "2026-06-01T00:00:00Z")
	base := ZoneFingerprint(tableZone(t, "Europe/Berlin", 3600, 7200), around)
	assert.Equal(t, base, ZoneFingerprint(tableZone(t, "Europe/Berlin", 3600, 7200), around))
	assert.NotEqual(t, base, ZoneFingerprint(tableZone(t, "Europe/Berlin", 3600, 3600), around))
	assert.NotEqual(t, base, ZoneFingerprint(tableZone(t, "Europe/Berlin", 3600, 5400), around))
	// A change of name or of nothing is no change of rules.
	assert.Equal(t, ZoneFingerprint(time.FixedZone("Europe/Berlin", 3600), around),
		ZoneFingerprint(tableZone(t, "Europe/Berlin", 3600, 3600), around))
}

// tableZone builds a zone (RFC 9636, version 1) with one change of offset, at
// 2026-03-29T01:00:00Z.
func tableZone(t *testing.T, name string, before, after int32) *time.Location {
	t.Helper()
	be := func(v int32) []byte { return []byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)} }
	data := append([]byte("TZif"), make([]byte, 16)...)
	for _, count := range []int32{0, 0, 0, 1, 2, 8} { // changes, kinds of local time, letters
		data = append(data, be(count)...)
	}
	data = append(data, be(1774746000)...)
	data = append(data, 1)
	data = append(append(data, be(before)...), 0, 0)
	data = append(append(data, be(after)...), 1, 4)
	data = append(data, "ONE\x00TWO\x00"...)
	zone, err := time.LoadLocationFromTZData(name, data)
	require.NoError(t, err)
	return zone
}

func TestNextClockChange(t *testing.T) {
	t.Parallel()
	berlin := zoneNamed(t, "Europe/Berlin")
	change := instant(t, "2026-03-29T01:00:00Z")
	at, ok := NextClockChange(berlin, change.Add(-time.Second), change)
	assert.True(t, ok)
	assert.True(t, change.Equal(at))
	_, ok = NextClockChange(berlin, change, change.Add(24*time.Hour))
	assert.False(t, ok, "the start does not count")
	_, ok = NextClockChange(berlin, change.Add(-24*time.Hour), change.Add(-time.Second))
	assert.False(t, ok)
	_, ok = NextClockChange(zoneNamed(t, "UTC"), time.Time{}, instant(t, "9000-01-01T00:00:00Z"))
	assert.False(t, ok)
}
