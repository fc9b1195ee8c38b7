package closing

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// injection is what one fault did.
type injection struct {
	admitted time.Duration  // from the fault to the last admission before the close, answered
	applied  time.Duration  // and to the last effect before the close, applied
	reopened time.Duration  // from the healing to the opening
	late     int            // admissions between the close and the opening
	verbs    map[string]int // of those
}

const (
	closeWithin = 20 * time.Second
	strikeIn    = 30 * time.Second
)

// try injects one kind n times. An error is a fault that did not close, did not
// heal, or was counted wrongly.
func (l *lane) try(ctx context.Context, f fault, n int) (done []injection, err error) {
	if f.prepare != nil {
		undo, unable := f.prepare(ctx, l)
		if unable != nil {
			return nil, unable
		}
		defer func() { err = errors.Join(err, undo(context.WithoutCancel(ctx)), l.waitOpen(ctx)) }()
	}
	for i := range n {
		one, failed := l.inject(ctx, f)
		if failed != nil {
			return done, fmt.Errorf("%s: %w", f.kind, failed)
		}
		l.say("%-21s %2d of %d: last admitted after %5.0f ms, last applied after %5.0f ms, %d after the close; open again %4.1f s after healing",
			f.kind, i+1, n, milli(one.admitted), milli(one.applied), one.late, one.reopened.Seconds())
		if one.late > 0 {
			l.say("%-21s admitted after the close, by verb: %v", f.kind, one.verbs)
		}
		done = append(done, one)
	}
	return done, nil
}

func (l *lane) inject(ctx context.Context, f fault) (one injection, err error) {
	if err := l.steady(ctx); err != nil {
		return one, err
	}
	l.meter.forget(time.Now().Add(-time.Minute))
	if _, err := l.count(ctx); err != nil { // what was before is not this one's
		return one, err
	}
	striking, cancel := context.WithTimeout(ctx, strikeIn)
	defer cancel()
	began := time.Now()
	if err := f.strike(striking, l); err != nil {
		return one, fmt.Errorf("the fault could not be brought about: %w", err)
	}
	if err := l.closed(ctx, f); err != nil {
		return one, err
	}
	healed := time.Now()
	if err := l.mend(ctx, f); err != nil {
		return one, err
	}
	opened, err := l.await(ctx, openWithin, "the opening", func(s state) bool { return s.open })
	if err != nil {
		return one, err
	}
	one.reopened = time.Since(healed)
	c, err := l.count(ctx)
	if err != nil {
		return one, err
	}
	one.late, one.verbs = c.late, c.lateVerb
	one.admitted = sinceFault(began, l.load.last(opened.epoch))
	one.applied = sinceFault(began, l.meter.latest(c.last))
	if f.down && one.admitted > down {
		return one, errors.New("a decision of before the outage admitted after it")
	}
	return one, c.sound()
}

// sound says whether what was counted makes sense beside the counts that are told.
func (c counted) sound() error {
	switch {
	case len(c.wrong) > 0:
		return fmt.Errorf("the decision went wrong: %v", c.wrong)
	case c.closes == 0:
		return errors.New("nothing was closed")
	}
	return nil
}

// sinceFault is 0 for what was over before the fault.
func sinceFault(fault, last time.Time) time.Duration { return max(0, last.Sub(fault)) }

// closed waits for the close and marks it. A database that is away is left so
// until a decision of before has run out.
func (l *lane) closed(ctx context.Context, f fault) error {
	if f.down {
		if !until(ctx, time.Now().Add(down)) {
			return ctx.Err()
		}
		return nil
	}
	_, err := l.await(ctx, closeWithin, "the close", func(s state) bool { return !s.open })
	if err != nil {
		return err
	}
	if err := l.seal(ctx); err != nil {
		return fmt.Errorf("it was closed and is not: %w", err)
	}
	_, err = l.await(ctx, closeWithin, "the reason "+f.family+" "+f.reason, func(s state) bool {
		return !s.open && (f.family == "" || s.family == f.family) && (f.reason == "" || s.reason == f.reason)
	})
	return err
}

// mend heals. The first thing that a database does which is back is to be marked.
func (l *lane) mend(ctx context.Context, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, strikeIn)
	defer cancel()
	if err := f.heal(ctx, l); err != nil {
		return fmt.Errorf("it could not be healed: %w", err)
	}
	if !f.down {
		return nil
	}
	return l.seal(ctx)
}
