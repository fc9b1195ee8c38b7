package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// probes look at every family that a replica of the authority answers for.
func (r *replica) probes() []readiness.Probe {
	return []readiness.Probe{
		readiness.StoreProbe(r.watching),
		readiness.ClockProbe(r.watching, r.config.ClockBound.Std(), time.Now),
		{Family: "signing", Look: r.lookAtSigning},
		{Family: "nonces", Look: r.lookAtNonces},
		{Family: "attestation", Look: r.lookAtAttestation},
	}
}

// lookAtSigning has the keys prove themselves anew.
func (r *replica) lookAtSigning(context.Context) string {
	var challenge [32]byte
	_, _ = rand.Read(challenge[:]) // never fails (crypto/rand)
	signature, mac, err := r.keys.Challenge(challenge)
	if err != nil || r.keys.VerifyChallenge(challenge, signature, mac) != nil {
		return readiness.Material
	}
	return readiness.Good
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

// lookAtAttestation wants each issuer's keys refreshed in time, and a good and
// several bad assertions judged rightly.
func (r *replica) lookAtAttestation(ctx context.Context) string {
	issuers := r.workloads.Issuers()
	for _, i := range issuers {
		if !r.workloads.Fresh(i) {
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
