package rotation

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
)

// load is workers that claim, renew, mint and have effects admitted through any
// of the replicas, and a relying party that verifies what they are given.
type load struct {
	s      *stage
	client *http.Client
	party  *party
	runs   []string
	guard  *caller
	paced  chan struct{} // one for each claim

	claims, challenges, busy atomic.Int64
	mu                       sync.Mutex
	refused                  []string // what was valid
}

func newLoad(s *stage, workers int) *load {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	client := &http.Client{Timeout: 20 * time.Second, Transport: transport}
	s.T.Cleanup(transport.CloseIdleConnections)
	l := &load{s: s, client: client, runs: s.runs(workers), paced: make(chan struct{})}
	l.party = newParty(s.replicas[1].url, client)
	l.guard = l.caller()
	return l
}

// run drives one worker for each run, perSecond claims in all, until ctx ends.
func (l *load) run(ctx context.Context, perSecond int) {
	var all sync.WaitGroup
	all.Go(func() {
		for tick := time.NewTicker(time.Second / time.Duration(perSecond)); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			select {
			case l.paced <- struct{}{}:
			case <-ctx.Done():
			}
		}
	})
	for _, run := range l.runs {
		all.Go(func() { l.work(ctx, run) })
	}
	all.Wait()
}

// work claims the same run again and again, which gives the same fence, and uses
// the capability of the claim before.
func (l *load) work(ctx context.Context, run string) {
	w := l.caller()
	var held api.TokenResponse
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-l.paced:
		}
		claimed, ok := w.token(authoritytest.ClaimForm(run, l.s.Assertion(authoritytest.WorkerClaim)))
		if !ok {
			continue
		}
		l.claims.Add(1)
		if w.lasts() {
			w.bearing(api.PathRenew, api.RenewRequest{}, &held)
		}
		w.hold(claimed)
		if n%4 == 0 {
			l.effect(w, fmt.Sprint(n))
		}
	}
}

// effect mints one, has the relying party verify it as a guard does, and admits and settles it.
func (l *load) effect(w *caller, value string) {
	minted, ok := w.token(authoritytest.MintForm(w.capability, "k"+value, value))
	if !ok || !l.party.verifies(l, minted) {
		return
	}
	l.guard.mu.Lock()
	defer l.guard.mu.Unlock()
	if !l.guard.lasts() {
		g, ok := l.guard.token(authoritytest.ComponentForm(authoritytest.GuardName, l.s.Assertion(authoritytest.GuardClaim)))
		if !ok {
			return
		}
		l.guard.hold(g)
	}
	attempt := authoritytest.NewAttempt()
	ask := l.s.Ask(w.key, minted, value, attempt)
	l.guard.brought = expiry(minted)
	defer func() { l.guard.brought = time.Time{} }()
	var admitted api.Admission
	if l.guard.bearing(api.PathAdmit, ask, &admitted) {
		l.guard.bearing(api.PathSettle, api.SettleEffectRequest{Effect: minted.Effect, Attempt: attempt, Outcome: "committed"}, nil)
	}
}

// caller is one key with what it was given.
type caller struct {
	l          *load
	mu         sync.Mutex // of a guard that many use
	key        *capability.Key
	capability capability.Token
	until      time.Time
	brought    time.Time // when the capability that somebody else brought ends, if there is one
	nonce      string
}

func (l *load) caller() *caller { return &caller{l: l, key: l.s.Key(), nonce: l.s.Nonce()} }

func (c *caller) hold(t api.TokenResponse) {
	c.capability, c.until = capability.Token(t.AccessToken), expiry(t)
}

// lasts tells that what the caller has is good now.
func (c *caller) lasts() bool {
	now := time.Now()
	return now.Before(c.until) && (c.brought.IsZero() || now.Before(c.brought))
}

// expiry is read from the capability itself, unverified.
func expiry(t api.TokenResponse) time.Time {
	var h capability.Header
	if parts := strings.Split(t.AccessToken, "."); len(parts) == 3 {
		_ = json.Unmarshal(authoritytest.Raw(parts[1]), &h)
	}
	return time.Unix(h.Expires, 0)
}

func (c *caller) token(form url.Values) (out api.TokenResponse, ok bool) {
	return out, c.send(api.PathToken, "application/x-www-form-urlencoded", []byte(form.Encode()), "", &out)
}

func (c *caller) bearing(path string, in, out any) bool {
	body, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	return c.send(path, "application/json", body, c.capability, out)
}

// send asks any replica, answers a challenge once, as clients do, and a replica
// that is busy a few times. Whatever else is refused is remembered, unless the
// capability has ended meanwhile.
func (c *caller) send(path, kind string, body []byte, token capability.Token, out any) bool {
	for range 5 {
		status, answer, nonce, err := c.ask(path, kind, body, token)
		code := ""
		if err == nil && status >= 300 {
			var p api.Problem
			_ = json.Unmarshal(answer, &p)
			code = string(p.Code)
		}
		if nonce != "" {
			c.nonce = nonce
		}
		switch {
		case err != nil, code == string(api.Unavailable), code == string(api.OutcomeUnknown), code == string(api.AdmissionClosed): // the replica's copy of the decision is too old
			c.l.busy.Add(1)
		case code == string(api.UseDPoPNonce):
			c.l.challenges.Add(1)
		case status < 300:
			return out == nil || json.Unmarshal(answer, out) == nil
		case !c.lasts() && path != api.PathToken:
			return false
		default:
			c.l.refuse("%s: %d %s", path, status, answer)
			return false
		}
	}
	return false
}

func (c *caller) ask(path, kind string, body []byte, token capability.Token) (status int, answer []byte, nonce string, err error) {
	proof, err := capability.NewProof(c.key, capability.ProofParams{Method: "POST", URL: c.l.s.URL + path, Nonce: c.nonce, AccessToken: token, Now: time.Now()})
	if err != nil {
		return 0, nil, "", err
	}
	r, err := http.NewRequest(http.MethodPost, c.l.s.replicas[rand.IntN(len(c.l.s.replicas))].url+path, bytes.NewReader(body)) //nolint:noctx // the client has a time-out
	if err != nil {
		return 0, nil, "", err
	}
	r.Header.Set("Content-Type", kind)
	r.Header.Set(api.HeaderProof, proof)
	if token != "" {
		r.Header.Set("Authorization", "DPoP "+token.Reveal())
	}
	a, err := c.l.client.Do(r)
	if err != nil {
		return 0, nil, "", err
	}
	defer a.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(a.Body, 1<<20))
	return a.StatusCode, answer, a.Header.Get("DPoP-Nonce"), err
}

func (l *load) refuse(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused = append(l.refused, fmt.Sprintf(format, args...))
}

func (l *load) refusals() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.refused...)
}

// party is a relying party, which keeps the published keys for as long as it may.
type party struct {
	keys   *issuerkeys.Set
	failed atomic.Int64 // readings that did not arrive: not the rotation's fault
}

func newParty(origin string, client *http.Client) *party {
	p := &party{}
	counted := *client
	counted.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		a, err := client.Transport.RoundTrip(r)
		if err != nil || a.StatusCode != http.StatusOK {
			p.failed.Add(1)
		}
		return a, err
	})
	p.keys = issuerkeys.New(origin+api.PathJWKS, &counted, time.Now)
	return p
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Key makes it a capability.KeySet.
func (p *party) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	k, ok, err := p.keys.Key(context.Background(), kid)
	return k.Public, k.Generation, ok && err == nil
}

func (p *party) verifies(l *load, t api.TokenResponse) bool {
	failed := p.failed.Load()
	_, err := capability.VerifyEffect(capability.Token(t.AccessToken), p, capability.Expectation{Issuer: l.s.URL, Audience: authoritytest.GuardURI, Now: time.Now(), Leeway: 30 * time.Second})
	if err != nil && p.failed.Load() == failed {
		l.refuse("a relying party: %v", err)
	}
	return err == nil
}

// begin runs the load until the test has seen enough.
func (l *load) begin(t testing.TB, perSecond int) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(ctx, perSecond)
	}()
	end = sync.OnceFunc(func() {
		stop()
		<-done
	})
	t.Cleanup(end)
	require.Eventually(t, func() bool { return l.claims.Load() > 10 }, within, 10*time.Millisecond, "%s", &l.refused)
	return end
}
