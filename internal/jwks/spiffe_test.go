package jwks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func trustDomain(url string, i *jwkstest.Issuer) Issuer {
	i.Publish("one", "use", "jwt-svid")
	return Issuer{URL: url, JWKSURL: i.JWKSURL(), Algorithms: []string{ES256}}
}

func (d desk) svid(t testing.TB, by *jwkstest.Issuer, pairs ...any) string {
	t.Helper()
	payload, err := json.Marshal(d.claims(pairs...))
	require.NoError(t, err)
	return jwkstest.Sign(by.Signer("one"), []byte(`{"alg":"ES256","kid":"one","typ":"JWT"}`), payload)
}

// Two trust domains may give the same name to two keys: the id of the token alone decides whose is asked for.
func TestTwoTrustDomainsWithOneKID(t *testing.T) {
	t.Parallel()
	prod, test := jwkstest.New(t), jwkstest.New(t)
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{trustDomain("spiffe://prod.example", prod), trustDomain("spiffe://test.example", test)}})
	for _, mode := range []bool{true, false} {
		e := expect
		e.TrustDomain = mode
		verify := func(compact string) (Token, error) { return d.Verify(t.Context(), compact, e) }
		for _, own := range []struct {
			by     *jwkstest.Issuer
			domain string
		}{{prod, "spiffe://prod.example"}, {test, "spiffe://test.example"}} {
			got, err := verify(d.svid(t, own.by, "sub", own.domain+"/worker"))
			require.NoError(t, err)
			require.Equal(t, own.domain, got.Issuer)
		}
		_, err := verify(d.svid(t, test, "sub", "spiffe://prod.example/worker"))
		require.ErrorIs(t, err, BadSignature)
		_, err = verify(d.svid(t, prod, "sub", "spiffe://test.example/worker"))
		require.ErrorIs(t, err, BadSignature)
	}
}

// A server may write its address into iss. Who says that it is a JWT-SVID is judged by its trust domain; who does not,
// by the issuer that it names.
func TestTrustDomainWhateverIssSays(t *testing.T) {
	t.Parallel()
	bundle, oidc := jwkstest.New(t), jwkstest.New(t)
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{trustDomain("spiffe://prod.example", bundle), configured(oidc)}})
	e := expect
	e.TrustDomain = true
	compact := d.svid(t, bundle, "sub", "spiffe://prod.example/worker", "iss", oidc.URL)
	for range 2 { // the second time from memory
		got, err := d.Verify(t.Context(), compact, e)
		require.NoError(t, err)
		require.Equal(t, "spiffe://prod.example", got.Issuer)
		_, err = d.verify(t, compact)
		require.ErrorIs(t, err, BadSignature)
	}
	for name, refused := range map[string]string{
		"no id":              oidc.Token(d.claims()),
		"another's id":       oidc.Token(d.claims("sub", "spiffe://test.example/worker")),
		"no path":            d.svid(t, bundle, "sub", "spiffe://prod.example"),
		"signed by the OIDC": oidc.Token(d.claims("sub", "spiffe://prod.example/worker")),
	} {
		_, err := d.Verify(t.Context(), refused, e)
		require.Error(t, err, name)
	}
	honest := oidc.Token(d.claims("sub", "spiffe://test.example/worker"))
	got, err := d.verify(t, honest)
	require.NoError(t, err)
	require.Equal(t, oidc.URL, got.Issuer)
	_, err = d.Verify(t.Context(), honest, e)
	require.ErrorIs(t, err, UntrustedIssuer, "a token that is remembered under its iss is no SVID of a domain that nobody configured")
}

func TestKeysInAFile(t *testing.T) {
	t.Parallel()
	keys := jwkstest.New(t)
	keys.Publish("one", "use", "jwt-svid")
	dir := t.TempDir()
	file := filepath.Join(dir, "bundle.json")
	write := func(body []byte) { require.NoError(t, os.WriteFile(file, body, 0o600)) }
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{{URL: "spiffe://prod.example", File: file, Algorithms: []string{ES256}}}})
	verify := func() error {
		d.clock.advance(time.Minute * 10)
		_, err := d.verify(t, d.svid(t, keys, "sub", "spiffe://prod.example/worker"))
		return err
	}
	require.ErrorIs(t, verify(), Unavailable, "it is not there yet")
	write(keys.Set())
	require.NoError(t, verify())
	require.Zero(t, keys.Fetches())

	for name, body := range map[string][]byte{"empty": nil, "no set": []byte(`{}`), "no keys": []byte(`{"keys":[]}`), "twice": []byte(`{"keys":[],"keys":[]}`),
		"large": []byte(strings.Repeat(" ", maxBody) + string(keys.Set()))} {
		write(body)
		d.clock.advance(2 * time.Hour) // what was read before is too old
		require.ErrorIs(t, verify(), Unavailable, name)
	}
	require.NoError(t, os.Remove(file))
	for _, make := range []func() error{func() error { return syscall.Mkfifo(file, 0o600) }, func() error { return os.Mkdir(file, 0o700) }} {
		require.NoError(t, make())
		require.ErrorIs(t, verify(), Unavailable, "nobody is waited for")
		require.NoError(t, os.Remove(file))
	}
	write(keys.Set())
	require.NoError(t, verify())
	old := d.svid(t, keys, "sub", "spiffe://prod.example/worker")
	keys.Remove("one")
	keys.Add(t, "two", "ES256")
	write(keys.Set())
	d.clock.advance(6 * time.Minute)
	_, err := d.verify(t, old)
	require.ErrorIs(t, err, UnknownKey, "a key that left the bundle is gone")
}
