package interop

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var block = regexp.MustCompile("(?ms)^```(sh|js)( [a-z.]+)?\n(.*?)^```$")

// tutorial is the page as one shell script: its commands, and its files written where they stand. What it installs is what the lock file has.
func tutorial(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	lock, err := os.ReadFile(filepath.Join("node", "package.json"))
	require.NoError(t, err)
	var locked struct{ Dependencies map[string]string }
	require.NoError(t, json.Unmarshal(lock, &locked))
	installed, err := filepath.Abs(filepath.Join("node", "node_modules"))
	require.NoError(t, err)
	script := "set -euo pipefail\n"
	blocks := block.FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 6)
	for _, m := range blocks {
		language, name, body := m[1], strings.TrimSpace(m[2]), m[3]
		switch {
		case language == "js":
			require.NotEmpty(t, name)
			script += "cat > " + name + " <<'END OF FILE'\n" + body + "END OF FILE\n"
		case strings.HasPrefix(body, "npm install "):
			for _, wanted := range strings.Fields(body)[2:] {
				at := strings.LastIndexByte(wanted, '@')
				assert.Equal(t, locked.Dependencies[wanted[:at]], wanted[at+1:], wanted)
			}
			script += "ln -s " + installed + " node_modules\n"
		default:
			script += body
		}
	}
	return script
}

// Whoever follows the page reaches a guarded effect.
func newcomerInNode(t *testing.T, h *house) {
	at := t.TempDir()
	require.NoError(t, os.Symlink(h.dir, filepath.Join(at, ".dev")))
	require.NoError(t, os.Mkdir(filepath.Join(at, "bin"), 0o700))
	require.NoError(t, os.Symlink(h.binary, filepath.Join(at, "bin", "nightwarrant")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", tutorial(t, filepath.Join("..", "..", "docs", "tutorial-worker-node.md"))) //nolint:gosec // the page's own blocks
	shell.Dir, shell.WaitDelay = at, 5*time.Second
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "succeeded, 1 committed")
	c, err := pgx.Connect(ctx, h.Databases()[1])
	require.NoError(t, err)
	defer c.Close(ctx) //nolint:errcheck // nothing is pending on it
	var rows int
	require.NoError(t, c.QueryRow(ctx, `SELECT count(*) FROM public.entries WHERE memo = 'hello from Node'`).Scan(&rows))
	assert.Equal(t, 1, rows)
}
