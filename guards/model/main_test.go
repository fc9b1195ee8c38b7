package model

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	key     = "sk-proj-4eC39HqLyjWDarjtT1zdp7dc"
	little  = "little"
	version = "2026-01-01"
)

// price makes a token of output worth one cent, and a million of input ten.
var price = Price{Input: 10, Output: 1_000_000}

// stand is a provider, a guard before it, an authority and one honest worker.
type stand struct {
	provider  *modelserver.Server
	config    Config
	ledger    *Ledger
	guard     *guards.Guard
	authority *authoritytest.Authority
	worker    *authoritytest.Worker
	lane      string
	log       *logged
	served    *httptest.Server
}

// logged is what the guard said.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newStand(t testing.TB, changes ...func(*Config)) *stand {
	t.Helper()
	s := &stand{provider: modelserver.New(modelserver.Config{Key: key, Models: []string{little}}), authority: authoritytest.New(), lane: authoritytest.Ref(), log: &logged{}}
	s.worker = authoritytest.NewWorker(s.authority)
	server := httptest.NewServer(s.provider)
	t.Cleanup(func() {
		s.provider.Let()
		server.CloseClientConnections()
		server.Close()
	})
	secret := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(secret, []byte(key+"\n"), 0o600))
	s.config = Config{BaseURL: server.URL + "/v1", Currency: "EUR", Models: map[string]Model{little: {Version: version, Price: price}},
		Credential: CredentialFile(secret), Dir: t.TempDir() + "/journal", Private: []string{"127.0.0.0/8"},
		Logger: slog.New(slog.NewTextHandler(s.log, nil)), Timeout: 20 * time.Second}
	require.NoError(t, Init(s.config.Dir))
	for _, change := range changes {
		change(&s.config)
	}
	s.start(t)
	return s
}

// start is a process of the guard.
func (s *stand) start(t testing.TB) {
	var err error
	s.ledger, err = New(s.config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.ledger.Close() })
	s.guard, err = guards.New(s.ledger.Guard(guards.Config{URI: authoritytest.GuardURI, Name: authoritytest.GuardName, Issuer: authoritytest.Issuer,
		HTTPClient: s.authority.Client(), Logger: s.config.Logger, Assertion: func(context.Context) (string, error) { return authoritytest.Assertion, nil }}))
	require.NoError(t, err)
	s.served = httptest.NewServer(s.guard)
	t.Cleanup(s.served.Close)
}

// ask is a request of a worker.
type ask struct {
	path   string // of the route
	body   string
	cost   string
	form   string // of the parameters
	params json.RawMessage
}

// chat asks for n tokens.
func chat(n int, more string) ask {
	return ask{path: "/v1/chat/completions", cost: "50 EUR",
		body: `{"model":"little","max_tokens":` + strconv.Itoa(n) + `,"temperature":0.7,"messages":[{"role":"user","content":"Good morning."}]` + more + `}`}
}

func response(n int, more string) ask {
	return ask{path: "/v1/responses", cost: "50 EUR", body: `{"model":"little","max_output_tokens":` + strconv.Itoa(n) + `,"input":"Good morning."` + more + `}`}
}

const streamed = `,"stream":true,"stream_options":{"include_usage":true}`

func (a ask) action() string {
	for action, d := range dialects {
		if "/v1"+d.path == a.path {
			return action
		}
	}
	return ""
}

func (a ask) header() http.Header {
	h := http.Header{"Content-Type": {"application/json"}, HeaderMaxCost: {a.cost}}
	if a.form != "" {
		h.Set(HeaderRequest, a.form)
	}
	return h
}

// mint makes the effect of a request, and a capability for it.
func (s *stand) mint(t testing.TB, a ask) (capability.Token, string) {
	t.Helper()
	params := a.params
	if params == nil {
		var err error
		params, err = parameters(s.config.BaseURL, dialects[a.action()], a.header(), []byte(a.body))
		require.NoError(t, err)
	}
	target, err := guards.Catalogued("model", a.action())
	require.NoError(t, err)
	aim, err := target(params)
	require.NoError(t, err)
	e := authoritytest.EffectOf(a.action(), authoritytest.Body{Resource: aim.Resource, Parameters: params, Amount: aim.Amount, Currency: aim.Currency})
	return s.authority.Mint(s.worker.Key.Thumbprint(), e, s.lane, 1)
}

// answer is what came back.
type answer struct {
	*http.Response
	text string
	ref  string
}

func (a answer) code() string {
	var body struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
			Type    string `json:"type"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(a.text), &body)
	return body.Error.Code
}

// request is one for an effect that was minted.
func (s *stand) request(t testing.TB, a ask, token capability.Token) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.served.URL+"/ledger"+a.path, strings.NewReader(a.body))
	require.NoError(t, err)
	r.Header = a.header()
	r.Header.Set("Authorization", "DPoP "+token.Reveal())
	r.Header.Set("DPoP", s.worker.Proof("", token, func(p *capability.ProofParams) { p.URL = authoritytest.GuardURI + a.path }))
	return r
}

func (s *stand) send(t testing.TB, r *http.Request, ref string) answer {
	t.Helper()
	response, err := s.served.Client().Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answer{response, string(text), ref}
}

// do mints and asks.
func (s *stand) do(t testing.TB, a ask) answer {
	t.Helper()
	token, ref := s.mint(t, a)
	return s.send(t, s.request(t, a, token), ref)
}

// effect is what the authority knows in the end.
func (s *stand) effect(ref string) authoritytest.Effect { return s.authority.Effect(ref) }

// requireSpent: the effect is committed, and charged with that; -1 is all that was reserved.
func (s *stand) requireSpent(t testing.TB, a answer, cents int64) {
	t.Helper()
	e := s.effect(a.ref)
	require.Equal(t, api.Committed, e.State, a.text)
	if cents < 0 {
		require.Nil(t, e.Spent)
		return
	}
	require.NotNil(t, e.Spent)
	require.Equal(t, cents, *e.Spent)
}

// requireRefused: with a code, before anything was consumed, and the provider was not asked.
func (s *stand) requireRefused(t testing.TB, a answer, status int, code api.Code) {
	t.Helper()
	require.Equal(t, status, a.StatusCode, a.text)
	require.Equal(t, string(code), a.code())
	require.Equal(t, "minted", s.effect(a.ref).State)
	require.Zero(t, s.authority.Count(api.PathAdmit))
	require.Zero(t, s.provider.Asked())
}

// requireQuiet: nothing of what the provider keeps to itself is in an answer or in the log.
func (s *stand) requireQuiet(t testing.TB, a answer) {
	t.Helper()
	said := a.text + s.log.String()
	for name, values := range a.Header {
		said += name + strings.Join(values, " ")
	}
	for _, secret := range append(modelserver.Secrets, key, "Traceback", "169.254") {
		require.NotContains(t, said, secret)
	}
}

func fileWith(t testing.TB, text string) Provider {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credential")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return CredentialFile(path)
}

func encode(digest [32]byte) string { return base64.RawURLEncoding.EncodeToString(digest[:]) }
