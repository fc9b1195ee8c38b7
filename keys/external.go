package keys

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// Host reaches a signing key and a nonce key that this process does not hold;
// keyhost.Client is one.
type Host interface {
	Describe(ctx context.Context) (keyhost.Descriptor, error)
	SignDigest(ctx context.Context, purpose string, digest [32]byte) ([64]byte, error)
	MAC(ctx context.Context, message []byte) ([32]byte, error)
}

// originToken is the origin of keys that lie in a PKCS#11 token.
const originToken = "pkcs11"

// hostTime bounds a question to a key host.
const hostTime = 2 * time.Second

var errMAC = errors.New("keys: the nonce key cannot be reached")

// handles are what a bundle signs and authenticates with, wherever the keys are.
type handles struct {
	public  *ecdsa.PublicKey
	signers func(purpose string) *Signer
	nonce   macKey
}

func handlesOf(p *publicPart, m *sealedKeys, host Host) (handles, error) {
	switch inToken := p.Provenance.Origin == originToken; {
	case inToken && host == nil:
		return handles{}, material("the bundle's keys lie in a token: name the socket of its key host", nil)
	case inToken:
		return hosted(p.KID, host)
	case host != nil:
		return handles{}, material("the bundle seals its keys itself, and a key host is named for them", nil)
	}
	signer := newSigner(p.KID, m.private)
	return handles{&m.private.PublicKey, func(string) *Signer { return signer }, newMACKey(m.nonce)}, nil
}

// hosted are the keys of a token.
func hosted(kid string, host Host) (handles, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hostTime)
	defer cancel()
	d, err := host.Describe(ctx)
	if err != nil {
		return handles{}, material("the key host does not show its keys", err)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), d.PublicKey)
	if err != nil {
		return handles{}, material("the key host's signing key is not one of P-256", err)
	}
	signers := map[string]*Signer{}
	for _, purpose := range []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge} {
		signers[purpose] = &Signer{kid: kid, sign: hostSign(host, purpose)}
	}
	unknown := &Signer{kid: kid, sign: func([32]byte) ([64]byte, error) { return [64]byte{}, errSigning }}
	of := func(purpose string) *Signer {
		if s, ok := signers[purpose]; ok {
			return s
		}
		return unknown
	}
	return handles{public, of, hostMAC(host)}, nil
}

func hostSign(host Host, purpose string) func([32]byte) ([64]byte, error) {
	return func(digest [32]byte) ([64]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), hostTime)
		defer cancel()
		return host.SignDigest(ctx, purpose, digest)
	}
}

func hostMAC(host Host) macKey {
	return func(message []byte) ([32]byte, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), hostTime)
		defer cancel()
		mac, err := host.MAC(ctx, message)
		return mac, err == nil
	}
}

// InitWith makes a cluster's first bundle around the keys of a token, as Init
// does around keys that it makes. It makes the audit key only. Every error is a
// *MaterialError.
func InitWith(dir, identityFile string, host Host) (Identity, error) {
	if err := checkOutside(dir, identityFile); err != nil {
		return Identity{}, err
	}
	to, err := readIdentity(identityFile)
	if err != nil {
		return Identity{}, err
	}
	public, plain, err := describeHosted(host)
	if err != nil {
		return Identity{}, err
	}
	defer clear(plain)
	sealed, err := seal(plain, to.Recipient())
	if err != nil {
		return Identity{}, material("the bundle cannot be sealed", err)
	}
	if err := publishDir(dir, map[string][]byte{publicFile: public, secretsFile: sealed}); err != nil {
		return Identity{}, err
	}
	b, err := OpenWith(dir, identityFile, host)
	if err != nil {
		return Identity{}, err
	}
	return b.Identity(), nil
}

// describeHosted spells both parts of a new bundle around a token's keys.
func describeHosted(host Host) (public, plain []byte, err error) {
	h, err := hosted("", host)
	if err != nil {
		return nil, nil, err
	}
	check, ok := nonceCheck(h.nonce)
	current, err := dated(1, h.public)
	if err != nil || !ok {
		return nil, nil, material("the key host's keys cannot be used", err)
	}
	var cluster [16]byte
	seed := make([]byte, ed25519.SeedSize)
	defer clear(seed)
	rand.Read(cluster[:])
	rand.Read(seed)
	p := publicPart{Version: formatVersion, ClusterID: encode(cluster[:]), Generation: 1, KID: current.KID, Key: current.Key, NonceCheck: encode(check[:]),
		AuditKey: encode(auditKey(seed)), Previous: []datedKey{}, Next: []datedKey{},
		Provenance: provenance{Origin: originToken, Seal: "token", CreatedAt: time.Now().UTC().Format(time.RFC3339)}}
	digest, err := p.Provenance.digest(p.KID)
	if err != nil {
		return nil, nil, material("the bundle cannot be encoded", err)
	}
	p.ProvenanceSHA256 = encode(digest[:])
	if public, err = canonical.CanonicalizeValue(p); err != nil {
		return nil, nil, material("the bundle cannot be encoded", err)
	}
	plain, err = json.Marshal(secretPart{Version: formatVersion, ClusterID: p.ClusterID, Generation: 1, PublicSHA256: publicDigest(public),
		AuditKey: encode(seed), AcceptedNonces: []string{}})
	if err != nil {
		return nil, nil, material("the bundle cannot be encoded", err)
	}
	return public, plain, nil
}

// openSealed opens a bundle that can be rotated here: one that seals its keys itself.
func openSealed(dir, identityFile string) (opened, error) {
	return openParts(dir, identityFile, nil)
}
