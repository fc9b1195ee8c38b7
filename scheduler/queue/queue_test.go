package queue

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	server := teststack.NATS(t)
	conn := dial(t, server, teststack.Admin)
	for _, c := range []Config{
		{Settings: Settings{Replicas: 1}, Monitors: []string{server.MonitorURL()}},
		{Conn: conn, Settings: Settings{Replicas: 1}},
		{Conn: conn, Settings: Settings{Replicas: 4}, Monitors: []string{server.MonitorURL()}},
	} {
		_, err := New(c)
		require.Error(t, err)
	}
}

func TestScanBytesTakesAWholeReference(t *testing.T) {
	t.Parallel()
	var r Ref
	for _, n := range []int{0, 15, 17, 32} {
		require.Error(t, r.ScanBytes(make([]byte, n)))
	}
	require.Error(t, r.ScanBytes(nil))
	want := newRef()
	require.NoError(t, r.ScanBytes(want[:]))
	require.Equal(t, want, r)
}

// A message is the reference, on the queue's own subject, and nothing else.
func TestAMessageIsTheReference(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queue, run := newRef(), newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue, newRef()}))
	require.NoError(t, b.queue.Publish(within(t), queue, run, 1))

	stream, err := b.js.Stream(within(t), Stream)
	require.NoError(t, err)
	stored, err := stream.GetMsg(within(t), 1)
	require.NoError(t, err)
	require.Equal(t, "nw.run."+queue.String(), stored.Subject)
	require.Equal(t, run.String(), string(stored.Data))
	require.Len(t, stored.Data, 22)
	require.Equal(t, nats.Header{jetstream.MsgIDHeader: {run.String() + ".1"}, jetstream.ExpectedStreamHeader: {Stream}}, stored.Header)
	require.Equal(t, run.String(), b.take(t, queue))
}

func TestAnAttemptIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queue, run := newRef(), newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	for range 3 {
		require.NoError(t, b.queue.Publish(within(t), queue, run, 1))
	}
	require.EqualValues(t, 1, b.waiting(t, Subject(queue)))
	require.NoError(t, b.queue.Publish(within(t), queue, run, 2))
	require.EqualValues(t, 2, b.waiting(t, Subject(queue)))

	// Also one that was taken meanwhile.
	require.Equal(t, run.String(), b.take(t, queue))
	require.NoError(t, b.queue.Publish(within(t), queue, run, 1))
	require.EqualValues(t, 1, b.waiting(t, Subject(queue)))
}

func TestPublishNeedsTheStream(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.Error(t, b.queue.Publish(within(t), newRef(), newRef(), 1), "there is no stream yet")

	// Somebody else's stream on the same subjects does not count.
	_, err := b.js.CreateStream(within(t), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"nw.>"}})
	require.NoError(t, err)
	require.Error(t, b.queue.Publish(within(t), newRef(), newRef(), 1))
}

func TestPublishEndsInTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	b.server.Stop()
	require.Eventually(t, func() bool { return !b.queue.Connected() }, testWithin, time.Millisecond)
	require.ErrorIs(t, b.queue.Publish(within(t), newRef(), newRef(), 1), context.DeadlineExceeded)
	ended, cancel := context.WithCancel(within(t))
	cancel()
	require.ErrorIs(t, b.queue.Publish(ended, newRef(), newRef(), 1), context.Canceled)
}

// What was there and is gone is not made again behind an operator's back.
func TestPrepareCreatesOnlyWhatIsNew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{old}))
	require.NoError(t, b.js.DeleteConsumer(within(t), Stream, Consumer(old)))
	fresh := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{old, fresh}))
	_, err := b.js.Consumer(within(t), Stream, Consumer(old))
	require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	_, err = b.js.Consumer(within(t), Stream, Consumer(fresh))
	require.NoError(t, err)

	require.NoError(t, b.js.DeleteStream(within(t), Stream))
	require.NoError(t, b.queue.Prepare(within(t), []Ref{old, fresh}), "nothing is new")
	require.Error(t, b.queue.Prepare(within(t), []Ref{old, fresh, newRef()}), "there is no stream to put it on")
	_, err = b.js.Stream(within(t), Stream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	require.NoError(t, b.another(t).Prepare(within(t), []Ref{old}), "a start does")
	require.NoError(t, Check(within(t), b.js, Settings{Replicas: 1}, []Ref{old}))
}

// A full stream refuses new messages and keeps the old ones.
func TestAFullStreamRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue.settings.MaxBytes = minMaxBytes
	queue := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	first := newRef()
	require.NoError(t, b.queue.Publish(within(t), queue, first, 1))
	b.fill(t, Subject(queue), 480, minMaxBytes)
	require.ErrorContains(t, b.queue.Publish(within(t), queue, newRef(), 1), "maximum bytes")
	requireReason(t, Full, b.queue.Canary(within(t)))
	require.Equal(t, first.String(), b.take(t, queue))
}

func TestASchedulerDeletesNothing(t *testing.T) {
	t.Parallel()
	p := SchedulerPermissions()
	server := teststack.NATS(t, localstack.NATSUser{Name: "scheduler", Publish: p.Publish, Subscribe: p.Subscribe})
	w := newWitness(t, server, "scheduler", p)
	q, err := New(Config{Conn: w.conn, Settings: Settings{Replicas: 1}, Monitors: []string{server.MonitorURL()}})
	require.NoError(t, err)
	queue := newRef()
	require.NoError(t, q.Prepare(within(t), []Ref{queue}))
	requireReason(t, Good, q.Canary(within(t)))
	require.NoError(t, q.Publish(within(t), queue, newRef(), 1))
	require.Empty(t, w.denied)

	w.requireDenied(t, api+"STREAM.DELETE."+Stream)
	w.requireDenied(t, api+"STREAM.UPDATE."+Stream)
	w.requireDenied(t, api+"STREAM.PURGE."+Stream)
	w.requireDenied(t, api+"STREAM.CREATE.ANOTHER")
	w.requireDenied(t, api+"CONSUMER.DELETE."+Stream+"."+Consumer(queue))
}

// witness is a connection that sees what the server denies it.
type witness struct {
	conn   *nats.Conn
	denied chan error
}

func newWitness(t testing.TB, server *localstack.NATS, user string, p Permissions) *witness {
	t.Helper()
	w := &witness{denied: make(chan error, 16)}
	w.conn = dial(t, server, user, nats.CustomInboxPrefix(p.Inbox), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { w.denied <- err }))
	return w
}

func (w *witness) requireDenied(t testing.TB, subject string) {
	t.Helper()
	require.NoError(t, w.conn.Publish(subject, nil))
	select {
	case err := <-w.denied:
		require.ErrorIs(t, err, nats.ErrPermissionViolation)
		require.ErrorContains(t, err, subject)
	case <-within(t).Done():
		t.Fatal(subject, "was not denied")
	}
}
