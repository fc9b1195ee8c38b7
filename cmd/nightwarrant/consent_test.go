package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

var consentNow = time.Date(2026, 10, 23, 20, 0, 0, 0, time.UTC)

// sampleOffer is an offer across a change of clocks.
func sampleOffer(t testing.TB, change func(c *document.Consent)) (api.Offer, document.Consent) {
	t.Helper()
	c := document.Consent{
		Version: document.ConsentVersion, Client: "books", WorkloadRole: "keeper", RoleRevision: 3, Task: "AAAAAAAAAAAAAAAAAAAAAA", TaskRevision: 2, Title: "Close the day",
		Schedule: timetable.Document{Cron: "30 3 * * *", Zone: "Europe/Berlin", Missed: timetable.Skip},
		Grants: []document.ConsentGrant{
			{Guard: "ledger", Action: "row.append", Resource: "table:entries", Risk: catalogue.Low, MaxAmount: 500, Currency: "EUR"},
			{Guard: "ledger", Action: "row.read", Resource: "table:entries", Risk: catalogue.Read},
		},
		Dial: catalogue.Low, Limits: document.TaskLimits{RuntimeS: 5400, Effects: 1}, Policy: "default", PolicyRevision: 7,
		NotBefore: timetable.InstantOf(consentNow), Expires: timetable.InstantOf(consentNow.AddDate(0, 0, 30)), WhenMoreIsNeeded: document.MoreStops, DecisionWindowS: 5400,
	}
	if change != nil {
		change(&c)
	}
	text, err := c.Canonical()
	require.NoError(t, err)
	digest, err := c.Digest()
	require.NoError(t, err)
	o := api.Offer{Offer: "BBBBBBBBBBBBBBBBBBBBBA", Task: c.Task, Digest: digest.String(), State: "open", Document: json.RawMessage(text)}
	if s, err := timetable.Parse(c.Schedule); err == nil {
		for after := consentNow; len(o.NextFires) < 3; {
			next, ok := s.Next(after)
			if !ok {
				break
			}
			o.NextFires, after = append(o.NextFires, next), next
		}
	}
	return o, c
}

func shown(t testing.TB, d api.Decision, change func(o *api.Offer)) string {
	t.Helper()
	o, c := sampleOffer(t, nil)
	if change != nil {
		change(&o)
	}
	var b strings.Builder
	showOffer(&b, o, c, d, consentNow)
	return b.String()
}

// The whole page, in the order and the words of what a member has to know.
func TestShowOffer(t *testing.T) {
	t.Parallel()
	o, _ := sampleOffer(t, nil)
	want := `books runs “Close the day” at the times of the cron line "30 3 * * *", as you, until Sun 22 November 2026 21:00:00 CET.

When, in Europe/Berlin
  Sat 24 October 2026 03:30:00 CEST (in 5 hours 30 minutes)
  Sun 25 October 2026 03:30:00 CET (in 1 day 6 hours)  (the clock changes before this one)
  Mon 26 October 2026 03:30:00 CET (in 2 days 6 hours)

Who acts
  books, in its workload role keeper, revision 3

What it may do
  can     row.append on table:entries at ledger (risk low, at most 500 minor units of EUR each)
  can     row.read on table:entries at ledger (risk read)
  cannot  anything else

Limits of each run
  at most 1 change; 1 hour 30 minutes; only what its approval dial "low" allows without asking

When it needs more
  The run waits and you are asked, about one exact change at a time. Nobody else can answer.
  Without an answer the run stops after 1 hour 30 minutes and does not count as a success.

From and until
  from   Fri 23 October 2026 22:00:00 CEST (now)
  until  Sun 22 November 2026 21:00:00 CET (in 30 days)

Under policy default, revision 7

How to stop it
  nightwarrant task revoke AAAAAAAAAAAAAAAAAAAAAA
  It takes effect before the command returns.

Your answer, to exactly this
  Allow until 22 November 2026
    nightwarrant offer accept BBBBBBBBBBBBBBBBBBBBBA --digest DIGEST
  Do not allow
    nightwarrant offer decline BBBBBBBBBBBBBBBBBBBBBA --digest DIGEST
`
	assert.Equal(t, strings.ReplaceAll(want, "DIGEST", o.Digest), shown(t, api.Decision{Open: true}, nil))
}

func TestShowOfferSaysWhyNoYesIsTaken(t *testing.T) {
	t.Parallel()
	closed := shown(t, api.Decision{Reasons: []string{"queue: stale"}}, nil)
	assert.Contains(t, closed, "Admission is closed now (queue: stale): a yes is not taken until it is open again.")
	for _, state := range []string{"accepted", "declined", "replaced", "expired"} {
		over := shown(t, api.Decision{Open: true}, func(o *api.Offer) { o.State = state })
		assert.Contains(t, over, "This offer is "+state+"; there is nothing to answer.")
		assert.NotContains(t, over, "offer accept")
	}
	assert.Contains(t, shown(t, api.Decision{Open: true}, func(o *api.Offer) { o.NextFires = nil }), "  never again\n")
}

// What is shown is what the digest covers, or nothing is shown.
func TestCheckedConsent(t *testing.T) {
	t.Parallel()
	good, want := sampleOffer(t, nil)
	got, err := checkedConsent(good)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	other, _ := sampleOffer(t, func(c *document.Consent) { c.Limits.Effects = 2 })
	for name, o := range map[string]api.Offer{
		"another document": {Digest: good.Digest, Document: other.Document},
		"another digest":   {Digest: other.Digest, Document: good.Document},
		"no digest":        {Document: good.Document},
		"no document":      {Digest: good.Digest},
		"another spelling": {Digest: good.Digest, Document: json.RawMessage(" " + string(good.Document))},
		"an unknown field": {Digest: good.Digest, Document: json.RawMessage(strings.Replace(string(good.Document), "{", `{"also":"x",`, 1))},
		"an escape":        {Digest: good.Digest, Document: json.RawMessage(strings.Replace(string(good.Document), "Close", `\u001b[2J`, 1))},
	} {
		_, err := checkedConsent(o)
		require.Error(t, err, name)
	}
}

func TestRhythm(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "once", rhythm(timetable.Document{At: 1}))
	assert.Equal(t, "every 2 hours", rhythm(timetable.Document{EveryS: 7200}))
	assert.Equal(t, `at the times of the cron line "0 2 * * *"`, rhythm(timetable.Document{Cron: "0 2 * * *"}))
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 seconds", 999 * time.Millisecond: "0 seconds", time.Second: "1 second", 90 * time.Second: "1 minute 30 seconds", time.Hour: "1 hour",
		time.Hour + 5*time.Second: "1 hour", 25 * time.Hour: "1 day 1 hour", 48*time.Hour + time.Minute: "2 days",
	} {
		assert.Equal(t, want, span(d), d.String())
	}
	assert.Equal(t, "in 2 minutes", relative(2*time.Minute))
	assert.Equal(t, "2 minutes ago", relative(-2*time.Minute))
	assert.Equal(t, "now", relative(0))
}
