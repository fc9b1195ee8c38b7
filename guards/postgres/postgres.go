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
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

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

	// DoSQL is Do for a ledger over Config.DB.
	DoSQL func(ctx context.Context, tx *Tx, params json.RawMessage) (any, error)

	// Tables that Do touches, as schema.table: the guard is not healthy when one of them is not what it was.
	Tables []string
}

// operation is either, over either driver.
type operation struct {
	target guards.Operation
	do     func(ctx context.Context, tx transaction, params json.RawMessage) (any, error)
}

func (o Operation) over(c Config) (operation, bool) {
	_, isPgx := c.driver().(viaPgx)
	bound := operation{target: o.Target}
	switch {
	case isPgx && o.Do != nil:
		bound.do = func(ctx context.Context, tx transaction, params json.RawMessage) (any, error) {
			return o.Do(ctx, unendable{tx.(pgxTx).Tx}, params)
		}
	case !isPgx && o.DoSQL != nil:
		bound.do = func(ctx context.Context, tx transaction, params json.RawMessage) (any, error) {
			return o.DoSQL(ctx, &Tx{tx.(sqlTx).tx}, params)
		}
	}
	return bound, bound.target != nil && bound.do != nil
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
	DB         *sql.DB               // instead of Pool, of any driver that numbers parameters ($1); more than three connections
	Schema     string                // of this guard's ledger; optional, nightwarrant_guard. Each guard of a database has its own
	Tables     map[string]Table      // by name; empty means no row actions
	Operations map[string]Operation  // by action; the names of the catalogue are taken
	Registered []catalogue.Operation // of those, as the Guard document lists them
	Logger     *slog.Logger          // optional
}

func (c Config) driver() database {
	if c.DB != nil {
		return viaSQL{c.DB}
	}
	return viaPgx{c.Pool}
}

func (c Config) connections() int {
	if c.DB == nil {
		return int(c.Pool.Config().MaxConns)
	}
	if most := c.DB.Stats().MaxOpenConnections; most > 0 {
		return most
	}
	return 64
}

// Ledger implements guards.Ledger. It is safe for concurrent use.
type Ledger struct {
	store      store
	operations map[string]operation
	catalogue  [32]byte
	watched    string      // tables
	columns    [][3]string // that must be there
	log        *slog.Logger
	slots      chan struct{} // of operations under way
	now        func() time.Time

	mu      sync.Mutex
	dataset *Dataset  // that was found first
	purged  time.Time // when last
}

// reserved connections are never held by operations: proofs, intents and probes must get through while those are slow,
// or a busy guard would pass for a dead one.
const reserved = 3

var _ guards.Ledger = (*Ledger)(nil)

// New makes the ledger of one guard. It does not connect.
func New(c Config) (*Ledger, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Schema == "" {
		c.Schema = defaultSchema
	}
	switch {
	case (c.Pool == nil) == (c.DB == nil):
		return nil, errors.New("guards/postgres: the pool is missing, or there are two")
	case c.connections() <= reserved:
		return nil, fmt.Errorf("guards/postgres: more than %d connections are needed", reserved)
	case !schemaForm.MatchString(c.Schema):
		return nil, fmt.Errorf("guards/postgres: %.64q cannot be the ledger's schema", c.Schema)
	}
	operations, err := c.operations()
	if err != nil {
		return nil, fmt.Errorf("guards/postgres: %w", err)
	}
	watched, columns, err := c.watch()
	if err != nil {
		return nil, fmt.Errorf("guards/postgres: %w", err)
	}
	registered, err := c.catalogue()
	if err != nil {
		return nil, err
	}
	return &Ledger{store: store{c.driver(), pgx.Identifier{c.Schema}.Sanitize()}, operations: operations, catalogue: registered, watched: watched, columns: columns,
		log: c.Logger, slots: make(chan struct{}, c.connections()-reserved), now: time.Now}, nil
}

func (c Config) operations() (map[string]operation, error) {
	operations, err := rowOperations(c.Tables)
	if err != nil {
		return nil, err
	}
	for action, o := range c.Operations {
		bound, complete := o.over(c)
		if _, taken := catalogue.Lookup(catalogue.Postgres, action); taken || !complete {
			return nil, fmt.Errorf("%.64q is not complete or is an action of the catalogue", action)
		}
		operations[action] = bound
	}
	return operations, nil
}

func (c Config) catalogue() ([32]byte, error) {
	actions := catalogue.Actions(catalogue.Postgres)
	for _, o := range c.Registered {
		a, err := catalogue.Compile(catalogue.Postgres, o)
		if err != nil {
			return [32]byte{}, err
		}
		actions = append(actions, a)
	}
	return catalogue.DigestOf(actions...), nil
}

// Catalogue is the digest of what this guard is registered with, for
// guards.Config: of the compiled-in actions, whether its tables allow them or
// not, and of the owner's own.
func (l *Ledger) Catalogue() [32]byte { return l.catalogue }

// Operations are the actions of this ledger, for guards.Config.
func (l *Ledger) Operations() map[string]guards.Operation {
	out := make(map[string]guards.Operation, len(l.operations))
	for action, operation := range l.operations {
		out[action] = operation.target
	}
	return out
}

// Open opens a pool that is safe for effects: no COMMIT is ever cancelled, and
// each connection is refused unless the server is a primary of version 15 or
// newer whose commits are synchronous.
func Open(ctx context.Context, url string) (*pgxpool.Pool, error) {
	return pg.Open(ctx, pg.Config{URL: url, Name: "nightwarrant-guard"})
}
