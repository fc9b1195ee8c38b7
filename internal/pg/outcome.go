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
	conn, err := Acquire(ctx, pool)
	if err != nil {
		return NotApplied, err
	}
	defer conn.Release()
	return conn.Call(ctx, sql, args, dest...)
}

// Conn is a connection that was had for one call. Release it.
type Conn struct{ conn *pgxpool.Conn }

// Acquire waits for a connection, for as long as Call does. Its error wraps ErrUnavailable.
func Acquire(ctx context.Context, pool *pgxpool.Pool) (Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return Conn{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return Conn{conn}, nil
}

// Release gives the connection back.
func (c Conn) Release() { c.conn.Release() }

// Call is the function Call on this connection: ctx counts no longer.
func (c Conn) Call(ctx context.Context, sql string, args []any, dest ...any) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	return c.outcome(c.conn.QueryRow(ctx, sql, args...).Scan(dest...))
}

// Try is Call for a statement that is committed only when keep, asked once its
// row is in dest, says so. Otherwise it is undone: NotApplied, without an error.
func (c Conn) Try(ctx context.Context, keep func() bool, sql string, args []any, dest ...any) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	tx, err := c.conn.Begin(ctx)
	if err != nil {
		return NotApplied, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := tx.QueryRow(ctx, sql, args...).Scan(dest...); err != nil || !keep() {
		_ = tx.Rollback(ctx) // a connection that cannot undo is closed, and undoes that way
		return NotApplied, err
	}
	return c.outcome(tx.Commit(ctx))
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
