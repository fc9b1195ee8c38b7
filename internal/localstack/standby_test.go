package localstack

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	s, err := p.Standby(soon(t, time.Minute), emptyDir(t), "second")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop(soon(t, time.Minute))) })
	assert.Equal(t, "true", query(t, s, "SELECT pg_is_in_recovery()::text"))

	query(t, p, "WITH made AS (SELECT lo_from_bytea(4711, 'kept')) SELECT 'x' FROM made")
	require.Eventually(t, func() bool { return query(t, s, "SELECT count(*)::text FROM pg_largeobject_metadata") == "1" }, 30*time.Second, pollEvery)
	assert.Equal(t, "second", query(t, p, "SELECT application_name FROM pg_stat_replication"))

	p.Kill()
	require.NoError(t, s.Promote(soon(t, time.Minute)))
	const timeline = "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
	assert.Equal(t, "00000002", query(t, s, timeline))
	require.NoError(t, s.Restart(soon(t, time.Minute)))
	assert.Equal(t, "00000002", query(t, s, timeline), "it stays a primary")
	require.Error(t, s.Promote(soon(t, time.Minute)), "and cannot become one again")
}

func TestStandbyOfNothing(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	p.Kill()
	dir := emptyDir(t)
	_, err := p.Standby(soon(t, time.Minute), dir, "second")
	require.Error(t, err)
	assert.NoDirExists(t, filepath.Join(dir, "data"), "half a copy must not look like a cluster")
}

func TestSaveAndRestore(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	require.ErrorIs(t, p.Save(soon(t, time.Minute)), ErrRunning)
	require.ErrorIs(t, p.Restore(soon(t, time.Minute)), ErrRunning)
	require.NoError(t, p.Stop(soon(t, time.Minute)))
	require.ErrorIs(t, p.Restore(soon(t, time.Minute)), os.ErrNotExist, "what was never saved replaces nothing")
	require.NoError(t, p.Save(soon(t, time.Minute)))
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	const later = "SELECT count(*)::text FROM pg_largeobject_metadata"
	query(t, p, "WITH made AS (SELECT lo_from_bytea(4711, 'later')) SELECT 'x' FROM made")
	require.Equal(t, "1", query(t, p, later))

	require.NoError(t, p.Stop(soon(t, time.Minute)))
	require.NoError(t, p.Restore(soon(t, time.Minute)))
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	assert.Equal(t, "0", query(t, p, later))
}
