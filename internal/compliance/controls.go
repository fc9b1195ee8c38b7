package compliance

import (
	"regexp"
	"slices"
	"strings"
)

// Control is one thing that must hold: an id of the mission.
type Control struct {
	ID        string
	Statement string
	Stated    string // what the threat model of this build says of it
}

// statements of the mission, in its order. The threat model names the code and the tests behind each.
var statements = [][2]string{
	{"A1", "Consent is exact: a run whose tuple differs in any part from what the member agreed to is refused."},
	{"A2", "A workload assertion proves identity only."},
	{"A3", "Capabilities are short-lived and bound to a key of their sender; no bearer value alone authorises anything."},
	{"A4", "A capability is good at the authority only, or at exactly one guard only."},
	{"A5", "Every change to a task's authority advances its epoch, and everything minted under an earlier one is dead."},
	{"A6", "The deadline of a run's authority is set once, and nothing extends it."},
	{"A7", "One claim wins, with a higher fence than any before it; what carries a lower one is refused."},
	{"A8", "Queue and run-time tables hold references only, and the database no key material."},
	{"A9", "A guard consumes an exact effect once."},
	{"A10", "An effect of which nobody can prove whether it happened is ambiguous, and is never replayed."},
	{"A11", "One authority per cluster: a replica with other keys refuses to start."},
	{"A12", "Private material stays in the authority."},
	{"A13", "A FIPS deployment signs with an external key whose provenance is validated."},
	{"A14", "One readiness decision, derived from every dependency, is applied everywhere."},
	{"A15", "There is no fallback to a weaker proof."},
	{"A16", "Nine threats, each an attack that runs, are refused."},
	{"A17", "Required families are required in code; configuration can only add."},
	{"A18", "An owner decides once, on one exact effect; there is no standing approval."},
	{"B1", "One place makes a principal, from the validated platform envelope only."},
	{"B2", "What somebody may not see is excluded inside the query."},
	{"B3", "Untrusted content cannot act."},
	{"B4", "A run's admission is immutable, and the authority settles it once."},
	{"B5", "Actions that are not listed do not exist."},
	{"B6", "One approval dial; what no compiled-in catalogue knows counts as high."},
	{"B7", "Ceilings and loop detection stop a run that goes astray."},
	{"B8", "A guard holds the credential; the worker never does."},
	{"B9", "A model call is reserved in two ledgers, or not made."},
	{"B10", "A command that a worker runs gets no secret."},
	{"B11", "Errors of providers are normalised before anybody sees them."},
	{"B12", "Every run acts as the member who consented, whose membership is asked for again."},
	{"B13", "Trust material is checked at start, and never repaired."},
	{"B14", "Audit evidence is complete and tamper-evident, and holds no secret."},
	{"B15", "What is not protected against is written down; a check stays open until it was run on that very build."},
	{"B16", "A self-audit runs on the released binary against a live deployment."},
	{"B17", "Workers need no listening port."},
	{"B18", "Every listener and every destination is enumerated."},
	{"C5", "A compliance officer gets evidence of keys, modules, builds, configuration, self-audit and audit log by one command."},
}

// Model is what the threat model says, whose text is compiled in.
type Model struct {
	Dated       string
	Controls    []Control
	Assumptions []string
	Residuals   []string
}

var (
	stated = regexp.MustCompile(`(?m)^\| ([AB]\d+) \| ([^|]+) \|`)
	dated  = regexp.MustCompile(`(?m)^Dated (\d{4}-\d\d-\d\d)`)
	marks  = strings.NewReplacer("**", "", "`", "")
	link   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// ReadModel reads docs/threat-model.md.
func ReadModel(text string) Model {
	m := Model{Dated: "an unknown day"}
	if d := dated.FindStringSubmatch(text); d != nil {
		m.Dated = d[1]
	}
	of := map[string]string{}
	for _, row := range stated.FindAllStringSubmatch(text, -1) {
		of[row[1]] = clean(row[2])
	}
	for _, s := range statements {
		c := Control{s[0], s[1], of[s[0]]}
		if c.Stated == "" {
			c.Stated = "has no row"
		}
		m.Controls = append(m.Controls, c)
	}
	m.Assumptions, m.Residuals = bullets(text, "## Assumptions"), bullets(text, "## Residuals")
	return m
}

// bullets are the items of the list under a heading.
func bullets(text, heading string) (out []string) {
	_, text, _ = strings.Cut(text, heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for item := range strings.SplitSeq("\n"+text, "\n* ") {
		if item = clean(link.ReplaceAllString(marks.Replace(item), "$1")); item != "" {
			out = append(out, item)
		}
	}
	return out
}

func isControl(id string) bool {
	return slices.ContainsFunc(statements, func(s [2]string) bool { return s[0] == id })
}
