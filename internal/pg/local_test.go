package pg_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// The server acknowledges a commit that no standby has, with a warning.
func TestCallWhoseWaitForTheStandbyIsCancelledIsAmbiguous(t *testing.T) {
	t.Parallel()
	db := teststack.OwnCluster(t)
	pool, super := db.Pool(t, teststack.Owner), db.Pool(t, teststack.Superuser)
	_, err := pool.Exec(soon(t), "CREATE TABLE attempts (id int PRIMARY KEY)")
	require.NoError(t, err)
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"} {
		_, err = super.Exec(soon(t), sql)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		var names string
		return pool.QueryRow(soon(t), "SELECT current_setting('synchronous_standby_names')").Scan(&names) == nil && names == "nobody"
	}, 20*time.Second, time.Millisecond)
	// What makes a commit wait is kept by the checkpointer, which hears of it later than a backend may: until one has waited.
	waiting := func() int {
		var n int
		require.NoError(t, super.QueryRow(soon(t), "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n))
		return n
	}
	until(t, pool, waiting)

	for id, call := range map[int]func(id int) (pg.Outcome, error){
		1: func(id int) (pg.Outcome, error) { return pg.Call(soon(t), pool, insert, []any{id}, &id) },
		2: func(id int) (pg.Outcome, error) {
			conn, err := pg.Acquire(soon(t), pool)
			if err != nil {
				return pg.NotApplied, err
			}
			defer conn.Release()
			return conn.Try(soon(t), func() bool { return true }, insert, []any{id}, &id)
		},
	} {
		done := make(chan result, 1)
		go func() {
			outcome, err := call(id)
			done <- result{outcome: outcome, err: err}
		}()
		var r result
		for heard := false; !heard; {
			select {
			case r = <-done:
				heard = true
			default:
				waiting()
			}
		}
		require.ErrorIs(t, r.err, pg.ErrLocal)
		assert.Equal(t, pg.Ambiguous, r.outcome)
		assert.True(t, exists(t, super, id), "it stands there, for now")
	}
	outcome, err := pg.Call(soon(t), pool, "SELECT 1", nil, new(int))
	require.NoError(t, err, "what was heard is of one call")
	assert.Equal(t, pg.Committed, outcome)
}

// until commits until a commit has waited.
func until(t *testing.T, pool *pgxpool.Pool, waiting func() int) {
	t.Helper()
	for id := 100; ; id++ {
		done := make(chan error, 1)
		go func() {
			_, err := pool.Exec(soon(t), "INSERT INTO attempts VALUES ($1)", id)
			done <- err
		}()
		waited, heard := false, false
		for !heard {
			select {
			case err := <-done:
				require.NoError(t, err)
				heard = true
			default:
				waited = waiting() > 0 || waited
			}
		}
		if waited {
			return
		}
	}
}
