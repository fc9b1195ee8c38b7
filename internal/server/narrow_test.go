package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// actor is somebody with an envelope, as the console and /v1 hand them to the authority.
func actor(t *testing.T, h *authoritytest.House, name string) authority.Actor {
	t.Helper()
	p := h.Person(name)
	m, err := h.Authority.FromCall(context.Background(), authority.Call{Method: "POST", URL: h.URL + api.PathOffers, Proof: h.Proof(p.Key, "POST", api.PathOffers, p.Envelope)}, p.Envelope)
	require.NoError(t, err)
	return m
}

// choosing offers member-1 a task of which deleting is optional.
func choosing(t *testing.T, h *authoritytest.House) api.Offer {
	t.Helper()
	h.Apply(strings.Replace(h.Task("tidy"), `action: row.delete, resource: "table:entries"`, `action: row.delete, resource: "table:entries", optional: true, pre_approved: [{key: {id: 7}}]`, 1))
	offers, err := h.Authority.Offers(context.Background(), actor(t, h, authoritytest.MemberName), "")
	require.NoError(t, err)
	require.NotEmpty(t, offers)
	return offers[0]
}

func consentIn(t *testing.T, text []byte) document.Consent {
	t.Helper()
	c, err := document.ParseConsent(text)
	require.NoError(t, err)
	return c
}

// Nothing is ticked beforehand: a plain yes takes what is required.
func TestOptionalGrantsStartUnticked(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	o := choosing(t, h)
	assert.Len(t, consentIn(t, o.Document).Grants, 1)
	assert.Len(t, consentIn(t, o.Most).Grants, 2)
	assert.Nil(t, o.Chosen)
	_, err := h.Authority.GiveConsent(context.Background(), actor(t, h, authoritytest.MemberName), o.Offer, api.Answer{Digest: o.Digest})
	require.NoError(t, err)
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consent_grants`))
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.consent_keys`))
}

// Case 38: a choice of more is refused and audited, by whatever part it is more, and nothing has happened.
func TestNarrowRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	o := choosing(t, h)
	for name, c := range map[string]struct {
		who   string
		offer string
		code  api.Code
		c     api.Choice
	}{
		"another person's":     {"member-2", o.Offer, api.NotFound, api.Choice{}},
		"an operator's":        {authoritytest.OperatorName, o.Offer, api.NotFound, api.Choice{}},
		"nobody's":             {authoritytest.MemberName, strings.Repeat("A", 22), api.NotFound, api.Choice{}},
		"no reference":         {authoritytest.MemberName, "../../x", api.NotFound, api.Choice{}},
		"a grant beyond":       {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Ticked: []int{2}}},
		"a required one":       {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Ticked: []int{0}}},
		"an amount":            {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Amounts: []api.Amount{{Grant: 0, Most: 1}}}},
		"an amount, twice":     {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Amounts: []api.Amount{{Grant: 0}, {Grant: 0}}}},
		"a higher limit":       {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Limits: api.Limits{Effects: 6}}},
		"money":                {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Limits: api.Limits{Spend: 1}}},
		"a higher dial":        {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Dial: "high"}},
		"a dial that is none":  {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{Dial: "all"}},
		"a later end":          {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{ExpiresAt: time.Now().AddDate(1, 0, 0)}},
		"an end that has been": {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{ExpiresAt: time.Now().AddDate(-1, 0, 0)}},
		"going on unasked":     {authoritytest.MemberName, o.Offer, api.NotOffered, api.Choice{WhenMoreIsNeeded: "continue"}},
	} {
		before, rows := h.Consumed(), h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'narrow'`)
		_, err := h.Authority.Narrow(context.Background(), actor(t, h, c.who), c.offer, c.c)
		assert.Equal(t, c.code, codeOf(err), name)
		assert.Equal(t, before, h.Consumed(), name)
		if c.code == api.NotOffered {
			assert.True(t, authority.Audited(err), name)
			assert.Equal(t, rows+1, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'narrow'`), name)
		}
	}
	h.Close()
	h.See()
	_, err := h.Authority.Narrow(context.Background(), actor(t, h, authoritytest.MemberName), o.Offer, api.Choice{})
	assert.Equal(t, api.AdmissionClosed, codeOf(err))
}

// What is stored is what was shown, exactly: the offer as it was, or what was chosen of it last, and nothing that was chosen before.
func TestConsentIsToWhatWasChosenLast(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx, o := context.Background(), choosing(t, h)
	me := func() authority.Actor { return actor(t, h, authoritytest.MemberName) }
	first, err := h.Authority.Narrow(ctx, me(), o.Offer, api.Choice{Limits: api.Limits{Effects: 2}})
	require.NoError(t, err)
	end := time.Now().Add(72 * time.Hour).UTC().Truncate(time.Second)
	last, err := h.Authority.Narrow(ctx, me(), o.Offer, api.Choice{Ticked: []int{1}, Limits: api.Limits{Effects: 3, EffectsDay: 9}, Dial: "read", ExpiresAt: end, WhenMoreIsNeeded: "wait"})
	require.NoError(t, err)
	require.NotNil(t, last.Chosen)
	assert.Equal(t, o.Digest, last.Digest, "the offer itself is as it was")
	seen, err := h.Authority.Offers(ctx, me(), o.Offer)
	require.NoError(t, err)
	assert.Equal(t, last.Chosen, seen[0].Chosen)

	before := h.Consumed()
	most := consentIn(t, o.Most)
	wide, err := most.Digest()
	require.NoError(t, err)
	for name, digest := range map[string]string{"chosen before": first.Chosen.Digest, "more than was ticked": wide.String()} {
		_, err = h.Authority.GiveConsent(ctx, me(), o.Offer, api.Answer{Digest: digest})
		assert.Equal(t, api.OfferChanged, codeOf(err), name)
		assert.Equal(t, before, h.Consumed(), name)
	}
	given, err := h.Authority.GiveConsent(ctx, me(), o.Offer, api.Answer{Digest: last.Chosen.Digest})
	require.NoError(t, err)
	assert.Equal(t, end, given.ExpiresAt.UTC())
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consents WHERE max_effects = 3 AND effects_day = 9 AND dial = 1 AND silence = 'wait' AND max_steps = 1000`))
	assert.EqualValues(t, 2, h.Count(`SELECT count(*) FROM nw.consent_grants`))
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consent_keys`))
	_, err = h.Authority.Narrow(ctx, me(), o.Offer, api.Choice{})
	assert.Equal(t, api.OfferEnded, codeOf(err))
}

// The same yes twice has one receipt; when what it gave is over, it is over.
func TestTheSameYesTwice(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx, o := context.Background(), choosing(t, h)
	me := func() authority.Actor { return actor(t, h, authoritytest.MemberName) }
	chosen, err := h.Authority.Narrow(ctx, me(), o.Offer, api.Choice{Limits: api.Limits{Effects: 2}})
	require.NoError(t, err)
	yes := api.Answer{Digest: chosen.Chosen.Digest}
	first, err := h.Authority.GiveConsent(ctx, me(), o.Offer, yes)
	require.NoError(t, err)
	epoch := h.Count(`SELECT activation_epoch FROM nw.lanes`)
	again, err := h.Authority.GiveConsent(ctx, me(), o.Offer, yes)
	require.NoError(t, err)
	assert.Equal(t, first, again)
	assert.Equal(t, epoch, h.Count(`SELECT activation_epoch FROM nw.lanes`), "nothing began anew")
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consents`))
	_, err = h.Authority.GiveConsent(ctx, me(), o.Offer, api.Answer{Digest: o.Digest})
	assert.Equal(t, api.OfferEnded, codeOf(err), "another yes")
	_, err = h.Authority.GiveConsent(ctx, actor(t, h, "member-2"), o.Offer, yes)
	assert.Equal(t, api.NotFound, codeOf(err))
	_, err = h.Authority.Revoke(ctx, me(), o.Task)
	require.NoError(t, err)
	_, err = h.Authority.GiveConsent(ctx, me(), o.Offer, yes)
	assert.Equal(t, api.OfferEnded, codeOf(err))
}
