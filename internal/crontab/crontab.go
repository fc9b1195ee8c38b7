// Package crontab drafts task documents from a crontab, for an operator to complete. What a line says that a task cannot
// is said, with the line's number, and nothing is guessed.
package crontab

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

const (
	maxText  = 1 << 20
	maxLines = 10_000
	maxLine  = 4 << 10
	maxName  = 48
)

// Options say what a crontab does not.
type Options struct {
	Zone   string // of lines before any CRON_TZ; UTC when empty, with a remark
	System bool   // the sixth word of each line is an account, as in /etc/crontab
}

// Draft is what a crontab can become.
type Draft struct {
	Tasks   []Task
	Notes   []string // lines of the environment
	Skipped []string // lines that cannot be expressed, with the reason
}

// Task is one line.
type Task struct {
	Line    int
	Name    string
	Cron    string // five fields
	Zone    string
	Account string // whose line it is, of a system's crontab
	Command string
	Remarks []string
}

// nicknames of cron(5); @reboot names no time.
var nicknames = map[string]string{"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
	"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *"}

// Read drafts a task for each line that can be expressed. It fails when the text is no crontab at all.
func Read(text []byte, o Options) (*Draft, error) {
	if len(text) > maxText || !utf8.Valid(text) {
		return nil, fmt.Errorf("a crontab is UTF-8 of at most %d bytes", maxText)
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) > maxLines {
		return nil, fmt.Errorf("a crontab has at most %d lines", maxLines)
	}
	r := reader{options: o, zone: o.Zone, names: map[string]int{}}
	for i, line := range lines {
		r.line(i+1, strings.TrimSpace(strings.TrimSuffix(line, "\r")))
	}
	return &r.draft, nil
}

type reader struct {
	options Options
	draft   Draft
	zone    string
	names   map[string]int
}

var assignment = regexp.MustCompile(`^"?([A-Za-z_][A-Za-z0-9_]*)"?[ \t]*=[ \t]*(.*)$`)

func (r *reader) line(n int, text string) {
	switch m := assignment.FindStringSubmatch(text); {
	case text == "" || text[0] == '#':
	case len(text) > maxLine:
		r.skip(n, errors.New("it is too long"))
	case m != nil:
		r.variable(n, m[1], unquoted(strings.TrimSpace(m[2])))
	default:
		if err := r.task(n, text); err != nil {
			r.skip(n, err)
		}
	}
}

func (r *reader) skip(n int, err error) {
	r.draft.Skipped = append(r.draft.Skipped, fmt.Sprintf("line %d: %s", n, err))
}

func unquoted(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

var secretWord = regexp.MustCompile(`(?i)API|KEY|SECRET|TOKEN|PASS|CREDENTIAL|AUTH|URL`)

// variable keeps a line of the environment, without a value that may be a secret.
func (r *reader) variable(n int, name, value string) {
	if name == "CRON_TZ" {
		r.zone = value
		return
	}
	shown := fmt.Sprintf("%q", value)
	if secretWord.MatchString(name) {
		shown = "(a value that is not repeated here)"
	}
	note := fmt.Sprintf("line %d: %s = %s", n, name, shown)
	switch name {
	case "MAILTO", "MAILFROM":
		note += ": nobody is mailed; owners see their runs, and workers keep what commands print"
	case "RANDOM_DELAY":
		note += ": starts are spread by the scheduler"
	case "TZ":
		note += ": is for the command; CRON_TZ would be for the schedule"
	default:
		note += ": a command gets the variables that command.pass of its worker's file names"
	}
	r.draft.Notes = append(r.draft.Notes, note)
}

func (r *reader) task(n int, text string) error {
	cron, rest, err := schedule(text)
	if err != nil {
		return err
	}
	t := Task{Line: n, Cron: cron, Zone: r.zone, Command: rest}
	if err := r.account(&t); err != nil {
		return err
	}
	if t.Command, err = command(t.Command); err != nil {
		return err
	}
	if t.Zone == "" {
		t.Zone = "UTC"
		t.Remarks = append(t.Remarks, "cron used the zone of its machine, which a crontab does not say; UTC is a guess")
	}
	if _, err := timetable.Parse(timetable.Document{Cron: t.Cron, Zone: t.Zone, Missed: timetable.Skip}); err != nil {
		return err
	}
	t.Name = r.name(t.Command)
	r.draft.Tasks = append(r.draft.Tasks, t)
	return nil
}

// schedule splits a line into five fields, as timetable reads them, and what follows.
func schedule(text string) (cron, rest string, err error) {
	if text[0] == '@' {
		word, rest := cut(text)
		cron, known := nicknames[word]
		switch {
		case word == "@reboot":
			return "", "", errors.New("@reboot names no time: nothing unattended follows from a machine's start")
		case !known:
			return "", "", fmt.Errorf("%.32q is not known", word)
		}
		return cron, rest, nil
	}
	fields := make([]string, 5)
	for i := range fields {
		if fields[i], text = cut(text); fields[i] == "" {
			return "", "", errors.New("it is neither five fields and a command nor NAME=value")
		}
	}
	if strings.HasPrefix(fields[0], "-") {
		return "", "", errors.New("a leading hyphen has no equivalent")
	}
	if fields[4], err = sundays(fields[4]); err != nil {
		return "", "", err
	}
	return strings.Join(fields, " "), text, daysAgree(fields[2], fields[4])
}

// cut is the first word and what follows it.
func cut(text string) (word, rest string) {
	i := strings.IndexAny(text, " \t")
	if i < 0 {
		return text, ""
	}
	return text[:i], strings.TrimLeft(text[i:], " \t")
}

// sundays writes the seventh day of a week as the day 0.
func sundays(field string) (string, error) {
	var out []string
	for item := range strings.SplitSeq(field, ",") {
		from, isRange := strings.CutSuffix(item, "-7")
		switch {
		case item == "7" || item == "7-7":
			item = "0"
		case isRange && from == "0":
			item = "0-6"
		case isRange && from == "6":
			item = "6,0"
		case isRange:
			item = from + "-6,0"
		case strings.HasPrefix(item, "7") || strings.Contains(item, "-7/"):
			return "", fmt.Errorf("day of week %.32q counts Sunday as 7 in a step or a range; write it with 0", item)
		}
		out = append(out, item)
	}
	return strings.Join(out, ","), nil
}

// daysAgree refuses what cron and a task read differently: to cron a field of days that begins with a star restricts
// nothing by itself, so that both fields must match; to a task */2 is a restriction, and either is enough.
func daysAgree(dom, dow string) error {
	stepped := func(f string) bool { return strings.HasPrefix(f, "*") && f != "*" }
	if stepped(dom) && dow != "*" || stepped(dow) && dom != "*" {
		return errors.New("it restricts days of month and of week with a step over all days; cron would want both to match, and a task takes either")
	}
	return nil
}

// account takes the sixth word of a system's line.
func (r *reader) account(t *Task) error {
	first, rest := cut(t.Command)
	switch {
	case r.options.System:
		t.Account, t.Command = first, rest
		t.Remarks = append(t.Remarks, "cron ran it as "+first+"; its worker's account is another, see command.uid")
	case first == "root" && rest != "":
		return errors.New("it seems to name an account, as in /etc/crontab: say --system")
	}
	return nil
}

// command undoes what cron does with a percent sign.
func command(text string) (string, error) {
	if text == "" {
		return "", errors.New("it has no command")
	}
	plain := strings.ReplaceAll(text, `\%`, "\x00")
	if strings.Contains(plain, "%") {
		return "", errors.New("a % begins standard input, and commands get none; put it into a script")
	}
	return strings.ReplaceAll(plain, "\x00", "%"), nil
}

var (
	notName = regexp.MustCompile(`[^a-z0-9]+`)
	setting = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// name is made of the program's, and different for each line.
func (r *reader) name(command string) string {
	base := ""
	for word := range strings.FieldsSeq(command) {
		if !setting.MatchString(word) { // it may hold a secret, and a name is shown
			base = path.Base(word)
			break
		}
	}
	base = strings.Trim(notName.ReplaceAllString(strings.ToLower(base), "-"), "-")
	if base = strings.Trim(base[:min(len(base), maxName)], "-"); base == "" {
		base = "task"
	}
	r.names[base]++
	if n := r.names[base]; n > 1 {
		return r.unused(fmt.Sprintf("%s-%d", base, n))
	}
	return r.unused(base)
}

// unused finds another name where a program's own looks like one of ours.
func (r *reader) unused(name string) string {
	for n := 2; ; n++ {
		taken := false
		for _, t := range r.draft.Tasks {
			taken = taken || t.Name == name
		}
		if !taken {
			return name
		}
		name = fmt.Sprintf("%s-%d", strings.TrimRight(name, "0123456789-"), n)
	}
}
