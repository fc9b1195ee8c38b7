// Package authoritytest is an authority in memory, for tests of guards: small, strict, and open to faults between its
// answers and those who wait for them.
package authoritytest

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Assertion is the only workload assertion that the authority takes.
const Assertion = "projected-assertion"

// Names of the authority and of the one guard that is registered.
const (
	Issuer    = "https://authority.example"
	GuardURI  = "https://guard.example/ledger"
	GuardName = "ledger"
)

const (
	generation = 3
	nonceLife  = 120 * time.Second
)

// Effect is what the authority knows about a minted effect.
type Effect struct {
	State      string // as in api.EffectOutcome
	Attempt    string
	Asked      []string // the attempts that asked for it, each once
	Spent      *int64
	Evidence   *api.Evidence
	Holder     capability.Thumbprint
	Digest     [32]byte
	Capability [32]byte // digest of the one that is alive
	Fence      int64
	Lane, Run  string
	Number     int64
	ApplyUntil time.Time
	Late       string // outcome that came as late evidence
}

// Authority is an http.RoundTripper and an http.Handler. Its exported fields may be changed while Lock is held.
type Authority struct {
	sync.Mutex

	Key          *capability.Key // the cluster's
	Issuer       string          // an origin
	Verdicts     map[string]api.Code
	ApplyWithin  time.Duration
	SettleWithin time.Duration
	Effects      map[string]*Effect
	Reports      []api.Report
	Calls        map[string]int
	Latest       int64          // boot of the guard's instance
	Healthy      map[int64]bool // by boot: what it last said of itself
	Replicas     bool           // each key is an instance of its own, so that no boot supersedes another
	Wrong        []string       // what a guard must never say, and said
	Intercept    func(ctx context.Context, path string, answer func() *http.Response) (*http.Response, error)

	boots   map[capability.Thumbprint]int64
	revoked map[string]bool // component capabilities, by jti
	issued  map[string]bool
	nonces  map[string]nonce
	proofs  map[[32]byte]bool
	numbers int64
	reports map[int64]int64 // highest sequence by boot
	changed chan struct{}   // closed when a call has been served
}

type nonce struct {
	audience string
	until    time.Time
}

// New makes an authority with one registered guard.
func New() *Authority {
	key, err := capability.GenerateKey()
	if err != nil {
		panic(err)
	}
	return &Authority{
		Key: key, Issuer: Issuer, Verdicts: map[string]api.Code{}, ApplyWithin: time.Minute, SettleWithin: 30 * time.Second,
		Effects: map[string]*Effect{}, Calls: map[string]int{}, Healthy: map[int64]bool{}, boots: map[capability.Thumbprint]int64{}, revoked: map[string]bool{}, issued: map[string]bool{},
		nonces: map[string]nonce{}, proofs: map[[32]byte]bool{}, reports: map[int64]int64{}, changed: make(chan struct{}),
	}
}

// Client reaches the authority without a network.
func (a *Authority) Client() *http.Client { return &http.Client{Transport: a} }

// RoundTrip serves a request in the caller's goroutine. Intercept may lose the question, the answer, or hold either.
func (a *Authority) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	answer := func() *http.Response {
		recorder := httptest.NewRecorder()
		a.ServeHTTP(recorder, r)
		return recorder.Result()
	}
	a.Lock()
	intercept := a.Intercept
	a.Unlock()
	if intercept != nil {
		return intercept(r.Context(), r.URL.Path, answer)
	}
	return answer(), nil
}

// Do changes the authority under its lock.
func (a *Authority) Do(change func(a *Authority)) {
	a.Lock()
	defer a.Unlock()
	change(a)
}

// Effect is a copy of what is known about an effect.
func (a *Authority) Effect(ref string) Effect {
	a.Lock()
	defer a.Unlock()
	a.expire()
	if e := a.Effects[ref]; e != nil {
		return *e
	}
	return Effect{}
}

// Count is how often a path was called.
func (a *Authority) Count(path string) int {
	a.Lock()
	defer a.Unlock()
	return a.Calls[path]
}

// Await returns nil when what is asked for has come true, which is asked for after each call that was served. It is asked
// with the lock held.
func (a *Authority) Await(ctx context.Context, isTrue func() bool) error {
	for {
		a.Lock()
		a.expire()
		done, changed := isTrue(), a.changed
		a.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tell wakes those who wait in Await.
func (a *Authority) tell() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// Ref makes an opaque reference.
func Ref() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Nonce makes a nonce for an audience: the issuer or the guard's URI.
func (a *Authority) Nonce(audience string) string {
	a.Lock()
	defer a.Unlock()
	return a.nonce(audience)
}

func (a *Authority) nonce(audience string) string {
	n := "n." + Ref()
	a.nonces[n] = nonce{audience, time.Now().Add(nonceLife)}
	return n
}

func (a *Authority) isFresh(n, audience string) bool {
	known, ok := a.nonces[n]
	return ok && known.audience == audience && time.Now().Before(known.until)
}

// Forget makes all nonces stale, as a failover would.
func (a *Authority) Forget() {
	a.Lock()
	defer a.Unlock()
	clear(a.nonces)
}

// Revoke makes the guard's own capabilities worthless, as a new incarnation would. It can get others.
func (a *Authority) Revoke() {
	a.Lock()
	defer a.Unlock()
	maps.Copy(a.revoked, a.issued)
}

// Mint makes an effect and its capability, bound to holder. Each change may spoil the claims before they are signed.
func (a *Authority) Mint(holder capability.Thumbprint, e capability.Effect, lane string, fence int64, changes ...func(*capability.EffectClaims)) (capability.Token, string) {
	ref, run, now := Ref(), Ref(), time.Now().Unix()
	claims := capability.EffectClaims{
		Header: capability.Header{Issuer: a.Issuer, Audience: GuardURI, Subject: lane, ClientID: "product", IssuedAt: now, Expires: now + 60, ID: Ref(),
			Confirmation: capability.Confirmation{JKT: holder}, Generation: generation},
		Binding:   capability.Binding{Run: run, Lane: lane, Fence: fence, Deadline: now + 600, ActivationEpoch: 1, ReadinessEpoch: 1, Incarnation: 1},
		EffectRef: ref, Details: []capability.Detail{capability.DetailOf(e)},
	}
	for _, change := range changes {
		change(&claims)
	}
	token, err := capability.SignEffect(a.Key, claims)
	if err != nil {
		panic(err)
	}
	digest, err := e.Digest()
	if err != nil {
		panic(err)
	}
	a.Lock()
	defer a.Unlock()
	a.Effects[claims.EffectRef] = &Effect{State: "minted", Holder: holder, Digest: digest, Capability: claims.Digest(), Fence: fence, Lane: lane, Run: run}
	return token, claims.EffectRef
}

// JWKS is the authority's key set.
func (a *Authority) JWKS() []byte {
	point, _ := a.Key.Public().Bytes()
	set := map[string]any{"keys": []map[string]any{{
		"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": a.Key.KeyID(), "generation": generation,
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}}
	b, _ := json.Marshal(set)
	return b
}

type ownKey struct{ a *Authority }

func (k ownKey) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	return k.a.Key.Public(), generation, kid == k.a.Key.KeyID()
}
