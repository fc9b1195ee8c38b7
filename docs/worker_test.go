package docs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/worker/exec"
)

// The page about scripts says the code's own outcomes, variables and a file that is one.
func TestExistingScript(t *testing.T) {
	t.Parallel()
	page := read(t, "how-to/existing-script.md")
	for _, o := range exec.Outcomes {
		assert.Contains(t, page, fmt.Sprintf("| %d | `%s` | %d | %s |\n", o.Exit, o.Code, o.Status, o.Message))
	}
	assert.Equal(t, len(exec.Outcomes), strings.Count(page, "\n| ")-1)
	assert.Contains(t, page, "`"+strings.Join(exec.Usual, "`, `")+"`")
	_, file, _ := strings.Cut(page, "```yaml\n")
	file, _, _ = strings.Cut(file, "```")
	err := config.Parse("worker.yaml", []byte(file), &config.Worker{}, func(string) string { return "" })
	assert.ErrorContains(t, err, "queue.password_file names \"/etc/nightwarrant/nats.password\", which cannot be opened", "the rest holds")
}
