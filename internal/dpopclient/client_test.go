package dpopclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const base = "https://server.example"

// transport serves requests in the caller's goroutine.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func serve(handler http.HandlerFunc) transport {
	return func(r *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		handler(recorder, r)
		return recorder.Result(), nil
	}
}

func newClient(t *testing.T, tr transport) *Client {
	t.Helper()
	key, err := capability.GenerateKey()
	require.NoError(t, err)
	return &Client{Key: key, HTTP: &http.Client{Transport: tr}, BaseURL: base + "/"}
}

// problem writes a refusal as the authority does.
func problem(w http.ResponseWriter, status int, code api.Code, challenge string) {
	w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
	if challenge != "" {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"about:blank","status":%d,"code":%q,"error":"x","error_description":"secret-from-outside"}`, status, code)
}

func proofOf(t *testing.T, r *http.Request) *capability.Proof {
	t.Helper()
	p, err := capability.ParseProof(r.Header.Get("DPoP"))
	require.NoError(t, err)
	require.NoError(t, p.VerifySignature())
	return p
}

const nonceChallenge = `DPoP error="use_dpop_nonce", algs="ES256"`

func TestServerThatAlwaysChallengesIsAskedTwice(t *testing.T) {
	t.Parallel()
	calls := 0
	c := newClient(t, serve(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("DPoP-Nonce", fmt.Sprint("n", calls))
		problem(w, http.StatusUnauthorized, api.UseDPoPNonce, nonceChallenge)
	}))
	err := c.JSON(t.Context(), http.MethodPost, "/v1/x", "token", nil, nil)
	require.True(t, Refused(err, api.UseDPoPNonce))
	require.Equal(t, 2, calls)
	require.Equal(t, "n2", c.Nonce(), "the nonce of a failed retry is kept")
}

func TestWhatIsNoNonceChallengeIsNotRetried(t *testing.T) {
	t.Parallel()
	cases := map[string]func(w http.ResponseWriter){
		"a Bearer challenge with that error": func(w http.ResponseWriter) {
			problem(w, http.StatusUnauthorized, api.UseDPoPNonce, `Bearer error="use_dpop_nonce"`)
		},
		"no challenge":                func(w http.ResponseWriter) { problem(w, http.StatusUnauthorized, api.UseDPoPNonce, "") },
		"another error":               func(w http.ResponseWriter) { problem(w, http.StatusUnauthorized, api.InvalidDPoPProof, nonceChallenge) },
		"the token endpoint's status": func(w http.ResponseWriter) { problem(w, http.StatusBadRequest, api.UseDPoPNonce, nonceChallenge) },
		"a worker's nonce":            func(w http.ResponseWriter) { problem(w, http.StatusConflict, api.WorkerNonce, "") },
	}
	for name, answer := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			c := newClient(t, serve(func(w http.ResponseWriter, _ *http.Request) {
				calls++
				w.Header().Set("DPoP-Nonce", "n")
				answer(w)
			}))
			require.Error(t, c.JSON(t.Context(), http.MethodPost, "/v1/x", "token", nil, nil))
			require.Equal(t, 1, calls)
		})
	}
}

func TestChallengeWithoutNonceIsNotRetried(t *testing.T) {
	t.Parallel()
	calls := 0
	c := newClient(t, serve(func(w http.ResponseWriter, _ *http.Request) {
		calls++
		problem(w, http.StatusBadRequest, api.UseDPoPNonce, "")
	}))
	require.Error(t, c.PostForm(t.Context(), "/v1/token", url.Values{}, nil))
	require.Equal(t, 1, calls)
}

func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		var hosts []string
		c := newClient(t, serve(func(w http.ResponseWriter, r *http.Request) {
			hosts = append(hosts, r.URL.Host)
			w.Header().Set("Location", "https://elsewhere.example/")
			w.WriteHeader(status)
		}))
		err := c.JSON(t.Context(), http.MethodPost, "/v1/x", "token", struct{}{}, nil)
		require.ErrorIs(t, err, ErrNoAnswer)
		require.True(t, Unknown(err))
		require.Equal(t, []string{"server.example"}, hosts)
	}
}

func TestAnswerThatIsNotUnderstoodLeavesTheOutcomeOpen(t *testing.T) {
	t.Parallel()
	cases := map[string]transport{
		"connection lost": func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
		"a proxy's page":  serve(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }),
		"an unknown code": serve(func(w http.ResponseWriter, _ *http.Request) { problem(w, 409, "never_heard_of", "") }),
		"a problem that is not JSON": serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `{"code":`)
		}),
		"not JSON":        serve(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
		"an empty answer": serve(func(http.ResponseWriter, *http.Request) {}),
		"a large answer": serve(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"a":"`+strings.Repeat("x", maxAnswer)+`"}`)
		}),
		"outcome unknown": serve(func(w http.ResponseWriter, _ *http.Request) { problem(w, 503, api.OutcomeUnknown, "") }),
		"internal":        serve(func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, api.Internal, "") }),
	}
	for name, tr := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out struct{}
			require.True(t, Unknown(newClient(t, tr).JSON(t.Context(), http.MethodPost, "/v1/x", "token", nil, &out)))
		})
	}
}

func TestErrorsRepeatNothingFromOutside(t *testing.T) {
	t.Parallel()
	refusing := newClient(t, serve(func(w http.ResponseWriter, _ *http.Request) { problem(w, 409, api.FenceStale, "") }))
	err := refusing.JSON(t.Context(), http.MethodPost, "/v1/x", "a-secret-token", nil, nil)
	require.True(t, Refused(err, api.FenceStale))
	require.False(t, Unknown(err))
	require.NotContains(t, err.Error(), "secret")

	failing := newClient(t, func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	err = failing.JSON(t.Context(), http.MethodPost, "/v1/a-secret-reference", "a-secret-token", nil, nil)
	require.NotContains(t, err.Error(), "secret")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

func TestCallHasADeadline(t *testing.T) {
	t.Parallel()
	c := newClient(t, func(r *http.Request) (*http.Response, error) {
		deadline, ok := r.Context().Deadline()
		assert.True(t, ok)
		assert.LessOrEqual(t, time.Until(deadline), callTimeout)
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	c.Timeout = time.Millisecond
	err := c.JSON(t.Context(), http.MethodGet, "/v1/x", "token", nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.True(t, Unknown(err))
}

func TestRequestProvesItsKey(t *testing.T) {
	t.Parallel()
	var c *Client
	c = newClient(t, serve(func(w http.ResponseWriter, r *http.Request) {
		proof, err := capability.CheckProof(r.Header.Get("DPoP"), capability.Expect{
			Method: http.MethodPut, URL: base + "/v1/x", AccessToken: "token", Holder: c.Key.Thumbprint(), Now: time.Now()})
		assert.NoError(t, err)
		assert.Equal(t, "first", proof.Nonce)
		assert.Equal(t, "DPoP token", r.Header.Get("Authorization"))
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		body, _ := io.ReadAll(r.Body)
		assert.JSONEq(t, `{"a":1}`, string(body))
		w.Header().Set("DPoP-Nonce", "second")
		_, _ = io.WriteString(w, `{"b":2}`)
	}))
	c.SetNonce("first")
	c.SetNonce("")
	var out struct{ B int }
	require.NoError(t, c.JSON(t.Context(), http.MethodPut, "/v1/x", "token", map[string]int{"a": 1}, &out))
	require.Equal(t, 2, out.B)
	require.Equal(t, "second", c.Nonce(), "a nonce on success is used next (RFC 9449 §8.2)")
}

func TestChallengeIsAnsweredWithTheSameFormAndANewProof(t *testing.T) {
	t.Parallel()
	var forms, proofs []string
	c := newClient(t, serve(func(w http.ResponseWriter, r *http.Request) {
		proof := proofOf(t, r)
		proofs = append(proofs, proof.JTI)
		assert.Empty(t, r.Header.Get("Authorization"))
		assert.NoError(t, r.ParseForm())
		forms = append(forms, r.PostForm.Encode())
		w.Header().Set("DPoP-Nonce", "n")
		if proof.Nonce == "" {
			problem(w, http.StatusBadRequest, api.UseDPoPNonce, "")
			return
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	require.NoError(t, c.PostForm(t.Context(), "/v1/token", url.Values{"grant_type": {"x"}}, &struct{}{}))
	require.Equal(t, []string{"grant_type=x", "grant_type=x"}, forms)
	require.Len(t, proofs, 2)
	require.NotEqual(t, proofs[0], proofs[1])
}

func TestRetryAfterIsBounded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		`"retry_after_ms":250`: 250 * time.Millisecond, `"retry_after_ms":999999999999`: maxWait, `"retry_after_ms":-1`: 7 * time.Second, `"x":1`: 7 * time.Second,
	} {
		c := newClient(t, serve(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(503)
			fmt.Fprintf(w, `{"code":"admission_closed",%s}`, text)
		}))
		refusal, ok := errors.AsType[*api.Refusal](c.JSON(t.Context(), http.MethodGet, "/x", "t", nil, nil))
		require.True(t, ok)
		require.Equal(t, want, refusal.Wait(), text)
	}
}

func TestManyCallersShareOneClient(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]bool{}
	c := newClient(t, serve(func(w http.ResponseWriter, r *http.Request) {
		proof := proofOf(t, r)
		mu.Lock()
		defer mu.Unlock()
		assert.False(t, seen[proof.JTI], "no proof is used twice")
		seen[proof.JTI] = true
		w.Header().Set("DPoP-Nonce", fmt.Sprint("n", len(seen)))
	}))
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() { assert.NoError(t, c.JSON(t.Context(), http.MethodPost, "/x", "t", nil, nil)) })
	}
	group.Wait()
	require.Len(t, seen, 32)
}

func FuzzRefusal(f *testing.F) {
	f.Add(409, "application/problem+json", `{"code":"fence_stale","retry_after_ms":5}`)
	f.Add(503, "application/problem+json", `{"code":1}`)
	f.Add(400, "application/json", `{"code":"use_dpop_nonce"}`)
	f.Add(502, "text/html", "<html>")
	f.Add(400, "application/problem+json", `{"code":"use_dpop_nonce","code":"internal"}`)
	f.Fuzz(func(t *testing.T, status int, mediaType, body string) {
		resp := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {mediaType}}}
		err := refusalOf(resp, []byte(body))
		refusal, ok := errors.AsType[*api.Refusal](err)
		if !ok {
			require.ErrorIs(t, err, ErrNoAnswer)
			return
		}
		require.Contains(t, api.Codes(), refusal.Code)
		require.Empty(t, refusal.Sentence)
		require.LessOrEqual(t, refusal.RetryAfter, maxWait)
	})
}
