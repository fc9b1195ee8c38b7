package capability

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"errors"
)

// Thumbprint is the RFC 7638 SHA-256 thumbprint of a P-256 public key: 43 characters of base64url on the wire, 32 bytes
// in the database. The zero value is no key's.
type Thumbprint [32]byte

var errThumbprint = errors.New("capability: a thumbprint is 43 characters of base64url")

// JKT computes the thumbprint of a P-256 key; any other key is an error.
func JKT(pub *ecdsa.PublicKey) (Thumbprint, error) {
	point, err := pub.Bytes()
	if err != nil || len(point) != pointSize {
		return Thumbprint{}, errors.New("capability: not a P-256 public key")
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
func decodeExact(dst []byte, s string) bool {
	if len(s) != base64.RawURLEncoding.EncodedLen(len(dst)) || !isBase64URL(s) {
		return false
	}
	n, err := strict64.Decode(dst, []byte(s))
	return err == nil && n == len(dst)
}

var strict64 = base64.RawURLEncoding.Strict()

func isBase64URL(s string) bool {
	for i := range len(s) {
		if class[s[i]]&classBase64 == 0 {
			return false
		}
	}
	return true
}
