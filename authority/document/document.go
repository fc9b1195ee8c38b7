// Package document reads the registry's documents and writes the consent
// document.
//
// Operators apply documents from YAML or JSON. Both are read strictly into the
// same structs: unknown and repeated members, anchors, aliases, tags, nulls and
// every number but a plain integer are refused. What is stored, digested and
// consented to is the canonical form (RFC 8785), which writes every default
// out.
package document

import (
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// The kinds of documents.
const (
	KindProfile  = "AttestationProfile"
	KindClient   = "Client"
	KindGuard    = "Guard"
	KindReporter = "Reporter"
	KindProduct  = "Product"
	KindRole     = "WorkloadRole"
	KindPolicy   = "Policy"
	KindTask     = "Task"

	KindRequirement = "Requirement"
)

// Document is one of the pointer types *AttestationProfile, *Client, *Guard,
// *Reporter, *Product, *WorkloadRole, *Policy, *Task and *Requirement.
type Document interface {
	// Head returns the kind and the name.
	Head() Header
	// Validate checks the document by itself. Its errors are *Error.
	Validate() error
}

// Header is what every document begins with. Name is lower case and unique
// within its kind.
type Header struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Head returns h.
func (h Header) Head() Header { return h }

func (h Header) check(kind string) error {
	if h.Kind != kind {
		return wrong("kind", "must be %s", kind)
	}
	return name("name", h.Name)
}

// blank returns an empty document of a kind with the defaults of its optional
// members, or nil.
func blank(kind string) Document {
	h := Header{Kind: kind}
	switch kind {
	case KindProfile:
		return &AttestationProfile{Header: h}
	case KindClient:
		return &Client{Header: h}
	case KindGuard:
		return &Guard{Header: h, MaxCallMS: defaultCallMS}
	case KindReporter:
		return &Reporter{Header: h}
	case KindProduct:
		return &Product{Header: h}
	case KindRole:
		return &WorkloadRole{Header: h, Limits: RoleLimits{MaxSteps: defaultMaxSteps}}
	case KindPolicy:
		return &Policy{Header: h, Limits: PolicyLimits{MaxSteps: defaultMaxSteps}}
	case KindTask:
		return blankTask(h)
	case KindRequirement:
		return &Requirement{Header: h, ClosedMS: 5000, ClosedMaxMS: 60_000, Rounds: 3}
	}
	return nil
}

// Canonical validates a document and returns its canonical bytes.
func Canonical(d Document) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	text, err := written(d)
	if err != nil {
		return nil, named(d.Head(), err)
	}
	return text, nil
}

// written is the canonical form of what holds; it may still be too large.
func written(v any) ([]byte, error) {
	text, err := canonical.CanonicalizeValue(v)
	if err != nil {
		return nil, wrong("", "cannot be written: %s", err)
	}
	return text, nil
}

// DigestOf validates a document and returns the digest of its canonical bytes.
func DigestOf(d Document) (Digest, error) {
	text, err := Canonical(d)
	if err != nil {
		return Digest{}, err
	}
	return canonical.Digest(canonical.DomainDocument, text), nil
}

// Digest is a SHA-256 with a domain; base64url without padding, 43 characters,
// when written.
type Digest [32]byte

var strictBase64 = base64.RawURLEncoding.Strict()

// String returns the 43 characters.
func (d Digest) String() string { return strictBase64.EncodeToString(d[:]) }

// MarshalText writes the 43 characters.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads exactly what MarshalText writes.
func (d *Digest) UnmarshalText(text []byte) error {
	raw, err := strictBase64.DecodeString(string(text))
	if err != nil || len(raw) != len(d) || len(text) != 43 {
		return errors.New("must be a digest, 43 characters of base64url")
	}
	copy(d[:], raw)
	return nil
}

// Error says what is wrong with a document, in one sentence. Line is 0 where
// the input has no lines. Field is a path such as grants[2].action.
type Error struct {
	Line       int
	Kind, Name string
	Field      string
	Reason     string
}

// Error returns the sentence.
func (e *Error) Error() string {
	where := ""
	if e.Line > 0 {
		where = fmt.Sprintf("line %d: ", e.Line)
	}
	if e.Kind != "" {
		where += e.Kind + " "
	}
	if e.Name != "" {
		where += e.Name + " "
	}
	if e.Field != "" {
		return where + e.Field + " " + e.Reason
	}
	return where + e.Reason
}

// wrong reports one field.
func wrong(field, format string, args ...any) error {
	return &Error{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// named says in an error which document is wrong. A name that is itself wrong
// is left out.
func named(h Header, err error) error {
	e, ok := err.(*Error)
	if !ok {
		return err
	}
	e.Kind = h.Kind
	if nameForm.MatchString(h.Name) {
		e.Name = h.Name
	}
	return e
}

// first returns the first error there is.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
