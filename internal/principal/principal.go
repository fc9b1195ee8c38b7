// Package principal makes principals, in one place: a person's identity comes
// from the platform envelope and from nothing else (mission B1). A session that
// was begun with an envelope is resumed through the same constructor.
package principal

import (
	"context"
	"errors"
	"net/mail"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
)

const domainEnvelope = "nightwarrant/envelope/v1"

// Principal is who is asking. The zero value is nobody.
type Principal struct {
	issuer, subject string
	operator        bool
	auditor         bool
	digest          [32]byte
	expires         time.Time
	jkt             *capability.Thumbprint
}

// IsNobody tells that no envelope stands behind this value.
func (p Principal) IsNobody() bool { return p.subject == "" }

// Member is the member reference of run-time tables: a digest of issuer and
// pairwise subject. It is zero for nobody.
func (p Principal) Member() [32]byte {
	if p.IsNobody() {
		return [32]byte{}
	}
	return canonical.Digest(canonical.DomainMember, []byte(p.issuer), []byte(p.subject))
}

// Issuer is the platform's identity provider.
func (p Principal) Issuer() string { return p.issuer }

// Subject is the provider's pairwise subject, which the directory knows too. It
// is never an address.
func (p Principal) Subject() string { return p.subject }

// Operator tells whether the configuration names this principal as an operator.
func (p Principal) Operator() bool { return p.operator }

// Auditor tells whether this principal may read what operators read: whom the
// configuration names as an auditor, and operators.
func (p Principal) Auditor() bool { return p.auditor || p.operator }

// Digest names the envelope or the session, for audit and for refusing a replay.
func (p Principal) Digest() [32]byte { return p.digest }

// Expires is when the envelope is over, by exp or by its maximum age; of a
// session, when that is over at the latest.
func (p Principal) Expires() time.Time { return p.expires }

// JKT is the key that the envelope names (cnf.jkt); nil when it names none.
func (p Principal) JKT() *capability.Thumbprint {
	if p.jkt == nil {
		return nil
	}
	jkt := *p.jkt
	return &jkt
}

// String names nobody: a principal is not for logs.
func (p Principal) String() string { return "principal" }

// GoString is String.
func (p Principal) GoString() string { return p.String() }

// MarshalJSON always fails: who is asking is never stored or sent as a whole.
func (p Principal) MarshalJSON() ([]byte, error) {
	return nil, errors.New("principal: a principal is not marshalled")
}

// OperatorRef names an operator or auditor by issuer and subject, both exact.
type OperatorRef struct{ Issuer, Subject string }

// Config configures Envelopes.
type Config struct {
	Keys      *jwks.Cache
	Issuer    string        // the one issuer of envelopes, one of Keys'
	Audience  string        // the one audience; never our issuer identifier, which workload assertions have
	Own       string        // our issuer identifier
	MaxAge    time.Duration // of now − iat; at most 12 h
	Unique    string        // the claim by which no two envelopes are alike; jti when empty
	Operators []OperatorRef
	Auditors  []OperatorRef
}

// Envelopes verifies platform envelopes. It is safe for concurrent use.
type Envelopes struct {
	cfg    Config
	expect jwks.Expect
}

const maxAge = 12 * time.Hour

// New validates the configuration; any error is a misconfiguration.
func New(cfg Config) (*Envelopes, error) {
	switch {
	case cfg.Keys == nil || !slices.Contains(cfg.Keys.Issuers(), cfg.Issuer):
		return nil, errors.New("principal: the envelope's issuer is not among those whose keys are fetched")
	case strings.TrimSpace(cfg.Audience) == "" || cfg.Audience == cfg.Issuer:
		return nil, errors.New("principal: the envelope's audience is empty or its issuer's own name")
	case cfg.Own == "" || cfg.Audience == cfg.Own || cfg.Issuer == cfg.Own:
		return nil, errors.New("principal: the envelope's issuer and audience must differ from our issuer")
	case cfg.MaxAge <= 0 || cfg.MaxAge > maxAge:
		return nil, errors.New("principal: the envelope's maximum age must be between 0 and 12 h")
	}
	for _, o := range slices.Concat(cfg.Operators, cfg.Auditors) {
		if o.Issuer != cfg.Issuer || o.Subject == "" {
			return nil, errors.New("principal: an operator or auditor must be named by the envelope's issuer and a subject")
		}
	}
	if cfg.Unique == "" {
		cfg.Unique = "jti"
	}
	expect := jwks.Expect{Audience: cfg.Audience, MaxLifetime: maxAge, MaxAge: cfg.MaxAge}
	return &Envelopes{cfg: cfg, expect: expect}, nil
}

// Issuer is the one issuer of envelopes.
func (e *Envelopes) Issuer() string { return e.cfg.Issuer }

// FromEnvelope returns whom a platform envelope names. Every error is a
// *Refusal, and with it comes nobody.
func (e *Envelopes) FromEnvelope(ctx context.Context, token string) (Principal, error) {
	if token == "" {
		return Principal{}, &Refusal{Reason: Missing}
	}
	t, err := e.cfg.Keys.Verify(ctx, token, e.expect)
	if err != nil {
		return Principal{}, refuse(err)
	}
	if reason := e.judge(t); reason != "" {
		return Principal{}, &Refusal{Reason: reason}
	}
	until := t.Expires
	if old := t.IssuedAt.Add(e.cfg.MaxAge); old.Before(until) {
		until = old
	}
	return e.make(t.Issuer, t.Subject, canonical.Digest(domainEnvelope, []byte(t.Signed)), until, (*capability.Thumbprint)(t.JKT)), nil
}

// Session is what is kept of a principal whom FromEnvelope has made.
type Session struct {
	Issuer, Subject string
	Digest          [32]byte // names the session, as an envelope's digest names the envelope
	Expires         time.Time
}

// Resume returns whom a session was begun for, with the roles that the
// configuration gives now. Only the store of sessions calls it, with what it has
// found to be its own. Every error is a *Refusal, and with it comes nobody.
func (e *Envelopes) Resume(s Session) (Principal, error) {
	switch {
	case s.Issuer != e.cfg.Issuer:
		return Principal{}, &Refusal{Reason: UntrustedIssuer}
	case s.Subject == "" || s.Digest == [32]byte{} || s.Expires.IsZero():
		return Principal{}, &Refusal{Reason: Malformed}
	case looksLikeEmail(s.Subject):
		return Principal{}, &Refusal{Reason: SubjectIsEmail}
	}
	return e.make(s.Issuer, s.Subject, s.Digest, s.Expires, nil), nil
}

// make is the one constructor.
func (e *Envelopes) make(issuer, subject string, digest [32]byte, until time.Time, jkt *capability.Thumbprint) Principal {
	ref := OperatorRef{Issuer: issuer, Subject: subject}
	return Principal{issuer: issuer, subject: subject, digest: digest, expires: until, jkt: jkt,
		operator: slices.Contains(e.cfg.Operators, ref), auditor: slices.Contains(e.cfg.Auditors, ref)}
}

// judge holds a verified token against what makes it an envelope. The address
// proves that a member stands behind the subject; it is looked at and dropped.
func (e *Envelopes) judge(t jwks.Token) Reason {
	email, _ := t.Claims["email"].(string)
	switch {
	case t.Issuer != e.cfg.Issuer:
		return UntrustedIssuer
	case t.Claims[e.cfg.Unique] == nil || t.Claims[e.cfg.Unique] == "":
		return WithoutID
	case !looksLikeEmail(email):
		return WithoutEmail
	case looksLikeEmail(t.Subject):
		return SubjectIsEmail
	}
	return ""
}

// looksLikeEmail takes one bare address (RFC 5322 §3.4.1) with a domain.
func looksLikeEmail(s string) bool {
	if len(s) > 254 {
		return false
	}
	a, err := mail.ParseAddress(s)
	return err == nil && a.Address == s && a.Name == "" && !strings.HasSuffix(s, "@")
}
