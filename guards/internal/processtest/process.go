// Package processtest starts `nightwarrant guard` as it is shipped, for the conformance of our own guards.
package processtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
)

// Program is a guard of one kind.
type Program struct {
	Binary  string
	File    string   // what its kind adds to the configuration of every guard
	Journal bool     // it keeps a journal, which is made before its first start
	Env     []string // that the process sees, and nothing else of our environment
}

// Start is guardtest.Guard.Start.
func (p Program) Start(e guardtest.Environment) (guardtest.Process, error) {
	file := filepath.Join(e.Dir, "guard.yaml")
	text := fmt.Sprintf("uri: %s\nlisten: %s\nname: %s\nauthority: %s\nassertion_file: %s\n%s", e.URI, e.Listen, e.Name, e.Authority, e.AssertionFile, p.File)
	if p.Journal {
		text += fmt.Sprintf("ledger_dir: %s\n", filepath.Join(e.Dir, "journal"))
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(e.Dir, "journal")); err != nil && p.Journal {
		if out, err := p.command("guard", "init", "--config", file).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	cmd := p.command("guard", "--config", file)
	cmd.Stdout, cmd.Stderr = e.Log, e.Log
	return guardtest.Command(cmd)
}

func (p Program) command(args ...string) *exec.Cmd {
	cmd := exec.Command(p.Binary, args...) //nolint:noctx // the suite kills it
	cmd.Env = append([]string{}, p.Env...) // not nil, which would be ours
	return cmd
}
