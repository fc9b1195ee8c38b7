package capability

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// Thumbprint is the RFC 7638 SHA-256 thumbprint of a P-256 public key: 43 characters of base64url on the wire, 32 bytes
// in the database. The zero value is no key's.
type Thumbprint [32]byte

var (
	errThumbprint = errors.New("capability: a thumbprint is 43 characters of base64url")
	errNotP256    = errors.New("capability: not a P-256 public key")
)

// JKT computes the thumbprint of a P-256 key; any other key is an error.
func JKT(pub *ecdsa.PublicKey) (Thumbprint, error) {
	if pub == nil || pub.Curve != elliptic.P256() {
		return Thumbprint{}, errNotP256
	}
	point, err := pub.Bytes()
	if err != nil {
		return Thumbprint{}, errNotP256
	}
	return thumbprint(point), nil
}

// ParseThumbprint reads the 43 characters of the wire form.
func ParseThumbprint(s string) (Thumbprint, error) {
	var t Thumbprint
	if !decodeExact(t[:], s) {
		return Thumbprint{}, errThumbprint
	}
	return t, nil
}

func (t Thumbprint) String() string { return base64.RawURLEncoding.EncodeToString(t[:]) }

// IsZero tells that there is no key.
func (t Thumbprint) IsZero() bool { return t == Thumbprint{} }

// MarshalText gives the wire form.
func (t Thumbprint) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, t[:]), nil
}

// UnmarshalText reads the wire form.
func (t *Thumbprint) UnmarshalText(text []byte) (err error) {
	*t, err = ParseThumbprint(string(text))
	return err
}

const pointSize = 65 // 0x04 ‖ x ‖ y

// thumbprint hashes the required members in lexicographic order (RFC 7638 §3.2), coordinates always in 32 bytes.
func thumbprint(point []byte) Thumbprint {
	var room [160]byte
	return sha256.Sum256(appendJWK(room[:0], point))
}

func appendJWK(b, point []byte) []byte {
	b = append(b, `{"crv":"P-256","kty":"EC","x":"`...)
	b = base64.RawURLEncoding.AppendEncode(b, point[1:33])
	b = append(b, `","y":"`...)
	b = base64.RawURLEncoding.AppendEncode(b, point[33:])
	return append(b, `"}`...)
}

// decodeExact fills dst from unpadded base64url. It checks the alphabet because encoding/base64 skips line breaks, and
// the trailing bits because two spellings of one value would be two values to whoever compares text.
func decodeExact[T string | []byte](dst []byte, s T) bool {
	if len(s) != base64.RawURLEncoding.EncodedLen(len(dst)) || !isBase64URL(s) {
		return false
	}
	_, err := strict64.Decode(dst, []byte(s))
	return err == nil
}

var strict64 = base64.RawURLEncoding.Strict()

func isBase64URL[T string | []byte](s T) bool {
	for i := range len(s) {
		if class[s[i]]&classBase64 == 0 {
			return false
		}
	}
	return true
}

// order is n of P-256 (SP 800-186 §3.2.1.3).
var order = elliptic.P256().Params().N.Bytes()

// verifyRaw verifies r‖s, each in [1, n−1] and in 32 bytes. crypto/ecdsa takes DER, which is written here by hand.
func verifyRaw(pub *ecdsa.PublicKey, digest [32]byte, sig []byte) bool {
	if len(sig) != 64 || !isScalar(sig[:32]) || !isScalar(sig[32:]) {
		return false
	}
	var room [72]byte
	der := append(room[:0], 0x30, 0)
	der = appendInteger(der, sig[:32])
	der = appendInteger(der, sig[32:])
	der[1] = byte(len(der) - 2)
	return ecdsa.VerifyASN1(pub, digest[:], der)
}

func isScalar(b []byte) bool {
	return bytes.Compare(b, order) < 0 && !bytes.Equal(b, make([]byte, 32))
}

func appendInteger(der, b []byte) []byte {
	b = bytes.TrimLeft(b, "\x00")
	if b[0] >= 0x80 {
		der = append(der, 2, byte(len(b)+1), 0)
	} else {
		der = append(der, 2, byte(len(b)))
	}
	return append(der, b...)
}
