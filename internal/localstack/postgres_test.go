package localstack

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func connect(t *testing.T, url string) (*pgx.Conn, error) {
	t.Helper()
	conn, err := pgx.Connect(soon(t, 10*time.Second), url)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
	}
	return conn, err
}

// query returns the one text that a statement answers.
func query(t *testing.T, p *Postgres, sql string) string {
	t.Helper()
	conn, err := connect(t, p.AdminURL("postgres"))
	require.NoError(t, err)
	var answer string
	require.NoError(t, conn.QueryRow(soon(t, 10*time.Second), sql).Scan(&answer))
	return answer
}

func TestStartPostgresRefuses(t *testing.T) {
	t.Parallel()
	needPostgres(t)

	t.Run("a directory that its account cannot enter", func(t *testing.T) {
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("only root runs the server as another account")
		}
		closed := filepath.Join(passableDir(t), "closed")
		require.NoError(t, os.Mkdir(closed, 0o700))
		_, err := StartPostgres(soon(t, time.Minute), PostgresOptions{Dir: filepath.Join(closed, "pg")})
		require.ErrorIs(t, err, ErrUnreachable)
		assert.ErrorContains(t, err, closed)
	})

	t.Run("a setting that does not exist, with the server's own words", func(t *testing.T) {
		t.Parallel()
		dir := clusterDir(t)
		_, err := StartPostgres(soon(t, time.Minute), PostgresOptions{Dir: dir, Settings: map[string]string{"no_such_setting": "1"}})
		require.ErrorContains(t, err, "unrecognized configuration parameter")
		assert.NoDirExists(t, filepath.Join(dir, "run"))
	})

	t.Run("to begin when its context has ended", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		dir := emptyDir(t)
		_, err := StartPostgres(ctx, PostgresOptions{Dir: dir})
		require.ErrorIs(t, err, context.Canceled)
		assert.NoDirExists(t, filepath.Join(dir, "data"), "half a cluster must not look like one")
	})
}

func TestPostgresDefaults(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: emptyDir(t)})

	for setting, want := range map[string]string{
		"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "data_checksums": "on",
		"listen_addresses": "", "server_encoding": "UTF8", "TimeZone": "UTC", "password_encryption": "scram-sha-256",
	} {
		assert.Equal(t, want, query(t, p, "SELECT current_setting('"+setting+"')"), setting)
	}
	assert.Equal(t, "0", query(t, p, "SELECT count(*)::text FROM pg_hba_file_rules WHERE auth_method <> 'scram-sha-256'"))

	_, err := connect(t, p.URL(Superuser, "wrong", "postgres"))
	require.ErrorContains(t, err, "password authentication failed")
	_, err = connect(t, p.URL(Superuser, "", "postgres"))
	require.Error(t, err)

	password, err := os.Stat(p.path("superuser"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), password.Mode().Perm())
	data, err := os.Stat(p.path("data"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), data.Mode().Perm())
}

func TestPostgresSettingsWinOverDefaults(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{
		Dir:      clusterDir(t),
		Settings: map[string]string{"fsync": "off", "max_connections": "17"},
	})
	assert.Equal(t, "off", query(t, p, "SELECT current_setting('fsync')"))
	assert.Equal(t, "17", query(t, p, "SELECT current_setting('max_connections')"))
}

func TestPostgresKeepsItsDataAndURLs(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	p := startPostgres(t, PostgresOptions{Dir: dir})
	url := p.AdminURL("postgres")
	query(t, p, "WITH made AS (SELECT lo_from_bytea(4711, 'kept')) SELECT 'x' FROM made")
	const kept = "SELECT convert_from(lo_get(4711), 'UTF8')"

	require.NoError(t, p.Restart(soon(t, time.Minute)))
	assert.Equal(t, url, p.AdminURL("postgres"))
	assert.Equal(t, "kept", query(t, p, kept))

	require.NoError(t, p.Stop(soon(t, time.Minute)))
	require.NoError(t, p.Stop(soon(t, time.Minute)), "stopping twice is no error")
	p.Kill()
	_, err := connect(t, url)
	require.Error(t, err)

	again := startPostgres(t, PostgresOptions{Dir: dir})
	assert.Equal(t, url, again.AdminURL("postgres"))
	assert.Equal(t, "kept", query(t, again, kept))
}

func TestPostgresDirServesOneProcessAtATime(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	p := startPostgres(t, PostgresOptions{Dir: dir})
	_, err := StartPostgres(soon(t, 200*time.Millisecond), PostgresOptions{Dir: dir})
	require.ErrorContains(t, err, "in use by another process")
	assert.Equal(t, "1", query(t, p, "SELECT '1'"), "the first one is undisturbed")
}

func TestPostgresWithoutItsPasswordFileDoesNotStart(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	require.NoError(t, p.Stop(soon(t, time.Minute)))
	require.NoError(t, os.WriteFile(p.path("superuser"), []byte("another"), 0o600))
	require.ErrorContains(t, p.Restart(soon(t, time.Minute)), "password authentication failed")
	require.NoError(t, os.Remove(p.path("superuser")))
	require.ErrorContains(t, p.Restart(soon(t, time.Minute)), "the superuser's password")
}

func TestPostgresInADirectoryTooLongForASocket(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: filepath.Join(passableDir(t), strings.Repeat("long", 30))})
	assert.LessOrEqual(t, len(p.sockets), maxSocketDir)
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	assert.Equal(t, "1", query(t, p, "SELECT '1'"))
	require.NoError(t, p.Stop(soon(t, time.Minute)))
	assert.NoDirExists(t, p.sockets)
}

func TestSocketDir(t *testing.T) {
	t.Parallel()
	longest := "/" + strings.Repeat("d", maxSocketDir-len("//run"))
	inside, err := socketDir(longest)
	require.NoError(t, err)
	assert.Equal(t, longest+"/run", inside)
	for _, dir := range []string{longest + "d", "/a,b", `/a"b`} {
		outside, err := socketDir(dir)
		require.NoError(t, err)
		t.Cleanup(func() { _ = os.Remove(outside) })
		assert.NotContains(t, outside, dir)
	}
}
