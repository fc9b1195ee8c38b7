package worker

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
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

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// wire is a server that a Transport calls without a socket.
type wire struct {
	mu     sync.Mutex
	seen   []*http.Request
	bodies []string
	answer func(n int, r *http.Request) *http.Response // of the n-th request, from 0
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(b)
		_ = r.Body.Close() // it is read
	}
	w.mu.Lock()
	n := len(w.seen)
	w.seen, w.bodies = append(w.seen, r), append(w.bodies, body)
	w.mu.Unlock()
	resp := w.answer(n, r)
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
	resp.Request = r
	return resp, nil
}

func replies(status int, body string, headers ...string) *http.Response {
	resp := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for i := 0; i < len(headers); i += 2 {
		resp.Header.Add(headers[i], headers[i+1])
	}
	return resp
}

const (
	challenge = `DPoP error="use_dpop_nonce", algs="ES256"`
	resource  = "https://ledger.example/ledger/operations/row.append"
)

func newTransport(t testing.TB, answer func(n int, r *http.Request) *http.Response) (*Transport, *wire) {
	t.Helper()
	k, err := NewKey()
	require.NoError(t, err)
	w := &wire{answer: answer}
	return &Transport{Key: k, Base: w}, w
}

func post(t testing.TB, at, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at, strings.NewReader(body))
	require.NoError(t, err)
	return r
}

// proofOf checks the proof of a request and returns the nonce and the time that it names.
func proofOf(t testing.TB, k *Key, r *http.Request, now time.Time) (nonce string, iat time.Time) {
	t.Helper()
	compact, err := capability.HeaderProof(r.Header)
	require.NoError(t, err)
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	p, err := capability.CheckProof(compact, capability.Expect{Method: r.Method, URL: r.URL.Scheme + "://" + r.URL.Host + r.URL.EscapedPath(), AccessToken: capability.Token(token),
		Holder: k.Thumbprint(), Now: now, Nonce: func(n string) error { nonce = n; return nil }})
	require.NoError(t, err)
	return nonce, p.IssuedAt
}

func TestTransportSendsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(r *http.Request)
		want   error
	}{
		"a body that is read once":   {func(r *http.Request) { r.GetBody = nil }, ErrBody},
		"a redirect":                 {func(r *http.Request) { r.Response = replies(307, "") }, ErrRedirected},
		"a bearer":                   {func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, ErrNotDPoP},
		"a password":                 {func(r *http.Request) { r.SetBasicAuth("a", "b") }, ErrNotDPoP},
		"a scheme without a token":   {func(r *http.Request) { r.Header.Set("Authorization", "DPoP") }, ErrNotDPoP},
		"two authorizations":         {func(r *http.Request) { r.Header["Authorization"] = []string{"DPoP a", "DPoP b"} }, ErrNotDPoP},
		"a proof that is there":      {func(r *http.Request) { r.Header.Set(api.HeaderProof, "x") }, ErrNotDPoP},
		"a URL that no proof names":  {func(r *http.Request) { r.URL.Scheme = "ftp" }, nil},
		"a body that cannot be read": {func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, io.ErrClosedPipe } }, io.ErrClosedPipe},
	} {
		tr, w := newTransport(t, func(int, *http.Request) *http.Response { return replies(200, "") })
		r := post(t, resource, "body")
		closed := &closing{Reader: r.Body}
		r.Body = closed
		tc.change(r)
		resp, err := tr.RoundTrip(r) //nolint:bodyclose // there is none
		require.Error(t, err, name)
		require.Nil(t, resp, name)
		if tc.want != nil {
			require.ErrorIs(t, err, tc.want, name)
		}
		assert.Empty(t, w.seen, name)
		assert.True(t, closed.closed, name)
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// A client that follows redirects by itself takes no proof along.
func TestTransportFollowsNoRedirect(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { assert.Fail(t, "a proof went elsewhere") }))
	defer elsewhere.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer s.Close()
	k, err := NewKey()
	require.NoError(t, err)
	base := http.DefaultTransport.(*http.Transport).Clone()
	defer base.CloseIdleConnections()
	_, err = (&http.Client{Transport: &Transport{Key: k, Base: base}}).Do(post(t, s.URL, "body")) //nolint:bodyclose // there is none
	require.ErrorIs(t, err, ErrRedirected)
}

func TestTransportAsksAgainOnceAndOnlyThen(t *testing.T) {
	t.Parallel()
	always := func(status int, body string, headers ...string) func(int, *http.Request) *http.Response {
		return func(n int, _ *http.Request) *http.Response {
			return replies(status, body, append(headers, api.HeaderNonce, fmt.Sprint("n", n))...)
		}
	}
	for name, tc := range map[string]struct {
		answer func(int, *http.Request) *http.Response
		want   int
	}{
		"a challenge for ever":          {always(401, "", "WWW-Authenticate", challenge), 2},
		"a token endpoint's, for ever":  {always(400, `{"error":"use_dpop_nonce"}`), 2},
		"another error of the endpoint": {always(400, `{"error":"invalid_grant"}`), 1},
		"no JSON":                       {always(400, `use_dpop_nonce`), 1},
		"401 of another scheme":         {always(401, "", "WWW-Authenticate", `Bearer error="use_dpop_nonce"`), 1},
		"401 for another reason":        {always(401, "", "WWW-Authenticate", `DPoP error="invalid_token"`), 1},
		"403":                           {always(403, "", "WWW-Authenticate", challenge), 1},
		"success":                       {always(200, ""), 1},
		"no nonce":                      {func(int, *http.Request) *http.Response { return replies(401, "", "WWW-Authenticate", challenge) }, 1},
		"a nonce too long": {func(int, *http.Request) *http.Response {
			return replies(401, "", "WWW-Authenticate", challenge, api.HeaderNonce, strings.Repeat("a", maxNonce+1))
		}, 1},
		"the same nonce": {func(int, *http.Request) *http.Response {
			return replies(401, "", "WWW-Authenticate", challenge, api.HeaderNonce, "same")
		}, 2},
	} {
		tr, w := newTransport(t, tc.answer)
		resp, err := tr.RoundTrip(post(t, resource, "body"))
		require.NoError(t, err, name)
		require.NoError(t, resp.Body.Close())
		assert.Len(t, w.seen, tc.want, name)
		for _, b := range w.bodies {
			assert.Equal(t, "body", b, name)
		}
	}
}

// What is looked into for a challenge is there for the caller.
func TestTransportLeavesTheAnswerWhole(t *testing.T) {
	t.Parallel()
	long := `{"error":"invalid_grant","filler":"` + strings.Repeat("a", 2*maxChallenge) + `"}`
	tr, _ := newTransport(t, func(int, *http.Request) *http.Response { return replies(400, long, api.HeaderNonce, "n") })
	resp, err := tr.RoundTrip(post(t, resource, ""))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, long, string(body))
}

func TestTransportChangesNothingThatItIsGiven(t *testing.T) {
	t.Parallel()
	tr, w := newTransport(t, func(n int, _ *http.Request) *http.Response {
		if n == 0 {
			return replies(401, "", "WWW-Authenticate", challenge, api.HeaderNonce, "one")
		}
		return replies(200, "", api.HeaderNonce, "two")
	})
	r := post(t, resource+"?a=b#c", "body")
	r.Header.Set("Authorization", "DPoP t0ken")
	before := r.Header.Clone()
	resp, err := tr.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, before, r.Header)
	require.Len(t, w.seen, 2)
	first, _ := proofOf(t, tr.Key, w.seen[0], time.Now())
	second, _ := proofOf(t, tr.Key, w.seen[1], time.Now())
	assert.Equal(t, []string{"", "one"}, []string{first, second})
	assert.NotEqual(t, w.seen[0].Header.Get(api.HeaderProof), w.seen[1].Header.Get(api.HeaderProof))
}

// Each origin has its nonce; one is no use at another.
func TestTransportKeepsANonceOfEachOrigin(t *testing.T) {
	t.Parallel()
	tr, w := newTransport(t, func(_ int, r *http.Request) *http.Response {
		return replies(200, "", api.HeaderNonce, "of "+r.URL.Host)
	})
	for range 2 {
		for _, host := range []string{"a.example", "b.example", "a.example:8443"} {
			resp, err := tr.RoundTrip(post(t, "https://"+host+"/x", ""))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
	}
	for i, r := range w.seen {
		nonce, _ := proofOf(t, tr.Key, r, time.Now())
		want := ""
		if i >= 3 {
			want = "of " + r.URL.Host
		}
		assert.Equal(t, want, nonce)
	}
	for i := range 3 * maxOrigins {
		resp, err := tr.RoundTrip(post(t, fmt.Sprintf("https://%d.example/", i), ""))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	assert.LessOrEqual(t, len(tr.origins), maxOrigins)
}

// The Date of a server moves the time in a proof, where it may be believed, and nothing else.
func TestTransportTakesDateForAHint(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Second)
	for name, tc := range map[string]struct {
		date string
		want time.Duration
	}{
		"none": {"", 0}, "garbage": {"yesterday", 0}, "the same": {now.UTC().Format(http.TimeFormat), 0}, "an hour ahead": {now.Add(time.Hour).UTC().Format(http.TimeFormat), time.Hour},
		"ten minutes behind": {now.Add(-10 * time.Minute).UTC().Format(http.TimeFormat), -10 * time.Minute}, "years ahead": {now.AddDate(5, 0, 0).UTC().Format(http.TimeFormat), 0},
	} {
		tr, w := newTransport(t, func(int, *http.Request) *http.Response { return replies(200, "", "Date", tc.date) })
		tr.Now = func() time.Time { return now }
		for range 2 {
			resp, err := tr.RoundTrip(post(t, resource, ""))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		_, iat := proofOf(t, tr.Key, w.seen[1], now)
		assert.Equal(t, tc.want, iat.Sub(now), name)
	}
}

func TestTransportFromManySides(t *testing.T) {
	t.Parallel()
	tr, w := newTransport(t, func(n int, _ *http.Request) *http.Response {
		if n%3 == 0 {
			return replies(401, "", "WWW-Authenticate", challenge, api.HeaderNonce, fmt.Sprint(n))
		}
		return replies(200, "", api.HeaderNonce, fmt.Sprint(n))
	})
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			resp, err := tr.RoundTrip(post(t, resource, fmt.Sprint(i)))
			if assert.NoError(t, err) {
				assert.NoError(t, resp.Body.Close())
			}
		})
	}
	all.Wait()
	jtis := map[string]bool{}
	for _, r := range w.seen {
		jtis[r.Header.Get(api.HeaderProof)] = true
	}
	assert.Len(t, jtis, len(w.seen), "each request has a proof of its own")
}

// With a Transport, any client that knows token exchange gets on with the authority and a guard, in one request each.
func TestTransportInSteadyState(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k, err := NewKey()
	require.NoError(t, err)
	client := &http.Client{Transport: &Transport{Key: k, Base: w}}
	ask := func(at string, form url.Values) (out api.TokenResponse) {
		r := post(t, at, form.Encode())
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&out))
		return out
	}
	run := ask(w.issuer+api.PathToken, url.Values{"grant_type": {api.GrantTokenExchange}, "client_id": {"diary"}, "subject_token": {w.addRun().ref},
		"subject_token_type": {api.TokenTypeRunReference}, "client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {"workload-1"}})
	require.Equal(t, 2, w.count(vClaim), "the first request of all learns the nonce")
	e := Effect{Guard: w.guardURI, Action: "ledger.post", Resource: "book/1"}
	for i := range 3 {
		e.Key = fmt.Sprint("step ", i)
		c, err := e.change()
		require.NoError(t, err)
		minted := ask(w.issuer+api.PathToken, url.Values{"grant_type": {api.GrantTokenExchange}, "client_id": {"diary"}, "subject_token": {run.AccessToken}, "subject_token_type": {api.TokenTypeAccess},
			"resource": {w.guardURI}, "authorization_details": {c.details}, "effect_key": {e.Key}})
		r := post(t, w.guardURI+c.path, string(c.operation))
		r.Header.Set("Authorization", "DPoP "+minted.AccessToken)
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
	}
	assert.Equal(t, 3, w.count(vMint))
	assert.Equal(t, 4, w.count(vGuard), "the first learns the guard's nonce")
}

func TestAKeyStaysWhereItIs(t *testing.T) {
	t.Parallel()
	k, err := NewKey()
	require.NoError(t, err)
	_, err = json.Marshal(k)
	require.Error(t, err)
	_, err = json.Marshal(struct{ K Key }{*k})
	require.Error(t, err)
	require.Error(t, gob.NewEncoder(&bytes.Buffer{}).Encode(k))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		assert.Equal(t, "key "+k.Thumbprint().String(), fmt.Sprintf(verb, k), verb)
	}
}

func TestTransportEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	tr, w := newTransport(t, func(int, *http.Request) *http.Response {
		cancel()
		return replies(401, "", "WWW-Authenticate", challenge, api.HeaderNonce, "n")
	})
	resp, err := tr.RoundTrip(post(t, resource, "").WithContext(ctx))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Len(t, w.seen, 1)
}
