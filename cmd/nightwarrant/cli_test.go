package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const cliHead = `# The command line

One program, ` + "`nightwarrant`" + `. Commands of people take ` + "`--authority`, `--envelope-file` and `--key-file`" + `, or their variables ` + "`NIGHTWARRANT_AUTHORITY`, `NIGHTWARRANT_ENVELOPE_FILE`" + `
and ` + "`NIGHTWARRANT_KEY_FILE`" + `; lists print a table, and JSON with ` + "`--json`" + `. It exits with 0; with 78 (` + "`EX_CONFIG`" + `) where a setting is wrong, so that starting again does not help;
with 1 otherwise, but for ` + "`effect`" + `, whose outcomes have codes of their own; and says one sentence on stderr. Written by ` + "`UPDATE_DOCS=1 go test ./cmd/nightwarrant -run TestCLIPage`" + `.
`

// The page of the command line is what the commands say of themselves.
func TestCLIPage(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	b.WriteString(cliHead)
	root := program{in: strings.NewReader(""), out: &b, err: &b, env: func(string) string { return "" }}.root()
	for _, c := range root.Commands() {
		writeCommand(t, &b, c, 2)
	}
	const page = "../../docs/reference/cli.md"
	if os.Getenv("UPDATE_DOCS") != "" {
		require.NoError(t, os.WriteFile(page, b.Bytes(), 0o644))
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.Equal(t, b.String(), string(text), "write it anew with UPDATE_DOCS=1 go test ./cmd/nightwarrant -run TestCLIPage")
}

func writeCommand(t *testing.T, b *bytes.Buffer, c *cobra.Command, depth int) {
	t.Helper()
	if c.Hidden {
		return
	}
	assert.NotEmpty(t, c.Short, c.CommandPath())
	assert.False(t, strings.HasSuffix(c.Short, "."), c.CommandPath())
	fmt.Fprintf(b, "\n%s %s\n\n%s.\n", strings.Repeat("#", depth), c.CommandPath(), c.Short)
	if c.Long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSpace(c.Long))
	}
	if !c.HasSubCommands() {
		fmt.Fprintf(b, "\n    %s\n", strings.TrimSuffix(c.UseLine(), " [flags]"))
	}
	writeFlags(t, b, c)
	for _, sub := range c.Commands() {
		writeCommand(t, b, sub, depth+1)
	}
}

func writeFlags(t *testing.T, b *bytes.Buffer, c *cobra.Command) {
	t.Helper()
	var lines []string
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		assert.NotEmpty(t, f.Usage, "%s --%s", c.CommandPath(), f.Name)
		name, usage := pflag.UnquoteUsage(f)
		text := "`--" + strings.TrimSpace(f.Name+" "+name) + "`"
		if f.Shorthand != "" {
			text = "`-" + f.Shorthand + "`, " + text
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" && f.DefValue != "[]" {
			usage += "; `" + f.DefValue + "`"
		}
		lines = append(lines, fmt.Sprintf("| %s | %s |\n", text, strings.ReplaceAll(usage, "|", "\\|")))
	})
	if len(lines) > 0 {
		b.WriteString("\n| flag | means |\n|---|---|\n" + strings.Join(lines, ""))
	}
}
