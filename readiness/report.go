package readiness

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Reasons that a probe may give; the list is nw.reason.
const (
	Good        = "good"
	Unhealthy   = "unhealthy"
	Settings    = "settings"
	Unreachable = "unreachable"
	Material    = "material"
	Canary      = "canary"
	Skew        = "skew"
	Stale       = "stale"
)

// Probe looks at one family from this process. It returns Good or why not, and
// ends when ctx does: a probe that hangs makes its family stale.
type Probe struct {
	Family string
	Look   func(ctx context.Context) (reason string)
}

// Reporter reports probes as one instance, whose boots the database numbers.
type Reporter struct {
	pool     *pgxpool.Pool
	log      *slog.Logger
	kind     string // authority or scheduler
	instance int64
	boot     int64
	lock     sync.Mutex
	sequence int64
}

// Register numbers this boot of an instance. Older boots of it no longer count.
func Register(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, kind string, instance [32]byte) (*Reporter, error) {
	id, boot, err := registerReplica(ctx, pool, kind, instance)
	if err != nil {
		return nil, fmt.Errorf("register this %s: %w", kind, err)
	}
	return &Reporter{pool: pool, log: log, kind: kind, instance: id, boot: boot}, nil
}

// Run reports each probe every second, each in its own loop so that one that
// hangs delays no other, until ctx ends.
func (r *Reporter) Run(ctx context.Context, probes ...Probe) {
	var all sync.WaitGroup
	for _, p := range probes {
		all.Go(func() {
			every(ctx, ReportEvery, func(ctx context.Context) { r.report(ctx, p) })
		})
	}
	all.Wait()
}

func (r *Reporter) report(ctx context.Context, p Probe) {
	began := time.Now()
	reason := look(ctx, p)
	verdict, err := reportReplica(ctx, r.pool, r.kind, r.instance, r.boot, p.Family, r.next(), reason, time.Since(began))
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("the report was refused: %s", verdict)
	}
	if err != nil && ctx.Err() == nil {
		r.log.LogAttrs(ctx, slog.LevelWarn, "a readiness report did not arrive", slog.String("family", p.Family), slog.Any("error", err))
	}
}

// look contains a probe's panic: a probe that breaks is bad, not silent.
func look(ctx context.Context, p Probe) (reason string) {
	defer func() {
		if recover() != nil {
			reason = Unhealthy
		}
	}()
	return p.Look(ctx)
}

func (r *Reporter) next() int64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.sequence++
	return r.sequence
}
