package http

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
)

func TestAnEffectHappensOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"p-1","state":"paid","secret":"x","owner":{"name":"Bob","iban":"DE00"},"lines":[{"id":1,"x":2},{"id":2}]}`))
	answer, ref := s.pay()
	require.Equal(t, 200, answer.Status, answer.Text)
	require.Equal(t, api.Committed, answer.Outcome)
	require.JSONEq(t, `{"id":"p-1","state":"paid","owner":{"name":"Bob"},"lines":[{"id":1},{"id":2}]}`, string(answer.Result))
	require.Equal(t, api.Committed, s.authority.Effect(ref).State)
	require.Equal(t, 1, s.count())

	sent := s.requests[0]
	require.Equal(t, http.MethodPost, sent.Method)
	require.Equal(t, "/accounts/a-1/payments?source=night", sent.RequestURI)
	require.Equal(t, `{"amount":{"cents":250,"currency":"EUR"},"kind":"{payment}","steps":[1,true],"to":"acct:bob"}`, s.bodies[0])
	key := sent.Header.Get("Idempotency-Key")
	require.Len(t, key, 43)
	require.NotContains(t, key, ref)
	sent.Header.Del("Idempotency-Key")
	require.Equal(t, http.Header{"Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "Authorization": {"Bearer " + hush}, "Connection": {"close"},
		"Content-Length": {fmt.Sprint(len(s.bodies[0]))}, "Content-Type": {"application/json"}, "User-Agent": {"nightwarrant-guard"}}, sent.Header)

	again, _ := s.pay()
	require.Equal(t, api.Committed, again.Outcome)
	require.NotEqual(t, key, s.requests[1].Header.Get("Idempotency-Key"))
}

func TestAnAnswerIsGivenOnceAndTheEffectNotRepeated(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"p-1"}`))
	token, _ := s.mint(params)
	first := s.worker.Do(s.guard, s.worker.Request("payment.create", token, s.body(params)))
	require.Equal(t, api.Committed, first.Outcome)
	for range 3 {
		requireProblem(t, s.worker.Do(s.guard, s.worker.Request("payment.create", token, s.body(params))), api.EffectSettled)
	}
	require.Equal(t, 1, s.count())
}

func TestManyHandlersSendOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"p-1"}`))
	token, ref := s.mint(params)
	requests := make([]*http.Request, 8)
	for i := range requests {
		requests[i] = s.worker.Request("payment.create", token, s.body(params))
	}
	committed := make(chan string, len(requests))
	var group sync.WaitGroup
	for _, r := range requests {
		w := *s.worker
		group.Go(func() { committed <- w.Do(s.guard, r).Outcome })
	}
	group.Wait()
	close(committed)
	n := 0
	for outcome := range committed {
		if outcome == api.Committed {
			n++
		}
	}
	require.LessOrEqual(t, n, 1)
	require.Equal(t, 1, s.count())
	require.Equal(t, api.Committed, s.authority.Effect(ref).State)
}

// Nothing is consumed without a credential, by whatever it is missing, and all goes on with a good one.
func TestWithoutACredentialNothingIsConsumed(t *testing.T) {
	t.Parallel()
	token := func(exp int64) string {
		return "eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, `{"exp":%d}`, exp)) + ".c2lnbmF0dXJl"
	}
	s := newStand(t, saying(201, `{"id":"p-1"}`))
	path := fileOf(s.config)
	for name, spoil := range map[string]func(){
		"missing":        func() { require.NoError(t, os.Remove(path)) },
		"empty":          func() { require.NoError(t, os.WriteFile(path, nil, 0o600)) },
		"blank":          func() { require.NoError(t, os.WriteFile(path, []byte(" \n"), 0o600)) },
		"expired":        func() { require.NoError(t, os.WriteFile(path, []byte(token(time.Now().Unix()-1)), 0o600)) },
		"expires now":    func() { require.NoError(t, os.WriteFile(path, []byte(token(time.Now().Unix()+2)), 0o600)) },
		"two lines":      func() { require.NoError(t, os.WriteFile(path, []byte(hush+"\r\nX-Admin: 1"), 0o600)) },
		"open to others": func() { require.NoError(t, os.Chmod(path, 0o604)) },
	} {
		spoil()
		answer, ref := s.pay()
		requireProblem(t, answer, api.CredentialUnavailable)
		require.Equal(t, http.StatusServiceUnavailable, answer.Status, name)
		require.NotEmpty(t, answer.Header.Get("Retry-After"))
		s.requireUntouched(t, ref)
		require.Zero(t, s.authority.Count(api.PathAdmit), name)
		_ = os.Remove(path)
		require.NoError(t, os.WriteFile(path, []byte(hush), 0o600))
	}
	answer, _ := s.pay()
	require.Equal(t, api.Committed, answer.Outcome)
}

// fileOf is where the credential is.
func fileOf(c Config) string { return fmt.Sprint(c.Credential.Provider) }

// One that goes away between the two is missed before anything is sent.
func TestACredentialThatGoesAway(t *testing.T) {
	t.Parallel()
	d := newDestination(t, saying(201, `{"id":"p-1"}`))
	c := config(t, d.URL)
	l := newLedger(t, c)
	a := goAhead(t, l, params)
	require.NoError(t, os.Remove(fileOf(c)))
	ending, err := l.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.CredentialUnavailable}, ending)
	require.Zero(t, d.count())
	require.NoError(t, os.WriteFile(fileOf(c), []byte(hush), 0o600))
	require.ErrorIs(t, l.Intend(t.Context(), a.Attempt), guards.ErrSettled)
}

// The destination sends the credential back in every usual encoding, and none reaches the worker.
func TestAnEchoedCredentialDoesNotComeThrough(t *testing.T) {
	t.Parallel()
	each := func(format string) string {
		var b strings.Builder
		for _, c := range []byte(hush) {
			fmt.Fprintf(&b, format, c)
		}
		return b.String()
	}
	encodings := map[string]string{
		"plain": hush, "bearer": "Bearer " + hush, "base64": base64.StdEncoding.EncodeToString([]byte(hush)), "base64url": base64.RawURLEncoding.EncodeToString([]byte(hush)),
		"basic": base64.StdEncoding.EncodeToString([]byte("user:" + hush)), "basic2": base64.StdEncoding.EncodeToString([]byte("me:" + hush)), "basic3": base64.URLEncoding.EncodeToString([]byte("user2:" + hush)),
		"hex": hex.EncodeToString([]byte(hush)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(hush))), "percent": each("%%%02x"), "PERCENT": each("%%%02X"),
		"partly": url.QueryEscape(hush[:4]) + "%" + hex.EncodeToString([]byte(hush[4:5])) + hush[5:], "twice": each("%%25%02x"),
		"json": each(`\u%04x`), "JSON": each(`\u%04X`), "html": each("&#%d;"), "htmlx": each("&#x%x;"), "escaped": html.EscapeString(hush), "x": each(`\x%02x`),
	}
	require.GreaterOrEqual(t, len(encodings), 12)
	var log bytes.Buffer
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.WriteHeader(201)
		_ = json.NewEncoder(w).Encode(map[string]any{"id": encodings, "owner": map[string]any{"name": r.Header.Get("Authorization")}, "state": encodings[r.URL.Query().Get("which")]})
	}, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for name, encoded := range encodings {
		s.answer = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_ = json.NewEncoder(w).Encode(map[string]any{"id": "p-1", "state": "see " + encoded, "owner": map[string]string{"name": encoded}, "lines": []map[string]string{{"id": encoded}}})
		}
		answer, _ := s.pay()
		require.Equal(t, api.Committed, answer.Outcome, name)
		text, err := json.Marshal(encoded)
		require.NoError(t, err)
		require.NotContains(t, answer.Text, string(text[1:len(text)-1]), name)
		require.NotContains(t, answer.Text, encoded, name)
		require.NotContains(t, answer.Text, hush[8:])
		require.Contains(t, answer.Text, "redacted", name)
	}
	require.Contains(t, log.String(), "holds the credential")
	require.NotContains(t, log.String(), hush[8:])
}

// Even where it stands in what is no text.
func TestAnEchoThatBreaksTheAnswerIsNone(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":123456789012,"state":"paid"}`), func(c *Config) { c.Credential.Provider = FromFile(write(t, "123456789012")) })
	answer, _ := s.pay()
	require.Equal(t, api.Committed, answer.Outcome)
	require.Empty(t, answer.Result)
	require.NotContains(t, answer.Text, "123456789012")
}

func TestWhatAnswersMean(t *testing.T) {
	t.Parallel()
	status := func(code int) api.Evidence { return api.Evidence{Answered: api.AnsweredStatus, Status: code} }
	malformed := api.Evidence{Answered: api.AnsweredMalformed, Status: 201}
	for name, c := range map[string]struct {
		answer   http.HandlerFunc
		outcome  guards.Outcome
		evidence api.Evidence
	}{
		"done":                          {saying(201, `{"id":"p-1"}`), guards.Committed, api.Evidence{}},
		"done without its fields":       {saying(201, `{}`), guards.Committed, api.Evidence{}},
		"another success":               {saying(200, `{"id":"p-1"}`), guards.Ambiguous, status(200)},
		"accepted":                      {saying(202, `{"id":"p-1"}`), guards.Ambiguous, status(202)},
		"refused":                       {saying(422, `{"error":"no"}`), guards.NotApplied, api.Evidence{}},
		"refused, and says no more":     {saying(402, ``), guards.NotApplied, api.Evidence{}},
		"a refusal that proves nothing": {saying(409, `{}`), guards.Ambiguous, status(409)},
		"not found":                     {saying(404, `{}`), guards.Ambiguous, status(404)},
		"unauthorized":                  {saying(401, `{}`), guards.Ambiguous, status(401)},
		"failed":                        {saying(500, `{}`), guards.Ambiguous, status(500)},
		"busy":                          {saying(503, `{}`), guards.Ambiguous, status(503)},
		"a page":                        {saying(201, `<html>hello</html>`), guards.Ambiguous, malformed},
		"a list":                        {saying(201, `[{"id":1}]`), guards.Ambiguous, malformed},
		"a string":                      {saying(201, `"p-1"`), guards.Ambiguous, malformed},
		"two values":                    {saying(201, `{"id":"p-1"}{}`), guards.Ambiguous, malformed},
		"nothing":                       {saying(201, ``), guards.Ambiguous, malformed},
		"half of it":                    {saying(201, `{"id":"p-`), guards.Ambiguous, malformed},
		"too much":                      {saying(201, `{"id":"`+strings.Repeat("x", 17<<10)+`"}`), guards.Ambiguous, malformed},
		"a bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(201)
		}, guards.Ambiguous, api.Evidence{Answered: api.AnsweredMalformed}},
		"a redirect to the metadata": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusTemporaryRedirect)
		}, guards.Ambiguous, status(307)},
		"a closed connection": {func(w http.ResponseWriter, _ *http.Request) { _ = hijack(t, w).Close() }, guards.Ambiguous, api.Evidence{Answered: api.AnsweredConnection}},
		"a body that ends early": {func(w http.ResponseWriter, _ *http.Request) {
			c := hijack(t, w)
			_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 100\r\n\r\n{")
			_ = c.Close()
		}, guards.Ambiguous, api.Evidence{Answered: api.AnsweredConnection, Status: 201}},
		"garbage": {func(w http.ResponseWriter, _ *http.Request) {
			c := hijack(t, w)
			_, _ = io.WriteString(c, "201 it is "+hush+"\r\n\r\n")
			_ = c.Close()
		}, guards.Ambiguous, api.Evidence{Answered: api.AnsweredMalformed}},
		"no answer": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, guards.Ambiguous, api.Evidence{Answered: api.AnsweredTimeout}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDestination(t, c.answer)
			configured := config(t, d.URL)
			configured.Operations[0].Timeout = 500 * time.Millisecond
			l := newLedger(t, configured)
			a := goAhead(t, l, params)
			ending, err := l.Apply(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, c.outcome, ending.Outcome)
			require.Equal(t, 1, d.count())
			if c.outcome == guards.Ambiguous {
				require.WithinDuration(t, time.Now(), time.UnixMilli(ending.Evidence.SentUnixMS), 5*time.Second)
				c.evidence.Parameters, c.evidence.SentUnixMS = json.RawMessage(params), ending.Evidence.SentUnixMS
				c.evidence.State = ending.Evidence.State // see TestAmbiguousEffectsShowTheDestination
				require.Equal(t, &c.evidence, ending.Evidence)
			}
			proven, err := l.Prove(t.Context(), a.Effect, a.ID)
			require.NoError(t, err)
			require.Equal(t, ending.Outcome, proven.Outcome)
			if proven.Evidence != nil {
				require.Equal(t, ending.Evidence.Answered, proven.Evidence.Answered)
				require.Equal(t, ending.Evidence.Status, proven.Evidence.Status)
				require.JSONEq(t, params, string(proven.Evidence.Parameters))
			}
			_, err = l.Apply(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, 1, d.count(), "it was sent again")
		})
	}
}

func TestWhyARefusalWas(t *testing.T) {
	t.Parallel()
	for status, code := range map[int]api.Code{401: api.CredentialUnavailable, 403: api.CredentialUnavailable, 413: api.PayloadTooLarge, 429: api.TooManyRequests, 422: api.InvalidRequest} {
		s := newStand(t, saying(status, `{"id":"p-1","hint":"`+hush+`"}`), func(c *Config) { c.Operations[0].Answer.Refused = []int{status} })
		answer, ref := s.pay()
		require.Equal(t, api.NotApplied, answer.Outcome)
		require.Equal(t, code, answer.Reason)
		require.Empty(t, answer.Result)
		require.NotContains(t, answer.Text, "hint")
		require.Equal(t, api.NotApplied, s.authority.Effect(ref).State)
	}
}

// What was not sent is not applied, and never will be.
func TestWhatIsNotSentIsNotApplied(t *testing.T) {
	t.Parallel()
	d := newDestination(t, saying(201, `{"id":"p-1"}`))
	for name, c := range map[string]struct {
		change func(c *Config, a *guards.Admitted)
		reason api.Code
	}{
		"no time is left":            {func(_ *Config, a *guards.Admitted) { a.Left = func() time.Duration { return 0 } }, api.Unavailable},
		"the address is not allowed": {func(c *Config, _ *guards.Admitted) { c.Private = nil }, api.Unavailable},
		"nobody listens": {func(c *Config, _ *guards.Admitted) {
			c.Operations[0] = payment("http://127.0.0.1:1")
			c.Private = []string{"127.0.0.1:1"}
		}, api.Unavailable},
		"another fence":     {func(_ *Config, a *guards.Admitted) { a.Fence = 0 }, api.EffectMismatch},
		"parameters change": {func(_ *Config, a *guards.Admitted) { a.Params = json.RawMessage(`{"account":".."}`) }, api.InvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			configured := config(t, d.URL)
			a := guards.Admitted{Left: func() time.Duration { return 5 * time.Second }}
			c.change(&configured, &a)
			l := newLedger(t, configured)
			good := goAhead(t, l, params)
			good.Left = a.Left
			if a.Params != nil {
				good.Params = a.Params
			}
			if name == "another fence" {
				good.Fence = 0
			}
			ending, err := l.Apply(t.Context(), good)
			require.NoError(t, err)
			require.Equal(t, guards.NotApplied, ending.Outcome)
			require.Equal(t, c.reason, ending.Reason)
			good.Left, good.Fence, good.Params = func() time.Duration { return time.Minute }, 5, json.RawMessage(params)
			later, err := l.Apply(t.Context(), good)
			require.NoError(t, err)
			require.Equal(t, guards.NotApplied, later.Outcome)
		})
	}
	require.Zero(t, d.count())
}

// A lost answer is told to the owner with what was sent, and nothing is sent again by whoever comes after.
func TestALostAnswerIsAmbiguousForGood(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(w http.ResponseWriter, _ *http.Request) { _ = hijack(t, w).Close() })
	token, ref := s.mint(params)
	answer := s.worker.Do(s.guard, s.worker.Request("payment.create", token, s.body(params)))
	require.Equal(t, api.Ambiguous, answer.Outcome, answer.Text)
	require.Empty(t, answer.Result)
	require.Equal(t, api.Ambiguous, s.authority.Effect(ref).State)
	requireProblem(t, s.worker.Do(s.guard, s.worker.Request("payment.create", token, s.body(params))), api.EffectSettled)
	require.Equal(t, 1, s.count())

	require.NoError(t, s.ledger.Close())
	effect, err := guards.ParseRef(ref)
	require.NoError(t, err)
	attempt, err := guards.ParseRef(s.authority.Effect(ref).Attempt)
	require.NoError(t, err)
	ending, err := reopened(t, s.config).Prove(effect, attempt)
	require.NoError(t, err)
	require.Equal(t, guards.Ambiguous, ending.Outcome)
	require.Equal(t, api.AnsweredConnection, ending.Evidence.Answered)
	require.JSONEq(t, params, string(ending.Evidence.Parameters))
}

// No secret is in the journal.
func TestTheJournalHoldsNoSecret(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"the-answer"}`))
	_, _ = s.pay()
	require.NoError(t, s.ledger.Close())
	files, err := os.ReadDir(s.config.Dir)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		text, err := os.ReadFile(s.config.Dir + "/" + f.Name())
		require.NoError(t, err)
		require.NotContains(t, string(text), hush)
		require.NotContains(t, string(text), "the-answer")
	}
}

func TestRequestsThatAreRefusedBeforeAnythingIsConsumed(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"p-1"}`))
	for name, text := range map[string]string{
		"a header in a header":    `{"account":"a-1","cents":250,"note":"x\r\nX-Admin: yes","to":"bob"}`,
		"a header not in ASCII":   `{"account":"a-1","cents":250,"note":"ä","to":"bob"}`,
		"a parameter of its own":  `{"account":"a-1","cents":250,"to":"bob","url":"http://169.254.169.254"}`,
		"a parameter is missing":  `{"account":"a-1","cents":250}`,
		"an amount of another":    `{"account":"a-1","cents":251,"to":"bob"}`,
		"a negative amount":       `{"account":"a-1","cents":-250,"to":"bob"}`,
		"a fraction":              `{"account":"a-1","cents":250.5,"to":"bob"}`,
		"an amount that is large": `{"account":"a-1","cents":100001,"to":"bob"}`,
		"an amount in words":      `{"account":"a-1","cents":"250","to":"bob"}`,
		"another resource":        `{"account":"a-2","cents":250,"to":"bob"}`,
	} {
		body := s.body(text)
		if name == "a fraction" { // no effect of it can be minted
			token, ref := s.mint(params)
			requireProblem(t, s.worker.Do(s.guard, s.worker.Request("payment.create", token, body)), api.InvalidRequest)
			s.requireUntouched(t, ref)
			continue
		}
		token, ref := s.mint(text)
		requireProblem(t, s.worker.Do(s.guard, s.worker.Request("payment.create", token, body)), api.InvalidRequest)
		s.requireUntouched(t, ref)
	}
	for _, account := range []string{"", ".", "..", "a/b", "%2e%2e", "a?b", "a#b", `a\b`, "@evil.example", "a;b"} {
		text, err := json.Marshal(map[string]any{"account": account, "cents": 250, "to": "bob"})
		require.NoError(t, err)
		target, request, err := s.ledger.operations["payment.create"].spell(text)
		if err != nil {
			continue
		}
		require.True(t, strings.HasPrefix(target.Resource, s.URL+"/accounts/"), target.Resource)
		require.Equal(t, hostOf(t, s.URL), request.URL.Host)
		require.Equal(t, 4, len(strings.Split(request.URL.EscapedPath(), "/")), account)
		require.Equal(t, "source=night", request.URL.RawQuery)
	}
}

func TestInspection(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(200, `{"items":[{"id":"p-1","iban":"x"},{"id":"`+hush+`"}]}`))
	i, err := NewInspector(s.config) // beside the guard that holds the journal
	require.NoError(t, err)
	state, err := i.Inspect(t.Context(), "payment.create", json.RawMessage(params))
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[{"id":"p-1"},{"id":"[redacted]"}]}`, string(state))
	require.Equal(t, http.MethodGet, s.requests[0].Method)
	require.Equal(t, "/accounts/a-1/payments?to=bob", s.requests[0].RequestURI)
	require.Empty(t, s.bodies[0])
	require.Empty(t, s.requests[0].Header.Get("Idempotency-Key"))

	_, err = i.Inspect(t.Context(), "payment.delete", json.RawMessage(params))
	require.ErrorIs(t, err, ErrNoInspection)
	_, err = i.Inspect(t.Context(), "payment.create", json.RawMessage(`{}`))
	require.Error(t, err)
	for _, answer := range []http.HandlerFunc{saying(404, `{}`), saying(200, `<html>`), saying(500, ``)} {
		s.answer = answer
		_, err = i.Inspect(t.Context(), "payment.create", json.RawMessage(params))
		require.Error(t, err)
	}
	require.NoError(t, os.Remove(fileOf(s.config)))
	_, err = i.Inspect(t.Context(), "payment.create", json.RawMessage(params))
	require.ErrorContains(t, err, "not available")
}

func TestALedgerThatCannotBe(t *testing.T) {
	t.Parallel()
	const origin = "https://api.example:8443"
	for says, change := range map[string]func(c *Config){
		"no operation":           func(c *Config) { c.Operations = nil },
		"stands twice":           func(c *Config) { c.Operations = append(c.Operations, c.Operations[0]) },
		"not a range":            func(c *Config) { c.Private = []string{"10.0.0.1/8"} },
		"provider and a header":  func(c *Config) { c.Credential.Provider = nil },
		"header of its own":      func(c *Config) { c.Credential.Header = "Host" },
		"cannot be a header":     func(c *Config) { c.Operations[0].Request.IdempotencyHeader = "Authorization" },
		"a header of its own":    func(c *Config) { c.Credential.Prefix = "Bearer\r\n" },
		"not a template's":       func(c *Config) { c.Credential.Header = "X-Note" },
		"only a person can help": func(c *Config) { c.Dir = t.TempDir() + "/nowhere" },
	} {
		c := config(t, origin)
		change(&c)
		_, err := New(c)
		if says == "only a person can help" {
			require.ErrorIs(t, err, guards.ErrSettings)
			continue
		}
		require.ErrorContains(t, err, says)
	}
	c := config(t, origin)
	l := newLedger(t, c)
	_, err := New(c)
	require.Error(t, err, "the journal is held")
	action, err := catalogue.Compile(catalogue.HTTP, payment(origin).Operation)
	require.NoError(t, err)
	require.Equal(t, catalogue.DigestOf(action), l.Catalogue())
	require.Equal(t, 12*time.Second, l.Longest())
	_, err = l.Probe(t.Context())
	require.NoError(t, err)
	assert.Error(t, l.Intend(t.Context(), guards.Attempt{Action: "other"}))
}

func TestAnAPIWithoutACredential(t *testing.T) {
	t.Parallel()
	s := newStand(t, saying(201, `{"id":"`+hush+`"}`), func(c *Config) { c.Credential = nil })
	answer, _ := s.pay()
	require.Equal(t, api.Committed, answer.Outcome)
	require.JSONEq(t, `{"id":"`+hush+`"}`, string(answer.Result))
	require.Empty(t, s.requests[0].Header.Get("Authorization"))
}

// An owner who must find out is shown what the destination shows afterwards, whoever finds that nobody knows: the attempt, or who comes after it.
func TestAmbiguousEffectsShowTheDestination(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			saying(200, `{"items":[{"id":"p-1","iban":"x"}]}`)(w, r)
			return
		}
		saying(502, `{}`)(w, r)
	})
	a := goAhead(t, s.ledger, params)
	ending, err := s.ledger.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Ambiguous, ending.Outcome)
	require.JSONEq(t, `{"items":[{"id":"p-1"}]}`, string(ending.Evidence.State))
	proven, err := s.ledger.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[{"id":"p-1"}]}`, string(proven.Evidence.State))
}
