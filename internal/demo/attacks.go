package demo

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

// The nine threats of A16, each an attack that runs. The attacker is a workload
// that is registered and consented to, with a queue of its own: what it lacks
// is only ever the thing that the attack is about.
func (t teller) attacks(ctx context.Context) ([]Attack, error) {
	a := &attacker{teller: t}
	if err := a.prepare(ctx); err != nil {
		return nil, err
	}
	defer a.queue.Close() //nolint:errcheck // the process goes on without it
	var all []Attack
	for _, one := range []struct {
		id, name string
		try      func(context.Context) (api.Code, error)
	}{
		{"A16.1", "an effect that was never granted", a.neverGranted},
		{"A16.2", "a forged workload", a.forgedWorkload},
		{"A16.4", "a stolen bearer value: assertion, envelope, reference, capability", a.stolenBearer},
		{"A16.5", "a redelivered queue item", a.redelivered},
		{"A16.6", "a replayed proof", a.replayedProof},
		{"A16.7", "an expired lease that goes on executing", a.expiredLease},
		{"A16.9", "an ambiguous write, tried again", a.ambiguousReplayed},
		{"A16.3", "a stale revision", a.staleRevision},
		{"A16.8", "a partial platform taken for ready", a.partialPlatform},
	} {
		code, err := one.try(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.id, err)
		}
		all = append(all, Attack{ID: one.id, Name: one.name, Refused: code != "", Code: string(code)})
		t.say("%s  %s: refused, %s.", one.id, one.name, code)
	}
	slices.SortFunc(all, func(a, b Attack) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

type attacker struct {
	teller
	queue *natsqueue.Queue
	task  string
}

func (a *attacker) prepare(ctx context.Context) (err error) {
	if err := a.write("probe.yaml", a.Stack.task("probe", "probe", "Probe the house", 1)); err != nil {
		return err
	}
	if a.task, err = a.Consent(ctx, "probe.yaml"); err != nil {
		return err
	}
	c, err := ReadWorker(a.path("config", "probe.json"))
	if err != nil {
		return err
	}
	a.queue, err = natsqueue.Open(ctx, natsqueue.Config{URL: c.NATS, Queue: c.Queue, User: c.User, Password: c.Password})
	return err
}

func (a *attacker) write(name, text string) error {
	return os.WriteFile(a.path("config", name), []byte(text), 0o600)
}

// hold is a run that the attacker has claimed, as any worker does.
type hold struct {
	reference string
	client    *dpopclient.Client
	token     capability.Token
}

// next pulls a reference and claims it with a new key.
func (a *attacker) next(ctx context.Context) (*hold, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		m, err := a.queue.Pull(ctx)
		if err != nil {
			return nil, err
		}
		h, err := a.claim(ctx, m.Reference(), "probe")
		var r *api.Refusal
		switch {
		case err == nil:
			return h, m.Ack()
		case errors.As(err, &r) && (r.Code == api.RunEnded || r.Code == api.UnknownRun || r.Code == api.AuthorityChanged || r.Code == api.DeadlinePassed):
			err = m.Ack()
		case errors.As(err, &r):
			err = m.Nak(time.Second)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (a *attacker) claim(ctx context.Context, reference, token string) (*hold, error) {
	assertion, err := a.assertion(token)
	if err != nil {
		return nil, err
	}
	key, err := a.owner(token)
	if err != nil {
		return nil, err
	}
	h := &hold{reference: reference, client: a.client(key)}
	var out api.TokenResponse
	if err := h.client.PostForm(ctx, api.PathToken, claimForm(reference, assertion), &out); err != nil {
		return nil, err
	}
	h.token = capability.Token(out.AccessToken)
	return h, nil
}

// owners are the keys that own this process's assertions.
var owners = map[string]*capability.Key{}

func (a *attacker) owner(token string) (*capability.Key, error) {
	if owners[token] == nil {
		k, err := capability.GenerateKey()
		if err != nil {
			return nil, err
		}
		owners[token] = k
	}
	return owners[token], nil
}

func (a *attacker) assertion(token string) (string, error) {
	text, err := os.ReadFile(a.path("tokens", token))
	return strings.TrimSpace(string(text)), err
}

func (a *attacker) client(k *capability.Key) *dpopclient.Client {
	return &dpopclient.Client{Key: k, BaseURL: a.Origin(), Timeout: 20 * time.Second}
}

func claimForm(reference, assertion string) url.Values {
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {reference}, "subject_token_type": {api.TokenTypeRunReference},
		"client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}}
}

func (a *attacker) mintForm(token capability.Token, key, action, memo string) url.Values {
	params := map[string]any{"table": "entries", "values": map[string]any{"memo": memo, "cents": 1}}
	if action == "row.delete" {
		params = map[string]any{"table": "entries", "key": map[string]any{"id": 1}}
	}
	text, _ := json.Marshal(params) // maps of strings and numbers
	details, _ := json.Marshal([]api.Detail{{Type: api.DetailTypeEffect, Actions: []string{action}, Locations: []string{a.GuardURI()}, Identifier: "table:entries", Parameters: text}})
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {token.Reveal()}, "subject_token_type": {api.TokenTypeAccess},
		"resource": {a.GuardURI()}, "authorization_details": {string(details)}, "effect_key": {key}}
}

func (h *hold) mint(ctx context.Context, form url.Values) (out api.TokenResponse, err error) {
	return out, h.client.PostForm(ctx, api.PathToken, form, &out)
}

// give settles a run, so that the next one can come.
func (h *hold) give(ctx context.Context) error {
	return h.client.JSON(ctx, http.MethodPost, api.PathSettleRun, h.token, api.SettleRunRequest{Result: "failed"}, nil)
}

// refused is the code of a refusal. No refusal at all is an attack that worked: an empty code.
func refused(err error) (api.Code, error) {
	var r *api.Refusal
	if err == nil || errors.As(err, &r) {
		if r == nil {
			return "", nil
		}
		return r.Code, nil
	}
	return "", err
}

func (a *attacker) neverGranted(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	_, err = h.mint(ctx, a.mintForm(h.token, "steal", "row.delete", ""))
	return then(refused(err))(h.give(ctx))
}

// then keeps a code when what came after it went well.
func then(code api.Code, err error) func(error) (api.Code, error) {
	return func(after error) (api.Code, error) { return code, errors.Join(err, after) }
}

// forgedWorkload signs an assertion in the issuer's name with a key of the attacker's own.
func (a *attacker) forgedWorkload(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	genuine, err := a.assertion("probe")
	if err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	signed := genuine[:strings.LastIndex(genuine, ".")]
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", err
	}
	sig := append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	k, err := capability.GenerateKey()
	if err != nil {
		return "", err
	}
	err = a.client(k).PostForm(ctx, api.PathToken, claimForm(h.reference, signed+"."+base64.RawURLEncoding.EncodeToString(sig)), nil)
	return then(refused(err))(h.give(ctx))
}

// stolenBearer replays each bearer value with a key that does not own it. One that were accepted would leave the code empty.
func (a *attacker) stolenBearer(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	thief, err := capability.GenerateKey()
	if err != nil {
		return "", err
	}
	assertion, err := a.assertion("probe")
	if err != nil {
		return "", err
	}
	foreign, err := a.assertion("guard-2")
	if err != nil {
		return "", err
	}
	envelope, err := os.ReadFile(a.path("people", "member"))
	if err != nil {
		return "", err
	}
	attempts := []struct {
		value string
		try   func() error
	}{
		{"assertion", func() error {
			return a.client(thief).PostForm(ctx, api.PathToken, claimForm(h.reference, assertion), nil)
		}},
		{"reference", func() error {
			return a.client(thief).PostForm(ctx, api.PathToken, claimForm(h.reference, foreign), nil)
		}},
		{"capability", func() error {
			return a.client(thief).JSON(ctx, http.MethodPost, api.PathRenew, h.token, api.RenewRequest{}, nil)
		}},
		{"envelope", func() error { return a.asThief(ctx, thief, strings.TrimSpace(string(envelope))) }},
	}
	var first api.Code
	for _, one := range attempts {
		code, err := refused(one.try())
		if err != nil || code == "" {
			return "", errors.Join(err, fmt.Errorf("a stolen %s was not refused", one.value))
		}
		if first == "" {
			first = code
		}
		a.say("        a stolen %s with another key: %s.", one.value, code)
	}
	return first, h.give(ctx)
}

// asThief lists a member's tasks with the member's envelope and another key.
func (a *attacker) asThief(ctx context.Context, thief *capability.Key, envelope string) error {
	nonce := ""
	for range 2 {
		proof, err := capability.NewProof(thief, capability.ProofParams{Method: http.MethodGet, URL: a.Origin() + api.PathTasks, Nonce: nonce,
			AccessToken: capability.Token(envelope), Now: time.Now()})
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.Origin()+api.PathTasks, nil)
		if err != nil {
			return err
		}
		r.Header.Set(api.HeaderEnvelope, envelope)
		r.Header.Set(api.HeaderProof, proof)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		var p api.Problem
		err = json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 1<<16)).Decode(&p)
		_ = answer.Body.Close() // read to its end above
		nonce = answer.Header.Get(api.HeaderNonce)
		switch {
		case answer.StatusCode < http.StatusMultipleChoices:
			return nil
		case err != nil:
			return err
		case p.Code != api.UseDPoPNonce:
			return api.Refuse(p.Code)
		}
	}
	return errors.New("the authority asked for a nonce twice")
}

// redelivered claims a run that is held, and one that has ended, with the message's reference.
func (a *attacker) redelivered(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	_, err = a.claim(ctx, h.reference, "probe-2")
	held, err := refused(err)
	if err != nil || held == "" {
		return "", errors.Join(err, errors.New("a held run was claimed again"))
	}
	a.say("        a run that is held: %s.", held)
	if err := h.give(ctx); err != nil {
		return "", err
	}
	_, err = a.claim(ctx, h.reference, "probe-2")
	return refused(err)
}

func (a *attacker) replayedProof(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	proof, err := capability.NewProof(h.client.Key, capability.ProofParams{Method: http.MethodPost, URL: a.Origin() + api.PathRenew, Nonce: h.client.Nonce(), AccessToken: h.token, Now: time.Now()})
	if err != nil {
		return "", err
	}
	var code api.Code
	for range 2 {
		if code, err = a.renewWith(ctx, h.token, proof); err != nil {
			return "", err
		}
	}
	return then(code, nil)(h.give(ctx))
}

func (a *attacker) renewWith(ctx context.Context, token capability.Token, proof string) (api.Code, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.Origin()+api.PathRenew, strings.NewReader("{}"))
	if err != nil {
		return "", err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	r.Header.Set(api.HeaderProof, proof)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end below
	var p api.Problem
	if err := json.NewDecoder(http.MaxBytesReader(nil, answer.Body, 1<<16)).Decode(&p); err != nil {
		return "", err
	}
	return p.Code, nil
}

// expiredLease mints in time, lets the lease run out and then goes to the guard.
func (a *attacker) expiredLease(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	form := a.mintForm(h.token, "late", "row.append", "too late")
	minted, err := h.mint(ctx, form)
	if err != nil {
		return "", err
	}
	lease := time.NewTimer(a.lease + 500*time.Millisecond)
	defer lease.Stop()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-lease.C:
	}
	guard := &dpopclient.Client{Key: h.client.Key, BaseURL: a.GuardURI(), Timeout: 20 * time.Second}
	guard.SetNonce(minted.GuardNonce)
	err = guard.JSON(ctx, http.MethodPost, "/operations/row.append", capability.Token(minted.AccessToken),
		map[string]any{"resource": "table:entries", "parameters": json.RawMessage(`{"table":"entries","values":{"memo":"too late","cents":1}}`)}, nil)
	return refused(err)
}

// ambiguousReplayed plays a guard that cannot tell what happened, and asks for the same effect in the next run.
func (a *attacker) ambiguousReplayed(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	minted, err := h.mint(ctx, a.mintForm(h.token, "unsure", "row.append", "did it happen?"))
	if err != nil {
		return "", err
	}
	if err := a.loseTrack(ctx, h, minted); err != nil {
		return "", err
	}
	a.say("        an effect was admitted and its guard lost track of it: ambiguous, and its run is over.")
	h, err = a.next(ctx)
	if err != nil {
		return "", err
	}
	_, err = h.mint(ctx, a.mintForm(h.token, "again", "row.append", "did it happen?"))
	return then(refused(err))(h.give(ctx))
}

// loseTrack is another pod of the ledger guard, which admits an effect and then can prove nothing.
func (a *attacker) loseTrack(ctx context.Context, h *hold, minted api.TokenResponse) error {
	key, err := capability.GenerateKey()
	if err != nil {
		return err
	}
	pod := &dpopclient.Component{Client: a.client(key), Name: "ledger", Assertion: func(context.Context) (string, error) { return a.assertion("guard-2") }}
	digest, _, err := capability.ParamsDigest(json.RawMessage(`{"table":"entries","values":{"memo":"did it happen?","cents":1}}`))
	if err != nil {
		return err
	}
	guard, err := url.Parse(a.GuardURI())
	if err != nil {
		return err
	}
	proof, err := capability.NewProof(h.client.Key, capability.ProofParams{Method: http.MethodPost, URL: a.GuardURI() + "/operations/row.append", Nonce: minted.GuardNonce,
		AccessToken: capability.Token(minted.AccessToken), Now: time.Now()})
	if err != nil {
		return err
	}
	attempt := make([]byte, 16)
	_, _ = rand.Read(attempt) // never fails (crypto/rand)
	text := base64.RawURLEncoding.EncodeToString(attempt)
	ask := api.AdmitRequest{Attempt: text, Capability: minted.AccessToken, Proof: proof, Method: http.MethodPost, Path: guard.Path + "/operations/row.append",
		Effect: api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.append"}, Locations: []string{a.GuardURI()}, Identifier: "table:entries",
			ParamsSHA256: base64.RawURLEncoding.EncodeToString(digest[:])}}
	if err := pod.JSON(ctx, http.MethodPost, api.PathAdmit, ask, nil); err != nil {
		return err
	}
	return pod.JSON(ctx, http.MethodPost, api.PathSettle, api.SettleEffectRequest{Effect: minted.Effect, Attempt: text, Outcome: api.Ambiguous}, nil)
}

// staleRevision goes on under a capability whose task has a new revision.
func (a *attacker) staleRevision(ctx context.Context) (api.Code, error) {
	h, err := a.next(ctx)
	if err != nil {
		return "", err
	}
	if err := a.write("probe-2.yaml", a.Stack.task("probe", "probe", "Probe the house differently", 2)); err != nil {
		return "", err
	}
	if err := a.apply(ctx, "probe-2.yaml"); err != nil {
		return "", err
	}
	_, err = h.mint(ctx, a.mintForm(h.token, "stale", "row.append", "by the old revision"))
	return refused(err)
}

// partialPlatform kills the guard and asks for new work.
func (a *attacker) partialPlatform(ctx context.Context) (api.Code, error) {
	a.children["guard"].kill()
	a.say("        the guard was killed; its last good report is still there.")
	err := until(ctx, 20*time.Second, "a closed gate", func() (bool, error) {
		d, err := a.decision(ctx)
		return err == nil && !d.Open, err
	})
	if err != nil {
		return "", err
	}
	o, err := a.Offer(ctx)
	if err != nil {
		return "", err
	}
	_, err = a.as(ctx, "member", "offer", "accept", o.Offer, "--digest", o.Digest)
	if err == nil {
		return "", nil
	}
	if !strings.Contains(err.Error(), string(api.AdmissionClosed)) {
		return "", err
	}
	return api.AdmissionClosed, nil
}

func firstTask(list string) (string, error) {
	var page api.Page[api.Task]
	err := json.Unmarshal([]byte(list), &page)
	i := slices.IndexFunc(page.Items, func(k api.Task) bool { return k.Consented })
	if err != nil || i < 0 {
		return "", errors.Join(err, errors.New("the member has no task with a consent"))
	}
	return page.Items[i].Task, nil
}
