package closing

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const (
	saturated = 150 * time.Millisecond // at least, before each close
	busy      = 50 * time.Millisecond  // at most, from an admission to the next
	lookEvery = 10                     // closes between two looks at the order of commits

	evaluateEvery = 200 * time.Millisecond
)

// byHand is what closing by hand took. The stacks take turns, so that one is
// saturated and closed while the others wait for their next opening.
type byHand struct {
	turn sync.Mutex
	left int
	took []time.Duration // of the call of the operator's verb
	late int
	open time.Duration // under saturation
	in   int           // admissions in that time
}

// closeByHand closes as long as closes are left, each time a gate at which every connection is admitted as fast as it can be.
func (l *lane) closeByHand(ctx context.Context, b *byHand) error {
	operator, err := pg.Open(ctx, pg.Config{URL: l.stack.RoleURL("operator"), MaxConns: 1, Name: "nightwarrant-closing-operator"})
	if err != nil {
		return err
	}
	defer operator.Close()
	l.drive(ctx, l.load.saturate)
	defer l.rest()
	for n := 1; ; n++ {
		if err := l.openSoon(ctx); err != nil {
			return err
		}
		more, err := l.closeOnce(ctx, operator, b)
		if err != nil {
			return err
		}
		if n%lookEvery == 0 || !more {
			if err := l.look(ctx, b); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

// closeOnce takes its turn; false when no close was left.
func (l *lane) closeOnce(ctx context.Context, operator *pgxpool.Pool, b *byHand) (more bool, err error) {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.left == 0 {
		return false, nil
	}
	before, from := l.load.total(), time.Now()
	l.load.open()
	if !until(ctx, from.Add(saturated+time.Duration(rand.Int64N(int64(saturated))))) { //nolint:gosec // a phase, no secret
		return false, ctx.Err()
	}
	began := time.Now()
	if _, err := readiness.Close(ctx, operator, "drill"); err != nil {
		return false, fmt.Errorf("an explicit close: %w", err)
	}
	ended := time.Now()
	if began.Sub(l.load.last(math.MaxInt64)) < busy { // else it had closed by itself, and this was no close
		b.left--
		b.took = append(b.took, ended.Sub(began))
		b.open += ended.Sub(from)
		b.in += l.load.total() - before
	}
	_, err = readiness.Release(ctx, operator)
	return true, err
}

// look counts what came after the closes, when nobody is being measured.
func (l *lane) look(ctx context.Context, b *byHand) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	c, err := l.count(ctx)
	if err == nil && len(c.wrong) > 0 {
		err = fmt.Errorf("the decision went wrong: %v", c.wrong)
	}
	if err != nil {
		return err
	}
	b.late += c.late
	l.say("closed by hand: %.1f ms in the median, at most %.1f ms; %d times more", spreadOf(b.took).p50, spreadOf(b.took).most, b.left)
	return nil
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
		if !until(ctx, time.Now().Add(evaluateEvery)) {
			return fmt.Errorf("the gate did not open; it is %+v", s)
		}
	}
}

func (b *byHand) result() Explicit {
	s := spreadOf(b.took)
	e := Explicit{N: len(b.took), P50: s.p50, P99: s.p99, Max: s.most, Late: b.late}
	if b.open > 0 {
		e.Rate = int(float64(b.in) / b.open.Seconds())
	}
	return e
}
