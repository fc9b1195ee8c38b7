package model

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/secret"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// call is an attempt that was found to be one of this guard.
type call struct {
	asked
	model   *served
	dialect dialect
	body    []byte
}

// read finds out what an attempt asks for, and whether its parameters say the same.
func (l *Ledger) read(a guards.Attempt) (*call, error) {
	var p catalogue.ModelCall
	if err := json.Unmarshal(a.Params, &p); err != nil {
		return nil, refusef("The parameters cannot be read.")
	}
	m, ok := l.models[p.Model]
	if !ok {
		return nil, refusef("This guard does not serve that model.")
	}
	body, err := bodyOf(a, p)
	if err != nil {
		return nil, err
	}
	c := &call{model: m, dialect: dialects[a.Action], body: body}
	if c.asked, err = c.dialect.read(body); err != nil {
		return nil, err
	}
	switch {
	case c.asked.model != m.id || c.output != p.MaxOutputTokens:
		return nil, refusef("The request names another model or another bound of its output than its parameters.")
	case c.stream && a.Reply == nil:
		return nil, refusef("A stream is asked for at /v1%s of this guard.", c.dialect.path)
	case p.Currency != l.config.Currency:
		return nil, refusef("The calls of this guard are paid in %s.", l.config.Currency)
	}
	if worst := c.worst(); worst > p.MaxCost {
		return nil, refusef("This call may cost up to %d in minor units of %s; ask for it with a max_cost of at least that.", worst, p.Currency)
	}
	return c, nil
}

// bodyOf is what will be sent: the text of the parameters, or what came beside them and has their digest.
func bodyOf(a guards.Attempt, p catalogue.ModelCall) ([]byte, error) {
	if p.Request != "" {
		return []byte(p.Request), nil
	}
	sum := sha256.Sum256(a.Body)
	if int64(len(a.Body)) != p.RequestBytes || base64.RawURLEncoding.EncodeToString(sum[:]) != p.RequestSHA256 {
		return nil, refusef("A request that is named by its digest is sent at the /v1 paths of this guard.")
	}
	return a.Body, nil
}

// worst is the most that a call can cost by what is known before it: no token is shorter than a byte.
func (c *call) worst() int64 {
	return c.model.Price.cost(usage{input: int64(len(c.body)) + c.model.Overhead, output: c.output})
}

// Intend implements guards.Ledger. Whatever can be refused without the provider is refused here, before anything is
// consumed.
func (l *Ledger) Intend(ctx context.Context, a guards.Attempt) error {
	if l.substituted.Load() {
		return api.Refuse(api.Unavailable)
	}
	if _, err := l.read(a); err != nil {
		return err
	}
	if _, err := l.credential(ctx); err != nil {
		return err
	}
	return l.journal.Intend(a)
}

// credential is one that can be used now, and be kept out of answers.
func (l *Ledger) credential(ctx context.Context) (*secret.Secret, error) {
	s, err := l.source.Get(ctx)
	if err != nil {
		l.log.Error("there is no credential for the provider", "error", err)
		return nil, api.Refuse(api.CredentialUnavailable)
	}
	return s, nil
}

// Apply implements guards.Ledger. Everything up to the exchange can be called off; from then on only the provider's own
// answer proves anything.
func (l *Ledger) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	c, conn, s, err := l.prepare(ctx, a)
	if err != nil {
		return l.journal.CallOff(a, err)
	}
	defer conn.Close() //nolint:errcheck // whatever is left of it
	return l.journal.Once(a, func() guards.Ending { return l.exchange(ctx, a, c, conn, s) })
}

// prepare is everything before the first byte is sent.
func (l *Ledger) prepare(ctx context.Context, a guards.Admitted) (*call, *upstream.Conn, *secret.Secret, error) {
	c, err := l.read(a.Attempt)
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := l.credential(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if a.Left() <= 0 {
		return nil, nil, nil, api.Refuse(api.TooLate)
	}
	dialing, cancel := context.WithTimeout(ctx, a.Left())
	defer cancel()
	conn, err := l.client.Connect(dialing, l.base)
	if err != nil {
		l.log.Warn("the provider cannot be reached", "error", err)
		return nil, nil, nil, api.Refuse(api.Unavailable)
	}
	return c, conn, s, nil
}

// exchange sends the request, once, and finds out from what answers what became of it.
func (l *Ledger) exchange(ctx context.Context, a guards.Admitted, c *call, conn *upstream.Conn, s *secret.Secret) guards.Ending {
	evidence := &api.Evidence{Parameters: a.Params, SentUnixMS: l.now().UnixMilli()}
	answer, err := conn.Exchange(ctx, upstream.Request{Method: http.MethodPost, URL: l.base.JoinPath(c.dialect.path), Header: l.header(s.Value.Reveal()), Body: c.body})
	switch {
	case err != nil:
		evidence.Answered = answeredBy(err)
		l.log.Warn("a call to the provider has no answer", "effect", a.Effect, "error", err)
	case answer.Status >= 200 && answer.Status <= 299:
		return l.settle(c, a, l.receive(c, a, answer, s))
	default:
		if reason, ok := l.refusedBy(answer.Status); ok {
			l.log.Warn("the provider refused a call", "effect", a.Effect, "status", answer.Status)
			return guards.Ending{Outcome: guards.NotApplied, Reason: reason, Spent: new(int64)}
		}
		evidence.Answered, evidence.Status = api.AnsweredStatus, answer.Status
		l.log.Warn("the provider failed", "effect", a.Effect, "status", answer.Status)
	}
	return guards.Ending{Outcome: guards.Ambiguous, Evidence: evidence}
}

func answeredBy(err error) string {
	failure, ok := errors.AsType[*upstream.Error](err)
	if !ok {
		return api.AnsweredUnknown
	}
	switch failure.Category {
	case upstream.Timeout:
		return api.AnsweredTimeout
	case upstream.Broken:
		return api.AnsweredConnection
	case upstream.Malformed:
		return api.AnsweredMalformed
	}
	return api.AnsweredUnknown
}

// refusals are the statuses by which this protocol says that a request was not carried out, and what a worker is told:
// never a word of the provider (mission B11).
var refusals = map[int]api.Code{
	http.StatusBadRequest: api.InvalidRequest, http.StatusUnauthorized: api.CredentialUnavailable, http.StatusPaymentRequired: api.CredentialUnavailable,
	http.StatusForbidden: api.CredentialUnavailable, http.StatusNotFound: api.InvalidRequest, http.StatusMethodNotAllowed: api.InvalidRequest,
	http.StatusRequestEntityTooLarge: api.PayloadTooLarge, http.StatusUnsupportedMediaType: api.InvalidRequest,
	http.StatusUnprocessableEntity: api.InvalidRequest, http.StatusTooManyRequests: api.TooManyRequests,
}

func (l *Ledger) refusedBy(status int) (api.Code, bool) {
	if code, ok := refusals[status]; ok {
		return code, true
	}
	return api.Unavailable, slices.Contains(l.config.Refused, status)
}

// settle is the end of a call that the provider took: it happened, whatever came of its answer. It is charged with what was
// used, also beyond what was reserved; where that is not told, or cannot be, with all that was reserved.
func (l *Ledger) settle(c *call, a guards.Admitted, r received) guards.Ending {
	ending := guards.Ending{Outcome: guards.Committed, Result: r.result}
	if r.used != nil && r.used.plausible() {
		spent := c.model.Price.cost(*r.used)
		if r.partial {
			spent = max(spent, a.Target.Amount)
		}
		ending.Spent = &spent
		if spent > a.Target.Amount {
			l.log.Warn("a call cost more than was reserved for it", "effect", a.Effect, "reserved", a.Target.Amount, "spent", spent)
		}
	}
	if r.trouble != "" {
		l.log.Warn("an answer of the provider was not passed on whole", "effect", a.Effect, "trouble", r.trouble)
	}
	return ending
}

// receive reads the answer of a call that the provider took, without the credential.
func (l *Ledger) receive(c *call, a guards.Admitted, answer *upstream.Answer, s *secret.Secret) received {
	clean := s.Set().Reader(answer.Body)
	kind, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	var r received
	switch {
	case kind == "application/json":
		r = l.whole(c, clean)
	case kind == "text/event-stream" && c.stream:
		r = l.stream(c, a.Reply, clean)
	default:
		r = received{trouble: "it is neither JSON nor a stream that was asked for"}
	}
	if clean.Found() {
		l.log.Error("the provider's answer held the credential", "effect", a.Effect)
	}
	return r
}
