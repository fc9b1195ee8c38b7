package authority

import (
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// terms are a consent document's lines as the database keeps them. They are
// derived from the very document whose digest the yes carries.
type terms struct {
	Dial       int16   `json:"dial"`
	RunLimitMS int64   `json:"run_limit_ms"`
	MaxEffects int64   `json:"max_effects"`
	MaxSteps   int64   `json:"max_steps"`
	MaxRepeats int64   `json:"max_repeats"`
	MaxSpend   int64   `json:"max_spend"`
	Currency   *string `json:"currency"` // hex, of its digest

	EffectsDay       int64 `json:"effects_day"`
	EffectsMonth     int64 `json:"effects_month"`
	SpendDay         int64 `json:"spend_day"`
	SpendMonth       int64 `json:"spend_month"`
	MemberSpendDay   int64 `json:"member_spend_day"`
	MemberSpendMonth int64 `json:"member_spend_month"`

	Silence   string      `json:"silence"`
	WindowMS  int64       `json:"window_ms"`
	NotBefore time.Time   `json:"not_before"`
	ExpiresAt time.Time   `json:"expires_at"`
	FirstAt   time.Time   `json:"first_at"`
	Zone      string      `json:"zone"`
	Grants    []grantLine `json:"grants"`
}

type grantLine struct {
	Guard     string  `json:"guard"` // hex, like the digests below
	Action    string  `json:"action"`
	Resource  string  `json:"resource"`
	Risk      int16   `json:"risk"`
	MaxAmount int64   `json:"max_amount"`
	Currency  *string `json:"currency"`

	Keys []string `json:"keys,omitempty"` // pre-approved
}

func termsOf(c document.Consent, now time.Time) (terms, error) {
	s, err := timetable.Parse(c.Schedule)
	if err != nil {
		return terms{}, fmt.Errorf("a stored schedule does not parse: %w", err)
	}
	first, ok := s.Next(later(now, c.NotBefore.Time()).Add(-time.Second))
	if !ok {
		return terms{}, api.Refusef(api.OfferEnded, "This schedule never fires again.")
	}
	zone := timetable.ZoneFingerprint(s.Zone(), first)
	t := terms{Dial: int16(c.Dial), RunLimitMS: c.Limits.RuntimeS * 1000, MaxEffects: c.Limits.Effects, MaxSteps: c.Limits.Steps, MaxRepeats: c.Limits.Repeats,
		MaxSpend: c.Limits.Spend, Currency: hexCurrency(c.Limits.Currency), EffectsDay: c.Limits.EffectsDay, EffectsMonth: c.Limits.EffectsMonth,
		SpendDay: c.Limits.SpendDay, SpendMonth: c.Limits.SpendMonth, MemberSpendDay: c.MemberSpendDay, MemberSpendMonth: c.MemberSpendMonth, Silence: c.WhenMoreIsNeeded,
		WindowMS: c.DecisionWindowS * 1000, NotBefore: c.NotBefore.Time(), ExpiresAt: c.Expires.Time(),
		FirstAt: first, Zone: hexOf(zone[:])}
	for _, g := range c.Grants {
		t.Grants = append(t.Grants, grantOf(g))
	}
	return t, nil
}

func grantOf(g document.ConsentGrant) grantLine {
	guard, action, resource := nameDigest(g.Guard), actionDigest(g.Action), resourceDigest(g.Resource)
	line := grantLine{Guard: hexOf(guard[:]), Action: hexOf(action[:]), Resource: hexOf(resource[:]), Risk: int16(g.Risk), MaxAmount: g.MaxAmount,
		Currency: hexCurrency(g.Currency)}
	for _, key := range g.PreApproved {
		d := canonical.Digest(canonical.DomainApproved, key)
		line.Keys = append(line.Keys, hexOf(d[:]))
	}
	return line
}

func hexCurrency(currency string) *string {
	d := currencyDigest(currency)
	if d == nil {
		return nil
	}
	text := hexOf(d[:])
	return &text
}
