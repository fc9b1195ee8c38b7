package postgres

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "40") // each is up to some thirty transactions of a server; -rapid.checks=1000 is the long form
	teststack.Main(m)
}

// resource is a database with a table of orders, and the role of the guard in front of it.
type resource struct {
	db    *teststack.DB
	owner *pgxpool.Pool
	url   string // of the guard's role
}

func newResource(t *testing.T) *resource { return prepare(t, teststack.Database(t)) }

func prepare(t *testing.T, db *teststack.DB) *resource {
	t.Helper()
	r := &resource{db: db, owner: db.Pool(t, teststack.Owner)}
	role, password := "guard_"+db.Name, rand.Text()
	r.exec(t, `CREATE TABLE orders (id text PRIMARY KEY, paid boolean NOT NULL DEFAULT false, cents integer CHECK (cents > 0), "order" text)`)
	r.exec(t, `CREATE ROLE `+role+` LOGIN PASSWORD '`+password+`'`)
	t.Cleanup(func() {
		_, _ = r.owner.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; `)
		_, _ = r.owner.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role)
	})
	r.exec(t, `GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO `+role)
	require.NoError(t, Migrate(t.Context(), r.owner, role))
	r.url = db.Postgres.URL(role, password, db.Name)
	return r
}

func (r *resource) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := r.owner.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

func (r *resource) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, r.owner.QueryRow(t.Context(), "SELECT count(*) FROM "+sql, args...).Scan(&n))
	return n
}

// pool is the guard's, as production opens it.
func (r *resource) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := Open(t.Context(), r.url)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

var orders = map[string]Table{"orders": {Columns: []string{"id", "paid", "cents", "order"}, Key: []string{"id"}}}

// ledger is of a guard with the row actions and the given operations.
func (r *resource) ledger(t *testing.T, pool *pgxpool.Pool, operations map[string]Operation) *Ledger {
	t.Helper()
	l, err := New(Config{Pool: pool, Tables: orders, Operations: operations, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	return l
}

// doing is an owner's operation that only its test knows.
func doing(do func(context.Context, pgx.Tx) (any, error)) map[string]Operation {
	return map[string]Operation{"custom": {
		Target: func(json.RawMessage) (guards.Target, error) { return guards.Target{Resource: "table:orders"}, nil },
		Do:     func(ctx context.Context, tx pgx.Tx, _ json.RawMessage) (any, error) { return do(ctx, tx) },
	}}
}

func appendOrder(id string) func(ctx context.Context, tx pgx.Tx) (any, error) {
	return func(ctx context.Context, tx pgx.Tx) (any, error) {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES ($1)`, id)
		return map[string]string{"id": id}, err
	}
}

// goAhead is an admission with plenty of time.
func goAhead(action string, fence int64, params string) guards.Admitted {
	return guards.Admitted{
		Attempt: guards.Attempt{Effect: guards.NewRef(), ID: guards.NewRef(), Action: action, Digest: [32]byte{1}, Params: json.RawMessage(params)},
		Run:     guards.NewRef(), Lane: guards.NewRef(), Fence: fence, Number: 1,
		Left: func() time.Duration { return 20 * time.Second },
	}
}

// waitForLock returns when some session of the database waits for a lock.
func (r *resource) waitForLock(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for waiting := false; !waiting; <-time.After(5 * time.Millisecond) {
		require.NoError(t, r.owner.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database())`).Scan(&waiting))
	}
}

// line is the way to the server, for pools that a test cuts off.
type line struct {
	commit  atomic.Int32 // what becomes of the next COMMIT
	severed atomic.Bool  // nobody can connect
}

const (
	pass     = iota
	loseIt   // the COMMIT never arrives
	loseWord // the COMMIT arrives, its answer does not
	loseAll  // loseWord, and afterwards nobody can connect
)

func (r *resource) cuttablePool(t *testing.T) (*pgxpool.Pool, *line) {
	t.Helper()
	config, err := pgxpool.ParseConfig(r.url)
	require.NoError(t, err)
	l := new(line)
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if l.severed.Load() {
			return nil, errors.New("no route to host")
		}
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &cuttable{Conn: conn, line: l}, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool, l
}

type cuttable struct {
	net.Conn
	line *line
}

// Write recognises pgx's COMMIT: a simple query, and nothing else of ours is one.
func (c *cuttable) Write(b []byte) (int, error) {
	if string(b) != "Q\x00\x00\x00\x0bcommit\x00" {
		return c.Conn.Write(b)
	}
	fate := c.line.commit.Swap(pass)
	if fate == loseWord || fate == loseAll {
		if n, err := c.Conn.Write(b); err != nil {
			return n, err
		}
		c.line.severed.Store(fate == loseAll)
	}
	if fate != pass {
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return c.Conn.Write(b)
}
