package keys

import (
	"crypto/hmac"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// A nonce is version (1 byte) ‖ audience tag (8) ‖ issue time in unix
// microseconds (8) ‖ randomness (12) ‖ truncated HMAC-SHA-256 (16), base64url.
const (
	nonceVersion = 1
	nonceTag     = 8
	nonceBody    = 1 + nonceTag + 8 + 12
	nonceMAC     = 16
	nonceLen     = (nonceBody + nonceMAC) / 3 * 4 // 60 characters, no padding
)

// ErrNonce says that a nonce is not one of ours for that audience. The answer
// is use_dpop_nonce, whatever is wrong with it (RFC 9449 §8).
var ErrNonce = errors.New("keys: not a nonce of this authority for this audience")

// Nonce is an opened nonce. Whether it is still good is decided by the database
// clock inside the admission, never here.
type Nonce struct {
	IssuedAt   time.Time
	Minute     int64 // unix minute of IssuedAt; names the replay partition
	Generation int64 // of the key that minted it
}

// Plausible is a cheap filter before the database is asked: it drops nonces
// that lie further than slack from now on either side.
func (n Nonce) Plausible(now time.Time, slack time.Duration) bool {
	return now.Sub(n.IssuedAt).Abs() <= slack
}

// Nonces mints and opens stateless nonces. Any replica that holds the bundle
// accepts any other's. It is safe for concurrent use.
type Nonces struct {
	Now  func() time.Time // set before use; stamps nonces, judges none
	keys []nonceKey       // the first mints, all open
}

func newNonces(keys []nonceKey) *Nonces { return &Nonces{Now: time.Now, keys: keys} }

// Mint returns a fresh nonce for an audience: a guard's URI or our issuer; an
// empty one when the nonce key cannot be reached, which closes admission.
func (n *Nonces) Mint(audience string) string {
	target := nonceTarget(audience)
	var raw [nonceBody + nonceMAC]byte
	raw[0] = nonceVersion
	copy(raw[1:], target[:nonceTag])
	binary.BigEndian.PutUint64(raw[1+nonceTag:], uint64(n.Now().UnixMicro()))
	rand.Read(raw[1+nonceTag+8 : nonceBody])
	mac, ok := n.keys[0].macKey(nonceMessage(raw[:nonceBody], target))
	if !ok {
		return ""
	}
	copy(raw[nonceBody:], mac[:])
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// Open returns what a nonce says, or ErrNonce.
func (n *Nonces) Open(nonce, audience string) (Nonce, error) {
	if len(nonce) != nonceLen {
		return Nonce{}, ErrNonce
	}
	var raw [nonceBody + nonceMAC]byte
	// The decoder skips line ends: a nonce with one in it comes out short.
	got, err := base64.RawURLEncoding.Decode(raw[:], []byte(nonce))
	if err != nil || got != len(raw) || raw[0] != nonceVersion {
		return Nonce{}, ErrNonce
	}
	generation, ok := n.genuine(raw[:nonceBody], raw[nonceBody:], nonceTarget(audience))
	if !ok {
		return Nonce{}, ErrNonce
	}
	at := time.UnixMicro(int64(binary.BigEndian.Uint64(raw[1+nonceTag:]))).UTC()
	return Nonce{IssuedAt: at, Minute: at.Unix() / 60, Generation: generation}, nil
}

func (n *Nonces) genuine(body, mac []byte, target [32]byte) (generation int64, ok bool) {
	message := nonceMessage(body, target)
	for _, key := range n.keys {
		want, ok := key.macKey(message)
		if ok && hmac.Equal(mac, want[:nonceMAC]) {
			return key.generation, true
		}
	}
	return 0, false
}

// nonceTarget is the digest of an audience. Its first bytes are the tag inside
// the nonce; all of it is under the MAC, so that equal tags confuse nothing.
func nonceTarget(audience string) [32]byte {
	return canonical.Digest(domainNonceTarget, []byte(audience))
}

func nonceMessage(body []byte, target [32]byte) []byte {
	m := make([]byte, 0, len(domainNonce)+1+nonceBody+len(target))
	m = append(m, domainNonce...)
	m = append(m, 0)
	m = append(m, body...)
	return append(m, target[:]...)
}
