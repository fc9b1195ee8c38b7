package server_test

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"sync"
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
	r := b.h.Request("POST", api.PathToken, "application/x-www-form-urlencoded",
		[]byte(authoritytest.ComponentForm(authoritytest.GuardName, b.h.Assertion(authoritytest.GuardClaim)).Encode()))
	r.Header.Set(api.HeaderProof, b.key.compact())
	var out api.TokenResponse
	b.h.Into(b.h.Send(r), &out)
	b.token = capability.Token(out.AccessToken)
	return b
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

// TestDPoPBinding runs the cases of sections A, F, G and H that need a request, a token or two of them.
func TestDPoPBinding(t *testing.T) {
	t.Parallel()
	b := newBound(t)
	h := b.h
	thief := newRaw(t)
	for _, c := range []struct {
		number, name string
		request      func() *http.Request
		status       int
		code         api.Code
	}{
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
		{"13, 14", "a token without cnf", func() *http.Request {
			r := b.request()
			r.Header.Set("Authorization", "DPoP "+h.Assertion(authoritytest.GuardClaim))
			return r
		}, 401, api.InvalidToken},
		{"15", "the token in the query", func() *http.Request {
			r := b.request()
			r.URL.RawQuery = url.Values{"access_token": {b.token.Reveal()}}.Encode()
			r.Header.Del("Authorization")
			return r
		}, 401, api.InvalidToken},
		{"55", "a method override", func() *http.Request {
			r := b.changed(func(r *raw) { r.payload["htm"] = "PUT" })
			r.Header.Set("X-HTTP-Method-Override", "PUT")
			return r
		}, 401, api.InvalidDPoPProof},
		{"64", "Host and forwarded headers forged to fit the proof", func() *http.Request {
			r := b.changed(func(r *raw) { r.payload["htu"] = "http://evil.example" + api.PathNonces })
			r.Host = "evil.example"
			r.Header.Set("X-Forwarded-Host", "evil.example")
			return r
		}, 401, api.InvalidDPoPProof},
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
	} {
		t.Run(c.number+" "+c.name, func(t *testing.T) {
			request := c.request()
			before := h.Consumed()
			a := h.Send(request)
			assert.Equal(t, c.status, a.Status, string(a.Body))
			if c.status == http.StatusOK {
				return
			}
			assert.Equal(t, c.code, a.Problem().Code)
			assertAnswer(t, a)
			assert.Equal(t, before, h.Consumed(), "a refused request has consumed something")
		})
	}
	assert.Equal(t, http.StatusOK, h.Send(b.request()).Status, "case 108")
}

// Section H: one proof is good once, at every replica, whatever is done to its spelling.
func TestDPoPReplay(t *testing.T) {
	t.Parallel()
	b := newBound(t)
	h := b.h

	t.Run("89 twice", func(t *testing.T) {
		r := b.request()
		proof := r.Header.Get("DPoP")
		require.Equal(t, http.StatusOK, h.Send(r).Status)
		a := h.Send(b.with(proof))
		assert.Equal(t, http.StatusUnauthorized, a.Status)
		assert.Equal(t, api.ProofReplayed, a.Problem().Code)
	})
	t.Run("50, 98 with another signature of the same key", func(t *testing.T) {
		r := b.request()
		proof := r.Header.Get("DPoP")
		require.Equal(t, http.StatusOK, h.Send(r).Status)
		again := *b.key
		assert.Equal(t, api.ProofReplayed, h.Send(b.with(again.compact())).Problem().Code, "signed anew")
		last := strings.LastIndex(proof, ".")
		sig, err := rawURL(proof[last+1:])
		require.NoError(t, err)
		s := new(big.Int).Sub(order, new(big.Int).SetBytes(sig[32:]))
		assert.Equal(t, api.ProofReplayed, h.Send(b.with(proof[:last+1]+b64(append(sig[:32:32], pad(s)...)))).Problem().Code, "n-s")
	})
	t.Run("94 the same jti for another URI", func(t *testing.T) {
		r := b.request()
		require.Equal(t, http.StatusOK, h.Send(r).Status)
		b.key.payload["htu"], b.key.payload["htm"] = h.URL+api.PathUnsettled, "GET"
		other := h.Request("GET", api.PathUnsettled, "", nil)
		other.Header.Set("Authorization", "DPoP "+b.token.Reveal())
		other.Header.Set("DPoP", b.key.compact())
		assert.Equal(t, api.ProofReplayed, h.Send(other).Problem().Code)
	})
	t.Run("83 the same nonce, another jti; P29 the same jti under a nonce of another minute", func(t *testing.T) {
		first := b.request()
		nonce, jti := b.key.payload["nonce"], b.key.payload["jti"]
		require.Equal(t, http.StatusOK, h.Send(first).Status)
		assert.Equal(t, http.StatusOK, h.Send(b.changed(set(inPayload, "nonce", nonce))).Status)
		a := h.Send(b.changed(func(r *raw) { r.payload["jti"], r.payload["nonce"] = jti, nonceOf(t, h, 61*time.Second) }))
		assert.Equal(t, http.StatusOK, a.Status, string(a.Body))
	})
	t.Run("90, 91 many copies to two replicas", func(t *testing.T) {
		bundle, err := keys.Open(h.KeysDir, h.Identity)
		require.NoError(t, err)
		second, _, _ := h.Replica(bundle)
		r := b.request()
		proof := r.Header.Get("DPoP")
		var won, lost int
		var lock sync.Mutex
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				var ok bool
				if i%2 == 0 {
					ok = h.Send(b.with(proof)).Status == http.StatusOK
				} else {
					_, err := second.Nonces(t.Context(), callOf(h, proof), b.token, 1)
					ok = err == nil
				}
				lock.Lock()
				defer lock.Unlock()
				if ok {
					won++
				} else {
					lost++
				}
			})
		}
		all.Wait()
		assert.Equal(t, 1, won)
		assert.Equal(t, 15, lost)
	})
	t.Run("93 the same jti with another key", func(t *testing.T) {
		r := b.request()
		require.Equal(t, http.StatusOK, h.Send(r).Status)
		jti := b.key.payload["jti"]
		other := newRaw(t)
		other.prepare(h, "POST", api.PathToken, "")
		other.payload["jti"] = jti
		request := h.Request("POST", api.PathToken, "application/x-www-form-urlencoded",
			[]byte(authoritytest.ComponentForm(authoritytest.GuardName, h.Assertion(authoritytest.GuardClaim)).Encode()))
		request.Header.Set("DPoP", other.compact())
		var out api.TokenResponse
		h.Into(h.Send(request), &out)
		b.key, b.token = other, capability.Token(out.AccessToken)
	})
	t.Run("95 an invalid proof does not burn a victim's jti", func(t *testing.T) {
		good := b.request()
		jti, nonce := b.key.payload["jti"], b.key.payload["nonce"]
		thief := newRaw(t)
		thief.prepare(h, "POST", api.PathNonces, b.token)
		thief.payload["jti"], thief.payload["nonce"] = jti, nonce
		assert.Equal(t, http.StatusUnauthorized, h.Send(b.with(thief.compact())).Status)
		assert.Equal(t, http.StatusOK, h.Send(good).Status)
	})
	t.Run("78 a challenge spends nothing: the same assertion and jti with the nonce", func(t *testing.T) {
		k := newRaw(t)
		assertion := h.Assertion(authoritytest.GuardClaim)
		send := func() authoritytest.Answer {
			r := h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte(authoritytest.ComponentForm(authoritytest.GuardName, assertion).Encode()))
			r.Header.Set("DPoP", k.compact())
			return h.Send(r)
		}
		k.prepare(h, "POST", api.PathToken, "")
		delete(k.payload, "nonce")
		a := send()
		require.Equal(t, api.UseDPoPNonce, a.Problem().Code)
		assert.Equal(t, http.StatusBadRequest, a.Status)
		k.payload["nonce"] = a.Header.Get("DPoP-Nonce")
		assert.Equal(t, http.StatusOK, send().Status)
	})
}

// nonceOf is a nonce that a replica minted a while ago.
func nonceOf(t *testing.T, h *authoritytest.House, ago time.Duration) string {
	t.Helper()
	replica, err := keys.Open(h.KeysDir, h.Identity)
	require.NoError(t, err)
	nonces := replica.Nonces()
	nonces.Now = func() time.Time { return time.Now().Add(-ago) }
	return nonces.Mint(h.URL)
}

// Cases 73, 99-103, 106, 107 have no endpoint here; the tests assert their absence.
func TestAbsentEndpoints(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	for _, path := range []string{"/v1/par", "/par", "/v1/introspect", "/introspect", "/v1/revoke", "/revoke", "/authorize", "/v1/authorize"} {
		a := h.Send(h.Request("POST", path, "application/x-www-form-urlencoded", []byte("token=x")))
		assert.Equal(t, http.StatusNotFound, a.Status, path)
		assert.Equal(t, api.NotFound, a.Problem().Code)
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"x"}}
	r := h.Form(h.Key(), form)
	assert.Equal(t, api.UnsupportedGrantType, h.Send(r).Problem().Code)
}
