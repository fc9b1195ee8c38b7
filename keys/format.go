package keys

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const formatVersion = 1

// publicPart is bundle.json. It has one spelling only, its canonical form
// (RFC 8785), and its digest is sealed beside the secrets.
type publicPart struct {
	Version    int          `json:"version"`
	ClusterID  string       `json:"cluster_id"` // 16 bytes, base64url
	AuditKey   string       `json:"audit_key"`  // Ed25519 public key, 32 bytes, base64url
	publicKeys              // of the older generation
	Next       []publicKeys `json:"next"` // at most one
}

// publicKeys are the public half of one generation.
type publicKeys struct {
	datedKey
	NonceCheck       string     `json:"nonce_check"` // 32 bytes, base64url
	Provenance       provenance `json:"provenance"`
	ProvenanceSHA256 string     `json:"provenance_sha256"` // base64url
}

// provenance says where a sealed bundle's keys come from. It is a statement,
// not evidence: FIPS deployments need an external key (mission A13).
type provenance struct {
	Origin    string `json:"origin"`
	Seal      string `json:"seal"`
	CreatedAt string `json:"created_at"`       // RFC 3339, UTC
	Record    string `json:"record,omitempty"` // digest of the record that officers have signed, 32 bytes, base64url
}

type publicJWK struct {
	KTY string `json:"kty"`
	CRV string `json:"crv"`
	X   string `json:"x"`
	Y   string `json:"y"`
}

// datedKey is a verification key with its generation.
type datedKey struct {
	Generation int64     `json:"generation"`
	KID        string    `json:"kid"`
	Key        publicJWK `json:"key"`
}

// secretPart is what secrets.age seals.
type secretPart struct {
	Version      int    `json:"version"`
	ClusterID    string `json:"cluster_id"`
	Generation   int64  `json:"generation"`
	PublicSHA256 string `json:"public_sha256"` // of bundle.json, base64url
	AuditKey     string `json:"audit_key"`     // Ed25519 seed (RFC 8032 §5.1.5), 32 bytes, base64url
	secretKeys
	Next []secretKeys `json:"next"`
}

// secretKeys are the private half of one generation; empty when it lies in a token.
type secretKeys struct {
	SigningKey string `json:"signing_key"` // P-256 scalar, 32 bytes, base64url
	NonceKey   string `json:"nonce_key"`   // 32 bytes, base64url
}

var errFormat = errors.New("keys: malformed")

func parsePublic(b []byte) (*publicPart, error) {
	var p publicPart
	if err := canonical.Decode(b, &p); err != nil {
		return nil, err
	}
	if spelled, err := canonical.CanonicalizeValue(p); err != nil || !bytes.Equal(spelled, b) {
		return nil, errFormat
	}
	if p.Version != formatVersion || p.Generation < 1 || len(p.Next) > 1 {
		return nil, errFormat
	}
	return &p, nil
}

// all are the generations, the older one first.
func (p *publicPart) all() []publicKeys { return append([]publicKeys{p.publicKeys}, p.Next...) }

// identities are those of all generations. They rise, and no two share a key.
func (p *publicPart) identities() ([]Identity, error) {
	var out []Identity
	for _, k := range p.all() {
		id, err := p.identity(k)
		if err != nil {
			return nil, err
		}
		if n := len(out); n > 0 && (out[n-1].Generation >= id.Generation || out[n-1].KID == id.KID || out[n-1].NonceCheck == id.NonceCheck) {
			return nil, errFormat
		}
		out = append(out, id)
	}
	return out, nil
}

func (p *publicPart) identity(k publicKeys) (Identity, error) {
	id := Identity{Generation: k.Generation, KID: k.KID}
	if id.Generation < 1 || !fill(id.ClusterID[:], p.ClusterID) || !fill(id.NonceCheck[:], k.NonceCheck) || !fill(id.ProvenanceDigest[:], k.ProvenanceSHA256) || !fill(id.AuditKey[:], p.AuditKey) {
		return Identity{}, errFormat
	}
	key, err := k.parse()
	if err != nil {
		return Identity{}, err
	}
	digest, err := k.Provenance.digest(k.KID)
	if err != nil || digest != id.ProvenanceDigest {
		return Identity{}, errFormat
	}
	id.PublicKey = key.public
	return id, nil
}

func (d datedKey) parse() (verificationKey, error) {
	var point [65]byte
	point[0] = 4
	if d.Key.KTY != "EC" || d.Key.CRV != "P-256" || !fill(point[1:33], d.Key.X) || !fill(point[33:], d.Key.Y) {
		return verificationKey{}, errFormat
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point[:])
	if err != nil {
		return verificationKey{}, errFormat
	}
	jkt, err := capability.JKT(public)
	if err != nil || jkt.String() != d.KID {
		return verificationKey{}, errFormat
	}
	return verificationKey{kid: d.KID, generation: d.Generation, public: public}, nil
}

func dated(generation int64, public *ecdsa.PublicKey) (datedKey, error) {
	point, err := public.Bytes()
	if err != nil {
		return datedKey{}, errFormat
	}
	jkt, err := capability.JKT(public)
	key := publicJWK{KTY: "EC", CRV: "P-256", X: encode(point[1:33]), Y: encode(point[33:])}
	return datedKey{Generation: generation, KID: jkt.String(), Key: key}, err
}

func newProvenance(at time.Time) provenance {
	return provenance{Origin: "generated_locally", Seal: "age-x25519", CreatedAt: at.UTC().Format(time.RFC3339)}
}

// digest is that of the signed record, where there is one; else it binds the
// statement to the key that it is about.
func (p provenance) digest(kid string) (out [32]byte, err error) {
	if p.Record != "" {
		if p.Origin != originToken || !fill(out[:], p.Record) {
			err = errFormat
		}
		return out, err
	}
	spelled, err := canonical.CanonicalizeValue(p)
	return canonical.Digest(domainProvenance, []byte(kid), spelled), err
}

func publicDigest(b []byte) string {
	sum := sha256.Sum256(b)
	return encode(sum[:])
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// fill reads exactly len(dst) bytes of base64url in their one spelling.
func fill(dst []byte, s string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == len(dst) && encode(b) == s && copy(dst, b) == len(dst)
}

type publishedKey struct {
	Alg        string `json:"alg"`
	CRV        string `json:"crv"`
	Generation int64  `json:"generation"`
	KID        string `json:"kid"`
	KTY        string `json:"kty"`
	Use        string `json:"use"`
	X          string `json:"x"`
	Y          string `json:"y"`
}

// publish spells the JWK set; the order of known and canonical JSON make it the
// same bytes everywhere.
func publish(known []verificationKey) ([]byte, error) {
	set := struct {
		Keys []publishedKey `json:"keys"`
	}{}
	for _, k := range known {
		d, err := dated(k.generation, k.public)
		if err != nil {
			return nil, err
		}
		set.Keys = append(set.Keys, publishedKey{
			Alg: "ES256", Use: "sig", KID: d.KID, Generation: d.Generation,
			KTY: d.Key.KTY, CRV: d.Key.CRV, X: d.Key.X, Y: d.Key.Y,
		})
	}
	return canonical.CanonicalizeValue(set)
}
