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

	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
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

var goBlock = regexp.MustCompile("(?ms)^```(sh|go)( [a-z./]+)?\n(.*?)^```$")

// tutorialInGo is that page as one shell script, and its program, compiled as if it stood in the repository.
func tutorialInGo(t *testing.T, page, dir string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	blocks := goBlock.FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 5)
	script := "set -euo pipefail\n"
	for _, m := range blocks {
		switch {
		case m[1] == "go":
			compile(t, strings.TrimSpace(m[2]), m[3], dir)
		case m[3] == "go run ./hello\n":
			script += filepath.Join(dir, "program") + "\n"
		default:
			script += m[3]
		}
	}
	return script
}

func compile(t *testing.T, name, text, dir string) {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	source, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, name): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	c := testbinary.Go(t.Context(), "build", "-overlay", overlay, "-o", filepath.Join(dir, "program"), "./"+filepath.Dir(name))
	c.Dir = root
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
}

// The page's program compiles, whatever else is on this machine.
func TestTheGoTutorialCompiles(t *testing.T) {
	t.Parallel()
	assert.Contains(t, tutorialInGo(t, filepath.Join("..", "..", "docs", "tutorial-worker-go.md"), t.TempDir()), "/program\n")
}

// Whoever follows the page in Go reaches a guarded effect.
func newcomerInGo(t *testing.T, h *house) {
	script := tutorialInGo(t, filepath.Join("..", "..", "docs", "tutorial-worker-go.md"), t.TempDir())
	follow(t, h, script, "hello from Go", "state=succeeded committed=1")
}

// Whoever follows the page in Node does, too.
func newcomerInNode(t *testing.T, h *house) {
	follow(t, h, tutorial(t, filepath.Join("..", "..", "docs", "tutorial-worker-node.md")), "hello from Node", "succeeded, 1 committed")
}

// follow runs a page's script beside a house, as if make dev had started it there.
func follow(t *testing.T, h *house, script, memo, says string) {
	t.Helper()
	// Each newcomer's process is a new one, and needs a token that nobody has used.
	require.NoError(t, h.RenewToken(dev.Account{Namespace: "jobs", Name: "probe", Pod: "probe-1", File: filepath.Join(h.dir, "tokens", "probe")}))
	at := t.TempDir()
	require.NoError(t, os.Symlink(h.dir, filepath.Join(at, ".dev")))
	require.NoError(t, os.Mkdir(filepath.Join(at, "bin"), 0o700))
	require.NoError(t, os.Symlink(h.binary, filepath.Join(at, "bin", "nightwarrant")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script) //nolint:gosec // the page's own blocks
	shell.Dir, shell.WaitDelay = at, 5*time.Second
	out, err := shell.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), says)
	c, err := pgx.Connect(ctx, h.Databases()[1])
	require.NoError(t, err)
	defer c.Close(ctx) //nolint:errcheck // nothing is pending on it
	var rows int
	require.NoError(t, c.QueryRow(ctx, `SELECT count(*) FROM public.entries WHERE memo = $1`, memo).Scan(&rows))
	assert.Equal(t, 1, rows)
}
