package server_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// refusedWith sends a request that must be refused with a code, and must leave everything as it was.
func refusedWith(t *testing.T, h *authoritytest.House, code api.Code, send func() authoritytest.Answer) authoritytest.Answer {
	t.Helper()
	before := h.Consumed()
	a := send()
	assert.Equal(t, code, a.Problem().Code, string(a.Body))
	assert.Less(t, a.Status, 500+4, "a refusal is no fault of ours")
	assert.Equal(t, before, h.Consumed(), "a refused request has consumed something")
	return a
}

func codeOf(err error) api.Code {
	var r *api.Refusal
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}

// A2, A16.2: an assertion proves identity only, and only a registered one.
func TestClaimRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	claim := func(reference, assertion string) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			return h.Send(h.Form(h.Key(), authoritytest.ClaimForm(reference, assertion)))
		}
	}
	genuine := h.Assertion(authoritytest.WorkerClaim)
	refusedWith(t, h, api.UnknownRun, claim(authoritytest.NewAttempt(), genuine))
	refusedWith(t, h, api.UnknownRun, claim("not-a-reference", genuine))
	refusedWith(t, h, api.UnknownRun, claim(run, h.Assertion(authoritytest.GuardClaim))) // a registered workload, but not of this role
	refusedWith(t, h, api.InvalidClient, claim(run, h.Assertion("system:serviceaccount:jobs:stranger")))
	refusedWith(t, h, api.InvalidClient, claim(run, genuine[:len(genuine)-4]+"AAAA"))
	refusedWith(t, h, api.InvalidClient, claim(run, "x.y.z"))
	refusedWith(t, h, api.InvalidClient, claim(run, ""))
	for _, kind := range []string{"", "password", api.AssertionJWTSPIFFE} { // the last is for SPIFFE ids only
		refusedWith(t, h, api.InvalidClient, func() authoritytest.Answer {
			form := authoritytest.ClaimForm(run, genuine)
			form.Set("client_assertion_type", kind)
			return h.Send(h.Form(h.Key(), form))
		})
	}
	refusedWith(t, h, api.UnknownRun, func() authoritytest.Answer {
		form := authoritytest.ClaimForm(run, genuine)
		form.Set("client_id", "another")
		return h.Send(h.Form(h.Key(), form))
	})
	h.Claim(run)
}

// A7, P8: one claim wins; the same key gets the same fence again; another key is told when to come back.
func TestOneClaimWins(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	var won, held atomic.Int64
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			key, assertion := h.Key(), h.Assertion(authoritytest.WorkerClaim)
			a := h.Send(h.Form(key, authoritytest.ClaimForm(run, assertion)))
			for a.Problem().Code == api.Unavailable { // on a busy machine a lock may take longer than the role waits: nothing happened, ask again
				a = h.Send(h.Form(key, authoritytest.ClaimForm(run, assertion)))
			}
			switch {
			case a.Status == http.StatusOK:
				won.Add(1)
			case a.Problem().Code == api.Held:
				held.Add(1)
				assert.NotEmpty(t, a.Header.Get("Retry-After"))
			}
		})
	}
	all.Wait()
	assert.EqualValues(t, 1, won.Load())
	assert.EqualValues(t, 11, held.Load())
	assert.EqualValues(t, 1, h.Count(`SELECT fence FROM nw.lanes`))

	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	assertion, key := h.Assertion(authoritytest.WorkerClaim), h.Key()
	var first, again api.TokenResponse
	h.Into(h.Send(h.Form(key, authoritytest.ClaimForm(run, assertion))), &first)
	h.Into(h.Send(h.Form(key, authoritytest.ClaimForm(run, assertion))), &again)
	assert.EqualValues(t, 2, first.Run.Fence)
	assert.Equal(t, first.Run.Fence, again.Run.Fence)
	assert.Equal(t, first.Run.DeadlineUnixMS, again.Run.DeadlineUnixMS, "A6")
	assert.LessOrEqual(t, again.Run.LeaseMS, first.Run.LeaseMS, "asking again makes no lease longer")
}

// A3: the first key that uses an assertion owns it until it expires, for claims and for components.
func TestAnAssertionIsOwned(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	run := h.Plan(task)
	assertion := h.Assertion(authoritytest.WorkerClaim)
	owner := h.Key()
	h.Into(h.Send(h.Form(owner, authoritytest.ClaimForm(run, assertion))), nil)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	a := refusedWith(t, h, api.AssertionBound, func() authoritytest.Answer { return h.Send(h.Form(h.Key(), authoritytest.ClaimForm(run, assertion))) })
	assert.NotEmpty(t, a.Header.Get("Retry-After"))
	h.Into(h.Send(h.Form(owner, authoritytest.ClaimForm(run, assertion))), nil)

	guards := h.Assertion(authoritytest.GuardClaim)
	h.Into(h.Send(h.Form(h.Key(), authoritytest.ComponentForm(authoritytest.GuardName, guards))), nil)
	refusedWith(t, h, api.AssertionBound, func() authoritytest.Answer {
		return h.Send(h.Form(h.Key(), authoritytest.ComponentForm(authoritytest.GuardName, guards)))
	})
}

// A1, B5, B6, A16.1: only what the consent names, at or below its dial, as often as it says.
func TestMintRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	detail := func(change func(d *api.Detail)) url.Values {
		d := api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.append"}, Locations: []string{authoritytest.GuardURI}, Identifier: "table:entries", Parameters: authoritytest.Params("rent")}
		change(&d)
		return authoritytest.MintDetails(w.Token, "book", []api.Detail{d})
	}
	mint := func(form url.Values) func() authoritytest.Answer {
		return func() authoritytest.Answer { return h.Send(h.Form(w.Key, form)) }
	}
	for name, c := range map[string]struct {
		code   api.Code
		change func(d *api.Detail)
	}{
		"another resource": {api.NotGranted, func(d *api.Detail) {
			d.Identifier, d.Parameters = "table:others", json.RawMessage(`{"table":"others","values":{"memo":"x"}}`)
		}},
		"a resource that the parameters do not name": {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Identifier = "table:others" }},
		"an action of no catalogue":                  {api.NotGranted, func(d *api.Detail) { d.Actions = []string{"row.explode"} }},
		"an action that was not granted": {api.NotGranted, func(d *api.Detail) {
			d.Actions, d.Parameters = []string{"row.read"}, json.RawMessage(`{"table":"entries","key":{"id":1}}`)
		}},
		"an amount that was not granted": {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Amount, d.Currency = 5, "EUR" }},
		"a negative amount":              {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Amount, d.Currency = -5, "EUR" }},
		"an amount without currency":     {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Amount = 5 }},
		"two actions":                    {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Actions = []string{"row.append", "row.append"} }},
		"another type":                   {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Type = "payment" }},
		"no parameters":                  {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Parameters = nil }},
		"a digest instead of parameters": {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Parameters, d.ParamsSHA256 = nil, strings.Repeat("A", 43) }},
		"a fraction":                     {api.InvalidAuthorizationDetails, func(d *api.Detail) { d.Parameters = json.RawMessage(`{"table":"entries","values":{"memo":1.5}}`) }},
		"another guard":                  {api.InvalidTarget, func(d *api.Detail) { d.Locations = []string{"http://127.0.0.8/other"} }},
	} {
		t.Run(name, func(t *testing.T) { refusedWith(t, h, c.code, mint(detail(c.change))) })
	}
	other := detail(func(*api.Detail) {})
	other.Set("resource", "http://127.0.0.8/other")
	refusedWith(t, h, api.InvalidTarget, mint(other))
	audience := detail(func(*api.Detail) {})
	audience.Set("audience", "http://127.0.0.8/other")
	refusedWith(t, h, api.InvalidTarget, mint(audience))
	unkeyed := detail(func(*api.Detail) {})
	unkeyed.Del("effect_key")
	refusedWith(t, h, api.InvalidRequest, mint(unkeyed))
	thief := h.Key()
	refusedWith(t, h, api.InvalidToken, func() authoritytest.Answer {
		return h.Send(h.Form(thief, authoritytest.MintForm(w.Token, "book", "rent")))
	})
	g := h.Guard()
	refusedWith(t, h, api.InvalidToken, func() authoritytest.Answer { // a component capability is no run capability
		return h.Send(h.Form(g.Key, authoritytest.MintForm(g.Token, "book", "rent")))
	})
}

// P12: a key names one effect; a committed digest needs repeat_of; a rebound capability kills the older one; ceilings end in an outcome of their own.
func TestEffectKeys(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	g := h.Guard()
	first := w.Minted("book", "rent")
	second := w.Minted("book", "rent")
	assert.Equal(t, first.Effect, second.Effect)
	assert.Equal(t, api.FenceStale, g.Admit(g.Ask(w, first, "rent", authoritytest.NewAttempt())).Problem().Code, "the older capability is dead")
	refusedWith(t, h, api.EffectKeyConflict, func() authoritytest.Answer { return w.Mint("book", "gas") })

	attempt := authoritytest.NewAttempt()
	h.Into(g.Admit(g.Ask(w, second, "rent", attempt)), nil)
	refusedWith(t, h, api.EffectInFlight, func() authoritytest.Answer { return w.Mint("book", "rent") })
	h.Into(g.Settle(second.Effect, attempt, api.Committed), nil)
	refusedWith(t, h, api.EffectRepeated, func() authoritytest.Answer { return w.Mint("once more", "rent") })
	form := authoritytest.MintForm(w.Token, "once more", "rent")
	form.Set("repeat_of", second.Effect)
	h.Into(h.Send(h.Form(w.Key, form)), nil)
	form.Set("repeat_of", authoritytest.NewAttempt())
	form.Set("effect_key", "and again")
	refusedWith(t, h, api.EffectRepeated, func() authoritytest.Answer { return h.Send(h.Form(w.Key, form)) })

	for _, key := range []string{"c", "d", "e"} {
		w.Minted(key, key)
	}
	assert.Equal(t, api.LimitReached, w.Mint("f", "f").Problem().Code)
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "stopped_by_limit", receipt.State)
}

// A4, A9: an effect is good at one guard, for exactly the request that it names, in time, once.
func TestAdmitRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	for name, c := range map[string]struct {
		code   api.Code
		change func(r *api.AdmitRequest)
	}{
		"other parameters":        {api.EffectMismatch, func(r *api.AdmitRequest) { r.Effect.ParamsSHA256 = strings.Repeat("A", 42) + "A" }},
		"another resource":        {api.EffectMismatch, func(r *api.AdmitRequest) { r.Effect.Identifier = "table:others" }},
		"another action":          {api.EffectMismatch, func(r *api.AdmitRequest) { r.Effect.Actions = []string{"row.delete"} }},
		"an amount":               {api.EffectMismatch, func(r *api.AdmitRequest) { r.Effect.Amount, r.Effect.Currency = 1, "EUR" }},
		"another method":          {api.WorkerProof, func(r *api.AdmitRequest) { r.Method = "PUT" }},
		"another path":            {api.WorkerProof, func(r *api.AdmitRequest) { r.Path = "/ledger/operations/row.delete" }},
		"a path beside the guard": {api.WorkerProof, func(r *api.AdmitRequest) { r.Path = "/ledger2/operations/row.append" }},
		"the run capability":      {api.WorkerProof, func(r *api.AdmitRequest) { r.Capability = w.Token.Reveal() }},
		"no proof":                {api.WorkerProof, func(r *api.AdmitRequest) { r.Proof = "" }},
		"a short attempt":         {api.InvalidRequest, func(r *api.AdmitRequest) { r.Attempt = "abc" }},
		"a thief's proof": {api.WorkerProof, func(r *api.AdmitRequest) {
			p, err := capability.NewProof(h.Key(), capability.ProofParams{Method: "POST", URL: authoritytest.GuardURI + "/operations/row.append", Nonce: minted.GuardNonce,
				AccessToken: capability.Token(minted.AccessToken), Now: time.Now()})
			require.NoError(t, err)
			r.Proof = p
		}},
		"a nonce of the authority": {api.WorkerNonce, func(r *api.AdmitRequest) {
			p, err := capability.NewProof(w.Key, capability.ProofParams{Method: "POST", URL: authoritytest.GuardURI + "/operations/row.append", Nonce: h.Nonce(),
				AccessToken: capability.Token(minted.AccessToken), Now: time.Now()})
			require.NoError(t, err)
			r.Proof = p
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
			c.change(&ask)
			refusedWith(t, h, c.code, func() authoritytest.Answer { return g.Admit(ask) })
		})
	}
	ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
	h.Into(g.Admit(ask), nil)
	refusedWith(t, h, api.AttemptMismatch, func() authoritytest.Answer {
		return g.Settle(minted.Effect, authoritytest.NewAttempt(), api.NotApplied)
	})
	refusedWith(t, h, api.WrongGuard, func() authoritytest.Answer { return g.Settle(authoritytest.NewAttempt(), ask.Attempt, api.Committed) })
	refusedWith(t, h, api.InvalidRequest, func() authoritytest.Answer { return g.Settle(minted.Effect, ask.Attempt, "perhaps") })
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Committed), nil)
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Committed), nil) // its answer was lost
	refusedWith(t, h, api.EffectSettled, func() authoritytest.Answer { return g.Settle(minted.Effect, ask.Attempt, api.NotApplied) })

	later := h.Guard() // a new key of the same instance is a new boot
	assert.Equal(t, g.Boot+1, later.Boot)
	refusedWith(t, h, api.BootSuperseded, func() authoritytest.Answer { return g.Settle(minted.Effect, ask.Attempt, api.Committed) })
}

// A5, A16.3, P23: what was issued under an earlier epoch is dead; a reopening is survived by a renewal only.
func TestEpochs(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
	h.Close()
	h.See()
	a := refusedWith(t, h, api.AdmissionClosed, func() authoritytest.Answer { return w.Mint("other", "gas") })
	assert.Equal(t, http.StatusServiceUnavailable, a.Status)
	assert.NotEmpty(t, a.Header.Get("Retry-After"))
	refusedWith(t, h, api.AdmissionClosed, func() authoritytest.Answer { return g.Admit(ask) })
	refusedWith(t, h, api.AdmissionClosed, w.Renew)
	h.Open()
	refusedWith(t, h, api.ReadinessChanged, func() authoritytest.Answer { return g.Admit(ask) })
	refusedWith(t, h, api.ReadinessChanged, func() authoritytest.Answer { return w.Mint("book", "rent") })
	require.Equal(t, http.StatusOK, w.Renew().Status)
	minted = w.Minted("book", "rent")

	require.NoError(t, h.Person(authoritytest.MemberName).JSON("POST", api.PathTasks+"/"+task+"/revoke", struct{}{}, nil))
	refusedWith(t, h, api.AuthorityChanged, func() authoritytest.Answer { return w.Mint("other", "gas") })
	refusedWith(t, h, api.AuthorityChanged, w.Renew)
	refusedWith(t, h, api.AuthorityChanged, func() authoritytest.Answer { return g.Admit(g.Ask(w, minted, "rent", authoritytest.NewAttempt())) })
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.runs WHERE state = 'revoked'`))
}

// A6, A16.7, P9: nothing of a run is admitted after its lease or its deadline, and nothing moves the deadline.
func TestLeaseAndDeadline(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	deadline := w.State.DeadlineUnixMS
	require.Equal(t, http.StatusOK, w.Renew().Status)
	assert.Equal(t, deadline, w.State.DeadlineUnixMS)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	refusedWith(t, h, api.LeaseLost, func() authoritytest.Answer { return w.Mint("other", "gas") })
	refusedWith(t, h, api.LeaseLost, w.Renew)
	refusedWith(t, h, api.LeaseLost, func() authoritytest.Answer { return g.Admit(g.Ask(w, minted, "rent", authoritytest.NewAttempt())) })
	refusedWith(t, h, api.LeaseLost, func() authoritytest.Answer { return w.Settle("succeeded") })
	next := h.Claim(w.Run)
	assert.EqualValues(t, 2, next.State.Fence)
	refusedWith(t, h, api.FenceStale, func() authoritytest.Answer { return w.Mint("other", "gas") })
	refusedWith(t, h, api.FenceStale, func() authoritytest.Answer { return g.Admit(g.Ask(w, minted, "rent", authoritytest.NewAttempt())) })
	refusedWith(t, h, api.FenceStale, func() authoritytest.Answer { return w.Settle("succeeded") })
}

// A10, P16, P17: ambiguous is terminal; its digest is refused in its lane until its owner has recorded a finding; late proof is kept and changes nothing.
func TestAmbiguous(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
	h.Into(g.Admit(ask), nil)
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Ambiguous), nil)
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.runs WHERE state = 'ambiguous'`))
	var late api.EffectOutcome
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Committed), &late)
	assert.Equal(t, api.Ambiguous, late.State)
	assert.True(t, late.Late)

	next := h.Claim(h.Plan(task))
	refusedWith(t, h, api.EffectAmbiguous, func() authoritytest.Answer { return next.Mint("book", "rent") })
	refusedWith(t, h, api.EffectAmbiguous, func() authoritytest.Answer { return next.Mint("another key", "rent") })
	member := h.Person(authoritytest.MemberName)
	var waiting api.Page[api.AmbiguousEffect]
	require.NoError(t, member.Do("GET", api.PathFindings, "", nil, &waiting))
	require.Len(t, waiting.Items, 1)
	assert.Equal(t, []string{"ledger", "row.append", "table:entries", "committed"}, []string{waiting.Items[0].Guard, waiting.Items[0].Action, waiting.Items[0].Resource, waiting.Items[0].Late})
	stranger := h.Person("member-2")
	assert.Equal(t, api.NotFound, codeOf(stranger.JSON("POST", api.PathFindings, api.Finding{Effect: minted.Effect, Finding: "happened"}, nil)))
	require.NoError(t, member.JSON("POST", api.PathFindings, api.Finding{Effect: minted.Effect, Finding: "did_not"}, nil))
	h.Into(next.Mint("book", "rent"), nil)
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.runs WHERE state = 'ambiguous'`), "the finding changes no state")
}

// Settling goes on while the gate is closed: a close must not make finished effects ambiguous.
func TestSettlingWhileClosed(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	g := h.Guard()
	minted := w.Minted("book", "rent")
	ask := g.Ask(w, minted, "rent", authoritytest.NewAttempt())
	h.Into(g.Admit(ask), nil)
	h.Close()
	h.See()
	var unsettled api.Unsettled
	h.Into(h.Send(h.Bearing(g.Key, g.Token, "GET", api.PathUnsettled, nil)), &unsettled)
	require.Len(t, unsettled.Effects, 1)
	assert.Equal(t, ask.Attempt, unsettled.Effects[0].Attempt)
	h.Into(g.Settle(minted.Effect, ask.Attempt, api.Committed), nil)
	h.Into(h.Send(h.Bearing(w.Key, w.Token, "GET", api.PathEffects+minted.Effect, nil)), nil)
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "succeeded", receipt.State)
}

// B1, A1: identity comes from the envelope only; a yes carries the offer's digest and is its addressee's.
func TestConsentRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Apply(h.Task("close-the-day"))
	member := h.Person(authoritytest.MemberName)
	var offers api.Page[api.Offer]
	require.NoError(t, member.Do("GET", api.PathOffers, "", nil, &offers))
	o := offers.Items[0]
	yes := api.PathOffers + "/" + o.Offer + "/consent"
	body, err := json.Marshal(api.Answer{Digest: o.Digest})
	require.NoError(t, err)
	refuse := func(code api.Code, r *http.Request) {
		t.Helper()
		refusedWith(t, h, code, func() authoritytest.Answer { return h.Send(r) })
	}
	refuse(api.InvalidEnvelope, func() *http.Request {
		r := member.Request("POST", yes, "application/json", body)
		r.Header.Del(api.HeaderEnvelope)
		return r
	}())
	refuse(api.InvalidEnvelope, func() *http.Request {
		r := member.Request("POST", yes, "application/json", body)
		r.Header.Add(api.HeaderEnvelope, "x")
		return r
	}())
	now := time.Now()
	nameless := *member
	nameless.Envelope = capability.Token(h.Platform.Token(map[string]any{"sub": authoritytest.MemberName, "aud": authoritytest.Audience, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "jti": "j"}))
	refuse(api.UnknownMember, nameless.Request("POST", yes, "application/json", body))
	refuse(api.NotFound, h.Person("member-2").Request("POST", yes, "application/json", body))
	refuse(api.NotFound, h.Person("member-2").Request("GET", api.PathOffers+"/"+o.Offer, "", nil))
	refuse(api.OfferChanged, member.Request("POST", yes, "application/json", []byte(`{"digest":"`+strings.Repeat("A", 43)+`"}`)))
	refuse(api.InvalidRequest, member.Request("POST", yes, "application/json", []byte(`{"digest":"`+o.Digest+`","member":"somebody"}`)))
	thief := *member
	thief.Key = h.Key()
	refuse(api.AssertionBound, thief.Request("POST", yes, "application/json", body))
	refuse(api.Forbidden, member.Request("POST", api.PathRegistry, "application/yaml", []byte("kind: Client\nname: mine\ntitle: Mine\n")))
	h.Close()
	h.See()
	refuse(api.AdmissionClosed, member.Request("POST", yes, "application/json", body))
	h.Open()
	require.NoError(t, member.JSON("POST", yes, api.Answer{Digest: o.Digest}, nil))
	require.NoError(t, member.JSON("POST", api.PathTasks+"/"+o.Task+"/revoke", nil, nil))
	refuse(api.OfferEnded, member.Request("POST", yes, "application/json", body))
}

// A5: retiring what a consent rests on ends it; a revision never changes.
func TestRegistryRefused(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	operator := h.Person(authoritytest.OperatorName)
	apply := func(yaml string) error {
		return operator.Do("POST", api.PathRegistry, "application/yaml", []byte(yaml), nil)
	}
	assert.Equal(t, api.RevisionImmutable, codeOf(apply("kind: Client\nname: books\ntitle: Another title\n")))
	assert.Equal(t, api.InvalidDocument, codeOf(apply("kind: Client\nname: books\ntitle: T\nextra: 1\n")))
	assert.Equal(t, api.InvalidDocument, codeOf(apply("kind: Guard\nname: own\ntitle: G\ncatalogue: postgres\nuri: "+h.URL+"/x\nprofile: ledger-guard\nprovable: true\nmax_call_ms: 1000\n")))
	assert.Equal(t, api.InvalidDocument, codeOf(apply(strings.Replace(h.Task("wide"), "action: row.append", "action: row.read", 1))))
	assert.Equal(t, api.RevisionImmutable, codeOf(apply(strings.Replace(h.Task("close-the-day"), "Close the day", "Open the day", 1))))
	before := h.Count(`SELECT activation_epoch FROM nw.lanes`)
	var out api.Retirement
	require.NoError(t, operator.JSON("POST", api.PathRetire, api.RetireRequest{Kind: "WorkloadRole", Name: "bookkeeper", Revision: 1}, &out))
	assert.EqualValues(t, 1, out.Tasks)
	assert.Greater(t, h.Count(`SELECT activation_epoch FROM nw.lanes`), before)
	assert.Equal(t, api.AuthorityChanged, w.Mint("book", "rent").Problem().Code)
	assert.Equal(t, api.Retired, codeOf(operator.JSON("POST", api.PathRetire, api.RetireRequest{Kind: "WorkloadRole", Name: "bookkeeper", Revision: 1}, nil)))
}

// Malformed input of every kind has a stable code, the right status, and is never a 5xx.
func TestBadInput(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	g := h.Guard()
	bearing := func(method, path, kind, body string) *http.Request {
		r := h.Bearing(g.Key, g.Token, method, path, nil)
		with := h.Request(method, path, kind, []byte(body))
		with.Header.Set("Authorization", r.Header.Get("Authorization"))
		with.Header.Set("DPoP", r.Header.Get("DPoP"))
		return with
	}
	for name, c := range map[string]struct {
		status int
		code   api.Code
		make   func() *http.Request
	}{
		"an unknown path":      {404, api.NotFound, func() *http.Request { return h.Request("GET", "/v2/token", "", nil) }},
		"another method":       {405, api.MethodNotAllowed, func() *http.Request { return h.Request("DELETE", api.PathToken, "", nil) }},
		"another content type": {415, api.UnsupportedMediaType, func() *http.Request { return h.Request("POST", api.PathToken, "text/plain", []byte("x")) }},
		"JSON as a form":       {415, api.UnsupportedMediaType, func() *http.Request { return bearing("POST", api.PathNonces, "text/json", `{"count":1}`) }},
		"broken JSON":          {400, api.InvalidRequest, func() *http.Request { return bearing("POST", api.PathNonces, "application/json", `{"count":`) }},
		"an unknown member": {400, api.InvalidRequest, func() *http.Request {
			return bearing("POST", api.PathNonces, "application/json", `{"count":1,"more":1}`)
		}},
		"a member twice": {400, api.InvalidRequest, func() *http.Request {
			return bearing("POST", api.PathNonces, "application/json", `{"count":1,"count":2}`)
		}},
		"a member in capitals": {400, api.InvalidRequest, func() *http.Request { return bearing("POST", api.PathNonces, "application/json", `{"Count":1}`) }},
		"too many nonces":      {400, api.InvalidRequest, func() *http.Request { return bearing("POST", api.PathNonces, "application/json", `{"count":65}`) }},
		"a huge body": {413, api.PayloadTooLarge, func() *http.Request {
			return bearing("POST", api.PathNonces, "application/json", `{"count":1`+strings.Repeat(" ", 70000)+`}`)
		}},
		"a parameter twice": {400, api.InvalidRequest, func() *http.Request {
			return h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte("grant_type=a&grant_type=b"))
		}},
		"a broken form": {400, api.InvalidRequest, func() *http.Request {
			return h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte("a=%zz"))
		}},
		"Basic authentication": {401, api.InvalidClient, func() *http.Request {
			r := h.Form(h.Key(), authoritytest.ComponentForm("ledger", "x"))
			r.Header.Set("Authorization", "Basic YTpi")
			return r
		}},
		"an unknown family": {404, api.UnknownFamily, func() *http.Request {
			return bearing("PUT", api.PathReports+"weather", "application/json", `{"sequence":1,"healthy":true,"age_ms":0,"protocol":1}`)
		}},
		"a report of the future": {400, api.InvalidRequest, func() *http.Request {
			return bearing("PUT", api.PathReports+"guards", "application/json", `{"sequence":1,"healthy":true,"age_ms":-5,"protocol":1}`)
		}},
		"a stale report": {400, api.InvalidRequest, func() *http.Request {
			return bearing("PUT", api.PathReports+"guards", "application/json", `{"sequence":1,"healthy":true,"age_ms":99999,"protocol":1}`)
		}},
		"a long challenge": {400, api.InvalidRequest, func() *http.Request {
			return h.Request("GET", api.PathReadiness+"?challenge="+strings.Repeat("a", 200), "", nil)
		}},
		"two challenges": {400, api.InvalidRequest, func() *http.Request { return h.Request("GET", api.PathReadiness+"?challenge=a&challenge=b", "", nil) }},
		"a double slash": {404, api.NotFound, func() *http.Request { return h.Request("GET", "/"+api.PathJWKS, "", nil) }},
		"dot segments":   {404, api.NotFound, func() *http.Request { return h.Request("GET", "/v1/.."+api.PathJWKS, "", nil) }},
		"a broken cursor": {400, api.InvalidRequest, func() *http.Request {
			return h.Person(authoritytest.MemberName).Request("GET", api.PathRuns+"?cursor=%2F%2F", "", nil)
		}},
		"an effect of nobody": {401, api.InvalidToken, func() *http.Request { return bearing("GET", api.PathEffects+"x", "", "") }},
	} {
		t.Run(name, func(t *testing.T) {
			request := c.make()
			a := refusedWith(t, h, c.code, func() authoritytest.Answer { return h.Send(request) })
			assert.Equal(t, c.status, a.Status, string(a.Body))
			media := "application/problem+json"
			if request.URL.Path == api.PathToken {
				media = "application/json"
			}
			assert.Equal(t, media, a.Header.Get("Content-Type"))
			assert.Equal(t, a.Status, a.Problem().Status)
			assert.NotEmpty(t, a.Problem().ErrorDescription)
			assert.NotEmpty(t, a.Problem().Retry)
		})
	}
}

// A missing dependency is 503 with Retry-After, and nothing happened.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("close-the-day")))
	request := h.Form(h.Key(), authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim)))
	h.See()
	h.Pool.Close()
	a := h.Send(request)
	assert.Equal(t, http.StatusServiceUnavailable, a.Status)
	assert.NotEmpty(t, a.Header.Get("Retry-After"))
	assert.Equal(t, api.After, a.Problem().Retry)
	assert.EqualValues(t, 0, h.Count(`SELECT count(*) FROM nw.runs WHERE state = 'claimed'`))
	assert.Eventually(t, func() bool {
		return h.Send(h.Request("GET", "/readyz", "", nil)).Status == http.StatusServiceUnavailable
	}, 10*time.Second, 20*time.Millisecond)
	var d api.Decision
	h.Into(h.Send(h.Request("GET", api.PathReadiness+"?challenge=abc", "", nil)), &d)
	assert.False(t, d.Open)
	assert.Equal(t, "abc", d.Challenge)
	assert.Equal(t, http.StatusOK, h.Send(h.Request("GET", "/healthz", "", nil)).Status)
}

// Every route is either gated or on the list of what stays possible while the gate is closed (design.md §3).
func TestEveryRouteIsOnOneSide(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	open := map[string]bool{}
	for _, r := range []string{"GET " + api.PathMetadata, "GET " + api.PathJWKS, "POST " + api.PathNonces, "POST " + api.PathSettleRun, "POST " + api.PathSettle, "GET " + api.PathUnsettled,
		"GET " + api.PathEffects + "{reference}", "GET " + api.PathReadiness, "GET " + api.PathOpenAPI, "PUT " + api.PathReports + "{family}", "GET " + api.PathOffers, "GET " + api.PathOffers + "/{reference}",
		"POST " + api.PathOffers + "/{reference}/decline", "GET " + api.PathTasks, "POST " + api.PathTasks + "/{reference}/revoke", "POST " + api.PathTasks + "/{reference}/cut-off",
		"GET " + api.PathRuns, "GET " + api.PathDecisions, "GET " + api.PathDecisions + "/{reference}", "POST " + api.PathDecisions + "/{reference}/deny", "GET " + api.PathFindings, "POST " + api.PathFindings, "POST " + api.PathRetire, "POST " + api.PathWithdraw,
		"GET " + api.PathConsents, "GET " + api.PathConsents + "/{reference}", "GET " + api.PathTasks + "/{reference}", "GET " + api.PathTasks + "/{reference}/dry-run",
		"GET " + api.PathTasks + "/{reference}/revocation", "GET " + api.PathRuns + "/{reference}", "GET " + api.PathRuns + "/{reference}/receipt", "GET " + api.PathAudit + "/runs/{reference}/receipt", "GET " + api.PathNotices, "PUT " + api.PathNotices, "GET " + api.PathRegistry + "/{kind}", "GET " + api.PathRegistry + "/{kind}/{name}",
		"GET " + api.PathCutOff, "POST " + api.PathCutOff, "GET " + api.PathAllTasks, "GET " + api.PathStranded, "GET " + api.PathBoard, "GET " + api.PathDeployment, "GET " + api.PathRequirements, "GET " + api.PathAudit, "GET " + api.PathAuditExport,
		"GET " + api.PathOffers + "/{reference}/answer", "POST " + api.PathOffers + "/{reference}/withdraw", "GET " + api.PathConsents + "/{reference}/state", "POST " + api.PathConsents + "/{reference}/end",
		"GET /healthz", "GET /readyz"} {
		open[r] = true
	}
	seen := 0
	for _, r := range h.Server.Routes() {
		name := r.Method + " " + r.Path
		assert.NotEqual(t, r.Gated, open[name], "%s is on neither side or on both", name)
		seen++
	}
	assert.Greater(t, seen, 25)
}
