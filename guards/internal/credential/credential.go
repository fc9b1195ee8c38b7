// Package credential gets the secret with which a guard reaches its
// destination, anew for each effect, and refuses one that is missing, blank,
// unreadable or expired before anything is consumed.
package credential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	minValue = 8 // bytes; a shorter one could not be kept out of answers
	maxValue = 4 << 10
	maxText  = 8 << 10
	margin   = 5 * time.Second // before its end: a call takes time
)

// ErrUnavailable says that there is no credential that could be used now. What
// wraps it says why, and nothing of the value.
var ErrUnavailable = errors.New("credential: not available")

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

// LogValue hides the value from logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// Credential is a secret and its end.
type Credential struct {
	Value   Secret
	Expires time.Time // zero when nobody says
}

// Provider knows where a credential is.
type Provider interface {
	// Credential reads it anew. The error says nothing of the value.
	Credential(ctx context.Context) (Credential, error)
}

// Get asks a provider for a credential that is good now.
func Get(ctx context.Context, p Provider, now time.Time) (Credential, error) {
	c, err := p.Credential(ctx)
	if err != nil {
		return Credential{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := c.check(now); err != nil {
		return Credential{}, fmt.Errorf("%w: it %w", ErrUnavailable, err)
	}
	return c, nil
}

// check wants what can stand in a header: visible ASCII and single spaces inside (RFC 9110 §5.5).
func (c Credential) check(now time.Time) error {
	value := c.Value.Reveal()
	switch {
	case strings.TrimSpace(value) == "":
		return errors.New("is blank")
	case len(value) < minValue, len(value) > maxValue:
		return fmt.Errorf("must have between %d and %d bytes", minValue, maxValue)
	case strings.TrimSpace(value) != value, strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return errors.New("must be one line of visible ASCII")
	}
	if end := c.end(); !end.IsZero() && !now.Add(margin).Before(end) {
		return errors.New("has expired")
	}
	return nil
}

// end is the earlier of what its provider says and what a JWT says of itself (RFC 7519 §4.1.4).
func (c Credential) end() time.Time {
	said, known := ofJWT(c.Value.Reveal())
	if known && (c.Expires.IsZero() || said.Before(c.Expires)) {
		return said
	}
	return c.Expires
}

func ofJWT(value string) (time.Time, bool) {
	segments := strings.Split(value, ".")
	if len(segments) != 3 {
		return time.Time{}, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(segments[1])
	if err != nil {
		return time.Time{}, false
	}
	var claims struct {
		Expires *float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires == nil {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(*claims.Expires * 1000)), true
}

// parse reads one line that is the value, or {"value": …, "expires_at": RFC 3339}.
func parse(text []byte) (Credential, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		line := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
		return Credential{Value: Secret(line)}, nil
	}
	var said struct {
		Value   string    `json:"value"`
		Expires time.Time `json:"expires_at"`
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&said) != nil || said.Expires.IsZero() {
		return Credential{}, errors.New("is an object, and not one of value and expires_at")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return Credential{}, errors.New("is more than one object")
	}
	return Credential{Value: Secret(said.Value), Expires: said.Expires}, nil
}

// File provides what a file holds whose owner and group alone may read it. The
// file may be replaced at any time.
func File(path string) Provider { return file(path) }

type file string

func (f file) Credential(context.Context) (Credential, error) {
	text, err := read(string(f))
	if err != nil {
		return Credential{}, fmt.Errorf("the file %.200q %w", string(f), err)
	}
	c, err := parse(text)
	if err != nil {
		return Credential{}, fmt.Errorf("the file %.200q %w", string(f), err)
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would wait
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", plain(err))
	}
	defer f.Close() //nolint:errcheck // it was only read
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot be read: %w", plain(err))
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case info.Mode().Perm()&^0o640 != 0:
		return nil, fmt.Errorf("has the mode %04o; nobody but its owner and group may read it, and nobody but its owner write", info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", plain(err))
	}
	if len(text) > maxText {
		return nil, fmt.Errorf("is larger than %d bytes", maxText)
	}
	return text, nil
}

// plain drops the path that *fs.PathError repeats.
func plain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// Env provides what a variable of the environment holds. It cannot change while
// the process lives; a file can.
func Env(name string) Provider { return env(name) }

type env string

func (e env) Credential(context.Context) (Credential, error) {
	text, ok := os.LookupEnv(string(e))
	if !ok {
		return Credential{}, fmt.Errorf("the variable %.100q is not set", string(e))
	}
	c, err := parse([]byte(text))
	if err != nil {
		return Credential{}, fmt.Errorf("the variable %.100q %w", string(e), err)
	}
	return c, nil
}
