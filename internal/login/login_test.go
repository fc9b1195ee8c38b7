package login_test

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/login"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	origin = "http://127.0.0.1:1"
	client = "nightwarrant-console"
	person = "member-7f3a"
)

// house is a provider of identities, whose answers a test may change, and what signs people in there.
type house struct {
	*login.Provider
	url    string
	issuer *dev.Issuer
	log    *bytes.Buffer
	now    atomic.Int64 // is added to the clock, in seconds
	tokens atomic.Pointer[http.HandlerFunc]
	basics atomic.Int64 // token requests with a client's password
}

func provide(t *testing.T, secret login.Secret) *house {
	t.Helper()
	h := &house{log: &bytes.Buffer{}}
	server := httptest.NewUnstartedServer(nil)
	h.url = "http://" + server.Listener.Addr().String()
	people := &dev.People{People: []dev.Person{{Subject: person, Email: "member@people.example"}, {Subject: "ghost"}, {Subject: "a@b.example", Email: "a@b.example"}},
		Clients: []dev.Client{{ID: client, RedirectURI: origin + login.PathCallback}}, Common: dev.Common{Lifetime: config.Duration(10 * time.Minute)}}
	var err error
	h.issuer, err = dev.NewIssuer(h.url, "ES256", "")
	require.NoError(t, err)
	provider := dev.NewProvider(h.issuer, people).Handler()
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok := r.BasicAuth(); ok {
			h.basics.Add(1)
		}
		if f := h.tokens.Load(); f != nil && r.URL.Path == "/token" {
			(*f)(w, r)
			return
		}
		provider.ServeHTTP(w, r)
	})
	server.Start()
	t.Cleanup(server.Close)
	cache, err := jwks.New(jwks.Config{Own: "https://authority.example", Issuers: []jwks.Issuer{{URL: h.url, Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	envelopes, err := principal.New(principal.Config{Keys: cache, Issuer: h.url, Audience: client, Own: "https://authority.example", MaxAge: 10 * time.Minute, Unique: "nonce"})
	require.NoError(t, err)
	h.Provider, err = login.New(login.Config{Issuer: h.url, ClientID: client, Secret: secret, Origin: origin, Envelopes: envelopes,
		Log: slog.New(slog.NewTextHandler(h.log, nil)), Now: func() time.Time { return time.Now().Add(time.Duration(h.now.Load()) * time.Second) }})
	require.NoError(t, err)
	return h
}

// begin is a browser that has been sent to the provider: its cookie and the request that it brings there.
func (h *house) begin(t *testing.T, to string) (*http.Cookie, url.Values) {
	t.Helper()
	w := httptest.NewRecorder()
	require.NoError(t, h.Begin(w, httptest.NewRequest(http.MethodGet, "/login", nil), to))
	require.Equal(t, http.StatusSeeOther, w.Code)
	at, err := url.Parse(w.Header().Get("Location"))
	require.NoError(t, err)
	require.Equal(t, h.url+"/authorize", at.Scheme+"://"+at.Host+at.Path)
	require.Len(t, w.Result().Cookies(), 1)
	return w.Result().Cookies()[0], at.Query()
}

// pick picks a person at the provider and returns with what the browser is sent back.
func (h *house) pick(t *testing.T, q url.Values, who string) url.Values {
	t.Helper()
	form := maps.Clone(q)
	form.Set("person", who)
	direct := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := direct.PostForm(h.url+"/authorize", form)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusSeeOther, answer.StatusCode)
	back, err := url.Parse(answer.Header.Get("Location"))
	require.NoError(t, err)
	require.Equal(t, origin+login.PathCallback, back.Scheme+"://"+back.Host+back.Path)
	return back.Query()
}

func (h *house) finish(q string, cookies ...*http.Cookie) (session.Arrival, *httptest.ResponseRecorder, error) {
	r := httptest.NewRequest(http.MethodGet, login.PathCallback, nil)
	r.URL.RawQuery = q
	for _, c := range cookies {
		r.AddCookie(c)
	}
	w := httptest.NewRecorder()
	a, err := h.Finish(w, r)
	return a, w, err
}

func TestSignIn(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	cookie, q := h.begin(t, "/tasks/x?y=1")
	assert.Equal(t, "__Host-nightwarrant-login", cookie.Name)
	assert.True(t, cookie.Secure && cookie.HttpOnly && cookie.SameSite == http.SameSiteLaxMode && cookie.Path == "/" && cookie.Domain == "" && cookie.MaxAge == 600)
	for name, want := range map[string]string{"response_type": "code", "client_id": client, "redirect_uri": origin + login.PathCallback, "code_challenge_method": "S256", "scope": "openid email"} {
		assert.Equal(t, []string{want}, q[name], name)
	}
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		assert.Len(t, q.Get(name), 43, name)
		assert.NotContains(t, cookie.Value, q.Get(name))
	}
	back := h.pick(t, q, person)
	a, w, err := h.finish(back.Encode(), cookie)
	require.NoError(t, err)
	assert.Equal(t, person, a.Who.Subject())
	assert.Equal(t, h.url, a.Who.Issuer())
	assert.Equal(t, "/tasks/x?y=1", a.To)
	assert.NotZero(t, a.Attempt)
	assert.WithinDuration(t, time.Now().Add(10*time.Minute), a.Until, 5*time.Second)
	require.Len(t, w.Result().Cookies(), 1)
	assert.Negative(t, w.Result().Cookies()[0].MaxAge, "the attempt is over")
	assert.Empty(t, h.log.String())
}

func TestNoTwoAttemptsAreAlike(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	a, p := h.begin(t, "/")
	b, q := h.begin(t, "/")
	assert.NotEqual(t, a.Value, b.Value)
	for _, name := range []string{"state", "nonce", "code_challenge"} {
		assert.NotEqual(t, p.Get(name), q.Get(name), name)
	}
}

func refused(t *testing.T, err error, code api.Code, name string) *api.Refusal {
	t.Helper()
	var r *api.Refusal
	require.ErrorAs(t, err, &r, name)
	require.Equal(t, code, r.Code, name)
	require.Less(t, len(r.Sentence), 160, name)
	for _, leak := range []string{"evil", "people.example", "<script"} {
		require.NotContains(t, err.Error(), leak, name)
	}
	return r
}

func TestCallbacksThatAreRefused(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	cookie, q := h.begin(t, "/")
	other, p := h.begin(t, "/")
	state := "state=" + q.Get("state")
	changed := *cookie
	changed.Value = strings.TrimSuffix(cookie.Value, cookie.Value[strings.LastIndexByte(cookie.Value, '.'):]) + ".L2V2aWw" // another page
	for name, c := range map[string]struct {
		query   string
		cookies []*http.Cookie
		code    api.Code
	}{
		"nothing":                  {"", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"no state":                 {"code=x", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"an empty state":           {"state=&code=x", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"another browser's state":  {"state=" + p.Get("state") + "&code=x", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"another browser's cookie": {state + "&code=x", []*http.Cookie{other}, api.InvalidEnvelope},
		"no cookie":                {state + "&code=x", nil, api.InvalidEnvelope},
		"two cookies":              {state + "&code=x", []*http.Cookie{cookie, other}, api.InvalidEnvelope},
		"another page":             {state + "&code=x", []*http.Cookie{&changed}, api.InvalidEnvelope},
		"two states":               {state + "&" + state + "&code=x", []*http.Cookie{cookie}, api.InvalidRequest},
		"two codes":                {state + "&code=x&code=y", []*http.Cookie{cookie}, api.InvalidRequest},
		"another provider":         {state + "&code=x&iss=https%3A%2F%2Fevil.example", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"a no":                     {state + "&error=access_denied&error_description=<script>evil", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"an error":                 {state + "&error=evil&error_description=evil&error_uri=evil", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"an error and a code":      {state + "&error=evil&code=x", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"no code":                  {state, []*http.Cookie{cookie}, api.InvalidEnvelope},
		"an invented code":         {state + "&code=x", []*http.Cookie{cookie}, api.InvalidEnvelope},
		"a huge query":             {state + "&code=" + strings.Repeat("x", 9000), []*http.Cookie{cookie}, api.InvalidRequest},
		"no query":                 {"%zz", []*http.Cookie{cookie}, api.InvalidRequest},
	} {
		a, w, err := h.finish(c.query, c.cookies...)
		refused(t, err, c.code, name)
		require.True(t, a.Who.IsNobody(), name)
		require.Negative(t, w.Result().Cookies()[0].MaxAge, "%s: the attempt is over", name)
	}
	for _, value := range []string{"", "x", "a.b.c", strings.Repeat("x", 2000), cookie.Value + ".x", "." + cookie.Value} {
		_, _, err := h.finish(state+"&code=x", &http.Cookie{Name: cookie.Name, Value: value})
		refused(t, err, api.InvalidEnvelope, value)
	}
}

func TestAnAttemptIsAnsweredOnceAndInTime(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	cookie, q := h.begin(t, "/")
	back := h.pick(t, q, person).Encode()
	_, _, err := h.finish(back, cookie)
	require.NoError(t, err)
	_, _, err = h.finish(back, cookie)
	refused(t, err, api.InvalidEnvelope, "a code is good once")

	cookie, q = h.begin(t, "/")
	back = h.pick(t, q, person).Encode()
	h.now.Store(600)
	_, _, err = h.finish(back, cookie)
	refused(t, err, api.InvalidEnvelope, "late")
	h.now.Store(-120)
	_, _, err = h.finish(back, cookie)
	refused(t, err, api.InvalidEnvelope, "from the future")
}

func TestWhoMayNotSignIn(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	for who, code := range map[string]api.Code{"ghost": api.UnknownMember, "a@b.example": api.InvalidEnvelope, "": api.InvalidEnvelope} {
		cookie, q := h.begin(t, "/")
		_, _, err := h.finish(h.pick(t, q, who).Encode(), cookie)
		refused(t, err, code, who)
	}
}

// answer is a token endpoint that answers so, with the nonce that was asked for.
func (h *house) answer(t *testing.T, nonce string, change func(claims map[string]any), sign *dev.Issuer) {
	claims := map[string]any{"sub": person, "aud": client, "email": "member@people.example", "nonce": nonce}
	change(claims)
	token, err := sign.Token(claims, time.Now(), 10*time.Minute)
	require.NoError(t, err)
	h.raw(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"token_type": "Bearer", "access_token": "evil", "id_token": token})
	})
}

func (h *house) raw(f http.HandlerFunc) { h.tokens.Store(&f) }

func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	stranger, err := dev.NewIssuer(h.url, "ES256", "")
	require.NoError(t, err)
	now := time.Now()
	for name, c := range map[string]struct {
		change func(map[string]any)
		sign   *dev.Issuer
		code   api.Code
	}{
		"as it should be":       {func(map[string]any) {}, h.issuer, ""},
		"another nonce":         {func(c map[string]any) { c["nonce"] = "evil" }, h.issuer, api.InvalidEnvelope},
		"no nonce":              {func(c map[string]any) { delete(c, "nonce") }, h.issuer, api.InvalidEnvelope},
		"another client":        {func(c map[string]any) { c["aud"] = "evil" }, h.issuer, api.InvalidEnvelope},
		"a client too many":     {func(c map[string]any) { c["aud"] = []string{client, "evil"} }, h.issuer, api.InvalidEnvelope},
		"another issuer":        {func(c map[string]any) { c["iss"] = "https://evil.example" }, h.issuer, api.InvalidEnvelope},
		"a stranger's key":      {func(map[string]any) {}, stranger, api.InvalidEnvelope},
		"over":                  {func(c map[string]any) { c["exp"] = now.Add(-time.Second).Unix() }, h.issuer, api.InvalidEnvelope},
		"issued long ago":       {func(c map[string]any) { c["iat"] = now.Add(-11 * time.Minute).Unix() }, h.issuer, api.InvalidEnvelope},
		"for days":              {func(c map[string]any) { c["exp"] = now.Add(48 * time.Hour).Unix() }, h.issuer, api.InvalidEnvelope},
		"no address":            {func(c map[string]any) { delete(c, "email") }, h.issuer, api.UnknownMember},
		"an address as subject": {func(c map[string]any) { c["sub"] = "evil@people.example" }, h.issuer, api.InvalidEnvelope},
	} {
		cookie, q := h.begin(t, "/")
		h.answer(t, q.Get("nonce"), c.change, c.sign)
		a, _, err := h.finish("code=x&state="+q.Get("state"), cookie)
		if c.code == "" {
			require.NoError(t, err, name)
			require.Equal(t, person, a.Who.Subject())
			continue
		}
		refused(t, err, c.code, name)
		require.True(t, a.Who.IsNobody(), name)
	}
}

// Whatever a provider answers, what comes of it is a bounded refusal of ours.
func TestAnswersThatAreRefused(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	t.Cleanup(elsewhere.Close)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		code   api.Code
	}{
		"an error": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"evil\u001b[31m`+strings.Repeat("x", 500)+`","error_description":"<script>evil"}`)
		}, api.InvalidEnvelope},
		"broken": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }, api.InvalidEnvelope},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, api.InvalidEnvelope},
		"no JSON": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>evil") }, api.Unavailable},
		"no token": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"access_token":"evil","token_type":"Bearer"}`)
		}, api.InvalidEnvelope},
		"a number": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"access_token":"evil","id_token":1}`)
		}, api.InvalidEnvelope},
		"junk": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"access_token":"evil","id_token":"a.b.c"}`)
		}, api.InvalidEnvelope},
		"unsigned": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"access_token":"evil","id_token":"eyJhbGciOiJub25lIn0.e30."}`)
		}, api.InvalidEnvelope},
		"an endless one": {func(w http.ResponseWriter, _ *http.Request) {
			for range 600 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<10))
			}
		}, api.Unavailable},
		"a connection that breaks": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, api.Unavailable},
	} {
		cookie, q := h.begin(t, "/")
		w := c.answer
		h.raw(func(out http.ResponseWriter, r *http.Request) {
			out.Header().Set("Content-Type", "application/json")
			w(out, r)
		})
		_, _, err := h.finish("code=x&state="+q.Get("state"), cookie)
		refused(t, err, c.code, name)
	}
	for _, line := range strings.Split(h.log.String(), "\n") {
		assert.Less(t, len(line), 300)
		assert.NotContains(t, line, "\x1b")
		assert.NotContains(t, line, "<script")
	}
}

// Whoever sends codes that he has invented has so many redeemed at the same time
// and no more: the provider is not to be flooded through us.
func TestManyCodes(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	arrived, release := make(chan struct{}), make(chan struct{})
	h.raw(func(w http.ResponseWriter, _ *http.Request) {
		arrived <- struct{}{}
		<-release
		w.WriteHeader(http.StatusBadRequest)
	})
	cookie, q := h.begin(t, "/")
	ended := make(chan error)
	for range 16 {
		go func() {
			_, _, err := h.finish("code=x&state="+q.Get("state"), cookie)
			ended <- err
		}()
		<-arrived
	}
	_, _, err := h.finish("code=x&state="+q.Get("state"), cookie)
	refused(t, err, api.TooManyRequests, "one too many")
	close(release)
	for range 16 {
		refused(t, <-ended, api.InvalidEnvelope, "the others")
	}
	go func() { <-arrived }()
	_, _, err = h.finish("code=x&state="+q.Get("state"), cookie)
	refused(t, err, api.InvalidEnvelope, "there is room again")
}

func TestAProviderThatIsAway(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "evil", http.StatusBadGateway) }))
	t.Cleanup(server.Close)
	h := provide(t, nil)
	away := h.Config
	away.Issuer = server.URL
	p, err := login.New(away)
	require.NoError(t, err)
	for range 2 {
		w := httptest.NewRecorder()
		refused(t, p.Begin(w, httptest.NewRequest(http.MethodGet, "/login", nil), "/"), api.Unavailable, "away")
		assert.Empty(t, w.Result().Cookies())
	}
}

// A client with a secret shows it as its provider wants it, and it goes nowhere else.
func TestASecret(t *testing.T) {
	t.Parallel()
	h := provide(t, config.Secret("s3cret"))
	cookie, q := h.begin(t, "/")
	var posted string
	h.raw(func(w http.ResponseWriter, r *http.Request) {
		posted = r.PostFormValue("client_secret")
		w.WriteHeader(http.StatusBadRequest)
	})
	_, _, err := h.finish("code=x&state="+q.Get("state"), cookie)
	refused(t, err, api.InvalidEnvelope, "")
	assert.Equal(t, "s3cret", posted, "the provider does not offer client_secret_basic")
	assert.Zero(t, h.basics.Load())
	assert.NotContains(t, h.log.String(), "s3cret")
}

func TestWrongConfigurations(t *testing.T) {
	t.Parallel()
	h := provide(t, nil)
	for name, change := range map[string]func(*login.Config){
		"no issuer":               func(c *login.Config) { c.Issuer = "" },
		"a plain issuer":          func(c *login.Config) { c.Issuer = "http://people.example" },
		"an issuer with password": func(c *login.Config) { c.Issuer = "https://a:b@people.example" },
		"a plain origin":          func(c *login.Config) { c.Origin = "http://console.example" },
		"no client":               func(c *login.Config) { c.ClientID = " " },
		"nobody to judge":         func(c *login.Config) { c.Envelopes = nil },
	} {
		c := h.Config
		change(&c)
		_, err := login.New(c)
		require.Error(t, err, name)
	}
}
