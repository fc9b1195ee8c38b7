package jwks

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	good := Issuer{URL: "https://issuer.example", Algorithms: []string{ES256}}
	with := func(change func(i *Issuer)) []Issuer {
		i := good
		change(&i)
		return []Issuer{i}
	}
	for name, cfg := range map[string]Config{
		"nothing":             {},
		"no issuer":           {Own: own},
		"own unknown":         {Issuers: []Issuer{good}},
		"own configured":      {Own: good.URL, Issuers: []Issuer{good}},
		"own with slash":      {Own: good.URL + "/", Issuers: []Issuer{good}},
		"own in other case":   {Own: strings.ToUpper(good.URL), Issuers: []Issuer{good}},
		"twice":               {Own: own, Issuers: []Issuer{good, good}},
		"no algorithm":        {Own: own, Issuers: with(func(i *Issuer) { i.Algorithms = nil })},
		"none":                {Own: own, Issuers: with(func(i *Issuer) { i.Algorithms = []string{ES256, "none"} })},
		"HS256":               {Own: own, Issuers: with(func(i *Issuer) { i.Algorithms = []string{"HS256"} })},
		"plain http":          {Own: own, Issuers: with(func(i *Issuer) { i.URL = "http://issuer.example" })},
		"http to a LAN":       {Own: own, Issuers: with(func(i *Issuer) { i.URL = "http://10.0.0.1" })},
		"http, loopback name": {Own: own, Issuers: with(func(i *Issuer) { i.URL = "http://localhost.example" })},
		"http keys":           {Own: own, Issuers: with(func(i *Issuer) { i.JWKSURL = "http://issuer.example/keys" })},
		"file":                {Own: own, Issuers: with(func(i *Issuer) { i.JWKSURL = "file:///etc/keys" })},
		"relative":            {Own: own, Issuers: with(func(i *Issuer) { i.URL = "issuer.example" })},
		"empty":               {Own: own, Issuers: with(func(i *Issuer) { i.URL = "" })},
		"no host":             {Own: own, Issuers: with(func(i *Issuer) { i.URL = "https://:443/" })},
		"user":                {Own: own, Issuers: with(func(i *Issuer) { i.URL = "https://a:b@issuer.example" })},
		"query":               {Own: own, Issuers: with(func(i *Issuer) { i.URL = "https://issuer.example?" })},
		"fragment":            {Own: own, Issuers: with(func(i *Issuer) { i.URL = "https://issuer.example#" })},
		"SPIFFE discovery":    {Own: own, Issuers: with(func(i *Issuer) { i.URL = "spiffe://prod.example" })},
		"address and file":    {Own: own, Issuers: with(func(i *Issuer) { i.JWKSURL, i.File = "https://a/b", "/etc/keys" })},
		"relative file":       {Own: own, Issuers: with(func(i *Issuer) { i.File = "keys" })},
		"SPIFFE path":         {Own: own, Issuers: with(func(i *Issuer) { i.URL, i.JWKSURL = "spiffe://prod.example/a", "https://a/b" })},
		"SPIFFE upper case":   {Own: own, Issuers: with(func(i *Issuer) { i.URL, i.JWKSURL = "spiffe://Prod", "https://a/b" })},
		"SPIFFE empty":        {Own: own, Issuers: with(func(i *Issuer) { i.URL, i.JWKSURL = "spiffe://", "https://a/b" })},
		"short refresh":       {Own: own, Issuers: []Issuer{good}, Refresh: time.Millisecond},
		"negative refresh":    {Own: own, Issuers: []Issuer{good}, Refresh: -time.Hour},
		"short pause":         {Own: own, Issuers: []Issuer{good}, Pause: time.Millisecond},
		"stale before due":    {Own: own, Issuers: []Issuer{good}, Refresh: time.Hour, MaxStale: time.Minute},
		"long timeout":        {Own: own, Issuers: []Issuer{good}, Timeout: time.Hour},
		"negative timeout":    {Own: own, Issuers: []Issuer{good}, Timeout: -1},
		"long leeway":         {Own: own, Issuers: []Issuer{good}, Leeway: time.Hour},
		"negative leeway":     {Own: own, Issuers: []Issuer{good}, Leeway: -1},
	} {
		c, err := New(cfg)
		require.Error(t, err, name)
		require.Nil(t, c, name)
	}
	_, err := New(Config{Own: own, Issuers: []Issuer{good}})
	require.NoError(t, err)
}

func TestUnconfiguredIssuerIsNeverContacted(t *testing.T) {
	t.Parallel()
	issuer, stranger := jwkstest.New(t), jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, stranger.Token(d.claims()))
	require.ErrorIs(t, err, UntrustedIssuer)
	require.Zero(t, stranger.Fetches())
	require.Zero(t, issuer.Fetches())
	require.True(t, d.RefreshedAt(stranger.URL).IsZero())
	require.False(t, d.Fresh(stranger.URL))
	require.NoError(t, d.Failure(stranger.URL))
}

// Only a token that could be accepted makes anybody fetch keys.
func TestJunkFetchesNothing(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	now := d.clock.now().Unix()
	for _, compact := range []string{
		"junk", issuer.Token(d.claims("aud", "x")), issuer.Token(d.claims("exp", now)), issuer.Token(d.claims("iat", now+60)),
	} {
		_, err := d.verify(t, compact)
		require.Error(t, err)
	}
	require.Zero(t, issuer.Fetches())
}

func TestKeysAreFetchedOnceAndRefreshedWhenDue(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	require.True(t, d.RefreshedAt(issuer.URL).IsZero())
	require.False(t, d.Fresh(issuer.URL))
	verify := func() {
		t.Helper()
		_, err := d.verify(t, issuer.Token(d.claims()))
		require.NoError(t, err)
	}
	verify()
	verify()
	require.Equal(t, 1, issuer.Fetches())
	require.Equal(t, d.clock.now(), d.RefreshedAt(issuer.URL))
	require.True(t, d.Fresh(issuer.URL))
	d.clock.advance(5*time.Minute - 1)
	verify()
	require.Equal(t, 1, issuer.Fetches())
	d.clock.advance(1)
	verify()
	require.Equal(t, 2, issuer.Fetches())
}

func TestRemovedKeyIsGone(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Add(t, "two", "ES256")
	d := newDesk(t, issuer)
	compact := issuer.TokenBy("two", d.claims())
	_, err := d.verify(t, compact)
	require.NoError(t, err)
	issuer.Remove("two")
	d.clock.advance(5 * time.Minute)
	_, err = d.verify(t, compact)
	require.ErrorIs(t, err, UnknownKey, "though the token was remembered as verified")
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
}

func TestReplacedKeyEndsRememberedTokens(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	compact := issuer.Token(d.claims())
	_, err := d.verify(t, compact)
	require.NoError(t, err)
	issuer.Remove("one")
	issuer.Add(t, "one", "ES256")
	d.clock.advance(5 * time.Minute)
	_, err = d.verify(t, compact)
	require.ErrorIs(t, err, BadSignature)
}

func TestRememberedTokenExpires(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	compact := issuer.Token(d.claims("exp", d.clock.now().Unix()+10))
	_, err := d.verify(t, compact)
	require.NoError(t, err)
	_, err = d.Verify(t.Context(), compact, Expect{Audience: "other", MaxLifetime: time.Hour})
	require.ErrorIs(t, err, WrongAudience)
	d.clock.advance(10 * time.Second)
	_, err = d.verify(t, compact)
	require.ErrorIs(t, err, Expired)
}

func TestMemoIsBounded(t *testing.T) {
	t.Parallel()
	m := newMemo()
	name := func(n int) [32]byte { return [32]byte{byte(n), byte(n >> 8), byte(n >> 16)} }
	for n := range 3 * maxRemembered {
		m.put(name(n), entry{parsed: parsed{Token: Token{Expires: time.Unix(int64(n), 0)}}})
		require.LessOrEqual(t, len(m.younger)+len(m.older), maxRemembered)
	}
	last, ok := m.get(name(3*maxRemembered - 1))
	require.True(t, ok)
	require.Equal(t, int64(3*maxRemembered-1), last.parsed.Expires.Unix())
	_, ok = m.get(name(3*maxRemembered - maxRemembered/2))
	require.True(t, ok, "the younger half is remembered")
	_, ok = m.get(name(0))
	require.False(t, ok)
}

func TestRotationIsLearntWithOneRefresh(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	issuer.Add(t, "two", "RS256")
	_, err = d.verify(t, issuer.TokenBy("two", d.claims()))
	require.ErrorIs(t, err, UnknownKey, "the last refresh was just now")
	d.clock.advance(10 * time.Second)
	_, err = d.verify(t, issuer.TokenBy("two", d.claims()))
	require.NoError(t, err)
	require.Equal(t, 2, issuer.Fetches())
}

func TestUnknownKeysRefreshOnceInAPause(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	payload := claimsJSON(t, issuer, d.claims())
	for n := range 50 {
		_, err := d.verify(t, jwkstest.Sign(issuer.Signer("one"), fmt.Appendf(nil, `{"alg":"ES256","kid":"k%d"}`, n), payload))
		require.ErrorIs(t, err, UnknownKey)
	}
	require.Equal(t, 1, issuer.Fetches())
	d.clock.advance(10*time.Second - 1)
	_, err := d.verify(t, jwkstest.Sign(issuer.Signer("one"), []byte(`{"alg":"ES256","kid":"x"}`), payload))
	require.ErrorIs(t, err, UnknownKey)
	require.Equal(t, 1, issuer.Fetches())
	d.clock.advance(1)
	_, err = d.verify(t, jwkstest.Sign(issuer.Signer("one"), []byte(`{"alg":"ES256","kid":"x"}`), payload))
	require.ErrorIs(t, err, UnknownKey)
	require.Equal(t, 2, issuer.Fetches())
}

func TestOneRefreshForManyCallers(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	begun, release := make(chan struct{}), make(chan struct{})
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) {
		begun <- struct{}{}
		<-release
		_, _ = w.Write(issuer.Set())
	})
	results := make(chan error, 20)
	compact := issuer.Token(d.claims())
	for range cap(results) {
		go func() { _, err := d.verify(t, compact); results <- err }()
	}
	within(t, begun, "the refresh")
	close(release)
	for range cap(results) {
		require.NoError(t, <-results)
	}
	require.Equal(t, 1, issuer.Fetches())
}

// While one caller refreshes, others go on with a key that is due but not too old.
func TestDueKeysStillServeOthers(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	begun, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-release
		_, _ = w.Write(issuer.Set())
	})
	d.clock.advance(5 * time.Minute)
	compact := issuer.Token(d.claims())
	go func() { _, err := d.verify(t, compact); done <- err }()
	within(t, begun, "the refresh")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // less than the refresh takes
	defer cancel()
	_, err = d.Verify(ctx, compact, expect)
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
	close(release)
	require.NoError(t, <-done)
}

func TestKeysTooOldAreRefused(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	fetched := d.RefreshedAt(issuer.URL)
	require.NoError(t, d.Failure(issuer.URL))
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	d.clock.advance(time.Hour - 1)
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err, "an outage is bridged")
	require.ErrorContains(t, d.Failure(issuer.URL), "status 500", "and can be seen")
	require.Equal(t, fetched, d.RefreshedAt(issuer.URL))
	d.clock.advance(1)
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.ErrorIs(t, err, Unavailable)
	require.False(t, d.Fresh(issuer.URL))
	issuer.Serve(nil)
	d.clock.advance(10 * time.Second)
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	require.NoError(t, d.Failure(issuer.URL))
}

func TestUnknownKeyDuringAnOutageIsNotARefusalForGood(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	issuer.Add(t, "two", "ES256")
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	d.clock.advance(time.Minute)
	_, err = d.verify(t, issuer.TokenBy("two", d.claims()))
	require.ErrorIs(t, err, Unavailable)
}

// A clock that steps back makes keys neither younger nor immortal.
func TestClockStepsBack(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	d.clock.advance(-24 * time.Hour)
	require.False(t, d.Fresh(issuer.URL))
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	require.Equal(t, 2, issuer.Fetches(), "fetched again")
	require.True(t, d.Fresh(issuer.URL))
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	elsewhere := jwkstest.New(t)
	good := set(t, jwk(t, "kid", "one"))
	for name, serve := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.JWKSURL(), http.StatusFound)
		},
		"permanent": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.JWKSURL(), http.StatusPermanentRedirect)
		},
		"not found":  http.NotFound,
		"no content": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"partial": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(good)
		},
		"empty":   func(http.ResponseWriter, *http.Request) {},
		"page":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"huge":    func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%s%*s", good, maxBody, " ") },
		"endless": endless,
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			fmt.Fprint(w, "{")
		},
		"huge header":       func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) },
		"connection closed": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			issuer := jwkstest.New(t)
			issuer.Serve(serve)
			d := newDesk(t, issuer)
			_, err := d.verify(t, issuer.Token(d.claims()))
			require.ErrorIs(t, err, Unavailable)
			require.True(t, d.RefreshedAt(issuer.URL).IsZero())
			require.Equal(t, 1, issuer.Fetches())
		})
	}
	t.Cleanup(func() { require.Zero(t, elsewhere.Fetches(), "no redirect is followed") })
}

func endless(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		if _, err := fmt.Fprint(w, strings.Repeat(" ", 1024)); err != nil {
			return
		}
	}
}

// hang answers nothing until the client goes away.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func TestSlowIssuerIsBoundedByTheCaller(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]http.HandlerFunc{"hangs": hang, "drips": drip} {
		issuer := jwkstest.New(t)
		issuer.Serve(serve)
		d := newDesk(t, issuer)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := d.Verify(ctx, issuer.Token(d.claims()), expect)
		require.ErrorIs(t, err, Unavailable, name)
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.Less(t, time.Since(began), 20*time.Second, "not the cache's own bound")
	}
}

// drip sends a byte and then nothing until the client goes away.
func drip(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, "{")
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func TestSlowIssuerIsBoundedWithoutADeadline(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Serve(hang)
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{configured(issuer)}, Timeout: 20 * time.Millisecond})
	_, err := d.Verify(context.Background(), issuer.Token(d.claims()), expect)
	require.ErrorIs(t, err, Unavailable)
}

func TestWaitingCallerIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	begun, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-release
		_, _ = w.Write(issuer.Set())
	})
	go func() { _, err := d.verify(t, issuer.Token(d.claims())); done <- err }()
	within(t, begun, "the refresh")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := d.Verify(ctx, issuer.Token(d.claims()), expect)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	close(release)
	require.NoError(t, <-done)
}

// A caller that goes away in the middle of a refresh does not spend it, and one
// that is gone before begins none.
func TestCancellationDoesNotSpendTheRefresh(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	ctx, cancel := context.WithCancel(t.Context())
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		_, _ = w.Write(issuer.Set())
	})
	_, err := d.Verify(ctx, issuer.Token(d.claims()), expect)
	require.NoError(t, err)
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	require.Equal(t, 1, issuer.Fetches())

	other := jwkstest.New(t)
	d = newDesk(t, other)
	_, err = d.Verify(ctx, other.Token(d.claims()), expect)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, other.Fetches())
}

func TestDiscovery(t *testing.T) {
	t.Parallel()
	keys, elsewhere := jwkstest.New(t), jwkstest.New(t)
	for name, tc := range map[string]struct {
		doc func(self string) any
		ok  bool
	}{
		"good":           {func(self string) any { return map[string]any{"issuer": self, "jwks_uri": self + "/keys", "more": 1} }, true},
		"other issuer":   {func(self string) any { return map[string]any{"issuer": keys.URL, "jwks_uri": self + "/keys"} }, false},
		"closing slash":  {func(self string) any { return map[string]any{"issuer": self + "/", "jwks_uri": self + "/keys"} }, false},
		"no issuer":      {func(self string) any { return map[string]any{"jwks_uri": self + "/keys"} }, false},
		"issuer array":   {func(self string) any { return map[string]any{"issuer": []string{self}, "jwks_uri": self + "/keys"} }, false},
		"other host":     {func(self string) any { return map[string]any{"issuer": self, "jwks_uri": elsewhere.JWKSURL()} }, false},
		"plain http":     {func(self string) any { return map[string]any{"issuer": self, "jwks_uri": "http://keys.example/"} }, false},
		"file":           {func(self string) any { return map[string]any{"issuer": self, "jwks_uri": "file:///etc/passwd"} }, false},
		"no address":     {func(self string) any { return map[string]any{"issuer": self} }, false},
		"address number": {func(self string) any { return map[string]any{"issuer": self, "jwks_uri": 1} }, false},
		"user in address": {func(self string) any {
			return map[string]any{"issuer": self, "jwks_uri": "http://a@" + self[7:] + "/keys"}
		}, false},
		"duplicate issuer": {func(self string) any { return json.RawMessage(`{"issuer":"x","issuer":"` + self + `"}`) }, false},
		"not an object":    {func(string) any { return []int{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var self string
			mux := http.NewServeMux()
			mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
				switch doc := tc.doc(self).(type) {
				case json.RawMessage:
					_, _ = w.Write(doc)
				default:
					_ = json.NewEncoder(w).Encode(doc)
				}
			})
			mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(keys.Set()) })
			server := httptest.NewServer(mux)
			defer server.Close()
			self = server.URL
			d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{{URL: self, Algorithms: []string{ES256}}}})
			_, err := d.verify(t, keys.Token(d.claims("iss", self)))
			if tc.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, Unavailable)
			}
		})
	}
	t.Cleanup(func() { require.Zero(t, elsewhere.Fetches()) })
}

func TestDiscoveryRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	evil := jwkstest.New(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, evil.URL+r.URL.Path, http.StatusFound)
	}))
	defer server.Close()
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{{URL: server.URL, Algorithms: []string{ES256}}}})
	_, err := d.verify(t, evil.Token(d.claims("iss", server.URL)))
	require.ErrorIs(t, err, Unavailable)
	require.Zero(t, evil.Fetches())
}

func TestExplicitAddressSkipsDiscovery(t *testing.T) {
	t.Parallel()
	keys := jwkstest.New(t)
	i := Issuer{URL: "https://issuer.invalid/realm", JWKSURL: keys.JWKSURL(), Algorithms: []string{ES256}}
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{i}})
	_, err := d.verify(t, keys.Token(d.claims("iss", i.URL)))
	require.NoError(t, err)
}

func TestServerMustBeTrusted(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.NewTLS(t)
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.ErrorIs(t, err, Unavailable)
	var unknown x509.UnknownAuthorityError
	require.ErrorAs(t, err, &unknown)
	require.Zero(t, issuer.Fetches())

	trusted := configured(issuer)
	trusted.Roots = x509.NewCertPool()
	trusted.Roots.AddCert(issuer.Server.Certificate())
	d = newDeskOf(t, Config{Own: own, Issuers: []Issuer{trusted}})
	_, err = d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
}

// Nothing but the configured address is contacted, and nothing is sent there.
func TestFetchSendsNothing(t *testing.T) {
	t.Parallel()
	transport := newClient(Issuer{}).Transport.(*http.Transport)
	require.Nil(t, transport.Proxy)
	require.True(t, transport.DisableKeepAlives)
	issuer := jwkstest.New(t)
	seen := make(chan *http.Request, 1)
	issuer.Serve(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Clone(context.Background())
		_, _ = w.Write(issuer.Set())
	})
	d := newDesk(t, issuer)
	_, err := d.verify(t, issuer.Token(d.claims()))
	require.NoError(t, err)
	r := <-seen
	require.Equal(t, http.MethodGet, r.Method)
	require.Empty(t, r.Header.Get("Authorization"))
	require.Empty(t, r.Header.Get("Cookie"))
	require.Empty(t, r.URL.RawQuery)
	require.Zero(t, r.ContentLength)
}

func TestRunKeepsKeysFreshUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	a, b := jwkstest.New(t), jwkstest.New(t)
	refreshed := make(chan struct{}, 8)
	var calls atomic.Int64
	a.Serve(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable) // the first one fails
		} else {
			_, _ = w.Write(a.Set())
		}
		refreshed <- struct{}{}
	})
	b.Serve(hang) // another issuer's trouble is its own
	c, err := New(Config{Own: own, Issuers: []Issuer{configured(a), configured(b)}, Refresh: time.Second})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	for range 3 {
		within(t, refreshed, "a refresh")
	}
	require.True(t, c.Fresh(a.URL))
	require.False(t, c.Fresh(b.URL))
	cancel()
	within(t, done, "the end of Run")
}

// An authority that starts before its issuer is not unhealthy for minutes.
func TestRunTriesAgainSoonAfterAFailure(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	asked := make(chan struct{}, 8)
	var calls atomic.Int64
	issuer.Serve(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else {
			_, _ = w.Write(issuer.Set())
		}
		asked <- struct{}{}
	})
	c, err := New(Config{Own: own, Issuers: []Issuer{configured(issuer)}, Pause: time.Second}) // and the default Refresh, 5 min
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); c.Run(ctx) }()
	within(t, asked, "the first refresh")
	within(t, asked, "the second refresh")
	cancel()
	within(t, done, "the end of Run")
}

func TestErrorsAreFaults(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Serve(http.NotFound)
	d := newDesk(t, issuer)
	for _, compact := range []string{"", "a.b.c", issuer.Token(d.claims()), issuer.Token(d.claims("aud", "secret-audience"))} {
		_, err := d.verify(t, compact)
		var fault Fault
		require.True(t, errors.As(err, &fault))
		require.NotContains(t, err.Error(), "secret-audience")
		require.Less(t, len(err.Error()), 300)
	}
}
