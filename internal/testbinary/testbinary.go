// Package testbinary builds this repository's programs for tests that start them.
//
// A program lies in one place for the tests of all packages. The toolchain itself
// looks whether it is still what the sources say, and else links it anew; of what
// it is made, the build and the tests have compiled most already, as flags are theirs.
package testbinary

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Nightwarrant is the path of a program as make build builds it. It is the test's own.
func Nightwarrant(t testing.TB) string {
	t.Helper()
	return own(t, "nightwarrant", Go(t.Context(), "build"))
}

// Keyhost is the path of a key host, which needs C: under the race detector it has it, too, as the tests that are compiled for it.
func Keyhost(t testing.TB) string {
	t.Helper()
	build := exec.CommandContext(t.Context(), "go", append([]string{"build"}, race...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	return own(t, "nightwarrant-keyhost", build)
}

// Go is a command of the toolchain that compiles with the flags of make build.
func Go(ctx context.Context, command string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "go", append([]string{command, "-trimpath"}, args...)...)
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	return c
}

// own builds a program where all tests have it, and gives it a name of the test's:
// what is running stays what it is, whoever builds of newer sources meanwhile.
func own(t testing.TB, program string, build *exec.Cmd) string {
	t.Helper()
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOMOD").Output()
	require.NoError(t, err)
	shared := filepath.Join(filepath.Dir(strings.TrimSpace(string(root))), "build", "test")
	require.NoError(t, os.MkdirAll(shared, 0o755)) //nolint:gosec // as build is
	lock, err := os.Create(filepath.Join(shared, program+".lock"))
	require.NoError(t, err)
	defer lock.Close() //nolint:errcheck // it was not written
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))

	from := filepath.Join(shared, program)
	build.Args = append(build.Args, "-o", from, "github.com/nightwarrant/nightwarrant/cmd/"+program)
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	dir, err := os.MkdirTemp(shared, "of-a-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	to := filepath.Join(dir, program)
	require.NoError(t, os.Link(from, to))
	return to
}
