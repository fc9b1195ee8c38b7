package postgres

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

const (
	codeSettings = "NW002"
	codeTooLate  = "NW003"
)

// quiet keeps what PostgreSQL repeats of a statement's values out of logs and answers, and the error itself for errors.As.
type quiet struct{ error }

func (q quiet) Unwrap() error { return q.error }

func (q quiet) Error() string {
	if state := sqlState(q.error); state != "" {
		return "SQLSTATE " + state
	}
	return q.error.Error()
}

func quietly(err error) error {
	if err == nil {
		return nil
	}
	return quiet{err}
}

// sqlState is the server's word on an error, which each driver has under this name; "" when it said nothing.
func sqlState(err error) string {
	if refusal, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return refusal.SQLState()
	}
	return ""
}

// store holds every statement about the ledger. The functions are in migrations/.
type store struct {
	db     database
	schema string // quoted
}

func (s store) intend(ctx context.Context, a guards.Attempt) error {
	var written bool
	err := s.db.call(ctx, `SELECT `+s.schema+`.intend($1, $2, $3, $4)`, []any{a.Effect[:], a.ID[:], a.Action, a.Digest[:]}, &written)
	if err == nil && !written {
		return guards.ErrSettled
	}
	return quietly(err)
}

func (s store) take(ctx context.Context, tx transaction, a guards.Admitted, left time.Duration) error {
	var verdict string
	err := tx.row(ctx, `SELECT `+s.schema+`.take($1, $2, $3, $4, $5, $6, $7)`,
		[]any{a.Effect[:], a.ID[:], a.Lane[:], a.Fence, a.Number, a.Digest[:], left.Milliseconds()}, &verdict)
	switch {
	case err != nil:
		return &notApplied{reasonOf(err), err}
	case verdict != "ok":
		return &notApplied{api.Code(verdict), errors.New("the ledger refuses")}
	}
	return nil
}

func (s store) inTime(ctx context.Context, tx transaction, left time.Duration) error {
	_, err := tx.exec(ctx, `SELECT `+s.schema+`.in_time($1)`, []any{left.Milliseconds()})
	return err
}

// prove tells whether the effect was committed and by which attempt; if it was not, it never will be.
func (s store) prove(ctx context.Context, effect, attempt guards.Ref) (committed bool, by guards.Ref, err error) {
	var outcome string
	var row []byte
	err = s.db.call(ctx, `SELECT outcome, attempt FROM `+s.schema+`.prove($1, $2)`, []any{effect[:], attempt[:]}, &outcome, &row)
	if err == nil && len(row) != len(by) {
		err = errors.New("guards/postgres: the ledger holds what it cannot")
	}
	if err != nil {
		return false, guards.Ref{}, quietly(err)
	}
	return outcome == "committed", guards.Ref(row), nil
}

// probe looks at the ledger and at the tables beside it.
func (s store) probe(ctx context.Context, tables string) (seen guards.Seen, f found, err error) {
	var version int
	var writable, durable bool
	var problem *string
	var columns string
	var id, shape []byte
	err = s.db.read(ctx, `SELECT p.version, p.writable, p.durable, p.fence, p.admission, p.dataset, s.problem, s.columns, s.digest
	  FROM `+s.schema+`.probe() p, `+s.schema+`.shape($1) s`, []any{tables},
		&version, &writable, &durable, &seen.Fence, &seen.Admission, &id, &problem, &columns, &shape)
	switch {
	case err != nil && slices.Contains([]string{"3F000", "42883", "42501", "42703", "P0002"}, sqlState(err)): // no such schema, function, right, column, row
		return guards.Seen{}, found{}, fmt.Errorf("%w: the ledger is missing or of another version, or may not be called: %w", guards.ErrSettings, quietly(err))
	case err != nil:
		return guards.Seen{}, found{}, quietly(err)
	case version != latest || !durable:
		return seen, found{}, fmt.Errorf("%w: schema version %d (wanted %d), durable %t", guards.ErrSettings, version, latest, durable)
	case !writable:
		return seen, found{}, errors.New("guards/postgres: the database takes no writes")
	case len(id) != 32 || len(shape) != 32 || json.Unmarshal([]byte(columns), &f.columns) != nil:
		return seen, found{}, errShape
	}
	f.Dataset = Dataset{ID: [32]byte(id), Shape: [32]byte(shape)}
	if problem != nil {
		f.problem = *problem
	}
	return seen, f, nil
}

// purge forgets what nobody can ask for any more, at most so many rows of each table.
func (s store) purge(ctx context.Context, most int) (rows int, err error) {
	err = s.db.call(ctx, `SELECT `+s.schema+`.purge($1)`, []any{most}, &rows)
	return rows, quietly(err)
}

//go:embed migrations/*.sql
var migrations embed.FS

const latest = 1 // migration

const migrationLock = 7914860151375 // of an advisory lock: one migration at a time

const defaultSchema = "nightwarrant_guard" // as the migrations spell it

var schemaForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// Migrate makes or updates the schema nightwarrant_guard. It runs as a role that may create schemas and owns the ledger
// afterwards; role, if given, is the guard's and gets no more than the right to call the ledger's functions.
func Migrate(ctx context.Context, pool *pgxpool.Pool, role string) error {
	return MigrateSchema(ctx, pool, defaultSchema, role)
}

// MigrateSchema is [Migrate] for one of several guards of a database: each has a ledger of its own, in a schema of its own.
func MigrateSchema(ctx context.Context, pool *pgxpool.Pool, schema, role string) error {
	if !schemaForm.MatchString(schema) || strings.HasPrefix(schema, "pg_") {
		return fmt.Errorf("guards/postgres: %.64q cannot be the ledger's schema", schema)
	}
	m := migration{schema: pgx.Identifier{schema}.Sanitize()}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, migrationLock); err != nil {
			return err
		}
		m.tx = tx
		version, err := m.version(ctx)
		if err != nil {
			return err
		}
		if version > latest {
			return fmt.Errorf("guards/postgres: the schema is at version %d, and this program knows %d", version, latest)
		}
		if err := m.from(ctx, version); err != nil {
			return err
		}
		return m.grant(ctx, role)
	})
}

// migration is of one ledger, in one transaction.
type migration struct {
	tx     pgx.Tx
	schema string // quoted
}

func (m migration) version(ctx context.Context) (version int, err error) {
	var exists bool
	err = m.tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, m.schema+".versions").Scan(&exists)
	if err != nil || !exists {
		return 0, err
	}
	err = m.tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+m.schema+`.versions`).Scan(&version)
	return version, err
}

func (m migration) from(ctx context.Context, version int) error {
	files, err := fs.Glob(migrations, "migrations/*.sql") // in order of their numbers
	if err != nil {
		return err
	}
	for n := version + 1; n <= latest; n++ {
		text, err := migrations.ReadFile(files[n-1])
		if err != nil {
			return err
		}
		all := strings.ReplaceAll(string(text), defaultSchema, m.schema)
		if _, err := m.tx.Conn().PgConn().Exec(ctx, all).ReadAll(); err != nil { // many statements at once
			return fmt.Errorf("guards/postgres: migration %d: %w", n, err)
		}
		if _, err := m.tx.Exec(ctx, `INSERT INTO `+m.schema+`.versions (version) VALUES ($1)`, n); err != nil {
			return err
		}
	}
	return nil
}

func (m migration) grant(ctx context.Context, role string) error {
	if role == "" {
		return nil
	}
	name := pgx.Identifier{role}.Sanitize()
	for _, what := range []string{"USAGE ON SCHEMA ", "EXECUTE ON ALL FUNCTIONS IN SCHEMA "} {
		if _, err := m.tx.Exec(ctx, "GRANT "+what+m.schema+" TO "+name); err != nil {
			return err
		}
	}
	return nil
}
