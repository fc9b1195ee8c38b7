// Package compliance writes down what an auditor can see of a deployment: each
// line with how it was observed and what it does not prove. What nobody looked
// at is not observed, which is never a pass (mission C5, B15).
package compliance

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
)

// State is what became of one thing.
type State string

// The states of a line, and of a control.
const (
	Satisfied   State = "satisfied"
	Open        State = "open"
	NotObserved State = "not observed"
	Stated      State = "stated" // by whoever made it or runs it: nothing was looked at
)

// Method is how something was observed (NIST SP 800-53A).
type Method string

// The methods of a line.
const (
	Examine   Method = "EXAMINE"
	Test      Method = "TEST"
	Interview Method = "INTERVIEW"
)

// Line is one thing that was looked at, or should have been.
type Line struct {
	Section  Section
	Controls []string
	Subject  string
	State    State
	Found    string
	Method   Method
	Source   string
	At       time.Time // of what was looked at
	Unproven string    // what this line does not prove
	Beyond   bool      // nothing here can observe it: not open for it
}

// Open tells whether somebody has to do something about the line.
func (l Line) Open() bool {
	return l.State == Open || l.State == NotObserved && !l.Beyond
}

// Section is a part of the report.
type Section string

// Sections in their order.
const (
	Modules     Section = "Modules and builds"
	Keys        Section = "Keys and where they are from"
	Rotation    Section = "Rotation"
	Profiles    Section = "Attestation profiles"
	Families    Section = "Readiness"
	SelfAudit   Section = "Self-audit"
	Audit       Section = "Audit log"
	Ambiguous   Section = "Ambiguous effects"
	Exceptions  Section = "Exceptions"
	Assumptions Section = "Assumptions"
)

// Sections lists them.
var Sections = []Section{Modules, Keys, Rotation, Profiles, Families, SelfAudit, Audit, Ambiguous, Exceptions, Assumptions}

// Report is everything that was found.
type Report struct {
	Authority string
	Tool      string // version of the program that wrote it
	FIPS      bool   // held against the FIPS profile
	Start     time.Time
	End       time.Time
	Model     Model
	Lines     []Line
}

// Open lists the lines that somebody has to do something about.
func (r Report) Open() (open []Line) {
	for _, l := range r.Lines {
		if l.Open() {
			open = append(open, l)
		}
	}
	return open
}

// In lists the lines of a section.
func (r Report) In(s Section) (in []Line) {
	for _, l := range r.Lines {
		if l.Section == s {
			in = append(in, l)
		}
	}
	return in
}

// Of is what the lines say together of a control: open when one is, and not
// observed when none has looked.
func (r Report) Of(control string) State {
	state := NotObserved
	for _, l := range r.Lines {
		switch {
		case !slices.Contains(l.Controls, control):
		case l.Open():
			return Open
		case l.State == Satisfied:
			state = Satisfied
		}
	}
	return state
}

// New makes the report of some evidence. The same evidence makes the same report.
func New(e Evidence) Report {
	r := Report{Authority: clean(e.Authority), Tool: clean(e.Tool), FIPS: e.FIPS, Start: e.Start.UTC(), End: e.End.UTC(), Model: e.Model}
	for _, look := range []func(Evidence) []Line{modules, keys, rotation, profiles, families, selfAudit, auditLog, ambiguous, exceptions, assumptions} {
		r.Lines = append(r.Lines, look(e)...)
	}
	for i := range r.Lines {
		l := &r.Lines[i]
		l.Subject, l.Found, l.Source, l.Unproven, l.At = clean(l.Subject), clean(l.Found), clean(l.Source), clean(l.Unproven), l.At.UTC()
	}
	slices.SortStableFunc(r.Lines, func(a, b Line) int {
		return cmp.Compare(slices.Index(Sections, a.Section), slices.Index(Sections, b.Section))
	})
	return r
}

// most bounds any text of a report, in characters.
const most = 800

// clean makes foreign text one bounded line that can be read, and never nothing.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		text = strings.TrimSpace(string(runes[:most])) + "…"
	}
	return text
}
