package worker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// Effect is exactly one intended change.
type Effect struct {
	Key        string // the task's own name for this step: one key, one effect in a run, however often it is asked for
	Guard      string // the guard's URI
	Action     string // a name of the guard's catalogue
	Resource   string // as the guard names it
	Parameters any    // marshals to one JSON object of objects, arrays, strings, booleans and integers; nil is {}
	Amount     int64  // minor units of Currency, 0 for an effect without an amount
	Currency   string // three capital letters; empty exactly when Amount is 0
	RepeatOf   string // reference of the committed effect that this one repeats on purpose
}

// Result is what became of an effect.
type Result struct {
	Outcome string          // api.Committed, api.NotApplied or api.Ambiguous
	Effect  string          // its reference
	Result  json.RawMessage // from the guard; empty when the outcome was learned from the authority
}

// change is an effect as it goes over the wire, fixed before anything is sent.
type change struct {
	key, keyDigest, repeatOf string
	guard, path              string
	details                  string // the authorization_details array
	operation                json.RawMessage
	call                     func(ctx context.Context, p permit, out *operated) error // of the guard; nil posts the operation
}

// operation is the body of a call to a guard.
type operation struct {
	Resource   string          `json:"resource"`
	Parameters json.RawMessage `json:"parameters"`
	Amount     int64           `json:"amount,omitempty"`
	Currency   string          `json:"currency,omitempty"`
}

// operated is a guard's answer.
type operated struct {
	Effect  string          `json:"effect"`
	Outcome string          `json:"outcome"`
	Result  json.RawMessage `json:"result"`
}

// permit is what a mint gave: a capability, or the outcome of a key that is settled.
type permit struct {
	effect  string
	token   capability.Token
	outcome string
}

// change spells the effect canonically, so that everybody who digests it digests the same.
func (e Effect) change() (*change, error) {
	if e.Parameters == nil {
		e.Parameters = struct{}{}
	}
	parameters, err := canonical.CanonicalizeValue(e.Parameters)
	if err == nil {
		err = e.check(parameters)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	detail, err := canonical.CanonicalizeValue(api.Detail{Type: api.DetailTypeEffect, Actions: []string{e.Action}, Locations: []string{e.Guard},
		Identifier: e.Resource, Parameters: parameters, Amount: e.Amount, Currency: e.Currency})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	body, err := canonical.CanonicalizeValue(operation{e.Resource, parameters, e.Amount, e.Currency})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	key := capability.EffectKeyDigest(e.Key)
	return &change{key: e.Key, keyDigest: base64.RawURLEncoding.EncodeToString(key[:]), repeatOf: e.RepeatOf, guard: e.Guard,
		path: "/operations/" + url.PathEscape(e.Action), details: "[" + string(detail) + "]", operation: body}, nil
}

func (e Effect) check(parameters []byte) error {
	if e.Key == "" {
		return errors.New("it has no key")
	}
	digest, _, err := capability.ParamsDigest(parameters)
	if err != nil {
		return err
	}
	return capability.Effect{Guard: e.Guard, Action: e.Action, Resource: e.Resource, ParamsDigest: digest, Amount: e.Amount, Currency: e.Currency}.Check()
}

// Do brings an effect about, once, however often it is asked for under its key, and also after another worker began it.
// A nil error says that it is committed. ErrNotApplied and ErrAmbiguous are outcomes too, and final: Result names them.
//
// Do waits, until ctx or the hold on the run ends, for what passes by itself: a closed gate, an authority or a guard
// that does not answer, an effect that is in flight. A lost answer of a guard is never repeated as it was: the authority
// tells what became of the effect, and only when it was not admitted is it minted anew, which kills the capability that
// may still be under way. When the end comes before the outcome is known, the error is ErrUnknown.
func (r *Run) Do(ctx context.Context, e Effect) (Result, error) {
	c, err := e.change()
	if err != nil {
		return Result{}, err
	}
	return r.bringAbout(ctx, c)
}

func (r *Run) bringAbout(ctx context.Context, c *change) (Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })()
	var open error // why a call to the guard may still be under way
	for n := 0; ; n++ {
		p, err := r.mint(ctx, c)
		switch {
		case err != nil:
			return Result{}, unless(open, err)
		case p.outcome != "":
			return finish(Result{Outcome: p.outcome, Effect: p.effect})
		}
		result, again, err := r.apply(ctx, c, p)
		if again == nil {
			return result, err
		}
		if open = again; needsMint(again) {
			open = nil // the guard has refused it; and a call before that died with this mint
		}
		r.log.Warn("the guard did not take an effect", "effect", p.effect, "error", again)
		if !sleep(ctx, pauseAfter(again, n)) {
			return Result{}, unless(open, because(context.Cause(ctx), again))
		}
	}
}

// unless makes ErrUnknown of an error when a call may still be under way.
func unless(open, err error) error {
	if open == nil {
		return err
	}
	return because(ErrUnknown, err)
}

// finish makes an error of an outcome that is not committed, so that nobody overlooks it.
func finish(result Result) (Result, error) {
	switch result.Outcome {
	case api.Committed:
		return result, nil
	case api.NotApplied:
		return result, ErrNotApplied
	}
	return result, ErrAmbiguous
}

func isOutcome(s string) bool { return s == api.Committed || s == api.NotApplied || s == api.Ambiguous }

// mint asks until there is a capability, an outcome, or a refusal that does not pass by itself.
func (r *Run) mint(ctx context.Context, c *change) (permit, error) {
	var p permit
	err := r.persist(ctx, func() (err error) {
		p, err = r.tryMint(ctx, c)
		return err
	})
	if isOver(err) {
		r.lose(err)
	}
	return p, err
}

// tryMint renews once when admission was closed and reopened, and follows an effect that is in flight.
func (r *Run) tryMint(ctx context.Context, c *change) (permit, error) {
	h := r.read()
	p, err := r.exchange(ctx, c, h.token())
	if dpopclient.Refused(err, api.ReadinessChanged) {
		if err := r.renew(ctx, h.epoch); err != nil {
			return permit{}, err
		}
		p, err = r.exchange(ctx, c, r.read().token())
	}
	if effect := r.effect(c); effect != "" && dpopclient.Refused(err, api.EffectInFlight) {
		outcome, err := r.follow(ctx, effect)
		return permit{effect: effect, outcome: outcome}, err
	}
	return p, err
}

// exchange is one mint. It notes the effect's reference, which an effect in flight is asked for by.
func (r *Run) exchange(ctx context.Context, c *change, token capability.Token) (permit, error) {
	form := r.worker.tokenExchange(url.Values{"resource": {c.guard}, "authorization_details": {c.details}, "effect_key": {c.key}},
		token.Reveal(), api.TokenTypeAccess)
	if c.repeatOf != "" {
		form.Set("repeat_of", c.repeatOf)
	}
	var a api.TokenResponse
	if err := r.identity.authority.PostForm(ctx, api.PathToken, form, &a); err != nil {
		return permit{}, err
	}
	if o := a.Outcome; o != nil && isOutcome(o.State) {
		return permit{effect: o.Effect, outcome: o.State}, nil
	}
	if a.Effect == "" || a.AccessToken == "" || a.TokenType != "DPoP" {
		return permit{}, errMalformed
	}
	r.note(c, a.Effect, a.Left)
	r.worker.guard(r.identity, c.guard).SetNonce(a.GuardNonce)
	return permit{effect: a.Effect, token: capability.Token(a.AccessToken)}, nil
}

func (r *Run) effect(c *change) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hold.effects[c.keyDigest]
}

func (r *Run) note(c *change, effect string, left *api.Left) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if left != nil {
		r.hold.left = *left
	}
	r.hold.effects[c.keyDigest] = effect
}

// apply calls the guard once. again says why the effect must be minted anew: as far as is known it was not admitted.
func (r *Run) apply(ctx context.Context, c *change, p permit) (result Result, again, err error) {
	var a operated
	if c.call != nil {
		err = c.call(ctx, p, &a)
	} else {
		err = r.worker.guard(r.identity, c.guard).JSON(ctx, http.MethodPost, c.path, p.token, c.operation, &a)
	}
	switch {
	case err == nil && a.Effect == p.effect && isOutcome(a.Outcome):
		result, err = finish(Result{Outcome: a.Outcome, Effect: a.Effect, Result: a.Result})
		return result, nil, err
	case err == nil:
		err = errMalformed
	case needsMint(err):
		return Result{}, err, nil
	case isFinal(err):
		return Result{}, nil, typed(err)
	}
	outcome, unknown := r.follow(ctx, p.effect)
	switch {
	case unknown != nil:
		return Result{}, nil, unknown
	case outcome == "":
		return Result{}, err, nil
	}
	result, err = finish(Result{Outcome: outcome, Effect: p.effect})
	return result, nil, err
}

// needsMint tells a guard's refusal after which nothing happened and a new capability may fare better.
func needsMint(err error) bool {
	return dpopclient.Refused(err, api.EffectLapsed, api.InvalidToken, api.FenceStale, api.ReadinessChanged, api.AdmissionClosed, api.TooManyRequests)
}

// isFinal tells a guard's refusal after which nothing happened, as opposed to one that leaves the outcome to be asked for.
func isFinal(err error) bool {
	_, refused := Refused(err)
	return refused && !dpopclient.Unknown(err) && !dpopclient.Refused(err, api.Unavailable, api.TooLate, api.EffectInFlight,
		api.EffectAlreadyAdmitted, api.EffectSettled)
}

var errInFlight = api.Refuse(api.EffectInFlight)

// follow asks the authority for an effect's outcome until it is there, or is "" because the effect was not admitted. It
// answers while admission is closed, too. Every error is ErrUnknown.
func (r *Run) follow(ctx context.Context, effect string) (outcome string, err error) {
	var a api.EffectOutcome
	err = r.persist(ctx, func() error {
		a = api.EffectOutcome{}
		err := r.identity.authority.JSON(ctx, http.MethodGet, api.PathEffects+url.PathEscape(effect), r.read().token(), nil, &a)
		switch {
		case err != nil:
			return err
		case a.Effect != effect:
			return errMalformed
		case a.State == "admitted":
			return errInFlight
		}
		return nil
	})
	switch {
	case err != nil:
		return "", because(ErrUnknown, err)
	case isOutcome(a.State):
		return a.State, nil
	}
	return "", nil
}
