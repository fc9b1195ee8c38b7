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
			{Guard: "ledger", Action: "row.append", Does: "Add one row to a table", Resource: "table:entries", Risk: catalogue.Low},
			{Guard: "ledger", Action: "row.delete", Does: "Delete rows of a table that have a given key", Resource: "table:drafts", Risk: catalogue.High,
				PreApproved: []json.RawMessage{json.RawMessage(`{"key":{"state":"stale"}}`), json.RawMessage(`{"key":{"state":"\u001b[2J` + "\u202e" + `"}}`)}},
			{Guard: "shop", Action: "order.refund", Does: "Refund an order", Resource: "https://api.example/refunds", Risk: catalogue.High, MaxAmount: 500, Currency: "EUR"},
		},
		Dial: catalogue.Low, Policy: "default", PolicyRevision: 7,
		Limits: document.TaskLimits{RuntimeS: 5400, Effects: 20, Steps: 50, Repeats: 1, Spend: 2005, Currency: "EUR", EffectsDay: 30, SpendDay: 3000, SpendMonth: 90_000}, MemberSpendMonth: 100_000,
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
	return page(o, c, d)
}

func page(o api.Offer, c document.Consent, d api.Decision) string {
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
  can     Add one row to a table
          on table:entries, at ledger (row.append, risk low)
          without asking you
  can     Delete rows of a table that have a given key
          on table:drafts, at ledger (row.delete, risk high)
          asks you each time, but for what follows
          without asking you each time: {"key":{"state":"stale"}}
          without asking you each time: {"key":{"state":"\u001b[2J\u202e"}}
  can     Refund an order
          sent to https://api.example/refunds, by shop (order.refund, risk high, at most 5.00 EUR each)
          asks you each time
  cannot  anything else, or anything anywhere else

Limits of each run
  at most 20 changes, the same one at most 1 time
  at most 50 steps, each a request for one change; 1 hour 30 minutes
  spends at most 20.05 EUR

Limits of all its runs together, by the calendar of UTC
  in a day    at most 30 changes; spends at most 30.00 EUR
  in a month  spends at most 900.00 EUR

Limits of all your tasks together, by the calendar of UTC
  in a month  spends at most 1000.00 EUR

When it needs more
  Its approval dial is "low": where a risk is higher the run waits and you are asked, about one exact change at a time.
  Nobody else can answer. Without an answer the run stops after 1 hour 30 minutes and does not count as a success.
  What stands nowhere above is refused, and nobody is asked.
  At a limit the run is stopped, and does not count as a success. No answer of yours raises a limit.

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

// What may be spent, and when somebody is asked, is said as it is for each
// consent; nothing is said of what does not bound it.
func TestShowOfferWithOtherTerms(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change        func(c *document.Consent)
		says, saysNot []string
	}{
		"no money": {func(c *document.Consent) {
			c.Grants, c.Limits, c.MemberSpendMonth = c.Grants[:2], document.TaskLimits{RuntimeS: 60, Effects: 1, Steps: 1, Repeats: 2}, 0
		}, []string{"  at most 1 change, the same one at most 2 times\n  at most 1 step, each", "\n  spends nothing\n"}, []string{"together", "EUR", "spends at most"}},
		"yen": {func(c *document.Consent) {
			c.Limits.Currency, c.Grants[2].Currency = "JPY", "JPY"
		}, []string{"at most 500 JPY each", "spends at most 2005 JPY", "spends at most 100000 JPY"}, []string{"20.05", "EUR"}},
		"dinars": {func(c *document.Consent) {
			c.Limits.Currency, c.Grants[2].Currency = "KWD", "KWD"
		}, []string{"at most 0.500 KWD each", "spends at most 2.005 KWD", "spends at most 100.000 KWD"}, []string{"20.05", "EUR"}},
		"nothing asks": {func(c *document.Consent) { c.Dial = catalogue.High },
			[]string{`Its approval dial is "high": nothing above asks you.`, "          without asking you\n          without asking you each time: {", "What stands nowhere above is refused"},
			[]string{"asks you each time", "Without an answer"}},
		"everything asks": {func(c *document.Consent) { c.Dial = catalogue.None }, []string{`Its approval dial is "none": where`, "at ledger (row.append, risk low)\n          asks you each time\n"}, []string{"without asking you\n"}},
		"it waits": {func(c *document.Consent) { c.WhenMoreIsNeeded = document.MoreWaits },
			[]string{"Without an answer the run waits, until there is no time left for it, and does not count as a success."}, []string{"stops after"}},
		"windows": {func(c *document.Consent) { c.Limits.EffectsMonth, c.MemberSpendDay = 1, 1 },
			[]string{"  in a month  at most 1 change; spends at most 900.00 EUR\n", "all your tasks together, by the calendar of UTC\n  in a day    spends at most 0.01 EUR\n"}, nil},
	} {
		o, consent := sampleOffer(t, c.change)
		text := page(o, consent, api.Decision{Open: true})
		for _, words := range c.says {
			assert.Contains(t, text, words, name)
		}
		for _, words := range c.saysNot {
			assert.NotContains(t, text, words, name)
		}
	}
}

// Every part of a consent that an operator chose is on the page: what is
// agreed to is what was read (A1).
func TestShowOfferHidesNothing(t *testing.T) {
	t.Parallel()
	base, c := sampleOffer(t, nil)
	want := page(base, c, api.Decision{Open: true})
	for name, change := range map[string]func(c *document.Consent){
		"does": func(c *document.Consent) { c.Grants[0].Does = "Add rows" }, "guard": func(c *document.Consent) { c.Grants[0].Guard = "other" },
		"action": func(c *document.Consent) { c.Grants[0].Action = "row.insert" }, "resource": func(c *document.Consent) { c.Grants[2].Resource = "https://evil.example/refunds" },
		"risk": func(c *document.Consent) { c.Grants[0].Risk = catalogue.Read }, "amount": func(c *document.Consent) { c.Grants[2].MaxAmount = 501 },
		"a key": func(c *document.Consent) { c.Grants[1].PreApproved[0] = json.RawMessage(`{"key":{"state":"any"}}`) }, "one key less": func(c *document.Consent) { c.Grants[1].PreApproved = c.Grants[1].PreApproved[:1] },
		"currency": func(c *document.Consent) { c.Limits.Currency, c.Grants[2].Currency = "USD", "USD" },
		"effects":  func(c *document.Consent) { c.Limits.Effects++ }, "steps": func(c *document.Consent) { c.Limits.Steps++ }, "repeats": func(c *document.Consent) { c.Limits.Repeats++ },
		"runtime": func(c *document.Consent) { c.Limits.RuntimeS += 60 }, "spend": func(c *document.Consent) { c.Limits.Spend++ },
		"effects in a day": func(c *document.Consent) { c.Limits.EffectsDay++ }, "effects in a month": func(c *document.Consent) { c.Limits.EffectsMonth++ },
		"spend in a day": func(c *document.Consent) { c.Limits.SpendDay++ }, "spend in a month": func(c *document.Consent) { c.Limits.SpendMonth++ },
		"a member's day": func(c *document.Consent) { c.MemberSpendDay++ }, "a member's month": func(c *document.Consent) { c.MemberSpendMonth++ },
		"dial": func(c *document.Consent) { c.Dial = catalogue.Read }, "silence": func(c *document.Consent) { c.WhenMoreIsNeeded = document.MoreWaits },
		"window": func(c *document.Consent) { c.DecisionWindowS += 60 }, "title": func(c *document.Consent) { c.Title = "Close the night" },
		"client": func(c *document.Consent) { c.Client = "shop" }, "role": func(c *document.Consent) { c.WorkloadRole = "other" }, "role revision": func(c *document.Consent) { c.RoleRevision++ },
		"policy": func(c *document.Consent) { c.Policy = "other" }, "policy revision": func(c *document.Consent) { c.PolicyRevision++ },
		"from": func(c *document.Consent) { c.NotBefore += 60 }, "until": func(c *document.Consent) { c.Expires += 60 }, "task": func(c *document.Consent) { c.Task = "CCCCCCCCCCCCCCCCCCCCCA" },
	} {
		_, other := sampleOffer(t, change)
		assert.NotEqual(t, want, page(base, other, api.Decision{Open: true}), name)
	}
}

func TestMoneyIsWrittenInItsCurrency(t *testing.T) {
	t.Parallel()
	for want, given := range map[string]struct {
		minor    int64
		currency string
	}{
		"0.00 EUR": {0, "EUR"}, "0.01 EUR": {1, "EUR"}, "0.10 USD": {10, "USD"}, "1.00 EUR": {100, "EUR"}, "10000000000.00 EUR": {1_000_000_000_000, "EUR"}, "12.50 XYZ": {1250, "XYZ"},
		"0 JPY": {0, "JPY"}, "1 KRW": {1, "KRW"}, "1250 VND": {1250, "VND"}, "0.001 KWD": {1, "KWD"}, "1.250 BHD": {1250, "BHD"}, "0.0001 CLF": {1, "CLF"}, "0.0000 UYW": {0, "UYW"},
	} {
		assert.Equal(t, want, money(given.minor, given.currency))
	}
}

// What is shown is what the digest covers, or nothing is shown.
func TestCheckedConsent(t *testing.T) {
	t.Parallel()
	good, want := sampleOffer(t, nil)
	got, err := checkedConsent(good)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	other, _ := sampleOffer(t, func(c *document.Consent) { c.Limits.Effects = 2; c.Limits.Steps = 2 })
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
