package planted

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The audit of a release takes the audit's exit code, whatever it is, and a stack that does not come up is no pass.
func TestAReleaseWaitsForItsAudit(t *testing.T) {
	t.Parallel()
	const up, stays = `echo "Stop with Ctrl-C."; `, `trap 'exit 0' TERM; while :; do sleep 0.1; done`
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
			binary := filepath.Join(t.TempDir(), "nightwarrant")
			require.NoError(t, os.WriteFile(binary, []byte("#!/bin/bash\ncase $1 in\ndev) "+c.dev+" ;;\ntripwire) "+c.tripwire+" ;;\nesac\n"), 0o700)) //nolint:gosec // it is run
			out, err := exec.Command(filepath.Join(root, "scripts", "tripwire.sh"), binary).CombinedOutput()
			assert.Equal(t, c.good, err == nil, "%s", out)
		})
	}
}
