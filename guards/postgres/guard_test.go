package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// stand is a database behind guards that share one identity, as replicas and successors do.
type stand struct {
	*resource
	authority *authoritytest.Authority
	worker    *authoritytest.Worker
	lane      string
	settled   chan string // outcomes, as the authority hears them
}

func newStand(t *testing.T) *stand {
	t.Helper()
	a := authoritytest.New()
	s := &stand{resource: newResource(t), authority: a, worker: authoritytest.NewWorker(a), lane: authoritytest.Ref(), settled: make(chan string, 16)}
	a.Intercept = func(_ context.Context, path string, answer func() *http.Response) (*http.Response, error) {
		response := answer()
		if path == api.PathSettle && response.StatusCode == http.StatusOK {
			body, err := io.ReadAll(response.Body)
			assert.NoError(t, err)
			response.Body = io.NopCloser(bytes.NewReader(body))
			var e api.EffectOutcome
			assert.NoError(t, json.Unmarshal(body, &e))
			s.settled <- e.State
		}
		return response, nil
	}
	return s
}

// guard is one process of the guard, over a ledger that may be wrapped.
func (s *stand) guard(t *testing.T, l *Ledger, wrap func(guards.Ledger) guards.Ledger) *guards.Guard {
	t.Helper()
	ledger := guards.Ledger(l)
	if wrap != nil {
		ledger = wrap(l)
	}
	g, err := guards.New(guards.Config{
		URI: authoritytest.GuardURI, Name: authoritytest.GuardName, Issuer: authoritytest.Issuer, Ledger: ledger, Operations: l.Operations(),
		HTTPClient: s.authority.Client(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Assertion: func(context.Context) (string, error) { return authoritytest.Assertion, nil },
	})
	require.NoError(t, err)
	return g
}

// run starts a guard's background work; it ends with the test.
func run(t *testing.T, g *guards.Guard) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
}

const oneOrder = `{"table":"orders","values":{"id":"1","paid":true}}`

func (s *stand) mint() (capability.Token, string, authoritytest.Body) {
	body := authoritytest.Body{Resource: "table:orders", Parameters: json.RawMessage(oneOrder)}
	token, ref := s.authority.Mint(s.worker.Key.Thumbprint(), authoritytest.EffectOf("row.append", body), s.lane, 1)
	return token, ref, body
}

// wait is the next outcome that the authority hears.
func (s *stand) wait(t *testing.T) string {
	t.Helper()
	select {
	case state := <-s.settled:
		return state
	case <-time.After(30 * time.Second):
		t.Fatal("nothing was settled")
		return ""
	}
}

func TestRowIsAppendedOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	g := s.guard(t, s.ledger(t, s.pool(t), nil), nil)
	token, ref, body := s.mint()
	answer := s.worker.Do(g, s.worker.Request("row.append", token, body))
	require.Equal(t, "committed", answer.Outcome, answer.Text)
	require.JSONEq(t, `{"rows":1}`, string(answer.Result))
	require.Equal(t, "committed", s.authority.Effect(ref).State)
	require.Equal(t, 1, s.count(t, "orders WHERE id = '1' AND paid"))
	require.Equal(t, 1, s.count(t, "nightwarrant_guard.intents"))

	again := s.worker.Do(g, s.worker.Request("row.append", token, body))
	require.Equal(t, api.EffectSettled, again.Problem.Code)
	require.Equal(t, 1, s.count(t, "nightwarrant_guard.intents"), "no second question was asked")
}

func TestWhatTheOwnerDidNotListIsRefusedBeforeItIsConsumed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	g := s.guard(t, s.ledger(t, s.pool(t), nil), nil)
	body := authoritytest.Body{Resource: "table:wages", Parameters: json.RawMessage(`{"table":"wages","values":{"id":"1"}}`)}
	token, ref := s.authority.Mint(s.worker.Key.Thumbprint(), authoritytest.EffectOf("row.append", body), s.lane, 1)
	answer := s.worker.Do(g, s.worker.Request("row.append", token, body))
	require.Equal(t, api.InvalidRequest, answer.Problem.Code, "even with a capability that names it")
	require.Equal(t, "minted", s.authority.Effect(ref).State)
	require.Zero(t, s.authority.Count(api.PathAdmit))
}

// TestOnePresentationAtTwoReplicasIsAppliedOnce: one capability and one proof, sent to both at once, many times.
func TestOnePresentationAtTwoReplicasIsAppliedOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	replicas := []*guards.Guard{s.guard(t, s.ledger(t, s.pool(t), nil), nil), s.guard(t, s.ledger(t, s.pool(t), nil), nil)}
	s.authority.Do(func(a *authoritytest.Authority) { a.Replicas = true })
	token, ref, body := s.mint()
	proof := s.worker.Proof("row.append", token)
	encoded, err := json.Marshal(body)
	require.NoError(t, err)
	var group sync.WaitGroup
	codes := make(chan int, 12)
	for i := range cap(codes) {
		group.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/ledger/operations/row.append", strings.NewReader(string(encoded)))
			r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"DPoP " + token.Reveal()}, "Dpop": {proof}}
			recorder := httptest.NewRecorder()
			replicas[i%2].ServeHTTP(recorder, r)
			codes <- recorder.Code
		})
	}
	group.Wait()
	close(codes)
	count := map[int]int{}
	for code := range codes {
		count[code]++
	}
	require.Equal(t, 1, count[http.StatusOK], "%v", count)
	require.Equal(t, 11, count[http.StatusConflict]+count[http.StatusServiceUnavailable], "%v (a loaded machine is slow to answer)", count)
	require.Equal(t, 1, s.count(t, "orders"))
	require.Equal(t, "committed", s.authority.Effect(ref).State)
}

// abandoned is a process that stops in Apply, before or after it reached the database, and may come back much later, sure that it
// still has time.
type abandoned struct {
	guards.Ledger
	applies bool          // before it stops
	stopped chan struct{} // closed when it has
	resume  chan struct{}
	late    chan guards.Ending
}

func (l abandoned) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	if l.applies {
		_, _ = l.Ledger.Apply(ctx, a)
		close(l.stopped)
		<-l.resume
		return guards.Ending{}, context.Canceled
	}
	close(l.stopped)
	<-l.resume
	a.Left = func() time.Duration { return time.Minute }
	ending, err := l.Ledger.Apply(context.WithoutCancel(ctx), a)
	l.late <- ending
	return ending, err
}

// forgetful proves by reading alone, as a guard without a tombstone would.
type forgetful struct {
	guards.Ledger
	read func(effect guards.Ref) int
}

func (l forgetful) Prove(_ context.Context, effect, _ guards.Ref) (guards.Ending, error) {
	if l.read(effect) > 0 {
		return guards.Ending{Outcome: guards.Committed}, nil
	}
	return guards.Ending{Outcome: guards.NotApplied}, nil
}

// crash lets one process stop in the middle, another one sweep after it, and the first come back. It returns what the
// authority recorded and how many orders there are in the end.
func (s *stand) crash(t *testing.T, applies bool, successor func(guards.Ledger) guards.Ledger) (recorded string, orders int) {
	t.Helper()
	first := abandoned{applies: applies, stopped: make(chan struct{}), resume: make(chan struct{}), late: make(chan guards.Ending, 1)}
	g := s.guard(t, s.ledger(t, s.pool(t), nil), func(l guards.Ledger) guards.Ledger { first.Ledger = l; return first })
	token, ref, body := s.mint()
	request := s.worker.Request("row.append", token, body)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		g.ServeHTTP(httptest.NewRecorder(), request)
	}()
	<-first.stopped
	require.Equal(t, "admitted", s.authority.Effect(ref).State)
	s.authority.Do(func(a *authoritytest.Authority) { a.Effects[ref].ApplyUntil = time.Now() })

	run(t, s.guard(t, s.ledger(t, s.pool(t), nil), successor))
	recorded = s.wait(t)
	close(first.resume)
	<-gone
	require.Equal(t, recorded, s.authority.Effect(ref).State, "terminal")
	return recorded, s.count(t, "orders")
}

// TestCrashBeforeApplyIsNotApplied: admitted, never applied; and the old process, which comes back, fails on the tombstone.
func TestCrashBeforeApplyIsNotApplied(t *testing.T) {
	t.Parallel()
	recorded, orders := newStand(t).crash(t, false, nil)
	require.Equal(t, "not_applied", recorded)
	require.Zero(t, orders)
}

// TestWithoutTheTombstoneNotAppliedWouldBeALie shows that the test above sees the bug it is there for (P14).
func TestWithoutTheTombstoneNotAppliedWouldBeALie(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	recorded, orders := s.crash(t, false, func(l guards.Ledger) guards.Ledger {
		return forgetful{l, func(effect guards.Ref) int {
			return s.count(t, "nightwarrant_guard.effects WHERE effect = $1", effect[:])
		}}
	})
	require.Equal(t, "not_applied", recorded)
	require.Equal(t, 1, orders, "the planted bug must be visible")
}

func TestCrashAfterCommitIsCommitted(t *testing.T) {
	t.Parallel()
	recorded, orders := newStand(t).crash(t, true, nil)
	require.Equal(t, "committed", recorded)
	require.Equal(t, 1, orders)
}

func TestLostCommitIsAnsweredAsCommitted(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	pool, line := s.cuttablePool(t)
	line.commit.Store(loseWord)
	token, ref, body := s.mint()
	answer := s.worker.Do(s.guard(t, s.ledger(t, pool, nil), nil), s.worker.Request("row.append", token, body))
	require.Equal(t, "committed", answer.Outcome, answer.Text)
	require.Equal(t, "committed", s.authority.Effect(ref).State)
	require.Equal(t, 1, s.count(t, "orders"))
}

// TestDatabaseThatIsGoneAfterACommit: unknown to the worker, proven by the sweep when the database is back.
func TestDatabaseThatIsGoneAfterACommit(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	pool, line := s.cuttablePool(t)
	g := s.guard(t, s.ledger(t, pool, nil), nil)
	line.commit.Store(loseAll)
	token, ref, body := s.mint()
	answer := s.worker.Do(g, s.worker.Request("row.append", token, body))
	require.Equal(t, api.OutcomeUnknown, answer.Problem.Code, answer.Text)
	require.Equal(t, "admitted", s.authority.Effect(ref).State)
	line.severed.Store(false)
	run(t, g)
	require.Equal(t, "committed", s.wait(t))
	require.Equal(t, 1, s.count(t, "orders"))
}

// TestOwnersOperation: a few lines put a guard before whatever a transaction can do.
func TestOwnersOperation(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	type payment struct {
		ID    string `json:"id"`
		Cents int64  `json:"cents"`
	}
	pay := Operation{
		Target: func(params json.RawMessage) (guards.Target, error) {
			var p payment
			err := json.Unmarshal(params, &p)
			return guards.Target{Resource: "order:" + p.ID, Amount: p.Cents, Currency: "EUR"}, err
		},
		Do: func(ctx context.Context, tx pgx.Tx, params json.RawMessage) (any, error) {
			var p payment
			if err := json.Unmarshal(params, &p); err != nil {
				return nil, err
			}
			_, err := tx.Exec(ctx, `UPDATE orders SET paid = true, cents = $2 WHERE id = $1`, p.ID, p.Cents)
			return map[string]bool{"paid": true}, err
		},
	}
	s.exec(t, `INSERT INTO orders (id) VALUES ('7')`)
	g := s.guard(t, s.ledger(t, s.pool(t), map[string]Operation{"order.pay": pay}), nil)
	body := authoritytest.Body{Resource: "order:7", Parameters: json.RawMessage(`{"id":"7","cents":1250}`), Amount: 1250, Currency: "EUR"}
	token, _ := s.authority.Mint(s.worker.Key.Thumbprint(), authoritytest.EffectOf("order.pay", body), s.lane, 1)
	more := body
	more.Parameters, more.Amount = json.RawMessage(`{"id":"7","cents":9999}`), 9999
	require.Equal(t, api.EffectMismatch, s.worker.Do(g, s.worker.Request("order.pay", token, more)).Problem.Code)
	answer := s.worker.Do(g, s.worker.Request("order.pay", token, body))
	require.JSONEq(t, `{"paid":true}`, string(answer.Result), answer.Text)
	require.Equal(t, 1, s.count(t, "orders WHERE id = '7' AND paid AND cents = 1250"))
}
