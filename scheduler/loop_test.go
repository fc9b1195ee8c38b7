package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// journal is a log that may be read while it is written.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// running is a loop in a bubble, which ends with its test.
func running(t *testing.T, step func(context.Context) error) (*loop, *journal) {
	t.Helper()
	m, err := newMetrics(nil)
	require.NoError(t, err)
	var log journal
	l := &loop{name: "x", every: time.Second, step: step, wakes: make(chan struct{}, 1), metrics: m, now: time.Now, log: slog.New(slog.NewTextHandler(&log, nil))}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		l.run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l, &log
}

// pass lets the bubble's time go on, and all that falls due in it happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestALoopTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps atomic.Int64
		l, _ := running(t, func(context.Context) error { steps.Add(1); return nil })
		synctest.Wait()
		require.EqualValues(t, 1, steps.Load(), "the first step is at once")
		pass(5 * time.Second)
		require.EqualValues(t, 6, steps.Load())
		require.Equal(t, time.Now(), l.health().Good)
		require.Zero(t, l.health().Began)
	})
}

func TestAPanicDoesNotEndALoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps atomic.Int64
		l, log := running(t, func(context.Context) error {
			if steps.Add(1) <= 2 {
				panic("first and second")
			}
			return nil
		})
		pass(1500 * time.Millisecond)
		require.Equal(t, LoopHealth{Name: "x", Failures: 2, Panics: 2}, l.health())
		require.Equal(t, 2, strings.Count(log.String(), "first and second"))
		require.Contains(t, log.String(), "loop_test.go")
		require.InDelta(t, 2, total(t, l.metrics.panics.WithLabelValues("x")), 0)
		pass(time.Second)
		require.EqualValues(t, 3, steps.Load())
		require.Zero(t, l.health().Failures)
		require.Equal(t, 2, l.health().Panics)
	})
}

func TestFailuresAreCountedAndLoggedSparingly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var good atomic.Bool
		l, log := running(t, func(context.Context) error {
			if good.Load() {
				return nil
			}
			return errors.New("nobody there")
		})
		pass(2*repeatLog*time.Second - time.Second/2)
		require.Equal(t, 2*repeatLog, l.health().Failures)
		require.Equal(t, 2, strings.Count(log.String(), "nobody there"))
		good.Store(true)
		pass(2 * time.Second)
		require.Zero(t, l.health().Failures)
		require.Equal(t, 1, strings.Count(log.String(), "works again"))
		require.InDelta(t, 2*repeatLog, total(t, l.metrics.failures.WithLabelValues("x")), 0)
	})
}

// A step that took many intervals, as after a suspend, is followed by one step
// an interval later, not by a burst.
func TestALoopDoesNotCatchUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var began []time.Time
		_, _ = running(t, func(context.Context) error {
			began = append(began, time.Now())
			if len(began) == 1 {
				time.Sleep(10 * time.Minute)
			}
			return nil
		})
		pass(10*time.Minute + 3500*time.Millisecond)
		require.Len(t, began, 4)
		for i, want := range []time.Duration{10*time.Minute + time.Second, time.Second, time.Second} {
			require.Equal(t, want, began[i+1].Sub(began[i]))
		}
	})
}

func TestManyWakesAreOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var steps atomic.Int64
		hold := make(chan struct{})
		l, _ := running(t, func(context.Context) error {
			steps.Add(1)
			<-hold
			return nil
		})
		synctest.Wait()
		for range 10 {
			l.wake()
		}
		close(hold)
		synctest.Wait()
		require.EqualValues(t, 2, steps.Load())
		pass(999 * time.Millisecond)
		require.EqualValues(t, 2, steps.Load(), "a whole interval from the last one")
		pass(time.Millisecond)
		require.EqualValues(t, 3, steps.Load())
	})
}

func TestAStepIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, _ := running(t, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		pass(stepWithin / 2)
		require.False(t, l.health().Began.IsZero())
		require.False(t, l.health().stuck(time.Now()))
		require.True(t, l.health().stuck(time.Now().Add(stuckAfter)))
		pass(stepWithin / 2)
		require.Equal(t, 1, l.health().Failures)
	})
}

// What fails because the scheduler ends is no failure.
func TestEndingIsNoFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, err := newMetrics(nil)
		require.NoError(t, err)
		l := &loop{name: "x", every: time.Second, wakes: make(chan struct{}, 1), metrics: m, now: time.Now, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(context.Background())
		l.step = func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		l.run(ctx)
		require.Zero(t, l.health().Failures)
	})
}

// Labels name loops, states and reasons, which are few, and nobody's task.
func TestMetricsNameNobody(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewPedanticRegistry()
	m, err := newMetrics(registry)
	require.NoError(t, err)
	for _, v := range []*prometheus.CounterVec{m.skipped, m.reaped, m.failures, m.panics} {
		v.WithLabelValues("x").Inc()
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 13)
	for _, f := range families {
		require.True(t, strings.HasPrefix(f.GetName(), namespace))
		for _, metric := range f.GetMetric() {
			for _, label := range metric.GetLabel() {
				assert.Contains(t, []string{"loop", "state", "reason"}, label.GetName())
			}
		}
	}
	_, err = newMetrics(registry)
	require.Error(t, err, "twice on one registry")
}
