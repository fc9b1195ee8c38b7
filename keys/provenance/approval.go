package provenance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"math/big"
	"slices"
)

// ApprovalsSchema is that of the file of detached signatures.
const ApprovalsSchema = "approvals/v1"

// LeastThreshold is how many officers sign at least.
const LeastThreshold = 2

// Officer is somebody whose signature counts. The key is pinned: it comes from
// configuration and from nowhere else.
type Officer struct {
	ID        string
	Role      string
	PublicKey *ecdsa.PublicKey // P-256
}

// Approvals are the detached signatures of one document.
type Approvals struct {
	Schema    string     `json:"schema"` // approvals/v1
	Digest    Hash       `json:"digest"` // of the document, with its domain
	Approvals []Approval `json:"approvals"`
}

// Approval is one officer's signature.
type Approval struct {
	Officer   string `json:"officer"`
	Role      string `json:"role"`
	Signature string `json:"signature"` // ES256 over the document's message: r ‖ s, base64url
}

// ParseApprovals reads a file of signatures. It says nothing of whether they count.
func ParseApprovals(b []byte) (*Approvals, error) {
	var a Approvals
	if _, err := parse(b, &a, ""); err != nil {
		return nil, err
	}
	if a.Schema != ApprovalsSchema || len(a.Approvals) > maxList {
		return nil, errDocument
	}
	for _, one := range a.Approvals {
		if err := bounded([]string{one.Officer, one.Role}); err != nil {
			return nil, err
		}
	}
	return &a, nil
}

// Spell is the file's one spelling.
func (a *Approvals) Spell() ([]byte, error) {
	d, err := spell(a, "")
	return d.Bytes, err
}

// Approve adds an officer's signature to those that the document has. An
// officer signs once; a signature that does not verify is not added.
func (a *Approvals) Approve(d Document, by Officer, signature [64]byte) error {
	switch {
	case a.Digest != d.Digest:
		return errors.New("these signatures are of another document")
	case !verifies(by.PublicKey, d.Digest, signature):
		return errors.New("the signature is not one of this officer's key over this document")
	case slices.ContainsFunc(a.Approvals, func(o Approval) bool { return o.Officer == by.ID }):
		return errors.New("this officer has signed already")
	}
	a.Approvals = append(a.Approvals, Approval{by.ID, by.Role, base64.RawURLEncoding.EncodeToString(signature[:])})
	return nil
}

// NewApprovals are those of a document that nobody has signed.
func NewApprovals(d Document) *Approvals {
	return &Approvals{Schema: ApprovalsSchema, Digest: d.Digest, Approvals: []Approval{}}
}

// Sign signs a document with an officer's key.
func Sign(d Document, private *ecdsa.PrivateKey) (signature [64]byte, err error) {
	r, s, err := ecdsa.Sign(rand.Reader, private, d.Digest[:])
	if err != nil {
		return signature, errors.New("the key does not sign")
	}
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signature, nil
}

// Officers are refused as a whole when they could not do what they are for.
func (p Policy) checkOfficers() error {
	for i, o := range p.Officers {
		same := func(other Officer) bool { return other.ID == o.ID || other.PublicKey.Equal(o.PublicKey) }
		switch {
		case o.ID == "" || o.Role == "" || o.PublicKey == nil || o.PublicKey.Curve != elliptic.P256():
			return errors.New("an officer has no id, no role or no key of P-256")
		case slices.ContainsFunc(p.Officers[:i], same):
			return errors.New("two officers have one id or one key")
		}
	}
	if p.Threshold < LeastThreshold || p.Threshold > len(p.Officers) {
		return errors.New("at least two officers sign, and no more than there are")
	}
	return nil
}

// approved holds signatures against the pinned officers: each one must be good,
// and enough of them must be there.
func (p Policy) approved(d Document, text []byte) *Refusal {
	a, err := ParseApprovals(text)
	switch {
	case err != nil:
		return refuse(SignatureInvalid, "the signatures cannot be read: %s", err)
	case a.Digest != d.Digest:
		return refuse(SignatureInvalid, "the signatures are of another document")
	}
	signed := map[string]bool{}
	for _, one := range a.Approvals {
		i := slices.IndexFunc(p.Officers, func(o Officer) bool { return o.ID == one.Officer && o.Role == one.Role })
		if i < 0 {
			return refuse(SignatureInvalid, "who signs as %q is no officer of that role here", one.Officer)
		}
		signature, ok := rawSignature(one.Signature)
		if !ok || !verifies(p.Officers[i].PublicKey, d.Digest, signature) {
			return refuse(SignatureInvalid, "the signature of %q does not verify", one.Officer)
		}
		if signed[one.Officer] {
			return refuse(Threshold, "%q has signed twice, and counts once", one.Officer)
		}
		signed[one.Officer] = true
	}
	if len(signed) < p.Threshold {
		return refuse(Threshold, "%d officers have signed, and %d are needed", len(signed), p.Threshold)
	}
	return nil
}

func rawSignature(text string) (out [64]byte, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	ok = err == nil && len(b) == len(out)
	copy(out[:], b)
	return out, ok
}

func verifies(public *ecdsa.PublicKey, digest [32]byte, signature [64]byte) bool {
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	return ecdsa.Verify(public, digest[:], r, s)
}
