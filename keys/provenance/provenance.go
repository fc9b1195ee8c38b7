// Package provenance checks where an external key comes from: a record that
// officers have signed, a signed snapshot of the validations of cryptographic
// modules, and what the token shows of itself now (mission A13, keys.md §3).
//
// It works offline, from bytes that it is handed, and trusts nothing on first
// use: who may sign stands in configuration, what providers' attributes mean is
// compiled in. A claim of a token alone is never evidence.
package provenance

import (
	"fmt"
	"strings"
	"unicode"
)

// Code is why a key is refused: a stable word for API, log and audit. Each of
// them closes, and none is answered with another key.
type Code string

// Refusals (keys.md §3.6).
const (
	KeyLocalForbidden       Code = "KEY_LOCAL_FORBIDDEN_IN_FIPS"  // the key is sealed or local where the FIPS profile wants it in a token
	Missing                 Code = "PROVENANCE_MISSING"           // an algorithm's or a curve's name is no record
	SignatureInvalid        Code = "PROVENANCE_SIGNATURE_INVALID" // an approval does not verify, or these bytes are no record in its one spelling
	Threshold               Code = "PROVENANCE_THRESHOLD"         // fewer different officers than are needed
	ScopeMismatch           Code = "PROVENANCE_SCOPE_MISMATCH"    // the record is for another cluster or purpose
	KeyMismatch             Code = "PROVENANCE_KEY_MISMATCH"      // the record is for another key
	Expired                 Code = "PROVENANCE_EXPIRED"           // the record or the key is past its end
	NotYetValid             Code = "PROVENANCE_NOT_YET_VALID"     // the record or the key has not begun
	Superseded              Code = "PROVENANCE_SUPERSEDED"        // officers say that another record has taken its place
	Revoked                 Code = "PROVENANCE_REVOKED"           // officers have withdrawn it
	ModuleNotValidated      Code = "MODULE_NOT_VALIDATED"         // no certificate, one of an algorithm only, or a module in process
	ModuleHistorical        Code = "MODULE_HISTORICAL"            // the certificate is historical
	ModuleRevoked           Code = "MODULE_REVOKED"               // the certificate is revoked
	ModuleSunset            Code = "MODULE_SUNSET"                // the certificate's sunset has passed
	ModuleStandardObsolete  Code = "MODULE_STANDARD_OBSOLETE"     // the certificate is of another standard than FIPS 140-3
	ModuleVersionMismatch   Code = "MODULE_VERSION_MISMATCH"      // a hardware, firmware or software version is not the certified or not the recorded one
	ModuleConfigUntested    Code = "MODULE_CONFIG_UNTESTED"       // the environment is none that the certificate lists
	ModuleNotApprovedMode   Code = "MODULE_NOT_APPROVED_MODE"     // nothing shows that the module runs in its approved mode
	ModuleStatusStale       Code = "MODULE_STATUS_STALE"          // the snapshot is too old
	ProviderSoftwareToken   Code = "PROVIDER_SOFTWARE_TOKEN"      // the token is known to be software
	AttestationMissing      Code = "ATTESTATION_MISSING"          // the profile demands a device's attestation and there is none that can be checked
	AttestationChainInvalid Code = "ATTESTATION_CHAIN_INVALID"    // the attestation does not lead to the pinned root
	AttestationKeyMismatch  Code = "ATTESTATION_KEY_MISMATCH"     // the attestation is of another key
	AttestationImported     Code = "ATTESTATION_ORIGIN_IMPORTED"  // the device says that the key came from outside
	KeyAttributesMismatch   Code = "KEY_ATTRIBUTES_MISMATCH"      // what the token says of the key is not what its provider's profile wants
	KeyExtractable          Code = "KEY_EXTRACTABLE"              // the key may leave the token
	KeyValueReadable        Code = "KEY_VALUE_READABLE"           // the key can be read
	KeyImportedPlaintext    Code = "KEY_IMPORTED_PLAINTEXT"       // the key was outside of a module
	EvidenceInsufficient    Code = "EVIDENCE_INSUFFICIENT"        // (attestation or ceremony) and live token and signed snapshot: one of them is not there
	KeyCurveInvalid         Code = "KEY_CURVE_INVALID"            // another curve, explicit parameters or a point that is not on it
	KeyAmbiguous            Code = "KEY_AMBIGUOUS"                // not exactly one private and one public object
	TokenIdentityMismatch   Code = "TOKEN_IDENTITY_MISMATCH"      // the token is not the recorded one
	TokenUnavailable        Code = "TOKEN_UNAVAILABLE"            // the token does not answer
	TokenLoginRefused       Code = "TOKEN_LOGIN_REFUSED"          // the token refuses the PIN
	TokenPINAtRisk          Code = "TOKEN_PIN_AT_RISK"            // the token counts wrong PINs, or is locked
	KeyChallengeFailed      Code = "KEY_CHALLENGE_FAILED"         // a challenge was not signed by the recorded key
	KeyChallengeTimeout     Code = "KEY_CHALLENGE_TIMEOUT"        // a challenge was not signed in time
	AuthorityKeyDiverged    Code = "AUTHORITY_KEY_DIVERGED"       // the key or its record is not the registered one
	AppModuleDisabled       Code = "APP_MODULE_DISABLED"          // the program's own module is off
	AppModuleUnpinned       Code = "APP_MODULE_UNPINNED"          // the program was not built with an approved module
	DependencyNotApproved   Code = "DEP_NON_APPROVED_ALGORITHM"   // a database or queue wants an algorithm that is not approved
)

// All lists every code, in the order of the steps that find them.
func All() []Code {
	return []Code{
		AppModuleDisabled, AppModuleUnpinned, DependencyNotApproved, KeyLocalForbidden, Missing,
		SignatureInvalid, Threshold, ScopeMismatch, KeyMismatch, Expired, NotYetValid, Superseded, Revoked,
		ModuleStatusStale, ModuleNotValidated, ModuleRevoked, ModuleStandardObsolete, ModuleHistorical, ModuleSunset, ModuleVersionMismatch, ModuleConfigUntested, ModuleNotApprovedMode,
		AttestationMissing, AttestationChainInvalid, AttestationKeyMismatch, AttestationImported, KeyImportedPlaintext, EvidenceInsufficient,
		TokenUnavailable, TokenLoginRefused, TokenPINAtRisk, TokenIdentityMismatch, ProviderSoftwareToken,
		KeyAmbiguous, KeyCurveInvalid, KeyExtractable, KeyValueReadable, KeyAttributesMismatch,
		KeyChallengeFailed, KeyChallengeTimeout, AuthorityKeyDiverged,
	}
}

// Refusal is a code with what an operator must know; it holds no secret.
type Refusal struct {
	Code   Code   `json:"code"`
	Step   int    `json:"step,omitempty"` // of the nine of keys.md §3.5; 0 before the first
	Detail string `json:"detail"`
}

func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Detail }

// maxDetail bounds a detail, in bytes.
const maxDetail = 240

func refuse(code Code, format string, args ...any) *Refusal {
	text := fmt.Sprintf(format, args...)
	text = strings.ToValidUTF8(text[:min(len(text), maxDetail)], "")
	return &Refusal{Code: code, Detail: strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)}
}

// Required is what the FIPS profile asks for before anything is looked at: the
// key lies in a token, and a record is configured for it.
func Required(inToken, recorded bool) error {
	switch {
	case !inToken:
		return refuse(KeyLocalForbidden, "the FIPS profile takes no key that is sealed or made here: name a key host")
	case !recorded:
		return refuse(Missing, "the FIPS profile wants a signed record of where the key comes from: configure keys.provenance")
	}
	return nil
}

// Unconfigured refuses a key that is bound to a record where none is configured.
func Unconfigured() error {
	return refuse(Missing, "the key is bound to a signed record: configure keys.provenance")
}

// NotApproved refuses a dependency that wants an algorithm which is not approved.
func NotApproved(what string) error { return refuse(DependencyNotApproved, "%s", what) }
