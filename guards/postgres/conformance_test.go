package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
	"github.com/nightwarrant/nightwarrant/guards/internal/processtest"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

const conformanceFile = `kind: postgres
tables:
  orders: {columns: [id, paid, cents, order], key: [id]}
`

// TestConformance runs the guard as it is shipped, in processes that are killed.
func TestConformance(t *testing.T) {
	db := teststack.DurableCluster(t)
	s := shop{prepare(t, db), db.Pool(t, teststack.Superuser)}
	guardtest.Run(t, guardtest.Guard{
		Start: processtest.Program{Binary: testbinary.Nightwarrant(t), File: conformanceFile, Env: []string{"NIGHTWARRANT_DATABASE_URL=" + s.url}}.Start,
		Effect: func(n int) guardtest.Effect {
			return guardtest.Effect{Action: "row.append", Resource: "table:orders",
				Parameters: json.RawMessage(fmt.Sprintf(`{"table":"orders","values":{"id":"%d","paid":true}}`, n))}
		},
		Applied:    s.applied,
		Provable:   true,
		Replicas:   true,
		HoldBefore: s.holdBefore,
		HoldAfter:  s.holdAfter,
		Kills:      processtest.Kills,
	})
}

func (s shop) applied(n int) (count int, err error) {
	err = s.owner.QueryRow(context.Background(), `SELECT count(*) FROM orders WHERE id = $1`, fmt.Sprint(n)).Scan(&count)
	return count, err
}

// shop is a resource that can be stopped.
type shop struct {
	*resource
	super *pgxpool.Pool
}

// holdBefore lets the guard's INSERT wait for a row of the same key that is never committed.
func (s shop) holdBefore(n int) (*guardtest.Hold, error) {
	ctx := context.Background()
	tx, err := s.super.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, fmt.Sprint(n)); err != nil {
		return nil, err
	}
	return hold(func(ctx context.Context) error {
		return s.until(ctx, `$1 = ANY (pg_blocking_pids(pid))`, tx.Conn().PgConn().PID())
	}, func() { _ = tx.Rollback(ctx) }), nil
}

// holdAfter lets the guard's COMMIT wait for a standby that does not exist: it is done, and nobody is told. The server
// learns of the standby while the INSERT is held, so that nothing else of the guard waits.
func (s shop) holdAfter(n int) (*guardtest.Hold, error) {
	before, err := s.holdBefore(n)
	if err != nil {
		return nil, err
	}
	release := sync.OnceFunc(before.Release)
	return hold(func(ctx context.Context) error {
		defer release()
		select {
		case <-before.Reached:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.wantStandby(ctx); err != nil {
			return err
		}
		release()
		return s.until(ctx, `wait_event = 'SyncRep' AND usename = $1`, "guard_"+s.db.Name)
	}, func() { s.reload(`ALTER SYSTEM RESET synchronous_standby_names`) }), nil
}

// wantStandby returns when commits wait.
func (s shop) wantStandby(ctx context.Context) error {
	s.reload(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	ctx, stop := context.WithCancel(ctx)
	var canary sync.WaitGroup
	canary.Go(func() {
		for ctx.Err() == nil {
			_, _ = s.super.Exec(ctx, `SELECT pg_logical_emit_message(true, 'canary', '')`)
		}
	})
	defer canary.Wait()
	defer stop()
	return s.until(ctx, `wait_event = 'SyncRep' AND usename = $1`, teststack.Superuser)
}

func (s shop) reload(setting string) {
	for _, statement := range []string{setting, `SELECT pg_reload_conf()`} {
		_, _ = s.super.Exec(context.Background(), statement)
	}
}

// until returns when there is such a session.
func (s shop) until(ctx context.Context, session string, args ...any) error {
	for {
		var found bool
		err := s.super.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE `+session+`)`, args...).Scan(&found)
		if found || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// hold is reached when wait returns, and nobody waits any more when it is released.
func hold(wait func(ctx context.Context) error, release func()) *guardtest.Hold {
	ctx, cancel := context.WithCancel(context.Background())
	reached, waiting := make(chan struct{}), new(sync.WaitGroup)
	waiting.Go(func() {
		if wait(ctx) == nil {
			close(reached)
		}
	})
	return &guardtest.Hold{Reached: reached, Release: func() { cancel(); waiting.Wait(); release() }}
}
