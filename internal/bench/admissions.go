package bench

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// Before an admission a run must be claimed and its effect minted. What is prepared
// lives no longer than a lease and a capability, so it is prepared in rounds. The
// claims of a round are measured too: what else the machine does falls on both.
const (
	inRound    = 1000
	sureRounds = 6 // for which there are always runs; there are as many more as S2 left some

	entries = "table:entries" // what the effects are about
	act     = "row.append"
)

// S5 is guards' admissions over HTTP, 64 in flight, against the durable claims that prepared them.
type S5 struct {
	Admissions float64  `json:"admissions_per_s"`
	Claims     float64  `json:"claims_per_s"`
	Ratio      float64  `json:"ratio"`
	Goal       float64  `json:"goal"`
	ServerUS   *float64 `json:"server_cpu_us"` // of one admission; null where the system does not tell a process's CPU
}

// admissions is S5.
func (b *bench) admissions(ctx context.Context) error {
	g, err := b.newGuard()
	if err != nil {
		return err
	}
	var r rounds
	for r.admitted.elapsed < b.each && len(b.runs) >= b.reserved+inRound {
		if err := b.round(ctx, g, &r); err != nil {
			return err
		}
	}
	if r.admitted.done() == 0 {
		return b.judge()
	}
	b.result.S5 = r.result()
	b.result.S5.print(b.out)
	return nil
}

// rounds are what was measured so far.
type rounds struct {
	claimed, admitted tally
	used              time.Duration // of the server's CPU by what was admitted
	unknown           error         // why it is not known
}

func (r rounds) result() S5 {
	s := S5{Admissions: r.admitted.perSecond(), Claims: r.claimed.perSecond(), Goal: goalS5}
	s.Ratio = s.Admissions / s.Claims
	if r.unknown == nil {
		each := micro(r.used) / float64(r.admitted.done())
		s.ServerUS = &each
	}
	return s
}

// round claims runs, mints an effect in each and admits them. The runs are over when it returns.
func (b *bench) round(ctx context.Context, g *guard, r *rounds) error {
	requests, err := b.admitting(ctx, g, r)
	if err == nil {
		err = b.ready(ctx)
	}
	if err != nil {
		return err
	}
	before, unknown := cpuOf(b.PID)
	t, err := b.drive(ctx, &run{requests: requests})
	after, stillUnknown := cpuOf(b.PID)
	r.used += after - before
	r.unknown = errors.Join(r.unknown, unknown, stillUnknown)
	r.admitted.add(t)
	return errors.Join(err, finish(ctx, b.store))
}

// promise is an effect whose capability its worker has, and the worker's key.
type promise struct {
	key    *capability.Key
	answer api.TokenResponse
}

// admitting prepares what one round admits: it claims runs and mints an effect in each.
func (b *bench) admitting(ctx context.Context, g *guard, r *rounds) ([][]byte, error) {
	requests, keys, err := b.target.claims(ctx, b.runs[:inRound])
	if err != nil {
		return nil, err
	}
	b.runs = b.runs[inRound:]
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	t, held, err := b.granted(ctx, requests, keys)
	if err != nil {
		return nil, err
	}
	r.claimed.add(t)
	if requests, keys, err = b.target.mints(ctx, g, held); err != nil {
		return nil, err
	}
	_, minted, err := b.granted(ctx, requests, keys)
	if err != nil {
		return nil, err
	}
	return b.target.admissions(ctx, g, minted)
}

// granted sends requests for tokens and returns what was given, to which key.
func (b *bench) granted(ctx context.Context, requests [][]byte, keys []*capability.Key) (tally, []promise, error) {
	t, err := b.drive(ctx, &run{requests: requests, keep: true})
	if err != nil {
		return t, nil, err
	}
	var out []promise
	for i, text := range t.answers {
		if text == nil {
			continue
		}
		p := promise{key: keys[i]}
		if err := json.Unmarshal(text, &p.answer); err != nil {
			return t, nil, err
		}
		out = append(out, p)
	}
	return t, out, nil
}

// mints makes a request for one effect in each run that is held.
func (t target) mints(ctx context.Context, g *guard, held []promise) ([][]byte, []*capability.Key, error) {
	keys := make([]*capability.Key, len(held))
	out, err := t.each(ctx, len(held), func(i int, nonce string, now time.Time) ([]byte, error) {
		keys[i] = held[i].key
		details, err := json.Marshal([]api.Detail{{Type: api.DetailTypeEffect, Actions: []string{act}, Locations: []string{g.uri.String()}, Identifier: entries,
			Parameters: json.RawMessage(fmt.Sprintf(`{"table":"entries","values":{"memo":"entry %d","cents":1250}}`, i))}})
		if err != nil {
			return nil, err
		}
		return t.form(keys[i], nonce, now, url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {held[i].answer.AccessToken}, "subject_token_type": {api.TokenTypeAccess},
			"resource": {g.uri.String()}, "authorization_details": {string(details)}, "effect_key": {"entry"}})
	})
	return out, keys, err
}

// guard is an instance of the registered guard that applies nothing.
type guard struct {
	*dpopclient.Component
	uri *url.URL
}

func (b *bench) newGuard() (*guard, error) {
	uri, err := url.Parse(b.stack.GuardURI())
	if err != nil {
		return nil, err
	}
	key, err := capability.GenerateKey()
	if err != nil {
		return nil, err
	}
	assertion := func(context.Context) (string, error) { return b.target.assertion("guards", "ledger", time.Now()) }
	return &guard{uri: uri, Component: &dpopclient.Component{Client: &dpopclient.Client{Key: key, BaseURL: b.target.origin.String()}, Name: "ledger", Assertion: assertion}}, nil
}

// admissions makes the guard's question for each effect, with a proof of its worker and one of the guard.
func (t target) admissions(ctx context.Context, g *guard, minted []promise) ([][]byte, error) {
	token, err := g.Token(ctx)
	if err != nil {
		return nil, err
	}
	return t.each(ctx, len(minted), func(i int, nonce string, now time.Time) ([]byte, error) {
		body, err := g.asked(minted[i], now)
		if err != nil {
			return nil, err
		}
		proof, err := capability.NewProof(g.Client.Key, capability.ProofParams{Method: http.MethodPost, URL: t.origin.String() + api.PathAdmit, Nonce: nonce, AccessToken: token, Now: now})
		return t.post(api.PathAdmit, "application/json", fmt.Sprintf("Authorization: DPoP %s\r\n%s: %s\r\n", token.Reveal(), api.HeaderProof, proof), body), err
	})
}

// asked is what a worker brings to the guard, and the guard to the authority.
func (g *guard) asked(p promise, now time.Time) ([]byte, error) {
	if len(p.answer.Details) != 1 {
		return nil, errors.New("a capability came without its effect")
	}
	at := g.uri.JoinPath("operations", act)
	proof, err := capability.NewProof(p.key, capability.ProofParams{Method: http.MethodPost, URL: at.String(), Nonce: p.answer.GuardNonce,
		AccessToken: capability.Token(p.answer.AccessToken), Now: now})
	if err != nil {
		return nil, err
	}
	var attempt [16]byte
	_, _ = rand.Read(attempt[:]) // never fails (crypto/rand)
	return json.Marshal(api.AdmitRequest{Attempt: base64.RawURLEncoding.EncodeToString(attempt[:]), Capability: p.answer.AccessToken, Proof: proof,
		Method: http.MethodPost, Path: at.EscapedPath(), Effect: p.answer.Details[0]})
}
