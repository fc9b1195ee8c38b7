package keys

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// Host reaches signing keys and nonce keys that this process does not hold;
// keyhost.Client is one.
type Host interface {
	Describe(ctx context.Context) (keyhost.Descriptor, error)
	SignDigest(ctx context.Context, key, purpose string, digest [32]byte) ([64]byte, error)
	MAC(ctx context.Context, key string, message []byte) ([32]byte, error)
}

// Vouched is a host whose new pair of keys a signed record of provenance is
// about: the generation that is made of them is bound to that record.
type Vouched struct {
	Host
	ClusterID [16]byte // that the record is for: a first bundle is made for it
	KID       string   // of the recorded key
	Digest    [32]byte // of the record
}

// recordOf is the record of a new pair, empty when there is none.
func recordOf(host Host, kid string) (string, error) {
	v, ok := host.(Vouched)
	switch {
	case !ok:
		return "", nil
	case v.KID != kid:
		return "", material("the record of provenance is about another key than the host's new one", nil)
	}
	return encode(v.Digest[:]), nil
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

// handlesOf a generation are made of what the bundle seals of it, or of what a
// host serves.
func handlesOf(p publicKeys, m *sealedKeys, host Host) (handles, error) {
	switch {
	case m != nil:
		return m.handles(p.KID), nil
	case host == nil:
		return handles{}, material("the bundle's keys lie in a token: name the socket of its key host", nil)
	}
	return hostedBy(host, p)
}

// hostedBy are the keys of a token that a public half is about.
func hostedBy(host Host, p publicKeys) (handles, error) {
	pairs, err := pairsOf(host)
	if err != nil {
		return handles{}, err
	}
	for _, one := range pairs {
		if one.kid == p.KID {
			return one.handles(host), nil
		}
	}
	return handles{}, material("the bundle's signing key is not one that the key host serves", nil)
}

// pair is what a host serves as one generation.
type pair struct {
	keyhost.Pair
	kid    string
	public *ecdsa.PublicKey
}

func pairsOf(host Host) ([]pair, error) {
	ctx, cancel := context.WithTimeout(context.Background(), hostTime)
	defer cancel()
	d, err := host.Describe(ctx)
	if err != nil {
		return nil, material("the key host does not show its keys", err)
	}
	out := make([]pair, 0, len(d.Pairs))
	for _, p := range d.Pairs {
		public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), p.PublicKey)
		if err != nil {
			return nil, material("the key host's signing key is not one of P-256", err)
		}
		known, err := dated(1, public)
		if err != nil {
			return nil, material("the key host's signing key has no name", err)
		}
		out = append(out, pair{p, known.KID, public})
	}
	return out, nil
}

// unused is the only pair of a host's that no bundle has yet, which a new generation is made of.
func unused(host Host, used ...string) (pair, error) {
	pairs, err := pairsOf(host)
	if err != nil {
		return pair{}, err
	}
	pairs = slices.DeleteFunc(pairs, func(p pair) bool { return slices.Contains(used, p.kid) })
	if len(pairs) != 1 {
		return pair{}, material(fmt.Sprintf("the key host serves %d pairs of keys that are new here, and must serve one", len(pairs)), nil)
	}
	return pairs[0], nil
}

func (p pair) handles(host Host) handles {
	signers := map[string]*Signer{}
	for _, purpose := range []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge} {
		signers[purpose] = &Signer{kid: p.kid, sign: hostSign(host, p.Signing, purpose)}
	}
	unknown := &Signer{kid: p.kid, sign: func([32]byte) ([64]byte, error) { return [64]byte{}, errSigning }}
	of := func(purpose string) *Signer {
		if s, ok := signers[purpose]; ok {
			return s
		}
		return unknown
	}
	return handles{p.public, of, hostMAC(host, p.Nonce)}
}

func hostSign(host Host, key, purpose string) func([32]byte) ([64]byte, error) {
	return func(digest [32]byte) ([64]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), hostTime)
		defer cancel()
		return host.SignDigest(ctx, key, purpose, digest)
	}
}

func hostMAC(host Host, key string) macKey {
	return func(message []byte) ([32]byte, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), hostTime)
		defer cancel()
		mac, err := host.MAC(ctx, key, message)
		return mac, err == nil
	}
}
