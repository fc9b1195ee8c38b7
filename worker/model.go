package worker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

const (
	maxModelAnswer = 16 << 20
	maxModelError  = 16 << 10
)

// ModelCall is one call of a language model, through the guard before it.
type ModelCall struct {
	Key      string // as of an Effect
	Guard    string // URI of the guard
	Model    string // the model's URL, as the consent names it: base URL, /models/ and the id
	Request  any    // marshals to the body of a chat completion (with messages) or of a response (with input); bytes are sent as they are
	MaxCost  int64  // minor units of Currency that are reserved; the guard's refusal says how many it takes
	Currency string
	Shown    bool   // its owner can read the request, of at most 48 KiB, where a decision is needed
	RepeatOf string // as of an Effect
}

// ModelAnswer is what a model said: the whole answer in Result, or a stream in Body, which must be closed. A stream that
// begins belongs to a call that has happened, whatever becomes of its end.
type ModelAnswer struct {
	Result
	Body io.ReadCloser // server-sent events as they come; nil without a stream
}

// CallModel makes a call of a model, once; see [Run.Do], of which it is a kind. When the outcome had to be learned from the
// authority the answer is lost, and Result has none.
func (r *Run) CallModel(ctx context.Context, m ModelCall) (ModelAnswer, error) {
	body, e, path, err := m.effect()
	if err != nil {
		return ModelAnswer{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	c, err := e.change()
	if err != nil {
		return ModelAnswer{}, err
	}
	call := &modelCall{run: r, guard: m.Guard, url: strings.TrimSuffix(m.Guard, "/") + path, body: body, header: m.header(), outer: ctx}
	c.call = call.do
	result, err := r.bringAbout(ctx, c)
	if errors.Is(err, ErrNotApplied) && call.why != nil {
		err = fmt.Errorf("%w: %w", err, call.why)
	}
	return ModelAnswer{Result: result, Body: call.stream}, err
}

// effect is the call as an effect, spelled as the guard spells it.
func (m ModelCall) effect() (body []byte, e Effect, path string, err error) {
	switch given := m.Request.(type) {
	case []byte:
		body = given
	case json.RawMessage:
		body = given
	default:
		if body, err = json.Marshal(given); err != nil {
			return nil, Effect{}, "", err
		}
	}
	var said struct {
		Messages            json.RawMessage `json:"messages"`
		MaxTokens           int64           `json:"max_tokens"`
		MaxCompletionTokens int64           `json:"max_completion_tokens"`
		MaxOutputTokens     int64           `json:"max_output_tokens"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		return nil, Effect{}, "", errors.New("the request of a model is one JSON object")
	}
	e = Effect{Key: m.Key, Guard: m.Guard, Action: "response.create", Resource: m.Model, Amount: m.MaxCost, Currency: m.Currency, RepeatOf: m.RepeatOf}
	path = "/v1/responses"
	if said.Messages != nil {
		e.Action, path = "chat.complete", "/v1/chat/completions"
	}
	parameters := map[string]any{"model": m.Model, "max_output_tokens": max(said.MaxTokens, said.MaxCompletionTokens, said.MaxOutputTokens),
		"max_cost": m.MaxCost, "currency": m.Currency}
	if m.Shown {
		parameters["request"] = string(body)
	} else {
		sum := sha256.Sum256(body)
		parameters["request_sha256"], parameters["request_bytes"] = base64.RawURLEncoding.EncodeToString(sum[:]), len(body)
	}
	e.Parameters = parameters
	return body, e, path, nil
}

func (m ModelCall) header() http.Header {
	form := "digest"
	if m.Shown {
		form = "text"
	}
	return http.Header{"Content-Type": {"application/json"}, "Nightwarrant-Max-Cost": {fmt.Sprint(m.MaxCost, " ", m.Currency)}, "Nightwarrant-Request": {form}}
}

// modelCall is a call of the guard in the model's own protocol.
type modelCall struct {
	run        *Run
	guard, url string
	body       []byte
	header     http.Header
	outer      context.Context //nolint:containedctx // of CallModel, in which a stream is read

	stream io.ReadCloser
	why    error // it was not applied
}

// do is one call, repeated once on a challenge, which says that nothing happened (RFC 9449 §9).
func (m *modelCall) do(ctx context.Context, p permit, out *operated) error {
	challenged, err := m.once(ctx, p, out)
	if challenged {
		_, err = m.once(ctx, p, out)
	}
	return err
}

func (m *modelCall) once(ctx context.Context, p permit, out *operated) (challenged bool, err error) {
	client := m.run.worker.guard(m.run.identity, m.guard)
	// A stream outlives ctx: it ends when CallModel's context or the hold on the run does, or when it is closed.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopOuter, stopRun := context.AfterFunc(m.outer, cancel), context.AfterFunc(m.run.ctx, cancel)
	timer := time.AfterFunc(m.run.worker.config.GuardTimeout, cancel)
	end := func() { timer.Stop(); stopOuter(); stopRun(); cancel() }
	answer, err := m.send(ctx, client, p.token)
	if err != nil {
		end()
		return false, fmt.Errorf("%w: the guard cannot be reached", dpopclient.ErrNoAnswer)
	}
	client.SetNonce(answer.Header.Get(api.HeaderNonce))
	out.Effect, out.Outcome = answer.Header.Get("Nightwarrant-Effect"), answer.Header.Get("Nightwarrant-Outcome")
	if answer.StatusCode == http.StatusOK && out.Outcome == "" { // it has begun
		timer.Stop()
		out.Outcome, m.stream = api.Committed, &stream{answer.Body, end}
		return false, nil
	}
	defer end()
	defer answer.Body.Close() //nolint:errcheck // it was read
	return m.whole(answer, out)
}

// whole reads an answer that comes at once: the model's, or why there is none.
func (m *modelCall) whole(answer *http.Response, out *operated) (challenged bool, err error) {
	if answer.StatusCode == http.StatusOK {
		out.Result, err = io.ReadAll(io.LimitReader(answer.Body, maxModelAnswer+1))
		if err != nil || len(out.Result) > maxModelAnswer {
			return false, errMalformed
		}
		return false, nil
	}
	refusal := m.refusal(answer)
	if isOutcome(out.Outcome) {
		m.why = refusal
		return false, nil
	}
	challenged = answer.StatusCode == http.StatusUnauthorized && answer.Header.Get(api.HeaderNonce) != "" && dpopclient.Refused(refusal, api.UseDPoPNonce)
	return challenged, refusal
}

func (m *modelCall) send(ctx context.Context, client *dpopclient.Client, token capability.Token) (*http.Response, error) {
	proof, err := capability.NewProof(client.Key, capability.ProofParams{Method: http.MethodPost, URL: m.url, Nonce: client.Nonce(), AccessToken: token, Now: m.run.worker.config.Now()})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(m.body))
	if err != nil {
		return nil, err
	}
	request.Header = m.header.Clone()
	request.Header.Set(api.HeaderProof, proof)
	request.Header.Set("Authorization", "DPoP "+token.Reveal())
	plain := http.Client{}
	if m.run.worker.config.HTTP != nil {
		plain = *m.run.worker.config.HTTP
	}
	plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	plain.Timeout, plain.Jar = 0, nil // the context ends it
	return plain.Do(request)
}

// refusal reads our code in an error of the model's protocol. Its words are for who wrote the request.
func (m *modelCall) refusal(answer *http.Response) error {
	var said struct {
		Error struct {
			Code         api.Code `json:"code"`
			Message      string   `json:"message"`
			RetryAfterMS int64    `json:"retry_after_ms"`
		} `json:"error"`
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxModelError))
	if err != nil || json.Unmarshal(text, &said) != nil || !slices.Contains(api.Codes(), said.Error.Code) {
		return fmt.Errorf("%w: status %d without a known refusal", dpopclient.ErrNoAnswer, answer.StatusCode)
	}
	m.run.log.Info("the guard refused a call of a model", "code", said.Error.Code, "says", fmt.Sprintf("%.200q", said.Error.Message))
	wait := time.Duration(min(max(said.Error.RetryAfterMS, 0), time.Hour.Milliseconds())) * time.Millisecond
	return &api.Refusal{Code: said.Error.Code, RetryAfter: wait}
}

// stream ends what it belongs to when it is closed.
type stream struct {
	io.ReadCloser
	end func()
}

func (s *stream) Close() error {
	s.end()
	return s.ReadCloser.Close()
}
