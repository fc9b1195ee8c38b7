// Package dev runs what stands in for other people's services in
// demonstrations and development: a workload issuer, which projects
// Kubernetes-shaped tokens of service accounts into files, an identity
// provider, which writes envelopes of people, a NATS server, and a receiver of
// what owners must hear.
//
// They are separate processes, but for the receiver, and the authority knows them as configured
// services like any other: it has no switch for them. They are not for
// production. Nobody is authenticated: whoever can read a file is that workload
// or that person. Keys lie in plain files, nothing is revoked, and nothing is
// audited. They listen on a loopback address only.
package dev

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	pathDiscovery = "/.well-known/openid-configuration" // OpenID Connect Discovery 1.0 §4
	pathKeys      = "/keys"
	keyFile       = "issuer-key.pem"
	rsaBits       = 2048
)

// Issuer signs tokens with its own key and publishes that key. It is safe for
// concurrent use.
type Issuer struct {
	url       string
	signer    jose.Signer
	keys      []byte // the JWK set
	discovery map[string]any
}

// NewIssuer makes an issuer with the given URL. Its key is ES256 or RS256; with
// a directory it is kept there and used again after a restart, else it is new.
func NewIssuer(url, algorithm, dir string) (*Issuer, error) {
	private, err := keyIn(dir, algorithm)
	if err != nil {
		return nil, err
	}
	public := jose.JSONWebKey{Key: private.Public(), Algorithm: algorithm, Use: "sig"}
	thumb, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, err
	}
	public.KeyID = encode(thumb)
	i := &Issuer{url: url}
	key := jose.SigningKey{Algorithm: jose.SignatureAlgorithm(algorithm), Key: jose.JSONWebKey{Key: private, KeyID: public.KeyID}}
	if i.signer, err = jose.NewSigner(key, nil); err != nil {
		return nil, err
	}
	if i.keys, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}}); err != nil {
		return nil, err
	}
	i.discovery = map[string]any{"issuer": url, "jwks_uri": url + pathKeys, "response_types_supported": []string{"id_token"},
		"subject_types_supported": []string{"pairwise"}, "id_token_signing_alg_values_supported": []string{algorithm}}
	return i, nil
}

// Handler answers with the discovery document and the key set.
func (i *Issuer) Handler() http.Handler { return i.handler() }

func (i *Issuer) handler() *http.ServeMux {
	mux := http.NewServeMux()
	for path, body := range map[string]any{pathDiscovery: i.discovery, pathKeys: json.RawMessage(i.keys)} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, body) })
	}
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller may be gone
}

// Token signs a token with these claims that lives from now on, with a fresh jti.
func (i *Issuer) Token(claims map[string]any, now time.Time, lifetime time.Duration) (string, error) {
	all := map[string]any{"iss": i.url, "iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(lifetime).Unix(), "jti": rand.Text()}
	for name, value := range claims {
		all[name] = value
	}
	payload, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	signed, err := i.signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// keyIn reads the key in a directory, or makes it.
func keyIn(dir, algorithm string) (crypto.Signer, error) {
	if dir == "" {
		return newKey(algorithm)
	}
	path := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeKey(path, algorithm)
	}
	if err != nil {
		return nil, err
	}
	return parseKey(text, algorithm)
}

func newKey(algorithm string) (crypto.Signer, error) {
	switch jose.SignatureAlgorithm(algorithm) {
	case jose.ES256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.RS256:
		return rsa.GenerateKey(rand.Reader, rsaBits)
	}
	return nil, fmt.Errorf("dev: the algorithm is ES256 or RS256, not %.20q", algorithm)
}

func makeKey(path, algorithm string) (crypto.Signer, error) {
	private, err := newKey(algorithm)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	return private, replaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func parseKey(text []byte, algorithm string) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("dev: the key file holds no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errors.New("dev: the key file holds no PKCS #8 key")
	}
	switch k := parsed.(type) {
	case *ecdsa.PrivateKey:
		if algorithm == string(jose.ES256) && k.Curve == elliptic.P256() {
			return k, nil
		}
	case *rsa.PrivateKey:
		if algorithm == string(jose.RS256) {
			return k, nil
		}
	}
	return nil, fmt.Errorf("dev: the kept key is not one for %s", algorithm)
}
