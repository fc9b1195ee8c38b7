package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/session"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// Whatever is wrong with how people get to their pages ends a replica before it asks the database.
func TestServeRefusesPages(t *testing.T) {
	t.Parallel()
	s := newSite(t, unreachable)
	for lines, sentence := range map[string]string{
		`console: {origin: "https://c.example"}`:                                                             "console needs either login or envelope_header, and not both",
		`console: {origin: "https://c.example", envelope_header: Cookie}`:                                    "console.envelope_header cannot be used: Cookie is a header that carries no identity",
		`console: {origin: "https://c.example", envelope_header: X-Amzn-Oidc-Data}`:                          "carries no audience",
		`console: {origin: "https://c.example", envelope_header: "a b"}`:                                     "is not the name of a header",
		`console: {origin: "https://c.example", login: {client_id: "` + s.url + `"}}`:                        "console.login cannot be used",
		`console: {origin: "https://c.example", login: {client_id: "` + s.platform.URL + `"}}`:               "console.login cannot be used",
		`console: {origin: "https://c.example", login: {client_id: c, client_secret_file: ` + s.file + `x}}`: "cannot be opened",
		`console: {origin: "http://c.example", login: {client_id: c}}`:                                       "console.origin must be https",
	} {
		env{}.run(t, "serve", "--config", s.with(t, "instance: one", "instance: one\n"+lines)).bad(t, exitMisconfigured, sentence)
	}
	env{}.run(t, "serve", "--config", s.with(t, "operators: [", "auditors: [{issuer: x, subject: y}]\n  operators: [")).bad(t, exitMisconfigured, "an operator or auditor must be named by the envelope's issuer")
}

// Pages stand beside the API on one listener: each path is answered by one of
// them, and what one calls an identity is none to the other.
func TestServePages(t *testing.T) {
	t.Parallel()
	for name, console := range map[string]string{"login": "login: {client_id: nightwarrant-console}", "a proxy": "envelope_header: Nightwarrant-Envelope"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := teststack.Database(t)
			s := newSite(t, db.URL("nw_authority"))
			require.Equal(t, exitOK, s.register(t, db).code)
			r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.with(t, "instance: one", "instance: one\nconsole: {origin: \""+s.url+"\", "+console+"}"))
			ask := func(path string, header ...string) (*http.Response, string) {
				q := httptest.NewRequest(http.MethodGet, s.url+path, nil)
				q.RequestURI = ""
				for n := 0; n < len(header); n += 2 {
					q.Header.Add(header[n], header[n+1])
				}
				client := plainClient()
				client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				a, err := client.Do(q)
				require.NoError(t, err)
				defer a.Body.Close()
				text, err := io.ReadAll(a.Body)
				require.NoError(t, err)
				return a, string(text)
			}
			for _, path := range []string{api.PathTasks, api.PathOffers, "/v1/nothing", "/.well-known/nothing"} {
				a, _ := ask(path, "Cookie", session.Cookie+"=x")
				assert.Equal(t, "application/problem+json", a.Header.Get("Content-Type"), path)
				assert.GreaterOrEqual(t, a.StatusCode, 400, path)
			}
			a, _ := ask("/healthz")
			assert.Equal(t, http.StatusOK, a.StatusCode)
			a, page := ask("/nothing")
			assert.Equal(t, http.StatusNotFound, a.StatusCode)
			assert.Contains(t, page, "There is nothing here")
			a, _ = ask("/decisions?x=1")
			assert.Equal(t, http.StatusSeeOther, a.StatusCode)
			assert.Equal(t, "/login?to="+url.QueryEscape("/decisions?x=1"), a.Header.Get("Location"))
			if name == "login" {
				a, page = ask("/login")
				assert.Equal(t, http.StatusServiceUnavailable, a.StatusCode, "this platform has nowhere to sign in")
				assert.NotContains(t, page, s.platform.URL)
			} else {
				h := &authoritytest.House{Platform: s.platform}
				cookie := a.Header.Get("Set-Cookie")
				a, page = ask("/decisions", "Cookie", cookie[:len(session.Cookie)+44], "Nightwarrant-Envelope", h.Envelope("somebody"))
				assert.Equal(t, http.StatusOK, a.StatusCode, page)
				assert.Contains(t, page, "No decision waits for you")
			}
			assert.Equal(t, exitOK, r.end(), r.log)
		})
	}
}
