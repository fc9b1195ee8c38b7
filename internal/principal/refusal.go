package principal

import (
	"errors"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
)

// Reason is a stable class of refusal, for audit rows and counters.
type Reason string

// The reasons.
const (
	Missing         Reason = "envelope_missing"
	Several         Reason = "envelope_several"
	Malformed       Reason = "envelope_malformed"
	UntrustedIssuer Reason = "envelope_untrusted_issuer"
	UnknownKey      Reason = "envelope_unknown_key"
	BadSignature    Reason = "envelope_signature"
	Expired         Reason = "envelope_expired"
	NotYetValid     Reason = "envelope_not_yet_valid"
	TooLong         Reason = "envelope_lifetime"
	WrongAudience   Reason = "envelope_audience"
	WithoutID       Reason = "envelope_without_jti"
	WithoutEmail    Reason = "envelope_without_email"
	SubjectIsEmail  Reason = "envelope_subject_is_email"
	Unavailable     Reason = "envelope_unavailable"
)

var sentences = map[Reason]string{
	Missing:         "The platform envelope is missing; sign in.",
	Several:         "More than one identity came with the request; send exactly one.",
	Malformed:       "The platform envelope is malformed; sign in again.",
	UntrustedIssuer: "The platform envelope comes from an issuer that is not configured.",
	UnknownKey:      "The platform envelope is signed by a key that its issuer does not publish.",
	BadSignature:    "The platform envelope's signature does not verify.",
	Expired:         "The platform envelope has expired; sign in again.",
	NotYetValid:     "The platform envelope is not valid yet.",
	TooLong:         "The platform envelope is valid for longer than this authority accepts.",
	WrongAudience:   "The platform envelope is not addressed to this authority alone.",
	WithoutID:       "The platform envelope has no identifier.",
	WithoutEmail:    "The platform envelope names no member with an email; sign in with a member's account.",
	SubjectIsEmail:  "The platform envelope names its member by an address instead of a pairwise subject.",
	Unavailable:     "The platform envelope cannot be checked now; try again later.",
}

var byFault = map[jwks.Fault]Reason{
	jwks.Malformed:       Malformed,
	jwks.UntrustedIssuer: UntrustedIssuer,
	jwks.UnknownKey:      UnknownKey,
	jwks.BadSignature:    BadSignature,
	jwks.Expired:         Expired,
	jwks.NotYetValid:     NotYetValid,
	jwks.TooLong:         TooLong,
	jwks.WrongAudience:   WrongAudience,
	jwks.Unavailable:     Unavailable,
}

// Refusal says why an envelope was refused. It holds no text from the envelope.
type Refusal struct {
	Reason Reason
	cause  error // for logs; about our own fetches only
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + sentences[r.Reason] }

// Unwrap gives the refusal as the wire knows it, and the cause.
func (r *Refusal) Unwrap() []error {
	out := []error{&api.Refusal{Code: r.code(), Sentence: sentences[r.Reason]}}
	if r.cause != nil {
		out = append(out, r.cause)
	}
	return out
}

func (r *Refusal) code() api.Code {
	switch r.Reason {
	case Unavailable:
		return api.Unavailable
	case WithoutEmail:
		return api.UnknownMember
	}
	return api.InvalidEnvelope
}

func refuse(err error) *Refusal {
	var fault jwks.Fault
	if !errors.As(err, &fault) || fault == jwks.Unavailable {
		return &Refusal{Reason: Unavailable, cause: err}
	}
	return &Refusal{Reason: byFault[fault]}
}
