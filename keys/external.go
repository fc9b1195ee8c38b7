package keys

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"time"

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
	return m.handles(p.KID), nil
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
	return first(dir, identityFile, host, func() (*sealedKeys, handles, error) {
		seed := make([]byte, ed25519.SeedSize)
		rand.Read(seed)
		h, err := hosted("", host)
		return &sealedKeys{audit: seed}, h, err
	})
}
