package worker

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

func (w *world) mint(rw http.ResponseWriter, r *http.Request, form url.Values) {
	if err := w.tryMint(rw, r, form); err != nil {
		w.refuse(rw, w.issuer, false, err)
	}
}

func (w *world) tryMint(rw http.ResponseWriter, r *http.Request, form url.Values) error {
	w.lastMint = form
	w.checkForm(r, form, "grant_type", "subject_token", "subject_token_type", "client_id", "resource", "authorization_details", "effect_key", "repeat_of")
	c, err := capability.VerifyRun(capability.Token(form.Get("subject_token")), w, capability.Expectation{Issuer: w.issuer, Now: time.Now()})
	if err != nil {
		return api.Refuse(api.InvalidToken)
	}
	p, err := w.prove(r, w.issuer, w.issuer, "", c.Confirmation.JKT)
	if err != nil {
		return err
	}
	effect, err := w.mintedEffect(form)
	if err != nil {
		return err
	}
	run, now := w.runs[c.Run], time.Now()
	if err := w.hold(run, c); err != nil {
		return err
	}
	digest, err := effect.Digest()
	require.NoError(w.t, err)
	e := run.effects[form.Get("effect_key")]
	switch {
	case !w.open:
		return api.Refuse(api.AdmissionClosed)
	case c.ReadinessEpoch != w.epoch:
		return api.Refuse(api.ReadinessChanged)
	case e != nil && e.digest != digest:
		return api.Refuse(api.EffectKeyConflict)
	case e != nil && e.state == "admitted":
		return api.Refuse(api.EffectInFlight)
	case e != nil && e.state != "minted":
		rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
		writeJSON(rw, api.TokenResponse{Outcome: &api.EffectOutcome{Effect: e.ref, State: e.state}})
		return nil
	case effect.Guard != w.guardURI:
		return api.Refuse(api.InvalidTarget)
	case e == nil && run.effectsLeft == 0:
		return api.Refuse(api.LimitReached)
	}
	if e == nil {
		e = &fakeEffect{ref: reference(), state: "minted", digest: digest}
		run.effects[strings.Clone(form.Get("effect_key"))] = e // which would keep the whole request
		run.effectsLeft--
	}
	e.capability, e.holder, e.expires = reference(), p.Key, now.Add(60*time.Second)
	token, err := capability.SignEffect(w.signer, capability.EffectClaims{Header: w.header(w.guardURI, run, e.capability, now, e.expires.Unix()),
		Binding: w.binding(run, e.expires.Unix()), EffectRef: e.ref, Details: []capability.Detail{capability.DetailOf(effect)}})
	require.NoError(w.t, err)
	rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
	writeJSON(rw, api.TokenResponse{AccessToken: token.Reveal(), TokenType: "DPoP", ExpiresIn: 60, Effect: e.ref, GuardNonce: w.fresh(w.guardURI),
		Left: &api.Left{Effects: run.effectsLeft, WrapUp: hint[run.wrapUp]}})
	return nil
}

// mintedEffect is the effect that a mint request names, spelled exactly.
func (w *world) mintedEffect(form url.Values) (capability.Effect, error) {
	var details []api.Detail
	d := json.NewDecoder(strings.NewReader(form.Get("authorization_details")))
	d.DisallowUnknownFields()
	if d.Decode(&details) != nil || len(details) != 1 || details[0].Type != api.DetailTypeEffect || len(details[0].Actions) != 1 || len(details[0].Locations) != 1 {
		return capability.Effect{}, api.Refuse(api.InvalidAuthorizationDetails)
	}
	detail := details[0]
	digest, canonical, err := capability.ParamsDigest(detail.Parameters)
	if err != nil || string(canonical) != string(detail.Parameters) {
		w.broke("the parameters are not canonical: %s", detail.Parameters)
	}
	if form.Get("resource") != detail.Locations[0] || form.Get("effect_key") == "" {
		return capability.Effect{}, api.Refuse(api.InvalidTarget)
	}
	return capability.Effect{Guard: detail.Locations[0], Action: detail.Actions[0], Resource: detail.Identifier, ParamsDigest: digest,
		Amount: detail.Amount, Currency: detail.Currency}, nil
}

func (w *world) status(rw http.ResponseWriter, r *http.Request) {
	run, _, err := w.holder(r)
	if err != nil {
		w.refuse(rw, w.issuer, true, err)
		return
	}
	rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
	for _, e := range run.effects {
		if api.PathEffects+e.ref == r.URL.EscapedPath() && r.Method == http.MethodGet {
			writeJSON(rw, api.EffectOutcome{Effect: e.ref, State: e.state})
			return
		}
	}
	w.refuse(rw, w.issuer, true, api.Refuse(api.NotFound))
}

// operate is the guard: it verifies, has the effect admitted, applies and settles it at once.
func (w *world) operate(rw http.ResponseWriter, r *http.Request) {
	e, err := w.admit(r)
	if err != nil {
		w.refuse(rw, w.guardURI, true, err)
		return
	}
	e.applied++
	e.state = "committed"
	rw.Header().Set(api.HeaderNonce, w.fresh(w.guardURI))
	writeJSON(rw, operated{Effect: e.ref, Outcome: api.Committed, Result: json.RawMessage(`{"entry":1}`)})
}

func (w *world) admit(r *http.Request) (*fakeEffect, error) {
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return nil, err
	}
	c, err := capability.VerifyEffect(token, w, capability.Expectation{Issuer: w.issuer, Audience: w.guardURI, Now: time.Now()})
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	p, err := w.prove(r, w.guardURI, w.guardURI, token, c.Confirmation.JKT)
	if err != nil {
		return nil, err
	}
	var in operation
	if err := decodeBody(r, &in); err != nil {
		return nil, err
	}
	want, err := c.Effect()
	require.NoError(w.t, err)
	digest, _, err := capability.ParamsDigest(in.Parameters)
	require.NoError(w.t, err)
	_, action, _ := strings.Cut(r.URL.EscapedPath(), "/operations/")
	action, _ = url.PathUnescape(action)
	got := capability.Effect{Guard: w.guardURI, Action: action, Resource: in.Resource, ParamsDigest: digest, Amount: in.Amount, Currency: in.Currency}
	if !got.Equal(want) || r.Method != http.MethodPost {
		w.broke("the request is not the effect that was minted")
		return nil, api.Refuse(api.EffectMismatch)
	}
	run := w.runs[c.Run]
	for _, e := range run.effects {
		if e.ref == c.EffectRef {
			return e, w.admitVerdict(run, e, c, p)
		}
	}
	return nil, api.Refuse(api.WrongGuard)
}

func (w *world) admitVerdict(run *fakeRun, e *fakeEffect, c *capability.EffectClaims, p *capability.Proof) error {
	switch {
	case e.holder != p.Key:
		return api.Refuse(api.WrongKey)
	case e.state == "admitted":
		return api.Refuse(api.EffectAlreadyAdmitted)
	case e.state != "minted":
		return api.Refuse(api.EffectSettled)
	case e.capability != c.ID || c.Fence != run.fence:
		return api.Refuse(api.FenceStale)
	case !w.open:
		return api.Refuse(api.AdmissionClosed)
	case c.ReadinessEpoch != w.epoch:
		return api.Refuse(api.ReadinessChanged)
	case !e.expires.After(time.Now()):
		return api.Refuse(api.EffectLapsed)
	}
	e.admitted++
	e.state = "admitted"
	return nil
}

// admits is a guard that has the effect admitted and then dies: somebody else must settle it.
func (w *world) admits(http.Handler) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if _, err := w.admit(r); err != nil {
			w.broke("admit: %v", err)
		}
		panic(http.ErrAbortHandler)
	})
}

// says is a guard that settles an effect with some outcome and answers that.
func (w *world) says(outcome string) twist {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			defer w.mu.Unlock()
			e, err := w.admit(r)
			if err != nil {
				w.refuse(rw, w.guardURI, true, err)
				return
			}
			e.state = outcome
			rw.Header().Set(api.HeaderNonce, w.fresh(w.guardURI))
			writeJSON(rw, operated{Effect: e.ref, Outcome: outcome})
		})
	}
}
