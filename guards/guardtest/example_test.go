package guardtest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/nightwarrant/nightwarrant/guards/guardtest"
)

// A guard written in another language, before a resource that appends lines to a file.
func ExampleRun() {
	_ = func(t *testing.T) {
		file := t.TempDir() + "/orders"
		guardtest.Run(t, guardtest.Guard{
			Start: func(e guardtest.Environment) (guardtest.Process, error) {
				cmd := exec.Command("node", "guard.js", "--uri", e.URI, "--name", e.Name, "--authority", e.Authority, "--listen", e.Listen,
					"--assertion-file", e.AssertionFile, "--ledger", e.Dir+"/ledger", "--orders", file)
				cmd.Stdout, cmd.Stderr = e.Log, e.Log
				return guardtest.Command(cmd)
			},
			Effect: func(n int) guardtest.Effect {
				return guardtest.Effect{Action: "order.create", Resource: "orders", Parameters: json.RawMessage(fmt.Sprintf(`{"order":%d}`, n))}
			},
			Applied: func(n int) (int, error) {
				text, err := os.ReadFile(file)
				return bytes.Count(text, fmt.Appendf(nil, "order %d\n", n)), err
			},
		})
	}
}
