package pg_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

const (
	makeTable = `CREATE TABLE attempts (id int PRIMARY KEY);
		CREATE TABLE later (id int REFERENCES attempts DEFERRABLE INITIALLY DEFERRED)`
	insert = "INSERT INTO attempts VALUES ($1) RETURNING id"
	// insertBehindLock inserts once the advisory lock 1 can be had.
	insertBehindLock = "WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(1)) INSERT INTO attempts SELECT $1 FROM held RETURNING id"
)

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// attempts gives a database with the table, its owner's pool and a superuser's.
func attempts(t *testing.T) (db *teststack.DB, pool, super *pgxpool.Pool) {
	t.Helper()
	db = teststack.Database(t)
	pool, super = db.Pool(t, teststack.Owner), db.Pool(t, teststack.Superuser)
	conn, err := pool.Acquire(soon(t))
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(soon(t), makeTable).ReadAll()
	require.NoError(t, err)
	return db, pool, super
}

func exists(t *testing.T, pool *pgxpool.Pool, id int) bool {
	t.Helper()
	var found bool
	require.NoError(t, pool.QueryRow(soon(t), "SELECT EXISTS (SELECT FROM attempts WHERE id = $1)", id).Scan(&found))
	return found
}

func requireSQLState(t *testing.T, err error, code string) {
	t.Helper()
	var refusal *pgconn.PgError
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, code, refusal.Code)
	require.NotErrorIs(t, err, pg.ErrUnavailable)
}

func TestCallRefusedByTheServerIsNotApplied(t *testing.T) {
	t.Parallel()
	_, pool, _ := attempts(t)
	var id int
	outcome, err := pg.Call(soon(t), pool, insert, []any{7}, &id)
	require.NoError(t, err)
	require.Equal(t, pg.Committed, outcome)
	require.Equal(t, 7, id)

	outcome, err = pg.Call(soon(t), pool, insert, []any{7}, &id)
	assert.Equal(t, pg.NotApplied, outcome)
	requireSQLState(t, err, "23505")

	outcome, err = pg.Call(soon(t), pool, "SELECT no_such_verb()", nil, &id)
	assert.Equal(t, pg.NotApplied, outcome)
	requireSQLState(t, err, "42883")
}

func TestCallAnswersNothingBeforeTheCommit(t *testing.T) {
	t.Parallel()
	_, pool, _ := attempts(t)
	// The row is returned before the deferred constraint fails in the commit.
	var id int
	outcome, err := pg.Call(soon(t), pool, "INSERT INTO later VALUES ($1) RETURNING id", []any{404}, &id)
	assert.Equal(t, pg.NotApplied, outcome)
	requireSQLState(t, err, "23503")
}

func TestCallWithAnAnswerThatCannotBeReadIsAmbiguous(t *testing.T) {
	t.Parallel()
	_, pool, _ := attempts(t)
	var wrong time.Time
	outcome, err := pg.Call(soon(t), pool, insert, []any{7}, &wrong)
	require.Error(t, err)
	assert.Equal(t, pg.Ambiguous, outcome)
	assert.True(t, exists(t, pool, 7), "it had committed")
}

func TestCallThatOutlastsTheStatementTimeoutIsNotApplied(t *testing.T) {
	t.Parallel()
	db, _, super := attempts(t)
	_, err := super.Exec(soon(t), "ALTER ROLE "+teststack.Owner+" IN DATABASE "+db.Name+" SET statement_timeout = '100ms'")
	require.NoError(t, err)
	pool := db.Pool(t, teststack.Owner)
	release := holdLock(t, super)
	defer release()
	var id int
	outcome, err := pg.Call(soon(t), pool, insertBehindLock, []any{7}, &id)
	assert.Equal(t, pg.NotApplied, outcome)
	requireSQLState(t, err, "57014")
	assert.False(t, exists(t, super, 7))
}

// holdLock takes the advisory lock 1 exclusively until release is called.
func holdLock(t *testing.T, super *pgxpool.Pool) (release func()) {
	t.Helper()
	conn, err := super.Acquire(soon(t))
	require.NoError(t, err)
	_, err = conn.Exec(soon(t), "SELECT pg_advisory_lock(1)")
	require.NoError(t, err)
	return func() {
		_, err := conn.Exec(context.Background(), "SELECT pg_advisory_unlock(1)")
		conn.Release()
		assert.NoError(t, err)
	}
}

// waiter returns the backend that waits for an advisory lock, once there is one.
func waiter(t *testing.T, super *pgxpool.Pool) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		return super.QueryRow(soon(t), `SELECT pid FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'`).Scan(&pid) == nil
	}, 20*time.Second, time.Millisecond)
	return pid
}

type result struct {
	outcome pg.Outcome
	err     error
	id      int
}

func callInBackground(ctx context.Context, pool *pgxpool.Pool, sql string, id int) <-chan result {
	done := make(chan result, 1)
	go func() {
		var r result
		r.outcome, r.err = pg.Call(ctx, pool, sql, []any{id}, &r.id)
		done <- r
	}()
	return done
}

func TestCallWhoseBackendIsKilledIsAmbiguous(t *testing.T) {
	t.Parallel()
	_, pool, super := attempts(t)
	release := holdLock(t, super)
	defer release()
	done := callInBackground(soon(t), pool, insertBehindLock, 7)
	_, err := super.Exec(soon(t), "SELECT pg_terminate_backend($1)", waiter(t, super))
	require.NoError(t, err)
	r := <-done
	assert.Equal(t, pg.Ambiguous, r.outcome)
	requireSQLState(t, r.err, "57P01")
}

func TestCallOutlivesACallerThatHangsUp(t *testing.T) {
	t.Parallel()
	_, pool, super := attempts(t)
	release := holdLock(t, super)
	ctx, hangUp := context.WithCancel(context.Background())
	done := callInBackground(ctx, pool, insertBehindLock, 7)
	waiter(t, super)
	hangUp()
	release()
	r := <-done
	require.NoError(t, r.err)
	assert.Equal(t, pg.Committed, r.outcome)
	assert.Equal(t, 7, r.id)
}

func TestCallThatGetsNoConnectionIsNotApplied(t *testing.T) {
	t.Parallel()
	requireUnavailable := func(t *testing.T, outcome pg.Outcome, err error) {
		t.Helper()
		require.ErrorIs(t, err, pg.ErrUnavailable)
		require.Equal(t, pg.NotApplied, outcome)
	}
	t.Run("its caller was gone", func(t *testing.T) {
		t.Parallel()
		_, pool, _ := attempts(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		outcome, err := pg.Call(ctx, pool, insert, []any{7})
		requireUnavailable(t, outcome, err)
		require.ErrorIs(t, err, context.Canceled)
		assert.False(t, exists(t, pool, 7))
	})
	t.Run("all connections are taken", func(t *testing.T) {
		t.Parallel()
		db := teststack.Database(t)
		pool, err := pg.Open(soon(t), pg.Config{URL: db.URL(teststack.Owner), MaxConns: 1})
		require.NoError(t, err)
		defer pool.Close()
		taken, err := pool.Acquire(soon(t))
		require.NoError(t, err)
		defer taken.Release()
		select {
		case r := <-callInBackground(context.Background(), pool, insert, 7):
			requireUnavailable(t, r.outcome, r.err)
			require.ErrorIs(t, r.err, context.DeadlineExceeded)
		case <-soon(t).Done():
			t.Error("it waits for ever")
		}
	})
	t.Run("the server is gone", func(t *testing.T) {
		t.Parallel()
		db := teststack.OwnCluster(t)
		pool := db.Pool(t, teststack.Owner)
		db.Postgres.Kill()
		pool.Reset()
		outcome, err := pg.Call(soon(t), pool, "SELECT 1", nil)
		requireUnavailable(t, outcome, err)
		require.NoError(t, db.Postgres.Restart(soon(t)))
		var one int
		outcome, err = pg.Call(soon(t), pool, "SELECT 1", nil, &one)
		require.NoError(t, err)
		assert.Equal(t, pg.Committed, outcome)
	})
	t.Run("the role has become unsuitable", func(t *testing.T) {
		t.Parallel()
		db, pool, super := attempts(t)
		_, err := super.Exec(soon(t), "ALTER ROLE "+teststack.Owner+" IN DATABASE "+db.Name+" SET default_transaction_isolation = 'serializable'")
		require.NoError(t, err)
		pool.Reset()
		outcome, err := pg.Call(soon(t), pool, insert, []any{7})
		requireUnavailable(t, outcome, err)
		require.ErrorIs(t, err, pg.ErrUnsuitable)
		assert.False(t, exists(t, super, 7))
	})
}

func TestCallWhoseAnswerIsLostIsAmbiguousThoughCommitted(t *testing.T) {
	t.Parallel()
	db, _, super := attempts(t)
	proxy := startProxy(t, db)
	pool := proxy.pool(t, db)
	release := holdLock(t, super)
	done := callInBackground(soon(t), pool, insertBehindLock, 7)
	waiter(t, super)
	proxy.cutNextAnswer()
	release()
	r := <-done
	require.Error(t, r.err)
	require.NotErrorIs(t, r.err, pg.ErrUnavailable)
	assert.Equal(t, pg.Ambiguous, r.outcome)
	assert.True(t, exists(t, super, 7), "the server had answered, so it had committed")
}

func TestCallPastItsDeadlineIsAmbiguousAndSendsNoCancel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for the deadline of 5 s")
	}
	db, _, super := attempts(t)
	proxy := startProxy(t, db)
	pool := proxy.pool(t, db)
	before := proxy.accepted.Load()
	release := holdLock(t, super)
	done := callInBackground(context.Background(), pool, insertBehindLock, 7)
	backend := waiter(t, super)
	r := <-done
	require.ErrorIs(t, r.err, context.DeadlineExceeded)
	assert.Equal(t, pg.Ambiguous, r.outcome)
	assert.Equal(t, backend, waiter(t, super), "nobody cancelled it")
	release()
	require.Eventually(t, func() bool { return exists(t, super, 7) }, 20*time.Second, time.Millisecond, "it commits all the same")
	assert.Equal(t, before, proxy.accepted.Load(), "a cancel request would be one more connection")
}
