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
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// Init makes a cluster's first bundle, generation 1, in dir, which must not
// exist or be empty, sealed to the identity file's age identity (mode 0600,
// outside dir; NewIdentity makes one). Every error is a *MaterialError.
func Init(dir, identityFile string) (Identity, error) {
	return first(dir, identityFile, nil)
}

// InitWith makes a cluster's first bundle around the one pair of keys that host
// serves, as Init does around keys that it makes. It makes the audit key only.
// Every error is a *MaterialError.
func InitWith(dir, identityFile string, host Host) (Identity, error) {
	return first(dir, identityFile, host)
}

// first makes a cluster's first bundle, with keys that are made once nothing stands in the way.
func first(dir, identityFile string, host Host) (Identity, error) {
	if err := checkOutside(dir, identityFile); err != nil {
		return Identity{}, err
	}
	by, err := readIdentity(identityFile)
	if err != nil {
		return Identity{}, err
	}
	g, err := newGeneration(1, host)
	if err != nil {
		return Identity{}, err
	}
	var cluster [16]byte
	rand.Read(cluster[:])
	fips.Mark(&cluster)
	if v, ok := host.(Vouched); ok {
		cluster = v.ClusterID
	}
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	o := opened{public: &publicPart{Version: formatVersion, ClusterID: encode(cluster[:]), AuditKey: encode(auditKey(seed))}, audit: seed, by: by}
	if err := o.write(dir, g); err != nil {
		return Identity{}, err
	}
	return reopen(dir, identityFile, host)
}

// reopen reads what was just written, and returns the identity of its newest
// generation: a bundle that cannot be opened is found out by its maker and not
// by the first replica.
func reopen(dir, identityFile string, host Host) (Identity, error) {
	b, err := OpenWith(dir, identityFile, host)
	if err != nil {
		return Identity{}, err
	}
	return b.Newest(), nil
}

// sealedKeys are a generation's private half on its way to the seal; nil when it
// lies in a token.
type sealedKeys struct {
	private *ecdsa.PrivateKey
	nonce   []byte
}

func newMaterial() (*sealedKeys, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, 32)
	rand.Read(nonce)
	return &sealedKeys{private: private, nonce: nonce}, nil
}

// handles are those of keys that are here.
func (m *sealedKeys) handles(kid string) handles {
	signer := newSigner(kid, m.private)
	return handles{&m.private.PublicKey, func(string) *Signer { return signer }, newMACKey(m.nonce)}
}

// encode is how they lie in the seal.
func (m *sealedKeys) encode() (secretKeys, error) {
	if m == nil {
		return secretKeys{}, nil
	}
	scalar, err := m.private.Bytes()
	if err != nil {
		return secretKeys{}, err
	}
	defer clear(scalar)
	return secretKeys{encode(scalar), encode(m.nonce)}, nil
}

// halves are both halves of one generation.
type halves struct {
	public publicKeys
	keys   *sealedKeys
}

// newGeneration makes keys, or takes the one pair that a host serves and no
// generation has yet.
func newGeneration(number int64, host Host, used ...string) (halves, error) {
	m, from := (*sealedKeys)(nil), newProvenance(time.Now())
	var h handles
	if host != nil {
		p, err := unused(host, used...)
		if err != nil {
			return halves{}, err
		}
		h, from.Origin, from.Seal = p.handles(host), originToken, "token"
		if from.Record, err = recordOf(host, p.kid); err != nil {
			return halves{}, err
		}
	} else {
		var err error
		if m, err = newMaterial(); err != nil {
			return halves{}, material("the keys cannot be generated", err)
		}
		h = m.handles("")
	}
	public, err := describe(number, from, h)
	if err != nil {
		return halves{}, material("the keys cannot be encoded", err)
	}
	return halves{public, m}, nil
}

func describe(number int64, from provenance, h handles) (publicKeys, error) {
	key, err := dated(number, h.public)
	if err != nil {
		return publicKeys{}, err
	}
	check, ok := nonceCheck(h.nonce)
	if !ok {
		return publicKeys{}, errMAC
	}
	digest, err := from.digest(key.KID)
	return publicKeys{key, encode(check[:]), from, encode(digest[:])}, err
}

// write makes a bundle of the same cluster with these generations, the older one first.
func (o opened) write(dir string, older halves, next ...halves) error {
	p := publicPart{Version: o.public.Version, ClusterID: o.public.ClusterID, AuditKey: o.public.AuditKey, publicKeys: older.public, Next: []publicKeys{}}
	for _, n := range next {
		p.Next = append(p.Next, n.public)
	}
	public, err := canonical.CanonicalizeValue(p)
	if err != nil {
		return material("the bundle cannot be encoded", err)
	}
	sealed, err := o.seal(p, public, older, next)
	if err != nil {
		return material("the bundle cannot be sealed", err)
	}
	return publishDir(dir, map[string][]byte{publicFile: public, secretsFile: sealed})
}

func (o opened) seal(p publicPart, public []byte, older halves, next []halves) (_ []byte, err error) {
	s := secretPart{
		Version: formatVersion, ClusterID: p.ClusterID, Generation: p.Generation, PublicSHA256: publicDigest(public),
		AuditKey: encode(o.audit), Next: make([]secretKeys, len(next)),
	}
	if s.secretKeys, err = older.keys.encode(); err != nil {
		return nil, err
	}
	for i, n := range next {
		if s.Next[i], err = n.keys.encode(); err != nil {
			return nil, err
		}
	}
	plain, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	return seal(plain, o.by)
}

// Open opens the bundle in dir with the age identity in identityFile. It checks
// the files' modes, that the public part has its one spelling and is the one
// that was sealed, and that the private keys are those of the public identity.
// Every error is a *MaterialError: nothing is repaired (B13).
func Open(dir, identityFile string) (*Bundle, error) { return OpenWith(dir, identityFile, nil) }

// OpenWith is Open for a bundle that has a generation whose keys lie in a token
// that host reaches; what such a bundle seals itself is the audit key. A bundle
// that seals all its keys is opened without a host only, and the other with one only.
func OpenWith(dir, identityFile string, host Host) (*Bundle, error) {
	o, err := openParts(dir, identityFile, host)
	return o.bundle, err
}

// opened is a bundle with what it was assembled from.
type opened struct {
	bundle *Bundle
	public *publicPart
	all    []halves
	audit  []byte // Ed25519 seed
	by     sealer
}

func openParts(dir, identityFile string, host Host) (opened, error) {
	if err := checkOutside(dir, identityFile); err != nil {
		return opened{}, err
	}
	if err := checkPlaces(dir, identityFile); err != nil {
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
	by, err := readIdentity(identityFile)
	if err != nil {
		return opened{}, err
	}
	s, err := openSecrets(dir, by)
	if err != nil {
		return opened{}, err
	}
	if !s.seals(p, public) {
		return opened{}, material("the bundle's public part is not the one that was sealed", nil)
	}
	o := opened{public: p, audit: make([]byte, ed25519.SeedSize), by: by}
	if o.all, err = s.halves(p); err != nil || !fill(o.audit, s.AuditKey) {
		return opened{}, material("the bundle's sealed part is malformed", err)
	}
	o.bundle, err = o.assemble(host)
	return o, err
}

func (s *secretPart) seals(p *publicPart, public []byte) bool {
	return s.Version == p.Version && s.ClusterID == p.ClusterID && s.Generation == p.Generation &&
		s.PublicSHA256 == publicDigest(public)
}

func openSecrets(dir string, by sealer) (*secretPart, error) {
	sealed, err := readGuarded(filepath.Join(dir, secretsFile), noOtherAccess)
	if err != nil {
		return nil, err
	}
	plain, err := unseal(sealed, by)
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

// halves joins each generation's public half with its private one.
func (s *secretPart) halves(p *publicPart) (out []halves, err error) {
	secrets := append([]secretKeys{s.secretKeys}, s.Next...)
	if len(s.Next) != len(p.Next) {
		return nil, errFormat
	}
	for i, k := range p.all() {
		m, err := secrets[i].keys(k.Provenance.Origin == originToken)
		if err != nil {
			return nil, err
		}
		out = append(out, halves{k, m})
	}
	return out, nil
}

// keys are what is sealed of a generation: nothing, when it lies in a token.
func (s secretKeys) keys(inToken bool) (*sealedKeys, error) {
	if inToken {
		if s != (secretKeys{}) {
			return nil, errFormat
		}
		return nil, nil
	}
	m := &sealedKeys{nonce: make([]byte, 32)}
	var scalar [32]byte
	defer clear(scalar[:])
	if !fill(scalar[:], s.SigningKey) || !fill(m.nonce, s.NonceKey) {
		return nil, errFormat
	}
	private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar[:])
	if err != nil {
		return nil, errFormat
	}
	m.private = private
	return m, nil
}

// assemble holds the private halves against the public ones and makes the handles.
func (o opened) assemble(host Host) (*Bundle, error) {
	ids, err := o.public.identities()
	if err != nil {
		return nil, material("the bundle's public part is malformed", err)
	}
	if err := fips.Cluster(ids[0].ClusterID); err != nil {
		return nil, material(err.Error(), nil)
	}
	if !bytes.Equal(auditKey(o.audit), ids[0].AuditKey[:]) {
		return nil, material("the sealed audit key is not the one of the bundle's public identity", nil)
	}
	if host != nil && !slices.ContainsFunc(o.all, func(h halves) bool { return h.keys == nil }) {
		return nil, material("the bundle seals its keys itself, and a key host is named for them", nil)
	}
	b := &Bundle{auditor: newAuditor(ids[0].ClusterID, o.audit)}
	for i, id := range ids {
		g, err := o.all[i].generation(id, host)
		if err != nil {
			return nil, err
		}
		b.held = append(b.held, g)
	}
	return b.arranged(b.held[:1], []verificationKey{b.held[0].verification()})
}

// generation makes the handles of one, and holds them against its identity.
func (h halves) generation(id Identity, host Host) (generation, error) {
	keys, err := handlesOf(h.public, h.keys, host)
	if err != nil {
		return generation{}, err
	}
	if !id.PublicKey.Equal(keys.public) {
		return generation{}, material("the signing key is not the one of the bundle's public identity", nil)
	}
	if check, ok := nonceCheck(keys.nonce); !ok || !hmac.Equal(check[:], id.NonceCheck[:]) {
		return generation{}, material("the nonce key is not the one of the bundle's public identity", nil)
	}
	return generation{id, keys, h.public.Provenance.Record != ""}, nil
}

func nonceCheck(k macKey) ([32]byte, bool) { return k(labelled(domainNonceCheck, nil)) }
