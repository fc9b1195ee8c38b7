package tripwire

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// attack tries the threats of A16 that leave the scratch task standing. The attacker is a workload that is registered and consented to:
// what it lacks is only ever the thing that the attack is about.
func (t *tripwire) attack(ctx context.Context) {
	for _, one := range []struct {
		id, title    string
		requirements []string
		try          func(context.Context, *hold) (string, error)
	}{
		{"A16.1", "an effect that was never granted", []string{"A16", "A1", "B5"}, t.neverGranted},
		{"A16.2", "a forged workload", []string{"A16", "A2"}, t.forgedWorkload},
		{"A16.4", "a stolen bearer value", []string{"A16", "A3"}, t.stolenBearer},
		{"A16.5", "a redelivered queue item", []string{"A16", "A7"}, t.redelivered},
		{"A16.6", "a replayed proof", []string{"A16", "A3"}, t.replayedProof},
		{"A16.7", "an expired lease that goes on executing", []string{"A16", "A6", "A9"}, t.expiredLease},
		{"A16.9", "an ambiguous write, tried again", []string{"A16", "A10"}, t.ambiguousReplayed},
	} {
		t.held(ctx, one.id, one.title, one.requirements, one.try)
	}
}

// tries are how often a line is tried of which nothing is learnt, or whose run was no longer held when it failed: leases are short, and machines are slow.
const tries = 4

// held is a line about a run of its own.
func (t *tripwire) held(ctx context.Context, id, title string, requirements []string, try func(context.Context, *hold) (string, error)) {
	t.line(id, title, requirements, func() (said string, err error) {
		for range tries {
			var h *hold
			if h, err = t.next(ctx); err != nil {
				return "", err
			}
			began := t.Now()
			said, err = try(ctx, h)
			t.give(ctx, h)
			if over := t.Now().Sub(began) >= h.lease; err == nil || !over && !inconclusive(err) {
				return said, err
			}
		}
		return said, err
	})
}

func (t *tripwire) neverGranted(ctx context.Context, h *hold) (string, error) {
	return allRefused(attempt{t.Guard.Denied.Action, func() error {
		_, err := t.mint(ctx, h, "steal", t.Guard.Denied)
		return err
	}, []api.Code{api.NotGranted}})
}

// forgedWorkload signs an assertion in the issuer's name with a key of the attacker's own, and with none.
func (t *tripwire) forgedWorkload(ctx context.Context, h *hold) (string, error) {
	genuine, err := t.token(t.Workload)
	if err != nil {
		return "", err
	}
	forger, err := capability.GenerateKey()
	if err != nil {
		return "", err
	}
	forged, err := changed(genuine, "attacker", true)
	if err == nil {
		forged, err = resigned(forged, forger)
	}
	if err != nil {
		return "", err
	}
	parts := strings.Split(genuine, ".")
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + parts[1] + "."
	claimWith := func(assertion string) func() error {
		return func() error {
			_, err := t.exchange(ctx, t.client(forger), claimForm(h.reference, assertion))
			return err
		}
	}
	want := []api.Code{api.InvalidClient}
	return allRefused(attempt{"an assertion that the attacker has signed", claimWith(forged), want}, attempt{"one that nobody has signed", claimWith(unsigned), want})
}

// resigned is a token with the same header and claims, signed by another key.
func resigned(token string, k *capability.Key) (string, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", errNoJWT
	}
	sig, err := k.SignES256(digestOf(parts[0] + "." + parts[1]))
	return parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(sig[:]), err
}

// stolenBearer replays each bearer value with a key that does not own it.
func (t *tripwire) stolenBearer(ctx context.Context, h *hold) (string, error) {
	thief, err := capability.GenerateKey()
	if err != nil {
		return "", err
	}
	assertion, err := t.token(t.Workload)
	if err != nil {
		return "", err
	}
	envelope, err := t.token(t.Member)
	if err != nil {
		return "", err
	}
	stolen := &hold{client: t.client(thief), token: h.token}
	attempts := []attempt{
		{"an assertion", func() error {
			_, err := t.exchange(ctx, stolen.client, claimForm(h.reference, assertion))
			return err
		}, []api.Code{api.AssertionBound}},
		{"a capability", func() error { return t.renew(ctx, stolen) }, []api.Code{api.WrongKey, api.InvalidToken}},
		{"an envelope", func() error {
			return t.As(envelope, thief, t.http).Call(ctx, http.MethodGet, api.PathTasks, "", nil, &api.Page[api.Task]{})
		}, []api.Code{api.AssertionBound, api.InvalidEnvelope}},
		{"a reference", func() error {
			return t.bare(ctx, http.MethodGet, t.Authority+api.PathRuns+"/"+h.reference, nil)
		}, []api.Code{api.InvalidEnvelope, api.InvalidDPoPProof}},
	}
	if t.Stranger.Token != nil {
		attempts = append(attempts, attempt{"a reference, by another workload", func() error { _, err := t.claim(ctx, h.reference, t.Stranger); return err }, []api.Code{api.UnknownRun, api.InvalidClient}})
	}
	said, err := allRefused(attempts...)
	if err != nil {
		return "", err
	}
	pages, err := t.stolenPages(ctx)
	return said + pages, err
}

// bare sends a request that carries nothing but its headers.
func (t *tripwire) bare(ctx context.Context, method, to string, header map[string]string) error {
	return t.send(ctx, method, to, header, "")
}

func (t *tripwire) send(ctx context.Context, method, to string, header map[string]string, body string) error {
	r, err := http.NewRequestWithContext(ctx, method, to, strings.NewReader(body))
	if err != nil {
		return err
	}
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := t.http.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end below
	if answer.StatusCode < http.StatusMultipleChoices {
		return nil
	}
	var p api.Problem
	if err := json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 1<<16)).Decode(&p); err != nil || p.Code == "" {
		return fmt.Errorf("status %d without a refusal that is known", answer.StatusCode)
	}
	return api.Refuse(p.Code)
}

// redelivered claims a run that is held, and one that has ended, with the message's reference.
func (t *tripwire) redelivered(ctx context.Context, h *hold) (string, error) {
	by := t.Second
	held := "(no second pod: a run that is held was not claimed again) "
	if by.Token != nil {
		said, err := allRefused(attempt{"a run that is held", func() error { _, err := t.claim(ctx, h.reference, by); return err }, []api.Code{api.Held}})
		if err != nil {
			return "", err
		}
		held = said + "; "
	} else {
		by = t.Workload
	}
	t.give(ctx, h)
	said, err := allRefused(attempt{"one that has ended", func() error { _, err := t.claim(ctx, h.reference, by); return err }, []api.Code{api.RunEnded}})
	return held + said, err
}

func (t *tripwire) replayedProof(ctx context.Context, h *hold) (string, error) {
	proof, err := capability.NewProof(h.client.Key, capability.ProofParams{Method: http.MethodPost, URL: t.Authority + api.PathRenew, Nonce: h.client.Nonce(), AccessToken: h.token, Now: t.Now()})
	if err != nil {
		return "", err
	}
	renew := func() error {
		return t.send(ctx, http.MethodPost, t.Authority+api.PathRenew, map[string]string{"Content-Type": "application/json", "Authorization": "DPoP " + h.token.Reveal(), api.HeaderProof: proof}, "{}")
	}
	if err := renew(); err != nil {
		return "", fmt.Errorf("a proof was not taken the first time: %w", err)
	}
	return allRefused(attempt{"the same proof once more", renew, []api.Code{api.ProofReplayed}})
}

// expiredLease mints in time, lets the lease run out and then goes to the guard.
func (t *tripwire) expiredLease(ctx context.Context, h *hold) (string, error) {
	minted, err := t.mint(ctx, h, "late", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	if err := pause(ctx, h.lease+500*time.Millisecond); err != nil {
		return "", err
	}
	return allRefused(attempt{fmt.Sprintf("an effect capability, at the guard, %s after the lease's end", 500*time.Millisecond), func() error { return t.operate(ctx, h, minted.AccessToken, minted.GuardNonce, t.Guard.Granted) },
		[]api.Code{api.LeaseLost, api.FenceStale, api.EffectLapsed, api.InvalidToken}})
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// ambiguousReplayed plays a guard that cannot tell what happened, and asks for the same effect in the next run.
func (t *tripwire) ambiguousReplayed(ctx context.Context, h *hold) (string, error) {
	if t.Guard.Pod.Token == nil {
		return "", reason("the configuration names no other pod of the guard, which would lose track of an effect")
	}
	minted, err := t.mint(ctx, h, "unsure", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	if err := t.loseTrack(ctx, h, minted); err != nil {
		return "", fmt.Errorf("an effect of which nobody knows could not be made: %w", err)
	}
	again, err := t.next(ctx)
	if err != nil {
		return "", err
	}
	defer t.give(ctx, again)
	said, err := allRefused(attempt{"the same effect in the next run", func() error {
		_, err := t.mint(ctx, again, "again", t.Guard.Granted)
		return err
	}, []api.Code{api.EffectAmbiguous, api.LaneUncertain}})
	if err != nil {
		return "", err
	}
	return said, t.findings(ctx)
}

// loseTrack is another pod of the guard, which admits an effect and then can prove nothing.
func (t *tripwire) loseTrack(ctx context.Context, h *hold, minted api.TokenResponse) error {
	pod := &dpopclient.Component{Client: t.client(t.Guard.Pod.Key), Name: t.Guard.Name, Assertion: func(context.Context) (string, error) { return t.token(t.Guard.Pod) }}
	e := t.Guard.Granted
	digest, _, err := capability.ParamsDigest(e.Parameters)
	if err != nil {
		return err
	}
	guard, err := url.Parse(t.Guard.URI)
	if err != nil {
		return err
	}
	proof, err := capability.NewProof(h.client.Key, capability.ProofParams{Method: http.MethodPost, URL: t.Guard.URI + "/operations/" + e.Action, Nonce: minted.GuardNonce,
		AccessToken: capability.Token(minted.AccessToken), Now: t.Now()})
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	once := base64.RawURLEncoding.EncodeToString(id[:])
	ask := api.AdmitRequest{Attempt: once, Capability: minted.AccessToken, Proof: proof, Method: http.MethodPost, Path: guard.Path + "/operations/" + e.Action,
		Effect: api.Detail{Type: api.DetailTypeEffect, Actions: []string{e.Action}, Locations: []string{t.Guard.URI}, Identifier: e.Resource,
			ParamsSHA256: base64.RawURLEncoding.EncodeToString(digest[:])}}
	if err := pod.JSON(ctx, http.MethodPost, api.PathAdmit, ask, nil); err != nil {
		return err
	}
	return pod.JSON(ctx, http.MethodPost, api.PathSettle, api.SettleEffectRequest{Effect: minted.Effect, Attempt: once, Outcome: api.Ambiguous}, nil)
}

// staleRevision goes on under a capability whose task has a new revision, whose role has ended, and whose policy has.
func (t *tripwire) staleRevision(ctx context.Context) (said string, err error) {
	var o api.Offer
	for _, change := range []struct {
		of     string
		before func() error // so that a run is claimed under what is current
		act    func() error
	}{
		{"task", func() error { return nil }, func() (err error) { o, err = t.offered(ctx, t.name, 2); return err }},
		{"role", func() error { return patient(ctx, func() error { return t.accept(ctx, o) }) }, func() error {
			return t.retire(ctx, api.RetireRequest{Kind: document.KindRole, Name: role, Revision: t.revision})
		}},
		{"policy", func() error { return t.renewRole(ctx) }, func() error {
			return t.retire(ctx, api.RetireRequest{Kind: document.KindPolicy, Name: t.name, Revision: 1})
		}},
	} {
		if err := change.before(); err != nil {
			return "", err
		}
		h, err := t.next(ctx)
		if err != nil {
			return "", err
		}
		if err := change.act(); err != nil {
			return "", err
		}
		one, err := allRefused(attempt{"by the old " + change.of, func() error { _, err := t.mint(ctx, h, "stale", t.Guard.Granted); return err }, []api.Code{api.AuthorityChanged}})
		if err != nil {
			return "", err
		}
		said += "; " + one
	}
	return said[len("; "):], nil
}

// renewRole enters the role's next revision, and a revision of the task under it.
func (t *tripwire) renewRole(ctx context.Context) error {
	t.revision++
	if err := t.apply(ctx, t.roleDocument()); err != nil {
		return err
	}
	_, err := t.consent(ctx, t.name, 3)
	return err
}
