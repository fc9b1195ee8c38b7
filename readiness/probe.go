package readiness

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Probe looks at one family from this process. It returns Good or why not, and
// ends when ctx does: a probe that hangs makes its family stale.
type Probe struct {
	Family string
	Look   func(ctx context.Context) (reason string)
}

// answering asks a probe and answers for it: one that panics is bad, one that
// has not ended when its time is over is stale, and one that goes on regardless
// is not asked again before it ends. Whoever waits for looks waits for all.
func (p Probe) answering(looks *sync.WaitGroup) func(ctx context.Context) (reason string) {
	busy := make(chan struct{}, 1)
	return func(ctx context.Context) string {
		select {
		case busy <- struct{}{}:
		default:
			return Stale
		}
		answer := make(chan string, 1)
		looks.Go(func() {
			reason := p.contained(ctx)
			<-busy // before the answer: whoever has it may ask again
			answer <- reason
		})
		select {
		case reason := <-answer:
			if ctx.Err() == nil {
				return reason
			}
		case <-ctx.Done():
		}
		return Stale
	}
}

// contained answers for a panic: a probe that breaks is bad, not silent.
func (p Probe) contained(ctx context.Context) (reason string) {
	defer func() {
		if recover() != nil {
			reason = Unhealthy
		}
	}()
	return p.Look(ctx)
}

// StoreProbe looks at the database itself: a writable primary, durable, of
// exactly the schema that this binary was built for, with room left where
// watched says that it writes.
func StoreProbe(pool *pgxpool.Pool, schema int64, watched disk.Watch) Probe {
	return Probe{"store", func(ctx context.Context) string {
		s, err := askStore(ctx, pool)
		switch {
		case err != nil:
			return away(err)
		case !s.writable || !s.durable:
			return Settings
		case s.schema != schema:
			return Schema
		case watched.Check() != nil:
			return Disk
		}
		return Good
	}}
}

// ClockProbe compares this process's clock with the database's, which alone
// decides: a replica that is off by more than bound says so, whichever of the
// two is wrong.
func ClockProbe(pool *pgxpool.Pool, bound time.Duration, now func() time.Time) Probe {
	return Probe{"clock", func(ctx context.Context) string {
		before := now()
		s, err := askStore(ctx, pool)
		after := now()
		switch {
		case err != nil:
			return away(err)
		case s.at.Before(before.Add(-bound)) || s.at.After(after.Add(bound)):
			return Skew
		}
		return Good
	}}
}

// AuditProbe has the database write an audit row that it undoes, and say
// whether anything could have changed those that are there.
func AuditProbe(pool *pgxpool.Pool) Probe {
	return Probe{"audit", func(ctx context.Context) string {
		var writable, sealed bool
		_, err := pg.Call(ctx, pool, `SELECT writable, sealed FROM nw.audit_health()`, nil, &writable, &sealed)
		switch {
		case err != nil:
			return away(err)
		case !writable:
			return Unhealthy
		case !sealed:
			return Material
		}
		return Good
	}}
}

// store is what the database says of itself.
type store struct {
	writable, durable bool
	at                time.Time
	schema            int64
}

func askStore(ctx context.Context, pool *pgxpool.Pool) (s store, err error) {
	_, err = pg.Call(ctx, pool, `SELECT writable, durable, db_now, (SELECT max(version_id) FROM goose_db_version) FROM nw.store_health()`, nil,
		&s.writable, &s.durable, &s.at, &s.schema)
	return s, err
}

// away tells a database that does not answer from one that may not be used, and
// from one that lacks what this binary asks it for: SQLSTATE class 42, of names
// and rights.
func away(err error) string {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refusal.Code, "42") {
		return Schema
	}
	if errors.Is(err, pg.ErrStandby) || errors.Is(err, pg.ErrUnsuitable) {
		return Settings
	}
	return Unreachable
}
