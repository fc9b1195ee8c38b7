// Package teststack gives each test a migrated PostgreSQL database of its own
// and, when asked, a NATS server. One scratch cluster serves all tests of a test
// binary; it is a copy of a cached one, so that starting it costs a copy.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { teststack.Main(m) }
package teststack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Roles beside the process roles nw_authority, nw_scheduler and nw_operator.
const (
	Owner     = "nightwarrant"       // owns the database, ran the migrations, is no superuser
	Superuser = localstack.Superuser // kills backends, reads everything
)

const (
	startTimeout = 2 * time.Minute // a first start builds the cached cluster
	stepTimeout  = 30 * time.Second
)

// shared is the cluster of this test binary, started by the first test that asks.
var shared struct {
	sync.Mutex
	cluster *cluster
	err     error
}

// Main runs the tests of a package, stops the shared cluster and fails when a
// goroutine is left over. options excuse goroutines that nobody can stop.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	os.Exit(exitCode(code, stopShared(), func() error { return goleak.Find(options...) }))
}

// exitCode adds what was left behind to the tests' own result. Goroutines of a
// test that failed half-way say nothing, so they are looked for after a success only.
func exitCode(code int, stopped error, leaked func() error) int {
	err := stopped
	if code == 0 {
		err = errors.Join(err, leaked())
	}
	if err == nil {
		return code
	}
	fmt.Fprintln(os.Stderr, "teststack:", err)
	return max(code, 1)
}

func stopShared() error {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return nil
	}
	return shared.cluster.stop()
}

func sharedCluster() (*cluster, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		shared.cluster, shared.err = startCluster(ctx, scratch)
	}
	return shared.cluster, shared.err
}

// DB is one test's database.
type DB struct {
	Name     string
	Postgres *localstack.Postgres // the cluster: never stop it unless it is the test's own
	cluster  *cluster
}

// Database makes a database of its own for t, cloned from the migrated template
// and dropped when t ends. A clone has all but what stands in the catalogue of
// databases: grants on the database and ALTER DATABASE … SET. It skips t when PostgreSQL is not installed, and
// fails it when CI=true.
func Database(t testing.TB) *DB {
	t.Helper()
	c, err := sharedCluster()
	requireCluster(t, err)
	db := c.database(t)
	t.Cleanup(func() { assert.NoError(t, c.execute(context.Background(), "DROP DATABASE "+db.Name+" WITH (FORCE)")) })
	return db
}

// OwnCluster is Database on a cluster that no other test uses, which t may
// kill, stop and restart.
func OwnCluster(t testing.TB) *DB {
	t.Helper()
	return ownCluster(t, scratch)
}

// DurableCluster is OwnCluster with a server that writes what it says, so that
// a replica finds nothing wrong with it.
func DurableCluster(t testing.TB) *DB {
	t.Helper()
	return ownCluster(t, durable)
}

// LogicalCluster is OwnCluster with a server that can tell in which order
// transactions have committed (wal_level is logical).
func LogicalCluster(t testing.TB) *DB {
	t.Helper()
	return ownCluster(t, with(scratch, map[string]string{"wal_level": "logical"}))
}

func ownCluster(t testing.TB, settings map[string]string) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := startCluster(ctx, settings)
	requireCluster(t, err)
	t.Cleanup(func() { assert.NoError(t, c.stop()) })
	return c.database(t)
}

func requireCluster(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, localstack.ErrNoPostgres) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	require.NoError(t, err)
}

var databases atomic.Int64

func (c *cluster) database(t testing.TB) *DB {
	t.Helper()
	db := &DB{Name: fmt.Sprintf("t%d", databases.Add(1)), Postgres: c.postgres, cluster: c}
	require.NoError(t, c.execute(context.Background(),
		fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s OWNER %s STRATEGY file_copy", db.Name, template, Owner)))
	return db
}

// URL is the database's URL for a role.
func (db *DB) URL(role string) string {
	if role == Superuser {
		return db.Postgres.AdminURL(db.Name)
	}
	return db.Postgres.URL(role, db.cluster.password, db.Name)
}

// Pool is a pool as production opens it, closed when t ends.
func (db *DB) Pool(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	pool, err := pg.Open(ctx, pg.Config{URL: db.URL(role), Name: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { closePool(t, pool, stepTimeout) })
	return pool
}

// closePool fails t instead of waiting for ever for a connection that t kept.
func closePool(t testing.TB, pool *pgxpool.Pool, limit time.Duration) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(limit):
		t.Error("the test kept a connection of its pool")
	}
}

// Admin is the NATS user that may do everything.
const Admin = "admin"

// NATS starts a server for t with the user Admin and the given ones, and stops
// it when t ends.
func NATS(t testing.TB, users ...localstack.NATSUser) *localstack.NATS {
	t.Helper()
	all := localstack.NATSUser{Name: Admin, Publish: []string{">"}, Subscribe: []string{">"}}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	nats, err := localstack.StartNATS(ctx, localstack.NATSOptions{Dir: t.TempDir(), Users: append(users, all)})
	require.NoError(t, err)
	t.Cleanup(nats.Stop)
	return nats
}
