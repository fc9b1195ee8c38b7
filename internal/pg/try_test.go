package pg_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// try inserts an id and keeps it, or not, by what the server answered.
func try(t *testing.T, pool *pgxpool.Pool, sql string, id int, keep bool, dest any) (pg.Outcome, error) {
	t.Helper()
	conn, err := pg.Acquire(soon(t), pool)
	require.NoError(t, err)
	defer conn.Release()
	return conn.Try(soon(t), func() bool {
		got, ok := dest.(*int)
		assert.True(t, ok && *got == id, "asked before the row was there")
		return keep
	}, sql, []any{id}, dest)
}

func TestTryKeepsWhatIsKept(t *testing.T) {
	t.Parallel()
	_, pool, _ := attempts(t)
	var id int
	outcome, err := try(t, pool, insert, 7, true, &id)
	require.NoError(t, err)
	assert.Equal(t, pg.Committed, outcome)
	assert.True(t, exists(t, pool, 7))
}

// Whatever ends before the commit has not happened, and leaves a connection that can be used.
func TestTryUndoesEverythingElse(t *testing.T) {
	t.Parallel()
	_, pool, _ := attempts(t)
	var id int
	outcome, err := try(t, pool, insert, 7, false, &id)
	require.NoError(t, err)
	assert.Equal(t, pg.NotApplied, outcome)
	assert.Equal(t, 7, id, "its answer is to be had all the same")

	var wrong time.Time
	outcome, err = try(t, pool, insert, 7, true, &wrong)
	require.Error(t, err)
	assert.Equal(t, pg.NotApplied, outcome)

	outcome, err = try(t, pool, "INSERT INTO later VALUES ($1) RETURNING id", 404, true, &id)
	requireSQLState(t, err, "23503") // in the commit
	assert.Equal(t, pg.NotApplied, outcome)

	assert.False(t, exists(t, pool, 7))
	assert.EqualValues(t, 1, pool.Stat().TotalConns())
}
