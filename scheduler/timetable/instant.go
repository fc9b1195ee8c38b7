package timetable

import (
	"errors"
	"fmt"
	"time"
)

// Instant is a point in time as documents spell it: RFC 3339 in UTC with whole
// seconds, such as 2026-03-29T01:00:00Z. The value is Unix seconds and zero
// means absent.
type Instant int64

const (
	instantForm = "2006-01-02T15:04:05Z"
	lastInstant = 253402300799 // 9999-12-31T23:59:59Z
)

// InstantOf returns t without its fraction of a second.
func InstantOf(t time.Time) Instant { return Instant(t.Unix()) }

// Time returns the instant in UTC.
func (i Instant) Time() time.Time { return time.Unix(int64(i), 0).UTC() }

// String returns the only spelling of i.
func (i Instant) String() string { return i.Time().Format(instantForm) }

// MarshalText writes the only spelling of i.
func (i Instant) MarshalText() ([]byte, error) {
	if err := i.check("an instant"); err != nil {
		return nil, err
	}
	return []byte(i.String()), nil
}

// UnmarshalText reads the one spelling that MarshalText writes.
func (i *Instant) UnmarshalText(text []byte) error {
	t, err := time.Parse(instantForm, string(text))
	if err != nil || len(text) != len(instantForm) {
		return errors.New("an instant must be written like 2026-03-29T01:00:00Z, in UTC and whole seconds")
	}
	parsed := InstantOf(t)
	if err := parsed.check("an instant"); err != nil {
		return err
	}
	*i = parsed
	return nil
}

func (i Instant) check(field string) error {
	if i <= 0 || i > lastInstant {
		return fmt.Errorf("%s must lie between the years 1970 and 9999", field)
	}
	return nil
}
