// Package keys owns the cluster's one key bundle: its identity, the signing key
// handle, the nonce key, a provenance record and the keys before and after
// (mission A11–A13, B13). A bundle is made once by Init and opened by every
// replica; nothing here repairs, fetches or replaces material.
//
// Secrets live in closures, so that no printer, encoder or logger can walk into
// them.
package keys

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

const (
	domainBundleSign  = "nightwarrant/bundle-challenge/v1"
	domainBundleMAC   = "nightwarrant/bundle-mac/v1"
	domainNonceCheck  = "nightwarrant/nonce-check/v1"
	domainProvenance  = "nightwarrant/provenance/v1"
	domainNonce       = "nightwarrant/nonce/v1"
	domainNonceTarget = "nightwarrant/nonce-audience/v1"
	domainCursor      = "nightwarrant/cursor/v1"
	domainCursorPad   = "nightwarrant/cursor-pad/v1"
)

// Identity is the public identity of a bundle, and all of it that a database
// may hold.
type Identity struct {
	ClusterID        [16]byte
	Generation       int64  // ≥ 1
	KID              string // RFC 7638 thumbprint of the public key, base64url, 43 characters
	PublicKey        *ecdsa.PublicKey
	NonceCheck       [32]byte // HMAC of a fixed label under the nonce key
	ProvenanceDigest [32]byte
	AuditKey         [32]byte // Ed25519 public key of the audit log
}

// MaterialError says that key material is absent, changed or not the registered
// one. It is never repaired: the process exits with code 78 and the sentence (B13).
type MaterialError struct {
	Sentence string // bounded; never holds material
	cause    error
}

func (e *MaterialError) Error() string { return e.Sentence }

// Unwrap is the cause, for logs.
func (e *MaterialError) Unwrap() error { return e.cause }

func material(sentence string, cause error) *MaterialError {
	return &MaterialError{Sentence: sentence, cause: cause}
}

// Bundle is an opened key bundle, arranged as the database says (Under), or with
// its older generation alone before anybody has asked the database. It is
// immutable and safe for concurrent use.
type Bundle struct {
	held    []generation // by rising generation: one, or with the next two
	current generation
	known   []verificationKey // that still, or already, verify here
	jwks    []byte
	nonces  []nonceKey // the first mints, all are accepted
	auditor *Auditor
}

// generation is one that a bundle holds, with the handles of its keys.
type generation struct {
	Identity
	handles
	recorded bool
}

func (g generation) verification() verificationKey {
	return verificationKey{kid: g.KID, generation: g.Generation, public: g.PublicKey}
}

type verificationKey struct {
	kid        string
	generation int64
	public     *ecdsa.PublicKey
}

// nonceKey is the nonce key of a generation.
type nonceKey struct {
	macKey
	generation int64
}

// Identity is what the database stores of this bundle.
func (b *Bundle) Identity() Identity { return b.current.Identity }

// Newest is the identity of the newest generation that the bundle holds, in
// force or not.
func (b *Bundle) Newest() Identity { return b.held[len(b.held)-1].Identity }

// Recorded are the identities of the generations whose provenance digest is that
// of a signed record: the one that signs, and the newest.
func (b *Bundle) Recorded() (out []Identity) {
	for _, g := range []generation{b.current, b.held[len(b.held)-1]} {
		if g.recorded && !slices.ContainsFunc(out, func(i Identity) bool { return i.Generation == g.Generation }) {
			out = append(out, g.Identity)
		}
	}
	return out
}

// Signer signs capabilities with the current key; it is a capability.Signer.
func (b *Bundle) Signer() *Signer { return b.SignerFor(keyhost.PurposeCapability) }

// SignerFor signs with the current key for one of its purposes, which a key
// host holds to those that the key has.
func (b *Bundle) SignerFor(purpose string) *Signer { return b.current.signers(purpose) }

// Auditor signs the audit log's checkpoints, with a key that signs nothing else.
func (b *Bundle) Auditor() *Auditor { return b.auditor }

// JWKS is the published key set (RFC 7517), byte-equal on all replicas: current,
// next and previous verification keys with the generation of each. The caller
// must not change it.
func (b *Bundle) JWKS() []byte { return b.jwks }

// Key returns the verification key of that name and its generation; it makes a
// Bundle a capability.KeySet.
func (b *Bundle) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	i := slices.IndexFunc(b.known, func(k verificationKey) bool { return k.kid == kid })
	if i < 0 {
		return nil, 0, false
	}
	return b.known[i].public, b.known[i].generation, true
}

// Nonces mints and opens nonces under this bundle's nonce keys.
func (b *Bundle) Nonces() *Nonces { return newNonces(b.nonces) }

// Challenge proves possession of the signing key and the nonce key. What is
// signed can be no JWS signing input: it contains a zero byte.
func (b *Bundle) Challenge(challenge [32]byte) (sig [64]byte, mac [32]byte, err error) {
	if sig, err = b.current.sign(challenge); err != nil {
		return sig, mac, err
	}
	mac, ok := b.current.nonce(labelled(domainBundleMAC, challenge[:]))
	if !ok {
		err = errMAC
	}
	return sig, mac, err
}

// VerifyChallenge checks a proof of possession against this bundle: its maker
// holds the same signing key and the same nonce key.
func (b *Bundle) VerifyChallenge(challenge [32]byte, sig [64]byte, mac [32]byte) error {
	digest := challengeDigest(b.current.Identity, challenge)
	want, ok := b.current.nonce(labelled(domainBundleMAC, challenge[:]))
	if !ok || !verifyES256(b.current.PublicKey, digest, sig) || !hmac.Equal(mac[:], want[:]) {
		return material("the proof of possession was made with another key bundle", nil)
	}
	return nil
}

// Prove holds the generation that signs against a registered identity, and
// proves by a signature over a fresh challenge that the bundle holds that
// identity's private key.
func (b *Bundle) Prove(registered Identity) error { return b.current.prove(registered) }

func (g generation) prove(registered Identity) error {
	switch {
	case g.ClusterID != registered.ClusterID:
		return material("the key bundle belongs to another cluster than the database", nil)
	case g.Generation != registered.Generation:
		return material("the key bundle has another generation than the registered one", nil)
	case g.KID != registered.KID || registered.PublicKey == nil || !g.PublicKey.Equal(registered.PublicKey):
		return material("the key bundle's signing key is not the registered one", nil)
	case !hmac.Equal(g.NonceCheck[:], registered.NonceCheck[:]):
		return material("the key bundle's nonce key is not the registered one", nil)
	case g.AuditKey != registered.AuditKey:
		return material("the key bundle's audit key is not the registered one", nil)
	case g.ProvenanceDigest != registered.ProvenanceDigest:
		return material("the key bundle's provenance record is not the registered one", nil)
	}
	return g.proveFresh(registered.PublicKey)
}

func (g generation) proveFresh(registered *ecdsa.PublicKey) error {
	var challenge [32]byte
	rand.Read(challenge[:])
	sig, err := g.sign(challenge)
	if err != nil {
		return material("the key bundle cannot sign", err)
	}
	if !verifyES256(registered, challengeDigest(g.Identity, challenge), sig) {
		return material("the key bundle's signing key is not the registered one", nil)
	}
	return nil
}

func (g generation) sign(challenge [32]byte) ([64]byte, error) {
	return g.signers(keyhost.PurposeChallenge).SignES256(challengeDigest(g.Identity, challenge))
}

func challengeDigest(i Identity, challenge [32]byte) [32]byte {
	return canonical.Digest(domainBundleSign, i.ClusterID[:], challenge[:])
}
