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
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// proving adds a proof of a key to each request: all that x/oauth2 lacks. It remembers the nonce of each origin, and asks
// again once when a new one is wanted, which says that nothing happened.
type proving struct {
	key *capability.Key

	mu       sync.Mutex
	nonces   map[string]string // by origin
	statuses []int
}

const maxBody = 1 << 20

func newProving() (*proving, error) {
	key, err := capability.GenerateKey()
	return &proving{key: key, nonces: map[string]string{}}, err
}

func (p *proving) client() *http.Client { return &http.Client{Transport: p, Timeout: 30 * time.Second} }

// RoundTrip fixes the body first: the second request must say the same.
func (p *proving) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	_ = r.Body.Close() // read above
	answer, wanted, err := p.once(r, body)
	if err == nil && wanted {
		answer, _, err = p.once(r, body)
	}
	return answer, err
}

func (p *proving) once(r *http.Request, body []byte) (answer *http.Response, wanted bool, err error) {
	origin := r.URL.Scheme + "://" + r.URL.Host
	p.mu.Lock()
	nonce := p.nonces[origin]
	p.mu.Unlock()
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	proof, err := capability.NewProof(p.key, capability.ProofParams{Method: r.Method, URL: r.URL.String(), Nonce: nonce, AccessToken: capability.Token(token), Now: time.Now()})
	if err != nil {
		return nil, false, err
	}
	sent := r.Clone(r.Context())
	sent.Body, sent.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	sent.Header.Set(api.HeaderProof, proof)
	if answer, err = http.DefaultTransport.RoundTrip(sent); err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = append(p.statuses, answer.StatusCode)
	if fresh := answer.Header.Get(api.HeaderNonce); fresh != "" {
		p.nonces[origin] = fresh
	}
	wanted, err = wantsNonce(answer)
	return answer, wanted, err
}

// wantsNonce: RFC 9449 §8 at the token endpoint, §9 elsewhere. The body can be read again.
func wantsNonce(a *http.Response) (bool, error) {
	text, err := io.ReadAll(io.LimitReader(a.Body, maxBody))
	_ = a.Body.Close() // read above
	a.Body = io.NopCloser(bytes.NewReader(text))
	var refused struct{ Error string }
	switch {
	case a.StatusCode == http.StatusUnauthorized:
		return strings.HasPrefix(a.Header.Get("WWW-Authenticate"), `DPoP error="use_dpop_nonce"`), err
	case a.StatusCode == http.StatusBadRequest && json.Unmarshal(text, &refused) == nil:
		return refused.Error == string(api.UseDPoPNonce), err
	}
	return false, err
}

// forget begins to count anew what was answered.
func (p *proving) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses = nil
}

func (p *proving) age(e environment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	guard, _ := url.Parse(e.Guard)
	p.nonces[e.Issuer], p.nonces[guard.Scheme+"://"+guard.Host] = e.StaleAuthority, e.StaleGuard
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
	t, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, by.client()))
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
	a, err := oauth2.NewClient(context.WithValue(ctx, oauth2.HTTPClient, by.client()), oauth2.StaticTokenSource(t)).Do(r)
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
	g.me.age(g.e)
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
