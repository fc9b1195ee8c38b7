package postgres

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

func (r *resource) sqlDB(t *testing.T, pool *pgxpool.Pool) *sql.DB {
	t.Helper()
	var db *sql.DB
	if pool != nil {
		db = stdlib.OpenDBFromPool(pool)
	} else {
		var err error
		db, err = sql.Open("pgx", r.url)
		require.NoError(t, err)
		db.SetMaxOpenConns(6)
	}
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	return db
}

func (r *resource) sqlLedger(t *testing.T, db *sql.DB, do func(context.Context, *Tx) (any, error)) *Ledger {
	t.Helper()
	l, err := New(Config{DB: db, Tables: orders, Operations: map[string]Operation{"custom": {
		Target: func(json.RawMessage) (guards.Target, error) { return guards.Target{Resource: "table:orders"}, nil },
		DoSQL:  func(ctx context.Context, tx *Tx, _ json.RawMessage) (any, error) { return do(ctx, tx) },
	}}})
	require.NoError(t, err)
	return l
}

func insertSQL(id string) func(context.Context, *Tx) (any, error) {
	return func(ctx context.Context, tx *Tx) (any, error) {
		statement, err := tx.PrepareContext(ctx, `INSERT INTO orders (id) VALUES ($1)`)
		if err != nil {
			return nil, err
		}
		defer statement.Close()
		_, err = statement.ExecContext(ctx, id)
		return map[string]string{"id": id}, err
	}
}

// TestDatabaseSQL: the same ledger over the standard library's interface, operations and row actions alike.
func TestDatabaseSQL(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.sqlLedger(t, r.sqlDB(t, nil), func(ctx context.Context, tx *Tx) (any, error) {
		result, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ($1)`, "1")
		if err != nil {
			return nil, err
		}
		n, _ := result.RowsAffected()
		var id string
		if err := tx.QueryRowContext(ctx, `SELECT id FROM orders`).Scan(&id); err != nil {
			return nil, err
		}
		rows, err := tx.QueryContext(ctx, `SELECT id FROM orders`)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		for rows.Next() {
			n++
		}
		return map[string]any{"n": n, "id": id}, rows.Err()
	})
	a := goAhead("custom", 3, `{}`)
	require.NoError(t, l.Intend(t.Context(), a.Attempt))
	ending, err := l.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)
	require.JSONEq(t, `{"n":2,"id":"1"}`, string(ending.Result))
	require.ErrorIs(t, l.Intend(t.Context(), a.Attempt), guards.ErrSettled)
	ending, err = l.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)

	for _, c := range []struct{ action, params, want string }{
		{"row.append", `{"table":"orders","values":{"id":"2","paid":true,"cents":5}}`, `{"rows":1}`},
		{"row.read", `{"table":"orders","key":{"id":"1"}}`, `{"rows":[{"id":"1","paid":false,"cents":null,"order":null}]}`},
		{"row.read", `{"table":"orders","key":{"id":"none"}}`, `{"rows":[]}`},
	} {
		ending, err := l.Apply(t.Context(), goAhead(c.action, 1, c.params))
		require.NoError(t, err)
		require.Equal(t, guards.Committed, ending.Outcome, c.params)
		require.JSONEq(t, c.want, string(ending.Result))
	}
	lower := goAhead("custom", 2, `{}`)
	lower.Lane = a.Lane
	ending, err = l.Apply(t.Context(), lower)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.FenceStale}, ending)
	_, err = l.Probe(t.Context())
	require.ErrorIs(t, err, guards.ErrSettings, "this server forgets")
}

func TestDatabaseSQLNotApplied(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	db := r.sqlDB(t, nil)
	for name, c := range map[string]struct {
		do     func(context.Context, *Tx) (any, error)
		left   time.Duration
		reason api.Code
	}{
		"an error": {func(context.Context, *Tx) (any, error) { return nil, errors.New("no") }, time.Minute, ""},
		"a panic":  {func(context.Context, *Tx) (any, error) { panic("no") }, time.Minute, ""},
		"a check": {func(ctx context.Context, tx *Tx) (any, error) {
			return tx.ExecContext(ctx, `INSERT INTO orders (id, cents) VALUES ('2', -1)`)
		}, time.Minute, api.InvalidRequest},
		"too long": {func(ctx context.Context, tx *Tx) (any, error) {
			return tx.ExecContext(ctx, `INSERT INTO orders (id) SELECT pg_sleep(60)::text`)
		}, 300 * time.Millisecond, api.TooLate},
		"kept quiet": {func(ctx context.Context, tx *Tx) (any, error) { <-ctx.Done(); return nil, nil }, 300 * time.Millisecond, api.TooLate},
		"no time":    {insertSQL("1"), 0, api.TooLate},
		"no result":  {func(context.Context, *Tx) (any, error) { return "text", nil }, time.Minute, api.InvalidRequest},
		"the ledger": {func(ctx context.Context, tx *Tx) (any, error) {
			return tx.ExecContext(ctx, `DELETE FROM nightwarrant_guard.effects`)
		}, time.Minute, ""},
		"a duplicate": {func(ctx context.Context, tx *Tx) (any, error) {
			return tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES ('1'), ('1')`)
		}, time.Minute, api.InvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			l := r.sqlLedger(t, db, c.do)
			a := goAhead("custom", 1, `{}`)
			began := time.Now()
			a.Left = func() time.Duration { return c.left - time.Since(began) }
			ending, err := l.Apply(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: c.reason}, ending)
			require.Zero(t, r.count(t, "orders"))
			require.Equal(t, 1, r.count(t, "nightwarrant_guard.effects WHERE effect = $1 AND outcome = 'tombstone'", a.Effect[:]))
		})
	}
	require.Zero(t, db.Stats().InUse, "each connection was given back")
}

// TestDatabaseSQLCommitWhoseWordIsLost is read back as over pgx.
func TestDatabaseSQLCommitWhoseWordIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate int32
		want guards.Outcome
		rows int
	}{"it had arrived": {loseWord, guards.Committed, 1}, "it had not": {loseIt, guards.NotApplied, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newResource(t)
			pool, line := r.cuttablePool(t)
			l := r.sqlLedger(t, r.sqlDB(t, pool), insertSQL("1"))
			line.commit.Store(c.fate)
			ending, err := l.Apply(t.Context(), goAhead("custom", 1, `{}`))
			require.NoError(t, err)
			require.Equal(t, c.want, ending.Outcome)
			require.Equal(t, c.rows, r.count(t, "orders"))
		})
	}
}

// TestDatabaseSQLCallerThatHangsUp changes nothing about a COMMIT.
func TestDatabaseSQLCallerThatHangsUp(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	ctx, hangUp := context.WithCancel(t.Context())
	l := r.sqlLedger(t, r.sqlDB(t, nil), insertSQL("1"))
	tx, err := l.store.db.begin(ctx)
	require.NoError(t, err)
	_, err = tx.exec(ctx, `INSERT INTO orders (id) VALUES ('1')`, nil)
	require.NoError(t, err)
	hangUp()
	require.NoError(t, tx.end(ctx, true))
	require.Equal(t, 1, r.count(t, "orders"))
	_, err = l.store.db.begin(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDatabaseSQLAppliesOnce(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	do := func(ctx context.Context, tx *Tx) (any, error) {
		_, err := tx.ExecContext(ctx, `INSERT INTO orders (id) SELECT gen_random_uuid()::text`)
		return nil, err
	}
	// A guard over each driver, of the same identity.
	replicas := []*Ledger{r.sqlLedger(t, r.sqlDB(t, nil), do), r.ledger(t, r.pool(t), doing(appendOrder("1")))}
	one := goAhead("custom", 1, `{}`)
	outcomes := make(chan guards.Outcome, 20)
	var group sync.WaitGroup
	for i := range cap(outcomes) {
		a := one
		a.ID = guards.NewRef()
		group.Go(func() {
			ending, err := replicas[i%2].Apply(t.Context(), a)
			assert.NoError(t, err)
			outcomes <- ending.Outcome
		})
	}
	group.Wait()
	close(outcomes)
	count := map[guards.Outcome]int{}
	for o := range outcomes {
		count[o]++
	}
	require.Equal(t, map[guards.Outcome]int{guards.Committed: 1, guards.Ambiguous: 19}, count)
	require.Equal(t, 1, r.count(t, "orders"))
}

func TestDatabaseSQLConfigurationThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	db := r.sqlDB(t, nil)
	pgxOperation, sqlOperation := doing(appendOrder("1"))["custom"], Operation{Target: doing(nil)["custom"].Target,
		DoSQL: func(context.Context, *Tx, json.RawMessage) (any, error) { return nil, nil }}
	for name, c := range map[string]Config{
		"both":                        {DB: db, Pool: lazyPool(t), Tables: orders},
		"neither":                     {Tables: orders},
		"an operation over pgx":       {DB: db, Operations: map[string]Operation{"x": pgxOperation}},
		"an operation over the other": {Pool: lazyPool(t), Operations: map[string]Operation{"x": sqlOperation}},
	} {
		_, err := New(c)
		require.Error(t, err, name)
	}
	few, err := sql.Open("pgx", r.url)
	require.NoError(t, err)
	defer few.Close()
	few.SetMaxOpenConns(reserved)
	_, err = New(Config{DB: few, Tables: orders})
	require.ErrorContains(t, err, "connections")
	unlimited, err := sql.Open("pgx", r.url)
	require.NoError(t, err)
	defer unlimited.Close()
	_, err = New(Config{DB: unlimited, Tables: orders})
	require.NoError(t, err)
}
