package teststack

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// Standby starts a streaming standby of db's cluster, which must be t's own,
// and returns the same database on it. It has the same roles and passwords, and
// takes no writes until its Postgres is promoted.
func (db *DB) Standby(t testing.TB, name string) *DB {
	t.Helper()
	dir := scratchFor(t, db)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := db.Postgres.Standby(ctx, dir.path, name)
	if err != nil {
		require.NoError(t, dir.remove())
	}
	require.NoError(t, err)
	return db.on(t, p, dir)
}

// Elsewhere starts another, empty cluster and returns the database that db
// would be on it: what the test puts there, under db's name.
func (db *DB) Elsewhere(t testing.TB) *DB {
	t.Helper()
	dir := scratchFor(t, db)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	p, err := localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: dir.path, Settings: scratch})
	if err != nil {
		require.NoError(t, dir.remove())
	}
	require.NoError(t, err)
	return db.on(t, p, dir)
}

// on is db on another server, which ends with t.
func (db *DB) on(t testing.TB, p *localstack.Postgres, dir *scratchDir) *DB {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		assert.NoError(t, p.Stop(ctx))
		assert.NoError(t, dir.remove())
	})
	return &DB{Name: db.Name, Postgres: p, cluster: db.cluster}
}

// scratchFor makes a directory for one more cluster of t's, beside that of db.
func scratchFor(t testing.TB, db *DB) *scratchDir {
	t.Helper()
	cache, err := cacheDir()
	require.NoError(t, err)
	lock, err := lockFile(filepath.Join(cache, "lock"), 0) // until it is in use, it looks abandoned
	require.NoError(t, err)
	defer lock.Close() //nolint:errcheck // it was only locked
	dir, err := newScratch(filepath.Dir(db.cluster.dir.path))
	require.NoError(t, err)
	return dir
}

// Sibling makes another migrated database on the cluster of db, which must be
// t's own and writable.
func (db *DB) Sibling(t testing.TB) *DB {
	t.Helper()
	return db.cluster.database(t)
}

// On is the database of db's name on another server that has it.
func (db *DB) On(server *DB) *DB {
	return &DB{Name: db.Name, Postgres: server.Postgres, cluster: db.cluster}
}
