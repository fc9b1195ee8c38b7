package http

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/guards/internal/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hush = "sk_live_51H8xK2eZvKYlo2C"

// payment is an operation with everything in it; its origin is filled in.
func payment(origin string) Operation {
	return Operation{
		Operation: catalogue.Operation{
			Action: "payment.create", Title: "Pay from an account", Resource: origin + "/accounts/{account}", Amount: "cents", Currency: "EUR", Key: []string{"account"},
			Parameters: json.RawMessage(`{"type":"object","additionalProperties":false,"required":["account","cents","to"],"properties":{
				"account":{"type":"string","minLength":1,"maxLength":40},"cents":{"type":"integer","minimum":1,"maximum":100000},"to":{"type":"string","maxLength":200},
				"note":{"type":"string","maxLength":200},"urgent":{"type":"boolean"},"tags":{"type":"array","maxItems":5,"items":{"type":"string","maxLength":20}}}}`),
		},
		Request: Request{
			URL: origin + "/accounts/{account}/payments", Query: map[string]string{"urgent": "{urgent}", "source": "night"}, Headers: map[string]string{"X-Note": "{note}"},
			Body:              json.RawMessage(`{"amount":{"cents":"{cents}","currency":"EUR"},"to":"acct:{to}","tags":"{tags}","note":"{note}","kind":"{{payment}}","steps":[1,true,"{note}"]}`),
			IdempotencyHeader: "Idempotency-Key",
		},
		Answer:  Answer{Success: []int{201}, Refused: []int{402, 422}, Fields: []string{"id", "state", "owner.name", "lines[].id"}},
		Inspect: &Inspect{URL: origin + "/accounts/{account}/payments", Query: map[string]string{"to": "{to}"}, Fields: []string{"items[].id"}},
		Timeout: 2 * time.Second,
	}
}

const params = `{"account":"a-1","cents":250,"to":"bob"}`

// destination is an API that counts what reaches it.
type destination struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
	answer   http.HandlerFunc
}

func newDestination(t *testing.T, answer http.HandlerFunc) *destination {
	t.Helper()
	d := &destination{answer: answer}
	d.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		d.mu.Lock()
		d.requests, d.bodies = append(d.requests, r), append(d.bodies, string(body))
		d.mu.Unlock()
		d.answer(w, r)
	}))
	d.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	d.Start()
	t.Cleanup(d.Close)
	return d
}

func (d *destination) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, r := range d.requests {
		if r.Method != http.MethodGet { // a look changes nothing
			n++
		}
	}
	return n
}

// saying answers with a status and a body.
func saying(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func hostOf(t testing.TB, origin string) string {
	t.Helper()
	u, err := url.Parse(origin)
	require.NoError(t, err)
	return u.Host
}

func write(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credential")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// config is of a guard in front of an origin, with a new journal.
func config(t testing.TB, origin string) Config {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "journal")
	require.NoError(t, Init(dir))
	return Config{Dir: dir, Operations: []Operation{payment(origin)}, Private: []string{hostOf(t, origin)}, MaxAnswer: 16 << 10,
		Credential: &Credential{Header: "Authorization", Prefix: "Bearer ", Provider: FromFile(write(t, hush+"\n"))}, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func newLedger(t testing.TB, c Config) *Ledger {
	t.Helper()
	l, err := New(c)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// stand is an API behind a guard, its authority and one honest worker.
type stand struct {
	*destination
	authority *authoritytest.Authority
	worker    *authoritytest.Worker
	config    Config
	ledger    *Ledger
	guard     *guards.Guard
	lane      string
}

func newStand(t *testing.T, answer http.HandlerFunc, changes ...func(*Config)) *stand {
	t.Helper()
	a, d := authoritytest.New(), newDestination(t, answer)
	s := &stand{destination: d, authority: a, worker: authoritytest.NewWorker(a), config: config(t, d.URL), lane: authoritytest.Ref()}
	for _, change := range changes {
		change(&s.config)
	}
	s.ledger = newLedger(t, s.config)
	s.guard = s.newGuard(t, s.ledger)
	return s
}

func (s *stand) newGuard(t *testing.T, l *Ledger) *guards.Guard {
	t.Helper()
	g, err := guards.New(guards.Config{
		URI: authoritytest.GuardURI, Name: authoritytest.GuardName, Issuer: authoritytest.Issuer, HTTPClient: s.authority.Client(),
		Ledger: l, Operations: l.Operations(), Catalogue: l.Catalogue(), Longest: l.Longest(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Assertion: func(context.Context) (string, error) { return authoritytest.Assertion, nil },
	})
	require.NoError(t, err)
	return g
}

func (s *stand) body(params string) authoritytest.Body {
	return authoritytest.Body{Resource: s.URL + "/accounts/a-1", Parameters: json.RawMessage(params), Amount: 250, Currency: "EUR"}
}

func (s *stand) mint(params string) (capability.Token, string) {
	return s.authority.Mint(s.worker.Key.Thumbprint(), authoritytest.EffectOf("payment.create", s.body(params)), s.lane, 1)
}

// pay is one whole effect.
func (s *stand) pay() (authoritytest.Answer, string) {
	token, ref := s.mint(params)
	return s.worker.Do(s.guard, s.worker.Request("payment.create", token, s.body(params))), ref
}

func (s *stand) requireUntouched(t *testing.T, ref string) {
	t.Helper()
	require.Equal(t, "minted", s.authority.Effect(ref).State)
	require.Zero(t, s.count())
}

// goAhead is an admission with plenty of time, of an attempt that is written ahead.
func goAhead(t testing.TB, l *Ledger, params string) guards.Admitted {
	t.Helper()
	a := guards.Admitted{
		Attempt: guards.Attempt{Effect: guards.NewRef(), ID: guards.NewRef(), Action: "payment.create", Digest: [32]byte{1}, Params: json.RawMessage(params)},
		Run:     guards.NewRef(), Lane: guards.NewRef(), Fence: 1, Number: 1, Left: func() time.Duration { return 20 * time.Second },
	}
	require.NoError(t, l.Intend(t.Context(), a.Attempt))
	return a
}

// reopened is the journal of a guard that has ended.
func reopened(t *testing.T, c Config) *journal.Journal {
	t.Helper()
	j, err := journal.Open(c.Dir, journal.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func hijack(t *testing.T, w http.ResponseWriter) net.Conn {
	t.Helper()
	c, _, err := w.(http.Hijacker).Hijack()
	require.NoError(t, err)
	return c
}

func requireProblem(t *testing.T, answer authoritytest.Answer, code api.Code) {
	t.Helper()
	require.Equal(t, code, answer.Problem.Code, answer.Text)
	require.NotContains(t, answer.Text, strings.TrimPrefix(hush, "sk_"))
}
