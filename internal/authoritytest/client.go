package authoritytest

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/openapi/openapitest"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

type safeBuffer struct {
	lock sync.Mutex
	b    bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.b.String()
}

func fill(b []byte) { _, _ = rand.Read(b) }

// Text is a reference or digest as it stands on the wire.
func Text(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// Raw is the bytes of a reference.
func Raw(reference string) []byte {
	b, err := base64.RawURLEncoding.DecodeString(reference)
	if err != nil {
		panic(err)
	}
	return b
}

// Answer is what came back.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Problem is the refusal in an answer.
func (a Answer) Problem() (p api.Problem) {
	_ = json.Unmarshal(a.Body, &p)
	return p
}

// described is the authority's description, which every answer of every test must keep to.
var described = sync.OnceValue(func() *openapitest.Checker {
	c, err := openapitest.Read(server.New(&authority.Authority{}, nil, nil).Description())
	if err != nil {
		panic(err)
	}
	return c
})

// Send sends one request exactly as given, and holds the answer against the description.
func (h *House) Send(r *http.Request) Answer {
	h.T.Helper()
	client := &http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	require.NoError(h.T, err)
	defer answer.Body.Close() //nolint:errcheck // read to its end below
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	require.NoError(h.T, err)
	if answer.StatusCode >= http.StatusBadRequest {
		_, _ = h.errors.Write(body)
		_ = answer.Header.Write(&h.errors)
	}
	assert.NoError(h.T, described().Check(r, answer.StatusCode, answer.Header, body))
	return Answer{answer.StatusCode, answer.Header, body}
}

// Nonce is a fresh nonce of the authority.
func (h *House) Nonce() string { return h.Authority.Nonce() }

// Proof makes a proof of a key for a request to the authority.
func (h *House) Proof(k *capability.Key, method, path string, token capability.Token) string {
	h.T.Helper()
	p, err := capability.NewProof(k, capability.ProofParams{Method: method, URL: h.URL + path, Nonce: h.Nonce(), AccessToken: token, Now: time.Now()})
	require.NoError(h.T, err)
	return p
}

// Request makes a request to the authority.
func (h *House) Request(method, path, contentType string, body []byte) *http.Request {
	h.T.Helper()
	r, err := http.NewRequest(method, h.URL+path, bytes.NewReader(body)) //nolint:noctx // the client has a time-out
	require.NoError(h.T, err)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return r
}

// Form is a request to the token endpoint with a proof of k.
func (h *House) Form(k *capability.Key, form url.Values) *http.Request {
	h.T.Helper()
	r := h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte(form.Encode()))
	r.Header.Set(api.HeaderProof, h.Proof(k, "POST", api.PathToken, ""))
	return r
}

// Bearing is a /v1 request with a capability and a proof of k.
func (h *House) Bearing(k *capability.Key, token capability.Token, method, path string, in any) *http.Request {
	h.T.Helper()
	var body []byte
	kind := ""
	if in != nil {
		var err error
		body, err = json.Marshal(in)
		require.NoError(h.T, err)
		kind = "application/json"
	}
	r := h.Request(method, path, kind, body)
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	r.Header.Set(api.HeaderProof, h.Proof(k, method, strings.SplitN(path, "?", 2)[0], token))
	return r
}

// Into decodes a good answer or fails the test.
func (h *House) Into(a Answer, out any) {
	h.T.Helper()
	require.Less(h.T, a.Status, 300, string(a.Body))
	if out != nil {
		require.NoError(h.T, json.Unmarshal(a.Body, out))
	}
}

// ClaimForm is the form of a claim.
func ClaimForm(run, assertion string) url.Values {
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {run}, "subject_token_type": {api.TokenTypeRunReference},
		"client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}}
}

// ComponentForm is the form of a component's token request.
func ComponentForm(name, assertion string) url.Values {
	return url.Values{"grant_type": {api.GrantClientCredentials}, "client_id": {name}, "client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}}
}

// MintForm is the form of a mint of one appended row.
func MintForm(token capability.Token, key, value string) url.Values {
	return MintDetails(token, key, []api.Detail{{Type: api.DetailTypeEffect, Actions: []string{"row.append"}, Locations: []string{GuardURI}, Identifier: "table:entries", Parameters: Params(value)}})
}

// Params are the parameters of an appended row.
func Params(value string) json.RawMessage {
	return json.RawMessage(`{"table":"entries","values":{"memo":"` + value + `"}}`)
}

// MintDetails is the form of a mint with these details.
func MintDetails(token capability.Token, key string, details []api.Detail) url.Values {
	text, _ := json.Marshal(details)
	return url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {token.Reveal()}, "subject_token_type": {api.TokenTypeAccess},
		"resource": {GuardURI}, "authorization_details": {string(text)}, "effect_key": {key}}
}

// Holder is a worker that has claimed a run.
type Holder struct {
	h     *House
	Key   *capability.Key
	Run   string
	Token capability.Token
	State api.RunState
}

// Claim claims a run with a new key.
func (h *House) Claim(run string) *Holder {
	h.T.Helper()
	w, a := h.claim(run)
	h.Into(a, nil)
	return w
}

// TryClaim is Claim where it may not be possible.
func (h *House) TryClaim(run string) (*Holder, bool) {
	h.T.Helper()
	w, a := h.claim(run)
	return w, a.Status == http.StatusOK
}

func (h *House) claim(run string) (*Holder, Answer) {
	h.T.Helper()
	w := &Holder{h: h, Key: h.Key(), Run: run}
	a := h.Send(h.Form(w.Key, ClaimForm(run, h.Assertion(WorkerClaim))))
	if a.Status == http.StatusOK {
		var out api.TokenResponse
		h.Into(a, &out)
		w.Token, w.State = capability.Token(out.AccessToken), *out.Run
	}
	return w, a
}

// Mint mints an appended row.
func (w *Holder) Mint(key, value string) Answer {
	w.h.T.Helper()
	return w.h.Send(w.h.Form(w.Key, MintForm(w.Token, key, value)))
}

// Minted mints and returns the answer.
func (w *Holder) Minted(key, value string) (out api.TokenResponse) {
	w.h.T.Helper()
	w.h.Into(w.Mint(key, value), &out)
	return out
}

// Settle asks to end the run.
func (w *Holder) Settle(result string) Answer {
	w.h.T.Helper()
	return w.h.Send(w.h.Bearing(w.Key, w.Token, "POST", api.PathSettleRun, api.SettleRunRequest{Result: result}))
}

// Renew renews the run capability.
func (w *Holder) Renew() Answer {
	w.h.T.Helper()
	a := w.h.Send(w.h.Bearing(w.Key, w.Token, "POST", api.PathRenew, api.RenewRequest{}))
	var out api.TokenResponse
	if a.Status == http.StatusOK {
		w.h.Into(a, &out)
		w.Token, w.State = capability.Token(out.AccessToken), *out.Run
	}
	return a
}

// Guard is a guard that has its component capability.
type Guard struct {
	h     *House
	Key   *capability.Key
	Token capability.Token
	Boot  int64
}

// Guard boots the standard guard with a new key.
func (h *House) Guard() *Guard {
	h.T.Helper()
	return h.component(GuardName, GuardClaim)
}

func (h *House) component(name, subject string) *Guard {
	h.T.Helper()
	g := &Guard{h: h, Key: h.Key()}
	var out api.TokenResponse
	h.Into(h.Send(h.Form(g.Key, ComponentForm(name, h.Assertion(subject)))), &out)
	g.Token, g.Boot = capability.Token(out.AccessToken), out.Boot
	return g
}

// Ask is an admit request for a minted effect, as the standard guard would build it.
func (g *Guard) Ask(w *Holder, minted api.TokenResponse, value, attempt string) api.AdmitRequest {
	g.h.T.Helper()
	return g.h.Ask(w.Key, minted, value, attempt)
}

// Ask is the admit request of whichever guard, for the effect of a worker with that key.
func (h *House) Ask(worker *capability.Key, minted api.TokenResponse, value, attempt string) api.AdmitRequest {
	h.T.Helper()
	token := capability.Token(minted.AccessToken)
	proof, err := capability.NewProof(worker, capability.ProofParams{Method: "POST", URL: GuardURI + "/operations/row.append", Nonce: minted.GuardNonce, AccessToken: token, Now: time.Now()})
	require.NoError(h.T, err)
	digest, _, err := capability.ParamsDigest(Params(value))
	require.NoError(h.T, err)
	return api.AdmitRequest{Attempt: attempt, Capability: minted.AccessToken, Proof: proof, Method: "POST", Path: "/ledger/operations/row.append",
		Effect: api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.append"}, Locations: []string{GuardURI}, Identifier: "table:entries",
			ParamsSHA256: base64.RawURLEncoding.EncodeToString(digest[:])}}
}

// Admit sends an admit request.
func (g *Guard) Admit(r api.AdmitRequest) Answer {
	g.h.T.Helper()
	return g.h.Send(g.h.Bearing(g.Key, g.Token, "POST", api.PathAdmit, r))
}

// Settle records an outcome.
func (g *Guard) Settle(effect, attempt, outcome string) Answer {
	g.h.T.Helper()
	return g.h.Send(g.h.Bearing(g.Key, g.Token, "POST", api.PathSettle, api.SettleEffectRequest{Effect: effect, Attempt: attempt, Outcome: outcome}))
}

// NewAttempt is 128 random bits.
func NewAttempt() string {
	b := make([]byte, 16)
	fill(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Person is somebody with an envelope and a key that owns it.
type Person struct {
	h        *House
	Key      *capability.Key
	Envelope capability.Token
}

// Person signs somebody in.
func (h *House) Person(subject string) *Person {
	return &Person{h, h.Key(), capability.Token(h.Envelope(subject))}
}

// Request makes a member's request.
func (p *Person) Request(method, path, kind string, body []byte) *http.Request {
	p.h.T.Helper()
	r := p.h.Request(method, path, kind, body)
	if strings.HasSuffix(path, "/revoke") || strings.HasSuffix(path, "/cut-off") {
		r.Header.Set("If-Match", "*") // whatever it is now
	}
	r.Header.Set(api.HeaderEnvelope, p.Envelope.Reveal())
	r.Header.Set(api.HeaderProof, p.h.Proof(p.Key, method, strings.SplitN(path, "?", 2)[0], p.Envelope))
	return r
}

// Do sends a request and decodes a good answer; a refusal is an *api.Refusal.
func (p *Person) Do(method, path, kind string, body []byte, out any) error {
	p.h.T.Helper()
	a := p.h.Send(p.Request(method, path, kind, body))
	if a.Status >= 300 {
		problem := a.Problem()
		return &api.Refusal{Code: problem.Code, Sentence: problem.ErrorDescription}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(a.Body, out)
}

// JSON is Do with a JSON body.
func (p *Person) JSON(method, path string, in, out any) error {
	p.h.T.Helper()
	body, err := json.Marshal(in)
	require.NoError(p.h.T, err)
	return p.Do(method, path, "application/json", body, out)
}
