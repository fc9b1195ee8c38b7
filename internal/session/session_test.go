package session_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/session"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// door is what both kinds of doors do.
type door interface {
	Middleware(next http.Handler) http.Handler
	Actor(r *http.Request) (authority.Actor, error)
	Enter(w http.ResponseWriter, r *http.Request, to string) error
	Arrive(w http.ResponseWriter, r *http.Request) error
	Leave(w http.ResponseWriter, r *http.Request, all bool) error
}

var (
	_ door = (*session.Kept)(nil)
	_ door = (*session.Proxied)(nil)
)

// answered is what a request came to.
type answered struct {
	*httptest.ResponseRecorder
	actor   authority.Actor // whom the page behind the door saw
	refused error           // what the door said instead
	left    session.Left
}

// browser keeps cookies and follows nothing.
type browser struct {
	t      *testing.T
	door   door
	held   map[string]*http.Cookie
	header http.Header
}

type refusing struct{ last error }

func (f *refusing) refuse(w http.ResponseWriter, _ *http.Request, err error) {
	f.last = err
	w.WriteHeader(http.StatusUnauthorized)
}

// do sends a request to what act makes of it, and keeps the cookies of the answer.
func (b *browser) do(r *http.Request, act func(http.ResponseWriter, *http.Request)) *httptest.ResponseRecorder {
	for _, c := range b.held {
		r.AddCookie(c)
	}
	for name, lines := range b.header {
		r.Header[name] = lines
	}
	w := httptest.NewRecorder()
	act(w, r)
	for _, c := range w.Result().Cookies() {
		assert.True(b.t, strings.HasPrefix(c.Name, "__Host-") && c.Secure && c.HttpOnly && c.SameSite == http.SameSiteLaxMode && c.Path == "/" && c.Domain == "", c.String())
		if c.MaxAge < 0 {
			delete(b.held, c.Name)
			continue
		}
		b.held[c.Name] = c
	}
	return w
}

func (b *browser) cookie() string {
	if c := b.held[session.Cookie]; c != nil {
		return c.Value
	}
	return ""
}

// ask asks for a page behind the door.
func (b *browser) ask(method, path string, f *refusing) (a answered) {
	f.last = nil
	a.ResponseRecorder = b.do(httptest.NewRequest(method, path, nil), func(w http.ResponseWriter, r *http.Request) {
		b.door.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var err error
			a.actor, err = b.door.Actor(r)
			assert.NoError(b.t, err)
			a.left, _ = session.LeftOf(r)
			_, _ = w.Write([]byte("page"))
		})).ServeHTTP(w, r)
	})
	a.refused = f.last
	return a
}

func newBrowser(t *testing.T, d door) *browser {
	return &browser{t: t, door: d, held: map[string]*http.Cookie{}, header: http.Header{}}
}

// stage is a house with a door at which people arrive as a test says.
type stage struct {
	*authoritytest.House
	refusing
	kept    *session.Kept
	login   *principal.Envelopes
	arrival session.Arrival
	n       int
	says    directory.Answer // of everybody
	asked   int
}

func (s *stage) Member(context.Context, string, string) (directory.Answer, error) {
	s.asked++
	if s.says == directory.Unknown {
		return s.says, errors.New("away")
	}
	return s.says, nil
}

const clientID = "nightwarrant-console"

func (s *stage) Begin(w http.ResponseWriter, r *http.Request, to string) error {
	http.Redirect(w, r, "https://idp.example/?to="+url.QueryEscape(to), http.StatusSeeOther)
	return nil
}

func (s *stage) Finish(http.ResponseWriter, *http.Request) (session.Arrival, error) {
	if s.arrival.To == "" {
		return session.Arrival{}, api.Refuse(api.InvalidEnvelope)
	}
	return s.arrival, nil
}

func newStage(t *testing.T, change ...func(*session.Config)) *stage {
	t.Helper()
	s := &stage{House: authoritytest.Bare(t), says: directory.Present}
	keys, err := jwks.New(jwks.Config{Own: s.URL, Issuers: []jwks.Issuer{{URL: s.Platform.URL, JWKSURL: s.Platform.JWKSURL(), Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	s.login, err = principal.New(principal.Config{Keys: keys, Issuer: s.Platform.URL, Audience: clientID, Own: s.URL, MaxAge: 10 * time.Minute, Unique: "nonce",
		Operators: []principal.OperatorRef{{Issuer: s.Platform.URL, Subject: authoritytest.OperatorName}}})
	require.NoError(t, err)
	c := session.Config{Actors: s.Authority, Envelopes: s.login, Provider: s, Members: s, Pool: s.Pool, Marks: s.Bundle.Nonces(), Idle: 30 * time.Minute, Life: 12 * time.Hour, Refuse: s.refuse}
	for _, f := range change {
		f(&c)
	}
	s.kept, err = session.NewKept(c)
	require.NoError(t, err)
	return s
}

// token is an ID token for somebody.
func (s *stage) token(who string) string {
	s.n++
	now := time.Now()
	return s.Platform.Token(map[string]any{"sub": who, "aud": clientID, "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix(), "nonce": strings.Repeat("n", s.n), "email": who + "@people.example"})
}

// signIn lets somebody arrive with a browser.
func (s *stage) signIn(t *testing.T, b *browser, who string) {
	t.Helper()
	p, err := s.login.FromEnvelope(t.Context(), s.token(who))
	require.NoError(t, err)
	s.arrival = session.Arrival{Who: p, Attempt: [32]byte{byte(s.n), 1}, Until: time.Now().Add(10 * time.Minute).Truncate(time.Second), To: "/tasks/x?y=1"}
	require.NoError(t, s.arrive(b))
}

func (s *stage) arrive(b *browser) (err error) {
	w := b.do(httptest.NewRequest(http.MethodGet, "/login/callback", nil), func(w http.ResponseWriter, r *http.Request) { err = s.kept.Arrive(w, r) })
	if err == nil {
		assert.Equal(b.t, http.StatusSeeOther, w.Code)
		assert.Equal(b.t, "/tasks/x?y=1", w.Header().Get("Location"))
	}
	return err
}

// may uses an actor for a verb of the database.
func (s *stage) may(t *testing.T, a authority.Actor) error {
	t.Helper()
	_, err := s.Authority.Offers(t.Context(), a, "")
	return err
}

func codeOf(t *testing.T, err error) api.Code {
	t.Helper()
	var r *api.Refusal
	require.ErrorAs(t, err, &r)
	return r.Code
}

func TestWithoutASession(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	a := b.ask(http.MethodGet, "/tasks/x?y=1", &s.refusing)
	assert.Equal(t, http.StatusSeeOther, a.Code)
	assert.Equal(t, "/login?to=%2Ftasks%2Fx%3Fy%3D1", a.Header().Get("Location"))
	assert.Equal(t, "no-store", a.Header().Get("Cache-Control"))
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		assert.ErrorIs(t, b.ask(method, "/tasks/x", &s.refusing).refused, session.ErrSignIn, "what was sent with a form is not sent again by itself")
	}
	b.header.Set("HX-Request", "true")
	assert.ErrorIs(t, b.ask(http.MethodGet, "/tasks", &s.refusing).refused, session.ErrSignIn, "a piece of a page is not the login")
	for _, value := range []string{"", "x", strings.Repeat("A", 43), strings.Repeat("A", 42) + "B", strings.Repeat("A", 44), strings.Repeat("A", 5000)} {
		b.held[session.Cookie] = &http.Cookie{Name: session.Cookie, Value: value}
		assert.ErrorIs(t, b.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, value)
	}
	_, err := s.kept.Actor(httptest.NewRequest(http.MethodGet, "/", nil))
	assert.Equal(t, api.InvalidEnvelope, codeOf(t, err), "not without the middleware")
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.sessions`))
}

func TestASession(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	s.signIn(t, b, authoritytest.MemberName)
	a := b.ask(http.MethodGet, "/", &s.refusing)
	require.NoError(t, a.refused)
	assert.Equal(t, s.arrival.Who.Member(), a.actor.Member())
	assert.False(t, a.actor.Operator())
	require.NoError(t, s.may(t, a.actor))
	assert.InDelta(t, 30*60, a.left.Idle.Sub(a.left.Now).Seconds(), 5)
	assert.InDelta(t, 12*3600, a.left.End.Sub(a.left.Now).Seconds(), 5)
	assert.False(t, a.left.Soon() || a.left.Last())

	entered := b.do(httptest.NewRequest(http.MethodGet, "/login", nil), func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, s.kept.Enter(w, r, "//evil.example"))
	})
	assert.Equal(t, "/", entered.Header().Get("Location"), "who is signed in need not sign in")

	o := newBrowser(t, s.kept)
	s.signIn(t, o, authoritytest.OperatorName)
	assert.True(t, o.ask(http.MethodGet, "/", &s.refusing).actor.Operator())
	assert.Equal(t, int64(2), s.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'sign_in' AND verdict = 'ok'`))
}

// A copy of the database opens no session and names nobody.
func TestWhatStandsInTheDatabase(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	s.signIn(t, b, authoritytest.MemberName)
	var all string
	require.NoError(t, s.Owner.QueryRow(t.Context(), `SELECT string_agg(x::text, ' ') || (SELECT string_agg(convert_from(body, 'UTF8'), ' ') FROM nw.audit) FROM nw.sessions x`).Scan(&all))
	for _, text := range []string{authoritytest.MemberName, s.Platform.URL, b.cookie(), "people.example"} {
		assert.NotContains(t, all, text)
	}
	assert.Equal(t, int64(1), s.Count(`SELECT count(*) FROM nw.sessions WHERE position(convert_to($1, 'UTF8') IN sealed) = 0`, authoritytest.MemberName))
}

func TestAnEndedSession(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	one, two, other := newBrowser(t, s.kept), newBrowser(t, s.kept), newBrowser(t, s.kept)
	s.signIn(t, one, "a")
	s.signIn(t, two, "a")
	s.signIn(t, other, "b")
	kept := one.held[session.Cookie]
	leave := func(b *browser, all bool) {
		b.do(httptest.NewRequest(http.MethodPost, "/logout", nil), func(w http.ResponseWriter, r *http.Request) { assert.NoError(t, s.kept.Leave(w, r, all)) })
	}
	leave(one, false)
	assert.Empty(t, one.cookie())
	one.held[session.Cookie] = kept
	assert.ErrorIs(t, one.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "the cookie was kept, the session was not")
	assert.NoError(t, two.ask(http.MethodPost, "/", &s.refusing).refused)
	s.signIn(t, one, "a")
	leave(one, true)
	assert.ErrorIs(t, two.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "everywhere")
	assert.NoError(t, other.ask(http.MethodPost, "/", &s.refusing).refused, "of nobody else")
	leave(one, true) // again, with nothing
	leave(newBrowser(t, s.kept), false)
	assert.Equal(t, int64(1), s.Count(`SELECT count(*) FROM nw.sessions`))
}

// Session fixation: whatever the browser had before signing in is worth nothing afterwards.
func TestATokenThatWasThereBefore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	attacker, victim := newBrowser(t, s.kept), newBrowser(t, s.kept)
	s.signIn(t, attacker, "attacker")
	for _, planted := range []string{strings.Repeat("A", 43), attacker.cookie()} {
		victim.held[session.Cookie] = &http.Cookie{Name: session.Cookie, Value: planted}
		s.signIn(t, victim, "victim")
		assert.NotEqual(t, planted, victim.cookie())
		thief := newBrowser(t, s.kept)
		thief.held[session.Cookie] = &http.Cookie{Name: session.Cookie, Value: planted}
		assert.ErrorIs(t, thief.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn)
		a := victim.ask(http.MethodGet, "/", &s.refusing)
		require.NoError(t, a.refused)
		assert.Equal(t, "victim", a.actor.Subject())
	}
	victim.held["other"] = &http.Cookie{Name: session.Cookie, Value: strings.Repeat("A", 43)}
	assert.ErrorIs(t, victim.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "two cookies are none")
}

// The same callback, or the same ID token, begins one session.
func TestAReplayedArrival(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.signIn(t, newBrowser(t, s.kept), "a")
	first := s.arrival
	thief := newBrowser(t, s.kept)
	assert.Equal(t, api.AssertionBound, codeOf(t, s.arrive(thief)))
	s.arrival.Attempt = [32]byte{9}
	assert.Equal(t, api.AssertionBound, codeOf(t, s.arrive(thief)), "the same ID token for another attempt")
	p, err := s.login.FromEnvelope(t.Context(), s.token("b"))
	require.NoError(t, err)
	s.arrival = first
	s.arrival.Who = p
	assert.Equal(t, api.AssertionBound, codeOf(t, s.arrive(thief)), "the same attempt with another ID token")
	s.arrival.Attempt, s.arrival.Until = [32]byte{10}, time.Now().Add(-time.Second)
	assert.Equal(t, api.InvalidEnvelope, codeOf(t, s.arrive(thief)), "too late by the database's clock")
	s.arrival.Until, s.arrival.Who = time.Now().Add(time.Minute), principal.Principal{}
	assert.Equal(t, api.InvalidEnvelope, codeOf(t, s.arrive(thief)), "nobody")
	s.arrival.To = ""
	assert.Equal(t, api.InvalidEnvelope, codeOf(t, s.arrive(thief)), "what the provider refuses")
	assert.Empty(t, thief.cookie())
	assert.Equal(t, int64(1), s.Count(`SELECT count(*) FROM nw.sessions`))
	assert.Equal(t, int64(3), s.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'sign_in' AND verdict = 'assertion_bound'`))
}

// at plants a time into a session, which nothing of ours could.
func (s *stage) at(set string) {
	s.Exec(`ALTER TABLE nw.sessions DISABLE TRIGGER sessions_fixed`)
	s.Exec(`UPDATE nw.sessions SET ` + set)
	s.Exec(`ALTER TABLE nw.sessions ENABLE TRIGGER sessions_fixed`)
}

func TestIdling(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	s.signIn(t, b, "a")
	s.at(`idle_until = clock_timestamp() + interval '4 minutes'`)
	b.header.Set("HX-Request", "true")
	a := b.ask(http.MethodGet, "/", &s.refusing)
	require.NoError(t, a.refused)
	assert.True(t, a.left.Soon() && !a.left.Last(), "what a page asks for by itself puts nothing off, and is told")
	b.header.Del("HX-Request")
	a = b.ask(http.MethodGet, "/", &s.refusing)
	assert.False(t, a.left.Soon(), "its person is there")
	assert.InDelta(t, 30*60, a.left.Idle.Sub(a.left.Now).Seconds(), 5)

	s.at(`ends_at = clock_timestamp() + interval '3 minutes', idle_until = clock_timestamp() + interval '1 minute'`)
	a = b.ask(http.MethodGet, "/", &s.refusing)
	assert.True(t, a.left.Soon() && a.left.Last(), "the end never moves")
	assert.InDelta(t, 3*60, a.left.Idle.Sub(a.left.Now).Seconds(), 5)

	s.at(`idle_until = clock_timestamp()`)
	assert.ErrorIs(t, b.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "over")
	_, err := s.Owner.Exec(t.Context(), `UPDATE nw.sessions SET idle_until = ends_at`)
	assert.ErrorContains(t, err, "only stays awake")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.kept.Run(ctx)
	}()
	require.Eventually(t, func() bool { return s.Count(`SELECT count(*) FROM nw.sessions`) == 0 }, 20*time.Second, 10*time.Millisecond)
	stop()
	<-done
}

// Who has left has no session: the directory is asked when they arrive and twice
// a minute at most while they are here. Its silence signs nobody out.
func TestWhoHasLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	one, two := newBrowser(t, s.kept), newBrowser(t, s.kept)
	s.signIn(t, one, "a")
	s.signIn(t, two, "a")
	assert.Equal(t, 2, s.asked)
	sleepy := func() { s.at(`idle_until = clock_timestamp() + interval '20 minutes'`) }
	s.says = directory.Absent
	require.NoError(t, one.ask(http.MethodGet, "/", &s.refusing).refused)
	assert.Equal(t, 2, s.asked, "not at each request")
	sleepy()
	s.says = directory.Unknown
	require.NoError(t, one.ask(http.MethodGet, "/", &s.refusing).refused, "nobody knows")
	assert.Equal(t, 3, s.asked)
	sleepy()
	s.says = directory.Absent
	assert.ErrorIs(t, one.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn)
	assert.ErrorIs(t, two.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "everywhere")
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.sessions`))
	p, err := s.login.FromEnvelope(t.Context(), s.token("a"))
	require.NoError(t, err)
	s.arrival.Who, s.arrival.Attempt = p, [32]byte{77}
	assert.Equal(t, api.UnknownMember, codeOf(t, s.arrive(one)))

	s.says = directory.Present
	s.signIn(t, one, "b")
	s.signIn(t, two, "c")
	member := s.arrival.Who.Member()
	s.Exec(`SELECT nw.depart($1, clock_timestamp(), 100)`, member[:])
	assert.ErrorIs(t, two.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, "their consents ended, and so did this")
	assert.NoError(t, one.ask(http.MethodPost, "/", &s.refusing).refused)
}

// A row that no replica wrote for this token and this member is no session.
func TestForgedSessions(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, b := newBrowser(t, s.kept), newBrowser(t, s.kept)
	s.signIn(t, a, "a")
	s.signIn(t, b, "b")
	for name, plant := range map[string]string{
		"another's seal":       `sealed = (SELECT sealed FROM nw.sessions y WHERE y.digest <> x.digest)`,
		"another's member":     `member = (SELECT member FROM nw.sessions y WHERE y.digest <> x.digest)`,
		"a bit":                `sealed = set_bit(sealed, 100, 1 - get_bit(sealed, 100))`,
		"nothing in it":        `sealed = sha256('')`,
		"twice another's":      `(sealed, member) = (SELECT sealed, member FROM nw.sessions y WHERE y.digest <> x.digest)`,
		"nobody in particular": `member = sha256('x')`,
	} {
		s.Exec(`CREATE TABLE nw.kept AS SELECT * FROM nw.sessions`)
		s.Exec(`ALTER TABLE nw.sessions DISABLE TRIGGER sessions_fixed`)
		s.Exec(`UPDATE nw.sessions x SET ` + plant)
		assert.ErrorIs(t, a.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, name)
		assert.ErrorIs(t, b.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn, name)
		s.Exec(`UPDATE nw.sessions x SET (sealed, member) = (SELECT sealed, member FROM nw.kept y WHERE y.digest = x.digest)`)
		s.Exec(`ALTER TABLE nw.sessions ENABLE TRIGGER sessions_fixed`)
		s.Exec(`DROP TABLE nw.kept`)
		require.NoError(t, a.ask(http.MethodPost, "/", &s.refusing).refused, name)
	}
}

// Whoever has the database's password but no key bundle makes no session: this
// one is sealed as it should be, and marked by another cluster.
func TestASessionOfAnotherCluster(t *testing.T) {
	t.Parallel()
	s, o := newStage(t), authoritytest.Bare(t)
	forger, err := session.NewKept(session.Config{Actors: s.Authority, Envelopes: s.login, Provider: s, Members: s, Pool: s.Pool, Marks: o.Bundle.Nonces(), Idle: time.Hour, Life: time.Hour, Refuse: s.refuse})
	require.NoError(t, err)
	real := s.kept
	s.kept = forger
	b := newBrowser(t, forger)
	s.signIn(t, b, "a")
	require.NoError(t, b.ask(http.MethodPost, "/", &s.refusing).refused)
	b.door = real
	assert.ErrorIs(t, b.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn)
}

// Roles are looked up for each request, and another issuer's sessions are none.
func TestConfigurationsChange(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	s.signIn(t, b, authoritytest.OperatorName)
	keys, err := jwks.New(jwks.Config{Own: s.URL, Issuers: []jwks.Issuer{{URL: s.Platform.URL, JWKSURL: s.Platform.JWKSURL(), Algorithms: []string{"ES256"}}, {URL: s.Workloads.URL, Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	for issuer, want := range map[string]error{s.Platform.URL: nil, s.Workloads.URL: session.ErrSignIn} {
		now, err := principal.New(principal.Config{Keys: keys, Issuer: issuer, Audience: clientID, Own: s.URL, MaxAge: time.Minute})
		require.NoError(t, err)
		b.door, err = session.NewKept(session.Config{Actors: s.Authority, Envelopes: now, Provider: s, Members: s, Pool: s.Pool, Marks: s.Bundle.Nonces(), Idle: time.Hour, Life: time.Hour, Refuse: s.refuse})
		require.NoError(t, err)
		a := b.ask(http.MethodPost, "/", &s.refusing)
		assert.ErrorIs(t, a.refused, want)
		assert.False(t, a.actor.Operator(), "who is no operator any more")
	}
}

func TestAMemberHasSoManySessions(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := newBrowser(t, s.kept)
	s.signIn(t, first, "a")
	other := newBrowser(t, s.kept)
	s.signIn(t, other, "b")
	for range 20 {
		s.signIn(t, newBrowser(t, s.kept), "a")
	}
	assert.Equal(t, int64(21), s.Count(`SELECT count(*) FROM nw.sessions`))
	assert.ErrorIs(t, first.ask(http.MethodPost, "/", &s.refusing).refused, session.ErrSignIn)
	assert.NoError(t, other.ask(http.MethodPost, "/", &s.refusing).refused)
}

// Trouble of ours signs nobody out, and lets nobody in.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := newBrowser(t, s.kept)
	s.signIn(t, b, "a")
	held := b.cookie()
	gone := s.DB.Pool(t, "nw_authority")
	var err error
	b.door, err = session.NewKept(session.Config{Actors: s.Authority, Envelopes: s.login, Provider: s, Members: s, Pool: gone, Marks: s.Bundle.Nonces(), Idle: time.Hour, Life: time.Hour, Refuse: s.refuse})
	require.NoError(t, err)
	gone.Close()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		assert.Equal(t, api.Unavailable, codeOf(t, b.ask(method, "/", &s.refusing).refused))
	}
	for _, act := range []func(http.ResponseWriter, *http.Request) error{
		func(w http.ResponseWriter, r *http.Request) error { return b.door.Enter(w, r, "/") }, b.door.Arrive,
		func(w http.ResponseWriter, r *http.Request) error { return b.door.Leave(w, r, false) }} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: session.Cookie, Value: held})
		assert.Equal(t, api.Unavailable, codeOf(t, act(httptest.NewRecorder(), r)))
	}
}

func TestWrongConfigurations(t *testing.T) {
	t.Parallel()
	_, err := session.NewKept(session.Config{})
	require.Error(t, err)
	s := newStage(t)
	for name, change := range map[string]func(*session.Config){
		"no idling":          func(c *session.Config) { c.Idle = 0 },
		"idles too soon":     func(c *session.Config) { c.Idle = time.Second },
		"idles for longer":   func(c *session.Config) { c.Idle, c.Life = 2*time.Hour, time.Hour },
		"lives for too long": func(c *session.Config) { c.Life = 13 * time.Hour },
		"no provider":        func(c *session.Config) { c.Provider = nil },
		"nobody to ask":      func(c *session.Config) { c.Members = nil },
		"no marks":           func(c *session.Config) { c.Marks = nil },
	} {
		c := s.kept.Config
		change(&c)
		_, err := session.NewKept(c)
		require.Error(t, err, name)
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"/", "/tasks", "/tasks/abc?x=1&y=%2F", "/offers/a-b_c", "/loginx", "/a//b", "/?to=https://evil.example"} {
		assert.Equal(t, to, session.Local(to))
	}
	for _, to := range []string{"", "tasks", "//evil.example", "///evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example", "https:/evil.example", "javascript:alert(1)",
		"/\t/evil.example", "/\n/evil.example", "/\r\nSet-Cookie: a=b", " /tasks", "/%5cevil.example", "/%2f%2fevil.example", "/%2Fevil.example", "/a b", "/ä", "/%zz", "/%00",
		"/login", "/login/callback?code=x", "/logout", "/session/extend", "//", "/" + strings.Repeat("x", 600), "/\x00"} {
		assert.Equal(t, "/", session.Local(to), "%q", to)
	}
}

// FuzzLocal: a browser that resolves what comes out, stays.
func FuzzLocal(f *testing.F) {
	for _, seed := range []string{"/", "//x", "/\\x", "/\t/x", "https://x", "/a?b#c", "/..//x", "/.//x"} {
		f.Add(seed)
	}
	base, err := url.Parse("https://console.example/login")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, to string) {
		got := session.Local(to)
		u, err := base.Parse(got)
		require.NoError(t, err)
		require.Equal(t, "console.example", u.Host)
		require.Equal(t, "https", u.Scheme)
		require.NotContains(t, got, "\\")
		require.False(t, strings.HasPrefix(got, "//"))
	})
}

func TestNoSessionNeverEnds(t *testing.T) {
	t.Parallel()
	_, ok := session.LeftOf(httptest.NewRequest(http.MethodGet, "/", nil))
	require.False(t, ok)
	require.False(t, session.Left{}.Soon())
}
