package keys

import (
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"hash"
	"math/big"
	"sync"
)

var errSigning = errors.New("keys: signing failed")

// Signer is the handle of the current signing key. It holds no key that could
// be printed or encoded.
type Signer struct {
	kid  string
	sign func(digest [32]byte) ([64]byte, error)
}

func newSigner(kid string, private *ecdsa.PrivateKey) *Signer {
	return &Signer{kid: kid, sign: func(digest [32]byte) ([64]byte, error) { return signES256(private, digest) }}
}

// KeyID is the kid that this signer's signatures verify under.
func (s *Signer) KeyID() string { return s.kid }

// SignES256 signs a SHA-256 digest; the signature is r ‖ s (RFC 7518 §3.4). It
// is verified before it leaves, so that a fault in signing never gets out.
func (s *Signer) SignES256(digest [32]byte) ([64]byte, error) { return s.sign(digest) }

func signES256(private *ecdsa.PrivateKey, digest [32]byte) (sig [64]byte, err error) {
	r, s, err := ecdsa.Sign(rand.Reader, private, digest[:])
	if err != nil {
		return sig, errSigning
	}
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	if !verifyES256(&private.PublicKey, digest, sig) {
		return [64]byte{}, errSigning
	}
	return sig, nil
}

func verifyES256(public *ecdsa.PublicKey, digest [32]byte, sig [64]byte) bool {
	r, s := new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])
	return ecdsa.Verify(public, digest[:], r, s)
}

// macKey is HMAC-SHA-256 under a key that only the closure knows. It may fail
// where the key lies in a token.
type macKey func(message []byte) (mac [32]byte, ok bool)

func newMACKey(secret []byte) macKey {
	pool := sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }}
	return func(message []byte) (out [32]byte, ok bool) {
		h := pool.Get().(hash.Hash)
		defer pool.Put(h)
		h.Reset()
		h.Write(message)
		h.Sum(out[:0])
		return out, true
	}
}

// labelled separates the uses of one MAC key: domain ‖ 0x00 ‖ content.
func labelled(domain string, content []byte) []byte {
	m := make([]byte, 0, len(domain)+1+len(content))
	m = append(m, domain...)
	m = append(m, 0)
	return append(m, content...)
}
