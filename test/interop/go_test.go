package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker"
)

// proving is our Transport, which is all that x/oauth2 lacks, and what it was answered.
type proving struct {
	*http.Client

	mu       sync.Mutex
	stale    map[string]string // nonces that the next answer of an origin shall seem to bring
	statuses []int
}

const maxBody = 1 << 20

func newProving() (*proving, error) {
	key, err := worker.NewKey()
	p := &proving{stale: map[string]string{}}
	p.Client = &http.Client{Transport: &worker.Transport{Key: key, Base: p}, Timeout: 30 * time.Second}
	return p, err
}

// RoundTrip stands below our Transport.
func (p *proving) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = append(p.statuses, answer.StatusCode)
	if at := r.URL.Scheme + "://" + r.URL.Host; p.stale[at] != "" {
		answer.Header.Set(api.HeaderNonce, p.stale[at])
		delete(p.stale, at)
	}
	return answer, nil
}

// forget begins to count anew what was answered.
func (p *proving) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = nil
}

// age lets our Transport learn nonces of yesterday.
func (p *proving) age(ctx context.Context, e environment) error {
	guard, err := url.Parse(e.Guard)
	if err != nil {
		return err
	}
	for at, nonce := range map[string]string{e.Issuer: e.StaleAuthority, guard.Scheme + "://" + guard.Host: e.StaleGuard} {
		p.mu.Lock()
		p.stale[at] = nonce
		p.mu.Unlock()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at+api.PathMetadata, nil)
		if err != nil {
			return err
		}
		a, err := p.Do(r)
		if err != nil {
			return err
		}
		if err := a.Body.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (p *proving) answered() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(p.statuses)
}

// gopher is a worker on golang.org/x/oauth2.
type gopher struct {
	e          environment
	me         *proving
	endpoint   string
	run, first *oauth2.Token
}

// goClient runs it in this process.
func goClient(_ *house, e environment) (all []outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	me, err := newProving()
	if err != nil {
		return nil
	}
	g := &gopher{e: e, me: me}
	for _, s := range []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{"discovery", g.discover}, {"component", g.component}, {"claim", g.claim}, {"renew", g.renew}, {"mint", g.mint}, {"guard", g.guard},
		{"rotation", g.rotation}, {"stale nonce", g.stale}, {"other key", g.otherKey}, {"settle", g.settle},
	} {
		note, err := s.do(ctx)
		if err != nil {
			note = err.Error()
		}
		if all = append(all, outcome{s.name, err == nil, note}); err != nil {
			return all
		}
	}
	return all
}

// token asks x/oauth2 for a token. Its style is fixed: it would try another one after any refusal.
func (g *gopher) token(ctx context.Context, by *proving, client string, form url.Values) (*oauth2.Token, error) {
	c := clientcredentials.Config{ClientID: client, TokenURL: g.endpoint, AuthStyle: oauth2.AuthStyleInParams, EndpointParams: form}
	t, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, by.Client))
	if err == nil && t.Type() != "DPoP" {
		return nil, fmt.Errorf("the type is %s", t.Type())
	}
	return t, err
}

// post calls a resource with x/oauth2's own transport.
func (g *gopher) post(ctx context.Context, by *proving, t *oauth2.Token, at string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	a, err := oauth2.NewClient(context.WithValue(ctx, oauth2.HTTPClient, by.Client), oauth2.StaticTokenSource(t)).Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close() //nolint:errcheck // read to its end below
	text, err := io.ReadAll(io.LimitReader(a.Body, maxBody))
	if err != nil || a.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%d %s", a.StatusCode, text))
	}
	return json.Unmarshal(text, out)
}

func (g *gopher) discover(ctx context.Context) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.e.Issuer+api.PathMetadata, nil)
	if err != nil {
		return "", err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer a.Body.Close() //nolint:errcheck // read to its end below
	var metadata struct {
		Issuer   string `json:"issuer"`
		Endpoint string `json:"token_endpoint"`
	}
	err = json.NewDecoder(io.LimitReader(a.Body, maxBody)).Decode(&metadata)
	if g.endpoint = metadata.Endpoint; err == nil && metadata.Issuer != g.e.Issuer {
		return "", fmt.Errorf("another issuer: %s", metadata.Issuer)
	}
	return "by net/http: x/oauth2 reads no metadata", err
}

func (g *gopher) component(ctx context.Context) (string, error) {
	by, err := newProving()
	if err != nil {
		return "", err
	}
	_, err = g.token(ctx, by, g.e.Product, url.Values{"client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {g.e.ComponentAssertion}})
	return "", err
}

func (g *gopher) claim(ctx context.Context) (_ string, err error) {
	g.run, err = g.token(ctx, g.me, g.e.Client, url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {g.e.Run}, "subject_token_type": {api.TokenTypeRunReference},
		"client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {g.e.WorkerAssertion}})
	return "by clientcredentials with another grant_type", err
}

func (g *gopher) renew(ctx context.Context) (string, error) {
	var renewed api.TokenResponse
	err := g.post(ctx, g.me, g.run, g.e.Issuer+api.PathRenew, struct{}{}, &renewed)
	g.run = &oauth2.Token{AccessToken: renewed.AccessToken, TokenType: renewed.TokenType}
	return "", err
}

func (g *gopher) parameters(step string) map[string]any {
	return map[string]any{"table": "entries", "values": map[string]any{"memo": step, "cents": 1250}}
}

func (g *gopher) minted(ctx context.Context, by *proving, step string) (*oauth2.Token, error) {
	details, err := json.Marshal([]map[string]any{{"type": api.DetailTypeEffect, "actions": []string{"row.append"}, "locations": []string{g.e.Guard},
		"identifier": "table:entries", "parameters": g.parameters(step)}})
	if err != nil {
		return nil, err
	}
	return g.token(ctx, by, g.e.Client, url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {g.run.AccessToken}, "subject_token_type": {api.TokenTypeAccess},
		"resource": {g.e.Guard}, "effect_key": {step}, "authorization_details": {string(details)}})
}

func (g *gopher) mint(ctx context.Context) (_ string, err error) {
	g.first, err = g.minted(ctx, g.me, "debit")
	return "", err
}

func (g *gopher) call(ctx context.Context, by *proving, t *oauth2.Token, step string) error {
	var answer struct{ Outcome string }
	err := g.post(ctx, by, t, g.e.Guard+"/operations/row.append", map[string]any{"resource": "table:entries", "parameters": g.parameters(step)}, &answer)
	if err == nil && answer.Outcome != api.Committed {
		return errors.New(answer.Outcome)
	}
	return err
}

func (g *gopher) guard(ctx context.Context) (string, error) {
	return "", g.call(ctx, g.me, g.first, "debit")
}

// effect is a mint and the call, and what both were answered.
func (g *gopher) effect(ctx context.Context, step, want string) error {
	g.me.forget()
	t, err := g.minted(ctx, g.me, step)
	if err != nil {
		return err
	}
	if err := g.call(ctx, g.me, t, step); err != nil {
		return err
	}
	if got := g.me.answered(); got != want {
		return fmt.Errorf("answered %s, not %s", got, want)
	}
	return nil
}

func (g *gopher) rotation(ctx context.Context) (string, error) {
	return "2 requests an effect", g.effect(ctx, "credit", "[200 200]")
}

func (g *gopher) stale(ctx context.Context) (string, error) {
	if err := g.me.age(ctx, g.e); err != nil {
		return "", err
	}
	return "", g.effect(ctx, "tax", "[400 200 401 200]")
}

func (g *gopher) otherKey(ctx context.Context) (string, error) {
	thief, err := newProving()
	if err != nil {
		return "", err
	}
	last, err := g.minted(ctx, g.me, "keyed")
	if err != nil {
		return "", err
	}
	_, stolen := g.minted(ctx, thief, "stolen")
	used := g.call(ctx, thief, last, "keyed")
	refused, ok := errors.AsType[*oauth2.RetrieveError](stolen)
	if !ok || refused.ErrorCode != string(api.InvalidToken) || used == nil || !strings.Contains(used.Error(), `"error":"invalid_token"`) {
		return "", fmt.Errorf("another key: %w, %w", stolen, used)
	}
	return "invalid_token, invalid_token", nil
}

func (g *gopher) settle(ctx context.Context) (string, error) {
	var receipt api.Receipt
	err := g.post(ctx, g.me, g.run, g.e.Issuer+api.PathSettleRun, api.SettleRunRequest{Result: "succeeded"}, &receipt)
	if err == nil && (receipt.State != "succeeded" || receipt.Committed != 3) {
		return "", fmt.Errorf("%+v", receipt)
	}
	return "", err
}
