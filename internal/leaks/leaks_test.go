package leaks

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// jwt looks like what go-jose makes of a header and claims.
func jwt(header, claims string) []byte {
	b64 := base64.RawURLEncoding.EncodeToString
	return []byte(b64([]byte(header)) + "." + b64([]byte(claims)) + "." + b64(make([]byte, 64)))
}

// The search finds each kind in each spelling, wherever it stands: otherwise no test that uses it could fail.
func TestSearchFinds(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	sec1, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	scalar, err := key.Bytes()
	require.NoError(t, err)
	nonceKey := make([]byte, 32)
	_, err = rand.Read(nonceKey)
	require.NoError(t, err)
	known := [][]byte{nonceKey}
	for kind, secret := range map[string][]byte{
		"a capability":           jwt(`{"alg":"ES256","typ":"at+jwt"}`, `{"aud":"https://authority.example"}`),
		"a proof":                jwt(`{"typ":"dpop+jwt","alg":"ES256","jwk":{}}`, `{"jti":"x"}`),
		"an assertion":           jwt(`{"alg":"RS256","kid":"a"}`, `{"iss":"https://cluster.example"}`),
		"a nonce key":            nonceKey,
		"a private key, a JWK":   []byte(`{"kty":"EC","crv":"P-256","d":"` + base64.RawURLEncoding.EncodeToString(scalar) + `"}`),
		"a private key, PKCS #8": pkcs8,
		"a private key, SEC 1":   sec1,
		"a private key, PEM":     pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		"an age identity":        []byte("AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQQ"),
	} {
		for form, spelled := range map[string]string{
			"raw": string(secret), "hex": hex.EncodeToString(secret), "HEX": strings.ToUpper(hex.EncodeToString(secret)),
			"base64": base64.StdEncoding.EncodeToString(secret), "base64 without padding": base64.RawStdEncoding.EncodeToString(secret),
			"base64url": base64.RawURLEncoding.EncodeToString(secret), "base64 of more": base64.StdEncoding.EncodeToString(append([]byte("user:"), secret...)),
		} {
			for place, text := range map[string]string{
				"alone": spelled, "a line of a log": `{"level":"INFO","msg":"x","a":"` + spelled + `","b":1}`, "a row": `(1,"\\x` + spelled + `",open)`,
				"a URL": "https://x.example/y?z=" + spelled + "&n=1", "after other letters": "abc" + spelled, "after two": "ab" + spelled,
			} {
				assert.NotEmpty(t, Search("text", []byte(text), known...), "%s in %s, %s", kind, form, place)
			}
		}
	}
	numbers, err := json.Marshal([32]byte(nonceKey))
	require.NoError(t, err)
	for _, text := range []string{fmt.Sprint(nonceKey), string(numbers), slog.Any("key", nonceKey).String()} {
		assert.NotEmpty(t, Search("text", []byte(text), known...), text)
	}
}

func TestSearchFindsNothingElse(t *testing.T) {
	t.Parallel()
	secret := []byte("0123456789abcdef0123456789abcdef")
	digest := strings.Repeat("9f86d081884c7d659a2feaa0c55ad015", 2)
	for _, text := range []string{"", `{"kid":"eyJ","digest":"9f86d081"} DPoP error="use_dpop_nonce"`, `(1,"\\x` + digest + `",committed)`, base64.RawURLEncoding.EncodeToString(secret[1:]),
		strings.Repeat("A", 5000), strings.Repeat("0", 5001), "-----BEGIN PUBLIC KEY-----", `{"kty":"EC","x":"` + strings.Repeat("A", 43) + `"}`} {
		assert.Empty(t, Search("text", []byte(text), secret), text)
	}
}

func TestFilesSearchesAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "b", "log"), []byte("AGE-SECRET-KEY-1"), 0o600))
	found, err := Files(dir)
	require.NoError(t, err)
	assert.Len(t, found, 1)
}
