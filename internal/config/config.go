// Package config reads the one YAML file of a process. It is strict: unknown
// and repeated keys, anchors, aliases, tags, empty values and numbers in any
// spelling but the plain one are refused, with one sentence that names the
// file, the line and the key.
//
// Secrets stand in the file itself or in a file of their own that its owner
// alone may read, and have a type that does not print.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

const (
	maxFile     = 64 << 10
	maxSecret   = 8 << 10
	maxSentence = 240 // bytes of a reason
)

// Error is a misconfiguration: the process says the sentence and exits with
// code 78. Everything but Sentence may be empty.
type Error struct {
	File     string
	Line     int
	Key      string // dotted, such as envelope.issuer.url
	Sentence string // about the key, where there is one
}

// Error is one line.
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, " line %d", e.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + " ")
	}
	return b.String() + strings.ToValidUTF8(fmt.Sprintf("%.*s", maxSentence, e.Sentence), "")
}

// Wrong reports one key. Load adds the file and the line.
func Wrong(key, format string, args ...any) error {
	return &Error{Key: key, Sentence: fmt.Sprintf(format, args...)}
}

// first returns the first error there is.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Document is the configuration of one kind of process: a pointer to a struct
// whose fields have yaml tags. Check fills in defaults and secrets, and
// validates; env looks a variable of the environment up.
type Document interface {
	Check(env func(string) string) error
}

// Load reads a file into a document and checks it. Every error is an *Error.
func Load(path string, into Document, env func(string) string) error {
	text, err := readBounded(path, maxFile, anyMode)
	if err != nil {
		return &Error{File: path, Sentence: err.Error()}
	}
	return Parse(path, text, into, env)
}

// Parse is Load for text that was read already; name stands for the file.
func Parse(name string, text []byte, into Document, env func(string) string) error {
	lines, err := decode(text, into)
	if err == nil {
		err = into.Check(env)
	}
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		e = &Error{Sentence: err.Error()}
	}
	return e.located(name, lines)
}

// located adds the file and the line of the key, or of what it would stand in.
func (e *Error) located(file string, lines map[string]int) *Error {
	at := *e
	at.File = file
	for key := e.Key; at.Line == 0 && key != ""; key = key[:max(0, strings.LastIndexAny(key, ".["))] {
		at.Line = lines[key]
	}
	return &at
}

// Secret is a value that does not print, log or marshal.
type Secret string

// Reveal is the value itself.
func (s Secret) Reveal() string { return string(s) }

const hidden = "(secret)"

// String hides the value.
func (s Secret) String() string { return hidden }

// Format hides the value from every verb of fmt.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalText hides the value from encoders.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// UnmarshalText takes the value.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = Secret(text)
	return nil
}

// ReadSecret reads a secret from a file of mode 0600 or 0400, without the line
// end that editors add.
func ReadSecret(path string) (Secret, error) {
	text, err := readBounded(path, maxSecret, ownerMode)
	if err != nil {
		return "", err
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	if value == "" || strings.ContainsAny(value, "\r\n\x00") {
		return "", fmt.Errorf("names %.100q, which must hold exactly one line", path)
	}
	return Secret(value), nil
}

func anyMode(fs.FileMode) bool { return true }

func ownerMode(m fs.FileMode) bool { return m == 0o600 || m == 0o400 }

// readBounded reads a small regular file. The mode is that of the open file.
func readBounded(path string, most int, allowed func(fs.FileMode) bool) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("names %.100q, which cannot be opened: %w", path, plain(err))
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("names %.100q, which cannot be read: %w", path, plain(err))
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("names %.100q, which is not a regular file", path)
	case !allowed(info.Mode().Perm()):
		return nil, fmt.Errorf("names %.100q, whose mode is %04o and must be 0600 or 0400", path, info.Mode().Perm())
	}
	var text bytes.Buffer
	if _, err := io.Copy(&text, io.LimitReader(f, int64(most)+1)); err != nil {
		return nil, fmt.Errorf("names %.100q, which cannot be read: %w", path, plain(err))
	}
	if text.Len() > most {
		return nil, fmt.Errorf("names %.100q, which is larger than %d bytes", path, most)
	}
	return text.Bytes(), nil
}

// plain drops the path that *fs.PathError repeats.
func plain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
