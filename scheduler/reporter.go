package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// reports is what the reporter of one family knows from one report to the next.
type reports struct {
	family   string
	what     string // it is about, in the log
	examine  func(context.Context) queue.Health
	good     prometheus.Gauge
	loops    []*loop        // without which it is not good
	within   time.Duration  // of one probe
	probing  chan struct{}  // holds one probe at a time
	probes   sync.WaitGroup // every probe that was begun
	sequence int64
	last     queue.Reason
}

func reportsOf(family, what string, examine func(context.Context) queue.Health, good prometheus.Gauge, loops ...*loop) reports {
	return reports{family: family, what: what, examine: examine, good: good, loops: loops, within: probeWithin, probing: make(chan struct{}, 1)}
}

// boot is how the database knows this process, for every family.
type boot struct {
	mu         sync.Mutex
	who        registration // zero until the database has numbered it
	superseded func()
}

const (
	// probeWithin is longer than a probe bounds itself and shorter than a
	// report lives (3 s).
	probeWithin = 2500 * time.Millisecond

	reasonStuck queue.Reason = "unhealthy"
)

var errStuck = errors.New("the probe does not end")

// reportOnce probes the queue and reports at once, good or bad.
func (s *Scheduler) reportOnce(ctx context.Context) error { return s.reportOn(ctx, &s.reports) }

// assessOnce does so for telling owners.
func (s *Scheduler) assessOnce(ctx context.Context) error { return s.reportOn(ctx, &s.approvals) }

// reportOn probes a family. A probe that does not end is bad.
func (s *Scheduler) reportOn(ctx context.Context, of *reports) error {
	began := s.now()
	health := of.probe(ctx)
	if ctx.Err() != nil {
		return ctx.Err() // whoever leaves says nothing, and its last report expires
	}
	health = of.withLoops(health, s.now())
	s.show(of, health)
	who, err := s.register(ctx)
	if err != nil {
		return err
	}
	of.sequence++
	r := report{family: of.family, sequence: of.sequence, healthy: health.OK(), reason: health.Reason}
	if r.healthy {
		r.age = elapsed(began, s.now())
	}
	verdict, err := s.store.report(ctx, who, r)
	if err != nil {
		return err
	}
	return s.answered(who, verdict)
}

// probe takes no longer than it may, whatever is looked at.
func (r *reports) probe(ctx context.Context) queue.Health {
	ctx, cancel := context.WithTimeout(ctx, r.within)
	defer cancel() // here and not in the probe: an end of its own making would race with its result
	select {
	case r.probing <- struct{}{}:
	default:
		return queue.Health{Reason: queue.Silent, Err: errStuck}
	}
	result := make(chan queue.Health, 1)
	r.probes.Go(func() {
		health := r.examine(ctx)
		<-r.probing // before the result: whoever has it may probe again
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
func (r *reports) withLoops(health queue.Health, now time.Time) queue.Health {
	for _, l := range r.loops {
		if h := l.health(); health.OK() && h.stuck(now) {
			health = queue.Health{Reason: reasonStuck, Err: fmt.Errorf("the %s does not end its step", h.Name)}
		}
	}
	return health
}

// show logs a change, once.
func (s *Scheduler) show(of *reports, health queue.Health) {
	of.good.Set(0)
	if health.OK() {
		of.good.Set(1)
	}
	if health.Reason == of.last {
		return
	}
	of.last = health.Reason
	if health.OK() {
		s.log.Info("the "+of.what+" is good", "family", of.family)
		return
	}
	s.log.Error("the "+of.what+" is not good", "family", of.family, "reason", string(health.Reason), "error", health.Err)
}

// register has the database number this boot, once for all families.
func (s *Scheduler) register(ctx context.Context) (registration, error) {
	s.boot.mu.Lock()
	defer s.boot.mu.Unlock()
	if s.boot.who != (registration{}) {
		return s.boot.who, nil
	}
	who, err := s.store.register(ctx, s.instance, s.build)
	if err == nil {
		s.boot.who = who
	}
	return who, err
}

func (s *Scheduler) answered(who registration, verdict string) error {
	switch verdict {
	case verdictOK:
		return nil
	case verdictSuperseded:
		if s.boot.superseded != nil {
			s.boot.superseded()
		}
		return ErrSuperseded
	case verdictNotFound: // an older database was restored
		s.boot.mu.Lock()
		defer s.boot.mu.Unlock()
		if s.boot.who == who {
			s.boot.who = registration{}
		}
	}
	return fmt.Errorf("the report was refused: %s", verdict)
}

// elapsed is the longer of what the monotonic and the wall clock say: the first
// stands still while the machine sleeps, the second can be set.
func elapsed(from, to time.Time) time.Duration {
	return max(0, to.Sub(from), to.Round(0).Sub(from.Round(0)))
}
