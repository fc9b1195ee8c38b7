// Package postgres is the ledger of a guard in front of a PostgreSQL database:
// fences and effects live in the resource's own database and change in the
// operation's own transaction, so an effect is applied exactly once and after a
// crash the ledger proves whether it was (design.md §10).
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/guards"
)

// Operation is an action that the owner of the database adds to the compiled-in
// row actions.
type Operation struct {
	// Target checks canonical parameters and names what they aim at.
	Target guards.Operation

	// Do changes the database inside tx, which it must not end. What it returns is the answer's result, one JSON object.
	// An error rolls everything back: the effect is not applied.
	Do func(ctx context.Context, tx pgx.Tx, params json.RawMessage) (any, error)
}

// Table is what the row actions may touch of one table.
type Table struct {
	Columns []string // that may be read and written
	Key     []string // of these, the columns that a key names, all of them
}

// Config says what the guard may do. Nothing that is not listed can be reached.
type Config struct {
	Pool       *pgxpool.Pool        // of the guard's role; see [Open]
	Tables     map[string]Table     // by name; empty means no row actions
	Operations map[string]Operation // by action; a name of the catalogue is refused
	Logger     *slog.Logger         // optional
}

// Ledger implements guards.Ledger.
type Ledger struct {
	pool       *pgxpool.Pool
	operations map[string]Operation
	log        *slog.Logger
}

var _ guards.Ledger = (*Ledger)(nil)

// New makes the ledger of one guard. It does not connect.
func New(c Config) (*Ledger, error) { return nil, errors.New("not yet") }

// Operations are the actions for guards.Config.
func (l *Ledger) Operations() map[string]guards.Operation { return nil }

// Open opens a pool that is safe for effects: no COMMIT is ever cancelled, and
// each connection is refused unless the server is a primary of version 15 or
// newer whose commits are synchronous.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) { return nil, errors.New("not yet") }

// Migrate makes or updates the schema nightwarrant_guard, as a role that may
// create schemas, and lets role use it.
func Migrate(ctx context.Context, pool *pgxpool.Pool, role string) error {
	return errors.New("not yet")
}

// Intend implements guards.Ledger.
func (l *Ledger) Intend(ctx context.Context, a guards.Attempt) error { return errors.New("not yet") }

// Apply implements guards.Ledger.
func (l *Ledger) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	return guards.Ending{}, errors.New("not yet")
}

// Prove implements guards.Ledger.
func (l *Ledger) Prove(ctx context.Context, effect, attempt guards.Ref) (guards.Outcome, error) {
	return "", errors.New("not yet")
}

// Probe implements guards.Ledger.
func (l *Ledger) Probe(ctx context.Context) (guards.Seen, error) {
	return guards.Seen{}, errors.New("not yet")
}
