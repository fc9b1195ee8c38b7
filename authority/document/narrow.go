package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Choice is what a member allows of an offer. What is zero or absent stays as
// it was offered, but for the optional grants: those that are not ticked are
// left out. Required grants cannot be.
type Choice struct {
	Ticked           []int           // indexes of the optional grants that are wanted
	Amounts          map[int]int64   // by index of a grant, the most of one effect, in minor units
	Limits           TaskLimits      // lower ones; the currency is not to choose
	Dial             *catalogue.Risk // a lower one
	Expires          timetable.Instant
	WhenMoreIsNeeded string
}

// Narrow returns what is left of an offer after a member's choice. most is the
// widest document of the offer, with every optional grant. The result lies
// within it (see [Consent.Within]) and holds by itself.
func Narrow(most Consent, c Choice) (Consent, error) {
	out := most
	if c.Dial != nil {
		out.Dial = *c.Dial
	}
	if c.Expires != 0 {
		out.Expires = c.Expires
	}
	if c.WhenMoreIsNeeded != "" {
		out.WhenMoreIsNeeded = c.WhenMoreIsNeeded
	}
	if c.Limits.Currency != "" {
		return Consent{}, wrong("limits.currency", "is not to choose")
	}
	for _, l := range limitsOf(&out.Limits, &c.Limits) {
		if *l.b != 0 {
			*l.a = *l.b
		}
	}
	var err error
	if out.Grants, err = chosen(most.Grants, c); err != nil {
		return Consent{}, err
	}
	if err := first(out.Within(most), out.Validate()); err != nil {
		return Consent{}, err
	}
	return out, nil
}

// chosen is a copy of the required grants and of those that are ticked.
func chosen(list []ConsentGrant, c Choice) ([]ConsentGrant, error) {
	for n, i := range c.Ticked {
		if i < 0 || i >= len(list) || !list[i].Optional || slices.Contains(c.Ticked[:n], i) {
			return nil, wrong("grants", "have no optional grant %d to tick once", i)
		}
	}
	for i := range c.Amounts {
		if i < 0 || i >= len(list) || list[i].Optional && !slices.Contains(c.Ticked, i) {
			return nil, wrong("grants", "have no chosen grant %d to lower", i)
		}
	}
	var out []ConsentGrant
	for i, g := range list {
		if g.Optional && !slices.Contains(c.Ticked, i) {
			continue
		}
		if most, ok := c.Amounts[i]; ok {
			g.MaxAmount = most
		}
		out = append(out, g)
	}
	return out, nil
}

// Within reports where a consent is not the same as an offer, or less: its
// grants are grants of the offer, with every required one among them; no limit,
// dial or amount is higher and its end is not later; what happens when more is
// needed is the member's to choose. Everything else is equal.
func (c Consent) Within(most Consent) error {
	rest := c
	rest.Grants, rest.Limits, rest.Dial, rest.Expires, rest.WhenMoreIsNeeded = most.Grants, most.Limits, most.Dial, most.Expires, most.WhenMoreIsNeeded
	switch {
	case !reflect.DeepEqual(rest, most):
		return wrong("", "is not of what was offered")
	case c.Dial < catalogue.None || c.Dial > most.Dial:
		return wrong("dial", "is higher than offered")
	case c.Expires > most.Expires:
		return wrong("expires", "is later than offered")
	}
	return first(limitsWithin(&c.Limits, &most.Limits), grantsWithin(c.Grants, most.Grants))
}

// limitPair is one limit of two sets. Of an unbounded one 0 means no bound.
type limitPair struct {
	field     string
	a, b      *int64
	unbounded bool
}

func limitsOf(a, b *TaskLimits) []limitPair {
	return []limitPair{
		{"runtime_s", &a.RuntimeS, &b.RuntimeS, false}, {"effects", &a.Effects, &b.Effects, false}, {"steps", &a.Steps, &b.Steps, false},
		{"repeats", &a.Repeats, &b.Repeats, false}, {"spend", &a.Spend, &b.Spend, false}, {"effects_day", &a.EffectsDay, &b.EffectsDay, true},
		{"effects_month", &a.EffectsMonth, &b.EffectsMonth, true}, {"spend_day", &a.SpendDay, &b.SpendDay, true}, {"spend_month", &a.SpendMonth, &b.SpendMonth, true},
	}
}

func limitsWithin(granted, offered *TaskLimits) error {
	if granted.Currency != offered.Currency {
		return wrong("limits.currency", "is another than offered")
	}
	for _, l := range limitsOf(granted, offered) {
		open := l.unbounded && *l.b == 0
		if *l.a < 0 || !open && *l.a > *l.b || l.unbounded && *l.a == 0 && !open {
			return wrong("limits."+l.field, "is higher than offered")
		}
	}
	return nil
}

func grantsWithin(granted, offered []ConsentGrant) error {
	for i, g := range granted {
		if !slices.ContainsFunc(offered, g.within) {
			return wrong(fmt.Sprintf("grants[%d]", i), "was not offered")
		}
	}
	for i, o := range offered {
		if !o.Optional && !slices.ContainsFunc(granted, func(g ConsentGrant) bool { return g.within(o) }) {
			return wrong(fmt.Sprintf("grants[%d]", i), "is required and cannot be left out")
		}
	}
	return nil
}

// within reports whether a grant is one of the offer, or less of it.
func (g ConsentGrant) within(offered ConsentGrant) bool {
	rest := g
	rest.MaxAmount, rest.PreApproved = offered.MaxAmount, offered.PreApproved
	return reflect.DeepEqual(rest, offered) && g.MaxAmount >= 0 && g.MaxAmount <= offered.MaxAmount && !slices.ContainsFunc(g.PreApproved, func(key json.RawMessage) bool {
		return !slices.ContainsFunc(offered.PreApproved, func(o json.RawMessage) bool { return bytes.Equal(key, o) })
	})
}
