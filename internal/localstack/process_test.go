//go:build linux

package localstack

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ended says that a process is gone or only waits to be reaped.
func ended(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

func TestKillLeavesNoProcessAndLosesNoCommit(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	query(t, p, "WITH made AS (SELECT lo_from_bytea(4711, 'kept')) SELECT 'x' FROM made")
	busy := spin(t, p)
	all := append(children(p.server.cmd.Process.Pid), p.server.cmd.Process.Pid)
	require.Contains(t, all, busy)

	p.Kill()
	for _, pid := range all {
		assert.True(t, ended(pid), "process %d", pid)
	}
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	assert.Equal(t, "kept", query(t, p, "SELECT convert_from(lo_get(4711), 'UTF8')"))
}

// spin keeps one backend computing, so that it never sees its postmaster gone,
// and returns its process id.
func spin(t *testing.T, p *Postgres) int {
	t.Helper()
	conn, err := pgx.Connect(soon(t, 10*time.Second), p.AdminURL("postgres"))
	require.NoError(t, err)
	finished := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "DO $$ BEGIN LOOP END LOOP; END $$")
		finished <- err
	}()
	t.Cleanup(func() { assert.Error(t, <-finished, "the loop has no end of its own") })
	return int(conn.PgConn().PID())
}

func TestStopKillsWhatDoesNotEndInTime(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	pid := p.server.cmd.Process.Pid
	require.NoError(t, p.server.cmd.Process.Signal(syscall.SIGSTOP))
	require.ErrorIs(t, p.Stop(soon(t, 100*time.Millisecond)), context.DeadlineExceeded)
	assert.True(t, ended(pid))
	require.NoError(t, p.Restart(soon(t, time.Minute)))
}

func TestStopAfterTheServerDiedByItself(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	require.NoError(t, p.server.cmd.Process.Signal(quit))
	<-p.server.done
	require.NoError(t, p.Stop(soon(t, time.Minute)))
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	require.NoError(t, p.server.cmd.Process.Signal(quit))
	<-p.server.done
	p.Kill()
	require.NoError(t, p.Restart(soon(t, time.Minute)))
}

func TestServerInheritsNoEnvironment(t *testing.T) {
	t.Parallel()
	p := startPostgres(t, PostgresOptions{Dir: clusterDir(t)})
	p.SetEnv("NIGHTWARRANT_MARK=1")
	require.NoError(t, p.Restart(soon(t, time.Minute)))
	environment, err := os.ReadFile("/proc/" + strconv.Itoa(p.server.cmd.Process.Pid) + "/environ")
	require.NoError(t, err)
	var names []string
	for variable := range strings.SplitSeq(strings.TrimRight(string(environment), "\x00"), "\x00") {
		name, _, _ := strings.Cut(variable, "=")
		names = append(names, name)
	}
	assert.Subset(t, []string{"PATH", "LC_ALL", "NIGHTWARRANT_MARK", "PGDATA"}, names)
	assert.Contains(t, names, "NIGHTWARRANT_MARK")
}

// again starts this test binary once more as the owner of a cluster in dir.
func again(t *testing.T, binary, dir string, as *account) (cmd *exec.Cmd, input io.Closer, output *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(binary)
	cmd.Dir = filepath.Dir(dir)
	cmd.Env = []string{childDir + "=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.credential()}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, stdin, bufio.NewReader(stdout)
}

func requireReady(t *testing.T, output *bufio.Reader) {
	t.Helper()
	line, err := output.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
}

func TestPostgresEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	self, err := os.Executable()
	require.NoError(t, err)
	dir := clusterDir(t)
	owner, _, output := again(t, self, dir, nil)
	requireReady(t, output)
	pidFile, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	require.NoError(t, err)
	postmaster, err := strconv.Atoi(strings.SplitN(string(pidFile), "\n", 2)[0])
	require.NoError(t, err)
	require.False(t, ended(postmaster))

	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	// The directory's lock is free only when the last process of the cluster is gone.
	p := startPostgres(t, PostgresOptions{Dir: dir})
	assert.True(t, ended(postmaster))
	assert.Equal(t, "1", query(t, p, "SELECT '1'"))
}

func TestPostgresForAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	if os.Geteuid() != 0 {
		t.Skip("every other test here runs as an ordinary user already")
	}
	found, err := user.Lookup("nobody")
	require.NoError(t, err)
	nobody, err := newAccount(found)
	require.NoError(t, err)

	dir := passableDir(t)
	binary := filepath.Join(dir, "again")
	copyFile(t, "/proc/self/exe", binary)
	home := filepath.Join(dir, "home")
	require.NoError(t, nobody.mkdir(home))

	owner, input, output := again(t, binary, filepath.Join(home, "pg"), nobody)
	requireReady(t, output)
	data, err := os.Stat(filepath.Join(home, "pg", "data"))
	require.NoError(t, err)
	assert.EqualValues(t, nobody.uid, data.Sys().(*syscall.Stat_t).Uid)
	require.NoError(t, input.Close())
	require.NoError(t, owner.Wait())
	assert.NoDirExists(t, filepath.Join(home, "pg", "run"))
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, content, 0o755))
}

func TestServiceAccountIsNeverRoot(t *testing.T) {
	t.Parallel()
	a, err := serviceAccount()
	require.NoError(t, err)
	if os.Geteuid() != 0 {
		assert.Nil(t, a)
		return
	}
	require.NotNil(t, a)
	assert.NotZero(t, a.uid)
	assert.NotZero(t, a.gid)
}

func TestRunEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = sysProcAttr(nil)
	cancel()
	require.ErrorIs(t, run(ctx, cmd), context.Canceled)
	assert.True(t, ended(cmd.Process.Pid))
	require.Error(t, run(context.Background(), exec.Command("/nonexistent/program")))
}
