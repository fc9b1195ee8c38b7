package natsqueue

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	workerUser = "worker"
	limit      = 30 * time.Second // of anything that a test waits for
)

func reference() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// stack is a server with one queue, an operator's view of it and a worker's user who may do the least.
type stack struct {
	nats  *localstack.NATS
	js    jetstream.JetStream
	queue string
}

func start(t *testing.T) *stack {
	t.Helper()
	s := &stack{queue: reference()}
	publish, subscribe := Subjects(s.queue)
	s.nats = teststack.NATS(t, localstack.NATSUser{Name: workerUser, Publish: publish, Subscribe: subscribe})
	conn, err := nats.Connect(s.nats.URL(teststack.Admin), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	s.js, err = jetstream.New(conn)
	require.NoError(t, err)
	_, err = s.js.CreateStream(soon(t), jetstream.StreamConfig{
		Name: Stream, Subjects: []string{"nw.run.*"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, Storage: jetstream.FileStorage,
	})
	require.NoError(t, err)
	return s
}

func (s *stack) consumer() jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: "q_" + s.queue, FilterSubject: "nw.run." + s.queue, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, AckWait: 30 * time.Second,
	}
}

func (s *stack) create(t *testing.T, c jetstream.ConsumerConfig) {
	t.Helper()
	_, err := s.js.CreateOrUpdateConsumer(soon(t), Stream, c)
	require.NoError(t, err)
}

func (s *stack) publish(t *testing.T, body string) {
	t.Helper()
	_, err := s.js.Publish(soon(t), "nw.run."+s.queue, []byte(body))
	require.NoError(t, err)
}

func (s *stack) config() Config {
	return Config{URL: s.nats.URL(workerUser), Queue: s.queue}
}

func (s *stack) open(t *testing.T, c Config) *Queue {
	t.Helper()
	q, err := Open(soon(t), c)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, q.Close()) })
	return q
}

// ready is a stack with its consumer, and a queue open on it.
func ready(t *testing.T) (*stack, *Queue) {
	t.Helper()
	s := start(t)
	s.create(t, s.consumer())
	return s, s.open(t, s.config())
}

func (s *stack) left(t *testing.T) uint64 {
	t.Helper()
	stream, err := s.js.Stream(soon(t), Stream)
	require.NoError(t, err)
	return stream.CachedInfo().State.Msgs
}

// empty waits until the server has worked off the acknowledgements that it has received.
func (s *stack) empty(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.left(t) == 0 }, limit, 5*time.Millisecond)
}

func TestOpenRefusesAQueueThatIsNoReference(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"", "short", reference() + "A", "nw.run.>" + strings.Repeat("A", 14), reference()[:21] + "\n"} {
		_, err := Open(t.Context(), Config{URL: "nats://127.0.0.1:1", Queue: queue})
		require.ErrorIs(t, err, ErrConfiguration, "%q", queue)
	}
}

func TestOpenSaysAtOnceThatNobodyAnswers(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"nats://127.0.0.1:1", "nats://worker:hunter2@127.0.0.1:1", "nats://worker:hunter2@127.0.0.1:not-a-port", "::hunter2::"} {
		_, err := Open(t.Context(), Config{URL: address, Queue: reference()})
		require.ErrorIs(t, err, ErrUnreachable)
		assert.NotContains(t, err.Error(), "hunter2")
	}
}

func TestOpenIsRefusedWithAnotherPassword(t *testing.T) {
	t.Parallel()
	s, _ := ready(t)
	c := s.config()
	c.URL, c.User, c.Password = strings.Replace(c.URL, url.PathEscape(workerUser)+":", "nobody:", 1), "", ""
	_, err := Open(soon(t), c)
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

func TestOpenTakesUserAndPasswordBesideTheURL(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, s.consumer())
	c := s.config()
	u, err := url.Parse(c.URL)
	require.NoError(t, err)
	c.User = u.User.Username()
	c.Password, _ = u.User.Password()
	u.User = nil
	c.URL = u.String()
	s.open(t, c)
}

func TestOpenCreatesNothing(t *testing.T) {
	t.Parallel()
	s := start(t)
	_, err := Open(soon(t), s.config())
	require.ErrorIs(t, err, ErrGone, "the consumer is missing")
	c := s.config()
	c.URL = s.nats.URL(teststack.Admin)
	_, err = Open(soon(t), c)
	require.ErrorIs(t, err, ErrGone, "also for a user who could create it")
	require.NoError(t, s.js.DeleteStream(soon(t), Stream))
	_, err = Open(soon(t), c)
	require.ErrorIs(t, err, ErrGone, "the stream is missing")
	_, err = s.js.Stream(soon(t), Stream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

// Queue rows 41 and 5 of the cases: a consumer that gives up loses runs, one without explicit acks drops them.
func TestOpenRefusesAConsumerThatWouldLoseRuns(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(*jetstream.ConsumerConfig){
		"gives up":      func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 3 },
		"other subject": func(c *jetstream.ConsumerConfig) { c.FilterSubject = "nw.run." + reference() },
		"all subjects":  func(c *jetstream.ConsumerConfig) { c.FilterSubject = "" },
		"two subjects": func(c *jetstream.ConsumerConfig) {
			c.FilterSubjects, c.FilterSubject = []string{c.FilterSubject, "nw.run." + reference()}, ""
		},
		"not durable": func(c *jetstream.ConsumerConfig) { c.Name, c.Durable, c.InactiveThreshold = c.Durable, "", time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			c := s.consumer()
			alter(&c)
			s.create(t, c)
			_, err := Open(soon(t), s.config())
			require.ErrorIs(t, err, ErrConfiguration)
		})
	}
}

func TestOpenRefusesOtherKindsOfConsumers(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]jetstream.AckPolicy{"acknowledges nothing": jetstream.AckNonePolicy, "acknowledges all": jetstream.AckAllPolicy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			require.NoError(t, s.js.DeleteStream(soon(t), Stream))
			_, err := s.js.CreateStream(soon(t), jetstream.StreamConfig{Name: Stream, Subjects: []string{"nw.run.*"}})
			require.NoError(t, err)
			c := s.consumer()
			c.AckPolicy = policy
			s.create(t, c)
			_, err = Open(soon(t), s.config())
			require.ErrorIs(t, err, ErrConfiguration)
		})
	}
	t.Run("push", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		_, err := s.js.CreatePushConsumer(soon(t), Stream, jetstream.ConsumerConfig{
			Durable: "q_" + s.queue, FilterSubject: "nw.run." + s.queue, AckPolicy: jetstream.AckExplicitPolicy, DeliverSubject: "elsewhere",
		})
		require.NoError(t, err)
		_, err = Open(soon(t), s.config())
		require.ErrorIs(t, err, ErrConfiguration)
	})
}

func TestPullAck(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	want := reference()
	s.publish(t, want)
	m, err := q.Pull(soon(t))
	require.NoError(t, err)
	assert.Equal(t, want, m.Reference())
	assert.EqualValues(t, 1, s.left(t), "kept until it is acknowledged")
	require.NoError(t, m.Ack())
	require.NoError(t, q.Close())
	s.empty(t)
}

func TestNakDelivers(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	s.publish(t, reference())
	m, err := q.Pull(soon(t))
	require.NoError(t, err)
	const delay = 300 * time.Millisecond
	begin := time.Now()
	require.NoError(t, m.Nak(delay))
	again, err := q.Pull(soon(t))
	require.NoError(t, err)
	assert.Equal(t, m.Reference(), again.Reference())
	assert.GreaterOrEqual(t, time.Since(begin), delay)
}

func TestUnacknowledgedComesBack(t *testing.T) {
	t.Parallel()
	s := start(t)
	c := s.consumer()
	c.AckWait = 200 * time.Millisecond
	s.create(t, c)
	q := s.open(t, s.config())
	s.publish(t, reference())
	first, err := q.Pull(soon(t))
	require.NoError(t, err)
	second, err := q.Pull(soon(t))
	require.NoError(t, err)
	assert.Equal(t, first.Reference(), second.Reference())
	require.NoError(t, first.Ack(), "a late ack of the first holder is possible, which is why it means nothing")
}

func TestPullersShareAQueue(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	const n = 8
	got := make(chan string, n)
	for range n {
		go func() {
			m, err := q.Pull(soon(t))
			if assert.NoError(t, err) {
				assert.NoError(t, m.Ack())
				got <- m.Reference()
			}
		}()
	}
	want := map[string]bool{}
	for range n {
		r := reference()
		want[r] = true
		s.publish(t, r)
	}
	for range n {
		r := <-got
		assert.True(t, want[r], "delivered twice or unknown")
		delete(want, r)
	}
}

func TestWhatIsNoReferenceIsTerminated(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	bad := []string{"x", reference() + "=", strings.Repeat("A", 21) + "B", strings.Repeat("A", 21) + "\n", `{"ref":"AAAAAAAAAAAAAA"}`, strings.Repeat("A", 100_000)}
	for _, body := range bad {
		s.publish(t, body)
	}
	want := reference()
	s.publish(t, want)
	m, err := q.Pull(soon(t))
	require.NoError(t, err)
	assert.Equal(t, want, m.Reference())
	require.NoError(t, m.Ack())
	assert.EqualValues(t, len(bad), q.Terminated())
	require.NoError(t, q.Close())
	s.empty(t)
}

func TestPullEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, q := ready(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := q.Pull(ctx)
		ended <- err
	}()
	cancel()
	require.ErrorIs(t, within(t, ended), context.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := q.Pull(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "however short")
}

func within(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		require.FailNow(t, "did not end")
		return nil
	}
}

// pulling starts a Pull and returns when the server waits with it.
func (s *stack) pulling(t *testing.T, q *Queue) chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := q.Pull(soon(t))
		ended <- err
	}()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		consumer, err := s.js.Consumer(soon(t), Stream, "q_"+s.queue)
		require.NoError(c, err)
		assert.Positive(c, consumer.CachedInfo().NumWaiting)
	}, limit, 5*time.Millisecond)
	return ended
}

// Queue row 39 of the cases: a consumer that is gone was logged for ever by a process that looked healthy.
func TestPullSaysThatItsConsumerIsGone(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(t *testing.T, s *stack) error{
		"consumer": func(t *testing.T, s *stack) error { return s.js.DeleteConsumer(soon(t), Stream, "q_"+s.queue) },
		"stream":   func(t *testing.T, s *stack) error { return s.js.DeleteStream(soon(t), Stream) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.create(t, s.consumer())
			c := s.config()
			c.Patience = time.Millisecond
			q := s.open(t, c)
			ended := s.pulling(t, q)
			require.NoError(t, remove(t, s))
			require.ErrorIs(t, within(t, ended), ErrGone)
			_, err := q.Pull(soon(t))
			require.ErrorIs(t, err, ErrGone, "also when it was gone before")
		})
	}
}

func TestPullWaitsForAConsumerToComeBack(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	ended := s.pulling(t, q)
	require.NoError(t, s.js.DeleteConsumer(soon(t), Stream, "q_"+s.queue))
	s.create(t, s.consumer())
	s.publish(t, reference())
	require.NoError(t, within(t, ended))
}

func TestPullRefusesAConsumerThatCameBackAltered(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	ended := s.pulling(t, q)
	require.NoError(t, s.js.DeleteConsumer(soon(t), Stream, "q_"+s.queue))
	c := s.consumer()
	c.MaxDeliver = 2
	s.create(t, c)
	require.ErrorIs(t, within(t, ended), ErrConfiguration)
}

func TestPullOutlivesARestart(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	ended := s.pulling(t, q)
	require.NoError(t, s.nats.Restart(soon(t)))
	require.Eventually(t, s.js.Conn().IsConnected, limit, 5*time.Millisecond)
	s.publish(t, reference())
	require.NoError(t, within(t, ended))
}

func TestPullSaysThatNobodyAnswers(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(t, s.consumer())
	c := s.config()
	c.Patience = time.Millisecond
	q := s.open(t, c)
	ended := s.pulling(t, q)
	s.nats.Stop()
	require.ErrorIs(t, within(t, ended), ErrUnreachable)
}

func TestCloseEndsPull(t *testing.T) {
	t.Parallel()
	s, q := ready(t)
	ended := s.pulling(t, q)
	require.NoError(t, q.Close())
	require.ErrorIs(t, within(t, ended), ErrClosed)
	require.NoError(t, q.Close(), "again does nothing")
	_, err := q.Pull(soon(t))
	require.ErrorIs(t, err, ErrClosed)
}

// A worker role's user reaches its own queue only, and cannot make, alter or delete anything.
func TestAWorkersUserMayDoNothingElse(t *testing.T) {
	t.Parallel()
	s, _ := ready(t)
	refused := make(chan error, 16)
	conn, err := nats.Connect(s.nats.URL(workerUser), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
	require.NoError(t, err)
	defer conn.Close()
	other := reference()
	for _, subject := range []string{
		"nw.run." + s.queue, "$JS.API.CONSUMER.MSG.NEXT.NW_RUNS.q_" + other, "$JS.API.CONSUMER.DELETE.NW_RUNS.q_" + s.queue,
		"$JS.API.CONSUMER.CREATE.NW_RUNS.q_" + s.queue, "$JS.API.STREAM.MSG.GET.NW_RUNS", "$JS.ACK.NW_RUNS.q_" + other + ".1.1.1.1.0",
	} {
		require.NoError(t, conn.Publish(subject, nil))
		require.NoError(t, conn.Flush())
		require.ErrorIs(t, within(t, refused), nats.ErrPermissionViolation, subject)
	}
	for _, subject := range []string{"nw.run." + s.queue, "_INBOX.>", "_INBOX_" + other + ".>", ">"} {
		_, err := conn.Subscribe(subject, func(*nats.Msg) {})
		require.NoError(t, err)
		require.NoError(t, conn.Flush())
		require.ErrorIs(t, within(t, refused), nats.ErrPermissionViolation, subject)
	}
}

func TestConfigDoesNotPrint(t *testing.T) {
	t.Parallel()
	c := Config{URL: "nats://w:hunter2@h", Queue: reference(), Password: "hunter2", Credentials: "hunter2"}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "config", c, "pointer", &c)
	marshalled, err := json.Marshal(map[string]any{"c": c, "p": &c})
	require.NoError(t, err)
	text := logged.String() + string(marshalled)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		text += fmt.Sprintf(verb, c) + fmt.Sprintf(verb, &c) + fmt.Sprintf(verb, []any{c})
	}
	assert.NotContains(t, text, "hunter2")
	assert.Contains(t, text, c.Queue)
}

func FuzzIsReference(f *testing.F) {
	for _, seed := range []string{"", "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAA\n", "++++++++++++++++++++++", "-_-_-_-_-_-_-_-_-_-_-w"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		raw, err := base64.RawURLEncoding.DecodeString(s)
		want := err == nil && len(raw) == 16 && base64.RawURLEncoding.EncodeToString(raw) == s
		assert.Equal(t, want, isReference([]byte(s)), "%q", s)
	})
}
