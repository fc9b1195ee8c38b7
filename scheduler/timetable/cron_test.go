package timetable

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCronIsRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"@daily":                                "five fields",
		"@every 1h":                             "five fields",
		"TZ=UTC 0 2 * * *":                      "five fields",
		"TZ=UTC":                                "five fields", // panics in the parser
		"CRON_TZ=Asia/Tokyo 0 2 * * *":          "five fields",
		"0 2 * *":                               "five fields",
		"0 0 2 * * *":                           "five fields",
		" 0 2 * * *":                            "five fields",
		"0 2 * * * ":                            "five fields",
		"0 2 * * *\n":                           "five fields",
		"0\t2 * * *":                            "five fields",
		"0 2 * *\u00a0*":                        "five fields",
		", 2 * * *":                             "five fields", // an empty list in the parser: never
		"0, 2 * * *":                            "five fields",
		"+5 2 * * *":                            "five fields", // 5 in the parser
		"*-5 2 * * *":                           "five fields", // * in the parser
		"-5 2 * * *":                            "five fields",
		"? 2 * * *":                             "five fields",
		"0 2 L * *":                             "five fields",
		"0 2 * * 5#3":                           "five fields",
		"0 2 15W * *":                           "five fields",
		"0 2 ** * *":                            "five fields",
		"1-2-3 2 * * *":                         "five fields",
		"0/5/5 2 * * *":                         "five fields",
		"H 2 * * *":                             "five fields",
		"000 2 * * *":                           "five fields",
		"0 2 * * mon-":                          "five fields",
		strings.Repeat("0,", 200) + "0 2 * * *": "five fields",
		"60 2 * * *":                            "above maximum",
		"0 24 * * *":                            "above maximum",
		"0 2 0 * *":                             "below minimum",
		"0 2 32 * *":                            "above maximum",
		"0 2 * 13 *":                            "above maximum",
		"0 2 * * 7":                             "above maximum",
		"0 2 * * 5-1":                           "beyond end of range",
		"*/0 2 * * *":                           "step of range should be a positive number",
		"mon 2 * * *":                           "failed to parse int",
		"0 2 * foo *":                           "failed to parse int",
		"*/60 2 * * *":                          "step of 60 in a field of 60 values",
		"*/90 * * * *":                          "step of 90 in a field of 60 values",
		"0 */24 * * *":                          "step of 24 in a field of 24 values",
		"0 0 1,2/31 * *":                        "step of 31 in a field of 31 values",
		"0 0 30 2 *":                            "no year has",
		"0 0 30-31 feb *":                       "no year has",
		"0 0 31 2,4,6,9,11 *":                   "no year has",
		"59 23 31 4 */1":                        "no year has",
	}
	for text, says := range cases {
		_, err := Parse(Document{Cron: text, Zone: "UTC"})
		if assert.ErrorContains(t, err, says, text) {
			assert.NotContains(t, err.Error(), "\n")
			assert.Less(t, len(err.Error()), 400)
		}
	}
}

func TestCronFires(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name, zone, cron, after string
		want                    []string
	}{
		{"every night", "UTC", "0 2 * * *", "2026-01-31T02:00:00Z", []string{"2026-02-01T02:00:00Z", "2026-02-02T02:00:00Z"}},
		{"a fraction of a second before", "UTC", "0 2 * * *", "2026-01-31T01:59:59.999Z", []string{"2026-01-31T02:00:00Z"}},
		{"names and ranges", "UTC", "30 9-10 * JAN-feb Mon,fri", "2026-01-01T00:00:00Z", []string{"2026-01-02T09:30:00Z", "2026-01-02T10:30:00Z", "2026-01-05T09:30:00Z"}},
		{"either day when both are restricted", "UTC", "0 0 13 * fri", "2026-02-06T00:00:00Z", []string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z", "2026-02-27T00:00:00Z", "2026-03-06T00:00:00Z", "2026-03-13T00:00:00Z"}},
		{"only some months have it", "UTC", "0 0 31 * *", "2026-03-31T00:00:00Z", []string{"2026-05-31T00:00:00Z", "2026-07-31T00:00:00Z"}},
		{"leap day", "UTC", "0 0 29 2 *", "2026-01-01T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"leap day over a century without", "UTC", "0 0 29 2 *", "2096-02-29T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		{"from a value by a step", "UTC", "50/5 0 1 1 *", "2026-01-01T00:00:00Z", []string{"2026-01-01T00:50:00Z", "2026-01-01T00:55:00Z", "2027-01-01T00:50:00Z"}},

		{"New York spring gap", "America/New_York", "30 2 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"}},
		{"New York spring gap, edge", "America/New_York", "0 2 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T06:00:00Z"}},
		{"New York spring, after the gap", "America/New_York", "0 3 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T07:00:00Z", "2026-03-09T07:00:00Z"}},
		{"New York gap, several fall together", "America/New_York", "*/15 1-3 8 3 *", "2026-03-08T06:30:00Z", []string{"2026-03-08T06:45:00Z", "2026-03-08T07:00:00Z", "2026-03-08T07:15:00Z"}},
		{"New York autumn repeat", "America/New_York", "30 1 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"New York autumn, asked between the two", "America/New_York", "30 1 * * *", "2026-11-01T06:00:00Z", []string{"2026-11-02T06:30:00Z"}},
		{"New York autumn, asked in the second", "America/New_York", "45 1 * * *", "2026-11-01T06:30:00Z", []string{"2026-11-02T06:45:00Z"}},
		{"New York autumn, every half hour", "America/New_York", "*/30 * * * *", "2026-11-01T05:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-01T07:00:00Z", "2026-11-01T07:30:00Z"}},
		{"Berlin spring gap", "Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"Berlin autumn repeat", "Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"Lord Howe, half an hour's repeat", "Australia/Lord_Howe", "45 1 * * *", "2026-04-04T00:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"Lord Howe, half an hour's gap", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"Casablanca, back for Ramadan", "Africa/Casablanca", "30 2 * * *", "2026-02-14T12:00:00Z", []string{"2026-02-15T01:30:00Z", "2026-02-16T02:30:00Z"}},
		{"Casablanca, forth after Ramadan", "Africa/Casablanca", "30 2 * * *", "2026-03-21T12:00:00Z", []string{"2026-03-22T02:00:00Z", "2026-03-23T01:30:00Z"}},
		{"Cairo, midnight does not exist", "Africa/Cairo", "0 0 * * *", "2026-04-23T00:00:00Z", []string{"2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"}},
		{"Apia, a whole day does not exist", "Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00Z", []string{"2011-12-29T22:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T22:00:00Z"}},
		{"UTC never changes", "UTC", "30 2 29 3 *", "2026-01-01T00:00:00Z", []string{"2026-03-29T02:30:00Z", "2027-03-29T02:30:00Z"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, at := cronIn(t, c.zone, c.cron), instant(t, c.after)
			for _, want := range c.want {
				got, ok := s.Next(at)
				require.True(t, ok)
				assert.Equal(t, want, got.UTC().Format(time.RFC3339))
				at = got
			}
		})
	}
}

var zonesUnderTest = []string{
	"UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Africa/Casablanca", "Africa/Cairo",
	"Asia/Kathmandu", "America/Nuuk", "America/Havana", "America/St_Johns", "Pacific/Apia", "Antarctica/Troll", "Asia/Gaza",
}

// oneField draws a list of values, ranges and steps that the parser takes.
func oneField(t *rapid.T, low, high int) string {
	item := func() string {
		from := rapid.IntRange(low, high).Draw(t, "from")
		switch rapid.IntRange(0, 4).Draw(t, "form") {
		case 0:
			return fmt.Sprintf("*/%d", rapid.IntRange(1, high-low).Draw(t, "step"))
		case 1:
			return fmt.Sprintf("%d-%d", from, rapid.IntRange(from, high).Draw(t, "to"))
		case 2:
			return fmt.Sprintf("%d/%d", from, rapid.IntRange(1, high-low).Draw(t, "step"))
		default:
			return fmt.Sprint(from)
		}
	}
	if rapid.Bool().Draw(t, "any") {
		return "*"
	}
	items := make([]string, rapid.IntRange(1, 3).Draw(t, "items"))
	for i := range items {
		items[i] = item()
	}
	return strings.Join(items, ",")
}

// anyCron draws an expression that names some date.
func anyCron(t *rapid.T) (string, *cron.SpecSchedule) {
	text := strings.Join([]string{
		oneField(t, 0, 59), oneField(t, 0, 23), oneField(t, 1, 28), oneField(t, 1, 12), oneField(t, 0, 6),
	}, " ")
	parsed, err := cronText.Parse(text)
	if err != nil {
		t.Fatalf("the drawn %q: %v", text, err)
	}
	spec := parsed.(*cron.SpecSchedule)
	spec.Location = time.UTC
	return text, spec
}

func anyInstant(t *rapid.T) time.Time {
	// Near a change of clocks every other time.
	near := []string{
		"2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z", "2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-04-04T15:00:00Z",
		"2026-10-03T15:30:00Z", "2026-02-15T02:00:00Z", "2026-03-22T02:00:00Z", "2026-04-23T22:00:00Z", "2011-12-30T10:00:00Z",
	}
	if rapid.Bool().Draw(t, "near a change") {
		at, err := time.Parse(time.RFC3339, rapid.SampledFrom(near).Draw(t, "change"))
		if err != nil {
			t.Fatal(err)
		}
		return at.Add(time.Duration(rapid.Int64Range(-2*86400, 2*86400).Draw(t, "seconds")) * time.Second)
	}
	return time.Unix(rapid.Int64Range(1577836800, 1924992000).Draw(t, "unix"), 0).UTC()
}

// slowly finds the slots in (after, until] without any arithmetic on zones: it
// watches the zone's clock minute by minute.
func slowly(spec *cron.SpecSchedule, zone *time.Location, after, until time.Time) []time.Time {
	clock := func(t time.Time) time.Time {
		w, err := time.Parse(time.DateTime, t.In(zone).Format(time.DateTime))
		if err != nil {
			panic(err)
		}
		return w
	}
	t := after.Add(-48 * time.Hour).Truncate(time.Minute)
	latest := clock(t)
	var found []time.Time
	for t = t.Add(time.Minute); !t.After(until); t = t.Add(time.Minute) {
		now, fires := clock(t), false
		for w := latest.Add(time.Minute); !w.After(now); w = w.Add(time.Minute) {
			fires = fires || spec.Next(w.Add(-time.Second)).Equal(w)
			latest = w
		}
		if fires && t.After(after) {
			found = append(found, t)
		}
	}
	return found
}

func allIn(s Schedule, after, until time.Time) []time.Time {
	var found []time.Time
	for at, ok := s.Next(after); ok && !at.After(until); at, ok = s.Next(at) {
		found = append(found, at.UTC())
	}
	return found
}

func TestCronFiresWhenTheClockFirstShowsTheTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, spec := anyCron(t)
		zone := rapid.SampledFrom(zonesUnderTest).Draw(t, "zone")
		after := anyInstant(t)
		until := after.Add(time.Duration(rapid.IntRange(1, 72).Draw(t, "hours")) * time.Hour)
		s, err := Parse(Document{Cron: text, Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		want, got := slowly(spec, s.Zone(), after, until), allIn(s, after, until)
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Fatalf("%q in %s after %s:\n%v, not\n%v", text, zone, after, got, want)
		}
		if n := s.rhythm.count(after, until); n != len(want) {
			t.Fatalf("%q in %s after %s: counted %d of %d", text, zone, after, n, len(want))
		}
	})
}

func TestSlotsRise(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, _ := anyCron(t)
		s, err := Parse(Document{Cron: text, Zone: rapid.SampledFrom(zonesUnderTest).Draw(t, "zone")})
		if err != nil {
			t.Fatal(err)
		}
		at := anyInstant(t)
		for range 40 { // slots of a rare date are years apart
			next, ok := s.Next(at)
			if !ok || !next.After(at) || next.Nanosecond() != 0 {
				t.Fatalf("%q after %s: %s", text, at, next)
			}
			between := at.Add(time.Duration(rapid.Int64Range(0, int64(next.Sub(at))-1).Draw(t, "between")))
			if again, _ := s.Next(between); !again.Equal(next) {
				t.Fatalf("%q: after %s comes %s, but after %s comes %s", text, at, next, between, again)
			}
			at = next
		}
	})
}

func TestDailyFiresOncePerDayOverChangesOfClocks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zonesUnderTest).Draw(t, "zone")
		hour, minute := rapid.IntRange(0, 23).Draw(t, "hour"), rapid.IntRange(0, 59).Draw(t, "minute")
		s, err := Parse(Document{Cron: fmt.Sprintf("%d %d * * *", minute, hour), Zone: zone})
		if err != nil {
			t.Fatal(err)
		}
		year := rapid.IntRange(2024, 2035).Draw(t, "year")
		// From noon to noon, where no clock changes.
		from := time.Date(year, 1, 1, 12, 30, 30, 0, s.Zone())
		until := time.Date(year+1, 1, 1, 12, 30, 30, 0, s.Zone())
		days := int(time.Date(year+1, 1, 1, 0, 0, 0, 0, time.UTC).Sub(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)) / day)
		slots := allIn(s, from, until)
		if len(slots) != days {
			t.Fatalf("%d slots on %d days", len(slots), days)
		}
		for i := 1; i < len(slots); i++ {
			if gap := slots[i].Sub(slots[i-1]); gap < 21*time.Hour || gap > 27*time.Hour {
				t.Fatalf("%s and then %s", slots[i-1], slots[i])
			}
		}
	})
}

func TestCronAgreesWithTheParsersLibraryAwayFromChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, spec := anyCron(t)
		s, err := Parse(Document{Cron: text, Zone: rapid.SampledFrom(zonesUnderTest).Draw(t, "zone")})
		if err != nil {
			t.Fatal(err)
		}
		after := anyInstant(t)
		// The library is asked in a zone that never changes: it loops for ever where a day is left out (Apia, 30 December 2011).
		_, offset := after.In(s.Zone()).Zone()
		spec.Location = time.FixedZone("", offset)
		want := spec.Next(after)
		if _, near := NextClockChange(s.Zone(), after.Add(-3*day), want.Add(3*day)); near {
			t.Skip("a change of clocks is near")
		}
		if got, _ := s.Next(after); !got.Equal(want) {
			t.Fatalf("%q after %s: %s, not %s", text, after, got, want)
		}
	})
}

func FuzzCron(f *testing.F) {
	for _, seed := range []string{
		"0 2 * * *", "*/15 1-3 8 3 *", "30 9-10 * JAN-feb Mon,fri", "0 0 29 2 *", "0 0 30 2 *", "TZ=UTC", "TZ=", "CRON_TZ=Asia/Tokyo 0 2 * * *",
		"@daily", "@every 1s", ", , , , ,", "*-5 * * * *", "* * * * ?", "+5 2 * * *", "99 99 99 99 99", "0/5 0/5 1/5 1/5 0/5", "\x00", "* * * * *",
	} {
		f.Add(seed, "Europe/Berlin", int64(1774742400))
		f.Add(seed, "Australia/Lord_Howe", int64(1791000000))
	}
	f.Fuzz(func(t *testing.T, text, zone string, unix int64) {
		s, err := Parse(Document{Cron: text, Zone: zone})
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%q: not one sentence", err)
			}
			return
		}
		parsed, err := cronText.Parse(text)
		if err != nil {
			t.Fatalf("%q is refused by the parser: %v", text, err)
		}
		spec := parsed.(*cron.SpecSchedule)
		spec.Location = time.UTC
		at := time.Unix(unix%lastInstant, 0)
		for range 5 {
			next, ok := s.Next(at)
			if !ok {
				if at.Year() < 9980 && at.Year() > -200 {
					t.Fatalf("%q never fires after %s", text, at)
				}
				return
			}
			if !next.After(at) {
				t.Fatalf("%q after %s: %s", text, at, next)
			}
			wall := time.Date(next.Year(), next.Month(), next.Day(), next.Hour(), next.Minute(), next.Second(), 0, time.UTC)
			_, changes := NextClockChange(s.Zone(), next.Add(-2*day), next)
			if !changes && !spec.Next(wall.Add(-time.Second)).Equal(wall) {
				t.Fatalf("%q fires at %s", text, next)
			}
			at = next
		}
	})
}
