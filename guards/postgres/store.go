package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

const (
	codeSettings = "NW002"
	codeTooLate  = "NW003"

	commitTimeout   = 10 * time.Second
	rollbackTimeout = time.Second
)

// quiet keeps what PostgreSQL repeats of a statement's values out of logs and answers, and the error itself for errors.As.
type quiet struct{ error }

func (q quiet) Unwrap() error { return q.error }

func (q quiet) Error() string {
	if refusal, ok := errors.AsType[*pgconn.PgError](q.error); ok {
		return "SQLSTATE " + refusal.Code
	}
	return q.error.Error()
}

func quietly(err error) error {
	if err == nil {
		return nil
	}
	return quiet{err}
}

// store holds every statement about the ledger. The functions are in migrations/.
type store struct{ pool *pgxpool.Pool }

func (s store) intend(ctx context.Context, a guards.Attempt) error {
	var written bool
	_, err := pg.Call(ctx, s.pool, `SELECT nightwarrant_guard.intend($1, $2, $3, $4)`,
		[]any{a.Effect[:], a.ID[:], a.Action, a.Digest[:]}, &written)
	if err == nil && !written {
		return guards.ErrSettled
	}
	return quietly(err)
}

func (s store) begin(ctx context.Context) (pgx.Tx, error) {
	return s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
}

func (s store) take(ctx context.Context, tx pgx.Tx, a guards.Admitted, left time.Duration) error {
	var verdict api.Code
	err := tx.QueryRow(ctx, `SELECT nightwarrant_guard.take($1, $2, $3, $4, $5, $6, $7)`,
		a.Effect[:], a.ID[:], a.Lane[:], a.Fence, a.Number, a.Digest[:], left.Milliseconds()).Scan(&verdict)
	switch {
	case err != nil:
		return &notApplied{reasonOf(err), err}
	case verdict != "ok":
		return &notApplied{verdict, errors.New("the ledger refuses")}
	}
	return nil
}

func (s store) inTime(ctx context.Context, tx pgx.Tx, left time.Duration) error {
	_, err := tx.Exec(ctx, `SELECT nightwarrant_guard.in_time($1)`, left.Milliseconds())
	return err
}

// commit is never cancelled by whoever waits for it: an error of COMMIT is unknown, and cancelling one makes it so.
func (s store) commit(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return quietly(tx.Commit(ctx))
}

func (s store) rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	_ = tx.Rollback(ctx) // the connection is closed when this fails, and the server rolls back
}

// prove tells whether the effect was committed and by which attempt; if it was not, it never will be.
func (s store) prove(ctx context.Context, effect, attempt guards.Ref) (committed bool, by guards.Ref, err error) {
	var outcome string
	var row []byte
	_, err = pg.Call(ctx, s.pool, `SELECT outcome, attempt FROM nightwarrant_guard.prove($1, $2)`, []any{effect[:], attempt[:]}, &outcome, &row)
	if err == nil && len(row) != len(by) {
		err = errors.New("guards/postgres: the ledger holds what it cannot")
	}
	if err != nil {
		return false, guards.Ref{}, quietly(err)
	}
	return outcome == "committed", guards.Ref(row), nil
}

func (s store) probe(ctx context.Context) (seen guards.Seen, err error) {
	var version int
	var writable, durable bool
	err = s.pool.QueryRow(ctx, `SELECT version, writable, durable, fence, admission FROM nightwarrant_guard.probe()`).
		Scan(&version, &writable, &durable, &seen.Fence, &seen.Admission)
	switch {
	case err != nil:
		return guards.Seen{}, quietly(err)
	case version != latest || !durable:
		return seen, fmt.Errorf("%w: schema version %d (wanted %d), durable %t", guards.ErrSettings, version, latest, durable)
	case !writable:
		return seen, errors.New("guards/postgres: the database takes no writes")
	}
	return seen, nil
}

//go:embed migrations/*.sql
var migrations embed.FS

const latest = 1 // migration

const migrationLock = 7914860151375 // of an advisory lock: one migration at a time

// Migrate makes or updates the schema nightwarrant_guard. It runs as a role that may create schemas and owns the ledger
// afterwards; role, if given, is the guard's and gets no more than the right to call the ledger's functions.
func Migrate(ctx context.Context, pool *pgxpool.Pool, role string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, migrationLock); err != nil {
			return err
		}
		version, err := schemaVersion(ctx, tx)
		if err != nil {
			return err
		}
		if version > latest {
			return fmt.Errorf("guards/postgres: the schema is at version %d, and this program knows %d", version, latest)
		}
		if err := migrateFrom(ctx, tx, version); err != nil {
			return err
		}
		return grant(ctx, tx, role)
	})
}

func schemaVersion(ctx context.Context, tx pgx.Tx) (version int, err error) {
	var exists bool
	err = tx.QueryRow(ctx, `SELECT to_regclass('nightwarrant_guard.versions') IS NOT NULL`).Scan(&exists)
	if err != nil || !exists {
		return 0, err
	}
	err = tx.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM nightwarrant_guard.versions`).Scan(&version)
	return version, err
}

func migrateFrom(ctx context.Context, tx pgx.Tx, version int) error {
	files, err := fs.Glob(migrations, "migrations/*.sql") // in order of their numbers
	if err != nil {
		return err
	}
	for n := version + 1; n <= latest; n++ {
		text, err := migrations.ReadFile(files[n-1])
		if err != nil {
			return err
		}
		if _, err := tx.Conn().PgConn().Exec(ctx, string(text)).ReadAll(); err != nil { // many statements at once
			return fmt.Errorf("guards/postgres: migration %d: %w", n, err)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO nightwarrant_guard.versions (version) VALUES ($1)`, n); err != nil {
			return err
		}
	}
	return nil
}

func grant(ctx context.Context, tx pgx.Tx, role string) error {
	if role == "" {
		return nil
	}
	name := pgx.Identifier{role}.Sanitize()
	for _, what := range []string{"USAGE ON SCHEMA nightwarrant_guard", "EXECUTE ON ALL FUNCTIONS IN SCHEMA nightwarrant_guard"} {
		if _, err := tx.Exec(ctx, "GRANT "+what+" TO "+name); err != nil {
			return err
		}
	}
	return nil
}
