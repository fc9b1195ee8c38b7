package jwks

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

var anyIssuer = Issuer{URL: "https://issuer.example", Algorithms: []string{RS256, ES256}}

// jwk is a fresh usable key with kid "k", changed by pairs of name and value; a
// nil value removes the member.
func jwk(t testing.TB, pairs ...any) map[string]any {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return change(jwkstest.PublicJWK(k.Public()), pairs...)
}

func change(out map[string]any, pairs ...any) map[string]any {
	out["kid"] = "k"
	for n := 0; n < len(pairs); n += 2 {
		name := pairs[n].(string)
		if out[name] = pairs[n+1]; pairs[n+1] == nil {
			delete(out, name)
		}
	}
	return out
}

func rsaJWK(t testing.TB, bits int, pairs ...any) map[string]any {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	n.SetBit(n, 0, 1)
	return change(jwkstest.PublicJWK(&rsa.PublicKey{N: n, E: 65537}), pairs...)
}

func set(t testing.TB, keys ...map[string]any) []byte {
	t.Helper()
	b, err := json.Marshal(map[string]any{"keys": keys})
	require.NoError(t, err)
	return b
}

func TestUsableKeys(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]map[string]any{
		"plain":          jwk(t),
		"with alg":       jwk(t, "alg", "ES256"),
		"with use":       jwk(t, "use", "sig"),
		"with key_ops":   jwk(t, "key_ops", []string{"verify"}),
		"with more":      jwk(t, "x5c", []string{"AAAA"}, "note", nil),
		"RSA 2048":       rsaJWK(t, 2048, "alg", "RS256"),
		"RSA 4096":       rsaJWK(t, 4096),
		"RSA 8192":       rsaJWK(t, 8192),
		"RSA other e":    rsaJWK(t, 2048, "e", jwkstest.B64([]byte{1, 0, 3})),
		"RSA, n with 00": rsaJWK(t, 2048, "n", jwkstest.B64(append([]byte{0}, nOf(2048)...))),
	} {
		got, err := parseSet(set(t, key), anyIssuer)
		require.NoError(t, err, name)
		require.Len(t, got, 1, name)
	}
}

func nOf(bits int) []byte {
	n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
	return n.SetBit(n, 0, 1).Bytes()
}

// A key that is not usable is left out; where nothing else is there, the set is refused.
func TestUnusableKeysAreLeftOut(t *testing.T) {
	t.Parallel()
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	for name, key := range map[string]map[string]any{
		"no kid":             jwk(t, "kid", nil),
		"kid number":         jwk(t, "kid", 1),
		"kid empty":          jwk(t, "kid", ""),
		"no kty":             jwk(t, "kty", nil),
		"kty number":         jwk(t, "kty", 1),
		"kty in lower case":  jwk(t, "kty", "ec"),
		"kty of another":     jwk(t, "kty", "RSA"),
		"OKP":                jwk(t, "kty", "OKP", "crv", "Ed25519"),
		"alg of another":     jwk(t, "alg", "RS256"),
		"alg none":           jwk(t, "alg", "none"),
		"alg null":           change(jwk(t), "alg", (*int)(nil)),
		"use enc":            jwk(t, "use", "enc"),
		"use jwt-svid":       jwk(t, "use", "jwt-svid"),
		"use number":         jwk(t, "use", 1),
		"key_ops sign":       jwk(t, "key_ops", []string{"sign"}),
		"key_ops empty":      jwk(t, "key_ops", []string{}),
		"key_ops text":       jwk(t, "key_ops", "verify"),
		"P-384":              change(jwkstest.PublicJWK(p384.Public())),
		"crv of another":     jwk(t, "crv", "P-384"),
		"no x":               jwk(t, "x", nil),
		"x number":           jwk(t, "x", 1),
		"short x":            jwk(t, "x", "AAAA"),
		"zero point":         jwk(t, "x", strings.Repeat("A", 43), "y", strings.Repeat("A", 43)),
		"off curve":          jwk(t, "x", "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqx7D4", "y", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"),
		"x above the field":  jwk(t, "x", "_____wAAAAEAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAA"),
		"x padded":           jwk(t, "x", strings.Repeat("A", 43)+"="),
		"RSA 1024":           rsaJWK(t, 1024),
		"RSA 2047":           rsaJWK(t, 2047),
		"RSA 8193":           rsaJWK(t, 8193),
		"RSA even":           rsaJWK(t, 2048, "n", jwkstest.B64(append([]byte{0x80}, make([]byte, 255)...))),
		"RSA e 1":            rsaJWK(t, 2048, "e", "AQ"),
		"RSA e 3":            rsaJWK(t, 2048, "e", "Aw"),
		"RSA e even":         rsaJWK(t, 2048, "e", jwkstest.B64([]byte{1, 0, 2})),
		"RSA e above 31 bit": rsaJWK(t, 2048, "e", jwkstest.B64([]byte{0x80, 0, 0, 1})),
		"RSA e huge":         rsaJWK(t, 2048, "e", jwkstest.B64(make([]byte, 5))),
		"RSA no n":           rsaJWK(t, 2048, "n", nil),
		"RSA n with blank":   rsaJWK(t, 2048, "n", " "),
		"RSA alg PS256":      rsaJWK(t, 2048, "alg", "PS256"),
	} {
		_, err := parseSet(set(t, key), anyIssuer)
		require.ErrorContains(t, err, "no usable key", name)
		good := jwk(t, "kid", "good")
		got, err := parseSet(set(t, key, good), anyIssuer)
		require.NoError(t, err, name)
		require.Len(t, got, 1, name)
		require.Contains(t, got, "good", name)
	}
}

func TestAlgorithmsAreTheIssuersOwn(t *testing.T) {
	t.Parallel()
	only := func(alg string) Issuer { return Issuer{Algorithms: []string{alg}} }
	both := set(t, jwk(t, "kid", "ec"), rsaJWK(t, 2048, "kid", "rsa"))
	ec, err := parseSet(both, only(ES256))
	require.NoError(t, err)
	require.Len(t, ec, 1)
	require.Contains(t, ec, "ec")
	rs, err := parseSet(both, only(RS256))
	require.NoError(t, err)
	require.Len(t, rs, 1)
	require.Contains(t, rs, "rsa")
}

func TestSetsRefusedWhole(t *testing.T) {
	t.Parallel()
	good := jwk(t, "kid", "good")
	for name, body := range map[string][]byte{
		"no keys member":     []byte(`{}`),
		"keys null":          []byte(`{"keys":null}`),
		"keys object":        []byte(`{"keys":{}}`),
		"no keys":            []byte(`{"keys":[]}`),
		"bare array":         []byte(`[]`),
		"key not an object":  []byte(`{"keys":["k"]}`),
		"duplicate member":   []byte(`{"keys":[],"keys":[]}`),
		"one kid, two keys":  set(t, good, jwk(t), jwk(t)),
		"kid also unusable":  set(t, good, jwk(t, "kid", "good", "use", "enc")),
		"private EC key":     set(t, good, jwk(t, "d", "AAAA")),
		"private RSA prime":  set(t, good, rsaJWK(t, 2048, "p", "AAAA")),
		"secret key":         set(t, good, map[string]any{"kty": "oct", "k": "AAAA", "kid": "s"}),
		"private, no kid":    set(t, good, jwk(t, "kid", nil, "d", "AAAA")),
		"byte order mark":    append([]byte("\ufeff"), set(t, good)...),
		"another set behind": append(set(t, good), set(t, good)...),
		"many keys":          set(t, manyKeys(t)...),
	} {
		got, err := parseSet(body, anyIssuer)
		require.Error(t, err, name)
		require.Nil(t, got, name)
	}
}

func manyKeys(t testing.TB) (out []map[string]any) {
	for range maxMembers / 8 {
		out = append(out, rsaJWK(t, 2048, "kid", nil, "a", 1))
	}
	return out
}

func FuzzParseSet(f *testing.F) {
	f.Add(set(f, jwk(f)))
	f.Add(set(f, rsaJWK(f, 2048)))
	f.Add([]byte(`{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":1,"y":null}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseSet(body, anyIssuer)
		require.Equal(t, err != nil, len(got) == 0)
		for kid, k := range got {
			require.NotEmpty(t, kid)
			require.True(t, k.equal(k))
			require.False(t, k.verify(parsed{alg: k.alg, signature: make([]byte, 64)}))
		}
	})
}

// vectors reads a Wycheproof file; without the folder the test is skipped, but
// not in CI.
func vectors(t *testing.T, name string, into any) {
	t.Helper()
	folder := os.Getenv("NIGHTWARRANT_VECTORS")
	if folder == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("NIGHTWARRANT_VECTORS is not set")
		}
		t.Skip("NIGHTWARRANT_VECTORS is not set: no vectors to try")
	}
	b, err := os.ReadFile(filepath.Join(folder, "wycheproof", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

func TestWycheproofECDSA(t *testing.T) {
	t.Parallel()
	var file struct {
		TestGroups []struct {
			PublicKey struct{ Uncompressed string } `json:"publicKey"`
			Tests     []struct {
				TcID             int `json:"tcId"`
				Msg, Sig, Result string
				Comment          string
			}
		}
	}
	vectors(t, "ecdsa_secp256r1_sha256_p1363_test.json", &file)
	tried := 0
	for _, group := range file.TestGroups {
		point, err := hex.DecodeString(group.PublicKey.Uncompressed)
		require.NoError(t, err)
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
		require.NoError(t, err)
		k := key{alg: ES256, public: public}
		for _, tc := range group.Tests {
			msg, err := hex.DecodeString(tc.Msg)
			require.NoError(t, err)
			sig, err := hex.DecodeString(tc.Sig)
			require.NoError(t, err)
			got := k.verify(parsed{Token: Token{Signed: string(msg)}, alg: ES256, signature: sig})
			require.Equal(t, tc.Result == "valid", got, "%d %s", tc.TcID, tc.Comment)
			tried++
		}
	}
	require.Greater(t, tried, 100)
}

func TestWycheproofJWS(t *testing.T) {
	t.Parallel()
	var file struct {
		TestGroups []struct {
			Public map[string]any
			Tests  []struct {
				TcID                 int `json:"tcId"`
				JWS, Result, Comment string
			}
		}
	}
	vectors(t, "json_web_signature_test.json", &file)
	tried, accepted := 0, 0
	for _, group := range file.TestGroups {
		k, ok := parseKey(group.Public, anyIssuer)
		for _, tc := range group.Tests {
			tried++
			verified := ok && verifyCompact(k, tc.JWS)
			if verified {
				accepted++
				require.NotEqual(t, "invalid", tc.Result, "%d %s", tc.TcID, tc.Comment)
			}
		}
	}
	require.Greater(t, tried, 100)
	require.Positive(t, accepted)
}

// verifyCompact does what parse and verify do, but for payloads that are no claims.
func verifyCompact(k key, compact string) bool {
	part := strings.Split(compact, ".")
	if len(part) != 3 {
		return false
	}
	var p parsed
	var err error
	if p.signature, err = decodeBase64(part[2]); err != nil {
		return false
	}
	if _, err := decodeBase64(part[1]); err != nil {
		return false
	}
	header, ok := segment(part[0])
	if !ok {
		return false
	}
	header["kid"] = "k" // the vectors mostly have none
	b, _ := json.Marshal(header)
	if !p.readHeader(jwkstest.B64(b)) {
		return false
	}
	p.Signed = part[0] + "." + part[1]
	return k.verify(p)
}
