package crontab

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
)

const head = `# Drafted from a crontab. What stands in capitals, and the empty subject, the crontab does not say, and is refused until somebody has:
#   whose product, role and policy it is, and which member is asked;
#   which effects, exactly, it needs at which guards; what else the command does, it does with its account's own permissions.
# A worker runs one command for all runs of its role: each command needs a role, and so a queue, of its own.
`

// taskDocument is a task, in the order in which people read it.
type taskDocument struct {
	Kind           string         `yaml:"kind"`
	Name           string         `yaml:"name"`
	Client         string         `yaml:"client"`
	Role           string         `yaml:"role"`
	RoleRevision   int            `yaml:"role_revision"`
	Policy         string         `yaml:"policy"`
	PolicyRevision int            `yaml:"policy_revision"`
	Revision       int            `yaml:"revision"`
	Owner          owner          `yaml:"owner"`
	Title          string         `yaml:"title"`
	Schedule       schedules      `yaml:"schedule"`
	Dial           string         `yaml:"dial"`
	Grants         []grant        `yaml:"grants"`
	Limits         map[string]int `yaml:"limits"`
	Consent        map[string]int `yaml:"consent"`
}

type owner struct {
	Issuer  string `yaml:"issuer"`
	Subject string `yaml:"subject"`
}

type schedules struct {
	Cron   string `yaml:"cron"`
	Zone   string `yaml:"zone"`
	Missed string `yaml:"missed"`
}

type grant struct {
	Guard    string `yaml:"guard"`
	Action   string `yaml:"action"`
	Resource string `yaml:"resource"`
}

func (t Task) document() taskDocument {
	return taskDocument{Kind: "Task", Name: t.Name, Client: "CLIENT", Role: t.Name, RoleRevision: 1, Policy: "POLICY", PolicyRevision: 1, Revision: 1,
		Owner: owner{Issuer: "ISSUER"}, Title: t.Name, Schedule: schedules{t.Cron, t.Zone, "skip"}, Dial: "read",
		Grants: []grant{{"GUARD", "ACTION", "RESOURCE"}}, Limits: map[string]int{"runtime_s": 3600, "effects": 10}, Consent: map[string]int{"days": 30}}
}

// WriteTo writes the drafts, and before them what could not be drafted.
func (d *Draft) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	b.WriteString(head)
	for _, line := range d.Skipped {
		remark(&b, "not drafted: "+line)
	}
	for _, line := range d.Notes {
		remark(&b, "note: "+line)
	}
	for i, t := range d.Tasks {
		if i > 0 {
			b.WriteString("---\n")
		}
		if err := t.write(&b); err != nil {
			return 0, err
		}
	}
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

func (t Task) write(b *strings.Builder) error {
	remark(b, fmt.Sprintf("line %d: nightwarrant worker exec --config %s.yaml -- /bin/sh -c %s", t.Line, t.Name, quoted(t.Command)))
	for _, r := range t.Remarks {
		remark(b, r)
	}
	text, err := yaml.MarshalWithOptions(t.document(), yaml.Indent(2), yaml.IndentSequence(true))
	b.Write(text)
	return err
}

// remark writes one comment, which stays one line whatever is in it.
func remark(b *strings.Builder, text string) {
	b.WriteString("# " + strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text) + "\n")
}

// quoted is one word of a shell.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
