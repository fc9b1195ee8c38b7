package tripwire

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

func digestOf(signed string) [32]byte { return sha256.Sum256([]byte(signed)) }

// fallBack tries the five ways in which something weaker could stand in for a boundary that was not proved (A15).
func (t *tripwire) fallBack(ctx context.Context) {
	for _, one := range []struct {
		id, title    string
		requirements []string
		try          func(context.Context, *hold) (string, error)
	}{
		{"A15.1", "no fallback to a local policy", []string{"A15", "A4"}, t.localPolicy},
		{"A15.2", "no fallback to a workload's identity alone", []string{"A15", "A2"}, t.identityAlone},
		{"A15.3", "no fallback to what was known of a member", []string{"A15", "B1"}, t.storedMember},
		{"A15.4", "no fallback to a bearer credential", []string{"A15", "A3"}, t.bearer},
		{"A15.5", "no fallback to an attestation profile that is not accepted", []string{"A15", "A2"}, t.otherProfile},
	} {
		t.held(ctx, one.id, one.title, one.requirements, one.try)
	}
}

// localPolicy asks the guard, and the authority, to decide by something that the authority has not signed.
func (t *tripwire) localPolicy(ctx context.Context, h *hold) (string, error) {
	minted, err := t.mint(ctx, h, "local", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	own, err := resigned(minted.AccessToken, h.client.Key)
	if err != nil {
		return "", err
	}
	run, err := resigned(h.token.Reveal(), h.client.Key)
	if err != nil {
		return "", err
	}
	want := []api.Code{api.InvalidToken}
	return allRefused(
		attempt{"at the guard, an effect that the worker has signed itself", func() error { return t.operate(ctx, h, own, minted.GuardNonce, t.Guard.Granted) }, want},
		attempt{"at the guard, a run capability", func() error { return t.operate(ctx, h, h.token.Reveal(), minted.GuardNonce, t.Guard.Granted) }, want},
		attempt{"at the authority, a run that the worker has signed itself", func() error {
			_, err := t.exchange(ctx, h.client, t.mintForm(run, "local-run", t.Guard.Granted))
			return err
		}, want},
	)
}

// identityAlone has a genuine assertion, and nothing that was consented to.
func (t *tripwire) identityAlone(ctx context.Context, h *hold) (string, error) {
	assertion, err := t.token(t.Workload)
	if err != nil {
		return "", err
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return allRefused(
		attempt{"a claim of a run that there is not", func() error {
			_, err := t.claim(ctx, base64.RawURLEncoding.EncodeToString(b[:]), t.Workload)
			return err
		}, []api.Code{api.UnknownRun}},
		attempt{"a mint with the assertion for a capability", func() error {
			_, err := t.exchange(ctx, h.client, t.mintForm(assertion, "alone", t.Guard.Granted))
			return err
		}, []api.Code{api.InvalidToken, api.InvalidGrant}},
		attempt{"the assertion at the guard", func() error { return t.operate(ctx, h, assertion, "", t.Guard.Granted) }, []api.Code{api.InvalidToken}},
		attempt{"a boot as the guard", func() error {
			_, err := (&dpopclient.Component{Client: t.client(h.client.Key), Name: t.Guard.Name, Assertion: func(context.Context) (string, error) { return assertion, nil }}).Token(ctx)
			return err
		}, []api.Code{api.InvalidClient}},
	)
}

// storedMember says who the member is in every way but the envelope that was given for it.
func (t *tripwire) storedMember(ctx context.Context, h *hold) (string, error) {
	envelope, err := t.token(t.Member)
	if err != nil {
		return "", err
	}
	c, err := claimsOf(envelope)
	if err != nil {
		return "", err
	}
	later, err := changed(envelope, "exp", t.Now().Add(time.Hour).Unix())
	if err != nil {
		return "", err
	}
	tasks := func(as string) func() error {
		return func() error {
			return t.As(as, t.Member.Key, t.http).Call(ctx, http.MethodGet, api.PathTasks, "", nil, &api.Page[api.Task]{})
		}
	}
	want := []api.Code{api.InvalidEnvelope, api.InvalidDPoPProof}
	return allRefused(
		attempt{"headers that name the member", func() error {
			return t.bare(ctx, http.MethodGet, t.Authority+api.PathTasks, map[string]string{"X-Forwarded-User": c.Subject, "X-Forwarded-Email": c.Subject, "Remote-User": c.Subject, "X-Remote-User": c.Subject})
		}, want},
		attempt{"an envelope that was made to last longer", tasks(later), want},
		attempt{"a run capability for an envelope", tasks(h.token.Reveal()), want},
	)
}

// changed is a token with a claim that its issuer has not signed.
func changed(token, claim string, value any) (string, error) {
	var all map[string]any
	parts, err := read(token, &all)
	if err != nil {
		return "", err
	}
	if all == nil { // null
		return "", errNoJWT
	}
	all[claim] = value
	text, err := json.Marshal(all)
	if err != nil {
		return "", err
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(text)
	return strings.Join(parts, "."), nil
}

// bearer shows capabilities without a proof of their key.
func (t *tripwire) bearer(ctx context.Context, h *hold) (string, error) {
	minted, err := t.mint(ctx, h, "bearer", t.Guard.Granted)
	if err != nil {
		return "", err
	}
	body, err := json.Marshal(map[string]any{"resource": t.Guard.Granted.Resource, "parameters": t.Guard.Granted.Parameters})
	if err != nil {
		return "", err
	}
	var all []attempt
	for _, scheme := range []string{"Bearer", "DPoP"} {
		for _, at := range []struct{ what, to, token, body string }{
			{"at the authority", t.Authority + api.PathRenew, h.token.Reveal(), "{}"},
			{"at the guard", t.Guard.URI + "/operations/" + t.Guard.Granted.Action, minted.AccessToken, string(body)},
		} {
			all = append(all, attempt{scheme + " without a proof " + at.what, func() error {
				return t.send(ctx, http.MethodPost, at.to, map[string]string{"Content-Type": "application/json", "Authorization": scheme + " " + at.token}, at.body)
			}, []api.Code{api.InvalidToken, api.InvalidDPoPProof, api.UseDPoPNonce}})
		}
		proof, err := capability.NewProof(h.client.Key, capability.ProofParams{Method: http.MethodPost, URL: t.Authority + api.PathRenew, Nonce: h.client.Nonce(), AccessToken: h.token, Now: t.Now()})
		if err != nil {
			return "", err
		}
		if scheme == "Bearer" {
			all = append(all, attempt{"Bearer with a proof at the authority", func() error {
				return t.send(ctx, http.MethodPost, t.Authority+api.PathRenew, map[string]string{"Content-Type": "application/json", "Authorization": "Bearer " + h.token.Reveal(), api.HeaderProof: proof}, "{}")
			}, []api.Code{api.InvalidToken, api.InvalidDPoPProof}})
		}
	}
	return allRefused(all...)
}

// otherProfile claims with assertions of trusted issuers that prove workloads whom the role does not accept.
func (t *tripwire) otherProfile(ctx context.Context, h *hold) (string, error) {
	t.give(ctx, h)
	reference, err := t.queued(ctx)
	if err != nil {
		return "", err
	}
	var all []attempt
	for _, one := range []struct {
		what string
		by   Holder
	}{{"a workload that is registered nowhere", t.Stranger}, {"a pod of the guard", t.Guard.Pod}} {
		if one.by.Token != nil {
			all = append(all, attempt{one.what, func() error { _, err := t.claim(ctx, reference, one.by); return err }, []api.Code{api.InvalidClient, api.UnknownRun}})
		}
	}
	if len(all) == 0 {
		return "", reason("the configuration names neither a stranger nor another pod of the guard")
	}
	return allRefused(all...)
}
