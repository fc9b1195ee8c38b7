package server_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/keys"
)

// bound is a guard's component capability and a request under it, for the cases that are about how proof, token and
// request belong together.
type bound struct {
	h     *authoritytest.House
	key   *raw
	token capability.Token
}

func newBound(t *testing.T) *bound {
	t.Helper()
	b := &bound{h: authoritytest.New(t), key: newRaw(t)}
	b.key.prepare(b.h, "POST", api.PathToken, "")
	b.token = b.boot(b.key)
	return b
}

// component is a request for a component capability, with the proof that k has prepared.
func (b *bound) component(k *raw) *http.Request {
	r := b.h.Request("POST", api.PathToken, "application/x-www-form-urlencoded",
		[]byte(authoritytest.ComponentForm(authoritytest.GuardName, b.h.Assertion(authoritytest.GuardClaim)).Encode()))
	r.Header.Set(api.HeaderProof, k.compact())
	return r
}

func (b *bound) boot(k *raw) capability.Token {
	var out api.TokenResponse
	b.h.Into(b.h.Send(b.component(k)), &out)
	return capability.Token(out.AccessToken)
}

// refused sends what must be refused with this status and code, and must leave nothing consumed.
func (b *bound) refused(t *testing.T, r *http.Request, status int, code api.Code) authoritytest.Answer {
	t.Helper()
	before := b.h.Consumed()
	a := b.h.Send(r)
	assert.Equal(t, status, a.Status, string(a.Body))
	assert.Equal(t, code, a.Problem().Code)
	assertAnswer(t, a)
	assert.Equal(t, before, b.h.Consumed(), "a refused request has consumed something")
	return a
}

// request is a correct request for one nonce.
func (b *bound) request() *http.Request {
	b.key.prepare(b.h, "POST", api.PathNonces, b.token)
	return b.with(b.key.compact())
}

func (b *bound) with(proof string) *http.Request {
	r := b.h.Request("POST", api.PathNonces, "application/json", []byte(`{"count":1}`))
	r.Header.Set("Authorization", "DPoP "+b.token.Reveal())
	r.Header.Set(api.HeaderProof, proof)
	return r
}

func (b *bound) changed(change func(r *raw)) *http.Request {
	b.key.prepare(b.h, "POST", api.PathNonces, b.token)
	r := *b.key
	change(&r)
	return b.with(r.compact())
}

// boundCase is a case of sections A, F, G or H that needs a request, a token or two of them.
type boundCase struct {
	number, name string
	request      func() *http.Request
	status       int
	code         api.Code
}

func (b *bound) cases(t *testing.T) []boundCase {
	h, thief := b.h, newRaw(t)
	return []boundCase{
		{"1", "a bound token without a proof", func() *http.Request { r := b.request(); r.Header.Del("DPoP"); return r }, 401, api.InvalidDPoPProof},
		{"2", "the token endpoint without a proof", func() *http.Request {
			return h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte(authoritytest.ComponentForm("ledger", "x").Encode()))
		}, 400, api.InvalidRequest},
		{"3", "two proofs, both valid", func() *http.Request {
			r := b.request()
			second := b.request()
			r.Header.Add("DPoP", second.Header.Get("DPoP"))
			return r
		}, 401, api.InvalidDPoPProof},
		{"3", "two identical proofs", func() *http.Request { r := b.request(); r.Header.Add("DPoP", r.Header.Get("DPoP")); return r }, 401, api.InvalidDPoPProof},
		{"5", "an empty header", func() *http.Request { r := b.request(); r.Header["Dpop"] = []string{""}; return r }, 401, api.InvalidDPoPProof},
		{"7", "the header spelled DPOP", func() *http.Request {
			r := b.request()
			r.Header["DPOP"] = r.Header["Dpop"]
			delete(r.Header, "Dpop")
			return r
		}, 200, ""},
		{"8", "the proof as a query parameter", func() *http.Request {
			r := b.request()
			r.URL.RawQuery = url.Values{"DPoP": {r.Header.Get("DPoP")}}.Encode()
			r.Header.Del("DPoP")
			return r
		}, 401, api.InvalidDPoPProof},
		{"10", "a bound token under Bearer", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "Bearer "+b.token.Reveal())
			return r
		}, 401, api.InvalidToken},
		{"10", "under bearer, without a proof", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "bearer "+b.token.Reveal())
			r.Header.Del("DPoP")
			return r
		}, 401, api.InvalidToken},
		{"10", "under BEARER, with a proof", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "BEARER "+b.token.Reveal())
			return r
		}, 401, api.InvalidToken},
		{"11", "the scheme spelled dPoP", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "dPoP "+b.token.Reveal())
			return r
		}, 200, ""},
		{"12", "two Authorization lines", func() *http.Request {
			r := b.request()
			r.Header.Add("Authorization", "Bearer "+b.token.Reveal())
			return r
		}, 400, api.InvalidRequest},
		{"12", "DPoP twice", func() *http.Request {
			r := b.request()
			r.Header.Add("Authorization", r.Header.Get("Authorization"))
			return r
		}, 400, api.InvalidRequest},
		{"15", "the token in the query", func() *http.Request {
			r := b.request()
			r.URL.RawQuery = url.Values{"access_token": {b.token.Reveal()}}.Encode()
			r.Header.Del("Authorization")
			return r
		}, 400, api.InvalidRequest},
		{"15", "a token in the header and one in the query", func() *http.Request {
			r := b.request()
			r.URL.RawQuery = url.Values{"access_token": {b.token.Reveal()}}.Encode()
			return r
		}, 400, api.InvalidRequest},
		{"55", "a method override", func() *http.Request {
			r := b.changed(func(r *raw) { r.payload["htm"] = "PUT" })
			r.Header.Set("X-HTTP-Method-Override", "PUT")
			return r
		}, 401, api.InvalidDPoPProof},
		{"63", "the request with a double slash: nothing is there, and nothing redirects", func() *http.Request {
			r := b.changed(func(r *raw) { r.payload["htu"] = h.URL + "/" + api.PathNonces })
			r.URL.Path = "/" + api.PathNonces
			return r
		}, 404, api.NotFound},
		{"64", "Host and forwarded headers forged to fit the proof", func() *http.Request {
			r := b.changed(func(r *raw) { r.payload["htu"] = "http://evil.example" + api.PathNonces })
			r.Host = "evil.example"
			r.Header.Set("X-Forwarded-Host", "evil.example")
			return r
		}, 401, api.InvalidDPoPProof},
		{"73", "ath at the token endpoint, where it is ignored", func() *http.Request {
			b.key.prepare(h, "POST", api.PathToken, b.token)
			return b.component(b.key)
		}, 200, ""},
		{"71", "ath missing", func() *http.Request { return b.changed(unset(inPayload, "ath")) }, 401, api.InvalidDPoPProof},
		{"72", "ath of another token", func() *http.Request { return b.changed(set(inPayload, "ath", b64(make([]byte, 32)))) }, 401, api.InvalidDPoPProof},
		{"72", "ath in hex", func() *http.Request {
			return b.changed(func(r *raw) {
				sum := sha256.Sum256([]byte(b.token.Reveal()))
				r.payload["ath"] = hex.EncodeToString(sum[:])
			})
		}, 401, api.InvalidDPoPProof},
		{"72", "ath padded", func() *http.Request {
			return b.changed(func(r *raw) { r.payload["ath"] = r.payload["ath"].(string) + "=" })
		}, 401, api.InvalidDPoPProof},
		{"72", "ath by SHA-512", func() *http.Request {
			return b.changed(func(r *raw) {
				sum := sha512.Sum512([]byte(b.token.Reveal()))
				r.payload["ath"] = b64(sum[:])
			})
		}, 401, api.InvalidDPoPProof},
		{"74", "another key with the right ath", func() *http.Request {
			thief.prepare(h, "POST", api.PathNonces, b.token)
			return b.with(thief.compact())
		}, 401, api.InvalidToken},
		{"77", "a token with a broken signature", func() *http.Request {
			broken := b.token.Reveal()[:len(b.token)-6] + "AAAAAA"
			b.key.prepare(h, "POST", api.PathNonces, capability.Token(broken))
			r := b.with(b.key.compact())
			r.Header.Set("Authorization", "DPoP "+broken)
			return r
		}, 401, api.InvalidToken},
		{"29", "the proof sent as the token", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "DPoP "+r.Header.Get("DPoP"))
			return r
		}, 401, api.InvalidToken},
		{"29", "the token sent as the proof", func() *http.Request { r := b.request(); r.Header.Set("DPoP", b.token.Reveal()); return r }, 401, api.InvalidDPoPProof},
		{"79", "a nonce of another audience", func() *http.Request {
			return b.changed(set(inPayload, "nonce", h.Bundle.Nonces().Mint(authoritytest.GuardURI)))
		}, 401, api.UseDPoPNonce},
		{"79", "a nonce of two minutes ago", func() *http.Request {
			return b.changed(set(inPayload, "nonce", nonceOf(t, h, 121*time.Second)))
		}, 401, api.UseDPoPNonce},
		{"82", "a nonce of another replica, after a restart", func() *http.Request {
			other, err := keys.Open(h.KeysDir, h.Identity)
			require.NoError(t, err)
			return b.changed(set(inPayload, "nonce", other.Nonces().Mint(h.URL)))
		}, 200, ""},
	}
}

// TestDPoPBinding sends each of them: what is refused leaves nothing consumed.
func TestDPoPBinding(t *testing.T) {
	t.Parallel()
	b := newBound(t)
	h := b.h
	for _, c := range append(b.cases(t), b.tokens(t)...) {
		t.Run(c.number+" "+c.name, func(t *testing.T) {
			request := c.request()
			before := h.Consumed()
			a := h.Send(request)
			assert.Equal(t, c.status, a.Status, string(a.Body))
			assertAnswer(t, a)
			if c.status == http.StatusOK {
				return
			}
			assert.Equal(t, c.code, a.Problem().Code)
			assert.Equal(t, before, h.Consumed(), "a refused request has consumed something")
		})
	}
	assert.Equal(t, http.StatusOK, h.Send(b.request()).Status, "case 108")
}

// parts are the header and the claims of a token.
func parts(token capability.Token) (header, claims map[string]any) {
	for i, into := range []*map[string]any{&header, &claims} {
		out, _ := rawURL(strings.Split(token.Reveal(), ".")[i])
		_ = json.Unmarshal(out, into)
	}
	return header, claims
}

// forged is a token that the authority's own key has signed, although it would never issue it.
func (b *bound) forged(t *testing.T, change func(header, claims map[string]any)) string {
	t.Helper()
	header, claims := parts(b.token)
	change(header, claims)
	signed := b64([]byte(text(header))) + "." + b64([]byte(text(claims)))
	sig, err := b.h.Bundle.Signer().SignES256(sha256.Sum256([]byte(signed)))
	require.NoError(t, err)
	return signed + "." + b64(sig[:])
}

// tokens are the cases of a good proof with a token that is not good, 13, 14, 75 to 77, and the good one first.
func (b *bound) tokens(t *testing.T) (all []boundCase) {
	add := func(number, name, scheme string, status int, code api.Code, change func(header, claims map[string]any)) {
		all = append(all, boundCase{number, name, func() *http.Request {
			token := b.forged(t, change)
			b.key.prepare(b.h, "POST", api.PathNonces, capability.Token(token))
			r := b.with(b.key.compact())
			r.Header.Set("Authorization", scheme+" "+token)
			return r
		}, status, code})
	}
	add("77", "the same token signed anew", "DPoP", 200, "", func(_, _ map[string]any) {})
	add("13", "a token without cnf", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) { delete(claims, "cnf") })
	add("14", "an unbound token under Bearer, with a proof", "Bearer", 401, api.InvalidToken, func(_, claims map[string]any) { delete(claims, "cnf") })
	for name, cnf := range map[string]any{"empty": map[string]any{}, "null": nil, "a string": "x", "an array": []any{"x"}, "with an empty jkt": map[string]any{"jkt": ""},
		"with a number": map[string]any{"jkt": 1}, "of a certificate only": map[string]any{"x5t#S256": strings.Repeat("A", 43)}} {
		add("75", "cnf "+name, "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) { claims["cnf"] = cnf })
	}
	add("76", "jkt and x5t#S256, where no certificate is known", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) {
		claims["cnf"].(map[string]any)["x5t#S256"] = strings.Repeat("A", 43)
	})
	add("77", "expired", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) {
		claims["iat"], claims["exp"] = time.Now().Unix()-400, time.Now().Unix()-100
	})
	add("77", "of another audience", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) { claims["aud"] = authoritytest.GuardURI })
	add("77", "of another issuer", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) { claims["iss"] = "https://elsewhere.example" })
	add("77", "of another typ", "DPoP", 401, api.InvalidToken, func(header, _ map[string]any) { header["typ"] = "JWT" })
	add("77", "of another kind", "DPoP", 401, api.InvalidToken, func(_, claims map[string]any) { claims["cap"] = "run" })
	return all
}
