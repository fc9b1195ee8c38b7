package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// probes look at every family that a replica of the authority answers for.
// registered lists the issuers of the profiles that are registered now.
func (r *replica) probes(registered func() []string) []readiness.Probe {
	return []readiness.Probe{
		readiness.StoreProbe(r.watching, r.schema, r.disk),
		readiness.ClockProbe(r.watching, r.config.ClockBound.Std(), time.Now),
		readiness.AuditProbe(r.watching),
		{Family: "signing", Look: r.lookAtSigning},
		{Family: "nonces", Look: r.lookAtNonces},
		{Family: "attestation", Look: func(ctx context.Context) string { return r.lookAtAttestation(ctx, registered()) }},
	}
}

// lookAtSigning has the keys prove themselves anew: those that sign here, and
// those that a replica which starts now would be given.
func (r *replica) lookAtSigning(context.Context) string {
	var challenge [32]byte
	_, _ = rand.Read(challenge[:]) // never fails (crypto/rand)
	signature, mac, err := r.keys.Challenge(challenge)
	if err != nil || r.keys.VerifyChallenge(challenge, signature, mac) != nil {
		return readiness.Material
	}
	if r.projected() != nil && r.projected() != nil { // what is exchanged as a whole may be exchanged between two reads
		return readiness.Material
	}
	return readiness.Good
}

// projected opens the bundle that lies on disk and holds it against the
// registered identity, which the one in memory was held against at the start.
func (r *replica) projected() error {
	bundle, err := keys.Open(r.config.Keys.Dir, r.config.Keys.IdentityFile)
	if err != nil {
		return err
	}
	return bundle.Prove(r.keys.Identity())
}

// lookAtNonces opens a fresh nonce, and sees one for somebody else refused.
func (r *replica) lookAtNonces(context.Context) string {
	n := r.keys.Nonces()
	fresh, foreign := n.Mint(r.config.Issuer), n.Mint(r.config.Issuer+"/elsewhere")
	opened, err := n.Open(fresh, r.config.Issuer)
	_, bad := n.Open(foreign, r.config.Issuer)
	if err != nil || bad == nil || !opened.Plausible(time.Now(), time.Minute) {
		return readiness.Canary
	}
	return readiness.Good
}

// lookAtAttestation wants each registered profile's issuer trusted here, each
// issuer's keys refreshed in time, and a good and several bad assertions judged
// rightly.
func (r *replica) lookAtAttestation(ctx context.Context, registered []string) string {
	issuers := r.workloads.Issuers()
	for _, i := range registered {
		if !slices.Contains(issuers, i) {
			return readiness.Profile
		}
	}
	for _, i := range issuers {
		switch {
		case r.workloads.Fresh(i):
		case r.workloads.Failure(i) != nil:
			return readiness.Unreachable
		default:
			return readiness.Stale
		}
	}
	if r.assertions.Healthy(issuers) != nil {
		return readiness.Canary
	}
	for compact, want := range r.badAssertions(time.Now()) {
		_, err := r.assertions.Verify(ctx, compact)
		var refused *attestation.Refusal
		if !errors.As(err, &refused) || refused.Reason != want {
			return readiness.Canary
		}
	}
	return readiness.Good
}

// badAssertions are refused before any issuer is asked.
func (r *replica) badAssertions(now time.Time) map[string]attestation.Reason {
	encode := base64.RawURLEncoding.EncodeToString
	sign := func(claims string) string {
		return encode([]byte(`{"alg":"ES256","kid":"canary"}`)) + "." + encode([]byte(claims)) + "." + encode(make([]byte, 64))
	}
	const claims = `{"iss":%q,"sub":"canary","aud":%q,"iat":%d,"exp":%d}`
	trusted := r.workloads.Issuers()[0]
	return map[string]attestation.Reason{
		"not.a.token": attestation.Malformed,
		sign(fmt.Sprintf(claims, "https://canary.invalid", r.config.Issuer, now.Unix(), now.Unix()+60)): attestation.UntrustedIssuer,
		sign(fmt.Sprintf(claims, trusted, r.config.Issuer+"/elsewhere", now.Unix(), now.Unix()+60)):     attestation.WrongAudience,
		sign(fmt.Sprintf(claims, trusted, r.config.Issuer, now.Unix()-120, now.Unix()-60)):              attestation.Expired,
	}
}
