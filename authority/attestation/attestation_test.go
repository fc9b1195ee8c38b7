package attestation

import (
	"context"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	own     = "https://authority.example"
	account = "system:serviceaccount:night:worker"
)

var start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func cacheFor(t testing.TB, issuers ...*jwkstest.Issuer) *jwks.Cache {
	t.Helper()
	cfg := jwks.Config{Own: own, Timeout: 30 * time.Second, Now: func() time.Time { return start }}
	for _, i := range issuers {
		cfg.Issuers = append(cfg.Issuers, jwks.Issuer{URL: i.URL, Algorithms: []string{"ES256", "RS256"}})
	}
	c, err := jwks.New(cfg)
	require.NoError(t, err)
	return c
}

func verifierFor(t testing.TB, issuers ...*jwkstest.Issuer) *Verifier {
	t.Helper()
	v, err := New(Config{Keys: cacheFor(t, issuers...), Audience: own})
	require.NoError(t, err)
	return v
}

// projected are the claims of a projected service account token, changed by
// pairs of name and value; a nil value removes the claim.
func projected(pairs ...any) map[string]any {
	c := map[string]any{
		"aud": []any{own}, "sub": account, "jti": "4b1c7d6e-0000-4000-8000-000000000000",
		"iat": start.Unix(), "nbf": start.Unix(), "exp": start.Add(time.Hour).Unix(),
		"kubernetes.io": map[string]any{
			"namespace":      "night",
			"node":           map[string]any{"name": "node-1", "uid": "u1"},
			"pod":            map[string]any{"name": "worker-0", "uid": "u2"},
			"serviceaccount": map[string]any{"name": "worker", "uid": "u3"},
		},
	}
	for n := 0; n < len(pairs); n += 2 {
		name := pairs[n].(string)
		if c[name] = pairs[n+1]; pairs[n+1] == nil {
			delete(c, name)
		}
	}
	return c
}

func requireReason(t testing.TB, err error, want Reason, code api.Code) {
	t.Helper()
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.Equal(t, want, r.Reason, err)
	var wire *api.Refusal
	require.ErrorAs(t, err, &wire)
	require.Equal(t, code, wire.Code)
	require.Equal(t, r.Sentence, wire.Text())
	require.Less(t, len(r.Sentence), 120)
}

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	keys := cacheFor(t, issuer)
	for name, cfg := range map[string]Config{
		"nothing":              {},
		"no keys":              {Audience: own},
		"no audience":          {Keys: keys},
		"blank audience":       {Keys: keys, Audience: "  "},
		"API server":           {Keys: keys, Audience: "https://kubernetes.default.svc"},
		"API server, long":     {Keys: keys, Audience: "https://kubernetes.default.svc.cluster.local"},
		"API server, slash":    {Keys: keys, Audience: "https://kubernetes.default.svc/"},
		"API server, case":     {Keys: keys, Audience: "HTTPS://Kubernetes.Default.svc"},
		"API server, short":    {Keys: keys, Audience: "https://kubernetes.default"},
		"API server, bare":     {Keys: keys, Audience: "kubernetes.default.svc"},
		"issuer's own":         {Keys: keys, Audience: issuer.URL},
		"issuer's own, slash":  {Keys: keys, Audience: issuer.URL + "/"},
		"issuer's own, case":   {Keys: keys, Audience: strings.ToUpper(issuer.URL)},
		"lifetime too long":    {Keys: keys, Audience: own, MaxLifetime: 25 * time.Hour},
		"lifetime is negative": {Keys: keys, Audience: own, MaxLifetime: -time.Hour},
	} {
		v, err := New(cfg)
		require.Error(t, err, name)
		require.Nil(t, v, name)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	issuer, stranger, down := jwkstest.New(t), jwkstest.New(t), jwkstest.New(t)
	issuer.Add(t, "gone", "ES256")
	down.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	v := verifierFor(t, issuer, down)
	gone := issuer.TokenBy("gone", projected())
	issuer.Remove("gone")
	good := issuer.Token(projected())
	end := strings.LastIndexByte(good, '.')
	for name, tc := range map[string]struct {
		compact string
		want    Reason
		code    api.Code
	}{
		"empty":               {"", Malformed, api.InvalidClient},
		"junk":                {"secret-junk", Malformed, api.InvalidClient},
		"large":               {good + strings.Repeat("A", 16<<10), Malformed, api.InvalidClient},
		"proof":               {typed(issuer, "dpop+jwt"), Malformed, api.InvalidClient},
		"access token":        {typed(issuer, "at+jwt"), Malformed, api.InvalidClient},
		"other issuer":        {stranger.Token(projected()), UntrustedIssuer, api.InvalidClient},
		"our own issuer":      {issuer.Token(projected("iss", own)), UntrustedIssuer, api.InvalidClient},
		"key gone":            {gone, UnknownKey, api.InvalidClient},
		"no signature":        {good[:end+1] + strings.Repeat("A", 86), BadSignature, api.InvalidClient},
		"other issuer's key":  {stranger.Token(projected("iss", issuer.URL)), BadSignature, api.InvalidClient},
		"default audience":    {issuer.Token(projected("aud", []any{"https://kubernetes.default.svc"})), WrongAudience, api.InvalidClient},
		"two audiences":       {issuer.Token(projected("aud", []any{own, "https://kubernetes.default.svc"})), WrongAudience, api.InvalidClient},
		"no audience":         {issuer.Token(projected("aud", nil)), Malformed, api.InvalidClient},
		"empty audiences":     {issuer.Token(projected("aud", []any{})), Malformed, api.InvalidClient},
		"ended":               {issuer.Token(projected("exp", start.Unix())), Expired, api.InvalidClient},
		"without end":         {issuer.Token(projected("exp", nil)), Malformed, api.InvalidClient},
		"without begin":       {issuer.Token(projected("iat", nil)), Malformed, api.InvalidClient},
		"not yet":             {issuer.Token(projected("nbf", start.Unix()+61)), NotYetValid, api.InvalidClient},
		"a year":              {issuer.Token(projected("exp", start.AddDate(1, 0, 0).Unix())), TooLong, api.InvalidClient},
		"a day and a second":  {issuer.Token(projected("exp", start.Unix()+86401)), TooLong, api.InvalidClient},
		"without subject":     {issuer.Token(projected("sub", nil)), Malformed, api.InvalidClient},
		"issuer is not there": {down.Token(projected()), Unavailable, api.Unavailable},
	} {
		a, err := v.Verify(t.Context(), tc.compact)
		require.Error(t, err, name)
		require.Zero(t, a, name)
		requireReason(t, err, tc.want, tc.code)
		if len(tc.compact) > 40 {
			require.NotContains(t, err.Error(), tc.compact[10:40], name)
		}
		require.NotContains(t, err.Error(), "secret", name)
	}
	_, err := v.Verify(t.Context(), good)
	require.NoError(t, err)
}

func typed(i *jwkstest.Issuer, typ string) string {
	payload, _ := json.Marshal(projected("iss", i.URL))
	return jwkstest.Sign(i.Signer("one"), []byte(`{"alg":"ES256","kid":"one","typ":"`+typ+`"}`), payload)
}

func TestHangingIssuerIsUnavailable(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := verifierFor(t, issuer).Verify(ctx, issuer.Token(projected()))
	requireReason(t, err, Unavailable, api.Unavailable)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the log learns why")
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.NotContains(t, r.Error(), issuer.URL, "the caller does not")
}

func TestAssertion(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Add(t, "rsa", "RS256")
	v := verifierFor(t, issuer)
	for _, kid := range []string{"one", "rsa"} {
		compact := issuer.TokenBy(kid, projected())
		a, err := v.Verify(t.Context(), compact)
		require.NoError(t, err)
		require.Equal(t, issuer.URL, a.Issuer)
		require.Equal(t, account, a.Subject)
		require.Equal(t, own, a.Audience)
		require.Equal(t, start, a.IssuedAt)
		require.Equal(t, start.Add(time.Hour), a.Expires)
		require.Nil(t, a.JKT)
		again, err := v.Verify(t.Context(), compact)
		require.NoError(t, err)
		require.Equal(t, a, again)
		other, err := v.Verify(t.Context(), issuer.TokenBy(kid, projected("jti", "another")))
		require.NoError(t, err)
		require.NotEqual(t, a.Digest, other.Digest)
	}
}

// A thief must not get a fresh assertion out of a stolen one by rewriting its
// signature: the key that owns the one owns the other.
func TestRewrittenSignatureHasTheSameDigest(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	v := verifierFor(t, issuer)
	good := issuer.Token(projected())
	end := strings.LastIndexByte(good, '.') + 1
	sig, err := base64.RawURLEncoding.DecodeString(good[end:])
	require.NoError(t, err)
	s := new(big.Int).Sub(elliptic.P256().Params().N, new(big.Int).SetBytes(sig[32:]))
	s.FillBytes(sig[32:])
	a, err := v.Verify(t.Context(), good)
	require.NoError(t, err)
	b, err := v.Verify(t.Context(), good[:end]+jwkstest.B64(sig))
	require.NoError(t, err)
	require.Equal(t, a.Digest, b.Digest)
}

func TestNamedKey(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	v := verifierFor(t, issuer)
	named := capability.Thumbprint{1, 2, 3}
	a, err := v.Verify(t.Context(), issuer.Token(projected("cnf", map[string]any{"jkt": named.String()})))
	require.NoError(t, err)
	require.Equal(t, named, *a.JKT)
	require.NoError(t, a.BoundTo(named))
	requireReason(t, a.BoundTo(capability.Thumbprint{1, 2, 4}), WrongKey, api.AssertionBound)
	requireReason(t, a.BoundTo(capability.Thumbprint{}), WrongKey, api.AssertionBound)
	free, err := v.Verify(t.Context(), issuer.Token(projected()))
	require.NoError(t, err)
	require.NoError(t, free.BoundTo(named))
}

func TestHealthy(t *testing.T) {
	t.Parallel()
	issuer, idle := jwkstest.New(t), jwkstest.New(t)
	v := verifierFor(t, issuer, idle)
	require.ErrorContains(t, v.Healthy([]string{issuer.URL}), "absent or too old")
	_, err := v.Verify(t.Context(), issuer.Token(projected()))
	require.NoError(t, err)
	require.NoError(t, v.Healthy([]string{issuer.URL}))
	require.Error(t, v.Healthy([]string{issuer.URL, idle.URL}))
	require.Error(t, v.Healthy([]string{"https://unknown.example"}))
}

// FuzzAssertion: nothing but a token that an issuer signed is an assertion, and
// no input does worse than be refused.
func FuzzAssertion(f *testing.F) {
	issuer := jwkstest.New(f)
	issuer.Add(f, "rsa", "RS256")
	v := verifierFor(f, issuer)
	good := map[string]bool{}
	for _, kid := range []string{"one", "rsa"} {
		c := issuer.TokenBy(kid, projected())
		good[c[:strings.LastIndexByte(c, '.')]] = true
		f.Add(c)
		f.Add(c + ".")
		f.Add(strings.Replace(c, ".", "..", 1))
		f.Add(c[:len(c)-1])
	}
	f.Add(issuer.Token(projected("aud", []any{own, own})))
	f.Add(typed(issuer, "dpop+jwt"))
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, compact string) {
		a, err := v.Verify(t.Context(), compact)
		if err != nil {
			var r *Refusal
			require.ErrorAs(t, err, &r)
			require.NotEmpty(t, r.Reason)
			require.Zero(t, a)
			return
		}
		require.True(t, good[compact[:strings.LastIndexByte(compact, '.')]])
	})
}
