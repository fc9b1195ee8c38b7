package capability

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// vectors reads one file of public test vectors. A developer may lack them, CI may not.
func vectors(t *testing.T, file string, into any) {
	t.Helper()
	dir := os.Getenv("NIGHTWARRANT_VECTORS")
	if dir == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("NIGHTWARRANT_VECTORS must be set in CI")
		}
		t.Skip("NIGHTWARRANT_VECTORS is not set")
	}
	in, err := os.ReadFile(filepath.Join(dir, "wycheproof", file))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(in, into))
}

// fixedKey is one key for all runs, so that fuzzing finds its corpus again.
func fixedKey(t testing.TB, seed string) *Key {
	t.Helper()
	scalar := sha256.Sum256([]byte(seed))
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar[:])
	require.NoError(t, err)
	k, err := newKey(private)
	require.NoError(t, err)
	return k
}

var testNow = time.Unix(1_780_000_000, 0)

const (
	testURL   = "https://guard.example/orders/7"
	testToken = Token("eyJhbGciOiJFUzI1NiJ9.e30.c2ln")
)

// object is an ordered JSON object of raw members, so that a test can spell one wrongly.
type rawObject []struct{ name, value string }

func (o rawObject) set(name, value string) rawObject {
	out := o.drop(name)
	return append(out, struct{ name, value string }{`"` + name + `"`, value})
}

// add puts a member beside one of the same name; name comes with its quotes.
func (o rawObject) add(name, value string) rawObject {
	return append(append(rawObject(nil), o...), struct{ name, value string }{name, value})
}

func (o rawObject) drop(name string) rawObject {
	var out rawObject
	for _, m := range o {
		if m.name != `"`+name+`"` {
			out = append(out, m)
		}
	}
	return out
}

func (o rawObject) rename(from, to string) rawObject {
	out := append(rawObject(nil), o...)
	for i := range out {
		if out[i].name == `"`+from+`"` {
			out[i].name = `"` + to + `"`
		}
	}
	return out
}

func (o rawObject) String() string {
	parts := make([]string, len(o))
	for i, m := range o {
		parts[i] = m.name + ":" + m.value
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// draft is a proof before it is spelled: good as it comes, wrong where a case makes it so.
type draft struct {
	key            *Key
	header, claims rawObject
	jwk            rawObject
}

func goodDraft(t testing.TB) *draft {
	k := fixedKey(t, "holder")
	point, err := k.Public().Bytes()
	require.NoError(t, err)
	quote := func(b []byte) string { return `"` + b64(b) + `"` }
	return &draft{
		key:    k,
		header: rawObject{}.set("typ", `"dpop+jwt"`).set("alg", `"ES256"`).set("jwk", ""),
		jwk:    rawObject{}.set("kty", `"EC"`).set("crv", `"P-256"`).set("x", quote(point[1:33])).set("y", quote(point[33:])),
		claims: rawObject{}.set("jti", `"a-b-c"`).set("htm", `"POST"`).set("htu", `"`+testURL+`"`).set("iat", "1780000000").
			set("ath", `"`+ath(testToken)+`"`),
	}
}

func ath(t Token) string {
	h := accessTokenHash(t)
	return string(h[:])
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func (d *draft) spell(t testing.TB) string {
	header := d.header
	for i, m := range header {
		if m.name == `"jwk"` && m.value == "" {
			header = append(rawObject(nil), header...)
			header[i].value = d.jwk.String()
		}
	}
	return signed(t, d.key, header.String(), d.claims.String())
}

func signed(t testing.TB, k *Key, header, payload string) string {
	t.Helper()
	input := b64([]byte(header)) + "." + b64([]byte(payload))
	sig, err := k.SignES256(sha256.Sum256([]byte(input)))
	require.NoError(t, err)
	return input + "." + b64(sig[:])
}

func goodExpect(t testing.TB) Expect {
	return Expect{Method: "POST", URL: testURL, AccessToken: testToken, Holder: fixedKey(t, "holder").Thumbprint(), Now: testNow}
}

// code is the wire's code of an error, which must be a bounded refusal that repeats nothing.
func code(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var refusal *ProofError
	require.True(t, errors.As(err, &refusal), "%T is not a refusal", err)
	assert.NotEmpty(t, refusal.Reason)
	assert.Less(t, len(err.Error()), 120)
	return refusal.Code
}
