package pg_test

import (
	"testing"
	"time"

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
	// What makes a commit wait is kept by the checkpointer, which reads its settings before it answers.
	_, err = super.Exec(soon(t), "CHECKPOINT")
	require.NoError(t, err)

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
		require.Eventually(t, func() bool {
			var n int
			err := super.QueryRow(soon(t), "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n)
			return err == nil && n == 1
		}, 20*time.Second, time.Millisecond)
		r := <-done
		require.ErrorIs(t, r.err, pg.ErrLocal)
		assert.Equal(t, pg.Ambiguous, r.outcome)
		assert.True(t, exists(t, super, id), "it stands there, for now")
	}
	outcome, err := pg.Call(soon(t), pool, "SELECT 1", nil, new(int))
	require.NoError(t, err, "what was heard is of one call")
	assert.Equal(t, pg.Committed, outcome)
}
