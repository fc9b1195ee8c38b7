package session_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

const header = "Nightwarrant-Envelope"

// proxied is a stage whose door is behind a proxy, which is the browser's header here.
func proxied(t *testing.T) (*stage, *session.Proxied) {
	t.Helper()
	s := &stage{House: authoritytest.Bare(t)}
	keys, err := jwks.New(jwks.Config{Own: s.URL, Issuers: []jwks.Issuer{{URL: s.Platform.URL, JWKSURL: s.Platform.JWKSURL(), Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	envelopes, err := principal.New(principal.Config{Keys: keys, Issuer: s.Platform.URL, Audience: authoritytest.Audience, Own: s.URL, MaxAge: time.Hour,
		Operators: []principal.OperatorRef{{Issuer: s.Platform.URL, Subject: authoritytest.OperatorName}}})
	require.NoError(t, err)
	h, err := principal.HeaderNamed(header)
	require.NoError(t, err)
	return s, &session.Proxied{Actors: s.Authority, Envelopes: envelopes, Header: h, Refuse: s.refuse}
}

func TestBehindAProxy(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	b := newBrowser(t, p)
	b.header.Set(header, s.Envelope(authoritytest.MemberName))
	assert.ErrorIs(t, b.ask(http.MethodPost, "/x", &s.refusing).refused, session.ErrSignIn, "a browser that nobody knows sends nothing")
	assert.Empty(t, b.cookie())
	a := b.ask(http.MethodGet, "/x?y=1", &s.refusing)
	assert.Equal(t, http.StatusSeeOther, a.Code)
	assert.Equal(t, "/login?to=%2Fx%3Fy%3D1", a.Header().Get("Location"))
	assert.Len(t, b.cookie(), 43)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.assertion_owners`), "nothing was presented before the browser is known")
	w := b.do(httptest.NewRequest(http.MethodGet, "/login", nil), func(w http.ResponseWriter, r *http.Request) { assert.NoError(t, p.Enter(w, r, "/x?y=1")) })
	assert.Equal(t, "/x?y=1", w.Header().Get("Location"))

	a = b.ask(http.MethodGet, "/x?y=1", &s.refusing)
	require.NoError(t, a.refused)
	require.NoError(t, s.may(t, a.actor))
	assert.Equal(t, authoritytest.MemberName, a.actor.Subject())
	assert.True(t, a.left.End.IsZero(), "when it ends is the proxy's to say")
	b.header.Set(header, s.Envelope(authoritytest.OperatorName))
	assert.True(t, b.ask(http.MethodGet, "/", &s.refusing).actor.Operator(), "each request is whose envelope it brings")
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.sessions`))

	b.do(httptest.NewRequest(http.MethodPost, "/logout", nil), func(w http.ResponseWriter, r *http.Request) { assert.NoError(t, p.Leave(w, r, false)) })
	assert.Empty(t, b.cookie())
	assert.Equal(t, api.InvalidRequest, codeOf(t, p.Enter(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/login", nil), "/")), "a browser without cookies goes round no circle")
	assert.Equal(t, api.NotFound, codeOf(t, p.Arrive(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/login/callback", nil))))
}

// Whoever steals an envelope has another browser.
func TestAStolenEnvelope(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	owner, thief := newBrowser(t, p), newBrowser(t, p)
	owner.header.Set(header, s.Envelope(authoritytest.MemberName))
	thief.header = owner.header
	for _, b := range []*browser{owner, thief} {
		b.ask(http.MethodGet, "/", &s.refusing)
	}
	require.NoError(t, s.may(t, owner.ask(http.MethodGet, "/", &s.refusing).actor))
	before := s.Consumed()
	assert.Equal(t, api.AssertionBound, codeOf(t, s.may(t, thief.ask(http.MethodGet, "/", &s.refusing).actor)))
	assert.Equal(t, before, s.Consumed())
	require.NoError(t, s.may(t, owner.ask(http.MethodGet, "/", &s.refusing).actor))

	// With the API's key he gets no further, and with the owner's cookie he would be the owner's browser.
	person := s.Person(authoritytest.MemberName)
	require.NoError(t, person.Do(http.MethodGet, api.PathOffers, "", nil, nil))
	thief.header = http.Header{header: {person.Envelope.Reveal()}}
	assert.Equal(t, api.AssertionBound, codeOf(t, s.may(t, thief.ask(http.MethodGet, "/", &s.refusing).actor)))
	// A cookie without an envelope is nobody.
	thief.header, thief.held = http.Header{}, owner.held
	assert.Equal(t, api.InvalidEnvelope, codeOf(t, thief.ask(http.MethodGet, "/", &s.refusing).refused))
}

func TestEnvelopesThatAreRefused(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	b := newBrowser(t, p)
	b.ask(http.MethodGet, "/", &s.refusing)
	now := time.Now()
	claims := func(pairs ...any) map[string]any {
		c := map[string]any{"sub": "m", "aud": authoritytest.Audience, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(), "jti": "j", "email": "m@people.example"}
		for n := 0; n < len(pairs); n += 2 {
			if c[pairs[n].(string)] = pairs[n+1]; pairs[n+1] == nil {
				delete(c, pairs[n].(string))
			}
		}
		return c
	}
	good := s.Platform.Token(claims())
	before := s.Consumed()
	for name, c := range map[string]struct {
		header http.Header
		code   api.Code
	}{
		"none":              {http.Header{}, api.InvalidEnvelope},
		"junk":              {http.Header{header: {"junk"}}, api.InvalidEnvelope},
		"forged":            {http.Header{header: {s.Workloads.Token(claims("iss", s.Platform.URL))}}, api.InvalidEnvelope},
		"changed":           {http.Header{header: {good[:len(good)-2] + "AA"}}, api.InvalidEnvelope},
		"unsigned":          {http.Header{header: {good[:strings.LastIndexByte(good, '.')+1]}}, api.InvalidEnvelope},
		"expired":           {http.Header{header: {s.Platform.Token(claims("iat", now.Add(-time.Hour).Unix(), "exp", now.Add(-time.Minute).Unix()))}}, api.InvalidEnvelope},
		"another audience":  {http.Header{header: {s.Platform.Token(claims("aud", clientID))}}, api.InvalidEnvelope},
		"without an email":  {http.Header{header: {s.Platform.Token(claims("email", nil))}}, api.UnknownMember},
		"by an address":     {http.Header{header: {s.Platform.Token(claims("sub", "m@people.example"))}}, api.InvalidEnvelope},
		"twice":             {http.Header{header: {good, good}}, api.InvalidEnvelope},
		"two proxies":       {http.Header{header: {good}, "Cf-Access-Jwt-Assertion": {good}}, api.InvalidEnvelope},
		"a bearer beside":   {http.Header{header: {good}, "Authorization": {"Bearer " + good}}, api.InvalidEnvelope},
		"in another header": {http.Header{"X-Pomerium-Jwt-Assertion": {good}}, api.InvalidEnvelope},
		"only names":        {http.Header{"X-Forwarded-User": {"m"}, "X-Forwarded-Email": {"m@people.example"}, "X-Auth-Request-User": {"m"}}, api.InvalidEnvelope},
	} {
		b.header = c.header
		a := b.ask(http.MethodGet, "/?subject=m&envelope="+good, &s.refusing)
		require.Error(t, a.refused, name)
		require.Equal(t, c.code, codeOf(t, a.refused), name)
		require.Less(t, len(a.refused.Error()), 200, name)
		require.NotContains(t, a.refused.Error(), "people.example", name)
		require.Zero(t, a.actor, name)
	}
	assert.Equal(t, before, s.Consumed())
	b.header = http.Header{header: {good}, "X-Forwarded-User": {"root"}}
	assert.Equal(t, "m", b.ask(http.MethodGet, "/", &s.refusing).actor.Subject(), "only the envelope says who somebody is")
}
