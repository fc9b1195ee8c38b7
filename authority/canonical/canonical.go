// Package canonical gives a document one spelling and a digest.
//
// Whatever is consented to, signed or compared is an I-JSON object (RFC 7493) of objects, arrays, strings, booleans and
// safe integers, spelled by RFC 8785. Null, fractions and exponents are refused: they are the values on which two
// readers of one document disagree.
package canonical

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"

	"github.com/gowebpki/jcs"
)

// Bounds of a document.
const (
	MaxSize  = 64 << 10 // bytes
	MaxDepth = 32       // nested objects and arrays
	MaxInt   = 1<<53 - 1
)

// Domains keep the digest of one kind of thing from ever being the digest of another.
const (
	DomainCapability = "nightwarrant/capability/v1" // over jti
	DomainProof      = "nightwarrant/proof/v1"      // over jkt, jti
	DomainAssertion  = "nightwarrant/assertion/v1"
	DomainMember     = "nightwarrant/member/v1" // over iss, sub
	DomainEffect     = "nightwarrant/effect/v1"
	DomainEffectKey  = "nightwarrant/effect-key/v1"
	DomainParams     = "nightwarrant/params/v1"
	DomainAction     = "nightwarrant/action/v1"
	DomainResource   = "nightwarrant/resource/v1"
	DomainName       = "nightwarrant/name/v1"
	DomainDocument   = "nightwarrant/document/v1"
	DomainOffer      = "nightwarrant/offer/v1"
	DomainApproved   = "nightwarrant/pre-approved-key/v1"
	DomainReference  = "nightwarrant/reference/v1"
)

// Canonicalize returns the RFC 8785 spelling of a strict document whose top level is an object.
// Every refusal is an *Error.
func Canonicalize(in []byte) ([]byte, error) {
	if err := Check(in); err != nil {
		return nil, err
	}
	out, err := jcs.Transform(in)
	if err != nil {
		return nil, &Error{Reason: "the document cannot be canonicalized"}
	}
	return out, nil
}

// CanonicalizeValue marshals v with encoding/json and canonicalizes the result.
func CanonicalizeValue(v any) ([]byte, error) {
	var in bytes.Buffer
	e := json.NewEncoder(&in)
	e.SetEscapeHTML(false) // what is in bounds must not become six times as long on its way
	if err := e.Encode(v); err != nil {
		return nil, &Error{Reason: "the value cannot be marshalled"}
	}
	return Canonicalize(in.Bytes())
}

// Check refuses what Canonicalize would refuse and spells nothing.
func Check(in []byte) error {
	s := scanner{in: in, plain: true}
	return s.document(MaxSize)
}

// Decode reads a strict document into the struct that v points to. Beyond Check, member names are lower-case ASCII
// letters, digits and underscores and each must be a field of the struct, so that encoding/json has no room to match
// a name in another case.
func Decode(in []byte, v any) error {
	s := scanner{in: in, plain: true, lower: true}
	if err := s.document(MaxSize); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if d.Decode(v) != nil {
		return &Error{Reason: "a member is unknown or of the wrong type"}
	}
	return nil
}

// Digest is SHA-256(domain ‖ 0x00 ‖ parts joined by 0x00). Where parts have no fixed length, no part but the last may
// contain 0x00.
func Digest(domain string, parts ...[]byte) [32]byte {
	var room [512]byte
	b := append(room[:0], domain...)
	for _, p := range parts {
		b = append(b, 0)
		b = append(b, p...)
	}
	if len(parts) == 0 {
		b = append(b, 0)
	}
	return sha256.Sum256(b)
}
