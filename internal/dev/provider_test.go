package dev

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/config"
)

const back = "http://127.0.0.1:2/login/callback"

// signing is a provider with a client, and a browser that follows nothing.
func signing(t *testing.T) (at string, do func(method, path string, form url.Values) *http.Response) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	at = "http://" + server.Listener.Addr().String()
	issuer, err := NewIssuer(at, "ES256", "")
	require.NoError(t, err)
	server.Config.Handler = NewProvider(issuer, &People{Common: Common{Lifetime: config.Duration(time.Minute)}, Clients: []Client{{ID: "console", RedirectURI: back}},
		People: []Person{{Subject: "<one>", Email: "one@people.dev"}, {Subject: "<one>", File: "2"}}}).Handler()
	server.Start()
	t.Cleanup(server.Close)
	browser := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return at, func(method, path string, form url.Values) *http.Response {
		var body io.Reader
		if method == http.MethodPost {
			body = strings.NewReader(form.Encode())
		} else if form != nil {
			path += "?" + form.Encode()
		}
		r, err := http.NewRequestWithContext(t.Context(), method, at+path, body)
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		answer, err := browser.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
}

// request is an authorization request for the verifier of 43 times v, changed by pairs.
func request(pairs ...string) url.Values {
	q := url.Values{"response_type": {"code"}, "client_id": {"console"}, "redirect_uri": {back}, "state": {"s"}, "nonce": {"n"},
		"code_challenge": {"7w_YNF9DSfIdPf_pRjSq646_kPr-2-o9NAl16JGghdM"}, "code_challenge_method": {"S256"}}
	for n := 0; n < len(pairs); n += 2 {
		q.Set(pairs[n], pairs[n+1])
	}
	return q
}

func TestSigningInAtTheProvider(t *testing.T) {
	t.Parallel()
	at, do := signing(t)
	var says map[string]any
	require.NoError(t, json.NewDecoder(do(http.MethodGet, pathDiscovery, nil).Body).Decode(&says))
	assert.Equal(t, at+"/authorize", says["authorization_endpoint"])
	assert.Equal(t, at+"/token", says["token_endpoint"])

	shown := do(http.MethodGet, pathAuthorize, request())
	text, err := io.ReadAll(shown.Body)
	require.NoError(t, err)
	assert.Contains(t, string(text), "for development")
	assert.Equal(t, 1, strings.Count(string(text), "&lt;one&gt; (one@people.dev)"), "each person once, and escaped")
	for _, bad := range []url.Values{request("redirect_uri", back+"/x"), request("redirect_uri", "https://evil.example"), request("client_id", "other"), request("response_type", "token"),
		request("code_challenge_method", "plain"), request("code_challenge", "x"), request("state", strings.Repeat("x", 9000)), {}} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			answer := do(method, pathAuthorize, bad)
			assert.Equal(t, http.StatusBadRequest, answer.StatusCode)
			assert.Empty(t, answer.Header.Get("Location"), "nobody is sent anywhere")
		}
	}
	no, err := do(http.MethodPost, pathAuthorize, request()).Location()
	require.NoError(t, err)
	assert.Equal(t, "access_denied", no.Query().Get("error"))

	pick := func() string {
		to, err := do(http.MethodPost, pathAuthorize, request("person", "<one>")).Location()
		require.NoError(t, err)
		assert.Equal(t, [2]string{"s", at}, [2]string{to.Query().Get("state"), to.Query().Get("iss")})
		return to.Query().Get("code")
	}
	redeem := func(pairs ...string) (int, map[string]any) {
		form := url.Values{"grant_type": {"authorization_code"}, "client_id": {"console"}, "redirect_uri": {back}, "code_verifier": {strings.Repeat("v", 43)}}
		for n := 0; n < len(pairs); n += 2 {
			form.Set(pairs[n], pairs[n+1])
		}
		answer := do(http.MethodPost, pathToken, form)
		var out map[string]any
		require.NoError(t, json.NewDecoder(answer.Body).Decode(&out))
		return answer.StatusCode, out
	}
	for _, bad := range [][]string{{"code", "x"}, {"code", ""}, {"code_verifier", strings.Repeat("w", 43)}, {"code_verifier", ""}, {"client_id", "other"}, {"redirect_uri", back + "/"}, {"grant_type", "password"}} {
		code := pick()
		status, _ := redeem(append([]string{"code", code}, bad...)...)
		assert.Equal(t, http.StatusBadRequest, status, bad)
	}
	code := pick()
	status, got := redeem("code", code)
	require.Equal(t, http.StatusOK, status)
	assert.Contains(t, got, "id_token")
	status, got = redeem("code", code)
	assert.Equal(t, http.StatusBadRequest, status, "a code is good once")
	assert.NotContains(t, got, "id_token")
}

// Without a client nobody signs in with a browser, and nothing says so.
func TestWithoutAClient(t *testing.T) {
	t.Parallel()
	issuer, err := NewIssuer("http://127.0.0.1:3", "ES256", "")
	require.NoError(t, err)
	h := NewProvider(issuer, &People{}).Handler()
	for path, want := range map[string]int{pathAuthorize: http.StatusNotFound, pathToken: http.StatusNotFound, pathKeys: http.StatusOK} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		assert.Equal(t, want, w.Code, path)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, pathDiscovery, nil))
	assert.NotContains(t, w.Body.String(), "authorization_endpoint")
}

func TestWrongClients(t *testing.T) {
	t.Parallel()
	const good = "listen: 127.0.0.1:9400\naudience: a\npeople: [{subject: s, file: f}]\nclients: [{id: c, redirect_uri: \"http://127.0.0.1:1/x\"}]\n"
	require.NoError(t, config.Parse("f", []byte(good), &People{}, noEnv))
	for _, change := range [][2]string{{"id: c, ", ""}, {"http://127.0.0.1:1/x", "/x"}, {"http://127.0.0.1:1/x", "http://127.0.0.1:1/x?y"}, {"http://127.0.0.1:1/x", "http://127.0.0.1:1/x#y"}, {"redirect_uri", "uri"}} {
		require.Contains(t, good, change[0])
		var e *config.Error
		require.ErrorAs(t, config.Parse("f", []byte(strings.Replace(good, change[0], change[1], 1)), &People{}, noEnv), &e, "%v", change)
	}
}
