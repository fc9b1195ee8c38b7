// Package jwkstest runs a token issuer for tests: an HTTP server on a loopback
// address with OpenID Connect discovery, a key set that the test changes, and
// tokens that it signs in whatever shape the test asks for.
package jwkstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
)

// Issuer is a running issuer. It is safe for concurrent use.
type Issuer struct {
	URL     string
	Server  *httptest.Server
	fetches atomic.Int64

	mu      sync.Mutex
	keys    []key
	members map[string]map[string]any // further members of published keys, by kid
	serve   http.HandlerFunc          // instead of the key set, when set
}

type key struct {
	kid    string
	signer crypto.Signer
}

// New starts an issuer with one ES256 key named "one".
func New(t testing.TB) *Issuer { return start(t, httptest.NewServer) }

// NewTLS is New behind TLS; Server.Certificate is what to trust.
func NewTLS(t testing.TB) *Issuer { return start(t, httptest.NewTLSServer) }

func start(t testing.TB, listen func(http.Handler) *httptest.Server) *Issuer {
	t.Helper()
	i := &Issuer{members: map[string]map[string]any{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.JWKSURL()})
	})
	mux.HandleFunc("GET /keys", i.answer)
	i.Server = listen(mux)
	i.URL = i.Server.URL
	t.Cleanup(i.Server.Close)
	i.Add(t, "one", "ES256")
	return i
}

// JWKSURL is where the keys are.
func (i *Issuer) JWKSURL() string { return i.URL + "/keys" }

// Fetches counts how often the key set was asked for.
func (i *Issuer) Fetches() int { return int(i.fetches.Load()) }

func (i *Issuer) answer(w http.ResponseWriter, r *http.Request) {
	i.fetches.Add(1)
	i.mu.Lock()
	serve := i.serve
	i.mu.Unlock()
	if serve != nil {
		serve(w, r)
		return
	}
	_, _ = w.Write(i.Set())
}

// Serve answers the key address with h; nil restores the key set.
func (i *Issuer) Serve(h http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.serve = h
}

// Set is the published key set.
func (i *Issuer) Set() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	out := []map[string]any{}
	for _, k := range i.keys {
		jwk := PublicJWK(k.signer.Public())
		jwk["kid"] = k.kid
		for name, v := range i.members[k.kid] {
			jwk[name] = v
		}
		out = append(out, jwk)
	}
	b, _ := json.Marshal(map[string]any{"keys": out})
	return b
}

// Publish adds or replaces a member of a published key, for instance use.
func (i *Issuer) Publish(kid, member string, value any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.members[kid] == nil {
		i.members[kid] = map[string]any{}
	}
	i.members[kid][member] = value
}

// Add publishes a new ES256 or RS256 key.
func (i *Issuer) Add(t testing.TB, kid, alg string) {
	t.Helper()
	var s crypto.Signer
	var err error
	if alg == "RS256" {
		s = rsaKey()
	} else {
		s, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = append(i.keys, key{kid, s})
}

// rsaKey is one key for the whole process: making one is slow.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// Remove takes a key out of the published set and returns it, so that a test
// can go on signing with it.
func (i *Issuer) Remove(kid string) crypto.Signer {
	i.mu.Lock()
	defer i.mu.Unlock()
	for n, k := range i.keys {
		if k.kid == kid {
			i.keys = append(i.keys[:n:n], i.keys[n+1:]...)
			return k.signer
		}
	}
	return nil
}

// Signer is the private key of that name.
func (i *Issuer) Signer(kid string) crypto.Signer {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, k := range i.keys {
		if k.kid == kid {
			return k.signer
		}
	}
	return nil
}

// Token signs claims with the key "one". The claim iss is set unless it is there; nil leaves it out.
func (i *Issuer) Token(claims map[string]any) string { return i.TokenBy("one", claims) }

// TokenBy is Token with the key of that name.
func (i *Issuer) TokenBy(kid string, claims map[string]any) string {
	all := map[string]any{"iss": i.URL}
	for name, v := range claims {
		all[name] = v
	}
	if all["iss"] == nil {
		delete(all, "iss")
	}
	payload, err := json.Marshal(all)
	if err != nil {
		panic(err)
	}
	s := i.Signer(kid)
	header, _ := json.Marshal(map[string]any{"alg": algorithm(s), "kid": kid, "typ": "JWT"})
	return Sign(s, header, payload)
}

func algorithm(s crypto.Signer) string {
	if _, ok := s.(*rsa.PrivateKey); ok {
		return "RS256"
	}
	return "ES256"
}

// Sign makes a compact JWS of exactly these bytes.
func Sign(s crypto.Signer, header, payload []byte) string {
	signed := B64(header) + "." + B64(payload)
	return signed + "." + B64(Signature(s, signed))
}

// Signature is the JWS signature over a signing input.
func Signature(s crypto.Signer, signed string) []byte {
	digest := sha256.Sum256([]byte(signed))
	switch k := s.(type) {
	case *rsa.PrivateKey:
		sig, err := rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, digest[:])
		if err != nil {
			panic(err)
		}
		return sig
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, digest[:])
		if err != nil {
			panic(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	}
	panic("jwkstest: no such key")
}

// PublicJWK spells a public key as a JWK without kid, alg and use.
func PublicJWK(public crypto.PublicKey) map[string]any {
	switch k := public.(type) {
	case *rsa.PublicKey:
		return map[string]any{"kty": "RSA", "n": B64(k.N.Bytes()), "e": B64(big.NewInt(int64(k.E)).Bytes())}
	case *ecdsa.PublicKey:
		point, err := k.Bytes()
		if err != nil {
			panic(err)
		}
		half := (len(point) - 1) / 2
		return map[string]any{"kty": "EC", "crv": k.Params().Name, "x": B64(point[1 : 1+half]), "y": B64(point[1+half:])}
	}
	panic("jwkstest: no such key")
}

// B64 is unpadded base64url.
func B64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func decode(s string) ([]byte, error) { return base64.RawURLEncoding.DecodeString(s) }
