package openapidraft

import (
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
)

const head = `# Drafted from an OpenAPI document. Read it as if a stranger had written it:
#   remove operations that no task needs, and parameters that nobody should choose;
#   name the amount and its currency where money moves, and the key parameters that may be pre-approved;
#   list under answer.refused only statuses that prove that nothing was done;
#   keep of answer.fields what a worker needs.
`

const registered = `---
# The same operations for the Guard document: both must agree, or everything closes.
`

// document is an operation as it is registered.
type document struct {
	Action     string         `yaml:"action"`
	Title      string         `yaml:"title"`
	Parameters map[string]any `yaml:"parameters"`
	Resource   string         `yaml:"resource"`
}

// WriteTo writes the part of the guard's file, then that of its document.
func (d *Draft) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, line := range d.Skipped {
		fmt.Fprintf(&b, "# not drafted: %s\n", line)
	}
	documents := make([]document, len(d.Operations))
	for i, o := range d.Operations {
		documents[i] = document{o.Action, o.Title, o.Parameters, o.Resource}
	}
	for _, part := range []struct {
		head string
		body any
	}{
		{"", struct {
			Credential Credential  `yaml:"credential"`
			Operations []Operation `yaml:"operations"`
		}{d.Credential, d.Operations}},
		{registered, struct {
			Operations []document `yaml:"operations"`
		}{documents}},
	} {
		text, err := yaml.MarshalWithOptions(part.body, yaml.Indent(2), yaml.IndentSequence(true), yaml.UseSingleQuote(false))
		if err != nil {
			return 0, err
		}
		b.WriteString(part.head)
		b.Write(text)
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}
