package guards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

const (
	operations   = "/operations/"
	readTimeout  = 10 * time.Second // of a worker's request
	callTimeout  = 2 * time.Second  // of one call to the authority
	slotPatience = time.Second
	admitTries   = 3
	admitPause   = 50 * time.Millisecond
	applyGrace   = 15 * time.Second // beyond the time to apply, to learn what became of a commit; see Config.Longest
)

// Answer is the body of an operation that was admitted.
type Answer struct {
	Effect  string          `json:"effect"`
	Outcome Outcome         `json:"outcome"`
	Result  json.RawMessage `json:"result,omitempty"`
	Reason  api.Code        `json:"reason,omitempty"` // why it was not applied
}

// ServeHTTP compares the path as it was sent: nothing is cleaned, decoded or redirected.
func (g *Guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	e, ok := g.entryOf(path)
	if ok && e.route != nil {
		maps.Copy(w.Header(), e.route.Header)
	}
	defer func() {
		if p := recover(); p != nil { // of an operation's check; what was admitted has its own, see apply
			g.refuse(w, r, e.route, fmt.Errorf("guards: a request panicked: %T", p))
		}
	}()
	switch {
	case path == api.PathResource+g.path:
		g.serveMetadata(w, r)
	case !ok:
		g.refuse(w, r, nil, api.Refuse(api.NotFound))
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		g.refuse(w, r, e.route, api.Refuse(api.MethodNotAllowed))
	default:
		g.serveOperation(w, r, e)
	}
}

func (g *Guard) serveOperation(w http.ResponseWriter, r *http.Request, e entry) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout)) // where there is a connection
	req, err := read(r, e)
	if err != nil {
		g.refuse(w, r, e.route, err)
		return
	}
	reply := &reply{guard: g, w: w}
	answer, err := g.operate(r.Context(), req, reply)
	switch {
	case err != nil && reply.begun: // without an outcome: it is not known
	case err != nil:
		g.refuse(w, r, e.route, err)
	case e.route != nil:
		reply.end(r, e.route, answer)
	default:
		g.write(w, http.StatusOK, "application/json", answer)
	}
}

// operate is the guard's policy, step by step. Until the authority is asked nothing has happened and every refusal is
// definite; from then on whoever hangs up no longer counts.
func (g *Guard) operate(ctx context.Context, req *request, reply *reply) (Answer, error) {
	claims, err := g.verify(ctx, req.token)
	if err != nil {
		return Answer{}, err
	}
	proof, err := g.prove(req, claims)
	if err != nil {
		return Answer{}, err
	}
	if !g.enter(ctx) {
		return Answer{}, api.Refuse(api.TooManyRequests)
	}
	defer g.leave()
	attempt, effect, err := g.attempt(req, claims, reply)
	if err != nil {
		return Answer{}, err
	}
	g.begin(attempt.ID)
	defer g.end(attempt.ID)
	if err := g.intend(ctx, attempt); err != nil {
		return Answer{}, err
	}
	admitted, err := g.admit(ctx, req, attempt, effect)
	if errors.Is(err, errStaleNonce) {
		g.nonces.drop(proof.Nonce)
	}
	if err != nil {
		return Answer{}, err
	}
	return g.carryOut(context.WithoutCancel(ctx), admitted)
}

// attempt is the effect that the request asks for, which must be the one that the capability names.
func (g *Guard) attempt(req *request, claims *capability.EffectClaims, reply *reply) (Attempt, capability.Effect, error) {
	effect, params, err := g.effect(req)
	_ = http.NewResponseController(reply.w).SetReadDeadline(time.Time{}) // all of it is read
	if err != nil {
		return Attempt{}, effect, err
	}
	a, err := compare(effect, claims)
	a.Target, a.Params, a.Body = Target{Resource: effect.Resource, Amount: effect.Amount, Currency: effect.Currency}, params, req.raw
	if req.route != nil {
		reply.effect, a.Reply = a.Effect.String(), reply
	}
	return a, effect, err
}

// enter waits a little for a slot, before anything is consumed.
func (g *Guard) enter(ctx context.Context) bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(slotPatience)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

func (g *Guard) leave() { <-g.slots }

// compare holds the effect that the request asks for against the one that the capability names.
func compare(e capability.Effect, claims *capability.EffectClaims) (Attempt, error) {
	named, err := claims.Effect()
	if err != nil || !e.Equal(named) {
		return Attempt{}, api.Refuse(api.EffectMismatch)
	}
	digest, err := e.Digest()
	if err != nil {
		return Attempt{}, api.Refuse(api.EffectMismatch)
	}
	ref, err := ParseRef(claims.EffectRef)
	if err != nil {
		return Attempt{}, api.Refuse(api.InvalidToken)
	}
	return Attempt{Effect: ref, ID: NewRef(), Action: e.Action, Digest: digest}, nil
}

// intend finds out that the resource cannot be reached before the effect is consumed.
func (g *Guard) intend(ctx context.Context, a Attempt) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch err := g.config.Ledger.Intend(ctx, a); {
	case errors.Is(err, ErrSettled):
		return api.Refuse(api.EffectSettled)
	case err != nil:
		g.log.Warn("the ledger does not take an intent", "error", err)
		if refusal, ok := errors.AsType[*api.Refusal](err); ok {
			return refusal
		}
		return api.Refuse(api.Unavailable)
	}
	return nil
}

// admit asks the authority. A lost answer is asked for again under the same attempt, which gives the same go-ahead and
// what is left of its time; when it stays lost nothing is applied, and the sweep finds out whether it was admitted.
func (g *Guard) admit(ctx context.Context, r *request, a Attempt, e capability.Effect) (Admitted, error) {
	if _, err := g.component.Token(ctx); err != nil {
		g.log.Warn("there is no component capability", "error", err)
		return Admitted{}, api.Refuse(api.Unavailable)
	}
	if ctx.Err() != nil {
		return Admitted{}, api.Refuse(api.Unavailable)
	}
	ctx = context.WithoutCancel(ctx)
	question := g.question(r, a, e)
	pause := admitPause
	for try := 1; ; try++ {
		watch := elapsed.Start(g.config.Now)
		var goAhead api.Admission
		err := g.component.JSON(ctx, http.MethodPost, api.PathAdmit, question, &goAhead)
		if err == nil {
			return g.admitted(a, goAhead, watch)
		}
		if !dpopclient.Unknown(err) {
			return Admitted{}, g.refused(err)
		}
		if try == admitTries || !sleep(ctx, pause) {
			g.log.Warn("the answer to an admission is lost", "effect", a.Effect, "error", err)
			return Admitted{}, api.Refuse(api.OutcomeUnknown)
		}
		pause *= 2
	}
}

// question passes on what the worker sent, unchanged, beside the effect as the guard spells it.
func (g *Guard) question(r *request, a Attempt, e capability.Effect) api.AdmitRequest {
	d := capability.DetailOf(e)
	return api.AdmitRequest{
		Attempt: a.ID.String(), Capability: r.token.Reveal(), Proof: r.proof, Method: http.MethodPost, Path: g.path + r.path,
		Effect: api.Detail{Type: d.Type, Actions: d.Actions, Locations: d.Locations, Identifier: d.Identifier,
			ParamsSHA256: d.ParamsSHA256, Amount: d.Amount, Currency: d.Currency},
	}
}

// admitted reads a go-ahead. One that cannot be read, or is for another effect, is none: nothing is applied.
func (g *Guard) admitted(a Attempt, goAhead api.Admission, watch elapsed.Watch) (Admitted, error) {
	effect, err := ParseRef(goAhead.Effect)
	lane, err2 := ParseRef(goAhead.Lane)
	run, err3 := ParseRef(goAhead.Run)
	if errors.Join(err, err2, err3) != nil || effect != a.Effect || goAhead.Fence < 1 {
		g.log.Error("the authority's go-ahead cannot be read", "effect", a.Effect)
		return Admitted{}, api.Refuse(api.OutcomeUnknown)
	}
	g.nonces.put(goAhead.WorkerNonce)
	g.saw(Seen{Fence: goAhead.Fence, Admission: goAhead.Number})
	within := time.Duration(goAhead.ApplyWithinMS) * time.Millisecond
	return Admitted{
		Attempt: a, Run: run, Lane: lane, Fence: goAhead.Fence, Number: goAhead.Number,
		Left: func() time.Duration { return within - watch.Elapsed() },
	}, nil
}

// carryOut applies, settles and answers.
func (g *Guard) carryOut(ctx context.Context, a Admitted) (Answer, error) {
	ending, err := g.apply(ctx, a)
	if err != nil {
		g.log.Error("what became of an effect is not known yet", "effect", a.Effect, "error", err)
		g.owe(a.Effect, a.ID)
		return Answer{}, api.Refuse(api.OutcomeUnknown)
	}
	a.spell(ending.Evidence)
	recorded, err := g.settle(ctx, a.Effect, a.ID, ending)
	if err != nil {
		g.log.Warn("an outcome could not be settled yet", "effect", a.Effect, "outcome", ending.Outcome, "error", err)
		g.owe(a.Effect, a.ID)
		recorded = ending.Outcome
	}
	answer := Answer{Effect: a.Effect.String(), Outcome: recorded, Reason: ending.Reason}
	if recorded == Committed {
		answer.Result = ending.Result
	}
	return answer, nil
}

// spell says in evidence which effect it is about.
func (a Attempt) spell(e *api.Evidence) {
	if e != nil {
		e.Action, e.Resource, e.Amount, e.Currency = a.Action, a.Target.Resource, a.Target.Amount, a.Target.Currency
	}
}

// apply applies within the time that is left or not at all. Not even a panic of the operation leaves the end open.
func (g *Guard) apply(ctx context.Context, a Admitted) (ending Ending, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(0, a.Left())+g.config.Longest)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("guards: the ledger panicked: %T", p)
		}
	}()
	if a.Left() <= 0 {
		ending, err := g.config.Ledger.Prove(ctx, a.Effect, a.ID)
		ending.Reason = api.TooLate
		return ending, err
	}
	ending, err = g.config.Ledger.Apply(ctx, a)
	if err == nil && !ending.Outcome.known() {
		err = errors.New("guards: the ledger returned neither an end nor an error")
	}
	return ending, err
}

// settle records an outcome and returns the one that stands: after the window that is ambiguous (P16).
func (g *Guard) settle(ctx context.Context, effect, attempt Ref, e Ending) (Outcome, error) {
	var answer api.EffectOutcome
	err := g.component.JSON(ctx, http.MethodPost, api.PathSettle,
		api.SettleEffectRequest{Effect: effect.String(), Attempt: attempt.String(), Outcome: string(e.Outcome), Spent: e.Spent, Evidence: e.Evidence}, &answer)
	if err != nil {
		return "", err
	}
	recorded := Outcome(answer.State)
	if !recorded.known() {
		return "", dpopclient.ErrNoAnswer
	}
	return recorded, nil
}

// refused tells the worker what it can act on. Whatever is wrong with the guard's own standing is not the worker's.
func (g *Guard) refused(err error) error {
	refusal, ok := errors.AsType[*api.Refusal](err)
	if !ok {
		return api.Refuse(api.Unavailable)
	}
	switch refusal.Code {
	case api.WorkerNonce:
		return errStaleNonce
	case api.WorkerProof:
		return api.Refuse(api.InvalidDPoPProof)
	case api.InvalidClient, api.InvalidToken, api.InvalidDPoPProof, api.UseDPoPNonce, api.BootSuperseded, api.InvalidRequest,
		api.UnsupportedMediaType, api.PayloadTooLarge, api.MethodNotAllowed, api.NotFound, api.Forbidden, api.AssertionBound:
		g.log.Error("the authority does not take this guard's question", "code", refusal.Code)
		return api.Refuse(api.Unavailable)
	}
	return &api.Refusal{Code: refusal.Code, RetryAfter: refusal.RetryAfter}
}
