package readiness

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Probe looks at one family from this process. It returns Good, or why not in
// one word and more for the log, and ends when ctx does.
type Probe struct {
	Family string
	Look   func(ctx context.Context) (reason string, why error)
}

// verdict is what a look came to.
type verdict struct {
	reason string
	why    error
}

var (
	errHangs  = errors.New("the look at it does not end")
	errBroken = errors.New("the look at it broke")
)

// answering asks a probe and answers for it: one that panics is bad, one that
// has not ended when its time is over is stale, and one that goes on regardless
// is not asked again before it ends. Whoever waits for looks waits for all.
func (p Probe) answering(looks *sync.WaitGroup) func(ctx context.Context) verdict {
	busy := make(chan struct{}, 1)
	return func(ctx context.Context) verdict {
		select {
		case busy <- struct{}{}:
		default:
			return verdict{Stale, errHangs}
		}
		answer := make(chan verdict, 1)
		looks.Go(func() {
			v := p.contained(ctx)
			<-busy // before the answer: whoever has it may ask again
			answer <- v
		})
		select {
		case v := <-answer:
			if ctx.Err() == nil {
				return v
			}
		case <-ctx.Done():
		}
		return verdict{Stale, errHangs}
	}
}

// contained answers for a panic: a probe that breaks is bad, not silent.
func (p Probe) contained(ctx context.Context) (v verdict) {
	defer func() {
		if recover() != nil {
			v = verdict{Unhealthy, errBroken}
		}
	}()
	reason, why := p.Look(ctx)
	return verdict{reason, why}
}

// StoreProbe looks at the database itself: a writable primary, durable, of
// exactly the schema that this binary was built for, with room left where
// watched says that it writes.
func StoreProbe(pool *pgxpool.Pool, schema int64, watched disk.Watch) Probe {
	return Probe{"store", func(ctx context.Context) (string, error) {
		s, err := askStore(ctx, pool)
		switch {
		case err != nil:
			return away(err), err
		case !s.writable:
			return Settings, errors.New("the database is a standby or read only")
		case !s.durable:
			return Settings, errors.New("fsync, synchronous_commit or full_page_writes is off")
		case s.schema != schema:
			return Schema, fmt.Errorf("the database has schema version %d, not %d", s.schema, schema)
		}
		if err := watched.Check(); err != nil {
			return Disk, err
		}
		return Good, nil
	}}
}

// ClockProbe compares this process's clock with the database's, which alone
// decides: a replica that is off by more than bound says so, whichever of the
// two is wrong.
func ClockProbe(pool *pgxpool.Pool, bound time.Duration, now func() time.Time) Probe {
	return Probe{"clock", func(ctx context.Context) (string, error) {
		before := now()
		s, err := askStore(ctx, pool)
		after := now()
		switch {
		case err != nil:
			return away(err), err
		case s.at.Before(before.Add(-bound)):
			return Skew, fmt.Errorf("the database's clock is at least %s behind", before.Sub(s.at))
		case s.at.After(after.Add(bound)):
			return Skew, fmt.Errorf("the database's clock is at least %s ahead", s.at.Sub(after))
		}
		return Good, nil
	}}
}

// auditLag is how long an audit row may be without a number or a signature.
const auditLag = 5 * time.Second

// AuditProbe has the database write an audit row that it undoes, and say
// whether anything could have changed those that are there, and how far behind
// the log of them is.
func AuditProbe(pool *pgxpool.Pool) Probe {
	return Probe{"audit", func(ctx context.Context) (string, error) {
		var writable, sealed bool
		var behind int64
		_, err := pg.Call(ctx, pool, `SELECT writable, sealed, greatest(waiting_ms, unsigned_ms) FROM nw.audit_health(), nw.audit_lag()`, nil, &writable, &sealed, &behind)
		switch {
		case err != nil:
			return away(err), err
		case !writable:
			return Unhealthy, errors.New("no audit row can be written")
		case !sealed:
			return Material, errors.New("audit rows may have been changed")
		case behind > auditLag.Milliseconds():
			return Stale, fmt.Errorf("the audit log is %d ms behind", behind)
		}
		return Good, nil
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
