package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// unsent is an error that pgconn vouches for: nothing reached the server.
type unsent struct{ bool }

func (unsent) Error() string       { return "not sent" }
func (u unsent) SafeToRetry() bool { return u.bool }

func TestClassify(t *testing.T) {
	t.Parallel()
	ambiguous := map[string]error{
		"deadline":            context.DeadlineExceeded,
		"cancelled":           context.Canceled,
		"end of file":         io.ErrUnexpectedEOF,
		"reset":               &net.OpError{Op: "read", Err: errors.New("connection reset by peer")},
		"fatal":               &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "57P01"},
		"panic":               &pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "58030"},
		"warning":             &pgconn.PgError{SeverityUnlocalized: "WARNING"},
		"no severity":         &pgconn.PgError{Severity: "ERROR"},
		"no rows":             pgx.ErrNoRows,
		"rolled back by name": pgx.ErrTxCommitRollback,
		"perhaps sent":        unsent{false},
		"unknown":             errors.New("something else"),
	}
	for name, err := range ambiguous {
		assert.Equal(t, Ambiguous, Classify(err), name)
		assert.Equal(t, Ambiguous, Classify(fmt.Errorf("wrapped: %w", err)), name)
	}
	notApplied := map[string]error{
		"refused":                     &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "23505"},
		"refused in another language": &pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR"},
		"not connected":               &pgconn.ConnectError{Config: &pgconn.Config{}},
		"not sent":                    unsent{true},
	}
	for name, err := range notApplied {
		assert.Equal(t, NotApplied, Classify(err), name)
		assert.Equal(t, NotApplied, Classify(fmt.Errorf("wrapped: %w", err)), name)
	}
	assert.Equal(t, Committed, Classify(nil))
}

func TestOnlyTheSeverityErrorProvesARollback(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		severity := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"error", "ERROR ", "Error", "FATAL"})).Draw(t, "severity")
		if severity == "ERROR" {
			t.Skip("the one that does")
		}
		err := &pgconn.PgError{SeverityUnlocalized: severity, Severity: "ERROR", Code: rapid.StringN(5, 5, 5).Draw(t, "code")}
		if got := Classify(err); got != Ambiguous {
			t.Fatalf("%q is %s", severity, got)
		}
	})
}

func TestOutcomeFailsClosed(t *testing.T) {
	t.Parallel()
	var zero Outcome
	assert.Equal(t, Ambiguous, zero)
	assert.Equal(t, "ambiguous", Outcome(99).String())
	assert.Equal(t, "committed not_applied ambiguous", fmt.Sprint(Committed, " ", NotApplied, " ", Ambiguous))
}

func TestServerSuitable(t *testing.T) {
	t.Parallel()
	good := server{version: 150018, isolation: "read committed", commit: "on"}
	require.NoError(t, good.suitable())
	for want, spoil := range map[string]func(*server){
		"PostgreSQL 15 or newer is needed, not 14": func(s *server) { s.version = 149999 },
		"must be read committed":                   func(s *server) { s.isolation = "serializable" },
		"synchronous_commit is off":                func(s *server) { s.commit = "off" },
	} {
		s := good
		spoil(&s)
		require.ErrorIs(t, s.suitable(), ErrUnsuitable)
		require.ErrorContains(t, s.suitable(), want)
	}
	standby := good
	standby.standby = true
	require.ErrorIs(t, standby.suitable(), ErrStandby)
	require.NotErrorIs(t, standby.suitable(), ErrUnsuitable, "a failover heals it")
}

func TestConfigDoesNotPrintItsPassword(t *testing.T) {
	t.Parallel()
	c := Config{URL: "postgres://nw_authority:hunter2@db/x", Name: "authority"}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		_, _ = fmt.Fprintf(&out, verb+verb+verb, c, &c, []Config{c})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "config", c, "pointer", &c)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "config", c, "list", []Config{c})
	encoded, err := json.Marshal(map[string]any{"c": c, "p": &c})
	require.NoError(t, err)
	out.Write(encoded)
	assert.NotContains(t, out.String(), "hunter2")
	assert.NotContains(t, out.String(), fmt.Sprintf("%x", "hunter2"))
	assert.Contains(t, out.String(), "authority")
}

func FuzzOpenNeverQuotesAURL(f *testing.F) {
	for _, url := range []string{"", "postgres://u:%zz@h", "postgres://u:s3cret@h:port/x", "host=x password='s3cret", "postgres://u:s3cret@h/x?sslmode=none", "\x00"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		_, err := poolConfig(Config{URL: url})
		if err != nil {
			assert.EqualError(t, err, "the database is unsuitable: its URL cannot be read")
		}
	})
}
