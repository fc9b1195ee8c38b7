package capability

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// The longest lifetimes of capabilities.
const (
	MaxLifetime       = 5 * time.Minute // of run and component capabilities
	MaxEffectLifetime = time.Minute
)

// Header holds the claims that every capability has (RFC 9068 §2.2, RFC 7800 §3.1). All are mandatory. Numbers count
// from 1, so that one that is missing cannot pass for the first; times are seconds since 1970.
type Header struct {
	Issuer       string       `json:"iss"`
	Audience     string       `json:"aud"` // the issuer, or a guard's URI for effects
	Subject      string       `json:"sub"` // opaque reference of the task, or the component's
	ClientID     string       `json:"client_id"`
	IssuedAt     int64        `json:"iat"`
	Expires      int64        `json:"exp"`
	ID           string       `json:"jti"`
	Confirmation Confirmation `json:"cnf"`
	Kind         string       `json:"cap"` // set by Sign
	Generation   int64        `json:"generation"`
}

// Confirmation names the key that alone may use the capability (RFC 9449 §6.1).
type Confirmation struct {
	JKT Thumbprint `json:"jkt"`
}

// Digest is the only form in which a capability appears in tables, logs and messages: over its jti. Verify* has
// returned the claims before there is anything to call it on.
func (h Header) Digest() [32]byte {
	return canonical.Digest(canonical.DomainCapability, []byte(h.ID))
}

// Binding ties a capability to one claim of one run. All are mandatory and count from 1.
type Binding struct {
	Run             string `json:"run"`  // opaque reference
	Lane            string `json:"lane"` // opaque reference
	Fence           int64  `json:"fence"`
	Deadline        int64  `json:"deadline"` // seconds since 1970
	ActivationEpoch int64  `json:"activation_epoch"`
	ReadinessEpoch  int64  `json:"readiness_epoch"`
	Incarnation     int64  `json:"incarnation"`
}

// RunClaims are good at the authority for one run. aud is the issuer.
type RunClaims struct {
	Header
	Binding
}

// EffectClaims are good at one guard for one effect. aud is the guard's URI.
type EffectClaims struct {
	Header
	Binding
	EffectRef string   `json:"effect"` // opaque reference
	Details   []Detail `json:"authorization_details"`
}

// Detail is the one RFC 9396 object of an effect capability; DetailOf makes it.
type Detail struct {
	Type         string   `json:"type"`
	Actions      []string `json:"actions"`
	Locations    []string `json:"locations"`
	Identifier   string   `json:"identifier"`
	ParamsSHA256 string   `json:"params_sha256"` // base64url, 43 characters
	Amount       int64    `json:"amount,omitempty"`
	Currency     string   `json:"currency,omitempty"`
}

// ComponentClaims are good at the authority for a guard, a reporter or a product. aud is the issuer.
type ComponentClaims struct {
	Header
	Component     string   `json:"component"`
	ComponentKind string   `json:"component_kind"` // guard, reporter or product
	Instance      string   `json:"instance,omitempty"`
	Boot          int64    `json:"boot"` // numbered by the database
	Families      []string `json:"families,omitempty"`
}

// DetailType is the authorization details type of effects.
const DetailType = "urn:nightwarrant:effect"

// Values of cap.
const (
	kindRun       = "run"
	kindEffect    = "effect"
	kindComponent = "component"
)

var errClaims = errors.New("capability: the claims are not complete or contradict each other")

// claims is one kind of capability, to sign and to verify.
type claims interface {
	header() *Header
	check() error
}

func (h *Header) header() *Header { return h }

func (h *Header) check(kind string, longest time.Duration) bool {
	lifetime := h.Expires - h.IssuedAt
	return h.Kind == kind && areNames(h.Issuer, h.Audience, h.Subject, h.ClientID, h.ID) &&
		positive(h.IssuedAt, h.Generation, lifetime) && lifetime <= int64(longest/time.Second) &&
		!h.Confirmation.JKT.IsZero()
}

func (b *Binding) check(h *Header) bool {
	return areNames(b.Run, b.Lane) && h.Expires <= b.Deadline &&
		positive(b.Fence, b.Deadline, b.ActivationEpoch, b.ReadinessEpoch, b.Incarnation)
}

func (c *RunClaims) check() error {
	return claimsError(c.Header.check(kindRun, MaxLifetime) && c.Binding.check(&c.Header) && c.Audience == c.Issuer)
}

func (c *EffectClaims) check() error {
	if !c.Header.check(kindEffect, MaxEffectLifetime) || !c.Binding.check(&c.Header) || !areNames(c.EffectRef) {
		return errClaims
	}
	e, err := c.Effect()
	if err != nil {
		return err
	}
	return claimsError(e.Guard == c.Audience && c.Audience != c.Issuer)
}

func (c *ComponentClaims) check() error {
	known := c.ComponentKind == "guard" || c.ComponentKind == "reporter" || c.ComponentKind == "product"
	return claimsError(known && c.Header.check(kindComponent, MaxLifetime) && c.Audience == c.Issuer &&
		areNames(c.Component) && positive(c.Boot) && (c.Instance == "" || areNames(c.Instance)) && areNames(c.Families...))
}

func claimsError(ok bool) error {
	if !ok {
		return errClaims
	}
	return nil
}

func positive(numbers ...int64) bool {
	for _, n := range numbers {
		if n < 1 || n > canonical.MaxInt {
			return false
		}
	}
	return true
}

// areNames accepts 1 to 512 visible ASCII characters.
func areNames(names ...string) bool {
	for _, s := range names {
		if s == "" || len(s) > 512 {
			return false
		}
		for i := range len(s) {
			if s[i] <= ' ' || s[i] >= 0x7f {
				return false
			}
		}
	}
	return true
}

// DetailOf spells an effect as its authorization details object.
func DetailOf(e Effect) Detail {
	return Detail{
		Type: DetailType, Actions: []string{e.Action}, Locations: []string{e.Guard}, Identifier: e.Resource,
		ParamsSHA256: base64.RawURLEncoding.EncodeToString(e.ParamsDigest[:]), Amount: e.Amount, Currency: e.Currency,
	}
}

// Effect is the exact effect that the capability names.
func (c *EffectClaims) Effect() (Effect, error) {
	if len(c.Details) != 1 {
		return Effect{}, errClaims
	}
	d := c.Details[0]
	if d.Type != DetailType || len(d.Actions) != 1 || len(d.Locations) != 1 {
		return Effect{}, errClaims
	}
	e := Effect{Guard: d.Locations[0], Action: d.Actions[0], Resource: d.Identifier, Amount: d.Amount, Currency: d.Currency}
	if !decodeExact(e.ParamsDigest[:], d.ParamsSHA256) {
		return Effect{}, errClaims
	}
	return e, e.Check()
}

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
