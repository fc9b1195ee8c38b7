package worker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const (
	modelURL  = "https://api.example.com/v1/models/little"
	chatBody  = `{"model":"little","max_tokens":5,"temperature":0.7,"messages":[{"role":"user","content":"Good morning."}]}`
	modelSays = `{"choices":[{"message":{"content":"Good night."}}]}`
)

// talk is a call of a model that the fake guard makes.
func (b *bench) talk(key string) ModelCall {
	return ModelCall{Key: key, Guard: b.guardURI, Model: modelURL, Request: []byte(chatBody), MaxCost: 50, Currency: "EUR"}
}

// reply is what a guard of models answers to a call that it admitted.
type reply func(rw http.ResponseWriter, e *fakeEffect)

// talks puts a guard of models in front of the world, which builds the parameters from the request as a real one does.
func (b *bench) talks(answer reply) {
	b.config.HTTP = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if !strings.Contains(r.URL.Path, "/v1/chat/") && !strings.HasSuffix(r.URL.Path, "/v1/responses") {
			return b.world.RoundTrip(r)
		}
		recorder := httptest.NewRecorder()
		b.with(func() { b.model(recorder, r, answer) })
		return recorder.Result(), nil
	})}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *world) model(rw http.ResponseWriter, r *http.Request, answer reply) {
	w.calls[vGuard]++
	e, err := w.admitModel(r)
	rw.Header().Set(api.HeaderNonce, w.fresh(w.guardURI))
	if err != nil {
		refusal, ok := Refused(err)
		require.True(w.t, ok, "%v", err)
		refuseModel(rw, refusal.Code)
		return
	}
	e.applied++
	e.state = "committed"
	rw.Header().Set("Nightwarrant-Effect", e.ref)
	answer(rw, e)
}

func refuseModel(rw http.ResponseWriter, code api.Code) {
	status := code.Status()
	if code == api.UseDPoPNonce {
		status = http.StatusUnauthorized
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"error": map[string]any{"code": code, "message": "the guard's words", "retry_after_ms": api.Refuse(code).Wait().Milliseconds()}})
}

func (w *world) admitModel(r *http.Request) (*fakeEffect, error) {
	token, err := capability.HeaderToken(r.Header)
	require.NoError(w.t, err)
	c, err := capability.VerifyEffect(token, w, capability.Expectation{Issuer: w.issuer, Audience: w.guardURI, Now: time.Now()})
	require.NoError(w.t, err)
	p, err := w.prove(r, w.guardURI, w.guardURI, token, c.Confirmation.JKT)
	if err != nil {
		return nil, err
	}
	want, err := c.Effect()
	require.NoError(w.t, err)
	if !w.modelEffect(r).Equal(want) {
		w.broke("the request is not the call that was minted")
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

// modelEffect is the effect of a request, as guards/model spells it.
func (w *world) modelEffect(r *http.Request) capability.Effect {
	body, err := io.ReadAll(r.Body)
	require.NoError(w.t, err)
	var said struct {
		Model           string `json:"model"`
		MaxTokens       int64  `json:"max_tokens"`
		MaxOutputTokens int64  `json:"max_output_tokens"`
	}
	require.NoError(w.t, json.Unmarshal(body, &said))
	require.Equal(w.t, "50 EUR", r.Header.Get("Nightwarrant-Max-Cost"))
	parameters := map[string]any{"model": "https://api.example.com/v1/models/" + said.Model, "max_output_tokens": said.MaxTokens + said.MaxOutputTokens,
		"max_cost": 50, "currency": "EUR", "request": string(body)}
	if r.Header.Get("Nightwarrant-Request") == "digest" {
		sum := sha256.Sum256(body)
		delete(parameters, "request")
		parameters["request_sha256"], parameters["request_bytes"] = base64.RawURLEncoding.EncodeToString(sum[:]), len(body)
	}
	encoded, err := json.Marshal(parameters)
	require.NoError(w.t, err)
	digest, _, err := capability.ParamsDigest(encoded)
	require.NoError(w.t, err)
	action := "chat.complete"
	if strings.HasSuffix(r.URL.Path, "/responses") {
		action = "response.create"
	}
	return capability.Effect{Guard: w.guardURI, Action: action, Resource: "https://api.example.com/v1/models/" + said.Model, ParamsDigest: digest, Amount: 50, Currency: "EUR"}
}

func says(rw http.ResponseWriter, _ *fakeEffect) {
	rw.Header().Set("Nightwarrant-Outcome", api.Committed)
	_, _ = io.WriteString(rw, modelSays)
}

func TestAModelAnswers(t *testing.T) {
	for name, change := range map[string]func(m *ModelCall){
		"by its digest": func(*ModelCall) {},
		"shown":         func(m *ModelCall) { m.Shown = true },
		"raw":           func(m *ModelCall) { m.Request = json.RawMessage(chatBody) },
		"made here": func(m *ModelCall) {
			m.Request = map[string]any{"model": "little", "max_tokens": 5, "messages": []any{}}
		},
		"a response": func(m *ModelCall) {
			m.Request = map[string]any{"model": "little", "max_output_tokens": 5, "input": "Good morning."}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.talks(says)
				r := b.does(t, func(ctx context.Context, run *Run) {
					m := b.talk("one")
					change(&m)
					answer, err := run.CallModel(ctx, m)
					require.NoError(t, err)
					assert.Equal(t, api.Committed, answer.Outcome)
					assert.JSONEq(t, modelSays, string(answer.Result.Result))
					assert.Nil(t, answer.Body)
				})
				assert.Equal(t, 1, r.effects["one"].applied)
			})
		})
	}
}

func TestAModelStreams(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.talks(func(rw http.ResponseWriter, _ *fakeEffect) { _, _ = io.WriteString(rw, "data: [DONE]\n\n") })
		b.does(t, func(ctx context.Context, run *Run) {
			answer, err := run.CallModel(ctx, b.talk("one"))
			require.NoError(t, err)
			require.NotNil(t, answer.Body)
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			assert.Equal(t, "data: [DONE]\n\n", string(text))
			require.NoError(t, answer.Body.Close())
		})
	})
}

func TestAModelsGuardIsAskedOnceMoreOnAChallenge(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.talks(says)
		b.world.once(vMint, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(rw, r)
				b.with(func() { clear(b.nonces[b.guardURI]) })
			})
		})
		r := b.does(t, func(ctx context.Context, run *Run) {
			_, err := run.CallModel(ctx, b.talk("one"))
			require.NoError(t, err)
		})
		assert.Equal(t, 2, b.count(vGuard))
		assert.Equal(t, 1, r.effects["one"].applied)
	})
}

func TestACallOfAModelThatIsNotMade(t *testing.T) {
	for name, c := range map[string]struct {
		outcome string
		code    api.Code
		want    error
	}{
		"refused by the provider":  {api.NotApplied, api.TooManyRequests, ErrNotApplied},
		"without an answer":        {api.Ambiguous, api.EffectAmbiguous, ErrAmbiguous},
		"charged, with no answer":  {api.Committed, api.EffectSettled, nil},
		"refused, and not counted": {"", api.CredentialUnavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.talks(func(rw http.ResponseWriter, e *fakeEffect) {
					e.state = c.outcome
					if c.outcome == "" {
						e.state = "minted"
						rw.Header().Del("Nightwarrant-Effect")
					} else {
						rw.Header().Set("Nightwarrant-Outcome", c.outcome)
					}
					refuseModel(rw, c.code)
				})
				b.does(t, func(ctx context.Context, run *Run) {
					answer, err := run.CallModel(ctx, b.talk("one"))
					assert.Empty(t, answer.Result.Result)
					switch refusal, ok := Refused(err); {
					case c.outcome == "":
						require.True(t, ok, "%v", err)
						assert.Equal(t, c.code, refusal.Code)
						return
					case c.outcome == api.NotApplied:
						require.True(t, ok)
						assert.Equal(t, c.code, refusal.Code, "and says why")
					}
					assert.ErrorIs(t, err, c.want)
					assert.Equal(t, c.outcome, answer.Outcome)
				})
			})
		})
	}
}

// TestALostAnswerOfAModelIsNotAskedForTwice: the authority tells what became of the call, and nobody the answer.
func TestALostAnswerOfAModelIsNotAskedForTwice(t *testing.T) {
	for name, lose := range map[string]reply{
		"garbled":     func(rw http.ResponseWriter, _ *fakeEffect) { rw.WriteHeader(http.StatusBadGateway) },
		"an odd code": func(rw http.ResponseWriter, _ *fakeEffect) { refuseModel(rw, "never_heard_of") },
		"a foreign id": func(rw http.ResponseWriter, _ *fakeEffect) {
			rw.Header().Set("Nightwarrant-Effect", "x")
			says(rw, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.talks(lose)
				r := b.does(t, func(ctx context.Context, run *Run) {
					answer, err := run.CallModel(ctx, b.talk("one"))
					require.NoError(t, err)
					assert.Equal(t, api.Committed, answer.Outcome)
					assert.Empty(t, answer.Result.Result)
				})
				assert.Equal(t, 1, r.effects["one"].applied)
			})
		})
	}
}

func TestARequestThatIsNoneIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.talks(says)
		b.does(t, func(ctx context.Context, run *Run) {
			for _, request := range []any{[]byte("{"), []byte("[]"), make(chan int), "text"} {
				m := b.talk("one")
				m.Request = request
				_, err := run.CallModel(ctx, m)
				assert.ErrorIs(t, err, ErrInvalid)
			}
			m := b.talk("")
			_, err := run.CallModel(ctx, m)
			assert.ErrorIs(t, err, ErrInvalid)
		})
		assert.Zero(t, b.count(vMint))
	})
}

// TestParametersOfACall is the agreement with guards/model, which has the same test.
func TestParametersOfACall(t *testing.T) {
	t.Parallel()
	m := ModelCall{Key: "k", Guard: "https://g.example/m", Model: modelURL, Request: []byte(chatBody), MaxCost: 50, Currency: "EUR"}
	for shown, want := range map[bool]string{
		false: `{"currency":"EUR","max_cost":50,"max_output_tokens":5,"model":"https://api.example.com/v1/models/little","request_bytes":106,"request_sha256":"1elOdzqeJ4Syc579VNnAjtzHnVodaDG9tF8Zh7TTaIQ"}`,
		true: `{"currency":"EUR","max_cost":50,"max_output_tokens":5,"model":"https://api.example.com/v1/models/little","request":` +
			`"{\"model\":\"little\",\"max_tokens\":5,\"temperature\":0.7,\"messages\":[{\"role\":\"user\",\"content\":\"Good morning.\"}]}"}`,
	} {
		m.Shown = shown
		_, e, path, err := m.effect()
		require.NoError(t, err)
		got, err := json.Marshal(e.Parameters)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
		assert.Equal(t, "/v1/chat/completions", path)
	}
}
