package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// steps are what a worker does, in its order, and what must be refused.
var steps = []string{"discovery", "component", "claim", "renew", "mint", "guard", "rotation", "stale nonce", "other key", "validators", "settle"}

// outcome is one line that a client prints.
type outcome struct {
	Step string `json:"step"`
	OK   bool   `json:"ok"`
	Note string `json:"note"`
}

// client is one of them. What it cannot do is known, with the reason: anything else that is missing is a failure.
type client struct {
	name   string
	run    func(h *house, e environment) []outcome
	cannot map[string]string
}

const noValidator = "has no validator of access tokens"

func clients(node, python string) (all []client) {
	if node != "" {
		all = append(all,
			client{"oauth4webapi", nodeClient(node, "oauth4webapi"), nil},
			client{"openid-client", nodeClient(node, "openid-client"), map[string]string{"validators": noValidator}},
			client{"dpop", nodeClient(node, "dpop"), map[string]string{"validators": noValidator}},
			client{"jose", nodeClient(node, "jose"), nil})
	}
	if python != "" {
		all = append(all, client{"python", func(h *house, e environment) []outcome {
			return h.ask("python", e, python, filepath.Join("python", "client.py"))
		},
			map[string]string{"validators": noValidator}})
	}
	return append(all, client{"x/oauth2", goClient, map[string]string{"validators": noValidator}})
}

// The clients and the page share one stack.
func TestClientsWeDidNotWrite(t *testing.T) {
	node, python := packages(t), python(t)
	h := newHouse(t)
	t.Run("clients", func(t *testing.T) { h.on(t).all(clients(node, python)) })
	t.Run("tutorial", func(t *testing.T) {
		if node == "" {
			t.Skip("the page needs Node")
		}
		newcomerInNode(t, h)
	})
	if t.Failed() {
		t.Log(h.logs())
	}
}

// all lets each client do each step that it can, from metadata to a settled run.
func (h *house) all(clients []client) {
	table := map[string][]outcome{}
	for _, c := range clients {
		table[c.name] = c.run(h, h.newcomer(filepath.Base(c.name)))
		for _, step := range steps {
			i := slices.IndexFunc(table[c.name], func(o outcome) bool { return o.Step == step })
			switch {
			case c.cannot[step] != "":
				assert.Equal(h.t, -1, i, "%s can do what it cannot: %s", c.name, step)
			case assert.GreaterOrEqual(h.t, i, 0, "%s: nothing came of %s", c.name, step):
				assert.True(h.t, table[c.name][i].OK, "%s: %s: %s", c.name, step, table[c.name][i].Note)
			}
		}
	}
	fmt.Print(draw(clients, table)) // what make interop shows
}

// draw is the table client × step.
func draw(all []client, table map[string][]outcome) string {
	var out, notes strings.Builder
	row := func(name string, cell func(step string) string) {
		fmt.Fprintf(&out, "%-14s", name)
		for _, step := range steps {
			fmt.Fprintf(&out, " | %s%s", cell(step), strings.Repeat(" ", max(0, len(step)-len([]rune(cell(step))))))
		}
		out.WriteString("\n")
	}
	row("", func(step string) string { return step })
	for _, c := range all {
		row(c.name, func(step string) string {
			i := slices.IndexFunc(table[c.name], func(o outcome) bool { return o.Step == step })
			switch {
			case c.cannot[step] != "":
				fmt.Fprintf(&notes, "  - %s, %s: %s\n", c.name, step, c.cannot[step])
				return "–"
			case i < 0 || !table[c.name][i].OK:
				return "✗"
			case table[c.name][i].Note != "":
				fmt.Fprintf(&notes, "  ✓ %s, %s: %s\n", c.name, step, table[c.name][i].Note)
			}
			return "✓"
		})
	}
	lines := strings.Split(strings.TrimRight(notes.String(), "\n"), "\n")
	slices.Sort(lines)
	return out.String() + "\n" + strings.Join(slices.Compact(lines), "\n") + "\n"
}

// packages installs what npm's lock file names, once, into a folder that is not kept in the repository. It is empty
// where there is no Node or no registry: said aloud.
func packages(t *testing.T) (node string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Log("Node is not installed: no client of npm runs")
		return ""
	}
	version, err := exec.Command(node, "--version").Output()
	var major int
	if _, scanErr := fmt.Sscanf(string(version), "v%d.", &major); err != nil || scanErr != nil || major < 20 {
		t.Logf("Node is %s, older than 20: no client of npm runs", strings.TrimSpace(string(version)))
		return ""
	}
	lock, err := os.ReadFile(filepath.Join("node", "package-lock.json"))
	require.NoError(t, err)
	done := filepath.Join("node", "node_modules", ".installed")
	if have, err := os.ReadFile(done); err == nil && bytes.Equal(have, lock) {
		return node
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = "node"
	if out, err := npm.CombinedOutput(); err != nil {
		require.False(t, registryAnswers(ctx), "npm ci: %s", out)
		t.Logf("npm's registry cannot be reached: no client of npm runs: %s", out)
		return ""
	}
	require.NoError(t, os.WriteFile(done, lock, 0o600))
	return node
}

// python is Debian's, with python3-cryptography beside it; empty where it is not.
func python(t *testing.T) string {
	t.Helper()
	for _, at := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(at); err == nil && exec.Command(path, "-c", "import cryptography").Run() == nil {
			return path
		}
	}
	t.Log("python3-cryptography is not installed: the Python client does not run")
	return ""
}

// registryAnswers tells a registry that cannot be reached from a lock file that is wrong.
func registryAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err != nil {
		return false
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSpace(string(at)), nil)
	if err != nil {
		return false
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	_ = a.Body.Close() // it answers
	return a.StatusCode < 500
}

func nodeClient(node, name string) func(*house, environment) []outcome {
	return func(h *house, e environment) []outcome {
		return h.ask(name, e, node, filepath.Join("node", name+".mjs"))
	}
}

// ask runs a client's program, which prints a line for each step.
func (h *house) ask(name string, e environment, program ...string) (all []outcome) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, program[0], append(program[1:], h.file(name, e))...) //nolint:gosec // the clients of this folder
	c.WaitDelay = 5 * time.Second
	var failed bytes.Buffer
	c.Stderr = &failed
	out, err := c.Output()
	assert.NoError(h.t, err, "%s: %s", name, failed.String())
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		var o outcome
		if assert.NoError(h.t, json.Unmarshal(lines.Bytes(), &o), lines.Text()) {
			all = append(all, o)
		}
	}
	return all
}
