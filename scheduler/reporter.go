package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// reports is what the reporter knows from one report to the next.
type reports struct {
	within     time.Duration  // of one probe
	probing    chan struct{}  // holds one probe at a time
	probes     sync.WaitGroup // every probe that was begun
	who        registration   // zero until the database has numbered this boot
	sequence   int64
	last       queue.Reason
	superseded func()
}

const (
	// probeWithin is longer than a probe bounds itself and shorter than a
	// report lives (3 s).
	probeWithin = 2500 * time.Millisecond

	reasonStuck queue.Reason = "unhealthy"
)

var errStuck = errors.New("the probe does not end")

// reportOnce probes the queue and reports at once, good or bad. A probe that
// does not end is bad.
func (s *Scheduler) reportOnce(ctx context.Context) error {
	began := s.now()
	health := s.probe(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // whoever leaves says nothing, and its last report expires
	}
	health = s.withLoops(health)
	s.show(health)
	if err := s.register(ctx); err != nil {
		return err
	}
	s.reports.sequence++
	r := report{sequence: s.reports.sequence, healthy: health.OK(), reason: health.Reason}
	if r.healthy {
		r.age = elapsed(began, s.now())
	}
	verdict, err := s.store.report(ctx, s.reports.who, r)
	if err != nil {
		return err
	}
	return s.answered(verdict)
}

// probe takes no longer than it may, whatever the queue does.
func (s *Scheduler) probe(ctx context.Context) queue.Health {
	ctx, cancel := context.WithTimeout(ctx, s.reports.within)
	defer cancel() // here and not in the probe: an end of its own making would race with its result
	select {
	case s.reports.probing <- struct{}{}:
	default:
		return queue.Health{Reason: queue.Silent, Err: errStuck}
	}
	result := make(chan queue.Health, 1)
	s.reports.probes.Go(func() {
		health := s.examine(ctx)
		<-s.reports.probing // before the result: whoever has it may probe again
		result <- health
	})
	select {
	case health := <-result:
		return health
	case <-ctx.Done():
		return queue.Health{Reason: queue.Silent, Err: errStuck}
	}
}

// examine makes new queues ready and then looks at all of them. A panic in it
// is bad news about the queue and nothing else.
func (s *Scheduler) examine(ctx context.Context) (health queue.Health) {
	err := contained(ctx, func(ctx context.Context) error {
		queues, err := s.store.queues(ctx)
		if err != nil {
			return err
		}
		if err := s.queue.Prepare(ctx, queues); err != nil {
			return err
		}
		health = s.queue.Canary(ctx)
		return nil
	})
	if err == nil {
		return health
	}
	if _, ok := errors.AsType[*queue.SettingError](err); ok {
		return queue.Health{Reason: queue.Wrong, Err: err}
	}
	return queue.Health{Reason: queue.Unreachable, Err: err}
}

// withLoops makes a loop that is stuck bad news too: a relay that publishes
// nothing is no queue.
func (s *Scheduler) withLoops(health queue.Health) queue.Health {
	now := s.now()
	for _, h := range s.Health() {
		if health.OK() && h.Name != s.reporter.name && h.stuck(now) {
			health = queue.Health{Reason: reasonStuck, Err: fmt.Errorf("the %s does not end its step", h.Name)}
		}
	}
	return health
}

// show logs a change, once.
func (s *Scheduler) show(health queue.Health) {
	s.metrics.queueGood.Set(0)
	if health.OK() {
		s.metrics.queueGood.Set(1)
	}
	if health.Reason == s.reports.last {
		return
	}
	s.reports.last = health.Reason
	if health.OK() {
		s.log.Info("the queue is good")
		return
	}
	s.log.Error("the queue is not good", "reason", string(health.Reason), "error", health.Err)
}

func (s *Scheduler) register(ctx context.Context) error {
	if s.reports.who != (registration{}) {
		return nil
	}
	who, err := s.store.register(ctx, s.instance)
	if err == nil {
		s.reports.who = who
	}
	return err
}

func (s *Scheduler) answered(verdict string) error {
	switch verdict {
	case verdictOK:
		return nil
	case verdictSuperseded:
		if s.reports.superseded != nil {
			s.reports.superseded()
		}
		return ErrSuperseded
	case verdictNotFound:
		s.reports.who = registration{} // an older database was restored
	}
	return fmt.Errorf("the report was refused: %s", verdict)
}

// elapsed is the longer of what the monotonic and the wall clock say: the first
// stands still while the machine sleeps, the second can be set.
func elapsed(from, to time.Time) time.Duration {
	return max(0, to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
