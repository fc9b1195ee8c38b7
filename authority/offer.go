package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Offers lists a member's offers; one only when reference is given.
func (a *Authority) Offers(ctx context.Context, m Actor, reference string) ([]api.Offer, error) {
	var one []byte
	if reference != "" {
		var err error
		if one, err = named(reference); err != nil {
			return nil, err
		}
	}
	if _, err := a.standing(m.spent); err != nil { // before anything is asked
		return nil, err
	}
	rows, err := a.offers(ctx, m.Member(), one)
	if err != nil {
		return nil, err
	}
	if one != nil && len(rows) == 0 {
		return nil, api.Refuse(api.NotFound)
	}
	if err := a.present(ctx, m); err != nil { // before anything is told
		return nil, err
	}
	out := make([]api.Offer, len(rows))
	for i, r := range rows {
		out[i] = a.view(r)
	}
	return out, nil
}

// offered is a member's offer, before it is decided what becomes of it.
func (a *Authority) offered(ctx context.Context, m Actor, offer []byte) (r offerRow, err error) {
	if err := a.refuseEarly(); err != nil {
		return r, err
	}
	if _, err := a.standing(m.spent); err != nil {
		return r, err
	}
	rows, err := a.offers(ctx, m.Member(), offer)
	if err != nil {
		return r, err
	}
	if len(rows) == 0 {
		return r, api.Refuse(api.NotFound)
	}
	return rows[0], nil
}

// Narrow keeps what a member has chosen of an offer and returns the offer with
// it, so that it can be shown before the yes. A choice of more than was offered
// is refused, and audited.
func (a *Authority) Narrow(ctx context.Context, m Actor, reference string, c api.Choice) (api.Offer, error) {
	offer, err := named(reference)
	if err != nil {
		return api.Offer{}, err
	}
	row, err := a.offered(ctx, m, offer)
	if err != nil {
		return api.Offer{}, err
	}
	most, err := document.ParseConsent(row.widest())
	if err != nil {
		return api.Offer{}, fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	digest, body, wrong := narrowed(most, c)
	if err := a.keepChoice(ctx, m, offer, digest, body); err != nil {
		return api.Offer{}, explained(err, wrong)
	}
	row.variant, row.variantBody = digest, body
	return a.view(row), nil
}

// explained says in a refusal which part of a choice was not offered. The
// sentence names fields of the offer and holds nothing that the caller wrote.
func explained(err, wrong error) error {
	var r *api.Refusal
	var d *document.Error
	if !errors.As(err, &r) || r.Code != api.NotOffered || !errors.As(wrong, &d) {
		return err
	}
	r.Sentence = d.Error()
	return err
}

// narrowed is the document of a choice; without one, what is wrong with the choice.
func narrowed(most document.Consent, c api.Choice) (digest, body []byte, wrong error) {
	choice, err := choiceOf(c)
	if err != nil {
		return nil, nil, err
	}
	less, err := document.Narrow(most, choice)
	if err != nil {
		return nil, nil, err
	}
	if body, err = less.Canonical(); err != nil {
		return nil, nil, err
	}
	d, err := less.Digest()
	return d[:], body, err
}

func choiceOf(c api.Choice) (document.Choice, error) {
	l := c.Limits
	out := document.Choice{Ticked: c.Ticked, Amounts: map[int]int64{}, WhenMoreIsNeeded: c.WhenMoreIsNeeded, Limits: document.TaskLimits{RuntimeS: l.RuntimeS, Effects: l.Effects,
		Steps: l.Steps, Repeats: l.Repeats, Spend: l.Spend, EffectsDay: l.EffectsDay, EffectsMonth: l.EffectsMonth, SpendDay: l.SpendDay, SpendMonth: l.SpendMonth}}
	for i, x := range c.Amounts {
		if _, twice := out.Amounts[x.Grant]; twice {
			return out, &document.Error{Field: fmt.Sprintf("amounts[%d]", i), Reason: "lowers a grant for the second time"}
		}
		out.Amounts[x.Grant] = x.Most
	}
	if c.Dial != "" {
		dial, err := catalogue.ParseRisk(c.Dial)
		if err != nil {
			return out, &document.Error{Field: "dial", Reason: "must be one of none, read, low, high"}
		}
		out.Dial = &dial
	}
	if !c.ExpiresAt.IsZero() {
		out.Expires = timetable.InstantOf(c.ExpiresAt)
	}
	return out, nil
}

// GiveConsent records a member's yes to the offer whose digest it carries, or to
// what the member has chosen of it last (A1). The same yes once more has the same
// receipt as long as what it gave is in force.
func (a *Authority) GiveConsent(ctx context.Context, m Actor, reference string, answer api.Answer) (api.Consent, error) {
	offer, digest, err := answering(reference, answer, api.OfferChanged)
	if err != nil {
		return api.Consent{}, err
	}
	row, err := a.offered(ctx, m, offer)
	if err != nil {
		return api.Consent{}, err
	}
	consent, err := document.ParseConsent(row.document(digest))
	if err != nil {
		return api.Consent{}, fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return api.Consent{}, err
	}
	t, err := termsOf(consent, now)
	if err != nil {
		return api.Consent{}, err
	}
	given, err := a.giveConsent(ctx, m, offer, digest, newReference(), t)
	if err != nil {
		return api.Consent{}, err
	}
	given.Task, given.Digest, given.ReturnTo = encode(row.task), answer.Digest, a.returnTo(offer, row.back)
	return given, nil
}

// Decline answers an offer with no.
func (a *Authority) Decline(ctx context.Context, m Actor, reference string, answer api.Answer) error {
	offer, digest, err := answering(reference, answer, api.OfferChanged)
	if err != nil {
		return err
	}
	return a.call(ctx, "decline", m.spent, `SELECT verdict FROM nw.decline($1, $2, $3, $4, $5, $6, $7, $8)`, m.args(offer, digest), nil)
}

// answering reads a person's answer to something that was shown, by its digest.
func answering(reference string, answer api.Answer, changed api.Code) (thing, digest []byte, err error) {
	if thing, err = named(reference); err != nil {
		return nil, nil, err
	}
	digest, ok := decode(answer.Digest, 32)
	if !ok {
		return nil, nil, api.Refuse(changed)
	}
	return thing, digest, nil
}

// offerRow is an offer with its documents: what a plain yes gives, what can be
// chosen from where that is more, and what was chosen last.
type offerRow struct {
	ref, task, digest   []byte
	state               string
	expires             time.Time
	body, most, variant []byte
	variantBody         []byte
	product, back       []byte // of an offer that a product has started
}

func (r offerRow) widest() []byte {
	if r.most != nil {
		return r.most
	}
	return r.body
}

// document is the one that a digest names; the offer's own when it names none,
// and then the verb refuses.
func (r offerRow) document(digest []byte) []byte {
	if r.variant != nil && string(digest) == string(r.variant) {
		return r.variantBody
	}
	return r.body
}

// view is what the member sees. The next fires are those of what was chosen last.
func (a *Authority) view(r offerRow) api.Offer {
	o := api.Offer{Offer: encode(r.ref), Task: encode(r.task), Digest: encode(r.digest), State: r.state, ExpiresAt: r.expires.UTC(), Document: r.body, Most: r.most}
	shown := r.body
	if r.variant != nil {
		shown = r.variantBody
		o.Chosen = &api.Chosen{Digest: encode(r.variant), Document: shown}
	}
	if r.state == "open" {
		var consent document.Consent // which was held against every rule when it was stored
		if err := json.Unmarshal(shown, &consent); err == nil {
			o.NextFires = nextFires(consent, a.Now())
		}
	}
	if r.product != nil {
		o.Product = a.registry.now().name(r.product)
	}
	if r.state == "accepted" || r.state == "declined" {
		o.ReturnTo = a.returnTo(r.ref, r.back)
	}
	return o
}

// nextFires are the first three within the time of a consent.
func nextFires(c document.Consent, now time.Time) (next []time.Time) {
	s, err := timetable.Parse(c.Schedule)
	if err != nil {
		return nil
	}
	for at := later(now, c.NotBefore.Time()); len(next) < 3; {
		fire, ok := s.Next(at)
		if !ok || fire.After(c.Expires.Time()) {
			break
		}
		next, at = append(next, fire), fire
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (a *Authority) offers(ctx context.Context, member [32]byte, offer []byte) ([]offerRow, error) {
	return list(ctx, a, func(row pgx.CollectableRow) (r offerRow, err error) {
		err = row.Scan(&r.ref, &r.task, &r.digest, &r.state, &r.expires, &r.body, &r.most, &r.variant, &r.variantBody, &r.product, &r.back)
		return r, err
	}, `SELECT ref, task, digest, state, expires_at, body, most, variant, variant_body, product, back FROM nw.show_offers($1, $2)`, member[:], offer)
}

func (a *Authority) keepChoice(ctx context.Context, m Actor, offer, digest, body []byte) error {
	return a.call(ctx, "narrow", m.spent, `SELECT verdict FROM nw.narrow($1, $2, $3, $4, $5, $6, $7, $8, $9)`, m.args(offer, digest, body), nil)
}

func (a *Authority) giveConsent(ctx context.Context, m Actor, offer, digest []byte, fresh [16]byte, t terms) (c api.Consent, err error) {
	text, err := json.Marshal(t)
	if err != nil {
		return c, err
	}
	var ref []byte
	err = a.whileMember(ctx, "consent", m, func(asked time.Time) error {
		return a.call(ctx, "consent", m.spent, `SELECT verdict, consent, coalesce(epoch, 0), coalesce(given_at, 'epoch'), coalesce(expires_at, 'epoch')
			FROM nw.give_consent($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`, m.args(offer, digest, fresh[:], string(text), asked), nil, &ref, &c.ActivationEpoch, &c.GivenAt, &c.ExpiresAt)
	})
	c.Consent = encode(ref)
	return c, err
}
