package capability

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"
	jwxt "github.com/lestrrat-go/jwx/v2/jwt"
	"github.com/stretchr/testify/require"
)

// judgeElsewhere lets both libraries read and verify a proof with the key in its header, and name that key.
func judgeElsewhere(proof string, key Thumbprint) error {
	sum, err := judgeGoJose(proof)
	if err != nil {
		return fmt.Errorf("go-jose: %w", err)
	}
	if !bytes.Equal(sum, key[:]) {
		return errors.New("go-jose: another thumbprint")
	}
	if err := judgeJWX(proof); err != nil {
		return fmt.Errorf("jwx: %w", err)
	}
	return nil
}

func judgeGoJose(proof string) ([]byte, error) {
	token, err := jwt.ParseSigned(proof, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, err
	}
	key := token.Headers[0].JSONWebKey
	if key == nil || !key.IsPublic() || !key.Valid() {
		return nil, errors.New("no public key")
	}
	if err := token.Claims(key, new(map[string]any)); err != nil {
		return nil, err
	}
	return key.Thumbprint(crypto.SHA256)
}

func judgeJWX(proof string) error {
	message, err := jws.Parse([]byte(proof))
	if err != nil {
		return err
	}
	key := message.Signatures()[0].ProtectedHeaders().JWK()
	if key == nil {
		return errors.New("no key")
	}
	if _, err := jws.Verify([]byte(proof), jws.WithKey(jwa.ES256, key)); err != nil {
		return err
	}
	_, err = jwxt.ParseInsecure([]byte(proof))
	return err
}

func verifyWithGoJose(key json.RawMessage, in string) ([]byte, error) {
	var public jose.JSONWebKey
	if err := json.Unmarshal(key, &public); err != nil {
		return nil, err
	}
	parsed, err := jose.ParseSignedCompact(in, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, err
	}
	return parsed.Verify(public)
}

// hasCertificate tells proofs whose header holds a certificate chain. It is ignored here (case 26), and parsed by
// libraries that have a use for it: the one thing in which ours may accept what another refuses.
func hasCertificate(t *testing.T, proof string) bool {
	header, err := base64.RawURLEncoding.DecodeString(proof[:strings.IndexByte(proof, '.')])
	require.NoError(t, err)
	var members map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(header, &members))
	return members["x5c"] != nil
}

// What ours accepts, go-jose and jwx accept too: every case of the tables, which the fuzzer then varies.
func TestNeverLaxerThanTheLibraries(t *testing.T) {
	t.Parallel()
	accepted := 0
	for _, c := range append(headerCases, claimCases...) {
		d := goodDraft(t)
		c.edit(d)
		proof := d.spell(t)
		p, err := ParseProof(proof)
		if err != nil || p.VerifySignature() != nil || hasCertificate(t, proof) {
			continue
		}
		accepted++
		require.NoError(t, judgeElsewhere(proof, p.Key), c.title())
	}
	require.Greater(t, accepted, 30)
	for _, proof := range []string{rfcTokenProof, rfcRefreshProof, rfcResourceProof} {
		p, err := ParseProof(proof)
		require.NoError(t, err)
		require.NoError(t, judgeElsewhere(proof, p.Key))
	}
}

// FuzzProof signs whatever header and claims it is given, so that it gets past the signature; text is parsed as it is.
func FuzzProof(f *testing.F) {
	k := fixedKey(f, "holder")
	for _, c := range append(headerCases, claimCases...) {
		d := goodDraft(f)
		c.edit(d)
		header := strings.Replace(d.header.String(), `"jwk":`, `"jwk":`+d.jwk.String(), 1)
		f.Add(header, d.claims.String(), "")
	}
	f.Add("", "", rfcTokenProof)
	f.Add("", "", strings.Repeat(".", 100))
	e := goodExpect(f)
	f.Fuzz(func(t *testing.T, header, claims, text string) {
		proof := text
		if text == "" {
			proof = signed(t, k, header, claims)
		}
		p, err := ParseProof(proof)
		if err != nil {
			code(t, err)
			require.Nil(t, p)
			return
		}
		code(t, p.Clear(e))
		if p.VerifySignature() != nil || hasCertificate(t, proof) {
			return
		}
		require.NoError(t, judgeElsewhere(proof, p.Key))
	})
}

// FuzzCapability signs whatever header and claims it is given. What is accepted is complete, for its audience, and says
// the same after it has been signed anew.
func FuzzCapability(f *testing.F) {
	effect := goodEffectClaims(f)
	effect.Kind = kindEffect
	run := goodRun(f)
	run.Kind = kindRun
	component := goodComponent(f)
	component.Kind = kindComponent
	for _, c := range []claims{&run, &effect, &component} {
		payload, err := json.Marshal(c)
		require.NoError(f, err)
		f.Add(tokenHeader(f), string(payload), "")
		f.Add(tokenHeader(f), strings.ToUpper(string(payload)), "")
		f.Add(strings.Replace(tokenHeader(f), "{", `{"crit":["exp"],`, 1), string(payload), "")
	}
	f.Add("", "", "a.b.c")
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, header, payload, text string) {
		token := Token(text)
		if text == "" {
			token = Token(signed(t, issuer(t), header, payload))
		}
		accepted := 0
		for _, verify := range verifiers {
			err := verify(token, keys, testExpectation())
			if err == nil {
				accepted++
			}
			code(t, err)
		}
		require.LessOrEqual(t, accepted, 1, "a capability is of one kind")
		if accepted == 0 {
			return
		}
		_, err := jws.Verify([]byte(token.Reveal()), jws.WithKey(jwa.ES256, issuer(t).Public()))
		require.NoError(t, err, "jwx, which guards use, agrees")
		if c, err := VerifyEffect(token, keys, testExpectation()); err == nil {
			again, err := SignEffect(issuer(t), *c)
			require.NoError(t, err)
			same, err := VerifyEffect(again, keys, testExpectation())
			require.NoError(t, err)
			require.Equal(t, c, same)
		}
	})
}
