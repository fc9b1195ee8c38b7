package issuerkeys

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const goodKey = `{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"k","generation":1,` +
	`"x":"APgYG5BNQBWVT-w7yW51bi9M5hVluuqPOGXXl5if_NM","y":"QmnCr5fkc5hvPAHJlus28hFl9fvENm3BAHbt7YcDakQ"}`

func TestKeySetThatIsNotUnderstoodIsNotTaken(t *testing.T) {
	t.Parallel()
	set := func(keys ...string) string { return `{"keys":[` + strings.Join(keys, ",") + `]}` }
	change := func(from, to string) string {
		changed := strings.Replace(goodKey, from, to, 1)
		require.NotEqual(t, goodKey, changed)
		return set(changed)
	}
	_, err := Parse([]byte(set(goodKey)))
	require.NoError(t, err)
	for name, body := range map[string]string{
		"nothing":              ``,
		"no keys":              set(),
		"a kid twice":          set(goodKey, goodKey),
		"seventeen keys":       set(strings.Split(strings.Repeat(goodKey+"|", 17), "|")[:17]...),
		"an RSA key":           set(`{"kty":"RSA","n":"AQAB","e":"AQAB","kid":"k","alg":"ES256","use":"sig","generation":1}`),
		"a symmetric key":      set(`{"kty":"oct","k":"AQAB","kid":"k","alg":"ES256","use":"sig","generation":1}`),
		"a private key":        change(`"kid":"k"`, `"kid":"k","d":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqx7D4"`),
		"another curve":        change("P-256", "P-384"),
		"another algorithm":    change("ES256", "ES384"),
		"an encryption key":    change(`"sig"`, `"enc"`),
		"no use":               change(`"use":"sig",`, ``),
		"no kid":               change(`"kid":"k",`, ``),
		"no generation":        change(`"generation":1,`, ``),
		"generation zero":      change(`"generation":1`, `"generation":0`),
		"half a generation":    change(`"generation":1`, `"generation":1.5`),
		"a generation in text": change(`"generation":1`, `"generation":"1"`),
		"a point off the curve": change(`"APgYG5BNQBWVT-w7yW51bi9M5hVluuqPOGXXl5if_NM","y":"QmnCr5fkc5hvPAHJlus28hFl9fvENm3BAHbt7YcDakQ"`,
			`"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqx7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"`),
		"a good and a bad one": set(goodKey, `{"kty":"oct","k":"AQAB","kid":"o"}`),
	} {
		keys, err := Parse([]byte(body))
		require.Error(t, err, name)
		require.Nil(t, keys, name)
	}
}

// keyServer counts what it is asked, with a clock that only the test moves.
type keyServer struct {
	now    time.Time
	status int
	body   string
	keep   string
	asked  int
}

func (k *keyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	k.asked++
	return &http.Response{StatusCode: k.status, Body: io.NopCloser(strings.NewReader(k.body)), Header: http.Header{"Cache-Control": {k.keep}}}, nil
}

func newKeyServer() (*keyServer, *Set) {
	k := &keyServer{now: time.Now(), status: http.StatusOK, body: `{"keys":[` + goodKey + `]}`}
	return k, New("https://a.example/v1/jwks", &http.Client{Transport: k}, func() time.Time { return k.now })
}

func TestUnknownKidIsLookedUpOnceInTenSeconds(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	for range 100 {
		_, ok, err := keys.Key(t.Context(), "unknown")
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Equal(t, 1, server.asked)
	server.body = strings.Replace(server.body, `"kid":"k"`, `"kid":"unknown"`, 1)
	server.now = server.now.Add(atMost)
	_, ok, err := keys.Key(t.Context(), "unknown")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 2, server.asked)
	_, ok, _ = keys.Key(t.Context(), "k")
	require.False(t, ok, "a key that was withdrawn is gone")
}

func TestKeysAreReadAgainAndUsedNoMoreWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	use := func(after time.Duration) (ok bool, err error) {
		server.now = server.now.Add(after)
		_, ok, err = keys.Key(t.Context(), "k")
		return ok, err
	}
	ok, err := use(0)
	require.True(t, ok && err == nil)
	ok, err = use(fresh)
	require.True(t, ok && err == nil)
	require.Equal(t, 1, server.asked)
	server.status = http.StatusServiceUnavailable
	ok, err = use(time.Second)
	require.True(t, ok && err == nil, "for a while, what is known is good enough: the authority decides")
	require.Equal(t, 2, server.asked)
	_, err = use(stale)
	require.ErrorIs(t, err, ErrNoKeys)
	server.status = http.StatusOK
	ok, err = use(atMost)
	require.True(t, ok && err == nil)
}

// The authority says for how long its keys may be kept, because it waits for that
// long before it signs with another (P27).
func TestKeysAreReadAgainAsTheAuthoritySays(t *testing.T) {
	t.Parallel()
	for control, want := range map[string]time.Duration{
		"public, max-age=60": fresh, "max-age=5": 5 * time.Second, "no-cache, max-age=0": soonest, "max-age=86400": fresh, "": fresh,
		"max-age=-1": fresh, "max-age=1.5": fresh, "max-age=99999999999999": fresh, "s-maxage=5": fresh,
	} {
		server, keys := newKeyServer()
		server.keep = control
		for n, after := range []time.Duration{0, want, time.Millisecond, want, time.Millisecond} {
			server.now = server.now.Add(after)
			_, ok, err := keys.Key(t.Context(), "k")
			require.True(t, ok && err == nil)
			require.Equal(t, 1+n/2, server.asked, control)
		}
		_, _, _ = keys.Key(t.Context(), "unknown")
		server.now = server.now.Add(min(want, atMost))
		_, _, _ = keys.Key(t.Context(), "unknown")
		_, _, _ = keys.Key(t.Context(), "unknown")
		require.Equal(t, 4, server.asked, control)
	}
}

// A refresh ends with its context, and counts.
func TestRefreshThatIsCutShortIsUsedUp(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := keys.Key(gone, "k")
	require.ErrorIs(t, err, ErrNoKeys)
	_, _, err = keys.Key(t.Context(), "k")
	require.ErrorIs(t, err, ErrNoKeys)
	require.Zero(t, server.asked)
	server.now = server.now.Add(atMost)
	_, ok, err := keys.Key(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, ok)
}

func TestKeysThatAreTooMuchAreNotRead(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	server.body += strings.Repeat(" ", maxJWKS)
	_, _, err := keys.Key(t.Context(), "k")
	require.ErrorIs(t, err, ErrNoKeys)
}
