package guards

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

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
	_, err := parseKeys([]byte(set(goodKey)))
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
		keys, err := parseKeys([]byte(body))
		require.Error(t, err, name)
		require.Nil(t, keys, name)
	}
}

// keyServer counts what it is asked, with a clock that only the test moves.
type keyServer struct {
	now    time.Time
	status int
	body   string
	asked  int
}

func (k *keyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	k.asked++
	return &http.Response{StatusCode: k.status, Body: io.NopCloser(strings.NewReader(k.body)), Header: http.Header{}}, nil
}

func newKeyServer() (*keyServer, *keySet) {
	k := &keyServer{now: time.Now(), status: http.StatusOK, body: `{"keys":[` + goodKey + `]}`}
	return k, &keySet{url: "https://a.example/v1/jwks", http: &http.Client{Transport: k}, now: func() time.Time { return k.now }}
}

func TestUnknownKidIsLookedUpOnceInTenSeconds(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	for range 100 {
		_, ok, err := keys.key(t.Context(), "unknown")
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Equal(t, 1, server.asked)
	server.body = strings.Replace(server.body, `"kid":"k"`, `"kid":"unknown"`, 1)
	server.now = server.now.Add(keysAtMost)
	_, ok, err := keys.key(t.Context(), "unknown")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, 2, server.asked)
	_, ok, _ = keys.key(t.Context(), "k")
	require.False(t, ok, "a key that was withdrawn is gone")
}

func TestKeysAreReadAgainAndUsedNoMoreWhenTheyAreOld(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	use := func(after time.Duration) (ok bool, err error) {
		server.now = server.now.Add(after)
		_, ok, err = keys.key(t.Context(), "k")
		return ok, err
	}
	ok, err := use(0)
	require.True(t, ok && err == nil)
	ok, err = use(keysFresh)
	require.True(t, ok && err == nil)
	require.Equal(t, 1, server.asked)
	server.status = http.StatusServiceUnavailable
	ok, err = use(time.Second)
	require.True(t, ok && err == nil, "for a while, what is known is good enough: the authority decides")
	require.Equal(t, 2, server.asked)
	_, err = use(keysStale)
	require.ErrorIs(t, err, errNoKeys)
	server.status = http.StatusOK
	ok, err = use(keysAtMost)
	require.True(t, ok && err == nil)
}

// TestWhoeverHangsUpDoesNotUseUpTheRefresh: or a stranger could keep a guard without keys.
func TestWhoeverHangsUpDoesNotUseUpTheRefresh(t *testing.T) {
	t.Parallel()
	_, keys := newKeyServer()
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	_, ok, err := keys.key(gone, "k")
	require.NoError(t, err)
	require.True(t, ok)
}

func TestKeysThatAreTooMuchAreNotRead(t *testing.T) {
	t.Parallel()
	server, keys := newKeyServer()
	server.body += strings.Repeat(" ", maxJWKS)
	_, _, err := keys.key(t.Context(), "k")
	require.ErrorIs(t, err, errNoKeys)
}

func TestReferenceHasOneSpelling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[A-Za-z0-9_=\n -]{20,24}`).Draw(t, "text")
		ref, err := ParseRef(text)
		if err == nil && ref.String() != text {
			t.Fatalf("%q is also %q", text, ref)
		}
	})
	ref := NewRef()
	again, err := ParseRef(ref.String())
	require.NoError(t, err)
	require.Equal(t, ref, again)
	require.NotEqual(t, ref, NewRef())
}

// FuzzOperationBody holds the request decoder against encoding/json: what it takes, both read alike, and it is canonical
// in one way.
func FuzzOperationBody(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}}}`,
		`{"resource":"account:a","parameters":{"to":"a","cents":5},"amount":5,"currency":"EUR"}`,
		`{"resource":"a","resource":"b","parameters":{}}`, `{"resource":"a","parameters":[]}`, `{"resource":"a","parameters":{"x":1.5}}`,
		`{"resource":"a","parameters":{"x":null}}`, `{"RESOURCE":"a","parameters":{}}`, `{"resource":"\ud800","parameters":{}}`,
		`{"resource":"a","parameters":{"a":1,"\u0061":2}}`, `{"resource":"a","parameters":{},"amount":-0}`, `{}`, ``, `[]`, "\xff",
		`{"resource":"a","parameters":{"` + strings.Repeat(`a":{"`, 40) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := parseBody(body)
		if err != nil {
			require.Equal(t, operationBody{}, b)
			return
		}
		var plain authoritytest.Body
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&plain))
		require.Equal(t, plain, authoritytest.Body{Resource: b.resource, Parameters: plain.Parameters, Amount: b.amount, Currency: b.currency})
		require.LessOrEqual(t, len(body), canonical.MaxSize)
		digest, params, err := capability.ParamsDigest(b.parameters)
		if err != nil {
			return
		}
		again, spelled, err := capability.ParamsDigest(params)
		require.NoError(t, err)
		require.Equal(t, digest, again)
		require.Equal(t, params, spelled)
	})
}

// FuzzRequest throws whole requests at a guard: none but the minted one is admitted, and nothing panics or fails with 5xx.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/ledger/operations/row.append", "DPoP a.b.c", "a.b.c", "application/json", []byte(`{}`))
	f.Add("GET", "/.well-known/oauth-protected-resource/ledger", "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, method, path, authorization, proof, mediaType string, body []byte) {
		if !strings.HasPrefix(path, "/") || method == "" || strings.ContainsAny(method+path, " \r\n\x7f") {
			return
		}
		request, err := http.NewRequest(method, "https://guard.example"+path, strings.NewReader(string(body)))
		if err != nil {
			return
		}
		request.Header.Set("Authorization", authorization)
		request.Header.Set("DPoP", proof)
		request.Header.Set("Content-Type", mediaType)
		s := fuzzStand(t)
		recorder := httptest.NewRecorder()
		s.guard.ServeHTTP(recorder, request)
		require.Less(t, recorder.Code, 500)
		require.Zero(t, s.ledger.count())
	})
}

func fuzzStand(t *testing.T) *stand {
	s := &stand{authority: authoritytest.New(), ledger: newMemory()}
	s.guard = s.newGuard(t)
	return s
}
