package scheduler

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

type reportRow struct {
	Sequence int64
	Boot     int64
	Healthy  bool
	Reason   string
	Age      float64 // seconds between the probe's begin and the report's arrival
}

// reported is what this replica has reported, at most one row.
func (s *stage) reported(t testing.TB) []reportRow {
	t.Helper()
	return fixture.List[reportRow](t, s.World, `SELECT r.sequence, r.boot, r.healthy, r.reason::text,
			extract(epoch FROM r.expires_at - interval '3 seconds' - r.began_at)::float8 + extract(epoch FROM clock_timestamp() - r.expires_at + interval '3 seconds')::float8
		FROM nw.readiness_reports r JOIN nw.instances i ON i.id = r.instance_id WHERE i.instance = $1 AND i.kind = 'scheduler' AND r.family = 'queue'`, s.instance[:])
}

func (s *stage) gate(t testing.TB) string {
	t.Helper()
	return fixture.Value[string](t, s.World, `SELECT state || '/' || reason || '/' || coalesce(family::text, '') FROM nw.readiness_decision`)
}

func TestAGoodQueueIsReported(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for want := int64(1); want <= 3; want++ {
		require.NoError(t, s.reportOnce(within(t)))
		rows := s.reported(t)
		require.Len(t, rows, 1)
		require.Equal(t, want, rows[0].Sequence)
		require.True(t, rows[0].Healthy)
		require.Equal(t, "good", rows[0].Reason)
		require.EqualValues(t, 1, rows[0].Boot)
	}
	require.Equal(t, "open/good/", s.gate(t))
	require.InDelta(t, 1, total(t, s.metrics.queueGood), 0)
}

// A probe that ends well is never taken for one that did not end, however late
// its result is read.
func TestAResultIsNeverMissed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 500 {
		require.Equal(t, queue.Good, s.reports.probe(within(t)).Reason)
	}
}

// A bad report closes at once, and says why.
func TestABadQueueClosesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, reason := range []queue.Reason{queue.Unreachable, queue.Wrong, queue.Full, queue.Silent} {
		s.CloseGate(t)
		s.OpenGate(t)
		s.paper.canary = func(context.Context) queue.Health { return queue.Health{Reason: reason, Err: errors.New("x")} }
		require.NoError(t, s.reportOnce(within(t)))
		require.Equal(t, "closed/"+string(reason)+"/queue", s.gate(t))
		require.False(t, s.reported(t)[0].Healthy)
		require.InDelta(t, 0, total(t, s.metrics.queueGood), 0)
	}
	s.paper.canary = nil
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, strings.HasPrefix(s.gate(t), "closed/"), "a good report opens nothing by itself")
}

// A probe that never ends is bad news in time, again and again, and leaves one
// goroutine and not many.
func TestAProbeThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.reports.within = 20 * time.Millisecond
	release := make(chan struct{})
	begun := make(chan struct{}, 10)
	s.paper.canary = func(context.Context) queue.Health {
		begun <- struct{}{}
		<-release // whatever its context says
		return queue.Health{Reason: queue.Good}
	}
	for want := int64(1); want <= 3; want++ {
		require.NoError(t, s.reportOnce(within(t)))
		row := s.reported(t)[0]
		require.Equal(t, want, row.Sequence)
		require.False(t, row.Healthy)
		require.Equal(t, "canary", row.Reason)
	}
	require.Equal(t, "closed/canary/queue", s.gate(t))
	close(release)
	s.reports.probes.Wait()
	require.LessOrEqual(t, len(begun), 1)
	s.reports.within = probeWithin
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, s.reported(t)[0].Healthy)
}

func TestAPanicOfTheProbeIsBadNews(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.paper.canary = func(context.Context) queue.Health { panic("in the library") }
	require.NoError(t, s.reportOnce(within(t)))
	require.Equal(t, "unreachable", s.reported(t)[0].Reason)
	s.paper.canary = nil
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, s.reported(t)[0].Healthy)
}

// The age counts from before the probe began.
func TestAReportHasTheAgeOfItsProbe(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	s := newStage(t, func(c *Config) { c.Now = func() time.Time { return clock } })
	slow := func(d time.Duration, reason queue.Reason) {
		s.paper.canary = func(context.Context) queue.Health {
			clock = clock.Add(d)
			return queue.Health{Reason: reason}
		}
	}
	slow(2*time.Second, queue.Good)
	require.NoError(t, s.reportOnce(within(t)))
	require.GreaterOrEqual(t, s.reported(t)[0].Age, 2.0)

	// Older than a report lives, as after a suspend: it does not count.
	slow(10*time.Minute, queue.Good)
	require.ErrorContains(t, s.reportOnce(within(t)), "invalid_request")
	require.EqualValues(t, 1, s.reported(t)[0].Sequence)

	// Bad news count at any age.
	slow(10*time.Minute, queue.Silent)
	require.NoError(t, s.reportOnce(within(t)))
	require.Equal(t, "closed/canary/queue", s.gate(t))
}

func TestElapsedTrustsNoClockAlone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	require.Equal(t, time.Second, elapsed(now, now.Add(time.Second)))
	require.Equal(t, time.Duration(0), elapsed(now, now.Add(-time.Second)))
	wall := now.Round(0)
	require.Equal(t, time.Hour, elapsed(wall, wall.Add(time.Hour)), "without a monotonic reading")
}

// Two processes as one instance: the later one counts, the earlier one ends.
func TestALaterBootSupersedes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	require.NoError(t, s.reportOnce(within(t)))
	later := newScheduler(t, s.World, s.paper, func(c *Config) { c.Instance = s.instance })
	require.NoError(t, later.reportOnce(within(t)))
	require.ErrorIs(t, s.reportOnce(within(t)), ErrSuperseded)
	row := s.reported(t)[0]
	require.EqualValues(t, 2, row.Boot)
	require.EqualValues(t, 1, row.Sequence)
	require.NoError(t, later.reportOnce(within(t)))
}

// An older database does not know this boot: it is registered anew.
func TestARestoredDatabaseNumbersTheBootAnew(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.boot.who = registration{instance: 4711, boot: 9}
	require.ErrorContains(t, s.reportOnce(within(t)), "not_found")
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, s.reported(t)[0].Healthy)
}

// A replica that leaves is not an outage.
func TestWhoeverLeavesSaysNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	require.NoError(t, s.reportOnce(within(t)))
	ctx, cancel := context.WithCancel(within(t))
	s.paper.canary = func(context.Context) queue.Health {
		cancel()
		return queue.Health{Reason: queue.Silent}
	}
	require.ErrorIs(t, s.reportOnce(ctx), context.Canceled)
	require.InDelta(t, 1, total(t, s.metrics.queueGood), 0, "and alarms nobody")
	require.EqualValues(t, 1, s.reported(t)[0].Sequence)
	require.Equal(t, "open/good/", s.gate(t))
	s.reports.probes.Wait()
}

func TestALoopThatIsStuckIsBadNews(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.relay.mark(func(h *LoopHealth) { h.Began = s.now().Add(-stuckAfter + time.Minute/4) })
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, s.reported(t)[0].Healthy, "a long step is not a stuck one")
	s.relay.mark(func(h *LoopHealth) { h.Began = s.now().Add(-stuckAfter - time.Second) })
	require.NoError(t, s.reportOnce(within(t)))
	require.Equal(t, "closed/unhealthy/queue", s.gate(t))
}

func TestADeletedConsumerIsReportedAndStaysDeleted(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	w.OpenGate(t)
	s := &stage{w, nil, newScheduler(t, w, b.queue(t))}
	require.NoError(t, s.reportOnce(within(t)))
	require.True(t, s.reported(t)[0].Healthy)
	name := queue.Consumer(queue.Ref(w.Queue))
	require.NoError(t, b.js.DeleteConsumer(within(t), queue.Stream, name))
	for range 2 {
		require.NoError(t, s.reportOnce(within(t)))
		require.Equal(t, "closed/settings/queue", s.gate(t))
		_, err := b.js.Consumer(within(t), queue.Stream, name)
		require.ErrorIs(t, err, jetstream.ErrConsumerNotFound)
	}
}

// A role that is registered later gets its queue without a restart.
func TestANewQueueIsMadeReady(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	s := &stage{w, nil, newScheduler(t, w, b.queue(t))}
	require.NoError(t, s.reportOnce(within(t)))
	fresh := fixture.NewRef()
	w.Exec(t, `INSERT INTO nw.role_queues VALUES ($1, $2)`, fixture.Random(), fresh[:])
	require.NoError(t, s.reportOnce(within(t)))
	_, err := b.js.Consumer(within(t), queue.Stream, queue.Consumer(queue.Ref(fresh)))
	require.NoError(t, err)
	require.True(t, s.reported(t)[0].Healthy)
}

func TestAWrongStreamIsReported(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	w.OpenGate(t)
	s := &stage{w, nil, newScheduler(t, w, b.queue(t))}
	_, err := b.js.CreateStream(within(t), jetstream.StreamConfig{Name: queue.Stream, Subjects: []string{"nw.>"}})
	require.NoError(t, err)
	require.NoError(t, s.reportOnce(within(t)))
	require.Equal(t, "closed/settings/queue", s.gate(t))
}

func TestAChangeIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newStage(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for _, reason := range []queue.Reason{queue.Good, queue.Good, queue.Silent, queue.Silent, queue.Silent, queue.Good} {
		s.paper.canary = func(context.Context) queue.Health { return queue.Health{Reason: reason} }
		require.NoError(t, s.reportOnce(within(t)))
	}
	require.Equal(t, 2, strings.Count(log.String(), "the queue is good"))
	require.Equal(t, 1, strings.Count(log.String(), "the queue is not good"))
}

// The reasons that are reported are words of the database.
func TestReasonsAreReportable(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	for _, reason := range []queue.Reason{queue.Good, queue.Unreachable, queue.Wrong, queue.Silent, reasonStuck} {
		require.Equal(t, string(reason), fixture.Value[string](t, w, `SELECT $1::text::nw.reason::text`, string(reason)))
	}
}
