// Package authority decides. It checks what callers prove (assertions,
// capabilities, proofs), asks the database for one admission each, and signs
// what was admitted. Intent is stored before it is signed, and nothing is
// answered before its commit is acknowledged.
package authority

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// Lifetimes and bounds.
const (
	MinLease = 2 * time.Second
	MaxLease = time.Minute

	tokenLifetime  = capability.MaxLifetime
	effectLifetime = capability.MaxEffectLifetime
	leeway         = 5 * time.Second // between replicas' clocks, for iat; the database decides what is over
	nonceSlack     = 5 * time.Minute // before the database judges a nonce's time
)

// Config is what an authority is made of. All but Now and Log are required.
type Config struct {
	Pool       *pgxpool.Pool // as nw_authority
	Bundle     *keys.Bundle  // as it was opened; the database says which generation of it signs
	Assertions *attestation.Verifier
	Envelopes  *principal.Envelopes
	Gate       *readiness.Gate
	Directory  directory.Directory
	Issuer     string        // our public origin, byte for byte; nonces of the authority are for it
	Lease      time.Duration // MinLease to MaxLease
	Pages      string        // public origin of people's pages; ours when empty
	Log        *slog.Logger
	Now        func() time.Time // stamps what is signed, paces refusals; decides nothing about authority
}

// Authority answers the calls of workers, guards, members and operators. It is
// safe for concurrent use and keeps nothing that matters in memory.
type Authority struct {
	Config
	generations generations
	registry    registry
	refusals    refusals
	lag         lag
	quota       *quota
	members     *members
}

// New checks the configuration and that this replica holds the registered keys
// (A11). Its error is a misconfiguration unless the database was out of reach.
func New(ctx context.Context, c Config) (*Authority, error) {
	if c.Lease < MinLease || c.Lease > MaxLease {
		return nil, fmt.Errorf("the lease must be between %s and %s", MinLease, MaxLease)
	}
	if c.Directory == nil {
		return nil, errors.New("nobody says who is a member: the directory is missing")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	a := &Authority{Config: c, quota: newQuota(c.Now), lag: newLag(), members: newMembers(c.Directory)}
	if err := a.follow(ctx, c.Bundle); err != nil {
		return nil, err
	}
	if err := a.registry.refresh(ctx, c.Pool); err != nil {
		return nil, fmt.Errorf("read the registry: %w", err)
	}
	return a, nil
}

// Run keeps the registry's copy fresh, follows the generations of keys and flushes
// counted refusals, until ctx ends.
func (a *Authority) Run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := a.registry.refresh(ctx, a.Pool); err != nil && ctx.Err() == nil {
			a.Log.LogAttrs(ctx, slog.LevelWarn, "the registry cannot be read", slog.Any("error", err))
		}
		if err := a.follow(ctx, nil); err != nil && ctx.Err() == nil {
			a.Log.LogAttrs(ctx, slog.LevelWarn, "the generations of keys cannot be followed", slog.Any("error", err))
		}
		a.refusals.flush(ctx, a.Pool)
	}
}

// Nonce is a fresh nonce for our own audience; every answer carries one.
func (a *Authority) Nonce() string { return a.Keys().Nonces().Mint(a.Issuer) }

// Call is what every request brings besides its content.
type Call struct {
	Proof  string // value of the one DPoP header line; empty when there was none
	Method string
	URL    string // configured public origin and escaped path; never from Host
}

// spent is a verified proof in the form in which a verb spends it.
type spent struct {
	nonceAt    time.Time
	digest     [32]byte
	key        capability.Thumbprint
	payer      payer // of its refusal: the key, until more is known of who holds it
	exempt     bool  // no quota refuses it
	nonce      int64 // generation of the nonce's key
	capability int64 // generation of the capability that came with it, if any
}

// prove verifies a proof of possession for this call: everything but whether
// it was used before and whether its nonce is still fresh, which the verb
// decides. token is empty at the token endpoint; holder is the key that the
// token names, or zero where the proof introduces its key.
func (a *Authority) prove(c Call, token capability.Token, holder capability.Thumbprint) (spent, error) {
	return a.check(c.Proof, a.Issuer, capability.Expect{Method: c.Method, URL: c.URL, AccessToken: token, Holder: holder})
}

func (a *Authority) check(proof, audience string, e capability.Expect) (spent, error) {
	var nonce keys.Nonce
	e.Now = a.Now()
	e.Nonce = func(s string) (err error) {
		nonce, err = a.Keys().Nonces().Open(s, audience)
		if err != nil || !nonce.Plausible(e.Now, nonceSlack) {
			return api.Refuse(api.UseDPoPNonce)
		}
		return nil
	}
	p, err := capability.CheckProof(proof, e)
	if err != nil {
		return spent{}, ProofRefusal(err)
	}
	return spent{nonceAt: nonce.IssuedAt, nonce: nonce.Generation, digest: p.Digest(), key: p.Key, payer: payerOf("key", p.Key[:])}, nil
}

// ProofRefusal gives the leaf's refusals their codes.
func ProofRefusal(err error) error {
	var r *api.Refusal
	var p *capability.ProofError
	switch {
	case errors.As(err, &r):
		return r
	case errors.Is(err, capability.ErrNoProof):
		return api.Refusef(api.InvalidDPoPProof, "Send a DPoP proof of the key in one DPoP header.")
	case errors.As(err, &p) && p.Code == capability.CodeUseNonce:
		return api.Refuse(api.UseDPoPNonce)
	case errors.As(err, &p) && p.Code == capability.CodeInvalidProof:
		return api.Refusef(api.InvalidDPoPProof, "The DPoP proof is refused: %s.", p.Reason)
	case errors.As(err, &p) && p.Code == capability.CodeInvalidToken:
		return api.Refusef(api.InvalidToken, "The capability is refused: %s.", p.Reason)
	case errors.As(err, &p):
		return api.Refusef(api.InvalidRequest, "The request is refused: %s.", p.Reason)
	}
	return err
}

// expectation is what capabilities of our own must satisfy here.
func (a *Authority) expectation() capability.Expectation {
	return capability.Expectation{Issuer: a.Issuer, Now: a.Now(), Leeway: leeway}
}

// refuseEarly answers a new admission from the remembered decision. It only
// ever refuses: when it lets pass, the verb decides under the lock.
func (a *Authority) refuseEarly() error {
	if d := a.Gate.Known(); !d.Open {
		return api.Refuse(api.AdmissionClosed)
	}
	return nil
}

// newReference is 128 random bits. It grants nothing.
func newReference() (r [16]byte) {
	_, _ = rand.Read(r[:]) // never fails (crypto/rand)
	return r
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// decode reads exactly n bytes of base64url in its one spelling.
func decode(s string, n int) ([]byte, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return b, err == nil && len(b) == n && encode(b) == s
}

// newID is a jti: 128 random bits.
func newID() string {
	r := newReference()
	return encode(r[:])
}

// expiry is when something signed now, with a lifetime and a deadline, ends.
func (a *Authority) expiry(lifetime time.Duration, deadline time.Time) (iat, exp int64) {
	now := a.Now()
	lifetime = min(lifetime, a.generations.now.Load().lifetime)
	return now.Unix(), min(now.Add(lifetime).Unix(), deadline.Unix())
}
