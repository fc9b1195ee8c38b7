package attestation

import (
	"errors"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
)

// Reason is a stable class of refusal, for audit rows and counters. On the wire
// all but two are invalid_client.
type Reason string

// The reasons.
const (
	Malformed       Reason = "assertion_malformed"
	UntrustedIssuer Reason = "assertion_untrusted_issuer"
	UnknownKey      Reason = "assertion_unknown_key"
	BadSignature    Reason = "assertion_signature"
	Expired         Reason = "assertion_expired"
	NotYetValid     Reason = "assertion_not_yet_valid"
	TooLong         Reason = "assertion_lifetime"
	WrongAudience   Reason = "assertion_audience"
	Unmatched       Reason = "assertion_unmatched"
	WrongKey        Reason = "assertion_wrong_key" // cnf names another key than the proof's
	Withdrawn       Reason = "assertion_withdrawn" // its issuer, asked again, does not vouch for it
	Unavailable     Reason = "attestation_unavailable"
)

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

// Refusal says why an assertion was refused. It holds no text from the token.
type Refusal struct {
	Reason   Reason
	Sentence string
	cause    error // for logs; about our own fetches only
}

func (r *Refusal) Error() string { return string(r.Reason) + ": " + r.Sentence }

// Unwrap gives the refusal as the wire knows it, and the cause.
func (r *Refusal) Unwrap() []error {
	out := []error{&api.Refusal{Code: r.code(), Sentence: r.Sentence}}
	if r.cause != nil {
		out = append(out, r.cause)
	}
	return out
}

func (r *Refusal) code() api.Code {
	switch r.Reason {
	case Unavailable:
		return api.Unavailable
	case WrongKey:
		return api.AssertionBound
	}
	return api.InvalidClient
}

func refuse(err error) *Refusal {
	var fault jwks.Fault
	if !errors.As(err, &fault) {
		fault = jwks.Unavailable
	}
	r := &Refusal{Reason: byFault[fault], Sentence: "The workload assertion is refused: " + fault.Error() + "."}
	if fault == jwks.Unavailable {
		r.cause = err
	}
	return r
}
