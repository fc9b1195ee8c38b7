// Package scheduler plans runs, hands their references to the queue, tells owners
// what they must hear and clears up after what was left behind.
//
// Several replicas run side by side and none of them leads. What each wants to
// do is decided again by a verb of the database under its locks, so that a
// replica which is slow, paused, doubled or killed changes nothing but speed.
// No clock of a replica fires a task.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// Queue is where references go; *queue.Queue is one.
type Queue interface {
	// Prepare makes queues ready that were not seen before.
	Prepare(ctx context.Context, queues []queue.Ref) error
	// Publish returns nil when the reference is on disk.
	Publish(ctx context.Context, queue, run queue.Ref, attempt int) error
	// Canary judges the queue from end to end.
	Canary(ctx context.Context) queue.Health
}

// Config of a Scheduler. Pool, Queue, Link, Instance and one of Webhook and Mail
// are required.
type Config struct {
	Pool       *pgxpool.Pool // as nw_scheduler
	Queue      Queue
	Webhook    notify.Poster         // where owners are told
	Mail       notify.Mailer         // likewise, and beside it when there are both
	Link       string                // base URL of the pages that owners are pointed to
	Untold     time.Duration         // of a card's owner, until the family approvals is bad; 0 means 1 minute
	Instance   [32]byte              // this replica; no two that run have the same
	Build      builds.Build          // what this process runs; the zero value says nothing
	StartRate  int                   // runs that may start in a second, all replicas together; 0 means 10
	Republish  time.Duration         // until an unclaimed run is published again; 0 means 30 s
	Limits     Limits                // of one step
	Registerer prometheus.Registerer // nil counts for nobody
	Logger     *slog.Logger          // nil discards
	Now        func() time.Time      // for durations only; nil means time.Now
}

// Limits bound one step of a loop. Zero means the default.
type Limits struct {
	Tasks int // that are planned, 50
	Slots int // of one task that get a row each, 200
	Hints int // that are published, 32
	Runs  int // that are reaped, 100
}

const (
	defaultRate, maxRate    = 10, 1000
	defaultAgain            = 30 * time.Second
	minAgain, maxAgain      = time.Second, 5 * time.Minute // a hint in the queue lives 10 minutes
	planEvery, relayEvery   = time.Second, 250 * time.Millisecond
	reapEvery, recycleEvery = time.Second, time.Minute
	notifyEvery             = 500 * time.Millisecond
	reportEvery             = time.Second
)

// ErrSuperseded says that another process runs as the same instance.
var ErrSuperseded = errors.New("another scheduler has started as this instance")

// Scheduler is one replica.
type Scheduler struct {
	store    store
	queue    Queue
	webhook  *notify.Notifier // nil: not by this channel
	mail     *notify.Notifier // likewise
	instance [32]byte
	build    builds.Build
	rate     int
	again    time.Duration
	limits   Limits
	log      *slog.Logger
	metrics  *metrics
	now      func() time.Time

	planner, relay, reaper, recycler *loop
	notifier, mailer                 *loop // nil like their channel
	reporter, assessor               *loop // of the queue, and of telling owners
	boot                             boot
	reports, approvals               reports

	zonesAfter int64 // the planner has compared the zones of tasks up to this one
	zonesSeen  bool  // and of all
}

// New checks the configuration. It starts nothing.
func New(c Config) (*Scheduler, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Registerer)
	if err != nil {
		return nil, fmt.Errorf("registering the scheduler's metrics: %w", err)
	}
	s := &Scheduler{store: store{c.Pool}, queue: c.Queue, instance: c.Instance, build: c.Build, rate: c.StartRate, again: c.Republish, limits: c.Limits,
		log: c.Logger, metrics: m, now: c.Now}
	if err := s.telling(c); err != nil {
		return nil, err
	}
	s.planner = s.loop("planner", planEvery, s.planOnce)
	s.relay = s.loop("relay", relayEvery, s.relayOnce)
	s.reaper = s.loop("reaper", reapEvery, s.reapOnce)
	s.recycler = s.loop("recycler", recycleEvery, s.recycleOnce)
	s.reporter = s.loop("reporter", reportEvery, s.reportOnce)
	s.assessor = s.loop("assessor", reportEvery, s.assessOnce)
	s.reports = reportsOf("queue", "queue", s.examine, m.queueGood, s.planner, s.relay, s.reaper, s.recycler)
	s.approvals = reportsOf("approvals", "way to owners", s.askNotices, m.approvalsGood, some(s.notifier, s.mailer)...)
	return s, nil
}

func (c *Config) fill() error {
	if c.Pool == nil || c.Queue == nil || c.Webhook == nil && c.Mail == nil || c.Link == "" || c.Instance == [32]byte{} {
		return errors.New("a scheduler needs a database, a queue, a webhook or mail with a link for it, and the name of its instance")
	}
	defaultTo(&c.StartRate, defaultRate)
	defaultTo(&c.Republish, defaultAgain)
	defaultTo(&c.Limits.Tasks, 50)
	defaultTo(&c.Limits.Slots, 200)
	defaultTo(&c.Limits.Hints, 32)
	defaultTo(&c.Limits.Runs, 100)
	if c.StartRate < 1 || c.StartRate > maxRate {
		return fmt.Errorf("the start rate is between 1 and %d a second, not %d", maxRate, c.StartRate)
	}
	if c.Republish < minAgain || c.Republish > maxAgain {
		return fmt.Errorf("runs are published again after %v to %v, not %v", minAgain, maxAgain, c.Republish)
	}
	if min(c.Limits.Tasks, c.Limits.Slots, c.Limits.Hints, c.Limits.Runs) < 1 {
		return errors.New("the scheduler's limits are positive")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

func defaultTo[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

func (s *Scheduler) loop(name string, every time.Duration, step func(context.Context) error) *loop {
	return &loop{name: name, every: every, step: step, wakes: make(chan struct{}, 1), log: s.log, metrics: s.metrics, now: s.now}
}

func (s *Scheduler) loops() []*loop {
	return some(s.planner, s.relay, s.reaper, s.recycler, s.notifier, s.mailer, s.reporter, s.assessor)
}

// some are the loops that there are.
func some(all ...*loop) []*loop {
	return slices.DeleteFunc(all, func(l *loop) bool { return l == nil })
}

// Run works until ctx ends, and returns when every loop has ended: nil, or
// [ErrSuperseded]. It is called once.
func (s *Scheduler) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.boot.superseded = func() { cancel(ErrSuperseded) }
	var group sync.WaitGroup
	for _, l := range s.loops() {
		group.Go(func() { l.run(ctx) })
	}
	group.Wait()
	s.reports.probes.Wait()
	s.approvals.probes.Wait()
	if cause := context.Cause(ctx); errors.Is(cause, ErrSuperseded) {
		return cause
	}
	return nil
}

// Nudge lets the scheduler look at its queue at once, for whoever hears first
// that a connection is lost.
func (s *Scheduler) Nudge() { s.reporter.wake() }

// Health says how each loop is doing.
func (s *Scheduler) Health() []LoopHealth {
	var list []LoopHealth
	for _, l := range s.loops() {
		list = append(list, l.health())
	}
	return list
}
