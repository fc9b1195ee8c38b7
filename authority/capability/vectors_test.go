package capability

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// The example proofs of RFC 9449 (figures 2, 6 and 13); the second has the jti of the first.
const (
	rfcHeader = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJo" +
		"RjQyVVFVZldWQVdCRnMiLCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19."
	rfcTokenProof = rfcHeader + "eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0" +
		"IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY-FNyJK70nfbV37xRZT3Lg"
	rfcRefreshProof = rfcHeader + "eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIsImh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0" +
		"IjoxNTYyMjY1Mjk2fQ.pAqut2IRDm_De6PR93SYmGBPXpwrAk90e8cP2hjiaG5QsGSuKDYW7_X620BxqhvYC8ynrrvZLTk41mSRroapUA"
	rfcResourceProof = rfcHeader + "eyJqdGkiOiJlMWozVl9iS2ljOC1MQUVCIiwiaHRtIjoiR0VUIiwiaHR1IjoiaHR0cHM6Ly9yZXNvdXJjZS5leGFtcGxlLm9yZy9wcm90ZWN0ZWRyZXNvdXJj" +
		"ZSIsImlhdCI6MTU2MjI2MjYxOCwiYXRoIjoiZlVIeU8ycjJaM0RaNTNFc05yV0JiMHhXWG9hTnk1OUlpS0NBcWtzbVFFbyJ9.2oW9RP35yRqzhrtNP86L-Ey71E" +
		"OptxRimPPToA1plemAgR6pxHF8y6-yqyVnmcw6Fy1dqd-jfxSYoMxhAJpLjA"
	rfcToken = Token("Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU")
	rfcJKT   = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
)

func TestProofsOfRFC9449(t *testing.T) {
	t.Parallel()
	jkt, err := ParseThumbprint(rfcJKT)
	require.NoError(t, err)
	assert.Equal(t, "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo", ath(rfcToken))

	tokenEndpoint := Expect{Method: "POST", URL: "https://server.example.com/token", Now: time.Unix(1562262616, 0), Window: time.Minute}
	first, err := CheckProof(rfcTokenProof, tokenEndpoint)
	require.NoError(t, err)
	assert.Equal(t, rfcJKT, first.Key.String())
	assert.Equal(t, "-BwC3ESc6acc2lTc", first.JTI)

	_, err = CheckProof(rfcRefreshProof, tokenEndpoint)
	assert.Equal(t, bad, code(t, err), "its time is another")
	tokenEndpoint.Now = time.Unix(1562265296, 0)
	second, err := CheckProof(rfcRefreshProof, tokenEndpoint)
	require.NoError(t, err)
	assert.Equal(t, first.Digest(), second.Digest(), "the RFC reuses a jti; one replay record refuses the second")

	resource := Expect{
		Method: "GET", URL: "https://resource.example.org/protectedresource", AccessToken: rfcToken, Holder: jkt,
		Now: time.Unix(1562262618, 0), Window: time.Minute,
	}
	_, err = CheckProof(rfcResourceProof, resource)
	require.NoError(t, err)
	resource.AccessToken = "another"
	_, err = CheckProof(rfcResourceProof, resource)
	assert.Equal(t, bad, code(t, err))
	_, err = CheckProof(rfcResourceProof, Expect{Method: "GET", URL: resource.URL})
	assert.Equal(t, bad, code(t, err), "with the present time left out")
}

// readJWK imports a public key as the header of a proof does.
func readJWK(raw []byte) (*Proof, error) {
	p := new(Proof)
	if err := p.readKey(canonical.Value{Raw: raw}); err != nil {
		return nil, err
	}
	if err := p.importKey(); err != nil {
		return nil, err
	}
	return p, nil
}

// Case 43 (go-dpop#21): a coordinate that begins with a zero byte keeps it.
func TestLeadingZeroKey(t *testing.T) {
	t.Parallel()
	p, err := readJWK([]byte(`{"kty":"EC","crv":"P-256","x":"APgYG5BNQBWVT-w7yW51bi9M5hVluuqPOGXXl5if_NM","y":"QmnCr5fkc5hvPAHJlus28hFl9fvENm3BAHbt7YcDakQ"}`))
	require.NoError(t, err)
	assert.Equal(t, "blYhrm9qF1QjcvW-PCH4EI6gqOq6p1fcH8eCuxaT0WU", p.Key.String())
	jkt, err := JKT(p.public)
	require.NoError(t, err)
	assert.Equal(t, p.Key, jkt)
}

func TestThumbprint(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"", rfcJKT[:42], rfcJKT + "A", rfcJKT + "=", rfcJKT[:42] + "J", " " + rfcJKT[1:], rfcJKT[:20] + "\n" + rfcJKT[21:], strings.Repeat("+", 43)} {
		got, err := ParseThumbprint(in)
		assert.Error(t, err, in)
		assert.True(t, got.IsZero())
	}
	jkt, err := ParseThumbprint(rfcJKT)
	require.NoError(t, err)
	out, err := json.Marshal(map[string]Thumbprint{"jkt": jkt})
	require.NoError(t, err)
	assert.JSONEq(t, `{"jkt":"`+rfcJKT+`"}`, string(out))
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	for _, pub := range []*ecdsa.PublicKey{nil, {}, &p384.PublicKey} {
		_, err = JKT(pub)
		assert.ErrorIs(t, err, errNotP256)
	}
}

type wycheproof[G any] struct {
	NumberOfTests int `json:"numberOfTests"`
	TestGroups    []G `json:"testGroups"`
}

type wycheproofTest struct {
	TcID    int             `json:"tcId"`
	Comment string          `json:"comment"`
	JWS     string          `json:"jws"`
	Msg     string          `json:"msg"`
	Sig     string          `json:"sig"`
	Public  json.RawMessage `json:"public"`
	Result  string          `json:"result"`
}

func TestWycheproofP1363(t *testing.T) {
	t.Parallel()
	var file wycheproof[struct {
		PublicKey struct {
			Uncompressed string `json:"uncompressed"`
		} `json:"publicKey"`
		Tests []wycheproofTest `json:"tests"`
	}]
	vectors(t, "ecdsa_secp256r1_sha256_p1363_test.json", &file)
	counts := map[string]int{}
	for _, group := range file.TestGroups {
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), unhex(t, group.PublicKey.Uncompressed))
		require.NoError(t, err)
		for _, c := range group.Tests {
			got := verifyRaw(public, sha256.Sum256(unhex(t, c.Msg)), unhex(t, c.Sig))
			assert.Equal(t, c.Result == "valid", got, "%d %s", c.TcID, c.Comment)
			counts[c.Result]++
		}
	}
	assert.Equal(t, map[string]int{"valid": 173, "invalid": 89}, counts)
}

// DER is another form: a JOSE verifier knows none of it, valid or not (RFC 7518 §3.4).
func TestWycheproofDERIsRefused(t *testing.T) {
	t.Parallel()
	var file wycheproof[struct {
		PublicKey struct {
			Uncompressed string `json:"uncompressed"`
		} `json:"publicKey"`
		Tests []wycheproofTest `json:"tests"`
	}]
	vectors(t, "ecdsa_secp256r1_sha256_test.json", &file)
	n := 0
	for _, group := range file.TestGroups {
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), unhex(t, group.PublicKey.Uncompressed))
		require.NoError(t, err)
		for _, c := range group.Tests {
			assert.False(t, verifyRaw(public, sha256.Sum256(unhex(t, c.Msg)), unhex(t, c.Sig)), "%d %s", c.TcID, c.Comment)
			n++
		}
	}
	assert.Equal(t, file.NumberOfTests, n)
}

func TestWycheproofPublicJWK(t *testing.T) {
	t.Parallel()
	var file wycheproof[struct {
		Tests []wycheproofTest `json:"tests"`
	}]
	vectors(t, "ecdh_secp256r1_webcrypto_test.json", &file)
	counts := map[string]int{}
	for _, c := range file.TestGroups[0].Tests {
		_, err := readJWK(c.Public)
		assert.Equal(t, c.Result == "valid", err == nil, "%d %s", c.TcID, c.Comment)
		counts[c.Result]++
	}
	assert.Equal(t, map[string]int{"valid": 330, "invalid": 23}, counts)
}

// jwsOpens verifies a JWS with what proofs are verified with, its header and key included.
func jwsOpens(key json.RawMessage, in string) bool {
	p, err := readJWK(key)
	if err != nil {
		return false
	}
	first, second, err := segments(in, maxProof)
	if err != nil || !decodeExact(p.signature[:], in[second+1:]) {
		return false
	}
	p.signed = []byte(in[:second])
	es256 := false
	err = readSegment(p.signed[:first], func(document []byte) error {
		return object(document, func(name []byte, v canonical.Value) error {
			es256 = es256 || string(name) == "alg" && v.Is("ES256")
			return nil
		})
	})
	return err == nil && es256 && p.VerifySignature() == nil
}

func TestWycheproofJWS(t *testing.T) {
	t.Parallel()
	var file wycheproof[struct {
		Comment string           `json:"comment"`
		Public  json.RawMessage  `json:"public"`
		Private json.RawMessage  `json:"private"`
		Tests   []wycheproofTest `json:"tests"`
	}]
	vectors(t, "json_web_signature_test.json", &file)
	onP256, opened := 0, 0
	for _, group := range file.TestGroups {
		p256 := strings.Contains(string(group.Public), `"P-256"`)
		for _, c := range group.Tests {
			_, err := ParseProof(c.JWS)
			assert.Error(t, err, "%d %s is not a proof", c.TcID, c.Comment)
			ours := jwsOpens(group.Public, c.JWS)
			assert.Equal(t, p256 && c.Result == "valid", ours, "%d %s", c.TcID, c.Comment)
			if p256 {
				onP256++
				_, joseErr := verifyWithGoJose(group.Public, c.JWS)
				assert.True(t, !ours || joseErr == nil, "%d %s: go-jose refuses it", c.TcID, c.Comment)
			}
			if ours {
				opened++
			}
		}
	}
	assert.Equal(t, 41, onP256)
	assert.Equal(t, 2, opened, "the valid ones of es256 and SpecialCaseEs256")
}

func TestWycheproofJWK(t *testing.T) {
	t.Parallel()
	var file wycheproof[struct {
		Public struct {
			Keys []json.RawMessage `json:"keys"`
		} `json:"public"`
		Tests []wycheproofTest `json:"tests"`
	}]
	vectors(t, "json_web_key_test.json", &file)
	n := 0
	for _, group := range file.TestGroups {
		for _, c := range group.Tests {
			for _, key := range group.Public.Keys {
				assert.False(t, jwsOpens(key, c.JWS), "%d %s", c.TcID, c.Comment)
				n++
			}
		}
	}
	assert.GreaterOrEqual(t, n, 10)
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// Each file of the folder is read by a test: those of wycheproof above and in internal/jwks, those of jcs in authority/canonical, which takes all
// that there are. A file that comes later has to be used.
func TestEveryVectorIsRead(t *testing.T) {
	t.Parallel()
	var file struct{ Algorithm string }
	vectors(t, "json_web_key_test.json", &file) // or this test is skipped
	var found []string
	root := os.Getenv("NIGHTWARRANT_VECTORS")
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != "LICENSE" && d.Name() != "README.md" {
			path, err = filepath.Rel(root, path)
			found = append(found, filepath.ToSlash(path))
		}
		return err
	}))
	want := []string{"wycheproof/ecdh_secp256r1_webcrypto_test.json", "wycheproof/ecdsa_secp256r1_sha256_p1363_test.json", "wycheproof/ecdsa_secp256r1_sha256_test.json",
		"wycheproof/json_web_key_test.json", "wycheproof/json_web_signature_test.json"}
	for _, name := range []string{"arrays", "french", "structures", "unicode", "values", "weird"} {
		want = append(want, "jcs/input/"+name+".json", "jcs/output/"+name+".json", "jcs/outhex/"+name+".txt")
	}
	assert.ElementsMatch(t, want, found)
}
