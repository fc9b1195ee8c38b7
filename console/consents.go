package console

import (
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// consentLine is a consent in a list.
type consentLine struct {
	Consent, Task string
	Title         foreign
	Who           string
	State         state
	Given, Until  moment
	Ended         moment
}

var consentStates = map[string]state{
	"active":     {"yes", "Allowed", "good"},
	"superseded": {"no", "Replaced by a later yes", "calm"},
	"revoked":    {"no", "Stopped", "calm"},
	"expired":    {"no", "Its time has passed", "calm"},
}

func (v *visit) consentLine(c api.ConsentRecord, zone *time.Location) consentLine {
	l := consentLine{Consent: c.Consent, Task: c.Task, Title: theirs(c.Client, c.Title), Who: fmt.Sprintf("%s of %s, revision %d", c.Role, c.Client, c.RoleRevision),
		State: stateOf(consentStates, c.State), Given: v.at(c.GivenAt, zone), Until: v.at(c.ExpiresAt, zone)}
	if c.EndedAt != nil {
		l.Ended = v.at(*c.EndedAt, zone)
	}
	return l
}

// actingPage is everything that can act as the member, and what could within two years.
type actingPage struct {
	Now, Before []consentLine
	Next        string
}

func (c *Console) acting(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	page, err := c.Authority.Consents(v.r.Context(), m, v.r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	zone := v.in(schedulesOf(page.Items)...)
	p := actingPage{Next: page.Next}
	for _, one := range page.Items {
		if l := v.consentLine(one, zone); one.State == "active" {
			p.Now = append(p.Now, l)
		} else {
			p.Before = append(p.Before, l)
		}
	}
	return v.show(sheet{Name: "acting", Title: "What can act as you", Here: "acting", Main: p}, zone)
}

// receiptPage is what was agreed to, whole, to be kept.
type receiptPage struct {
	Line consentLine
	terms
	Digest string
	Active bool
	Return string // the product's page to go back to
}

func (c *Console) receipt(v *visit) error {
	m, err := v.actor()
	if err != nil {
		return err
	}
	r, err := c.Authority.Consent(v.r.Context(), m, v.reference())
	if err != nil {
		return err
	}
	d, err := document.ParseConsent(r.Document)
	if err != nil {
		return fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	zone := v.in(d.Schedule)
	p := receiptPage{Line: v.consentLine(r, zone), terms: v.termsOf(d, zone), Digest: r.Digest, Active: r.State == "active"}
	if offer := v.r.URL.Query().Get("offer"); offer != "" { // that was answered just now
		if all, err := v.offers(offer); err == nil && all[0].Task == r.Task {
			p.Return = all[0].ReturnTo
		}
	}
	return v.show(sheet{Name: "receipt", Title: "Receipt", Here: "acting", Main: p}, zone)
}
