package queue

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testWithin = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testWithin)
	t.Cleanup(cancel)
	return ctx
}

func newRef() (r Ref) {
	_, _ = rand.Read(r[:])
	return r
}

// dial connects as a user of the server.
func dial(t testing.TB, server *localstack.NATS, user string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append(options, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	conn, err := nats.Connect(server.URL(user), options...)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// bench is a server, its administrator and a queue.
type bench struct {
	server *localstack.NATS
	js     jetstream.JetStream
	queue  *Queue
}

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{server: teststack.NATS(t)}
	var err error
	b.js, err = jetstream.New(dial(t, b.server, teststack.Admin))
	require.NoError(t, err)
	b.queue = b.another(t)
	return b
}

// another is the queue of a process that has just started.
func (b *bench) another(t testing.TB) *Queue {
	t.Helper()
	c := Config{Conn: dial(t, b.server, teststack.Admin), Settings: Settings{Replicas: 1}, Monitors: []string{b.server.MonitorURL()}}
	_, _ = rand.Read(c.Instance[:])
	q, err := New(c)
	require.NoError(t, err)
	return q
}

// take returns the next message of a queue, acknowledged.
func (b *bench) take(t testing.TB, queue Ref) string {
	t.Helper()
	consumer, err := b.js.Consumer(within(t), Stream, Consumer(queue))
	require.NoError(t, err)
	message, err := consumer.Next(jetstream.FetchMaxWait(5 * time.Second))
	require.NoError(t, err)
	require.NoError(t, message.DoubleAck(within(t)))
	return string(message.Data())
}

// waiting is how many messages the stream holds on a subject.
func (b *bench) waiting(t testing.TB, subject string) uint64 {
	t.Helper()
	stream, err := b.js.Stream(within(t), Stream)
	require.NoError(t, err)
	info, err := stream.Info(within(t), jetstream.WithSubjectFilter(subject))
	require.NoError(t, err)
	return info.State.Subjects[subject]
}

// fill publishes messages of a size, of at least so many bytes together,
// refused or not.
func (b *bench) fill(t testing.TB, subject string, size, bytes int) {
	t.Helper()
	filler := make([]byte, size)
	for range 1 + bytes/size {
		_, err := b.js.PublishAsync(subject, filler)
		require.NoError(t, err)
	}
	select {
	case <-b.js.PublishAsyncComplete():
	case <-within(t).Done():
		t.Fatal("the stream was not filled in time")
	}
}
