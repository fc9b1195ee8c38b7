package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// less is what the flags of `offer narrow` say.
type less struct {
	ticked              []int
	amounts, limits     map[string]int64
	dial, until, silent string
}

func (p program) offerNarrow() *cobra.Command {
	var l less
	c := p.personal("narrow OFFER", "Choose to allow less, and see exactly that before you say yes", cobra.ExactArgs(1), func(ctx context.Context, who *person, asJSON bool, args []string) error {
		ref, err := reference("an offer", args[0])
		if err != nil {
			return err
		}
		choice, err := l.choice()
		if err != nil {
			return err
		}
		var o api.Offer
		if err := who.json(ctx, "POST", api.PathOffers+"/"+ref+"/narrow", choice, &o); err != nil {
			return err
		}
		if o.Chosen == nil {
			return errors.New("the authority has not answered with what you have chosen; do not answer this offer, and tell an operator")
		}
		o.Digest, o.Document, o.Most = o.Chosen.Digest, o.Chosen.Document, nil
		consent, err := checkedConsent(o)
		if err != nil {
			return err
		}
		d, err := askReadiness(ctx, who.origin)
		if err != nil {
			d = api.Decision{Reasons: []string{"unknown, its readiness could not be asked"}}
		}
		return p.print(asJSON, o, func(b *strings.Builder) { showOffer(b, o, consent, d, time.Now()) })
	})
	f := c.Flags()
	f.IntSliceVar(&l.ticked, "tick", nil, "`NUMBER` of an optional grant that you want, as `offer show` numbers it")
	f.StringToInt64Var(&l.amounts, "amount", nil, "`GRANT=MOST`: the most of one effect of a grant, in minor units")
	f.StringToInt64Var(&l.limits, "limit", nil, "`NAME=MOST`: a lower limit, such as effects=3 or runtime_s=60")
	f.StringVar(&l.dial, "dial", "", "a lower `RISK` above which you are asked: none, read, low")
	f.StringVar(&l.until, "until", "", "an earlier `END`, such as 2026-12-24 (the beginning of that day in UTC) or 2026-12-24T18:00:00Z")
	f.StringVar(&l.silent, "more", "", "`wait` or stop, when you are asked and do not answer")
	return c
}

func (l less) choice() (api.Choice, error) {
	c := api.Choice{Ticked: l.ticked, Dial: l.dial, WhenMoreIsNeeded: l.silent}
	text, err := json.Marshal(l.limits)
	if err != nil {
		return c, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c.Limits); err != nil {
		return c, errors.New("--limit names a limit that there is not: runtime_s, effects, steps, repeats, spend, effects_day, effects_month, spend_day and spend_month are")
	}
	for grant, most := range l.amounts {
		n, err := strconv.Atoi(grant)
		if err != nil {
			return c, errors.New("--amount names a grant by its number, such as 1=500")
		}
		c.Amounts = append(c.Amounts, api.Amount{Grant: n, Most: most})
	}
	if l.until == "" {
		return c, nil
	}
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(form, l.until); err == nil {
			c.ExpiresAt = at
			return c, nil
		}
	}
	return c, errors.New("--until must be a day or an instant, such as 2026-12-24 or 2026-12-24T18:00:00Z")
}

// showOptional lists what can be ticked. It is not part of what a plain yes allows.
func showOptional(b *strings.Builder, o api.Offer) {
	most, err := document.ParseConsent(o.Most)
	if err != nil {
		return
	}
	b.WriteString("\nOptional, and not allowed unless you tick it\n")
	for i, g := range most.Grants {
		if g.Optional {
			fmt.Fprintf(b, "  number %d, with `nightwarrant offer narrow %s --tick %d`\n", i, o.Offer, i)
			showGrant(b, g, most.Dial)
		}
	}
}
