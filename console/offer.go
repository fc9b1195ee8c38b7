package console

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// offers are the member's; one only when reference is given.
func (v *visit) offers(reference string) ([]api.Offer, error) {
	m, err := v.actor()
	if err != nil {
		return nil, err
	}
	return v.c.Authority.Offers(v.r.Context(), m, reference)
}

func (v *visit) offerLine(o api.Offer, zone *time.Location) offerLine {
	l := offerLine{Offer: o.Offer, Expires: v.at(o.ExpiresAt, zone)}
	var d document.Consent
	if err := json.Unmarshal(o.Document, &d); err == nil {
		l.Title, l.Client, l.Rhythm = theirs(d.Client, d.Title), d.Client, rhythm(d.Schedule)
	}
	return l
}

// offerPage is the consent page: everything that a yes binds, in the order of its parts.
type offerPage struct {
	Offer, Digest string
	State         string
	Product       string // that asks; none: an operator does
	Return        string // the way back to it, once this is answered
	terms
	Fires    []moment
	Clocks   string   // a change of clocks before the last of them
	Optional []grant  // that a plain yes does not give
	Names    string   // the client's title
	Proofs   []string // profiles by which its workloads prove themselves
	Renews   bool     // something was allowed before
	Changes  []change // from that
	Less     []change // of a choice: what differs from the offer
	Chosen   bool     // this is the member's choice
	Closed   closed
	AnswerBy moment
}

// closed is why nothing can be agreed to now; the zero value is that it can.
type closed struct {
	Is  bool
	Why string
}

// gate says whether a yes can be taken now, from this replica's copy of the decision; the verb decides.
func (c *Console) gate() closed {
	d := c.Authority.Gate.Known()
	if d.Open {
		return closed{}
	}
	why := "Not everything that must be well has said so yet."
	switch {
	case d.Held:
		why = "An operator is holding everything closed."
	case d.Family != "":
		why = "This is not well right now: " + d.Family + "."
	}
	return closed{true, why}
}

func (c *Console) offer(v *visit) error { return v.showOffer(false) }

// review shows what the member has chosen of an offer, before the yes.
func (c *Console) review(v *visit) error { return v.showOffer(true) }

func (v *visit) showOffer(chosen bool) error {
	all, err := v.offers(v.reference())
	if err != nil {
		return err
	}
	o := all[0]
	offered, err := document.ParseConsent(o.Document)
	if err != nil {
		return fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	zone, d, digest := v.in(offered.Schedule), offered, o.Digest
	if chosen {
		if o.Chosen == nil {
			return v.see("/offers/%s/less", o.Offer)
		}
		if d, err = document.ParseConsent(o.Chosen.Document); err != nil {
			return fmt.Errorf("a stored choice does not parse: %w", err)
		}
		digest = o.Chosen.Digest
	}
	p := offerPage{Offer: o.Offer, Digest: digest, State: o.State, Product: o.Product, Return: o.ReturnTo, terms: v.termsOf(d, zone), Chosen: chosen, Clocks: clocks(v.now, o.NextFires, zone),
		Closed: v.c.gate(), AnswerBy: v.at(o.ExpiresAt, zone)}
	for _, at := range o.NextFires {
		p.Fires = append(p.Fires, v.at(at, zone))
	}
	if err := p.addTask(v, d, zone); err != nil {
		return err
	}
	title := "May this run?"
	if chosen {
		title, p.Less = "Your choice", changes(linesOf(offered, zone), linesOf(d, zone))
	} else if p.Optional, err = optionalOf(o); err != nil {
		return err
	}
	return v.show(sheet{Name: "offer", Title: title, Here: "tasks", Main: p}, zone)
}

// addTask says who acts in the words of the registry, and what differs from what was allowed last.
func (p *offerPage) addTask(v *visit, d document.Consent, zone *time.Location) error {
	t, err := v.detail(d.Task)
	if err != nil {
		return err
	}
	p.Names = t.Client.Title
	for _, n := range t.Profiles {
		p.Proofs = append(p.Proofs, n.Name)
	}
	if len(t.Consents) == 0 {
		return nil
	}
	was, err := document.ParseConsent(t.Consents[0].Document) // the newest
	if err != nil {
		return fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	p.Renews, p.Changes = true, changes(linesOf(was, zone), linesOf(d, zone))
	return nil
}

// optionalOf is what the offer could give besides, for a tick.
func optionalOf(o api.Offer) ([]grant, error) {
	if len(o.Most) == 0 {
		return nil, nil
	}
	d, err := document.ParseConsent(o.Most)
	if err != nil {
		return nil, fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	var only []document.ConsentGrant
	for _, g := range d.Grants {
		if g.Optional {
			only = append(only, g)
		}
	}
	d.Grants = only
	all := grantsOf(d)
	for i := range all {
		all[i].Cannot = nil
	}
	return all, nil
}

// consent records a yes to exactly what was shown, and shows its receipt.
func (c *Console) consent(v *visit) error {
	answer, err := v.answer()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	given, err := c.Authority.GiveConsent(v.r.Context(), m, v.reference(), answer)
	if err != nil {
		return err
	}
	return v.see("/receipts/%s?offer=%s", given.Consent, v.reference())
}

// decline records a no. It costs as much as a yes: one click.
func (c *Console) decline(v *visit) error {
	answer, err := v.answer()
	if err != nil {
		return err
	}
	m, err := v.actor()
	if err != nil {
		return err
	}
	if err := c.Authority.Decline(v.r.Context(), m, v.reference(), answer); err != nil {
		return err
	}
	v.tell("declined")
	if all, err := v.offers(v.reference()); err == nil && all[0].ReturnTo != "" {
		return v.see("/offers/%s", v.reference()) // from where the way leads back to the product
	}
	return v.see("/")
}
