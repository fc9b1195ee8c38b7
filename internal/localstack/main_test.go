package localstack

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childDir names the directory in which this binary, started again by a test,
// runs a cluster until its standard input ends.
const childDir = "NIGHTWARRANT_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir))
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if seeded != "" {
			_ = os.RemoveAll(seeded)
		}
		os.Exit(code)
	}))
}

// seeded is where seed made its cluster.
var seeded string

// seed makes one stopped cluster, once: initdb is most of what a test would cost.
var seed = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if seeded, err = os.MkdirTemp("", "nw-local-"); err != nil {
		return "", err
	}
	p, err := StartPostgres(ctx, PostgresOptions{Dir: seeded})
	if err != nil {
		return "", err
	}
	return seeded, p.Stop(ctx)
})

func child(dir string) int {
	p, err := StartPostgres(context.Background(), PostgresOptions{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := p.Stop(context.Background()); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// needPostgres skips t where no server is installed, except in CI.
func needPostgres(t *testing.T) {
	t.Helper()
	if _, _, err := FindPostgres(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// passableDir is a temporary directory that the server's account may pass,
// which t.TempDir of root is not.
func passableDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nw-local-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// clusterDir is a directory with a copy of the seed.
func clusterDir(t *testing.T) string {
	t.Helper()
	needPostgres(t)
	from, err := seed()
	require.NoError(t, err)
	dir := passableDir(t)
	out, err := exec.Command("cp", "-a", filepath.Join(from, "data"), filepath.Join(from, "superuser"), dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// emptyDir is a directory where StartPostgres makes the cluster.
func emptyDir(t *testing.T) string { return filepath.Join(passableDir(t), "pg") }

func soon(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func startPostgres(t *testing.T, options PostgresOptions) *Postgres {
	t.Helper()
	needPostgres(t)
	p, err := StartPostgres(soon(t, time.Minute), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Stop(context.Background())) })
	return p
}
