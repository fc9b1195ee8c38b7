// Package postgres is the ledger of a guard in front of a PostgreSQL database:
// fences and effects live in the resource's own database and change in the
// operation's own transaction, so an effect is applied exactly once and after a
// crash the ledger proves whether it was (design.md §10).
//
// One COMMIT may end after the time to apply: its last check stands before it,
// and nobody can take back a COMMIT that was sent (protocol P18).
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Operation is an action that the owner of the database adds to the compiled-in
// row actions.
type Operation struct {
	// Target checks canonical parameters and names what they aim at.
	Target guards.Operation

	// Do changes the database inside tx, which it must not end. What it returns is the answer's result and must encode as
	// one JSON object of at most 64 KiB; nil is none. An error rolls everything back: the effect is not applied.
	Do func(ctx context.Context, tx pgx.Tx, params json.RawMessage) (any, error)
}

// Table is what the row actions may touch of one table.
type Table struct {
	Schema  string   // optional, public
	Columns []string // that may be read and written
	Key     []string // the columns that select rows, all of them together; empty allows row.append only
}

// Config says what the guard may do. Nothing that is not listed can be reached.
type Config struct {
	Pool       *pgxpool.Pool         // of the guard's role; see [Open]
	Tables     map[string]Table      // by name; empty means no row actions
	Operations map[string]Operation  // by action; the names of the catalogue are taken
	Registered []catalogue.Operation // of those, as the Guard document lists them
	Logger     *slog.Logger          // optional
}

// Ledger implements guards.Ledger. It is safe for concurrent use.
type Ledger struct {
	store      store
	operations map[string]Operation
	catalogue  [32]byte
	log        *slog.Logger
	slots      chan struct{} // of operations under way
}

// reserved connections are never held by operations: proofs, intents and probes must get through while those are slow,
// or a busy guard would pass for a dead one.
const reserved = 3

var _ guards.Ledger = (*Ledger)(nil)

// New makes the ledger of one guard. It does not connect.
func New(c Config) (*Ledger, error) {
	if c.Pool == nil {
		return nil, errors.New("guards/postgres: the pool is missing")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	operations, err := rowOperations(c.Tables)
	if err != nil {
		return nil, fmt.Errorf("guards/postgres: %w", err)
	}
	for action, operation := range c.Operations {
		if _, taken := catalogue.Lookup(catalogue.Postgres, action); taken || operation.Target == nil || operation.Do == nil {
			return nil, fmt.Errorf("guards/postgres: %.64q is not complete or is an action of the catalogue", action)
		}
	}
	maps.Copy(operations, c.Operations)
	actions := catalogue.Actions(catalogue.Postgres)
	for _, o := range c.Registered {
		a, err := catalogue.Compile(catalogue.Postgres, o)
		if err != nil {
			return nil, err
		}
		actions = append(actions, a)
	}
	slots := max(1, int(c.Pool.Config().MaxConns)-reserved)
	return &Ledger{store: store{c.Pool}, operations: operations, catalogue: catalogue.DigestOf(actions...), log: c.Logger, slots: make(chan struct{}, slots)}, nil
}

// Catalogue is the digest of what this guard is registered with, for
// guards.Config: of the compiled-in actions, whether its tables allow them or
// not, and of the owner's own.
func (l *Ledger) Catalogue() [32]byte { return l.catalogue }

// Operations are the actions of this ledger, for guards.Config.
func (l *Ledger) Operations() map[string]guards.Operation {
	out := make(map[string]guards.Operation, len(l.operations))
	for action, operation := range l.operations {
		out[action] = operation.Target
	}
	return out
}

// Open opens a pool that is safe for effects: no COMMIT is ever cancelled, and
// each connection is refused unless the server is a primary of version 15 or
// newer whose commits are synchronous.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	return pg.Open(ctx, pg.Config{URL: url, Name: "nightwarrant-guard"})
}
