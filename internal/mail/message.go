package mail

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Message is plain text to one person.
type Message struct {
	To      string // an address, see [IsAddress]
	ID      string // what makes it the same message when it is sent again: letters, digits, - and _
	Subject string // one line of ASCII
	Text    string // lines of ASCII, with \n between them
}

const (
	maxSubject = 200
	maxLine    = 900 // bytes; RFC 5322 section 2.1.1 allows 998
	maxText    = 64 << 10
)

// Why there is no such message. None of them repeats what was in it.
var (
	errTo   = errors.New("a message has one address that is one")
	errText = errors.New("a message has an id, one line of a subject and lines of text, all of them printable ASCII")
)

// text is the message as it goes over the wire (RFC 5322). Everything in it is
// checked: nothing can begin a header or a command of its own.
func (m Message) text(from string, at time.Time) ([]byte, error) {
	if !IsAddress(m.To) {
		return nil, errTo
	}
	if !isID(m.ID) || m.Subject == "" || len(m.Subject) > maxSubject || !printable(m.Subject) || len(m.Text) > maxText {
		return nil, errText
	}
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", "<" + from + ">"}, {"To", "<" + m.To + ">"}, {"Subject", m.Subject}, {"Date", at.UTC().Format(time.RFC1123Z)},
		{"Message-ID", "<" + m.ID + "@" + domain(from) + ">"}, {"MIME-Version", "1.0"}, {"Content-Type", "text/plain; charset=us-ascii"}, {"Content-Transfer-Encoding", "7bit"},
		{"Auto-Submitted", "auto-generated"}, // RFC 3834: nobody's holiday answers it
	} {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	for line := range strings.SplitSeq("\n"+strings.TrimSuffix(m.Text, "\n"), "\n") {
		if len(line) > maxLine || !printable(line) {
			return nil, errText
		}
		b.WriteString(line + "\r\n")
	}
	return b.Bytes(), nil
}

func printable(line string) bool {
	return strings.IndexFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

func isID(id string) bool {
	return id != "" && len(id) <= 64 && strings.IndexFunc(id, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}) < 0
}
