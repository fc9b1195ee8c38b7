package timetable

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const anchor Instant = 1767225600 // 2026-01-01T00:00:00Z

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err)
	return at
}

func cronIn(t testing.TB, zone, text string) Schedule {
	t.Helper()
	s, err := Parse(Document{Cron: text, Zone: zone})
	require.NoError(t, err)
	return s
}

func TestScheduleIsRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		doc  Document
		says string
	}{
		"nothing":            {Document{Zone: "UTC"}, "exactly one of cron, every_s and at"},
		"cron and interval":  {Document{Cron: "0 2 * * *", EveryS: 60, Anchor: anchor, Zone: "UTC"}, "exactly one"},
		"cron and instant":   {Document{Cron: "0 2 * * *", At: anchor, Zone: "UTC"}, "exactly one"},
		"interval and at":    {Document{EveryS: 60, Anchor: anchor, At: anchor, Zone: "UTC"}, "exactly one"},
		"no zone":            {Document{Cron: "0 2 * * *"}, "zone must be UTC"},
		"machine's zone":     {Document{Cron: "0 2 * * *", Zone: "Local"}, "zone must be UTC"},
		"machine's file":     {Document{Cron: "0 2 * * *", Zone: "localtime"}, "zone must be UTC"},
		"rules file":         {Document{Cron: "0 2 * * *", Zone: "posixrules"}, "zone must be UTC"},
		"leap seconds":       {Document{Cron: "0 2 * * *", Zone: "right/UTC"}, "zone must be UTC"},
		"abbreviation":       {Document{Cron: "0 2 * * *", Zone: "EST"}, "zone must be UTC"},
		"path":               {Document{Cron: "0 2 * * *", Zone: "Europe/../Europe/Berlin"}, "zone must be UTC"},
		"absolute path":      {Document{Cron: "0 2 * * *", Zone: "/etc/localtime"}, "zone must be UTC"},
		"unknown zone":       {Document{Cron: "0 2 * * *", Zone: "Europe/Atlantis"}, "is not known"},
		"zone in lower case": {Document{Cron: "0 2 * * *", Zone: "europe/berlin"}, "zone must be UTC"},
		"zone with newline":  {Document{Cron: "0 2 * * *", Zone: "Europe/Berlin\n"}, "zone must be UTC"},
		"negative interval":  {Document{EveryS: -1, Anchor: anchor, Zone: "UTC"}, "every_s must be between"},
		"endless interval":   {Document{EveryS: maxEveryS + 1, Anchor: anchor, Zone: "UTC"}, "every_s must be between"},
		"no anchor":          {Document{EveryS: 60, Zone: "UTC"}, "anchor must lie"},
		"ancient anchor":     {Document{EveryS: 60, Anchor: -5, Zone: "UTC"}, "anchor must lie"},
		"lone anchor":        {Document{Cron: "0 2 * * *", Anchor: anchor, Zone: "UTC"}, "anchor belongs to every_s"},
		"instant before all": {Document{At: -5, Zone: "UTC"}, "at must lie"},
		"instant after all":  {Document{At: lastInstant + 1, Zone: "UTC"}, "at must lie"},
		"unknown policy":     {Document{At: anchor, Zone: "UTC", Missed: "all"}, "missed must be skip or latest"},
		"window with skip":   {Document{At: anchor, Zone: "UTC", Missed: Skip, WindowS: 60}, "window_s belongs"},
		"window by default":  {Document{At: anchor, Zone: "UTC", WindowS: 60}, "window_s belongs"},
		"latest, no window":  {Document{At: anchor, Zone: "UTC", Missed: Latest}, "window_s must be between"},
		"negative window":    {Document{At: anchor, Zone: "UTC", Missed: Latest, WindowS: -1}, "window_s must be between"},
		"endless window":     {Document{At: anchor, Zone: "UTC", Missed: Latest, WindowS: 1 << 62}, "window_s must be between"},
	}
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s, err := Parse(c.doc)
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "\n", "one sentence")
			_, fires := s.Next(anchor.Time())
			assert.False(t, fires, "what was refused never fires")
		})
	}
}

func TestZeroScheduleNeverFires(t *testing.T) {
	t.Parallel()
	var s Schedule
	_, ok := s.Next(time.Time{})
	assert.False(t, ok)
	assert.Equal(t, Plan{}, s.Due(time.Time{}, anchor.Time(), 10))
}

func TestIntervalFiresFromItsAnchor(t *testing.T) {
	t.Parallel()
	s, err := Parse(Document{EveryS: 90, Anchor: anchor, Zone: "Europe/Berlin"})
	require.NoError(t, err)
	base := anchor.Time()
	for after, want := range map[time.Time]time.Time{
		base.AddDate(-3, 0, 0):             base,
		base.Add(-time.Nanosecond):         base,
		base:                               base.Add(90 * time.Second),
		base.Add(time.Nanosecond):          base.Add(90 * time.Second),
		base.Add(90*time.Second - 1):       base.Add(90 * time.Second),
		base.Add(90 * time.Second):         base.Add(180 * time.Second),
		base.Add(1000 * 90 * time.Second):  base.Add(1001 * 90 * time.Second),
		instant(t, "2026-03-29T00:59:59Z"): instant(t, "2026-03-29T01:00:00Z"), // the clock changes, the rhythm does not
	} {
		got, ok := s.Next(after)
		assert.True(t, ok)
		assert.True(t, want.Equal(got), "after %s: %s, not %s", after, got, want)
		assert.Equal(t, "Europe/Berlin", got.Location().String())
	}
}

func TestInstantFiresOnce(t *testing.T) {
	t.Parallel()
	s, err := Parse(Document{At: anchor, Zone: "UTC"})
	require.NoError(t, err)
	got, ok := s.Next(anchor.Time().Add(-time.Nanosecond))
	assert.True(t, ok)
	assert.True(t, anchor.Time().Equal(got))
	_, ok = s.Next(anchor.Time())
	assert.False(t, ok)
	at := anchor.Time()
	assert.Equal(t, 1, s.rhythm.count(at.Add(-time.Second), at))
	assert.Equal(t, 0, s.rhythm.count(at, at.Add(time.Hour)))
	assert.Equal(t, 0, s.rhythm.count(at.Add(-time.Hour), at.Add(-1)))
}

func TestNothingFiresAfterTheLastYear(t *testing.T) {
	t.Parallel()
	_, ok := cronIn(t, "UTC", "0 0 1 1 *").Next(instant(t, "9999-06-01T00:00:00Z"))
	assert.False(t, ok)
	s, err := Parse(Document{EveryS: maxEveryS, Anchor: anchor, Zone: "UTC"})
	require.NoError(t, err)
	_, ok = s.Next(instant(t, "9999-12-31T00:00:00Z"))
	assert.False(t, ok)
}

func TestInstantHasOneSpelling(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "0", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+01:00",
		"2026-01-01T00:00:00.0Z", "2026-01-01T00:00:00z", "2026-01-01t00:00:00Z", "2026-1-01T00:00:00Z",
		"2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", " 2026-01-01T00:00:0Z",
		"1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00Z\n",
	} {
		var i Instant
		assert.Error(t, i.UnmarshalText([]byte(text)), text)
		assert.Zero(t, i, text)
	}
	for _, i := range []Instant{0, -1, lastInstant + 1} {
		_, err := i.MarshalText()
		assert.Error(t, err)
	}
	for _, text := range []string{"1970-01-01T00:00:01Z", "2026-03-29T01:00:00Z", "9999-12-31T23:59:59Z"} {
		var i Instant
		require.NoError(t, i.UnmarshalText([]byte(text)))
		back, err := i.MarshalText()
		require.NoError(t, err)
		assert.Equal(t, text, string(back))
		assert.Equal(t, text, i.String())
		assert.Equal(t, i, InstantOf(i.Time().Add(999*time.Millisecond)))
	}
}

func TestDocumentLeavesOutWhatIsAbsent(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Document{Cron: "0 2 * * *", Zone: "UTC", Missed: Skip})
	require.NoError(t, err)
	assert.JSONEq(t, `{"cron":"0 2 * * *","zone":"UTC","missed":"skip"}`, string(text))
	text, err = json.Marshal(Document{EveryS: 60, Anchor: anchor, Zone: "UTC", Missed: Latest, WindowS: 5})
	require.NoError(t, err)
	assert.JSONEq(t, `{"every_s":60,"anchor":"2026-01-01T00:00:00Z","zone":"UTC","missed":"latest","window_s":5}`, string(text))
}
