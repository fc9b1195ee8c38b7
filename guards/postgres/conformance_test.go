package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
	"github.com/nightwarrant/nightwarrant/guards/internal/processtest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

const conformanceFile = `kind: postgres
tables:
  orders: {columns: [id, paid, cents, order], key: [id]}
`

// TestConformance runs the guard as it is shipped, in processes that are killed.
func TestConformance(t *testing.T) {
	r := prepare(t, teststack.DurableCluster(t))
	guardtest.Run(t, guardtest.Guard{
		Start: processtest.Program{Binary: processtest.Build(t), File: conformanceFile, Env: []string{"NIGHTWARRANT_DATABASE_URL=" + r.url}}.Start,
		Effect: func(n int) guardtest.Effect {
			return guardtest.Effect{Action: "row.append", Resource: "table:orders",
				Parameters: json.RawMessage(fmt.Sprintf(`{"table":"orders","values":{"id":"%d","paid":true}}`, n))}
		},
		Applied:    r.applied,
		Provable:   true,
		Replicas:   true,
		HoldBefore: func(n int) (*guardtest.Hold, error) { return r.holdBefore(t, n) },
	})
}

func (r *resource) applied(n int) (count int, err error) {
	err = r.owner.QueryRow(context.Background(), `SELECT count(*) FROM orders WHERE id = $1`, fmt.Sprint(n)).Scan(&count)
	return count, err
}

// holdBefore lets the guard's INSERT wait for a row of the same key that is never committed.
func (r *resource) holdBefore(t *testing.T, n int) (*guardtest.Hold, error) {
	return r.block(t, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, fmt.Sprint(n))
		return err
	})
}

// block holds what do locks in a transaction of its own, until something waits for it and it is released.
func (r *resource) block(t *testing.T, do func(ctx context.Context, tx pgx.Tx) error) (*guardtest.Hold, error) {
	ctx, cancel := context.WithCancel(context.Background())
	tx, err := r.owner.Begin(ctx)
	require.NoError(t, err)
	if err := do(ctx, tx); err != nil {
		cancel()
		return nil, err
	}
	reached, watch := make(chan struct{}), new(sync.WaitGroup)
	watch.Go(func() {
		for waiting := false; !waiting; {
			err := r.owner.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`, tx.Conn().PgConn().PID()).Scan(&waiting)
			if err != nil {
				return
			}
			<-time.After(time.Millisecond)
		}
		close(reached)
	})
	return &guardtest.Hold{Reached: reached, Release: func() {
		cancel()
		watch.Wait()
		_ = tx.Rollback(context.Background())
	}}, nil
}
