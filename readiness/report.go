package readiness

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/builds"
)

// Reasons that a probe may give; the list is nw.reason.
const (
	Good        = "good"
	Unhealthy   = "unhealthy"
	Settings    = "settings"
	Schema      = "schema"
	Disk        = "disk"
	Unreachable = "unreachable"
	Material    = "material"
	Canary      = "canary"
	Profile     = "profile"
	Skew        = "skew"
	Stale       = "stale"
)

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
// The database keeps what the process says that it runs beside it.
func Register(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger, kind string, instance [32]byte, build builds.Build) (*Reporter, error) {
	id, boot, err := registerReplica(ctx, pool, kind, instance, build)
	if err != nil {
		return nil, fmt.Errorf("register this %s: %w", kind, err)
	}
	return &Reporter{pool: pool, log: log, kind: kind, instance: id, boot: boot}, nil
}

// Hold says which generations of the cluster's keys this instance has proved to hold.
func (r *Reporter) Hold(ctx context.Context, generations []int64) error {
	return holdKeys(ctx, r.pool, r.instance, r.boot, generations)
}

// Run reports each probe every second, each in its own loop so that one that
// hangs delays no other, until ctx ends.
func (r *Reporter) Run(ctx context.Context, probes ...Probe) {
	var all sync.WaitGroup
	for _, p := range probes {
		look := p.answering(&all)
		all.Go(func() {
			var last string
			// What a look has used up of its time does not shorten the report of it.
			every(ctx, ReportEvery, func(limited context.Context) {
				began := time.Now()
				v := look(limited)
				if ctx.Err() != nil {
					return // whoever leaves says nothing, and its last report runs out
				}
				if v.reason != last {
					r.say(ctx, p.Family, v)
				}
				last = v.reason
				r.report(ctx, p.Family, v.reason, time.Since(began))
			})
		})
	}
	all.Wait()
}

// say logs a change, which the database may not hear of.
func (r *Reporter) say(ctx context.Context, family string, v verdict) {
	if v.reason == Good {
		r.log.LogAttrs(ctx, slog.LevelInfo, "this replica finds a family good", slog.String("family", family))
		return
	}
	r.log.LogAttrs(ctx, slog.LevelError, "this replica finds a family bad", slog.String("family", family), slog.String("reason", v.reason), slog.Any("error", v.why))
}

func (r *Reporter) report(ctx context.Context, family, reason string, age time.Duration) {
	verdict, err := reportReplica(ctx, r.pool, r.kind, r.instance, r.boot, family, r.next(), reason, age)
	if err == nil && verdict != "ok" {
		err = fmt.Errorf("the report was refused: %s", verdict)
	}
	if err != nil && ctx.Err() == nil {
		r.log.LogAttrs(ctx, slog.LevelWarn, "a readiness report did not arrive", slog.String("family", family), slog.Any("error", err))
	}
}

func (r *Reporter) next() int64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.sequence++
	return r.sequence
}
