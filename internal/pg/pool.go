// Package pg opens the pool to PostgreSQL and tells the outcome of a statement
// that is one whole transaction: committed, not applied or ambiguous.
package pg

import (
	"context"
	"crypto/fips140"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/fips"
)

const (
	minServer       = 150000 // server_version_num
	defaultMaxConns = 12
	defaultName     = "nightwarrant"
	connectTimeout  = 3 * time.Second
	pingTimeout     = time.Second
	connLifetime    = 30 * time.Minute
	connIdle        = 5 * time.Minute
	statementCache  = 256 // prepared statements a connection
)

// ErrUnsuitable says that the server answers but must not be used; asking again
// does not help.
var ErrUnsuitable = errors.New("the database is unsuitable")

// ErrStandby says that the server is a standby, which a failover may change.
var ErrStandby = errors.New("the database is a standby")

// Config says how to reach the database. It holds the password and does not print it.
type Config struct {
	URL      string // postgres://…, with the password
	MaxConns int32  // 0 means 12
	Name     string // application_name; empty means nightwarrant
}

// Format hides the URL from every verb of fmt.
func (c Config) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "pg.Config(%s)", c.Name) }

// LogValue hides the URL from slog.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// MarshalJSON hides the URL from JSON.
func (c Config) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%q", fmt.Sprint(c)), nil }

// Open connects once and returns the pool. Every connection, now and later, is
// refused (ErrUnsuitable) unless the server is a primary of version 15 or newer
// whose default isolation is read committed (P3) and whose commits are
// synchronous. An error that does not wrap ErrUnsuitable may heal.
func Open(ctx context.Context, c Config) (*pgxpool.Pool, error) {
	config, err := poolConfig(c)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("opening the database: %w", authentication(err))
	}
	return pool, nil
}

func poolConfig(c Config) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: its URL cannot be read", ErrUnsuitable) // pgx's text may quote the password
	}
	config.MaxConns = orDefault(c.MaxConns, defaultMaxConns)
	config.MaxConnLifetime = connLifetime
	config.MaxConnLifetimeJitter = connLifetime / 10
	config.MaxConnIdleTime = connIdle
	config.PingTimeout = pingTimeout
	config.BeforeConnect = neverCancel
	config.AfterConnect = assertSuitable
	config.ConnConfig.ConnectTimeout = connectTimeout
	WithoutMD5(config.ConnConfig)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	config.ConnConfig.StatementCacheCapacity = statementCache
	config.ConnConfig.OnNotice = heed
	config.ConnConfig.RuntimeParams["application_name"] = orDefault(c.Name, defaultName)
	config.ConnConfig.RuntimeParams["client_min_messages"] = "warning"
	return config, nil
}

// WithoutMD5 refuses a server that asks for md5 where computing one would end the
// process (GODEBUG=fips140=only). Where the file says fips: required, the URL
// itself asks for SCRAM, and nothing is left to do.
func WithoutMD5(c *pgx.ConnConfig) {
	if fips140.Enforced() && c.RequireAuth == "" {
		c.RequireAuth = "!md5"
	}
}

// authentication tells a server that asks for what require_auth forbids from one
// that cannot be reached: pgx has no type for it.
func authentication(err error) error {
	if strings.Contains(err.Error(), "authentication method requirement") {
		return fmt.Errorf("%w: %w: %w", ErrUnsuitable, errMethod, err)
	}
	return err
}

var errMethod = errors.New("it asks for another way of authentication than require_auth allows (" + fips.NonApproved + " where fips is required)")

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// neverCancel refuses the second connection that pgx opens to send a
// CancelRequest when a deadline passes. On a COMMIT that waits for a standby a
// cancel request makes the commit local only, and the standby never has it.
func neverCancel(_ context.Context, c *pgx.ConnConfig) error {
	var connected atomic.Bool
	dial := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("cancel requests are not sent")
		}
		return dial(ctx, network, address)
	}
	c.AfterConnect = func(context.Context, *pgconn.PgConn) error {
		connected.Store(true)
		return nil
	}
	return nil
}

// server is what a new connection says about itself.
type server struct {
	version           int // server_version_num
	isolation, commit string
	standby           bool
}

const askServer = `SELECT current_setting('server_version_num')::int, current_setting('transaction_isolation'),
	current_setting('synchronous_commit'), pg_is_in_recovery()`

func assertSuitable(ctx context.Context, conn *pgx.Conn) error {
	var s server
	if err := conn.QueryRow(ctx, askServer).Scan(&s.version, &s.isolation, &s.commit, &s.standby); err != nil {
		return err
	}
	return s.suitable()
}

func (s server) suitable() error {
	switch {
	case s.version < minServer:
		return fmt.Errorf("%w: PostgreSQL 15 or newer is needed, not %d", ErrUnsuitable, s.version/10000)
	case s.isolation != "read committed":
		return fmt.Errorf("%w: the role's transactions are %s, and must be read committed", ErrUnsuitable, s.isolation)
	case s.commit == "off":
		return fmt.Errorf("%w: synchronous_commit is off, so an acknowledged commit could be lost", ErrUnsuitable)
	case s.standby:
		return ErrStandby
	}
	return nil
}
