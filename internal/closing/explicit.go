package closing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const (
	saturated = 150 * time.Millisecond // at least, before each close
	lookEvery = 10                     // closes between two looks at the order of commits
)

// explicit is what closing by hand took.
type explicit struct {
	took []time.Duration // of the call of the operator's verb
	late int
	rate float64 // admissions a second while it was open
}

// closeByHand closes n times, each time a gate at which every connection is admitted as fast as it can be.
func (l *lane) closeByHand(ctx context.Context, n int) (e explicit, err error) {
	operator, err := pg.Open(ctx, pg.Config{URL: l.stack.RoleURL("operator"), MaxConns: 1, Name: "nightwarrant-closing-operator"})
	if err != nil {
		return e, err
	}
	defer operator.Close()
	l.drive(ctx, l.load.saturate)
	defer l.rest()
	open, total := time.Duration(0), l.load.total()
	for len(e.took) < n {
		if err := l.openSoon(ctx); err != nil {
			return e, err
		}
		from := time.Now()
		l.load.open()
		if !until(ctx, from.Add(saturated+time.Duration(rand.Int64N(int64(saturated))))) { //nolint:gosec // a phase, no secret
			return e, ctx.Err()
		}
		began := time.Now()
		if _, err := readiness.Close(ctx, operator, "drill"); err != nil {
			return e, fmt.Errorf("an explicit close: %w", err)
		}
		e.took = append(e.took, time.Since(began))
		open += time.Since(from)
		if _, err := readiness.Release(ctx, operator); err != nil {
			return e, err
		}
		if len(e.took)%lookEvery == 0 || len(e.took) == n {
			c, err := l.count(ctx)
			if err == nil {
				err = c.sound()
			}
			if err != nil {
				return e, err
			}
			e.late += c.late
			l.say("closed by hand %d of %d times: %.1f ms in the median, at most %.1f ms", len(e.took), n, spreadOf(e.took).p50, spreadOf(e.took).most)
		}
	}
	e.rate = float64(l.load.total()-total) / open.Seconds()
	return e, nil
}

// openSoon evaluates beside the replicas, which anybody may: how long it takes to open is measured elsewhere.
func (l *lane) openSoon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	for {
		s, err := l.state(ctx)
		if err == nil && s.open {
			return nil
		}
		if _, err := l.admin.Exec(ctx, `SELECT (nw.evaluate()).epoch`); err != nil {
			return err
		}
		if !until(ctx, time.Now().Add(50*time.Millisecond)) {
			return fmt.Errorf("the gate did not open; it is %+v", s)
		}
	}
}
