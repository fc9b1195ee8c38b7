package authority

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// Readiness is the complete decision as this replica knows it, in answer to a
// challenge, and signed for whoever applies it to entries of their own (P33).
// It costs no query: the copy is at most a second old, and closed when it is older.
//
// What cannot be signed is never said to be open. When signing fails the error
// says why, and the decision is closed, unsigned and for the reason "signing:
// material": a replica that cannot sign can admit nothing either. A replica that
// has not learned a decision yet has none to sign: its answer is closed, unsigned
// and for the reason "start".
func (a *Authority) Readiness(challenge string) (api.Decision, error) {
	return answered(a.Gate.Known(), challenge, a.signDecision)
}

func answered(d readiness.Decision, challenge string, sign func(api.Decision) (string, error)) (out api.Decision, err error) {
	if d.Epoch == 0 {
		return api.Decision{Challenge: challenge, Reasons: []string{"start"}, Families: []api.FamilyState{}}, nil
	}
	out = decisionOf(d)
	out.Challenge = challenge
	if out.Signed, err = sign(out); err != nil {
		out.Open, out.ValidMS, out.Signed, out.Reasons = false, 0, "", []string{because("signing", readiness.Material)}
		return out, fmt.Errorf("sign the readiness decision: %w", err)
	}
	return out, nil
}

// decisionOf spells a decision. One that is open, while a family in it no longer
// is good, has only not been evaluated since: here it is closed already.
func decisionOf(d readiness.Decision) api.Decision {
	out := api.Decision{Open: d.Open, Held: d.Held, Epoch: d.Epoch, Sequence: d.Sequence, Incarnation: d.Incarnation, Requirement: d.Requirement,
		ValidMS: min(d.Valid, capability.MaxDecisionLife).Milliseconds(), SinceUnixMS: d.Since.UnixMilli(), InputsSHA256: encode(d.Inputs[:]), Families: []api.FamilyState{}}
	switch {
	case !d.Open:
		out.Reasons = []string{because(d.Family, d.Reason)}
	case out.ValidMS <= 0:
		out.Reasons = []string{"expired"}
	}
	for _, f := range d.Families {
		switch {
		case f.Good:
			f.Reason = ""
		case d.Open:
			out.Reasons = append(out.Reasons, because(f.Family, f.Reason))
		}
		out.Families = append(out.Families, api.FamilyState(f))
	}
	slices.SortFunc(out.Families, func(x, y api.FamilyState) int { return cmp.Compare(x.Family, y.Family) })
	if len(out.Reasons) > 0 {
		out.Open, out.ValidMS = false, 0
	}
	return out
}

func because(family, reason string) string {
	if family == "" {
		return reason
	}
	return family + ": " + reason
}

func (a *Authority) signDecision(d api.Decision) (string, error) {
	life := capability.MaxDecisionLife
	if d.Open {
		life = time.Duration(d.ValidMS) * time.Millisecond
	}
	now := a.Now()
	c := capability.DecisionClaims{Issuer: a.Issuer, IssuedAt: now.Unix(), Expires: now.Add(life).Unix(), Open: d.Open, Held: d.Held,
		Incarnation: d.Incarnation, Epoch: d.Epoch, Sequence: d.Sequence, Requirement: d.Requirement, ValidMS: d.ValidMS, SinceUnixMS: d.SinceUnixMS,
		InputsSHA256: d.InputsSHA256, Challenge: d.Challenge, Reasons: d.Reasons, Families: make([]capability.DecidedFamily, len(d.Families))}
	for i, f := range d.Families {
		c.Families[i] = capability.DecidedFamily{Family: f.Family, Good: f.Good, Reason: f.Reason, Instances: int64(f.Instances), Required: int64(f.Required), AgeMS: f.AgeMS}
	}
	k := a.Keys()
	return capability.SignDecision(k.SignerFor(keyhost.PurposeReadiness), k.Identity().Generation, c)
}
