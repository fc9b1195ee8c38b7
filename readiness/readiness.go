// Package readiness keeps the one readiness decision. The decision is derived
// in the database (nw.evaluate), from every report, in one place; this package
// asks for it, reports what this process can see, and keeps a copy that is only
// ever used to refuse (design.md §3, §8).
package readiness

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

// Timing of the loops. Reports live three seconds and decisions two, both by
// the database's clock.
const (
	EvaluateEvery = 500 * time.Millisecond
	ReportEvery   = time.Second
	MaxCacheAge   = time.Second
)

// Decision is the complete decision as the database derived it.
type Decision struct {
	Open        bool
	Held        bool // by an operator's hand
	Epoch       int64
	Sequence    int64
	Incarnation int64
	Requirement int64         // generation of what is required
	Valid       time.Duration // from before the question was sent; zero when closed
	Since       time.Time     // of the last change, by the database's clock
	Reason      string
	Family      string   // the first family that is not good, or empty
	Inputs      [32]byte // digest of the reports that it was derived from
	Families    []Family // all that are required
}

// Family is one required family as the decision judged it.
type Family struct {
	Family    string `json:"family"` // an operator's own one: x_ and the digest of its name
	Good      bool   `json:"good"`
	Reason    string `json:"reason"`
	Instances int    `json:"instances"` // that report good
	Required  int    `json:"required"`
	AgeMS     int64  `json:"age_ms"` // of the oldest good report that counts
}

// Gate evaluates the decision and remembers it. Its memory opens nothing: an
// admission reads the row itself, under the lock.
type Gate struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	last atomic.Pointer[remembered]
}

type remembered struct {
	Decision
	asked time.Time     // before the question was sent; monotonic
	age   elapsed.Watch // since then, on the clock that says most: a machine may have been suspended
	lost  bool          // or the database has not answered, and this is when that was noticed
}

// NewGate returns a gate that has not asked yet, and so is closed.
func NewGate(pool *pgxpool.Pool, log *slog.Logger) *Gate { return &Gate{pool: pool, log: log} }

// Run evaluates until ctx ends. Any replica may; none has to.
func (g *Gate) Run(ctx context.Context) {
	every(ctx, EvaluateEvery, func(ctx context.Context) {
		before := g.Known()
		now, err := g.evaluate(ctx)
		switch {
		case err != nil:
			g.lose(err)
			g.log.LogAttrs(ctx, slog.LevelWarn, "the readiness decision cannot be evaluated", slog.Any("error", err))
		case now.Epoch != before.Epoch || now.Reason != before.Reason || now.Family != before.Family:
			g.log.LogAttrs(ctx, slog.LevelInfo, "readiness", slog.Bool("open", now.Open), slog.Int64("epoch", now.Epoch),
				slog.String("reason", now.Reason), slog.String("family", now.Family))
		}
	})
}

// Known is the remembered decision: closed when it is older than MaxCacheAge or
// than its own validity, whatever it said.
func (g *Gate) Known() Decision {
	r := g.last.Load()
	if r == nil {
		return Decision{Reason: "start"}
	}
	d, age := r.Decision, r.age.Elapsed()
	d.Valid -= age
	if age > MaxCacheAge || d.Valid <= 0 {
		if d.Open {
			d.Reason = "expired"
		}
		d.Open, d.Valid = false, 0
	}
	return d
}

// Fresh tells whether the database has answered of late: is this replica worth routing to.
func (g *Gate) Fresh() bool {
	r := g.last.Load()
	return r != nil && !r.lost && r.age.Elapsed() <= MaxCacheAge+EvaluateEvery
}

// Current asks the database for the decision as it stands.
func (g *Gate) Current(ctx context.Context) (Decision, error) {
	asked, age := time.Now(), elapsed.Start(nil)
	d, err := readDecision(ctx, g.pool)
	if err != nil {
		return Decision{Reason: "unreachable", Family: "store"}, err
	}
	g.remember(&remembered{Decision: d, asked: asked, age: age})
	return g.Known(), nil
}

func (g *Gate) evaluate(ctx context.Context) (Decision, error) {
	if err := evaluate(ctx, g.pool, g.highest()); err != nil {
		return Decision{}, err
	}
	return g.Current(ctx)
}

// highest is what was remembered last, however old.
func (g *Gate) highest() Decision {
	if r := g.last.Load(); r != nil {
		return r.Decision
	}
	return Decision{}
}

// remember never goes back to an older epoch or sequence, nor to an answer from
// before the database was lost.
func (g *Gate) remember(next *remembered) {
	for {
		old := g.last.Load()
		if old != nil && (old.Incarnation > next.Incarnation || old.Incarnation == next.Incarnation && old.Sequence > next.Sequence || old.lost && next.asked.Before(old.asked)) {
			return
		}
		if g.last.CompareAndSwap(old, next) {
			return
		}
	}
}

// lose closes what is remembered when the database has not answered, or would
// not be written: whatever it said a moment ago is over. One that was only busy
// with others is none of these.
func (g *Gate) lose(err error) {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(busy, refusal.Code) {
		return
	}
	for {
		old := g.last.Load()
		if old == nil {
			return
		}
		next := &remembered{Decision: old.Decision, asked: time.Now(), age: elapsed.Start(nil), lost: true}
		next.Open, next.Valid, next.Reason, next.Family = false, 0, Unreachable, "store"
		if g.last.CompareAndSwap(old, next) {
			return
		}
	}
}

// busy lists what a database says that others keep waiting: lock_timeout,
// statement_timeout, a deadlock.
var busy = []string{"55P03", "57014", "40P01"}

// every calls f at once and then at each tick, one at a time, until ctx ends. Each
// call has the time of two ticks and at least two seconds.
func every(ctx context.Context, tick time.Duration, f func(context.Context)) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		once(ctx, max(2*tick, 2*time.Second), f)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func once(ctx context.Context, limit time.Duration, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f(ctx)
}
