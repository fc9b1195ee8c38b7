package document

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

func widest(t testing.TB) Consent {
	t.Helper()
	parts := partsOf(t)
	parts.Ticked = []int{2}
	c, err := BuildConsent(parts)
	require.NoError(t, err)
	return c
}

// Case 38: whatever a choice adds or raises is refused, and says which part it was.
func TestAChoiceOfMoreIsRefused(t *testing.T) {
	t.Parallel()
	high, unknown := catalogue.Low, catalogue.Risk(9)
	for says, c := range map[string]Choice{
		"grants have no optional grant 0 to tick once":      {Ticked: []int{0}},
		"grants have no optional grant 3 to tick once":      {Ticked: []int{3}},
		"grants have no optional grant -1 to tick once":     {Ticked: []int{-1}},
		"grants have no optional grant 2 to tick once":      {Ticked: []int{2, 2}},
		"grants have no chosen grant 2 to lower":            {Amounts: map[int]int64{2: 1}}, // not ticked
		"grants have no chosen grant 9 to lower":            {Amounts: map[int]int64{9: 1}},
		"grants have no chosen grant -1 to lower":           {Amounts: map[int]int64{-1: 1}},
		"grants[1] was not offered":                         {Amounts: map[int]int64{1: 5001}},
		"grants[0] was not offered":                         {Amounts: map[int]int64{0: 1}}, // it has no amount
		"grants[1].max_amount must be between 1":            {Amounts: map[int]int64{1: 0}},
		"limits.runtime_s is higher than offered":           {Limits: TaskLimits{RuntimeS: 601}},
		"limits.effects is higher than offered":             {Limits: TaskLimits{Effects: 21}},
		"limits.steps is higher than offered":               {Limits: TaskLimits{Steps: 501}},
		"limits.repeats is higher than offered":             {Limits: TaskLimits{Repeats: 3}},
		"limits.spend is higher than offered":               {Limits: TaskLimits{Spend: 10001}},
		"limits.effects_day is higher than offered":         {Limits: TaskLimits{EffectsDay: 41}},
		"limits.effects_month is higher than offered":       {Limits: TaskLimits{EffectsMonth: -1}},
		"limits.spend_day is higher than offered":           {Limits: TaskLimits{SpendDay: 15001}},
		"limits.spend_month is higher than offered":         {Limits: TaskLimits{SpendMonth: 60001}},
		"limits.currency is not to choose":                  {Limits: TaskLimits{Currency: "EUR"}},
		"dial is higher than offered":                       {Dial: &high},
		"expires is later than offered":                     {Expires: widest(t).Expires + 1},
		"expires must lie at most 366 days after":           {Expires: widest(t).NotBefore},
		"schedule never fires between":                      {Expires: widest(t).NotBefore + 1000},
		"limits.runtime_s exceeds the consent's ceiling of": {Expires: widest(t).NotBefore + 599},
		"when_more_is_needed must be one of stop, wait":     {WhenMoreIsNeeded: "continue"},
	} {
		got, err := Narrow(widest(t), c)
		if assert.ErrorContains(t, err, says) {
			oneSentence(t, err)
		}
		assert.Zero(t, got)
	}
	_, err := Narrow(widest(t), Choice{Dial: &unknown})
	assert.Error(t, err)
}

// A bound that was not offered may be set, money that was not offered may not.
func TestAnOfferWithoutABound(t *testing.T) {
	t.Parallel()
	c := widest(t)
	c.Limits.EffectsDay, c.Limits.SpendMonth = 0, 0
	got, err := Narrow(c, Choice{Limits: TaskLimits{EffectsDay: 7, SpendMonth: 20000}})
	require.NoError(t, err)
	assert.EqualValues(t, []int64{7, 20000}, []int64{got.Limits.EffectsDay, got.Limits.SpendMonth})

	parts := partsOf(t)
	parts.Task.Grants, parts.Task.Limits = parts.Task.Grants[:1], TaskLimits{RuntimeS: 600, Effects: 20, Steps: 500, Repeats: 2}
	free, err := BuildConsent(parts)
	require.NoError(t, err)
	_, err = Narrow(free, Choice{Limits: TaskLimits{Spend: 1}})
	assert.ErrorContains(t, err, "limits.spend is higher than offered")
	_, err = Narrow(free, Choice{Limits: TaskLimits{SpendDay: 1}})
	assert.ErrorContains(t, err, "limits.spend_day needs a currency")
}

// Nothing is ticked beforehand: the choice of nothing is the offer without what is optional.
func TestAnEmptyChoiceTakesWhatIsRequired(t *testing.T) {
	t.Parallel()
	got, err := Narrow(widest(t), Choice{})
	require.NoError(t, err)
	assert.Equal(t, consentOf(t), got)
	all, err := Narrow(widest(t), Choice{Ticked: []int{2}})
	require.NoError(t, err)
	assert.Equal(t, widest(t), all)
}

// Whatever differs from the offer in another way than the ways of a choice is not within it.
func TestOnlyAChoiceIsWithin(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(widest(t))
	require.NoError(t, err)
	other := Digest{1}.String()
	for field, value := range map[string]any{"client": "other", "workload_role": "other", "role_revision": 4, "role_document": other, "task": "AAAAAAAAAAAAAAAAAAAAAA", "task_revision": 2,
		"task_document": other, "title": "Other", "schedule.cron": "31 2 * * *", "schedule.window_s": 1, "policy": "other", "policy_revision": 1, "policy_document": other, "decision_window_s": 60,
		"not_before": "2026-05-01T00:00:01Z", "member_spend_day": 1, "member_spend_month": absent{}, "grants.0.guard": "other", "grants.0.action": "row.list", "grants.0.does": "Count",
		"grants.0.resource": "table:order", "grants.0.risk": "low", "grants.0.optional": true, "grants.1.currency": "USD", "grants.2.optional": absent{}, "limits.currency": "USD",
		"grants.2.pre_approved.0.key.state": "fresh", "version": 2} {
		var c Consent
		require.NoError(t, json.Unmarshal([]byte(edited(t, string(text), field, value)), &c))
		assert.Error(t, c.Within(widest(t)), field)
	}
	less := widest(t)
	less.Grants = slices.Clone(less.Grants)
	less.Grants[2].PreApproved = nil
	assert.NoError(t, less.Within(widest(t)), "fewer keys")
	less.Grants = less.Grants[1:]
	assert.ErrorContains(t, less.Within(widest(t)), "grants[0] is required and cannot be left out")
}

// anOffer draws the widest document of some offer.
func anOffer(t *rapid.T, base Consent) Consent {
	c := base
	c.Grants = nil
	for i := range rapid.IntRange(1, 5).Draw(t, "grants") {
		g := ConsentGrant{Guard: "orders-db", Action: "row.append", Does: "Add", Resource: fmt.Sprintf("table:t%d", i), Risk: catalogue.Low,
			Optional: rapid.Bool().Draw(t, "optional")}
		if rapid.Bool().Draw(t, "spends") {
			g.MaxAmount, g.Currency = rapid.Int64Range(1, 9).Draw(t, "amount"), "EUR"
		}
		c.Grants = append(c.Grants, g)
	}
	limit := func(low int64, name string) int64 { return rapid.Int64Range(low, 9).Draw(t, name) }
	c.Limits = TaskLimits{RuntimeS: limit(1, "runtime"), Effects: limit(1, "effects"), Steps: limit(1, "steps"), Repeats: limit(1, "repeats"), Spend: limit(1, "spend"), Currency: "EUR",
		EffectsDay: limit(0, "effects a day"), EffectsMonth: limit(0, "effects a month"), SpendDay: limit(0, "spend a day"), SpendMonth: limit(0, "spend a month")}
	c.Dial = catalogue.Risk(rapid.IntRange(0, 3).Draw(t, "dial"))
	return c
}

// aChoice draws what somebody may ask for, less and more.
func aChoice(t *rapid.T, base Consent) (c Choice) {
	seldom := func(name string) bool { return rapid.IntRange(0, 9).Draw(t, name) == 9 } // each is refused more often than not
	limit := func(name string) int64 {
		if !seldom("lower " + name) {
			return 0
		}
		return rapid.Int64Range(-1, 10).Draw(t, name)
	}
	c.Limits = TaskLimits{RuntimeS: limit("runtime"), Effects: limit("effects"), Steps: limit("steps"), Repeats: limit("repeats"), Spend: limit("spend"), EffectsDay: limit("effects a day"),
		EffectsMonth: limit("effects a month"), SpendDay: limit("spend a day"), SpendMonth: limit("spend a month")}
	c.Ticked = rapid.SliceOfNDistinct(rapid.IntRange(0, 4), 0, 2, rapid.ID[int]).Draw(t, "ticked")
	if seldom("amounts") {
		c.Amounts = rapid.MapOfN(rapid.IntRange(-1, 5), rapid.Int64Range(-1, 10), 0, 2).Draw(t, "amounts")
	}
	if seldom("dials") {
		dial := catalogue.Risk(rapid.IntRange(-1, 4).Draw(t, "dial"))
		c.Dial = &dial
	}
	if rapid.Bool().Draw(t, "ends") {
		c.Expires = base.Expires + timetable.Instant(rapid.Int64Range(-40*dayS, dayS).Draw(t, "by"))
	}
	c.WhenMoreIsNeeded = rapid.SampledFrom([]string{"", MoreStops, MoreWaits, "", MoreStops, MoreWaits, "go on"}).Draw(t, "more")
	return c
}

// more says what a document has that was not offered. It knows nothing of how one is made or compared elsewhere.
func more(granted, offered Consent) (what []string) {
	add := func(wider bool, name string) {
		if wider {
			what = append(what, name)
		}
	}
	l, o := granted.Limits, offered.Limits
	add(l.RuntimeS > o.RuntimeS || l.Effects > o.Effects || l.Steps > o.Steps || l.Repeats > o.Repeats || l.Spend > o.Spend || l.Currency != o.Currency, "a limit")
	for _, w := range [][2]int64{{l.EffectsDay, o.EffectsDay}, {l.EffectsMonth, o.EffectsMonth}, {l.SpendDay, o.SpendDay}, {l.SpendMonth, o.SpendMonth}} {
		add(w[1] > 0 && (w[0] == 0 || w[0] > w[1]) || w[0] < 0, "a window")
	}
	add(granted.Dial > offered.Dial || !granted.Dial.Valid(), "a dial")
	add(granted.Expires > offered.Expires || granted.NotBefore != offered.NotBefore, "time")
	add(granted.Client != offered.Client || granted.Task != offered.Task || granted.TaskDocument != offered.TaskDocument || granted.RoleDocument != offered.RoleDocument ||
		granted.PolicyDocument != offered.PolicyDocument || granted.Schedule != offered.Schedule || granted.MemberSpendDay != offered.MemberSpendDay, "another task")
	for _, g := range granted.Grants {
		at := slices.IndexFunc(offered.Grants, func(o ConsentGrant) bool {
			return o.Guard == g.Guard && o.Action == g.Action && o.Resource == g.Resource
		})
		add(at < 0, "a grant")
		add(at >= 0 && (g.MaxAmount > offered.Grants[at].MaxAmount || g.Currency != offered.Grants[at].Currency || g.Risk != offered.Grants[at].Risk), "an amount")
	}
	for _, o := range offered.Grants {
		add(!o.Optional && !slices.ContainsFunc(granted.Grants, func(g ConsentGrant) bool { return g.Resource == o.Resource }), "without what is required")
	}
	return what
}

// Case 38, A1: whatever is chosen, what comes out is the offer or less, holds by itself and does not share memory with the offer.
func TestWhatIsGrantedWasOffered(t *testing.T) {
	t.Parallel()
	base := widest(t)
	narrowed, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		offer := anOffer(t, base)
		before, err := json.Marshal(offer)
		require.NoError(t, err)
		got, err := Narrow(offer, aChoice(t, base))
		after, _ := json.Marshal(offer)
		assert.Equal(t, before, after, "the offer itself was changed")
		if err != nil {
			refused++
			assert.Zero(t, got)
			return
		}
		narrowed++
		assert.Empty(t, more(got, offer))
		assert.NoError(t, got.Validate())
		again, err := Narrow(got, Choice{Ticked: optionalOf(got)})
		require.NoError(t, err)
		assert.Equal(t, got, again, "less than nothing more is the same")
	})
	assert.Positive(t, narrowed)
	assert.Positive(t, refused)
}

func optionalOf(c Consent) (all []int) {
	for i, g := range c.Grants {
		if g.Optional {
			all = append(all, i)
		}
	}
	return all
}

// Every choice of less is possible.
func TestLessIsAlwaysPossible(t *testing.T) {
	t.Parallel()
	base := widest(t)
	rapid.Check(t, func(t *rapid.T) {
		offer := anOffer(t, base)
		offer.Grants[0].Optional = false
		lower := func(most int64, name string) int64 { return rapid.Int64Range(min(1, most), most).Draw(t, name) }
		o := offer.Limits
		c := Choice{Limits: TaskLimits{RuntimeS: lower(o.RuntimeS, "runtime"), Effects: lower(o.Effects, "effects"), Steps: lower(o.Steps, "steps"), Repeats: lower(o.Repeats, "repeats"),
			Spend: lower(o.Spend, "spend"), SpendDay: lower(o.SpendDay, "day")}, Expires: offer.Expires - timetable.Instant(rapid.Int64Range(0, 28*dayS).Draw(t, "sooner")), Amounts: map[int]int64{}}
		for i, g := range offer.Grants {
			ticked := g.Optional && rapid.Bool().Draw(t, "ticked")
			if ticked {
				c.Ticked = append(c.Ticked, i)
			}
			if g.MaxAmount > 0 && (ticked || !g.Optional) {
				c.Amounts[i] = lower(g.MaxAmount, "amount")
			}
		}
		dial := catalogue.Risk(rapid.IntRange(0, int(offer.Dial)).Draw(t, "dial"))
		c.Dial = &dial
		got, err := Narrow(offer, c)
		require.NoError(t, err)
		assert.Equal(t, c.Expires, got.Expires)
		assert.Equal(t, c.Limits.Effects, got.Limits.Effects)
		assert.Equal(t, dial, got.Dial)
	})
}
