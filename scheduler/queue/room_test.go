package queue

import (
	"math"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/disk"
)

func TestHasRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used uint64
		most int64
		full bool
	}{
		{0, 1000, false}, {899, 1000, false}, {900, 1000, true}, {1001, 1000, true}, {1, 1, true}, {math.MaxUint64, math.MaxInt64, true},
		{math.MaxUint64, 0, false}, {math.MaxUint64, -1, false}, // no limit
	} {
		require.Equal(t, c.full, hasRoom("it", c.used, c.most) != nil, "%+v", c)
	}
	require.EqualError(t, hasRoom("the account", 95, 100), "the account stores 95 bytes of 100, which is too close")
}

// A stream that fills up is bad before it refuses anything, and good again when
// its messages were taken.
func TestAStreamThatIsNearlyFull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue.settings.MaxBytes = minMaxBytes
	queue := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	b.fill(t, Subject(queue), 480, minMaxBytes*4/5)
	requireReason(t, Good, b.queue.Canary(within(t)))

	b.fill(t, Subject(queue), 480, minMaxBytes/9)
	health := b.queue.Canary(within(t))
	requireReason(t, Full, health)
	require.ErrorContains(t, health.Err, "stream "+Stream)
	require.NoError(t, b.queue.Publish(within(t), queue, newRef(), 1), "it has not refused anything yet")

	for range 400 {
		b.take(t, queue)
	}
	requireReason(t, Good, b.queue.Canary(within(t)))
}

// The disk under the queue's feet is part of its health, and comes first: it is
// the cause of much else.
func TestADiskThatIsNearlyFull(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	requireReason(t, Good, b.queue.Canary(within(t)))
	b.queue.disk = disk.Watch{Paths: []string{b.server.Dir()}, Percent: 101}
	health := b.queue.Canary(within(t))
	requireReason(t, Full, health)
	require.ErrorContains(t, health.Err, b.server.Dir())
	b.server.Stop()
	requireReason(t, Full, b.queue.Canary(within(t)))
}

// What others store counts where it can take this queue's room away.
func TestLimitsOfServerAndAccount(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for of, most := range map[string]limits{
		"the account": {server: 64 * mib, account: 3 * mib},
		"server N":    {server: 3 * mib, account: -1},
	} {
		b := newOwn(t, most)
		require.NoError(t, b.queue.Prepare(within(t), nil))
		requireReason(t, Good, b.queue.Canary(within(t)))
		_, err := b.js.CreateStream(within(t), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}, Storage: jetstream.FileStorage})
		require.NoError(t, err)
		b.fill(t, "other", 64<<10, 3*mib*92/100)
		health := b.queue.Canary(within(t))
		requireReason(t, Full, health)
		require.ErrorContains(t, health.Err, of)

		require.NoError(t, b.js.DeleteStream(within(t), "OTHER"))
		requireReason(t, Good, b.queue.Canary(within(t)))
	}
}
