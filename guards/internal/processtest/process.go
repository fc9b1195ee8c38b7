// Package processtest starts `nightwarrant guard` as it is shipped, for the conformance of our own guards.
package processtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
	"github.com/nightwarrant/nightwarrant/guards/internal/journal"
)

// Kills is the short form of the campaign: a kill at each step, with what was held going on late; the cases before it kill at each
// step where it goes on at once. The long form is make conformance.
const Kills = 9

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
		dir := filepath.Join(e.Dir, "journal")
		if err := makeJournal(dir); err != nil {
			return nil, err
		}
		text += fmt.Sprintf("ledger_dir: %s\n", dir)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(p.Binary, "guard", "--config", file) //nolint:noctx // the suite kills it
	cmd.Env = append([]string{}, p.Env...)                   // not nil, which would be ours
	cmd.Stdout, cmd.Stderr = e.Log, e.Log
	return guardtest.Command(cmd)
}

// makeJournal does what `nightwarrant guard init` does, without a process of its own for each case.
func makeJournal(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return journal.Init(dir)
}
