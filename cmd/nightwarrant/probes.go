package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// probes look at every family that a replica of the authority answers for.
// registered lists the issuers of the profiles that are registered now.
func (r *replica) probes(registered func() []string) []readiness.Probe {
	return []readiness.Probe{
		readiness.StoreProbe(r.watching, r.schema, r.disk),
		readiness.ClockProbe(r.watching, r.config.ClockBound.Std(), time.Now),
		{Family: "audit", Look: r.lookAtAudit},
		{Family: "signing", Look: r.lookAtVouched},
		{Family: "nonces", Look: r.lookAtNonces},
		{Family: "attestation", Look: func(ctx context.Context) (string, error) { return r.lookAtAttestation(ctx, registered()) }},
		{Family: "directory", Look: r.lookAtDirectory},
	}
}

// lookAtAudit looks at the audit rows, and at the log that is made of them.
func (r *replica) lookAtAudit(ctx context.Context) (string, error) {
	switch err := r.sequencer.Health(); {
	case errors.Is(err, sequencer.ErrDiffers):
		return readiness.Material, err
	case err != nil:
		return readiness.Unhealthy, err
	}
	return readiness.AuditProbe(r.watching).Look(ctx)
}

// lookAtSigning has the keys prove themselves anew: those that sign here, and
// those that a replica which starts now would be given.
func (r *replica) lookAtSigning(ctx context.Context) (string, error) {
	var challenge [32]byte
	_, _ = rand.Read(challenge[:]) // never fails (crypto/rand)
	now := r.inForce()
	signature, mac, err := now.Challenge(challenge)
	if err == nil {
		err = now.VerifyChallenge(challenge, signature, mac)
	}
	if err != nil {
		return readiness.Material, err
	}
	if r.projected(ctx) == nil {
		return readiness.Good, nil
	}
	var wrong *keys.MaterialError
	if err := r.projected(ctx); errors.As(err, &wrong) { // not just exchanged as a whole, between two reads
		return readiness.Material, err
	}
	return readiness.Good, nil // what else can be wrong is the database, which says so itself
}

// projected opens the bundle that lies on disk and has it used: this is how a
// replica gets the successor of its bundle without a restart.
func (r *replica) projected(ctx context.Context) error {
	bundle, err := openKeys(r.config.Keys)
	if err != nil {
		return err
	}
	return r.hold(ctx, bundle)
}

// follow ties this replica's bundle to what the database says, which is told in
// turn what generations it holds.
func (r *replica) follow(a *authority.Authority, reporter *readiness.Reporter) {
	var told []int64
	r.inForce = a.Keys
	r.hold = func(ctx context.Context, opened *keys.Bundle) error {
		holds, err := a.Hold(ctx, opened)
		if err != nil || slices.Equal(holds, told) {
			return err
		}
		if err := reporter.Hold(ctx, holds); err != nil {
			return err
		}
		told = holds
		return nil
	}
}

// lookAtNonces opens a fresh nonce, and sees one for somebody else refused.
func (r *replica) lookAtNonces(context.Context) (string, error) {
	n := r.inForce().Nonces()
	fresh, foreign := n.Mint(r.config.Issuer), n.Mint(r.config.Issuer+"/elsewhere")
	opened, err := n.Open(fresh, r.config.Issuer)
	_, bad := n.Open(foreign, r.config.Issuer)
	if err != nil || bad == nil || !opened.Plausible(time.Now(), time.Minute) {
		return readiness.Canary, errCanary
	}
	return readiness.Good, nil
}

var errCanary = errors.New("a canary was judged wrongly")

// lookAtAttestation wants each registered profile's issuer trusted here, each
// issuer's keys refreshed in time, and a good and several bad assertions judged
// rightly.
func (r *replica) lookAtAttestation(ctx context.Context, registered []string) (string, error) {
	issuers := r.workloads.Issuers()
	for _, i := range registered {
		if !slices.Contains(issuers, i) {
			return readiness.Profile, fmt.Errorf("a registered profile has issuer %q, which assertion.issuers has not", i)
		}
	}
	for _, i := range issuers {
		if r.workloads.Fresh(i) {
			continue
		}
		if err := r.workloads.Failure(i); err != nil {
			return readiness.Unreachable, fmt.Errorf("the keys of %q: %w", i, err)
		}
		return readiness.Stale, fmt.Errorf("the keys of %q are too old, and nobody has asked for them", i)
	}
	if err := r.assertions.Healthy(issuers); err != nil {
		return readiness.Canary, err
	}
	if err := r.assertions.Reachable(ctx); err != nil {
		return readiness.Unreachable, err
	}
	for compact, want := range r.badAssertions(time.Now()) {
		_, err := r.assertions.Verify(ctx, compact)
		var refused *attestation.Refusal
		if !errors.As(err, &refused) || refused.Reason != want {
			return readiness.Canary, errCanary
		}
	}
	return readiness.Good, nil
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

// lookAtDirectory asks for somebody whom nobody can know. Only a directory that
// takes our token and looks can say that there is none.
func (r *replica) lookAtDirectory(ctx context.Context) (string, error) {
	answer, err := r.members.Member(ctx, r.config.Envelope.Issuer.URL, "nightwarrant-canary-"+rand.Text())
	switch {
	case err != nil:
		return readiness.Unreachable, err
	case answer != directory.Absent:
		return readiness.Canary, errCanary
	}
	return readiness.Good, nil
}
