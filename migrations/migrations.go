// Package migrations holds the database: its tables, invariants, verbs and
// grants, as numbered SQL that `nightwarrant migrate` applies.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver that goose uses
	"github.com/pressly/goose/v3"
)

//go:embed sql/*.sql
var files embed.FS

// FS returns the SQL files, in a directory of their own.
func FS() fs.FS {
	sub, err := fs.Sub(files, "sql")
	if err != nil {
		panic(err) // the directory is embedded above
	}
	return sub
}

// MinimumServer is the oldest PostgreSQL that the schema is written for, as server_version_num.
const MinimumServer = 150000

// Up brings the database at url to the newest version. The role of url must
// own the database and may create roles.
func Up(ctx context.Context, url string) error {
	return with(ctx, url, func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		return err
	})
}

// Version returns the version of the database at url and the newest version.
func Version(ctx context.Context, url string) (current, newest int64, err error) {
	err = with(ctx, url, func(p *goose.Provider) error {
		current, newest, err = p.GetVersions(ctx)
		return err
	})
	return current, newest, err
}

func with(ctx context.Context, url string, f func(*goose.Provider) error) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer db.Close() //nolint:errcheck // nothing is pending on it
	var version int
	if err := db.QueryRowContext(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	if version < MinimumServer {
		return fmt.Errorf("PostgreSQL 15 or newer is needed, the server is %d", version)
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, FS(), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	return f(p)
}
