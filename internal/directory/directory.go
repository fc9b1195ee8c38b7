// Package directory asks the platform's directory, live, whether somebody is a
// member now. Nothing of an answer is kept beyond the moments for which it
// counts, and no copy of the directory is.
package directory

import "context"

// Answer says what the directory knows of somebody. The zero value is Unknown,
// which closes: whoever cannot tell, does not say yes.
type Answer int

// The answers.
const (
	Unknown Answer = iota
	Present        // exactly one such member, who is active
	Absent         // the directory says so itself: nobody, or one who is not active
)

// String is a word for logs.
func (a Answer) String() string {
	switch a {
	case Present:
		return "present"
	case Absent:
		return "absent"
	}
	return "unknown"
}

// Directory answers whether somebody is a member now. An error comes with
// Unknown only, and Unknown always with an error. It never waits longer than ctx
// or its own bound.
type Directory interface {
	Member(ctx context.Context, issuer, subject string) (Answer, error)
}
