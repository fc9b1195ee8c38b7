package planted

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	up    = `echo "Stop with Ctrl-C."; `
	stays = `trap 'exit 0' TERM; while :; do sleep 0.1; done`
)

// standIn is a program with these two commands instead of the real ones.
func standIn(t *testing.T, dev, tripwire string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "nightwarrant")
	program(t, path, "case $1 in\ndev) "+dev+" ;;\ntripwire) "+tripwire+" ;;\nesac\n")
	return path
}

// program lays a script by another process: where this one had it open, a child of another test could inherit that, and
// the kernel runs nothing that somebody may write to.
func program(t *testing.T, path, script string) {
	t.Helper()
	c := exec.Command("sh", "-c", `cat >"$1" && chmod 700 "$1"`, "sh", path)
	c.Stdin = strings.NewReader("#!/bin/bash\n" + script)
	require.NoError(t, c.Run())
}

// what go version -m says of a build for release
const validated = "build GOFIPS140=v1.0.0-c2097c7c\nbuild DefaultGODEBUG=fips140=on\nbuild CGO_ENABLED=0\nbuild -trimpath=true\n"

// The audit of a release takes the audit's exit code, whatever it is, and a stack that does not come up is no pass.
func TestAnAuditTakesTheExitCode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dev, tripwire string
		good          bool
	}{
		"it holds":           {up + stays, "exit 0", true},
		"it does not hold":   {up + stays, "exit 1", false},
		"a wrong file":       {up + stays, "exit 78", false},
		"no stack":           {"exit 1", "exit 0", false},
		"a stack that ended": {"exit 0", "exit 0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(filepath.Join(root, "scripts", "tripwire.sh"), standIn(t, c.dev, c.tripwire)).CombinedOutput()
			assert.Equal(t, c.good, err == nil, "%s", out)
		})
	}
}

// A release whose build does not pass its audit is not there: nothing is given out, and what was given out before is gone.
func TestAReleaseWaitsForItsAudit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tripwire string
		good     bool
	}{"it holds": {"exit 0", true}, "it does not hold": {"exit 1", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A folder with what the target needs, and a compiler that makes the stand-in.
			dir, bin := t.TempDir(), t.TempDir()
			makefile, err := filepath.Abs(filepath.Join(root, "Makefile"))
			require.NoError(t, err)
			scripts, err := filepath.Abs(filepath.Join(root, "scripts"))
			require.NoError(t, err)
			require.NoError(t, os.Symlink(scripts, filepath.Join(dir, "scripts")))
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "build", "release"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "build", "release", "nightwarrant"), []byte("older"), 0o600))
			compiler := filepath.Join(bin, "go")
			program(t, compiler, "[ $1 = version ] && { printf '"+strings.ReplaceAll(validated, "\n", "\\n")+"'; exit; }\n"+
				"while [ $# -gt 0 ]; do [ \"$1\" = -o ] && { mkdir -p \"$(dirname \"$2\")\"; cp "+standIn(t, up+stays, c.tripwire)+" \"$2\"; exit; }; shift; done\nexit 1\n")
			out, err := exec.Command("make", "-C", dir, "-f", makefile, "release", "GO="+compiler).CombinedOutput()
			assert.Equal(t, c.good, err == nil, "%s", out)
			released, err := os.ReadFile(filepath.Join(dir, "build", "release", "nightwarrant"))
			if !c.good {
				require.ErrorIs(t, err, os.ErrNotExist)
				return
			}
			require.NoError(t, err)
			assert.NotEqual(t, "older", string(released))
		})
	}
}
