package jwkstest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// APIAudience is the audience of a cluster's own API.
const APIAudience = "https://kubernetes.default.svc.cluster.local"

// Cluster is what of a Kubernetes API server concerns tokens, spelled as one
// spells it: the issuer of service account tokens (discovery, JWKS, rotation,
// bound objects) and TokenReview. It is safe for concurrent use.
type Cluster struct {
	URL    string
	Server *httptest.Server
	keys   *Issuer

	mu      sync.Mutex
	kid     string // that signs
	pods    map[string]Pod
	serve   http.HandlerFunc // instead of TokenReview, when set
	reviews int
}

// Pod is a running pod, and what its tokens are bound to.
type Pod struct{ Namespace, ServiceAccount, Name, Node, UID string }

// NewCluster starts a cluster behind TLS with one RS256 key.
func NewCluster(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{pods: map[string]Pod{}, keys: &Issuer{members: map[string]map[string]any{}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": c.URL, "jwks_uri": c.URL + "/openid/v1/jwks", "response_types_supported": []string{"id_token"},
			"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256", "ES256"}})
	})
	mux.HandleFunc("GET /openid/v1/jwks", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		_, _ = w.Write(c.keys.Set())
	})
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", c.review)
	c.Server = httptest.NewTLSServer(mux)
	c.URL = c.Server.URL
	t.Cleanup(c.Server.Close)
	c.Rotate(t, "RS256")
	return c
}

// Roots trusts the server.
func (c *Cluster) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(c.Server.Certificate())
	return roots
}

// Rotate signs with a new key from now on. The old ones stay published until Retire.
func (c *Cluster) Rotate(t testing.TB, alg string) {
	t.Helper()
	name := sha256.Sum256([]byte(rand.Text()))
	kid := B64(name[:])
	c.keys.Add(t, kid, alg)
	for member, value := range map[string]any{"use": "sig", "alg": alg} {
		c.keys.Publish(kid, member, value)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kid = kid
}

// Retire stops publishing every key but the one that signs.
func (c *Cluster) Retire() {
	c.mu.Lock()
	signs := c.kid
	c.mu.Unlock()
	c.keys.mu.Lock()
	defer c.keys.mu.Unlock()
	c.keys.keys = slices.DeleteFunc(c.keys.keys, func(k key) bool { return k.kid != signs })
}

// Pod starts a pod.
func (c *Cluster) Pod(namespace, account, name, node string) Pod {
	p := Pod{namespace, account, name, node, uid()}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods[p.UID] = p
	return p
}

func uid() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Delete ends a pod; its tokens stay signed.
func (c *Cluster) Delete(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, p.UID)
}

// Project is the token that a kubelet projects into a pod for ten minutes.
func (c *Cluster) Project(p Pod, audiences ...string) string {
	return c.Token(c.Claims(p, audiences...))
}

// Token signs any claims with the present key.
func (c *Cluster) Token(claims map[string]any) string {
	c.mu.Lock()
	kid := c.kid
	c.mu.Unlock()
	payload, err := json.Marshal(claims)
	if err != nil {
		panic(err)
	}
	s := c.keys.Signer(kid)
	header, _ := json.Marshal(map[string]any{"alg": algorithm(s), "kid": kid}) // no typ
	return Sign(s, header, payload)
}

// Claims is what a projected token says.
func (c *Cluster) Claims(p Pod, audiences ...string) map[string]any {
	now := time.Now().Unix()
	return map[string]any{"iss": c.URL, "sub": "system:serviceaccount:" + p.Namespace + ":" + p.ServiceAccount, "aud": audiences, "iat": now, "nbf": now, "exp": now + 600, "jti": uid(),
		"kubernetes.io": map[string]any{"namespace": p.Namespace, "serviceaccount": map[string]any{"name": p.ServiceAccount, "uid": uid()},
			"pod": map[string]any{"name": p.Name, "uid": p.UID}, "node": map[string]any{"name": p.Node, "uid": uid()}}}
}

// Serve answers reviews with h; nil restores them.
func (c *Cluster) Serve(h http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serve = h
}

// Reviews counts the reviews that were asked for.
func (c *Cluster) Reviews() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reviews
}

func (c *Cluster) review(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.reviews++
	serve := c.serve
	c.mu.Unlock()
	body, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10)) // to its end: only then does a server notice that its caller has gone
	if serve != nil {
		serve(w, r)
		return
	}
	bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if _, ok := c.authenticate(bearer, []string{APIAudience}); !ok {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var in struct {
		Spec struct {
			Token     string
			Audiences []string
		}
	}
	if json.Unmarshal(body, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	status := map[string]any{"user": map[string]any{}, "error": "[invalid bearer token, service account token has been invalidated]"}
	if claims, ok := c.authenticate(in.Spec.Token, in.Spec.Audiences); ok {
		status = map[string]any{"authenticated": true, "audiences": in.Spec.Audiences, "user": map[string]any{"username": claims["sub"], "uid": uid(),
			"groups": []string{"system:serviceaccounts", "system:authenticated"}, "extra": map[string]any{"authentication.kubernetes.io/pod-uid": []string{podOf(claims)}}}}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "metadata": map[string]any{}, "spec": in.Spec, "status": status})
}

// authenticate takes tokens of this cluster for one of the audiences whose pod still runs.
func (c *Cluster) authenticate(token string, audiences []string) (claims map[string]any, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, false
	}
	payload, err := decode(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return nil, false
	}
	header, _ := decode(parts[0])
	var h struct{ KID string }
	_ = json.Unmarshal(header, &h)
	given, _ := claims["aud"].([]any)
	meant := slices.ContainsFunc(given, func(a any) bool { s, _ := a.(string); return slices.Contains(audiences, s) })
	exp, _ := claims["exp"].(float64)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, runs := c.pods[podOf(claims)]
	signature, _ := decode(parts[2])
	return claims, verifies(c.keys.Signer(h.KID), parts[0]+"."+parts[1], signature) && meant && runs && int64(exp) > time.Now().Unix()
}

func verifies(by crypto.Signer, signed string, signature []byte) bool {
	digest := sha256.Sum256([]byte(signed))
	switch k := by.(type) {
	case *rsa.PrivateKey:
		return rsa.VerifyPKCS1v15(&k.PublicKey, crypto.SHA256, digest[:], signature) == nil
	case *ecdsa.PrivateKey:
		return len(signature) == 64 && ecdsa.Verify(&k.PublicKey, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:]))
	}
	return false
}

func podOf(claims map[string]any) string {
	k, _ := claims["kubernetes.io"].(map[string]any)
	pod, _ := k["pod"].(map[string]any)
	uid, _ := pod["uid"].(string)
	return uid
}
