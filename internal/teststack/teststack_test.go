package teststack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/migrations"
)

func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	t.Cleanup(cancel)
	return ctx
}

// text is the one text that a statement answers to a role.
func text(t *testing.T, db *DB, role, sql string) string {
	t.Helper()
	var answer string
	require.NoError(t, db.Pool(t, role).QueryRow(soon(t), sql).Scan(&answer))
	return answer
}

func TestDatabasesDoNotSeeEachOther(t *testing.T) {
	t.Parallel()
	const neighbours = 4
	for i := range neighbours {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			db := Database(t)
			pool := db.Pool(t, Owner)
			_, err := pool.Exec(soon(t), "CREATE TABLE mine AS SELECT $1::text AS who", db.Name)
			require.NoError(t, err)
			assert.Equal(t, db.Name, text(t, db, Owner, "SELECT string_agg(who, ',') FROM mine"))
		})
	}
}

func TestDatabasesAreMadeAtTheSameTime(t *testing.T) {
	t.Parallel()
	names := make(chan string, 8)
	var all sync.WaitGroup
	for range cap(names) {
		all.Go(func() { names <- Database(t).Name })
	}
	all.Wait()
	close(names)
	seen := map[string]bool{}
	for name := range names {
		assert.False(t, seen[name], name)
		seen[name] = true
	}
	assert.Len(t, seen, cap(names))
}

func TestDatabaseIsDroppedWithItsTest(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("inner", func(t *testing.T) {
		db := Database(t)
		name = db.Name
		// A session that the test forgot does not keep the database.
		_, err := pgx.Connect(soon(t), db.URL(Owner))
		require.NoError(t, err)
	})
	count := text(t, Database(t), Superuser, "SELECT count(*)::text FROM pg_database WHERE datname = '"+name+"'")
	assert.Equal(t, "0", count)
}

func TestDatabaseIsMigrated(t *testing.T) {
	t.Parallel()
	db := Database(t)
	current, newest, err := migrations.Version(soon(t), db.URL(Owner))
	require.NoError(t, err)
	assert.Positive(t, newest)
	assert.Equal(t, newest, current)
}

func TestRolesArriveWithTheirOwnRights(t *testing.T) {
	t.Parallel()
	db := Database(t)
	for _, role := range []string{Owner, "nw_authority", "nw_scheduler", "nw_operator"} {
		assert.Equal(t, role+" false", text(t, db, role,
			"SELECT current_user || ' ' || rolsuper FROM pg_roles WHERE rolname = current_user"))
	}
	assert.Equal(t, Superuser, text(t, db, Superuser, "SELECT current_user::text"))
	_, err := pgx.Connect(soon(t), db.URL("nobody_known"))
	require.Error(t, err)
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	db := Database(t)
	for _, role := range []string{Owner, "nw_authority", Superuser} {
		_, err := pgx.Connect(soon(t), db.Postgres.URL(role, db.cluster.password+"x", db.Name))
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, role)
		assert.Equal(t, "28P01", refused.Code, role)
	}
	method := text(t, db, Superuser, "SELECT string_agg(DISTINCT left(rolpassword, 15), ',') FROM pg_authid WHERE rolcanlogin")
	assert.Equal(t, "SCRAM-SHA-256$1", method)
}

func TestOwnClusterMayBeKilled(t *testing.T) {
	t.Parallel()
	neighbour := Database(t)
	db := OwnCluster(t)
	assert.NotEqual(t, neighbour.Postgres.AdminURL("x"), db.Postgres.AdminURL("x"))
	pool := db.Pool(t, Owner)
	_, err := pool.Exec(soon(t), "CREATE TABLE kept AS SELECT 'kept' AS what")
	require.NoError(t, err)
	db.Postgres.Kill()
	require.NoError(t, db.Postgres.Restart(soon(t)))
	assert.Equal(t, "kept", text(t, db, Owner, "SELECT what FROM kept"))
	assert.Equal(t, "1", text(t, neighbour, Owner, "SELECT '1'"))
}

func TestDurableClusterWritesWhatItSays(t *testing.T) {
	t.Parallel()
	const sql = "SELECT current_setting('fsync') || current_setting('synchronous_commit') || current_setting('full_page_writes')"
	assert.Equal(t, "ononon", text(t, DurableCluster(t), Owner, sql))
	assert.Equal(t, "offonoff", text(t, Database(t), Owner, sql))
}

func TestOwnClusterLeavesNothing(t *testing.T) {
	t.Parallel()
	var dir string
	t.Run("inner", func(t *testing.T) {
		db := OwnCluster(t)
		dir = db.cluster.dir.path
		require.DirExists(t, dir)
		db.Postgres.Kill() // a test may end with its cluster down
	})
	assert.NoDirExists(t, dir)
	assert.NoFileExists(t, dir+inUse)
}

func TestRequireClusterSkipsOnlyForWantOfPostgreSQL(t *testing.T) {
	missing := fmt.Errorf("start: %w", localstack.ErrNoPostgres)
	for _, c := range []struct {
		ci   string
		err  error
		want string
	}{{"true", missing, "failed"}, {"", missing, "skipped"}, {"", errors.New("broken"), "failed"}, {"true", nil, "passed"}} {
		t.Setenv("CI", c.ci)
		assert.Equal(t, c.want, verdict(func(t testing.TB) { requireCluster(t, c.err) }), "%+v", c)
	}
}

// verdict runs f with a stand-in for testing.T and says how it ended.
func verdict(f func(testing.TB)) string {
	s := &standIn{state: "passed"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if left := recover(); left != nil && left != errLeft {
				panic(left)
			}
		}()
		f(s)
	}()
	<-done
	return s.state
}

// errLeft is how the stand-in ends its goroutine.
var errLeft = errors.New("left")

type standIn struct {
	testing.TB
	state string
}

func (*standIn) Name() string            { return "stand-in" }
func (*standIn) Helper()                 {}
func (s *standIn) Errorf(string, ...any) { s.state = "failed" }
func (s *standIn) FailNow()              { s.state = "failed"; panic(errLeft) }
func (s *standIn) Skip(...any)           { s.state = "skipped"; panic(errLeft) }
func (s *standIn) Error(...any)          { s.state = "failed" }

func TestExitCode(t *testing.T) {
	t.Parallel()
	failed := errors.New("left behind")
	leaks := func(err error) func() error { return func() error { return err } }
	assert.Equal(t, 1, exitCode(0, failed, leaks(nil)))
	assert.Equal(t, 1, exitCode(0, nil, leaks(failed)))
	assert.Equal(t, 2, exitCode(2, failed, leaks(failed)))
	assert.Equal(t, 1, exitCode(1, nil, func() error { t.Error("not asked after a failure"); return nil }))
	assert.Equal(t, 0, exitCode(0, nil, leaks(nil)))
}

func TestPoolThatIsKeptFailsItsTest(t *testing.T) {
	t.Parallel()
	pool := Database(t).Pool(t, Owner)
	conn, err := pool.Acquire(soon(t))
	require.NoError(t, err)
	assert.Equal(t, "failed", verdict(func(t testing.TB) { closePool(t, pool, time.Millisecond) }))
	conn.Release()
}

func TestNATSServesItsTestOnly(t *testing.T) {
	t.Parallel()
	server := NATS(t, localstack.NATSUser{Name: "one", Subscribe: []string{"q.one"}})
	other := NATS(t)
	assert.NotEqual(t, server.URL(Admin), other.URL(Admin))
	for _, user := range []string{Admin, "one"} {
		conn, err := nats.Connect(server.URL(user), nats.NoReconnect())
		require.NoError(t, err, user)
		conn.Close()
	}
	_, err := nats.Connect(other.URL("one"), nats.NoReconnect())
	require.Error(t, err)
}

func TestAbandonedDirectoriesAreRemovedAndLivingOnesKept(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{os.TempDir(), inMemory()} {
		requireAbandonedRemoved(t, parent)
	}
}

func requireAbandonedRemoved(t *testing.T, parent string) {
	t.Helper()
	alive, err := newScratch(parent)
	require.NoError(t, err)
	dead, err := newScratch(parent)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dead.path, "data"), nil, 0o600))
	require.NoError(t, dead.lock.Close()) // as the end of its process does

	removeAbandoned()
	assert.NoDirExists(t, dead.path)
	assert.NoFileExists(t, dead.path+inUse)
	assert.DirExists(t, alive.path)
	require.NoError(t, alive.remove())
	assert.NoDirExists(t, alive.path)
}

func TestForgetOldKeepsTheNewest(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(cache, "lock"), nil, 0o600))
	name := func(i int) string { return filepath.Join(cache, fmt.Sprintf("%024d", i)) }
	for i := range keptTemplates + 2 {
		require.NoError(t, os.Mkdir(name(i), 0o700))
		age := time.Unix(int64(1000+i), 0)
		require.NoError(t, os.Chtimes(name(i), age, age))
	}
	forgetOld(cache)
	for i := range keptTemplates + 2 {
		_, err := os.Stat(name(i))
		assert.Equal(t, i >= 2, err == nil, i)
	}
	assert.FileExists(t, filepath.Join(cache, "lock"))
}

func TestMustBeMine(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	mine := filepath.Join(base, "mine")
	require.NoError(t, os.Mkdir(mine, 0o700))
	require.NoError(t, mustBeMine(mine))

	open := filepath.Join(base, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	link := filepath.Join(base, "link")
	require.NoError(t, os.Symlink(mine, link))
	file := filepath.Join(base, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o700))
	for _, path := range []string{open, link, file, filepath.Join(base, "absent")} {
		require.Error(t, mustBeMine(path), path)
	}
	if os.Getuid() == 0 {
		require.NoError(t, os.Chown(mine, 65534, 65534))
		require.Error(t, mustBeMine(mine))
	}
}
