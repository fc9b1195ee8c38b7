package postgres

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

const (
	commitTimeout   = 10 * time.Second
	rollbackTimeout = time.Second
)

// database is what the ledger needs of a driver.
type database interface {
	read(ctx context.Context, sql string, args []any, dest ...any) error // the row of a statement that changes nothing
	call(ctx context.Context, sql string, args []any, dest ...any) error // of one that is a transaction, which is not cancelled once it was sent
	begin(ctx context.Context) (transaction, error)
}

// transaction is READ COMMITTED and may write.
type transaction interface {
	row(ctx context.Context, sql string, args []any, dest ...any) error
	exec(ctx context.Context, sql string, args []any) (rows int64, err error)
	end(ctx context.Context, commit bool) error // never cancelled by whoever waits for it: an error of COMMIT is unknown, and cancelling one makes it so
}

// viaPgx is the driver's own pool.
type viaPgx struct{ pool *pgxpool.Pool }

func (d viaPgx) read(ctx context.Context, sql string, args []any, dest ...any) error {
	return d.pool.QueryRow(ctx, sql, args...).Scan(dest...)
}

func (d viaPgx) call(ctx context.Context, sql string, args []any, dest ...any) error {
	_, err := pg.Call(ctx, d.pool, sql, args, dest...)
	return err
}

func (d viaPgx) begin(ctx context.Context) (transaction, error) {
	tx, err := d.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	return pgxTx{tx}, err
}

type pgxTx struct{ pgx.Tx }

func (t pgxTx) row(ctx context.Context, sql string, args []any, dest ...any) error {
	return t.QueryRow(ctx, sql, args...).Scan(dest...)
}

func (t pgxTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	tag, err := t.Exec(ctx, sql, args...)
	return tag.RowsAffected(), err
}

func (t pgxTx) end(ctx context.Context, commit bool) error {
	if !commit {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		return t.Rollback(ctx) // the connection is closed when this fails, and the server rolls back
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return t.Commit(ctx)
}

// viaSQL is database/sql, over any driver of PostgreSQL that numbers its parameters ($1).
type viaSQL struct{ db *sql.DB }

func (d viaSQL) read(ctx context.Context, text string, args []any, dest ...any) error {
	return d.db.QueryRowContext(ctx, text, args...).Scan(dest...)
}

func (d viaSQL) call(ctx context.Context, text string, args []any, dest ...any) error {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to its pool
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	return conn.QueryRowContext(ctx, text, args...).Scan(dest...)
}

// begin waits for a connection as long as ctx allows. The transaction's own context is another: database/sql ends a transaction with the
// context that began it, in the middle of a COMMIT too.
func (d viaSQL) begin(ctx context.Context) (transaction, error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel) // while it begins
	tx, err := conn.BeginTx(own, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err == nil && !stop() {
		err = errors.Join(ctx.Err(), tx.Rollback())
	}
	if err != nil {
		cancel()
		return nil, errors.Join(err, conn.Close())
	}
	return sqlTx{tx, conn, cancel}, nil
}

type sqlTx struct {
	tx     *sql.Tx
	conn   *sql.Conn
	cancel context.CancelFunc // of the whole transaction
}

func (t sqlTx) row(ctx context.Context, text string, args []any, dest ...any) error {
	return t.tx.QueryRowContext(ctx, text, args...).Scan(dest...)
}

func (t sqlTx) exec(ctx context.Context, text string, args []any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlTx) end(_ context.Context, commit bool) error {
	defer t.conn.Close() //nolint:errcheck // it goes back to its pool
	defer t.cancel()
	limit, do := rollbackTimeout, t.tx.Rollback
	if commit {
		limit, do = commitTimeout, t.tx.Commit
	}
	timer := time.AfterFunc(limit, t.cancel)
	defer timer.Stop()
	return do()
}

// Tx is a transaction of database/sql that its user cannot end.
type Tx struct{ tx *sql.Tx }

// ExecContext is that of [sql.Tx].
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return t.tx.ExecContext(ctx, query, args...)
}

// QueryContext is that of [sql.Tx].
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return t.tx.QueryContext(ctx, query, args...)
}

// QueryRowContext is that of [sql.Tx].
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

// PrepareContext is that of [sql.Tx]. With it a Tx fits what code generators take for one.
func (t *Tx) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	return t.tx.PrepareContext(ctx, query)
}
