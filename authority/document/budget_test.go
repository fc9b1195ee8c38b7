package document

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

// approving is a task whose one grant has pre-approved keys, with its guards.
func approving(t testing.TB, guard, action, resource string, keys ...string) Parts {
	t.Helper()
	parts := partsOf(t)
	http, err := ParseJSON([]byte(shop))
	require.NoError(t, err)
	model := of[*Guard](t, KindGuard)
	model.Name, model.Catalogue, model.Operations = "model", catalogue.Model, nil
	parts.Guards["shop"], parts.Guards["model"] = http.(*Guard), model
	parts.Role.Actions = []Allowed{{guard, action}}
	grant := Grant{Guard: guard, Action: action, Resource: resource}
	for _, key := range keys {
		grant.PreApproved = append(grant.PreApproved, json.RawMessage(key))
	}
	parts.Task.Grants = []Grant{grant}
	return parts
}

// B5: a key that no effect can have would read as a promise and be none.
func TestPreApprovedKeyIsRefused(t *testing.T) {
	t.Parallel()
	long := `{"key":{"id":"` + strings.Repeat("a", 4097) + `"}}`
	for _, c := range []struct {
		guard, action, resource, says string
		keys                          []string
	}{
		{"orders-db", "row.delete", "table:drafts", "is missing", []string{`{}`}},
		{"orders-db", "row.delete", "table:drafts", "is not a parameter", []string{`{"columns":["a"],"key":{"id":1}}`, `{"id":1}`, `{"key":{"id":1},"table":"drafts"}`}},
		{"orders-db", "row.delete", "table:drafts", `"key"`, []string{`{"key":{}}`, `{"key":"*"}`, `{"key":["id"]}`, `{"key":true}`, `{"key":{"ID":1}}`, `{"key":{"*":1}}`}},
		{"orders-db", "row.delete", "table:drafts", "must be a string, an integer or a bool", []string{`{"key":{"id":{}}}`, `{"key":{"id":[1,2]}}`}},
		{"orders-db", "row.delete", "table:drafts", "NUL", []string{`{"key":{"id":"\u0000"}}`}},
		{"orders-db", "row.delete", "table:drafts", "longer than 4096 bytes", []string{long}},
		{"orders-db", "row.append", "table:closings", "column", []string{`{"columns":[]}`, `{"columns":"memo"}`, `{"columns":["b","a"]}`, `{"columns":["a","a"]}`, `{"columns":["A"]}`, `{"columns":["*"]}`, `{"columns":[1]}`, `{"columns":{}}`}},
		{"orders-db", "row.append", "table:closings", "is not a parameter", []string{`{"columns":["a"],"key":{"id":1}}`, `{"columns":["a"],"values":{"a":1}}`}},
		{"orders-db", "row.update", "table:orders", "is missing", []string{`{"key":{"id":1}}`, `{"columns":["a"]}`}},
		{"orders-db", "row.update", "table:orders", "stands twice", []string{`{"columns":["id"],"key":{"id":1}}`}},
		{"orders-db", "order.refund", "table:refunds", "is missing", []string{`{}`}},
		{"orders-db", "order.refund", "table:refunds", "is not a parameter", []string{`{"order":"a-1","minor":5}`, `{"key":{"order":"a-1"}}`}},
		{"orders-db", "order.refund", "table:refunds", `"order" does not fit its schema`, []string{`{"order":1}`, `{"order":"*"}`, `{"order":"A-1"}`, `{"order":""}`, `{"order":["a-1"]}`, `{"order":{}}`, `{"order":true}`}},
		{"shop", "mail", "https://mail.example/send", "mail cannot be pre-approved", []string{`{}`, `{"order":"1"}`}},
		{"model", "chat.complete", "https://llm.example/v1/models/small", "chat.complete cannot be pre-approved", []string{`{}`, `{"model":"https://llm.example/v1/models/small"}`}},
	} {
		for _, key := range c.keys {
			parts := approving(t, c.guard, c.action, c.resource, key)
			built, err := BuildConsent(parts)
			if assert.ErrorContains(t, err, c.says, "%s %.80s", c.action, key) {
				assert.ErrorContains(t, err, "grants[0].pre_approved[0] does not hold: catalogue: "+c.action)
				oneSentence(t, err)
				assert.Zero(t, built)
			}
		}
	}
}

func TestPreApprovedKeyIsTheEffectsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ guard, action, resource, written, params string }{
		{"orders-db", "row.delete", "table:drafts", `{ "key" : {"state":"stale", "n":-1, "b":true} }`, `{"table":"drafts","key":{"b":true,"n":-1,"state":"stale"}}`},
		{"orders-db", "row.append", "table:closings", `{"columns":["day","total"]}`, `{"table":"closings","values":{"total":5,"day":"x"}}`},
		{"orders-db", "row.update", "table:orders", `{"key":{"id":1},"columns":["state"]}`, `{"table":"orders","values":{"state":"closed"},"key":{"id":1}}`},
		{"orders-db", "order.refund", "table:refunds", `{"order":"\u0061-1"}`, `{"order":"a-1","minor":500,"note":"n"}`},
		{"shop", "order.ship", "https://api.example/orders/7/shipments", `{"order":"7"}`, `{"order":"7","total":3,"parcels":[1]}`},
	} {
		parts := approving(t, c.guard, c.action, c.resource, c.written)
		built, err := BuildConsent(parts)
		require.NoError(t, err, c.action)
		actions, err := parts.Guards[c.guard].Actions()
		require.NoError(t, err)
		key, ok := actions[c.action].Key(json.RawMessage(c.params))
		require.True(t, ok)
		assert.Equal(t, []json.RawMessage{key}, built.Grants[0].PreApproved, "a mint compares the bytes")
		target, err := actions[c.action].Target(json.RawMessage(c.params))
		require.NoError(t, err)
		assert.Equal(t, c.resource, target.Resource)
	}
}

// However a key is spelled and wherever it is written, it is one key with one
// digest of its consent.
func TestKeysHaveOneSpelling(t *testing.T) {
	t.Parallel()
	parts := approving(t, "orders-db", "row.delete", "table:drafts")
	parts.Guards["orders-db"].Operations = nil
	task := *parts.Task
	rapid.Check(t, func(rt *rapid.T) {
		columns := rapid.MapOfN(rapid.StringMatching(`[a-z_]{1,8}`), rapid.OneOf(
			rapid.Map(rapid.StringMatching(`[ -~é☃]{0,20}`), func(s string) any { return s }),
			rapid.Map(rapid.Int64Range(-1<<53+1, 1<<53-1), func(n int64) any { return n }),
			rapid.Map(rapid.Bool(), func(b bool) any { return b }),
		), 1, 8).Draw(rt, "columns")
		key, err := json.MarshalIndent(map[string]any{"key": columns}, " ", "\t")
		if err != nil {
			rt.Fatal(err)
		}
		spelled := task
		spelled.Grants = []Grant{{Guard: "orders-db", Action: "row.delete", Resource: "table:drafts", PreApproved: []json.RawMessage{key}}}
		parts := parts
		parts.Task = &spelled
		written, err := Canonical(parts.Task)
		if err != nil {
			rt.Fatal(err)
		}
		again, err := ParseYAML(written)
		if err != nil {
			rt.Fatalf("%s: %v", written, err)
		}
		built, err := BuildConsent(parts)
		if err != nil {
			rt.Fatal(err)
		}
		parts.Task = again[0].(*Task)
		other, err := BuildConsent(parts)
		if err != nil {
			rt.Fatal(err)
		}
		first, _ := built.Digest()
		second, _ := other.Digest()
		if first != second || string(built.Grants[0].PreApproved[0]) != string(other.Grants[0].PreApproved[0]) {
			rt.Fatalf("%s and %s", built.Grants[0].PreApproved[0], other.Grants[0].PreApproved[0])
		}
	})
}

// An operator can take a key away, and then it is another offer; nobody else
// can add one.
func TestFewerKeysAreAnotherConsent(t *testing.T) {
	t.Parallel()
	digest := func(keys ...string) Digest {
		c, err := BuildConsent(approving(t, "orders-db", "row.delete", "table:drafts", keys...))
		require.NoError(t, err)
		d, err := c.Digest()
		require.NoError(t, err)
		return d
	}
	one, two := `{"key":{"id":1}}`, `{"key":{"id":2}}`
	assert.NotEqual(t, digest(one, two), digest(one))
	assert.NotEqual(t, digest(one), digest(two))
	assert.NotEqual(t, digest(one), digest())
}

// An action that its guard does not have does not exist, whatever the role
// lists (B5).
func TestActionIsItsGuards(t *testing.T) {
	t.Parallel()
	for guard, names := range map[string][]string{
		"orders-db": {"row.list", "order.ship", "mail", "chat.complete", "row"},
		"shop":      {"order.refund", "row.read", "chat.complete"},
		"model":     {"row.read", "mail", "chat"},
	} {
		resource := map[string]string{"orders-db": "table:orders", "shop": "https://api.example/a", "model": "https://llm.example/models/a"}[guard]
		for _, name := range names {
			built, err := BuildConsent(approving(t, guard, name, resource))
			require.ErrorContains(t, err, "grants[0].action is not an action of guard "+guard+": "+name)
			oneSentence(t, err)
			assert.Zero(t, built)
		}
	}
}

// A destination is a resource, compared whole, and stands in the consent (B8).
func TestDestinationIsExact(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{
		"table:orders", "https:api.example", "https://API.example/orders", "https://api.example/orders?all=1", "https://u@api.example/orders", "https://api.example/orders/", "https://api.example/../orders",
		"https://api.example:443/orders", "http://api.example:80/orders", "https://api.example/%6Frders", "ftp://api.example/orders", "https://api.example/orders#a",
	} {
		for _, guard := range [][2]string{{"shop", "mail"}, {"model", "chat.complete"}} {
			_, err := BuildConsent(approving(t, guard[0], guard[1], resource))
			require.ErrorContains(t, err, "grants[0].resource does not hold", resource)
			oneSentence(t, err)
		}
	}
	c, err := BuildConsent(approving(t, "shop", "mail", "https://mail.example:8443/send"))
	require.NoError(t, err)
	assert.Equal(t, []ConsentGrant{{Guard: "shop", Action: "mail", Does: "Write to customers", Resource: "https://mail.example:8443/send", Risk: catalogue.High}}, c.Grants)
}

// Money is an amount with its currency, or nothing.
func TestMoneyIsOneCurrency(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Task, *WorkloadRole, *Policy)
		says   string
	}{
		"spend over role":          {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Limits.Spend = 20_001 }, "limits.spend exceeds the role's ceiling of 20000"},
		"spend over policy":        {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxSpend = 9_999 }, "limits.spend exceeds the policy's ceiling of 9999"},
		"steps over role":          {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Limits.Steps = 2_001 }, "limits.steps exceeds the role's ceiling of 2000"},
		"steps over policy":        {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxSteps = 499 }, "limits.steps exceeds the policy's ceiling of 499"},
		"role of another currency": {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Limits.Currency = "USD" }, "limits.currency is not the role's: it lets a run spend at most 20000 minor units of USD"},
		"policy of another":        {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.Currency = "USD" }, "limits.currency is not the policy's: it lets a run spend at most 30000 minor units of USD"},
		"role without money":       {func(_ *Task, r *WorkloadRole, _ *Policy) { r.Limits.MaxSpend, r.Limits.Currency = 0, "" }, "limits.spend exceeds the role's ceiling of 0"},
		"policy without money": {func(_ *Task, _ *WorkloadRole, p *Policy) {
			p.Limits.MaxSpend, p.Limits.Currency, p.Limits.MemberSpendDay, p.Limits.MemberSpendMonth = 0, "", 0, 0
		}, "limits.spend exceeds the policy's ceiling of 0"},
		"a member's day without money": {func(_ *Task, _ *WorkloadRole, p *Policy) { p.Limits.MaxSpend, p.Limits.Currency = 0, "" }, "Policy standard limits.member_spend_day needs a currency"},
		"a member's month without": {func(_ *Task, _ *WorkloadRole, p *Policy) {
			p.Limits.MaxSpend, p.Limits.Currency, p.Limits.MemberSpendDay = 0, "", 0
		}, "Policy standard limits.member_spend_month needs a currency"},
		"a grant without money": {func(t *Task, _ *WorkloadRole, _ *Policy) {
			t.Limits.Spend, t.Limits.Currency, t.Limits.SpendDay, t.Limits.SpendMonth = 0, "", 0, 0
		}, "Task nightly-sweep grants[1].currency must be that of limits.spend"},
		"an optional grant of another": {func(t *Task, _ *WorkloadRole, _ *Policy) { t.Grants[2].MaxAmount, t.Grants[2].Currency = 1, "USD" }, "grants[2].currency must be that of limits.spend"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parts := partsOf(t)
			c.change(parts.Task, parts.Role, parts.Policy)
			err := CheckTask(parts.Task, parts.Role, parts.Policy)
			require.ErrorContains(t, err, c.says)
			oneSentence(t, err)
			_, err = BuildConsent(parts)
			assert.ErrorContains(t, err, c.says)
		})
	}
}

// A task that spends nothing needs no money of its role and policy, and its
// consent speaks of none.
func TestWithoutMoneyNothingIsSaidOfIt(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	parts.Task.Limits = TaskLimits{RuntimeS: 600, Effects: 20, Steps: 500, Repeats: 3}
	parts.Task.Grants = parts.Task.Grants[:1]
	for _, c := range []RoleLimits{parts.Role.Limits, {MaxRuntimeS: 900, MaxEffects: 50, MaxSteps: 2000}} {
		parts.Role.Limits = c
		built, err := BuildConsent(parts)
		require.NoError(t, err)
		text, err := built.Canonical()
		require.NoError(t, err)
		for _, word := range []string{"currency", "spend", "EUR"} {
			assert.NotContains(t, string(text), word)
		}
	}
}

// A consent is checked by itself, whoever built it.
func TestConsentWithWrongMoneyIsNotRead(t *testing.T) {
	t.Parallel()
	parts := partsOf(t)
	parts.Ticked = []int{2}
	good, err := BuildConsent(parts)
	require.NoError(t, err)
	for says, change := range map[string]func(*Consent){
		"grants[0].does must be text":                     func(c *Consent) { c.Grants[0].Does = "" },
		"grants[1].does must not contain the control":     func(c *Consent) { c.Grants[1].Does = "Re\u202ead" },
		"grants[1].currency must be that of limits.spend": func(c *Consent) { c.Grants[1].Currency = "USD" },
		"grants[1].max_amount must be between":            func(c *Consent) { c.Grants[1].MaxAmount = -1 },
		"grants[2].pre_approved[0] must be the key":       func(c *Consent) { c.Grants[2].PreApproved = []json.RawMessage{json.RawMessage(`["*"]`)} },
		"grants[2].pre_approved[1] stands twice": func(c *Consent) {
			c.Grants[2].PreApproved = append(c.Grants[2].PreApproved, c.Grants[2].PreApproved[0])
		},
		"limits.steps must be between":         func(c *Consent) { c.Limits.Steps = 0 },
		"limits.repeats must be between":       func(c *Consent) { c.Limits.Repeats = 0 },
		"limits.spend must be between":         func(c *Consent) { c.Limits.Spend = 0 },
		"limits.currency must be":              func(c *Consent) { c.Grants, c.Limits.Currency = c.Grants[:1], "" },
		"limits.spend_day must be between":     func(c *Consent) { c.Limits.SpendDay = -1 },
		"limits.spend_month must be between":   func(c *Consent) { c.Limits.SpendMonth = catalogue.MaxAmount + 1 },
		"limits.effects_day must be between":   func(c *Consent) { c.Limits.EffectsDay = -1 },
		"limits.effects_month must be between": func(c *Consent) { c.Limits.EffectsMonth = -1 },
		"member_spend_day must be between":     func(c *Consent) { c.MemberSpendDay = -1 },
		"member_spend_month must be between":   func(c *Consent) { c.MemberSpendMonth = catalogue.MaxAmount + 1 },
		"member_spend_day needs a currency": func(c *Consent) {
			c.Grants, c.Limits = c.Grants[:1], TaskLimits{RuntimeS: 600, Effects: 20, Steps: 500, Repeats: 3}
		},
	} {
		c := good
		c.Grants = append([]ConsentGrant(nil), good.Grants...)
		change(&c)
		_, err := c.Canonical()
		require.ErrorContains(t, err, says)
		oneSentence(t, err)
		_, err = c.Digest()
		require.Error(t, err)
	}
	_, err = good.Digest()
	require.NoError(t, err)
}

// What could not be stored and shown is refused where it is built.
func TestConsentThatIsTooLargeIsNotBuilt(t *testing.T) {
	t.Parallel()
	keys := func(n, length int) (keys []string) {
		for i := range n {
			keys = append(keys, fmt.Sprintf(`{"key":{"id":%d,"text":%q}}`, i, strings.Repeat("a", length)))
		}
		return keys
	}
	_, err := BuildConsent(approving(t, "orders-db", "row.delete", "table:drafts", keys(15, 4000)...))
	require.NoError(t, err)
	_, err = BuildConsent(approving(t, "orders-db", "row.delete", "table:drafts", keys(17, 4000)...))
	require.ErrorContains(t, err, "Task nightly-sweep cannot be written: canonical: the document is too large")
	oneSentence(t, err)

	// A consent says more than its task.
	parts := approving(t, "orders-db", "row.delete", "table:drafts", keys(16, 4000)...)
	task, err := Canonical(parts.Task)
	require.NoError(t, err)
	parts = approving(t, "orders-db", "row.delete", "table:drafts", append(keys(16, 4000), keys(1, canonical.MaxSize-len(task)-40)...)...)
	_, err = Canonical(parts.Task)
	require.NoError(t, err)
	built, err := BuildConsent(parts)
	require.ErrorContains(t, err, "cannot be written: canonical: the document is too large")
	oneSentence(t, err)
	assert.Zero(t, built)
}
