package timetable

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func parsed(t testing.TB, d Document) Schedule {
	t.Helper()
	s, err := Parse(d)
	require.NoError(t, err)
	return s
}

func verdicts(slots []Slot) []string {
	var found []string
	for _, s := range slots {
		what := "run"
		if s.Skip != "" {
			what = string(s.Skip)
		}
		found = append(found, s.Nominal.UTC().Format("02T15:04:05 ")+what)
	}
	return found
}

func TestDueAppliesThePolicy(t *testing.T) {
	t.Parallel()
	hourly := Document{Cron: "0 * * * *", Zone: "UTC", Missed: Skip}
	within := func(d time.Duration) Document {
		return Document{Cron: "0 * * * *", Zone: "UTC", Missed: Latest, WindowS: int64(d / time.Second)}
	}
	cases := []struct {
		name      string
		doc       Document
		last, now string
		want      []string
		next      string
	}{
		{"nothing yet", hourly, "2026-05-01T10:00:00Z", "2026-05-01T10:59:59.999Z", nil, "2026-05-01T11:00:00Z"},
		{"at its second", hourly, "2026-05-01T10:00:00Z", "2026-05-01T11:00:00Z", []string{"01T11:00:00 run"}, "2026-05-01T12:00:00Z"},
		{"not a second time", hourly, "2026-05-01T11:00:00Z", "2026-05-01T11:00:01Z", nil, "2026-05-01T12:00:00Z"},
		{"a minute late is on time", hourly, "2026-05-01T10:00:00Z", "2026-05-01T11:01:00Z", []string{"01T11:00:00 run"}, "2026-05-01T12:00:00Z"},
		{"later is missed", hourly, "2026-05-01T10:00:00Z", "2026-05-01T11:01:00.001Z", []string{"01T11:00:00 missed"}, "2026-05-01T12:00:00Z"},
		{"skip is the default", Document{Cron: "0 * * * *", Zone: "UTC"}, "2026-05-01T10:00:00Z", "2026-05-01T11:30:00Z", []string{"01T11:00:00 missed"}, "2026-05-01T12:00:00Z"},
		{"three missed, one on time", hourly, "2026-05-01T10:00:00Z", "2026-05-01T14:00:30Z", []string{"01T11:00:00 missed", "01T12:00:00 missed", "01T13:00:00 missed", "01T14:00:00 run"}, "2026-05-01T15:00:00Z"},
		{"latest runs one", within(time.Hour), "2026-05-01T10:00:00Z", "2026-05-01T13:30:00Z", []string{"01T11:00:00 window", "01T12:00:00 window", "01T13:00:00 run"}, "2026-05-01T14:00:00Z"},
		{"latest within a wide window runs one", within(9 * time.Hour), "2026-05-01T10:00:00Z", "2026-05-01T13:30:00Z", []string{"01T11:00:00 missed", "01T12:00:00 missed", "01T13:00:00 run"}, "2026-05-01T14:00:00Z"},
		{"latest beyond the window", within(29 * time.Minute), "2026-05-01T10:00:00Z", "2026-05-01T11:30:00Z", []string{"01T11:00:00 window"}, "2026-05-01T12:00:00Z"},
		{"latest at the window's end", within(30 * time.Minute), "2026-05-01T10:00:00Z", "2026-05-01T11:30:00Z", []string{"01T11:00:00 run"}, "2026-05-01T12:00:00Z"},
		{"a window shorter than on time", within(time.Second), "2026-05-01T10:00:00Z", "2026-05-01T11:00:30Z", []string{"01T11:00:00 run"}, "2026-05-01T12:00:00Z"},
		{"the clock stepped back", hourly, "2026-05-01T11:00:00Z", "2026-05-01T10:10:00Z", nil, "2026-05-01T12:00:00Z"},
		{"the clock stands at the last", hourly, "2026-05-01T11:00:00Z", "2026-05-01T11:00:00Z", nil, "2026-05-01T12:00:00Z"},
		{"an instant ahead", Document{At: anchor, Zone: "UTC"}, "2025-12-31T00:00:00Z", "2025-12-31T23:59:59Z", nil, "2026-01-01T00:00:00Z"},
		{"an instant reached", Document{At: anchor, Zone: "UTC"}, "2025-12-31T00:00:00Z", "2026-01-01T00:00:01Z", []string{"01T00:00:00 run"}, ""},
		{"an instant missed", Document{At: anchor, Zone: "UTC"}, "2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z", []string{"01T00:00:00 missed"}, ""},
		{"an instant behind", Document{At: anchor, Zone: "UTC"}, "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", nil, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			plan := parsed(t, c.doc).Due(instant(t, c.last), instant(t, c.now), 100)
			assert.Equal(t, c.want, verdicts(plan.Slots))
			assert.Zero(t, plan.Older)
			if c.next == "" {
				assert.Zero(t, plan.Next)
			} else {
				assert.Equal(t, c.next, plan.Next.UTC().Format(time.RFC3339))
			}
		})
	}
}

func TestAfterTwelveHoursDownFiftySchedulesRunAtMostOnceEach(t *testing.T) {
	t.Parallel()
	last := instant(t, "2026-05-01T00:00:30Z")
	now := last.Add(12*time.Hour + 7*time.Minute)
	for i := range 50 {
		s := parsed(t, Document{Cron: fmt.Sprintf("%d/5 * * * *", i%5), Zone: "Europe/Berlin", Missed: Latest, WindowS: 3600})
		runs := 0
		plan := s.Due(last, now, 1000)
		for _, slot := range plan.Slots {
			if slot.Skip == "" {
				runs++
			}
		}
		assert.Equal(t, 1, runs)
		assert.GreaterOrEqual(t, len(plan.Slots), 144, "every skipped slot is listed")
		assert.True(t, plan.Next.After(now))
	}
}

func TestAYearsWorthIsOneSpan(t *testing.T) {
	t.Parallel()
	last := instant(t, "2026-01-01T00:00:00Z")
	now := instant(t, "2027-01-01T00:00:00Z")
	secondly := parsed(t, Document{EveryS: 1, Anchor: anchor, Zone: "UTC", Missed: Skip})
	plan := secondly.Due(last, now, 10)
	require.Len(t, plan.Slots, 10)
	assert.Equal(t, now.Add(-9*time.Second), plan.Slots[0].Nominal)
	assert.Equal(t, Span{First: last.Add(time.Second), Last: now.Add(-10 * time.Second), Count: 365*24*3600 - 10}, plan.Older)
	assert.Equal(t, now.Add(time.Second), plan.Next)

	minutely := parsed(t, Document{Cron: "* * * * *", Zone: "America/New_York", Missed: Latest, WindowS: 7200})
	plan = minutely.Due(last, now.Add(90*time.Second), 3)
	assert.Equal(t, []string{"31T23:59:00 missed", "01T00:00:00 missed", "01T00:01:00 run"}, verdicts(plan.Slots))
	// Autumn's repeated hour did not fire a second time and spring's gap fell
	// on a slot that there was anyway.
	assert.Equal(t, (365*24-1)*60+1-3, plan.Older.Count)
	assert.Equal(t, "2026-12-31T18:58:00-05:00", plan.Older.Last.Format(time.RFC3339))
}

func TestLimitIsAtLeastOne(t *testing.T) {
	t.Parallel()
	last := instant(t, "2026-05-01T10:00:00Z")
	for _, limit := range []int{-5, 0, 1} {
		plan := cronIn(t, "UTC", "0 * * * *").Due(last, last.Add(5*time.Hour), limit)
		assert.Equal(t, []string{"01T15:00:00 run"}, verdicts(plan.Slots))
		assert.Equal(t, Span{last.Add(time.Hour), last.Add(4 * time.Hour), 4}, plan.Older)
	}
}

func TestDueLooksBackAtMostFiveYears(t *testing.T) {
	t.Parallel()
	now := instant(t, "2026-05-01T10:00:00Z")
	s := parsed(t, Document{EveryS: 1, Anchor: 1, Zone: "UTC"})
	plan := s.Due(time.Time{}, now, 1)
	assert.Equal(t, int(lookBack/time.Second), plan.Older.Count+len(plan.Slots))
}

func TestDueGivesEachSlotOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, _ := anyCron(t)
		doc := Document{Cron: text, Zone: rapid.SampledFrom(zonesUnderTest).Draw(t, "zone")}
		if rapid.Bool().Draw(t, "interval") {
			doc = Document{EveryS: rapid.Int64Range(1, 5000).Draw(t, "every"), Anchor: anchor, Zone: "UTC"}
		}
		if rapid.Bool().Draw(t, "latest") {
			doc.Missed, doc.WindowS = Latest, rapid.Int64Range(1, 7200).Draw(t, "window")
		}
		s, err := Parse(doc)
		if err != nil {
			t.Fatal(err)
		}
		start := anyInstant(t)
		last, now := start, start
		var got []time.Time
		for range rapid.IntRange(1, 8).Draw(t, "passes") {
			now = now.Add(time.Duration(rapid.Int64Range(-600, 20000).Draw(t, "seconds")) * time.Second)
			limit := rapid.IntRange(1, 30).Draw(t, "limit")
			plan := s.Due(last, now, limit)
			if len(plan.Slots) > limit {
				t.Fatalf("%d slots, more than %d", len(plan.Slots), limit)
			}
			if older := plan.Older; older.Count > 0 {
				span := allIn(s, last, older.Last)
				if len(span) != older.Count || !span[0].Equal(older.First) || !span[len(span)-1].Equal(older.Last) {
					t.Fatalf("%+v stands for %v", older, span)
				}
				got, last = append(got, span...), older.Last
			}
			for _, slot := range plan.Slots {
				got, last = append(got, slot.Nominal.UTC()), slot.Nominal
				if late := now.Sub(slot.Nominal); slot.Skip == "" && late > OnTime && (s.missed != Latest || late > s.window) {
					t.Fatalf("runs %s although it is %s late", slot.Nominal, late)
				}
			}
			if next, _ := s.Next(later(last, now)); !plan.Next.Equal(next) {
				t.Fatalf("next is %s, not %s", plan.Next, next)
			}
		}
		if want := allIn(s, start, last); fmt.Sprint(want) != fmt.Sprint(got) {
			t.Fatalf("%v, not %v", got, want)
		}
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func BenchmarkDueAfterFiveYears(b *testing.B) {
	s := parsed(b, Document{Cron: "* * * * *", Zone: "Europe/Berlin"})
	now := instant(b, "2026-05-01T10:00:00Z")
	for b.Loop() {
		s.Due(now.AddDate(-5, 0, 0), now, 100)
	}
}
