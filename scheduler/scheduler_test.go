package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

func TestNewRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	good := Config{Pool: w.DB.Pool(t, "nw_scheduler"), Queue: &paper{}, Webhook: &box{}, Link: testLink, Instance: [32]byte{1}}
	_, err := New(good)
	require.NoError(t, err)
	taken := prometheus.NewRegistry()
	taken.MustRegister(counter("published_total", "Somebody else's."))
	for name, change := range map[string]func(*Config){
		"no database":            func(c *Config) { c.Pool = nil },
		"no queue":               func(c *Config) { c.Queue = nil },
		"nobody to tell":         func(c *Config) { c.Webhook = nil },
		"nowhere to point to":    func(c *Config) { c.Link = "" },
		"no instance":            func(c *Config) { c.Instance = [32]byte{} },
		"a negative rate":        func(c *Config) { c.StartRate = -1 },
		"a rate without bound":   func(c *Config) { c.StartRate = maxRate + 1 },
		"publishing all day":     func(c *Config) { c.Republish = minAgain - 1 },
		"publishing never again": func(c *Config) { c.Republish = maxAgain + 1 },
		"no room for tasks":      func(c *Config) { c.Limits.Tasks = -1 },
		"no room for runs":       func(c *Config) { c.Limits.Runs = -1 },
		"a metric that is taken": func(c *Config) { c.Registerer = taken },
	} {
		c := good
		change(&c)
		_, err := New(c)
		require.Error(t, err, name)
	}
}

// The whole of it: a task's time comes, and its worker gets a reference.
func TestRun(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	keepOpen(t, w)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	done := make(chan error, 2)
	var replicas []*Scheduler
	for range 2 {
		s := newScheduler(t, w, b.queue(t), func(c *Config) { c.Republish = time.Second })
		replicas = append(replicas, s)
		go func() { done <- s.Run(ctx) }()
	}
	task := dueNow(t, w)
	require.Eventually(t, func() bool { return len(w.Runs(t, task)) == 1 }, testWithin, 10*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := b.js.Consumer(within(t), queue.Stream, queue.Consumer(queue.Ref(w.Queue)))
		return err == nil
	}, testWithin, 10*time.Millisecond)
	run := w.Runs(t, task)[0]
	reference, _ := b.next(t, queue.Ref(w.Queue))
	require.Equal(t, queue.Ref(run.Ref).String(), reference)
	hold := w.Claim(t, run.ID)
	w.LoseLease(t, run.ID)
	require.Eventually(t, func() bool { return w.RunByID(t, run.ID).State == "queued" }, testWithin, 10*time.Millisecond)
	require.Equal(t, hold.Fence, w.RunByID(t, run.ID).Fence)
	require.Eventually(t, func() bool {
		return fixture.Value[int](t, w, `SELECT count(*) FROM nw.readiness_reports WHERE healthy AND family = 'queue' AND expires_at > clock_timestamp()`) == 2
	}, testWithin, 10*time.Millisecond)

	for _, h := range replicas[0].Health() {
		require.NotEmpty(t, h.Name)
		require.Zero(t, h.Panics)
	}
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
}

func TestRunEndsWhenSuperseded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	done := make(chan error, 1)
	go func() { done <- s.Run(within(t)) }()
	require.Eventually(t, func() bool { return len(s.reported(t)) == 1 }, testWithin, 10*time.Millisecond)
	_, err := s.store.register(within(t), s.instance, s.build)
	require.NoError(t, err)
	s.Nudge()
	require.ErrorIs(t, <-done, ErrSuperseded)
}

// A connection that is lost is looked at at once.
func TestNudge(t *testing.T) {
	t.Parallel()
	probes := make(chan struct{}, 100)
	s := newStage(t)
	s.reporter.every = time.Hour
	s.paper.canary = func(context.Context) queue.Health {
		probes <- struct{}{}
		return queue.Health{Reason: queue.Good}
	}
	ctx, cancel := context.WithCancel(within(t))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 2 { // the next tick is an hour away
		require.Eventually(t, func() bool {
			s.Nudge()
			select {
			case <-probes:
				return true
			default:
				return false
			}
		}, testWithin, 10*time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
}
