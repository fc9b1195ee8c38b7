package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// loop repeats one step until it is told to end. The next tick is always a whole
// interval after the last one, so that a process which was suspended does not
// catch up; a wake brings it forward.
type loop struct {
	name  string
	every time.Duration
	step  func(context.Context) error

	wakes   chan struct{} // of one: many wakes are one
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time

	mu    sync.Mutex
	state LoopHealth
}

// LoopHealth says how one of the scheduler's loops is doing.
type LoopHealth struct {
	Name     string
	Began    time.Time // of the step that runs now; zero between steps
	Good     time.Time // the end of the last step that succeeded
	Failures int       // in a row
	Panics   int       // ever
}

const (
	stepWithin = 15 * time.Second // each step looks at its context between calls
	stuckAfter = 30 * time.Second
	repeatLog  = 60 // failures in a row between two lines in the log
)

func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.wakes:
		}
		l.once(ctx)
		timer.Reset(l.every)
	}
}

// wake brings the next step forward.
func (l *loop) wake() {
	select {
	case l.wakes <- struct{}{}:
	default:
	}
}

// once runs one step. Neither an error nor a panic ends the loop.
func (l *loop) once(ctx context.Context) {
	l.mark(func(h *LoopHealth) { h.Began = l.now() })
	limited, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	err := contained(limited, l.step)
	if err != nil && ctx.Err() != nil {
		err = nil // the scheduler is ending
	}
	l.note(err)
}

// panicked is a panic that was caught.
type panicked struct {
	value any
	stack []byte
}

func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

func contained(ctx context.Context, step func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicked{v, debug.Stack()}
		}
	}()
	return step(ctx)
}

func (l *loop) note(err error) {
	var failures int
	l.mark(func(h *LoopHealth) {
		h.Began = time.Time{}
		failures = h.Failures
		if err == nil {
			h.Failures, h.Good = 0, l.now()
			return
		}
		h.Failures++
		if _, ok := err.(*panicked); ok {
			h.Panics++
		}
	})
	switch p, ok := err.(*panicked); {
	case ok:
		l.metrics.panics.WithLabelValues(l.name).Inc()
		l.log.Error("a loop panicked and goes on", "loop", l.name, "panic", p.value, "stack", string(p.stack))
	case err != nil:
		l.metrics.failures.WithLabelValues(l.name).Inc()
		if failures%repeatLog == 0 {
			l.log.Warn("a loop failed and tries again", "loop", l.name, "failures", failures+1, "error", err)
		}
	case failures > 0:
		l.log.Info("a loop works again", "loop", l.name, "failures", failures)
	}
}

func (l *loop) mark(change func(*LoopHealth)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.state)
}

func (l *loop) health() (h LoopHealth) {
	l.mark(func(state *LoopHealth) { h = *state })
	h.Name = l.name
	return h
}

// stuck says that a step does not end.
func (h LoopHealth) stuck(now time.Time) bool {
	return !h.Began.IsZero() && now.Sub(h.Began) > stuckAfter
}
