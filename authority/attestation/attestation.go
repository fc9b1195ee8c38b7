// Package attestation verifies workload assertions: projected tokens of
// Kubernetes service accounts, SPIFFE JWT-SVIDs and tokens of other OpenID
// Connect issuers, presented as client authentication (RFC 7523 §3). An
// assertion proves which workload is calling and nothing else (mission A2).
package attestation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
)

// DefaultMaxLifetime bounds exp − iat where nothing lower is configured.
const DefaultMaxLifetime = 24 * time.Hour

// Assertion is a verified workload assertion. It authorises nothing: a Profile
// says which role's workload it may be, and a key must own it.
type Assertion struct {
	Issuer, Subject, Audience string
	IssuedAt, Expires         time.Time
	Claims                    map[string]any // all claims, numbers as json.Number; not to be changed
	// Digest names the assertion, for the key that owns it. It covers what the
	// issuer signed and not the signature, which anybody can rewrite (ECDSA).
	Digest [32]byte
	JKT    *capability.Thumbprint // cnf.jkt; nil when the token names no key
}

// Config configures a Verifier.
type Config struct {
	Keys *jwks.Cache
	// Audience is the one audience that assertions must have: our issuer
	// identifier (draft-ietf-oauth-rfc7523bis).
	Audience    string
	MaxLifetime time.Duration // of exp − iat; zero means DefaultMaxLifetime, more is refused
	// Reviews asks further, by issuer; optional. An assertion must verify before
	// it is reviewed, and pass both.
	Reviews map[string]Reviewer
}

// Verifier verifies workload assertions. It is safe for concurrent use.
type Verifier struct {
	keys    *jwks.Cache
	expect  jwks.Expect
	reviews map[string]Reviewer
}

// New refuses a configuration under which foreign tokens would pass: an empty
// audience, an API server's own, or one that an issuer may give by default.
func New(cfg Config) (*Verifier, error) {
	if cfg.MaxLifetime == 0 {
		cfg.MaxLifetime = DefaultMaxLifetime
	}
	if cfg.Keys == nil || cfg.MaxLifetime < 0 || cfg.MaxLifetime > DefaultMaxLifetime {
		return nil, errors.New("attestation: keys and a lifetime of at most 24 h are required")
	}
	if err := checkAudience(cfg.Audience, cfg.Keys.Issuers()); err != nil {
		return nil, err
	}
	for issuer := range cfg.Reviews {
		if !slices.Contains(cfg.Keys.Issuers(), issuer) {
			return nil, errors.New("attestation: reviews are for an issuer that is not configured")
		}
	}
	return &Verifier{keys: cfg.Keys, expect: jwks.Expect{Audience: cfg.Audience, MaxLifetime: cfg.MaxLifetime}, reviews: cfg.Reviews}, nil
}

func checkAudience(audience string, issuers []string) error {
	if strings.TrimSpace(audience) == "" {
		return errors.New("attestation: the audience is empty; every token would pass")
	}
	if host := strings.TrimPrefix(strings.ToLower(audience), "https://"); strings.HasPrefix(host, "kubernetes.default") {
		return errors.New("attestation: the audience is the Kubernetes API server's; every pod would pass")
	}
	for _, i := range issuers {
		if strings.EqualFold(strings.TrimRight(i, "/"), strings.TrimRight(audience, "/")) {
			return errors.New("attestation: the audience is an issuer's own name, which it gives to tokens by default")
		}
	}
	return nil
}

// Healthy returns nil when the keys of each of these issuers may be used and
// canary tokens are judged rightly; the error says what is not so.
func (v *Verifier) Healthy(issuers []string) error {
	for _, i := range issuers {
		if !v.keys.Fresh(i) {
			return fmt.Errorf("attestation: the keys of %q are absent or too old", i)
		}
	}
	return v.keys.Canary(v.expect)
}

// Reachable returns nil when everybody who is asked beside the keys answers.
func (v *Verifier) Reachable(ctx context.Context) error {
	for issuer, r := range v.reviews {
		if err := r.Reachable(ctx, v.expect.Audience); err != nil {
			return fmt.Errorf("attestation: %q: %w", issuer, err)
		}
	}
	return nil
}

// Verify returns the assertion that a compact JWT makes. Every error is a
// *Refusal; nothing is consumed.
func (v *Verifier) Verify(ctx context.Context, compact string) (Assertion, error) {
	return v.verify(ctx, compact, v.expect)
}

// VerifySVID is Verify for what must be a JWT-SVID: its issuer is the trust
// domain of its SPIFFE id, whatever iss says.
func (v *Verifier) VerifySVID(ctx context.Context, compact string) (Assertion, error) {
	e := v.expect
	e.TrustDomain = true
	return v.verify(ctx, compact, e)
}

func (v *Verifier) verify(ctx context.Context, compact string, e jwks.Expect) (Assertion, error) {
	t, err := v.keys.Verify(ctx, compact, e)
	if err != nil {
		return Assertion{}, refuse(err)
	}
	a := Assertion{
		Issuer: t.Issuer, Subject: t.Subject, Audience: t.Audience,
		IssuedAt: t.IssuedAt, Expires: t.Expires, Claims: t.Claims,
		Digest: canonical.Digest(canonical.DomainAssertion, []byte(t.Signed)),
		JKT:    (*capability.Thumbprint)(t.JKT),
	}
	if r := v.reviews[a.Issuer]; r != nil {
		if err := r.Review(ctx, compact, a); err != nil {
			return Assertion{}, err
		}
	}
	return a, nil
}
