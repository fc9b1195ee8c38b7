package authority

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

// MintRequest asks for the capability of one exact effect.
type MintRequest struct {
	Token    capability.Token // run capability
	Resource string           // the guard's URI (RFC 8707)
	Details  string           // authorization_details, JSON
	Key      string           // the task's name for this step, 1 to 128 bytes
	RepeatOf string           // reference of a committed effect that this one repeats on purpose
}

// Mint names one exact effect and gives its capability, or the recorded outcome
// of a key that is settled (P12).
func (a *Authority) Mint(ctx context.Context, c Call, r MintRequest) (api.TokenResponse, error) {
	claims, run, p, err := a.holder(c, r.Token, "")
	if err != nil {
		return api.TokenResponse{}, err
	}
	effect, action, parameters, err := a.exact(r)
	if err != nil {
		return api.TokenResponse{}, err
	}
	h := a.header(claims.Lane, claims.ClientID, p.key)
	h.Audience = effect.Guard
	m := mintArgs{ref: newReference(), key: capability.EffectKeyDigest(r.Key), guard: uriDigest(effect.Guard), action: actionDigest(effect.Action),
		resource: resourceDigest(effect.Resource), amount: effect.Amount, currency: currencyDigest(effect.Currency),
		risk: int16(action.Risk), capability: h.Digest(), decision: newReference()}
	if key, ok := action.Key(parameters); ok {
		d := canonical.Digest(canonical.DomainApproved, key)
		m.approved = &d
	}
	if m.arguments, err = argumentsOf(effect, parameters); err != nil {
		return api.TokenResponse{}, api.Refuse(api.InvalidAuthorizationDetails)
	}
	if m.digest, err = effect.Digest(); err != nil {
		return api.TokenResponse{}, api.Refuse(api.InvalidAuthorizationDetails)
	}
	if r.RepeatOf != "" {
		var ok bool
		if m.repeatOf, ok = decode(r.RepeatOf, 16); !ok {
			return api.TokenResponse{}, api.Refuse(api.EffectRepeated)
		}
	}
	if err := a.refuseEarly(); err != nil {
		return api.TokenResponse{}, err
	}
	row, err := a.mint(ctx, claims, run, p, m)
	if r, ok := errors.AsType[*api.Refusal](err); ok {
		r.Ceiling = deref(row.ceiling)
		if r.Code == api.ApprovalRequired {
			r.Decision = encode(row.decision)
		}
	}
	if err != nil {
		return api.TokenResponse{}, err
	}
	if row.state != "minted" {
		return api.TokenResponse{Effect: encode(row.effect), TokenType: "DPoP",
			Outcome: &api.EffectOutcome{Effect: encode(row.effect), State: row.state, Digest: encode(row.digest)}}, nil
	}
	return a.effectCapability(h, claims, effect, row)
}

func (a *Authority) effectCapability(h capability.Header, run *capability.RunClaims, e capability.Effect, row mintRow) (api.TokenResponse, error) {
	h.IssuedAt, h.Expires = a.expiry(effectLifetime, row.deadline)
	if h.Expires <= h.IssuedAt {
		return api.TokenResponse{}, api.Refuse(api.DeadlinePassed)
	}
	ref := encode(row.effect)
	detail := capability.DetailOf(e)
	token, err := capability.SignEffect(a.signing(&h), capability.EffectClaims{Header: h, Binding: run.Binding, EffectRef: ref, Details: []capability.Detail{detail}})
	if err != nil {
		return api.TokenResponse{}, err
	}
	left := row.left.view(row.deadline.Sub(a.Now()).Milliseconds())
	return a.answer(token, h, api.TokenResponse{Effect: ref, Left: &left, GuardNonce: a.Keys().Nonces().Mint(e.Guard), Details: []api.Detail{{
		Type: detail.Type, Actions: detail.Actions, Locations: detail.Locations, Identifier: detail.Identifier,
		ParamsSHA256: detail.ParamsSHA256, Amount: detail.Amount, Currency: detail.Currency}}}), nil
}

// exact reads the one effect of a mint request, its action and its parameters.
// The authority checks these against the action's schema and computes their
// digest itself.
func (a *Authority) exact(r MintRequest) (e capability.Effect, action catalogue.Action, params json.RawMessage, err error) {
	d, err := oneDetail(r.Details)
	if err != nil {
		return e, action, nil, err
	}
	if r.Key == "" || len(r.Key) > 128 {
		return e, action, nil, api.Refusef(api.InvalidRequest, "effect_key must be 1 to 128 bytes: the task's own name for this step.")
	}
	actions, ok := a.registry.now().actionsAt(r.Resource)
	if !ok || d.Locations[0] != r.Resource {
		return e, action, nil, api.Refuse(api.InvalidTarget)
	}
	if action, ok = actions[d.Actions[0]]; !ok {
		return e, action, nil, api.Refuse(api.NotGranted) // an action that is not listed does not exist
	}
	digest, params, err := capability.ParamsDigest(d.Parameters)
	if err != nil {
		return e, action, nil, api.Refusef(api.InvalidAuthorizationDetails, "parameters must be a JSON object of strings, booleans and whole numbers.")
	}
	if t, err := action.Target(params); err != nil || t != (catalogue.Target{Resource: d.Identifier, Amount: d.Amount, Currency: d.Currency}) {
		return e, action, nil, api.Refusef(api.InvalidAuthorizationDetails, "parameters do not fit the action, or name another resource or amount.")
	}
	e = capability.Effect{Guard: r.Resource, Action: d.Actions[0], Resource: d.Identifier, ParamsDigest: digest, Amount: d.Amount, Currency: d.Currency}
	if e.Check() != nil {
		return e, action, nil, api.Refuse(api.InvalidAuthorizationDetails)
	}
	return e, action, params, nil
}

// oneDetail reads authorization_details: exactly one object, with no member
// that we do not know (RFC 9396 §5). Its parameters stay as they were spelled:
// their names are the action's, in any case.
func oneDetail(text string) (d api.Detail, err error) {
	bad := api.Refuse(api.InvalidAuthorizationDetails)
	if len(text) > canonical.MaxSize {
		return d, bad
	}
	n := 0
	// An array is no document of its own, so it is read as the one member of one.
	err = canonical.Members([]byte(`{"details":`+text+`}`), func(name []byte, v canonical.Value) error {
		if string(name) != "details" {
			return bad
		}
		return canonical.Elements(v, func(v canonical.Value) error {
			n++
			return canonical.Members(v.Raw, func(name []byte, v canonical.Value) error { return readDetail(&d, string(name), v) })
		})
	})
	if err != nil || n != 1 || d.Type != api.DetailTypeEffect || len(d.Actions) != 1 || len(d.Locations) != 1 || d.Parameters == nil {
		return d, bad
	}
	return d, nil
}

func readDetail(d *api.Detail, name string, v canonical.Value) error {
	var ok bool
	switch name {
	case "type":
		d.Type, ok = v.Text()
	case "actions":
		d.Actions, ok = texts(v)
	case "locations":
		d.Locations, ok = texts(v)
	case "identifier":
		d.Identifier, ok = v.Text()
	case "parameters":
		d.Parameters, ok = v.Raw, v.IsObject()
	case "amount":
		d.Amount, ok = v.Int()
	case "currency":
		d.Currency, ok = v.Text()
	}
	if !ok {
		return api.Refuse(api.InvalidAuthorizationDetails)
	}
	return nil
}

func texts(v canonical.Value) (all []string, ok bool) {
	ok = true
	err := canonical.Elements(v, func(v canonical.Value) error {
		text, isText := v.Text()
		all, ok = append(all, text), ok && isText
		return nil
	})
	return all, ok && err == nil
}

// Admit consumes an effect for one attempt of its guard and gives the go-ahead
// (A9, P13). It verifies again everything that the guard has verified.
func (a *Authority) Admit(ctx context.Context, c Call, token capability.Token, r api.AdmitRequest) (api.Admission, error) {
	g, gp, err := a.caller(c, token)
	if err != nil {
		return api.Admission{}, err
	}
	uri, ok := a.guardURI(g)
	if !ok {
		return api.Admission{}, api.Refuse(api.WrongGuard)
	}
	attempt, ok := decode(r.Attempt, 16)
	if !ok {
		return api.Admission{}, api.Refusef(api.InvalidRequest, "attempt must be 128 random bits, base64url.")
	}
	effect, claims, p, err := a.presented(r, uri)
	if err != nil {
		return api.Admission{}, err
	}
	digest, err := effect.Digest()
	if err != nil {
		return api.Admission{}, api.Refuse(api.EffectMismatch)
	}
	ref, ok := decode(claims.EffectRef, 16)
	if !ok {
		return api.Admission{}, api.Refuse(api.WorkerProof)
	}
	row, err := a.admit(ctx, g, gp, claims, ref, attempt, digest, p)
	if err != nil {
		return api.Admission{}, err
	}
	return api.Admission{Effect: claims.EffectRef, Run: encode(row.run), Lane: encode(row.task), Fence: row.fence, ApplyWithinMS: row.withinMS,
		Number: row.number, WorkerNonce: a.Keys().Nonces().Mint(uri)}, nil
}

// presented verifies what the worker brought to the guard, and that the effect
// that the guard built from the request is the one that the capability names.
func (a *Authority) presented(r api.AdmitRequest, uri string) (e capability.Effect, claims *capability.EffectClaims, p spent, err error) {
	expect := a.expectation()
	expect.Audience = uri
	token := capability.Token(r.Capability)
	claims, err = capability.VerifyEffect(token, a.Keys(), expect)
	if err != nil {
		return e, nil, p, api.Refuse(api.WorkerProof)
	}
	target, ok := under(uri, r.Path)
	if !ok {
		return e, nil, p, api.Refuse(api.WorkerProof)
	}
	p, err = a.check(r.Proof, uri, capability.Expect{Method: r.Method, URL: target, AccessToken: token, Holder: claims.Confirmation.JKT})
	if err != nil {
		return e, nil, p, workersFault(err)
	}
	p.capability = claims.Generation
	named, err := claims.Effect()
	if err != nil {
		return e, nil, p, api.Refuse(api.WorkerProof)
	}
	if e, ok = effectOf(r.Effect); !ok || !e.Equal(named) {
		return e, nil, p, api.Refuse(api.EffectMismatch)
	}
	return e, claims, p, nil
}

// workersFault keeps a worker's trouble apart from the guard's own: only the
// guard's own may look like a challenge to the guard.
func workersFault(err error) error {
	if r := new(api.Refusal); errors.As(err, &r) && r.Code == api.UseDPoPNonce {
		return api.Refuse(api.WorkerNonce)
	}
	return api.Refuse(api.WorkerProof)
}

// under joins a path to a guard's URI when it lies under it.
func under(uri, path string) (string, bool) {
	u, err := url.Parse(uri)
	if err != nil || !strings.HasPrefix(path, "/") || len(path) > 1024 {
		return "", false
	}
	base := strings.TrimSuffix(u.EscapedPath(), "/")
	if path != base && !strings.HasPrefix(path, base+"/") {
		return "", false
	}
	return u.Scheme + "://" + u.Host + path, true
}

// effectOf reads the effect that a guard built from a request.
func effectOf(d api.Detail) (capability.Effect, bool) {
	if d.Type != api.DetailTypeEffect || len(d.Actions) != 1 || len(d.Locations) != 1 || d.Parameters != nil {
		return capability.Effect{}, false
	}
	params, ok := decode(d.ParamsSHA256, 32)
	if !ok {
		return capability.Effect{}, false
	}
	e := capability.Effect{Guard: d.Locations[0], Action: d.Actions[0], Resource: d.Identifier, ParamsDigest: [32]byte(params), Amount: d.Amount, Currency: d.Currency}
	return e, e.Check() == nil
}

// SettleEffect records the outcome of an admitted effect. It is always possible (P16).
func (a *Authority) SettleEffect(ctx context.Context, c Call, token capability.Token, r api.SettleEffectRequest) (api.EffectOutcome, error) {
	g, p, err := a.caller(c, token)
	if err != nil {
		return api.EffectOutcome{}, err
	}
	effect, ok := decode(r.Effect, 16)
	attempt, ok2 := decode(r.Attempt, 16)
	known := r.Outcome == api.Committed || r.Outcome == api.NotApplied || r.Outcome == api.Ambiguous
	if !ok || !ok2 || !known {
		return api.EffectOutcome{}, api.Refusef(api.InvalidRequest, "Name the effect, the admitted attempt and one of committed, not_applied, ambiguous.")
	}
	if r.Spent != nil && (*r.Spent < 0 || *r.Spent > catalogue.MaxAmount) {
		return api.EffectOutcome{}, api.Refusef(api.InvalidRequest, "spent must be whole minor units, not negative.")
	}
	s := settlement{effect: effect, attempt: attempt, outcome: r.Outcome, spent: r.Spent}
	if err := a.evidence(&s, g, r.Evidence); err != nil {
		return api.EffectOutcome{}, err
	}
	row, err := a.settleEffect(ctx, g, p, s)
	if err != nil {
		return api.EffectOutcome{}, err
	}
	return row.outcome(), nil
}

// maxState bounds what is kept of a look at a destination, in bytes.
const maxState = 16 << 10

var answers = []string{api.AnsweredNothing, api.AnsweredTimeout, api.AnsweredConnection, api.AnsweredStatus, api.AnsweredMalformed, api.AnsweredUnknown}

// evidence reads what a guard knows about an ambiguous effect. The arguments are
// kept only if they are those of the effect: the verb compares the digest.
func (a *Authority) evidence(s *settlement, g component, e *api.Evidence) error {
	if e == nil || s.outcome != api.Ambiguous {
		return nil
	}
	bad := api.Refusef(api.InvalidRequest, "evidence must say what answered, and when something was sent.")
	if !slices.Contains(answers, e.Answered) || (e.Answered == api.AnsweredStatus) != (e.Status != 0) || e.Status != 0 && (e.Status < 100 || e.Status > 599) || e.SentUnixMS < 0 || e.SentUnixMS > 1<<48 {
		return bad
	}
	s.answered = &e.Answered
	if e.Answered == api.AnsweredStatus {
		status := int16(e.Status) //nolint:gosec // at most 599
		s.status = &status
	}
	if e.SentUnixMS > 0 {
		at := time.UnixMilli(e.SentUnixMS)
		s.sentAt = &at
	}
	if e.State != nil {
		state, err := canonical.Canonicalize(e.State)
		if err != nil || len(state) > maxState || state[0] != '{' {
			return bad
		}
		s.state = state
	}
	uri, ok := a.guardURI(g)
	if e.Parameters == nil || !ok {
		return nil
	}
	digest, params, err := capability.ParamsDigest(e.Parameters)
	if err != nil {
		return bad
	}
	effect := capability.Effect{Guard: uri, Action: e.Action, Resource: e.Resource, ParamsDigest: digest, Amount: e.Amount, Currency: e.Currency}
	whole, err := effect.Digest()
	if err != nil {
		return bad
	}
	s.digest = whole[:]
	if s.arguments, err = argumentsOf(effect, params); err != nil {
		return bad
	}
	return nil
}

func (r outcomeRow) outcome() api.EffectOutcome {
	return api.EffectOutcome{Effect: encode(r.effect), State: r.state, Digest: encode(r.digest), Late: r.late}
}

// EffectStatus tells the holder of a run, or the key that minted it, what is
// recorded about an effect (P20): also while closed and after the end.
func (a *Authority) EffectStatus(ctx context.Context, c Call, token capability.Token, reference string) (api.EffectOutcome, error) {
	_, run, p, err := a.holder(c, token, token)
	if err != nil {
		return api.EffectOutcome{}, err
	}
	effect, ok := decode(reference, 16)
	if !ok {
		return api.EffectOutcome{}, api.Refuse(api.NotFound)
	}
	row, err := a.effectForHolder(ctx, run, effect, p)
	if err != nil {
		return api.EffectOutcome{}, err
	}
	return row.outcome(), nil
}

// maxUnsettled bounds one page of unsettled effects.
const maxUnsettled = 100

// Unsettled lists the admitted effects that the calling guard must prove or tombstone (P15).
func (a *Authority) Unsettled(ctx context.Context, c Call, token capability.Token) (api.Unsettled, error) {
	g, p, err := a.caller(c, token)
	if err != nil {
		return api.Unsettled{}, err
	}
	rows, err := a.unsettled(ctx, g, p, maxUnsettled)
	if err != nil {
		return api.Unsettled{}, err
	}
	out := api.Unsettled{Effects: make([]api.UnsettledEffect, len(rows))}
	for i, r := range rows {
		out.Effects[i] = api.UnsettledEffect{Effect: reencode(r.Ref), Attempt: reencode(r.Attempt), Lane: reencode(r.Lane), Fence: r.Fence,
			ApplyLeftMS: r.ApplyLeftMS, SettleLeftMS: r.SettleLeftMS}
	}
	return out, nil
}
