package pg

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Outcome says what became of a statement that was one whole transaction. The
// zero value is Ambiguous.
type Outcome int

const (
	// Ambiguous: the statement may have committed. Read it back by its attempt id.
	Ambiguous Outcome = iota
	// NotApplied: nothing was committed, for certain.
	NotApplied
	// Committed: the server acknowledged the commit.
	Committed
)

func (o Outcome) String() string {
	switch o {
	case Committed:
		return "committed"
	case NotApplied:
		return "not_applied"
	default:
		return "ambiguous"
	}
}

// ErrUnavailable says that no connection could be had, so nothing was sent.
var ErrUnavailable = errors.New("the database cannot be reached")

const (
	// acquireTimeout bounds the wait for a connection, before anything is sent.
	acquireTimeout = 2 * time.Second
	// callTimeout is far above the roles' statement_timeout of 1 s: the server
	// decides first, and giving up here says nothing about the commit.
	callTimeout = 5 * time.Second
)

// Call sends one statement that is a whole transaction, in one round trip, and
// scans its single row into dest, which is meaningful only when Committed. When
// ctx ends before a connection is had, nothing is sent; afterwards ctx no longer
// counts, because a caller that hangs up must not cut a COMMIT.
//
// The error is nil exactly when the outcome is Committed; it wraps ErrUnavailable
// when nothing could be sent, else *pgconn.PgError when the server refused.
func Call(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, dest ...any) (Outcome, error) {
	conn, err := acquire(ctx, pool)
	if err != nil {
		return NotApplied, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer conn.Release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	err = conn.QueryRow(ctx, sql, args...).Scan(dest...)
	return Classify(err), err
}

func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	return pool.Acquire(ctx)
}

// Classify tells the outcome of one implicit transaction from its error
// (protocol P6). Only an error that proves a rollback, or that nothing was sent,
// is NotApplied.
func Classify(err error) Outcome {
	if err == nil {
		return Committed
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok || pgconn.SafeToRetry(err) {
		return NotApplied
	}
	// The unlocalized severity is what lc_messages cannot translate. FATAL and
	// PANIC end the session and may follow the commit record.
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.SeverityUnlocalized == "ERROR" {
		return NotApplied
	}
	return Ambiguous
}
