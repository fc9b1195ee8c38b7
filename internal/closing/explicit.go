package closing

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const (
	saturated = 100 * time.Millisecond // at least, before each close
	busy      = 50 * time.Millisecond  // at most, from an admission to the next
	lookEvery = 20                     // closes between two looks at the order of commits
)

// byHand is what closing by hand took.
type byHand struct {
	took []time.Duration // of the call of the operator's verb
	late int
	open time.Duration // under saturation
	in   int           // admissions in that time
}

// closeByHand closes n times, each time a gate at which every connection is
// admitted as fast as it can be. Nothing else goes on: workers would run what
// has piled up at each opening.
func (l *lane) closeByHand(ctx context.Context, n int) (b byHand, err error) {
	operator, err := pg.Open(ctx, pg.Config{URL: l.stack.RoleURL("operator"), MaxConns: 1, Name: "nightwarrant-closing-operator"})
	if err != nil {
		return b, err
	}
	defer operator.Close()
	for _, w := range workers {
		l.stack.Kill(w)
	}
	l.drive(ctx, l.load.saturate)
	defer l.rest()
	for tries := 1; len(b.took) < n; tries++ {
		if err := l.openSoon(ctx); err != nil {
			return b, err
		}
		if err := l.closeOnce(ctx, operator, &b); err != nil {
			return b, err
		}
		if tries%lookEvery == 0 || len(b.took) == n {
			if err := l.look(ctx, &b); err != nil {
				return b, err
			}
			l.say("closed by hand %d of %d times: %.1f ms in the median, at most %.1f ms", len(b.took), n, spreadOf(b.took).p50, spreadOf(b.took).most)
		}
	}
	return b, nil
}

func (l *lane) closeOnce(ctx context.Context, operator *pgxpool.Pool, b *byHand) error {
	before, from := l.load.total(), time.Now()
	l.load.open()
	if !until(ctx, from.Add(saturated+time.Duration(rand.Int64N(int64(saturated))))) { //nolint:gosec // a phase, no secret
		return ctx.Err()
	}
	began := time.Now()
	if _, err := readiness.Close(ctx, operator, "drill"); err != nil {
		return fmt.Errorf("an explicit close: %w", err)
	}
	ended := time.Now()
	if began.Sub(l.load.last(math.MaxInt64)) < busy { // else it had closed by itself, and this was no close
		b.took = append(b.took, ended.Sub(began))
		b.open += ended.Sub(from)
		b.in += l.load.total() - before
	}
	_, err := readiness.Release(ctx, operator)
	return err
}

// look counts what came after the closes.
func (l *lane) look(ctx context.Context, b *byHand) error {
	c, err := l.count(ctx)
	if err == nil && len(c.wrong) > 0 {
		err = fmt.Errorf("the decision went wrong: %v", c.wrong)
	}
	b.late += c.late
	return err
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

func (b byHand) result() Explicit {
	s := spreadOf(b.took)
	e := Explicit{N: len(b.took), P50: s.p50, P99: s.p99, Max: s.most, Late: b.late}
	if b.open > 0 {
		e.Rate = int(float64(b.in) / b.open.Seconds())
	}
	return e
}
