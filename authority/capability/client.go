package capability

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"time"
)

// Key is a client's P-256 key. It lives in memory only: it cannot be marshalled and prints as its thumbprint.
type Key struct {
	private *ecdsa.PrivateKey
	header  string // of every proof, base64url
	jkt     Thumbprint
}

// GenerateKey makes a new key.
func GenerateKey() (*Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return newKey(private)
}

// KeyOf is the key of somebody who keeps it, as a person's own CLI does between
// two calls. Keys of workers and guards are generated and never kept.
func KeyOf(private *ecdsa.PrivateKey) (*Key, error) {
	if private == nil || private.Curve != elliptic.P256() {
		return nil, errNotP256
	}
	return newKey(private)
}

func newKey(private *ecdsa.PrivateKey) (*Key, error) {
	point, err := private.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	header := append([]byte(`{"alg":"ES256","typ":"dpop+jwt","jwk":`), appendJWK(nil, point)...)
	header = append(header, '}')
	return &Key{private: private, header: base64.RawURLEncoding.EncodeToString(header), jkt: thumbprint(point)}, nil
}

// Thumbprint is the key's public name.
func (k Key) Thumbprint() Thumbprint { return k.jkt }

// Public is the public half.
func (k Key) Public() *ecdsa.PublicKey { return &k.private.PublicKey }

// KeyID is the thumbprint's text: with SignES256 a Key is a Signer, for tests and local issuers.
func (k Key) KeyID() string { return k.jkt.String() }

// SignES256 signs a SHA-256 digest; the signature is r‖s.
func (k Key) SignES256(digest [32]byte) (sig [64]byte, err error) {
	der, err := ecdsa.SignASN1(rand.Reader, k.private, digest[:])
	if err != nil {
		return sig, err
	}
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(der, &rs); err != nil {
		return sig, err
	}
	rs.R.FillBytes(sig[:32])
	rs.S.FillBytes(sig[32:])
	return sig, nil
}

var errSecretKey = errors.New("capability: a client key does not leave memory")

// MarshalJSON always fails.
func (Key) MarshalJSON() ([]byte, error) { return nil, errSecretKey }

// MarshalText always fails.
func (Key) MarshalText() ([]byte, error) { return nil, errSecretKey }

// MarshalBinary always fails.
func (Key) MarshalBinary() ([]byte, error) { return nil, errSecretKey }

// GobEncode always fails.
func (Key) GobEncode() ([]byte, error) { return nil, errSecretKey }

func (k Key) String() string { return "key " + k.jkt.String() }

// Format prints the thumbprint under every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue is the thumbprint.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// ProofParams are what a new proof says.
type ProofParams struct {
	Method      string
	URL         string // query and fragment are left out
	Nonce       string // the last that the server gave, or empty
	AccessToken Token  // at resources; empty at the token endpoint
	Now         time.Time
}

type proofClaims struct {
	JTI   string `json:"jti"`
	HTM   string `json:"htm"`
	HTU   string `json:"htu"`
	IAT   int64  `json:"iat"`
	ATH   string `json:"ath,omitempty"`
	Nonce string `json:"nonce,omitempty"`
}

// NewProof makes the DPoP header for one request, with 128 random bits as its jti. It is an error if ParseProof would
// refuse what the parameters give.
func NewProof(k *Key, p ProofParams) (string, error) {
	htu, err := NormalizeHTU(p.URL)
	if err != nil {
		return "", err
	}
	var jti [16]byte
	if _, err := rand.Read(jti[:]); err != nil {
		return "", err
	}
	c := proofClaims{JTI: base64.RawURLEncoding.EncodeToString(jti[:]), HTM: p.Method, HTU: htu, IAT: p.Now.Unix(), Nonce: p.Nonce}
	if !p.AccessToken.IsZero() {
		ath := accessTokenHash(p.AccessToken)
		c.ATH = string(ath[:])
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	signed := k.header + "." + base64.RawURLEncoding.EncodeToString(payload)
	sig, err := k.SignES256(sha256.Sum256([]byte(signed)))
	if err != nil {
		return "", err
	}
	proof := signed + "." + base64.RawURLEncoding.EncodeToString(sig[:])
	if _, err := ParseProof(proof); err != nil {
		return "", err
	}
	return proof, nil
}
