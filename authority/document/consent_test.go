package document

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

const taskRef = "AAECAwQFBgcICQoLDA0ODw"

func partsOf(t testing.TB) Parts {
	t.Helper()
	return Parts{
		TaskRef: taskRef, Task: of[*Task](t, KindTask), Role: of[*WorkloadRole](t, KindRole), Policy: of[*Policy](t, KindPolicy),
		Guards: map[string]*Guard{"orders-db": of[*Guard](t, KindGuard)},
		Now:    time.Date(2026, 4, 20, 10, 0, 0, 999, time.FixedZone("", 7200)),
	}
}

func consentOf(t testing.TB) Consent {
	t.Helper()
	c, err := BuildConsent(partsOf(t))
	require.NoError(t, err)
	return c
}

func TestConsentSaysEverythingAndNoMore(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	c, err := BuildConsent(parts)
	require.NoError(t, err)
	digest := func(d Document) string {
		digest, err := DigestOf(d)
		require.NoError(t, err)
		return digest.String()
	}
	text, err := c.Canonical()
	require.NoError(t, err)
	want := `{"client":"ledger","decision_window_s":3600,"dial":"read","expires":"2026-05-31T00:00:00Z",` +
		`"grants":[{"action":"row.read","does":"Read rows of a table by their key","guard":"orders-db","resource":"table:orders","risk":"read"},` +
		`{"action":"row.append","currency":"EUR","does":"Add one row to a table","guard":"orders-db","max_amount":5000,"resource":"table:closings","risk":"low"}],` +
		`"limits":{"currency":"EUR","effects":20,"effects_day":40,"effects_month":400,"repeats":2,"runtime_s":600,"spend":10000,"spend_day":15000,"spend_month":60000,"steps":500},` +
		`"member_spend_day":50000,"member_spend_month":90000,"not_before":"2026-05-01T00:00:00Z",` +
		`"policy":"standard","policy_document":"` + digest(parts.Policy) + `","policy_revision":2,` +
		`"role_document":"` + digest(parts.Role) + `","role_revision":3,` +
		`"schedule":{"cron":"30 2 * * *","missed":"latest","window_s":3600,"zone":"Europe/Berlin"},` +
		`"task":"` + taskRef + `","task_document":"` + digest(parts.Task) + `","task_revision":1,"title":"Close the day's orders",` +
		`"version":1,"when_more_is_needed":"stop","workload_role":"sweeper"}`
	assert.Equal(t, want, string(text))
	assert.NotContains(t, string(text), parts.Task.Owner.Subject, "a consent names no member")

	got, err := c.Digest()
	require.NoError(t, err)
	assert.Equal(t, Digest(canonical.Digest("nightwarrant/offer/v1", text)), got)
	again, err := ParseConsent(text)
	require.NoError(t, err)
	assert.Equal(t, c, again)
}

func TestConsentBeginsNowUnlessTheTaskSaysLater(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 1, 12, 0, 0, 5, time.UTC)
	for _, notBefore := range []timetable.Instant{0, timetable.InstantOf(now) - 50} {
		parts := partsOf(t)
		parts.Now, parts.Task.Consent.NotBefore = now, notBefore
		c, err := BuildConsent(parts)
		require.NoError(t, err)
		assert.Equal(t, "2026-06-01T12:00:00Z", c.NotBefore.String())
		assert.Equal(t, "2026-07-01T12:00:00Z", c.Expires.String())
	}
}

func TestOptionalGrantsAreTheMembersChoice(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	without, err := BuildConsent(parts)
	require.NoError(t, err)
	assert.Len(t, without.Grants, 2)
	parts.Ticked = []int{2}
	with, err := BuildConsent(parts)
	require.NoError(t, err)
	require.Len(t, with.Grants, 3)
	assert.Equal(t, ConsentGrant{
		Guard: "orders-db", Action: "row.delete", Does: "Delete rows of a table that have a given key", Resource: "table:drafts", Risk: catalogue.High,
		PreApproved: []json.RawMessage{json.RawMessage(`{"key":{"state":"stale"}}`)}, Optional: true,
	}, with.Grants[2])
	first, err := without.Digest()
	require.NoError(t, err)
	second, err := with.Digest()
	require.NoError(t, err)
	assert.NotEqual(t, first, second)
}

func TestConsentIsNotBuilt(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Parts)
		says   string
	}{
		"no task":                 {func(p *Parts) { p.Task = nil }, "task needs its role and its policy"},
		"no role":                 {func(p *Parts) { p.Role = nil }, "task needs"},
		"no policy":               {func(p *Parts) { p.Policy = nil }, "task needs"},
		"no reference":            {func(p *Parts) { p.TaskRef = "" }, "task must be an opaque reference"},
		"name as reference":       {func(p *Parts) { p.TaskRef = "nightly-sweep" }, "task must be an opaque reference"},
		"loose reference":         {func(p *Parts) { p.TaskRef = taskRef[:21] + "x" }, "task must be an opaque reference"},
		"broken reference":        {func(p *Parts) { p.TaskRef = taskRef[:10] + "\n" + taskRef[10:] }, "task must be an opaque reference"},
		"unknown guard":           {func(p *Parts) { p.Guards = nil }, "grants[0].guard names no registered guard: orders-db"},
		"empty guard":             {func(p *Parts) { p.Guards["orders-db"] = nil }, "names no registered guard"},
		"another guard":           {func(p *Parts) { p.Guards["orders-db"].Name = "other" }, "names no registered guard"},
		"guard does not hold":     {func(p *Parts) { p.Guards["orders-db"].URI = "http://evil.example" }, "uri must be https"},
		"resource not the kind's": {func(p *Parts) { p.Task.Grants[0].Resource = "operation:read" }, `grants[0].resource does not hold: catalogue: a resource of a postgres guard`},
		"ticked twice":            {func(p *Parts) { p.Ticked = []int{2, 2} }, "grants have no optional grant 2 to tick once"},
		"ticked, not optional":    {func(p *Parts) { p.Ticked = []int{0} }, "no optional grant 0"},
		"ticked, beyond":          {func(p *Parts) { p.Ticked = []int{3} }, "no optional grant 3"},
		"ticked, before":          {func(p *Parts) { p.Ticked = []int{-1} }, "no optional grant -1"},
		"nothing left":            {func(p *Parts) { p.Task.Grants = p.Task.Grants[2:] }, "grants must list between 1"},
		"too far ahead":           {func(p *Parts) { p.Now = p.Now.AddDate(-2, 0, 0) }, "consent.not_before lies more than 366 days ahead"},
		"never fires": {func(p *Parts) {
			p.Task.Schedule = timetable.Document{At: p.Task.Consent.NotBefore - 1, Zone: "UTC", Missed: timetable.Skip}
		}, "schedule never fires between 2026-05-01T00:00:00Z and 2026-05-31T00:00:00Z"},
		"fires at the end": {func(p *Parts) {
			p.Task.Schedule = timetable.Document{At: p.Task.Consent.NotBefore + 30*86400, Zone: "UTC", Missed: timetable.Skip}
		}, "schedule never fires"},
		"leap day": {func(p *Parts) { p.Task.Schedule.Cron = "0 0 29 2 *" }, "schedule never fires"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parts := partsOf(t)
			c.change(&parts)
			built, err := BuildConsent(parts)
			require.ErrorContains(t, err, c.says)
			oneSentence(t, err)
			assert.Zero(t, built)
		})
	}
}

func TestScheduleMayFireAtEitherEndOfTheTerm(t *testing.T) {
	t.Parallel()
	for _, offset := range []timetable.Instant{0, 30*86400 - 1} {
		parts := partsOf(t)
		parts.Task.Schedule = timetable.Document{At: parts.Task.Consent.NotBefore + offset, Zone: "UTC", Missed: timetable.Skip}
		_, err := BuildConsent(parts)
		assert.NoError(t, err)
	}
}

// What an operator's guard does outside a catalogue counts as high (B6).
func TestRiskComesFromTheCatalogueOnly(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	parts.Guards["orders-db"].Operations[0].Title = "Read an order"
	parts.Task.Grants = []Grant{{Guard: "orders-db", Action: "order.refund", Resource: "table:refunds"}}
	c, err := BuildConsent(parts)
	require.NoError(t, err)
	assert.Equal(t, []ConsentGrant{{Guard: "orders-db", Action: "order.refund", Does: "Read an order", Resource: "table:refunds", Risk: catalogue.High}}, c.Grants)
}

// A1: whatever part of a consent differs, the digest differs, and no part is
// left out of it.
func TestEveryPartCountsInTheDigest(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	parts.Ticked = []int{2}
	base, err := BuildConsent(parts)
	require.NoError(t, err)
	want, err := base.Digest()
	require.NoError(t, err)
	text, err := base.Canonical()
	require.NoError(t, err)
	other := Digest{1}.String()
	changes := map[string]any{
		"client": "other", "workload_role": "other", "role_revision": 4, "role_document": other, "task": "AAAAAAAAAAAAAAAAAAAAAA",
		"task_revision": 2, "task_document": other, "title": "Close the night's orders", "schedule.cron": "31 2 * * *", "schedule.zone": "Europe/Paris",
		"schedule": map[string]any{"cron": "30 2 * * *", "zone": "Europe/Berlin", "missed": "skip"}, "schedule.window_s": 3601,
		"grants.0.guard": "other", "grants.0.action": "row.list", "grants.0.does": "Count rows", "grants.0.resource": "table:order",
		"grants.0.risk": "low", "grants.1.max_amount": 5001, "grants": []any{map[string]any{"guard": "a", "action": "b", "does": "E", "resource": "c:d", "risk": "high"}},
		"grants.2.optional": absent{}, "grants.2.pre_approved": absent{}, "grants.2.pre_approved.0": map[string]any{"key": map[string]any{"status": "stale"}}, "grants.2.pre_approved.0.key.state": "staler",
		"dial": "low", "limits.runtime_s": 601, "limits.effects": 21, "limits.steps": 501, "limits.repeats": 3, "limits.spend": 10001, "limits.effects_day": 41,
		"limits.effects_month": 401, "limits.spend_day": 15001, "limits.spend_month": absent{}, "member_spend_day": absent{}, "member_spend_month": 90001,
		"policy": "other", "policy_revision": 3, "policy_document": other, "when_more_is_needed": "wait", "decision_window_s": 3601,
		"not_before": "2026-05-01T00:00:01Z", "expires": "2026-05-31T00:00:01Z",
	}
	edits := map[string]string{"currency": edited(t, edited(t, string(text), "limits.currency", "USD"), "grants.1.currency", "USD")} // are one
	for field, value := range changes {
		edits[field] = edited(t, string(text), field, value)
	}
	seen := map[Digest]string{want: "base"}
	for field, in := range edits {
		changed, err := canonical.Canonicalize([]byte(in))
		require.NoError(t, err)
		c, err := ParseConsent(changed)
		require.NoError(t, err, field)
		got, err := c.Digest()
		require.NoError(t, err)
		assert.Empty(t, seen[got], field)
		seen[got] = field
	}
	leaves := slices.Concat(leavesOf(Consent{}, ""), leavesOf(TaskLimits{}, "limits."), leavesOf(ConsentGrant{}, "grants.0."))
	for _, leaf := range leaves {
		switch leaf {
		case "version", "limits.currency", "grants.0.currency": // one value, and what is above
			continue
		}
		assert.True(t, tried(changes, leaf), "%s was not tried", leaf)
	}
}

// leavesOf names the members of a struct.
func leavesOf(v any, before string) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, before+name)
	}
	return names
}

// tried says whether there is a change of a member, or of something in it, in
// whatever element of a list.
func tried(changes map[string]any, member string) bool {
	plain := regexp.MustCompile(`\.[0-9]\b`)
	member = plain.ReplaceAllString(member, ".")
	for field := range changes {
		if field = plain.ReplaceAllString(field, "."); field == member || strings.HasPrefix(field, member+".") {
			return true
		}
	}
	return false
}

func TestConsentIsNotRead(t *testing.T) {
	t.Parallel()
	good := consentOf(t)
	text, err := good.Canonical()
	require.NoError(t, err)
	cases := []struct {
		field, says string
		values      []any
	}{
		{"version", "version must be between 1 and 1", []any{0, 2, absent{}}},
		{"client", "client must be", wrongNames},
		{"workload_role", "workload_role must be", []any{"", "*", absent{}}},
		{"role_revision", "role_revision must be", []any{0, absent{}}},
		{"role_document", "role_document does not hold: must be a digest", []any{"", "abc", taskRef}},
		{"task", "task must be an opaque reference", []any{"", "nightly", taskRef + "A", absent{}}},
		{"task_revision", "task_revision must be", []any{-1}},
		{"title", "title must", []any{"", "a\u202eb"}},
		{"schedule", "schedule", []any{absent{}, map[string]any{}, map[string]any{"cron": "0 1 * * *", "zone": "UTC"}, map[string]any{"cron": "0 0 30 2 *", "zone": "UTC", "missed": "skip"}}},
		{"grants", "grants must list", []any{[]any{}, absent{}}},
		{"grants.0.risk", "grants[0].risk", []any{"none", "", absent{}, "medium"}},
		{"grants.0.resource", "grants[0].resource", []any{"*", "table:*"}},
		{"grants.0.optional", "a consent must be in canonical form", []any{false}},
		{"grants.1", "grants[1] repeats", []any{map[string]any{"guard": "orders-db", "action": "row.read", "does": "Read", "resource": "table:orders", "risk": "low"}}},
		{"dial", "dial does not hold", []any{"", "all"}},
		{"limits.effects", "limits.effects must be", []any{0, absent{}}},
		{"limits.tokens", "limits.tokens is not a known field", []any{1}},
		{"policy", "policy must be", []any{""}},
		{"policy_revision", "policy_revision must be", []any{0}},
		{"not_before", "must lie at most 366 days after not_before", []any{absent{}, "2020-01-01T00:00:00Z", "2026-05-31T00:00:00Z", "2027-01-01T00:00:00Z"}},
		{"expires", "must lie at most 366 days after not_before", []any{absent{}, "2036-05-31T00:00:00Z"}},
		{"expires", "expires does not hold", []any{"", "never", "2026-05-31", "2026-05-31T00:00:00.5Z"}},
		{"when_more_is_needed", "when_more_is_needed must be one of stop, wait", []any{"", "continue", "proceed", absent{}}},
		{"decision_window_s", "decision_window_s must be between 60 and", []any{0, 59, -1, 604801, absent{}}},
		{"member", "member is not a known field", []any{"a@example.org"}},
	}
	for _, c := range cases {
		for _, value := range c.values {
			in, err := canonical.Canonicalize([]byte(edited(t, string(text), c.field, value)))
			require.NoError(t, err)
			read, err := ParseConsent(in)
			if assert.ErrorContains(t, err, c.says, "%s: %v", c.field, value) {
				oneSentence(t, err)
				assert.Zero(t, read)
			}
		}
	}
}

func TestConsentWithoutABeginningIsRefused(t *testing.T) {
	t.Parallel()
	c := consentOf(t)
	for _, notBefore := range []timetable.Instant{0, -5} {
		c.NotBefore, c.Expires = notBefore, 30*86400
		assert.ErrorContains(t, c.Validate(), "not_before is missing")
	}
}

func TestConsentHasOneSpelling(t *testing.T) {
	t.Parallel()
	c := consentOf(t)
	text, err := c.Canonical()
	require.NoError(t, err)
	plain := string(text)
	for name, other := range map[string]string{
		"a space":            plain + " ",
		"a line":             plain + "\n",
		"white space inside": strings.Replace(plain, ",", ", ", 1),
		"an escape":          strings.Replace(plain, `"client"`, `"\u0063lient"`, 1),
		"another escape":     strings.Replace(plain, "Close", `\u0043lose`, 1),
		"another order":      strings.Replace(plain, `"effects":20,"effects_day":40`, `"effects_day":40,"effects":20`, 1),
		"a written zero":     strings.Replace(plain, `"risk":"read"`, `"max_amount":0,"risk":"read"`, 1),
		"a written nothing":  strings.Replace(plain, `"action":"row.read",`, `"action":"row.read","currency":"",`, 1),
		"a written no keys":  strings.Replace(plain, `"resource":"table:orders"`, `"pre_approved":[],"resource":"table:orders"`, 1),
	} {
		require.NotEqual(t, plain, other, name)
		read, err := ParseConsent([]byte(other))
		assert.Error(t, err, name)
		assert.Zero(t, read)
	}
	for _, in := range []string{"", "null", "[]", "{}", plain + plain, `{"version":1,"version":1}`} {
		_, err := ParseConsent([]byte(in))
		assert.Error(t, err)
	}
}

func TestConsentRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		parts := partsOf(t)
		parts.Task.Title = rapid.StringMatching(`[\p{L}\p{Nd}][\p{L}\p{Nd}'"<>&/\\ -]{0,50}[\p{L}\p{Nd}]`).Filter(func(s string) bool { return title("", s) == nil }).Draw(rt, "title")
		parts.Task.Dial = catalogue.Risk(rapid.IntRange(0, 2).Draw(rt, "dial"))
		parts.Task.Limits = TaskLimits{
			RuntimeS: rapid.Int64Range(1, 900).Draw(rt, "runtime"), Effects: rapid.Int64Range(1, 50).Draw(rt, "effects"), Steps: rapid.Int64Range(1, 2000).Draw(rt, "steps"), Repeats: rapid.Int64Range(1, 100).Draw(rt, "repeats"),
			Spend: rapid.Int64Range(1, 20_000).Draw(rt, "spend"), Currency: "EUR", SpendDay: rapid.Int64Range(0, catalogue.MaxAmount).Draw(rt, "day"), EffectsMonth: rapid.Int64Range(0, 1000).Draw(rt, "month"),
		}
		parts.Task.Consent.Days = rapid.Int64Range(1, 90).Draw(rt, "days")
		parts.Task.Grants[1].MaxAmount = rapid.Int64Range(1, catalogue.MaxAmount).Draw(rt, "amount")
		parts.Task.Schedule = timetable.Document{EveryS: rapid.Int64Range(1, 86400).Draw(rt, "every"), Anchor: 1767225600, Zone: "UTC", Missed: timetable.Skip}
		c, err := BuildConsent(parts)
		if err != nil {
			rt.Fatal(err)
		}
		text, err := c.Canonical()
		if err != nil {
			rt.Fatal(err)
		}
		again, err := ParseConsent(text)
		if err != nil || fmt.Sprintf("%#v", again) != fmt.Sprintf("%#v", c) {
			rt.Fatalf("%s reads as %#v, %v", text, again, err)
		}
	})
}

func FuzzConsent(f *testing.F) {
	c := consentOf(f)
	text, err := c.Canonical()
	require.NoError(f, err)
	f.Add(text)
	parts := partsOf(f)
	parts.Ticked = []int{2}
	c, err = BuildConsent(parts)
	require.NoError(f, err)
	ticked, err := c.Canonical()
	require.NoError(f, err)
	f.Add(ticked)
	f.Add([]byte(strings.Replace(string(ticked), `"state"`, `"state" `, 1)))
	f.Add([]byte(strings.Replace(string(text), `"low"`, `"none"`, 1)))
	f.Add([]byte(strings.Replace(string(text), "2026-05-31", "2026-05-32", 1)))
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		read, err := ParseConsent(in)
		if err != nil {
			oneSentence(t, err)
			return
		}
		again, err := read.Canonical()
		if err != nil || string(again) != string(in) {
			t.Fatalf("%s reads as %s, %v", in, again, err)
		}
	})
}
