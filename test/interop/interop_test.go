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
	absent string // why it cannot run on this machine
}

const noValidator = "has no validator of access tokens"

func clients(node, noNode, python, noPython string) []client {
	none := map[string]string{"validators": noValidator}
	return []client{
		{"oauth4webapi", nodeClient(node, "oauth4webapi"), nil, noNode},
		{"openid-client", nodeClient(node, "openid-client"), none, noNode},
		{"dpop", nodeClient(node, "dpop"), none, noNode},
		{"jose", nodeClient(node, "jose"), nil, noNode},
		{"python", func(h *house, e environment) []outcome {
			return h.ask("python", e, python, filepath.Join("python", "client.py"))
		}, none, noPython},
		{"x/oauth2", goClient, none, ""},
	}
}

// lacks is what should have come of a client's steps and did not, or should not have and did.
func (c client) lacks(came []outcome) (all []string) {
	for _, step := range steps {
		i := slices.IndexFunc(came, func(o outcome) bool { return o.Step == step })
		switch why, known := c.cannot[step]; {
		case known && i >= 0:
			all = append(all, step+": it can, although it "+why)
		case !known && i < 0:
			all = append(all, step+": nothing came of it")
		case !known && !came[i].OK:
			all = append(all, step+": "+came[i].Note)
		}
	}
	return all
}

// Each way in which a client may fall short is told.
func TestWhatAClientLacksIsTold(t *testing.T) {
	t.Parallel()
	c := client{name: "some", cannot: map[string]string{"validators": noValidator}}
	var came []outcome
	for _, step := range steps {
		if step != "validators" {
			came = append(came, outcome{Step: step, OK: true})
		}
	}
	assert.Empty(t, c.lacks(came))
	assert.Len(t, c.lacks(append(came, outcome{Step: "validators", OK: true})), 1)
	assert.Equal(t, []string{"discovery: nothing came of it"}, c.lacks(came[1:]))
	came[4] = outcome{"mint", false, "refused"}
	assert.Equal(t, []string{"mint: refused"}, c.lacks(came))
	assert.Contains(t, draw([]client{c}, map[string][]outcome{"some": came}), "✗")
	assert.Len(t, c.lacks(nil), len(steps)-1)
}

// The clients and the page share one stack.
func TestClientsWeDidNotWrite(t *testing.T) {
	node, noNode := packages(t)
	python, noPython := python()
	if os.Getenv("CI") == "true" { // scripts/ensure-node.sh has seen to both
		require.NotEmpty(t, node, noNode)
		require.NotEmpty(t, python, noPython)
	}
	h := newHouse(t)
	all, table := clients(node, noNode, python, noPython), map[string][]outcome{}
	for _, c := range all {
		t.Run(strings.ReplaceAll(c.name, "/", "-"), func(t *testing.T) {
			if c.absent != "" {
				t.Skip(c.absent)
			}
			h := h.on(t)
			table[c.name] = c.run(h, h.newcomer(filepath.Base(c.name)))
			assert.Empty(t, c.lacks(table[c.name]))
		})
	}
	t.Run("tutorial", func(t *testing.T) {
		if noNode != "" {
			t.Skip(noNode)
		}
		newcomerInNode(t, h)
	})
	t.Run("tutorial in Go", func(t *testing.T) { newcomerInGo(t, h) })
	fmt.Print("\n" + draw(all, table)) // what make interop shows
	if t.Failed() {
		t.Log(h.logs())
	}
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
		if c.absent != "" {
			fmt.Fprintf(&notes, "  - %s did not run: %s\n", c.name, c.absent)
		}
		row(c.name, func(step string) string {
			i := slices.IndexFunc(table[c.name], func(o outcome) bool { return o.Step == step })
			switch {
			case c.absent != "":
				return " "
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

// packages installs what npm's lock file names, once, into a folder that is not kept in the repository. Without Node or
// a registry it says what is not there.
func packages(t *testing.T) (node, lacks string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		return "", "Node is not installed"
	}
	version, err := exec.Command(node, "--version").Output()
	var major int
	if _, scanErr := fmt.Sscanf(string(version), "v%d.", &major); err != nil || scanErr != nil || major < 20 {
		return "", "Node is older than 20: " + strings.TrimSpace(string(version))
	}
	lock, err := os.ReadFile(filepath.Join("node", "package-lock.json"))
	require.NoError(t, err)
	done := filepath.Join("node", "node_modules", ".installed")
	if have, err := os.ReadFile(done); err == nil && bytes.Equal(have, lock) {
		return node, ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	npm.Dir = "node"
	if out, err := npm.CombinedOutput(); err != nil {
		require.False(t, registryAnswers(ctx), "npm ci: %s", out)
		return node, "npm's registry cannot be reached"
	}
	require.NoError(t, os.WriteFile(done, lock, 0o600))
	return node, ""
}

// python is Debian's, with python3-cryptography beside it.
func python() (path, lacks string) {
	for _, at := range []string{"/usr/bin/python3", "python3"} {
		if path, err := exec.LookPath(at); err == nil && exec.Command(path, "-c", "import cryptography").Run() == nil {
			return path, ""
		}
	}
	return "", "python3-cryptography is not installed"
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
