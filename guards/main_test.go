package guards

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A guard is put into other people's programs: whoever adds one must not inherit a database, a broker or a metrics library.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	const module = "github.com/nightwarrant/nightwarrant/"
	allowed := regexp.MustCompile(`^(` + module + `(guards|internal/(dpopclient|elapsed|issuerkeys)|authority/(api|canonical|capability|catalogue))|` +
		`github.com/(lestrrat-go/(jwx/v2|blackmagic|httpcc|httprc|iter|option)|go-jose/go-jose/v4|gowebpki/jcs|santhosh-tekuri/jsonschema/v6)(/.*)?|golang.org/x/(crypto|sys|text)/.*)$`)
	packages := strings.Fields(string(out))
	require.Contains(t, packages, module+"guards")
	for _, path := range packages {
		require.Regexp(t, allowed, path)
	}
}

// memory is a ledger that keeps the rules of [Ledger] in memory; its hooks stand where a real one meets its resource.
type memory struct {
	mu       sync.Mutex
	intents  []Attempt
	ends     map[Ref]Outcome
	fences   map[Ref]int64
	applied  []Admitted
	beforeIt func(a Admitted)                       // at the start of Apply
	end      func(a Admitted) (Ending, error, bool) // instead of Apply
	refuse   error                                  // of Intend, Prove and Probe
	seen     Seen
}

func newMemory() *memory { return &memory{ends: map[Ref]Outcome{}, fences: map[Ref]int64{}} }

func (m *memory) Intend(_ context.Context, a Attempt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return m.refuse
	}
	if m.ends[a.Effect] != "" {
		return ErrSettled
	}
	m.intents = append(m.intents, a)
	return nil
}

func (m *memory) Apply(_ context.Context, a Admitted) (Ending, error) {
	if m.beforeIt != nil {
		m.beforeIt(a)
	}
	if m.end != nil {
		if ending, err, done := m.end(a); done {
			return ending, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.ends[a.Effect] != "":
		return Ending{Outcome: NotApplied, Reason: api.EffectSettled}, nil
	case a.Fence < m.fences[a.Lane]:
		m.ends[a.Effect] = NotApplied
		return Ending{Outcome: NotApplied, Reason: api.FenceStale}, nil
	case a.Left() <= 0:
		m.ends[a.Effect] = NotApplied
		return Ending{Outcome: NotApplied, Reason: api.TooLate}, nil
	}
	m.fences[a.Lane], m.ends[a.Effect] = a.Fence, Committed
	m.applied = append(m.applied, a)
	return Ending{Outcome: Committed, Result: json.RawMessage(`{"rows":1}`)}, nil
}

func (m *memory) Prove(_ context.Context, effect, _ Ref) (Ending, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return Ending{}, m.refuse
	}
	if m.ends[effect] == "" {
		m.ends[effect] = NotApplied
	}
	return Ending{Outcome: m.ends[effect]}, nil
}

func (m *memory) Probe(context.Context) (Seen, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen, m.refuse
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.applied)
}

func (m *memory) set(change func(m *memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// stand is a guard, its ledger, its authority and one honest worker.
type stand struct {
	authority *authoritytest.Authority
	ledger    *memory
	guard     *Guard
	worker    *authoritytest.Worker
	lane      string
}

func newStand(t *testing.T) *stand {
	t.Helper()
	a := authoritytest.New()
	s := &stand{authority: a, ledger: newMemory(), worker: authoritytest.NewWorker(a), lane: authoritytest.Ref()}
	s.guard = s.newGuard(t)
	return s
}

// newGuard is another process of the same guard: the same ledger, another key.
func (s *stand) newGuard(t *testing.T, changes ...func(*Config)) *Guard {
	t.Helper()
	c := s.config(t)
	for _, change := range changes {
		change(&c)
	}
	g, err := New(c)
	require.NoError(t, err)
	return g
}

func (s *stand) config(t *testing.T) Config {
	row, err := Catalogued("postgres", "row.append")
	require.NoError(t, err)
	return Config{
		URI: authoritytest.GuardURI, Name: authoritytest.GuardName, Issuer: authoritytest.Issuer, Ledger: s.ledger,
		HTTPClient: s.authority.Client(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Assertion:  func(context.Context) (string, error) { return authoritytest.Assertion, nil },
		Operations: map[string]Operation{"row.append": row, "transfer": transfer},
	}
}

// transfer is an owner's operation whose amount is in its parameters.
func transfer(params json.RawMessage) (Target, error) {
	var p struct {
		To    string `json:"to"`
		Cents int64  `json:"cents"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.To == "" || p.Cents < 1 {
		return Target{}, errors.New("not a transfer")
	}
	return Target{Resource: "account:" + p.To, Amount: p.Cents, Currency: "EUR"}, nil
}

func order(id string) authoritytest.Body {
	return authoritytest.Body{Resource: "table:orders", Parameters: json.RawMessage(`{"table":"orders","values":{"id":"` + id + `","paid":true}}`)}
}

// mint makes an effect of the body with a capability of the worker.
func (s *stand) mint(action string, b authoritytest.Body, changes ...func(*capability.EffectClaims)) (capability.Token, string) {
	return s.authority.Mint(s.worker.Key.Thumbprint(), authoritytest.EffectOf(action, b), s.lane, 1, changes...)
}

// minted is a request that is good in everything.
func (s *stand) minted() (*http.Request, string) {
	token, ref := s.mint("row.append", order("1"))
	return s.worker.Request("row.append", token, order("1")), ref
}

func (s *stand) do(r *http.Request) authoritytest.Answer { return s.worker.Do(s.guard, r) }

// requireUntouched: nothing was consumed and nothing applied, and everyone still works.
func (s *stand) requireUntouched(t *testing.T, ref string) {
	t.Helper()
	require.Equal(t, "minted", s.authority.Effect(ref).State)
	require.Zero(t, s.ledger.count())
}

func (s *stand) requireCommitted(t *testing.T, answer authoritytest.Answer, ref string) {
	t.Helper()
	require.Equal(t, http.StatusOK, answer.Status, answer.Text)
	require.Equal(t, "committed", answer.Outcome)
	require.Equal(t, ref, answer.Effect)
	require.Equal(t, "committed", s.authority.Effect(ref).State)
}

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
