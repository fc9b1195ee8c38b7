package queue

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func requireReason(t testing.TB, want Reason, got Health) {
	t.Helper()
	require.Equal(t, want, got.Reason, "%v", got.Err)
	require.Equal(t, want == Good, got.OK())
	require.Equal(t, want == Good, got.Err == nil)
}

func TestNoHealthIsNotGood(t *testing.T) {
	t.Parallel()
	require.False(t, Health{}.OK())
}

func TestTheCanaryComesBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	requireReason(t, Wrong, b.queue.Canary(within(t)))
	queue := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	require.NoError(t, b.queue.Publish(within(t), queue, newRef(), 1))

	// Two processes at once; neither takes the other's, nor a run's message.
	other := b.another(t)
	for range 3 {
		requireReason(t, Good, b.queue.Canary(within(t)))
		requireReason(t, Good, other.Canary(within(t)))
	}
	require.Zero(t, b.waiting(t, canarySubjects+b.queue.name))
	require.EqualValues(t, 1, b.waiting(t, Subject(queue)))
}

// A process that starts again finds the consumer of its last life, also one
// that an older release made.
func TestACanaryOfAnEarlierLife(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	want := consumer(canaryPrefix+b.queue.name, canarySubjects+b.queue.name)
	want.MaxAckPending = 7
	_, err := b.js.CreateConsumer(within(t), Stream, want)
	require.NoError(t, err)
	requireReason(t, Good, b.queue.Canary(within(t)))
	again := b.another(t)
	again.name = b.queue.name
	requireReason(t, Good, again.Canary(within(t)))
}

// A probe that was cut off leaves its message behind; the next one is not
// satisfied with that.
func TestAnOldCanaryDoesNotCount(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	for range 3 {
		_, err := b.js.Publish(within(t), canarySubjects+b.queue.name, []byte("old"))
		require.NoError(t, err)
	}
	requireReason(t, Good, b.queue.Canary(within(t)))
	require.Zero(t, b.waiting(t, canarySubjects+b.queue.name))
}

func TestACanaryThatDoesNotComeBack(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	requireReason(t, Good, b.queue.Canary(within(t)))
	stream, err := b.js.Stream(within(t), Stream)
	require.NoError(t, err)
	_, err = stream.PauseConsumer(within(t), canaryPrefix+b.queue.name, time.Now().Add(time.Hour))
	require.NoError(t, err)
	requireReason(t, Silent, b.queue.Canary(within(t)))

	// And one whose consumer is gone: this probe fails, the next begins anew.
	require.NoError(t, stream.DeleteConsumer(within(t), canaryPrefix+b.queue.name))
	requireReason(t, Good, b.queue.Canary(within(t)))
	require.NoError(t, stream.DeleteConsumer(within(t), canaryPrefix+b.queue.name))
	requireReason(t, Silent, b.queue.Canary(within(t)))
	requireReason(t, Good, b.queue.Canary(within(t)))
}

func TestDeletedThingsAreReported(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queue := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	requireReason(t, Good, b.queue.Canary(within(t)))

	require.NoError(t, b.js.DeleteConsumer(within(t), Stream, Consumer(queue)))
	health := b.queue.Canary(within(t))
	requireReason(t, Wrong, health)
	require.Equal(t, "consumer "+Consumer(queue), settingOf(t, health.Err).Of)

	require.NoError(t, b.js.DeleteStream(within(t), Stream))
	for range 2 { // it does not heal by itself
		health = b.queue.Canary(within(t))
		requireReason(t, Wrong, health)
		require.Equal(t, "stream "+Stream, settingOf(t, health.Err).Of)
	}
	require.NoError(t, Ensure(within(t), b.js, Settings{Replicas: 1}, []Ref{queue}))
	requireReason(t, Silent, b.queue.Canary(within(t))) // its consumer went with the stream
	requireReason(t, Good, b.queue.Canary(within(t)))
}

func TestASettingThatChangesIsReported(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	queue := newRef()
	require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
	config := queueConsumer(queue)
	config.MaxDeliver = 3
	_, err := b.js.UpdateConsumer(within(t), Stream, config)
	require.NoError(t, err)
	health := b.queue.Canary(within(t))
	requireReason(t, Wrong, health)
	require.Equal(t, "max_deliver", settingOf(t, health.Err).Setting)
}

func TestAServerThatIsAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	requireReason(t, Good, b.queue.Canary(within(t)))
	b.server.Stop()
	requireReason(t, Unreachable, b.queue.Canary(within(t)))
	require.NoError(t, b.server.Restart(within(t)))
	require.Eventually(t, func() bool { return b.queue.Canary(within(t)).OK() }, testWithin, 10*time.Millisecond)
}

func TestAProbeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	require.False(t, b.queue.Canary(ctx).OK())
}

// The server's own settings come from its monitoring page.
func TestMonitoringPages(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), nil))
	id := b.queue.conn.ConnectedServerId()
	good := fmt.Sprintf(`{"server_id":%q,"jetstream":{"config":{"sync_always":true}}}`, id)
	lazy := fmt.Sprintf(`{"server_id":%q,"jetstream":{"config":{"sync_interval":120000000000}}}`, id)
	cases := map[string]struct {
		answer http.HandlerFunc
		want   Reason
	}{
		"good":           {page(good), Good},
		"lazy":           {page(lazy), Wrong},
		"no JetStream":   {page(fmt.Sprintf(`{"server_id":%q}`, id)), Wrong},
		"another server": {page(strings.Replace(good, id, "N"+id, 1)), Wrong},
		"no page":        {http.NotFound, Unreachable},
		"no JSON":        {page("<html>"), Unreachable},
		"endless":        {page(`{"x":"` + strings.Repeat("x", maxVarz)), Unreachable},
		"moved":          {http.RedirectHandler(b.server.MonitorURL()+"/varz", http.StatusFound).ServeHTTP, Unreachable},
		"silent":         {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Unreachable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(c.answer)
			defer server.Close()
			b.queue.monitors = []string{server.URL + "/"}
			requireReason(t, c.want, b.queue.Canary(within(t)))
			if name != "another server" {
				b.queue.monitors = []string{b.server.MonitorURL(), server.URL} // half is no majority
				requireReason(t, c.want, b.queue.Canary(within(t)))
			}
			// Of three, one may be away, and none may be wrong.
			b.queue.monitors = []string{server.URL, b.server.MonitorURL(), b.server.MonitorURL()}
			if c.want == Unreachable || name == "another server" {
				c.want = Good
			}
			requireReason(t, c.want, b.queue.Canary(within(t)))
		})
	}
}

func page(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }
}

func TestOnlyASettingIsASettingError(t *testing.T) {
	t.Parallel()
	requireReason(t, Wrong, judged(fmt.Errorf("x: %w", &SettingError{}), Silent))
	requireReason(t, Silent, judged(jetstream.ErrStreamNotFound, Silent))
}

// Whatever an administrator changes on the stream closes with the next probe;
// what he sets right again opens with the next, and nothing has to be restarted.
func TestAStreamThatChanges(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.queue.Prepare(within(t), []Ref{newRef()}))
	requireReason(t, Good, b.queue.Canary(within(t)))
	good := Settings{Replicas: 1}.stream()
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"max_age":              func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour },
		"max_bytes":            func(c *jetstream.StreamConfig) { c.MaxBytes /= 2 },
		"max_msgs":             func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 },
		"max_msgs_per_subject": func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1000 },
		"max_msg_size":         func(c *jetstream.StreamConfig) { c.MaxMsgSize = 100 },
		"discard":              func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld },
		"duplicate_window":     func(c *jetstream.StreamConfig) { c.Duplicates = time.Second },
		"subjects":             func(c *jetstream.StreamConfig) { c.Subjects = append([]string{"elsewhere"}, c.Subjects...) },
		"allow_direct":         func(c *jetstream.StreamConfig) { c.AllowDirect = true },
		"republish":            func(c *jetstream.StreamConfig) { c.RePublish = &jetstream.RePublish{Destination: "elsewhere.>"} },
	} {
		changed := good
		change(&changed)
		_, err := b.js.UpdateStream(within(t), changed)
		require.NoError(t, err, setting)
		health := b.queue.Canary(within(t))
		requireReason(t, Wrong, health)
		require.Equal(t, setting, settingOf(t, health.Err).Setting)

		_, err = b.js.UpdateStream(within(t), good)
		require.NoError(t, err, setting)
		requireReason(t, Good, b.queue.Canary(within(t)))
	}
}

// What cannot be changed can be made anew: the stream of somebody else under
// our name is not ours, and neither is one with fewer replicas.
func TestAStreamThatWasMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.queue.settings.MaxBytes = minMaxBytes // fits into memory too
	require.NoError(t, b.queue.Prepare(within(t), nil))
	for setting, change := range map[string]func(*jetstream.StreamConfig){
		"retention":    func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy },
		"storage":      func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage },
		"persist_mode": func(c *jetstream.StreamConfig) { c.PersistMode = jetstream.AsyncPersistMode },
	} {
		require.NoError(t, b.js.DeleteStream(within(t), Stream))
		changed := b.queue.settings.stream()
		change(&changed)
		_, err := b.js.CreateStream(within(t), changed)
		require.NoError(t, err)
		health := b.queue.Canary(within(t))
		requireReason(t, Wrong, health)
		require.Equal(t, setting, settingOf(t, health.Err).Setting)
	}
	fewer := newBench(t)
	require.NoError(t, fewer.queue.Prepare(within(t), nil))
	fewer.queue.settings.Replicas = 3
	health := fewer.queue.Canary(within(t))
	requireReason(t, Wrong, health)
	require.Equal(t, "num_replicas", settingOf(t, health.Err).Setting)
}

// Nothing lost is healed by itself; a step of an operator heals it, for every
// scheduler that runs: a start of any of them, or [Ensure] by hand.
func TestAnOperatorHeals(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*bench, Ref) error{
		"stream":   func(b *bench, _ Ref) error { return b.js.DeleteStream(within(t), Stream) },
		"consumer": func(b *bench, queue Ref) error { return b.js.DeleteConsumer(within(t), Stream, Consumer(queue)) },
	} {
		for step, heal := range map[string]func(*bench, Ref) error{
			"a start": func(b *bench, queue Ref) error { return b.another(t).Prepare(within(t), []Ref{queue}) },
			"by hand": func(b *bench, queue Ref) error {
				return Ensure(within(t), b.js, Settings{Replicas: 1}, []Ref{queue})
			},
		} {
			t.Run(name+", "+step, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				queue := newRef()
				require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}))
				requireReason(t, Good, b.queue.Canary(within(t)))
				require.NoError(t, lose(b, queue))
				for range 3 {
					require.NoError(t, b.queue.Prepare(within(t), []Ref{queue}), "it repairs nothing")
					requireReason(t, Wrong, b.queue.Canary(within(t)))
				}
				require.NoError(t, heal(b, queue))
				require.Eventually(t, func() bool { return b.queue.Canary(within(t)).OK() }, testWithin, 10*time.Millisecond)
				require.NoError(t, b.queue.Publish(within(t), queue, newRef(), 1))
			})
		}
	}
}
