package console_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/console"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/login"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

// gate is a house whose people sign in at an identity provider of their own.
type gate struct {
	*authoritytest.House
	URL      string
	Provider string
	Console  *console.Console
}

const clientID = "nightwarrant-console"

// everybody is a directory that nobody leaves.
type everybody struct{}

func (everybody) Member(context.Context, string, string) (directory.Answer, error) {
	return directory.Present, nil
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{House: newHouse(t)}
	pages, provider := httptest.NewUnstartedServer(nil), httptest.NewUnstartedServer(nil)
	g.URL, g.Provider = "http://"+pages.Listener.Addr().String(), "http://"+provider.Listener.Addr().String()
	issuer, err := dev.NewIssuer(g.Provider, "ES256", "")
	require.NoError(t, err)
	provider.Config.Handler = dev.NewProvider(issuer, &dev.People{Common: dev.Common{Lifetime: config.Duration(10 * time.Minute)},
		Clients: []dev.Client{{ID: clientID, RedirectURI: g.URL + login.PathCallback}},
		People:  []dev.Person{{Subject: "ada", Email: "ada@people.example"}, {Subject: "olga", Email: "olga@people.example"}, {Subject: "ghost"}}}).Handler()
	provider.Start()
	t.Cleanup(provider.Close)

	keys, err := jwks.New(jwks.Config{Own: g.House.URL, Issuers: []jwks.Issuer{{URL: g.Provider, Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	envelopes, err := principal.New(principal.Config{Keys: keys, Issuer: g.Provider, Audience: clientID, Own: g.House.URL, MaxAge: 10 * time.Minute, Unique: "nonce",
		Operators: []principal.OperatorRef{{Issuer: g.Provider, Subject: "olga"}}})
	require.NoError(t, err)
	log := slog.New(slog.NewJSONHandler(g.Log, nil))
	at, err := login.New(login.Config{Issuer: g.Provider, ClientID: clientID, Origin: g.URL, Envelopes: envelopes, Log: log})
	require.NoError(t, err)
	door, err := session.NewKept(session.Config{Actors: g.Authority, Envelopes: envelopes, Provider: at, Members: everybody{}, Pool: g.Pool, Marks: g.Bundle.Nonces(), Idle: 30 * time.Minute, Life: time.Hour, Log: log,
		Refuse: func(w http.ResponseWriter, r *http.Request, err error) { g.Console.Refuse(w, r, err) }})
	require.NoError(t, err)
	g.Console, err = console.New(console.Config{Authority: g.Authority, Door: door, Origin: g.URL, Log: log})
	require.NoError(t, err)
	pages.Config.Handler = g.Young(g.Console.Handler())
	pages.Start()
	t.Cleanup(pages.Close)
	return g
}

// plant changes sessions as nothing of ours could.
func (g *gate) plant(set string) {
	g.T.Helper()
	g.Exec(`ALTER TABLE nw.sessions DISABLE TRIGGER sessions_fixed`)
	g.Exec(`UPDATE nw.sessions SET ` + set)
	g.Exec(`ALTER TABLE nw.sessions ENABLE TRIGGER sessions_fixed`)
}

// guest is a browser that keeps the cookies of the pages, which are for TLS and loopback only.
type guest struct {
	g      *gate
	client *http.Client
	jar    *jar
}

func (g *gate) guest() *guest {
	j := &jar{}
	return &guest{g, &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, j}
}

// do sends a request to the pages; a form is posted as a browser's own would be.
func (b *guest) do(method, path string, form url.Values, header ...string) (int, http.Header, string) {
	b.g.T.Helper()
	at, err := url.Parse(b.g.URL)
	require.NoError(b.g.T, err)
	r, err := http.NewRequestWithContext(b.g.T.Context(), method, b.g.URL+path, strings.NewReader(form.Encode()))
	require.NoError(b.g.T, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for n := 0; n < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	for _, c := range b.jar.Cookies(at) {
		r.AddCookie(c)
	}
	a, err := b.client.Do(r)
	require.NoError(b.g.T, err)
	defer a.Body.Close()
	b.jar.SetCookies(at, a.Cookies())
	text, err := io.ReadAll(a.Body)
	require.NoError(b.g.T, err)
	return a.StatusCode, a.Header, string(text)
}

// signIn walks as a browser does: to a page, to the login, to the provider, back, and to the page.
func (b *guest) signIn(who, to string) (status int, path, page string) {
	b.g.T.Helper()
	_, head, _ := b.do(http.MethodGet, to, nil)
	login := head.Get("Location")
	require.True(b.g.T, strings.HasPrefix(login, "/login?to="), login)
	_, head, _ = b.do(http.MethodGet, login, nil)
	ask, err := url.Parse(head.Get("Location"))
	require.NoError(b.g.T, err)
	form := ask.Query()
	form.Set("person", who)
	a, err := b.client.PostForm(b.g.Provider+"/authorize", form)
	require.NoError(b.g.T, err)
	defer a.Body.Close()
	back, err := a.Location()
	require.NoError(b.g.T, err)
	path = back.RequestURI()
	status, head, page = b.do(http.MethodGet, path, nil)
	if status == http.StatusSeeOther {
		path = head.Get("Location")
		status, _, page = b.do(http.MethodGet, path, nil)
	}
	return status, path, page
}

// Who comes in and who does not, from nobody at all to a session that ends.
func TestTheDoor(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	part(g.House, "pages without an identity", g.pagesWithoutAnIdentity)
	part(g.House, "people who do not get in", g.peopleWhoDoNotGetIn)
	part(g.House, "posts from elsewhere", g.postsFromElsewhere)
	part(g.House, "nothing else says who somebody is", g.nothingElseSaysWho)
	part(g.House, "signing in", g.signingIn)
	part(g.House, "a session that ends soon", g.sessionThatEndsSoon)
}

func (g *gate) signingIn(t *testing.T) {
	b := g.guest()
	status, path, page := b.signIn("ada", "/decisions?x=1")
	require.Equal(t, http.StatusOK, status, page)
	assert.Equal(t, "/decisions?x=1", path, "the page that was asked for")
	assert.Contains(t, page, "No decision waits for you")
	assert.Contains(t, page, "You are signed in until")
	assert.Contains(t, page, `action="/logout"`)
	assert.NotContains(t, page, "ada", "no page says who somebody is: the platform's word is not kept")
	kept := b.jar.kept[session.Cookie]
	require.NotNil(t, kept)
	assert.True(t, kept.Secure && kept.HttpOnly && kept.SameSite == http.SameSiteLaxMode && kept.Path == "/" && kept.Domain == "")
	assert.NotContains(t, b.jar.kept, session.Cookie+"-login")

	status, head, _ := b.do(http.MethodGet, "/login?to=//evil.example", nil)
	assert.Equal(t, []any{http.StatusSeeOther, "/"}, []any{status, head.Get("Location")})
	status, head, _ = b.do(http.MethodPost, "/session/extend", url.Values{"to": {"https://evil.example"}})
	assert.Equal(t, []any{http.StatusSeeOther, "/"}, []any{status, head.Get("Location")})
	status, head, _ = b.do(http.MethodPost, "/session/extend", url.Values{"to": {"/decisions"}})
	assert.Equal(t, []any{http.StatusSeeOther, "/decisions"}, []any{status, head.Get("Location")})

	status, head, _ = b.do(http.MethodPost, "/logout", url.Values{})
	assert.Equal(t, []any{http.StatusSeeOther, "/signed-out"}, []any{status, head.Get("Location")})
	assert.NotContains(t, b.jar.kept, session.Cookie)
	status, _, page = b.do(http.MethodGet, "/signed-out", nil)
	assert.Equal(t, http.StatusOK, status)
	assert.NotContains(t, page, `action="/logout"`)
	b.jar.kept[session.Cookie] = kept
	status, head, _ = b.do(http.MethodGet, "/", nil)
	assert.Equal(t, []any{http.StatusSeeOther, "/login?to=%2F"}, []any{status, head.Get("Location")}, "the cookie was kept, the session was not")
}

func (g *gate) sessionThatEndsSoon(t *testing.T) {
	b := g.guest()
	b.signIn("ada", "/")
	g.plant(`idle_until = clock_timestamp() + interval '3 minutes'`)
	status, _, part := b.do(http.MethodGet, "/session?to=/decisions", nil, "HX-Request", "true")
	require.Equal(t, http.StatusOK, status)
	assert.True(t, strings.HasPrefix(part, `<div id="session"`), part)
	assert.Contains(t, part, "Stay signed in")
	assert.Contains(t, part, `name="to" value="/decisions"`)
	assert.NotContains(t, part, "<html")
	_, _, part = b.do(http.MethodGet, "/session?to=//evil.example", nil, "HX-Request", "true")
	assert.Contains(t, part, `name="to" value="/"`, "asking for it puts nothing off")
	b.do(http.MethodPost, "/session/extend", url.Values{"to": {"/"}})
	_, _, part = b.do(http.MethodGet, "/session", nil, "HX-Request", "true")
	assert.Contains(t, part, "and longer if you go on")
	g.plant(`ends_at = clock_timestamp() + interval '2 minutes', idle_until = clock_timestamp() + interval '110 seconds'`)
	_, _, page := b.do(http.MethodGet, "/decisions", nil)
	assert.Contains(t, page, "and no longer")
	assert.NotContains(t, page, "Stay signed in")
	g.plant(`idle_until = clock_timestamp()`)
	status, _, part = b.do(http.MethodGet, "/session?to=/decisions", nil, "HX-Request", "true")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, part, "You are not signed in any more")
	assert.Contains(t, part, `href="/login?to=%2fdecisions"`)
}

func (g *gate) peopleWhoDoNotGetIn(t *testing.T) {
	for who, want := range map[string]string{"ghost": "no member with an email", "": "signing in was refused"} {
		b := g.guest()
		status, _, page := b.signIn(who, "/")
		assert.Equal(t, http.StatusUnauthorized, status, who)
		assert.Contains(t, page, want)
		assert.Contains(t, page, `href="/login"`)
		assert.NotContains(t, page, `action="/logout"`)
		assert.NotContains(t, b.jar.kept, session.Cookie)
	}
	b := g.guest()
	status, _, page := b.do(http.MethodGet, "/login/callback?code=x&state=y", nil)
	assert.Equal(t, http.StatusUnauthorized, status)
	assert.Contains(t, page, "not the answer to a sign-in that this browser began")
	status, _, page = b.do(http.MethodGet, "/login/callback?error=%3Cscript%3E&error_description=evil&state=y", nil)
	assert.Equal(t, http.StatusUnauthorized, status)
	assert.NotContains(t, page, "evil")
	assert.NotContains(t, page, "<script>")
	status, _, page = b.do(http.MethodPost, "/decisions/x/deny", url.Values{"digest": {"x"}})
	assert.Equal(t, http.StatusUnauthorized, status)
	assert.Contains(t, page, "Nothing was done")
	assert.Zero(t, g.Count(`SELECT count(*) FROM nw.sessions`))
}

// A page of elsewhere makes a browser post nothing, not even signing out.
func (g *gate) postsFromElsewhere(t *testing.T) {
	b := g.guest()
	b.signIn("ada", "/")
	for _, path := range []string{"/logout", "/session/extend", "/settings", "/offers/x/consent"} {
		for name, header := range map[string][]string{
			"cross-site":     {"Sec-Fetch-Site", "cross-site"},
			"a neighbour":    {"Sec-Fetch-Site", "same-site"},
			"an old browser": {"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
			"no origin":      {"Sec-Fetch-Site", "", "Origin", "null"},
		} {
			status, _, _ := b.do(http.MethodPost, path, url.Values{"to": {"/"}, "all": {"1"}, "zone": {"UTC"}, "digest": {"x"}}, header...)
			assert.Equal(t, http.StatusForbidden, status, "%s %s", path, name)
		}
	}
	status, _, _ := b.do(http.MethodGet, "/decisions", nil)
	assert.Equal(t, http.StatusOK, status, "still signed in")
	for _, path := range []string{"/logout", "/session/extend"} {
		status, _, _ := b.do(http.MethodGet, path, nil)
		assert.Equal(t, http.StatusMethodNotAllowed, status, "a link does nothing")
	}
}

// Everything that says who somebody is, but their session, is nothing.
func (g *gate) nothingElseSaysWho(t *testing.T) {
	b := g.guest()
	envelope := g.Envelope(authoritytest.OperatorName)
	for _, header := range [][]string{{"Nightwarrant-Envelope", envelope}, {"Authorization", "Bearer " + envelope}, {"X-Forwarded-User", "olga"}, {"Cf-Access-Jwt-Assertion", envelope}, {"Cookie", "who=olga"}} {
		status, head, _ := b.do(http.MethodGet, "/?subject=olga&member=olga", nil, header...)
		assert.Equal(t, http.StatusSeeOther, status, header[0])
		assert.Contains(t, head.Get("Location"), "/login")
	}
	b.signIn("ada", "/")
	before := b.jar.kept[session.Cookie].Value
	_, _, page := b.do(http.MethodGet, "/", nil, "Nightwarrant-Envelope", envelope, "X-Forwarded-User", "olga")
	assert.NotContains(t, page, "Operate")
	assert.Equal(t, before, b.jar.kept[session.Cookie].Value)
}
