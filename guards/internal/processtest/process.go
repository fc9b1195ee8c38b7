// Package processtest starts `nightwarrant guard` as it is shipped, for the conformance of our own guards.
package processtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
)

// Build builds the program and returns its path.
func Build(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "nightwarrant")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "github.com/nightwarrant/nightwarrant/cmd/nightwarrant").CombinedOutput()
	require.NoError(t, err, string(out))
	return binary
}

// Starter starts the program with a configuration: what every guard has, and what kind adds. The process sees env and
// nothing else of our environment.
func Starter(binary, kind string, env ...string) func(guardtest.Environment) (guardtest.Process, error) {
	return func(e guardtest.Environment) (guardtest.Process, error) {
		file := filepath.Join(e.Dir, "guard.yaml")
		text := fmt.Sprintf("uri: %s\nlisten: %s\nname: %s\nauthority: %s\nassertion_file: %s\n%s", e.URI, e.Listen, e.Name, e.Authority, e.AssertionFile, kind)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		cmd := exec.Command(binary, "guard", "--config", file) //nolint:noctx // the suite kills it
		cmd.Env, cmd.Stdout, cmd.Stderr = env, e.Log, e.Log
		return guardtest.Command(cmd)
	}
}
