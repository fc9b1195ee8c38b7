package scheduler

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

func TestMain(m *testing.M) { teststack.Main(m) }

const testWithin = 60 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testWithin)
	t.Cleanup(cancel)
	return ctx
}

// published is one call of Publish.
type published struct {
	queue, run queue.Ref
	attempt    int
}

// paper is a queue on paper: what was published, and what the canary says.
type paper struct {
	mu       sync.Mutex
	sent     []published
	prepared []queue.Ref
	refuse   error // of Publish
	canary   func(context.Context) queue.Health
}

func (p *paper) Prepare(_ context.Context, queues []queue.Ref) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepared = queues
	return nil
}

func (p *paper) Publish(_ context.Context, q, run queue.Ref, attempt int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return p.refuse
	}
	p.sent = append(p.sent, published{q, run, attempt})
	return nil
}

func (p *paper) Canary(ctx context.Context) queue.Health {
	if p.canary != nil {
		return p.canary(ctx)
	}
	return queue.Health{Reason: queue.Good}
}

// take returns what was published and forgets it.
func (p *paper) take() []published {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent := p.sent
	p.sent = nil
	return sent
}

const testLink = "https://console.example"

// box is a receiver of messages on paper.
type box struct {
	mu     sync.Mutex
	took   []notify.Message // but for probes
	ids    []string
	refuse func(notify.Message) error
}

func (b *box) Post(_ context.Context, id string, body []byte) error {
	var m notify.Message
	if err := json.Unmarshal(body, &m); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse != nil {
		if err := b.refuse(m); err != nil {
			return err
		}
	}
	if m.Type != notify.TypeProbe {
		b.took, b.ids = append(b.took, m), append(b.ids, id)
	}
	return nil
}

// take returns what came and forgets it.
func (b *box) take() []notify.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	took := b.took
	b.took = nil
	return took
}

// newScheduler is a replica on a world's database.
func newScheduler(t testing.TB, w *fixture.World, q Queue, change ...func(*Config)) *Scheduler {
	t.Helper()
	c := Config{Pool: w.DB.Pool(t, "nw_scheduler"), Queue: q, Webhook: &box{}, Link: testLink}
	_, _ = rand.Read(c.Instance[:])
	for _, f := range change {
		f(&c)
	}
	s, err := New(c)
	require.NoError(t, err)
	return s
}

// stage is an open world with one replica and a queue on paper.
type stage struct {
	*fixture.World
	paper *paper
	*Scheduler
}

func newStage(t testing.TB, change ...func(*Config)) *stage {
	t.Helper()
	w, p := fixture.New(t), &paper{}
	w.OpenGate(t)
	return &stage{w, p, newScheduler(t, w, p, change...)}
}

// patient lets the scheduler's role wait for locks as long as a test needs.
// Pools that are opened afterwards have it.
func patient(t testing.TB, w *fixture.World) {
	t.Helper()
	for _, setting := range []string{"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} {
		w.Exec(t, `ALTER ROLE nw_scheduler IN DATABASE `+w.DB.Name+` SET `+setting+` = '60s'`)
	}
}

// keepOpen opens the gate again whenever a replica has closed it: on a busy
// machine a probe may be late.
func keepOpen(t testing.TB, w *fixture.World) {
	t.Helper()
	w.OpenGate(t)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				_, _ = w.Owner.Exec(ctx, `UPDATE nw.readiness_decision SET state = 'open', epoch = epoch + 1, sequence = sequence + 1, reason = 'good', since = clock_timestamp(),
					valid_until = clock_timestamp() + interval '1 hour' WHERE state = 'closed'`) // else in a moment
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// watch looks at a world's database as the superuser, who sees what others wait for.
func watch(t testing.TB, w *fixture.World) *pgxpool.Pool {
	t.Helper()
	return w.DB.Pool(t, teststack.Superuser)
}

func isBlocked(t testing.TB, watched *pgxpool.Pool) (waits bool) {
	err := watched.QueryRow(within(t), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
	return err == nil && waits
}

// blocked waits until somebody in the watched database waits for a lock.
func blocked(t testing.TB, watched *pgxpool.Pool) {
	t.Helper()
	require.Eventually(t, func() bool { return isBlocked(t, watched) }, testWithin, 2*time.Millisecond)
}

// natsBench is a real server for queues.
type natsBench struct {
	server *localstack.NATS
	js     jetstream.JetStream
}

func newNATS(t testing.TB) *natsBench {
	t.Helper()
	b := &natsBench{server: teststack.NATS(t)}
	var err error
	b.js, err = jetstream.New(b.dial(t))
	require.NoError(t, err)
	return b
}

func (b *natsBench) dial(t testing.TB) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(b.server.URL(teststack.Admin), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// queue is the queue of a process that has just started.
func (b *natsBench) queue(t testing.TB) *queue.Queue {
	t.Helper()
	c := queue.Config{Conn: b.dial(t), Settings: queue.Settings{Replicas: 1}, Monitors: []string{b.server.MonitorURL()}}
	_, _ = rand.Read(c.Instance[:])
	q, err := queue.New(c)
	require.NoError(t, err)
	return q
}

// next takes one message from a queue and acknowledges it.
func (b *natsBench) next(t testing.TB, q queue.Ref) (reference, id string) {
	t.Helper()
	consumer, err := b.js.Consumer(within(t), queue.Stream, queue.Consumer(q))
	require.NoError(t, err)
	message, err := consumer.Next(jetstream.FetchMaxWait(20 * time.Second))
	require.NoError(t, err)
	require.NoError(t, message.DoubleAck(within(t)))
	return string(message.Data()), message.Headers().Get(jetstream.MsgIDHeader)
}

// total adds up what a collector has counted.
func total(t testing.TB, c prometheus.Collector) (sum float64) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
