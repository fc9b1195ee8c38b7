package capability

import (
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Effect is exactly one intended change.
type Effect struct {
	Guard        string   // the guard's URI
	Action       string   // a name of the guard's catalogue
	Resource     string   // as the guard names it
	ParamsDigest [32]byte // of the canonical parameters
	Amount       int64    // minor units, 0 for an effect without an amount
	Currency     string   // three capital letters; empty exactly when Amount is 0
}

var errEffect = errors.New("capability: the effect is not complete or its amount and currency do not fit")

// Check refuses an effect that has no one spelling.
func (e Effect) Check() error {
	amount := e.Amount == 0 && e.Currency == "" || positive(e.Amount) && isCurrency(e.Currency)
	if !amount || !areNames(e.Guard, e.Action, e.Resource) || e.ParamsDigest == [32]byte{} {
		return errEffect
	}
	return nil
}

func isCurrency(s string) bool {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return len(s) == 3
}

// Equal tells whether both are the same change.
func (e Effect) Equal(other Effect) bool { return e == other }

// Digest is over the effect's canonical document, for an effect that Check accepts.
func (e Effect) Digest() ([32]byte, error) {
	if err := e.Check(); err != nil {
		return [32]byte{}, err
	}
	doc, err := canonical.CanonicalizeValue(map[string]any{
		"guard": e.Guard, "action": e.Action, "resource": e.Resource, "amount": e.Amount, "currency": e.Currency,
		"params_sha256": base64.RawURLEncoding.EncodeToString(e.ParamsDigest[:]),
	})
	if err != nil {
		return [32]byte{}, err
	}
	return canonical.Digest(canonical.DomainEffect, doc), nil
}

// ParamsDigest canonicalizes an effect's parameters, one JSON object, and digests them. A guard acts on nothing but
// the canonical bytes.
func ParamsDigest(params json.RawMessage) (digest [32]byte, canonicalBytes []byte, err error) {
	if canonicalBytes, err = canonical.Canonicalize(params); err != nil {
		return [32]byte{}, nil, err
	}
	return canonical.Digest(canonical.DomainParams, canonicalBytes), canonicalBytes, nil
}

// EffectKeyDigest is how a task's name for a step is stored.
func EffectKeyDigest(key string) [32]byte {
	return canonical.Digest(canonical.DomainEffectKey, []byte(key))
}
