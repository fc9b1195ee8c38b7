package keys

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// Init makes a cluster's first bundle, generation 1, in dir, which must not
// exist or be empty, sealed to the identity file's age identity (mode 0600,
// outside dir; NewIdentity makes one). Every error is a *MaterialError.
func Init(dir, identityFile string) (Identity, error) {
	return first(dir, identityFile, nil, func() (*sealedKeys, handles, error) {
		m, err := newMaterial()
		if err != nil {
			return nil, handles{}, material("the keys cannot be generated", err)
		}
		return m, m.handles(""), nil
	})
}

// first makes a cluster's first bundle, with keys that are made once nothing stands in the way.
func first(dir, identityFile string, host Host, keys func() (*sealedKeys, handles, error)) (Identity, error) {
	if err := checkOutside(dir, identityFile); err != nil {
		return Identity{}, err
	}
	id, err := readIdentity(identityFile)
	if err != nil {
		return Identity{}, err
	}
	m, h, err := keys()
	if err != nil {
		return Identity{}, err
	}
	var cluster [16]byte
	rand.Read(cluster[:])
	fips.Mark(&cluster)
	p := publicPart{
		Version: formatVersion, ClusterID: encode(cluster[:]), Generation: 1,
		Provenance: newProvenance(time.Now()), Previous: []datedKey{}, Next: []datedKey{},
	}
	if host != nil {
		p.Provenance.Origin, p.Provenance.Seal = originToken, "token"
	}
	if err := m.writeWith(dir, p, id, h); err != nil {
		return Identity{}, err
	}
	return reopen(dir, identityFile, host)
}

// reopen reads what was just written: a bundle that cannot be opened is found
// out by its maker and not by the first replica.
func reopen(dir, identityFile string, host Host) (Identity, error) {
	b, err := OpenWith(dir, identityFile, host)
	if err != nil {
		return Identity{}, err
	}
	return b.Identity(), nil
}

// sealedKeys is a bundle's private half on its way to the seal. Without a
// private key the signing key and the nonce key lie in a token.
type sealedKeys struct {
	private  *ecdsa.PrivateKey
	nonce    []byte
	audit    []byte // Ed25519 seed
	accepted [][]byte
}

func newMaterial() (*sealedKeys, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	nonce, audit := make([]byte, 32), make([]byte, ed25519.SeedSize)
	rand.Read(nonce)
	rand.Read(audit)
	return &sealedKeys{private: private, nonce: nonce, audit: audit}, nil
}

// write completes the public part with these keys and writes both parts.
func (m *sealedKeys) write(dir string, p publicPart, to sealer) error {
	return m.writeWith(dir, p, to, m.handles(""))
}

// handles are those of keys that are here.
func (m *sealedKeys) handles(kid string) handles {
	signer := newSigner(kid, m.private)
	return handles{&m.private.PublicKey, func(string) *Signer { return signer }, newMACKey(m.nonce)}
}

func (m *sealedKeys) writeWith(dir string, p publicPart, to sealer, h handles) error {
	if err := m.describe(&p, h); err != nil {
		return material("the keys cannot be encoded", err)
	}
	public, err := canonical.CanonicalizeValue(p)
	if err != nil {
		return material("the bundle cannot be encoded", err)
	}
	sealed, err := m.seal(p, public, to)
	if err != nil {
		return material("the bundle cannot be sealed", err)
	}
	return publishDir(dir, map[string][]byte{publicFile: public, secretsFile: sealed})
}

func (m *sealedKeys) describe(p *publicPart, h handles) error {
	current, err := dated(p.Generation, h.public)
	if err != nil {
		return err
	}
	p.KID, p.Key = current.KID, current.Key
	check, ok := nonceCheck(h.nonce)
	if !ok {
		return errMAC
	}
	p.NonceCheck = encode(check[:])
	p.AuditKey = encode(auditKey(m.audit))
	digest, err := p.Provenance.digest(p.KID)
	p.ProvenanceSHA256 = encode(digest[:])
	return err
}

func (m *sealedKeys) seal(p publicPart, public []byte, to sealer) ([]byte, error) {
	s := secretPart{
		Version: formatVersion, ClusterID: p.ClusterID, Generation: p.Generation, PublicSHA256: publicDigest(public),
		AuditKey: encode(m.audit), AcceptedNonces: []string{},
	}
	if m.private != nil {
		scalar, err := m.private.Bytes()
		if err != nil {
			return nil, err
		}
		s.SigningKey, s.NonceKey = encode(scalar), encode(m.nonce)
	}
	for _, k := range m.accepted {
		s.AcceptedNonces = append(s.AcceptedNonces, encode(k))
	}
	plain, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return seal(plain, to)
}

// Open opens the bundle in dir with the age identity in identityFile. It checks
// the files' modes, that the public part has its one spelling and is the one
// that was sealed, and that the private keys are those of the public identity.
// Every error is a *MaterialError: nothing is repaired (B13).
func Open(dir, identityFile string) (*Bundle, error) { return OpenWith(dir, identityFile, nil) }

// OpenWith is Open for a bundle whose signing key and nonce key lie in a token
// that host reaches; what such a bundle seals itself is the audit key. A bundle
// that seals all its keys is opened without a host only, and the other with one only.
func OpenWith(dir, identityFile string, host Host) (*Bundle, error) {
	o, err := openParts(dir, identityFile, host)
	return o.bundle, err
}

// opened is a bundle with the halves that it was assembled from.
type opened struct {
	bundle *Bundle
	public *publicPart
	keys   *sealedKeys
	to     sealer
}

func openParts(dir, identityFile string, host Host) (opened, error) {
	if err := checkOutside(dir, identityFile); err != nil {
		return opened{}, err
	}
	public, err := readGuarded(filepath.Join(dir, publicFile), noWriters)
	if err != nil {
		return opened{}, err
	}
	p, err := parsePublic(public)
	if err != nil {
		return opened{}, material("the bundle's public part is malformed", err)
	}
	id, err := readIdentity(identityFile)
	if err != nil {
		return opened{}, err
	}
	s, err := openSecrets(dir, id)
	if err != nil {
		return opened{}, err
	}
	if !s.seals(p, public) {
		return opened{}, material("the bundle's public part is not the one that was sealed", nil)
	}
	m, err := s.keys(p.Provenance.Origin == originToken)
	if err != nil {
		return opened{}, material("the bundle's sealed part is malformed", err)
	}
	b, err := assemble(p, m, host)
	return opened{bundle: b, public: p, keys: m, to: id}, err
}

func (s *secretPart) seals(p *publicPart, public []byte) bool {
	return s.Version == p.Version && s.ClusterID == p.ClusterID && s.Generation == p.Generation &&
		s.PublicSHA256 == publicDigest(public)
}

func openSecrets(dir string, id sealer) (*secretPart, error) {
	sealed, err := readGuarded(filepath.Join(dir, secretsFile), noOtherAccess)
	if err != nil {
		return nil, err
	}
	plain, err := unseal(sealed, id)
	if err != nil {
		return nil, material("the identity does not open the bundle's seal", err)
	}
	defer clear(plain)
	var s secretPart
	if canonical.Decode(plain, &s) != nil {
		return nil, material("the bundle's sealed part is malformed", nil)
	}
	return &s, nil
}

// keys are what is sealed; of a bundle whose keys are in a token, the audit key alone.
func (s *secretPart) keys(inToken bool) (*sealedKeys, error) {
	m := &sealedKeys{nonce: make([]byte, 32), audit: make([]byte, ed25519.SeedSize)}
	if inToken {
		if s.SigningKey != "" || s.NonceKey != "" || len(s.AcceptedNonces) > 0 || !fill(m.audit, s.AuditKey) {
			return nil, errFormat
		}
		return m, nil
	}
	var scalar [32]byte
	defer clear(scalar[:])
	if !fill(scalar[:], s.SigningKey) || !fill(m.nonce, s.NonceKey) || !fill(m.audit, s.AuditKey) {
		return nil, errFormat
	}
	for _, text := range s.AcceptedNonces {
		k := make([]byte, 32)
		if !fill(k, text) {
			return nil, errFormat
		}
		m.accepted = append(m.accepted, k)
	}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar[:])
	if err != nil {
		return nil, errFormat
	}
	m.private = private
	return m, nil
}

// assemble holds the private half against the public one and makes the handles.
func assemble(p *publicPart, m *sealedKeys, host Host) (*Bundle, error) {
	id, err := p.identity()
	if err != nil {
		return nil, material("the bundle's public part is malformed", err)
	}
	if err := fips.Cluster(id.ClusterID); err != nil {
		return nil, material(err.Error(), nil)
	}
	h, err := handlesOf(p, m, host)
	if err != nil {
		return nil, err
	}
	if !id.PublicKey.Equal(h.public) {
		return nil, material("the signing key is not the one of the bundle's public identity", nil)
	}
	nonces := []macKey{h.nonce}
	if check, ok := nonceCheck(h.nonce); !ok || !hmac.Equal(check[:], id.NonceCheck[:]) {
		return nil, material("the nonce key is not the one of the bundle's public identity", nil)
	}
	if !bytes.Equal(auditKey(m.audit), id.AuditKey[:]) {
		return nil, material("the sealed audit key is not the one of the bundle's public identity", nil)
	}
	for _, k := range m.accepted {
		nonces = append(nonces, newMACKey(k))
	}
	known, err := p.verification()
	if err != nil {
		return nil, material("the bundle's verification keys are malformed", err)
	}
	jwks, err := publish(known)
	if err != nil {
		return nil, material("the bundle's verification keys cannot be published", err)
	}
	return &Bundle{identity: id, known: known, jwks: jwks, signers: h.signers, nonces: nonces, auditor: newAuditor(id.ClusterID, m.audit)}, nil
}

func nonceCheck(k macKey) ([32]byte, bool) { return k(labelled(domainNonceCheck, nil)) }
