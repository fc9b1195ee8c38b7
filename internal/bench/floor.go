package bench

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// floorConnections is how many were fastest on two cores; more are slower.
const floorConnections = 16

// scratch holds what the least durable claim would need: rows with a state, spent proofs, an audit log.
const scratch = `
CREATE TABLE runs (id bigint PRIMARY KEY, state text NOT NULL, fence bigint NOT NULL, holder bytea, lease_until timestamptz) WITH (fillfactor = 60);
CREATE TABLE replay (minute bigint NOT NULL, digest bytea NOT NULL, PRIMARY KEY (minute, digest));
CREATE TABLE audit (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL, run_id bigint NOT NULL, body bytea NOT NULL);
INSERT INTO runs SELECT i, 'queued', 0 FROM generate_series(1, 40000) i;
ANALYZE;`

// once is a claim in one statement; %s is the run's number.
const once = `WITH won AS (UPDATE runs SET fence = fence + 1, holder = sha256(uuid_send(gen_random_uuid())), lease_until = clock_timestamp() + interval '60 seconds'
 WHERE id = %s AND state = 'queued' RETURNING id, holder),
 spent AS (INSERT INTO replay SELECT floor(extract(epoch FROM clock_timestamp()) / 60)::bigint, sha256(holder) FROM won ON CONFLICT DO NOTHING RETURNING digest)
 INSERT INTO audit (at, run_id, body) SELECT clock_timestamp(), won.id, won.holder || spent.digest FROM won, spent`

// floor is a scratch database on the same server.
type floor struct {
	by, server, database, name string
	pgbench                    string // path, "" if there is none
}

func newFloor(ctx context.Context, server string) (f *floor, err error) {
	f = &floor{by: "pgx", server: server, name: fmt.Sprintf("nw_floor_%x", time.Now().UnixNano())}
	if dir, _, err := localstack.FindPostgres(); err == nil {
		if path, err := exec.LookPath(filepath.Join(dir, "pgbench")); err == nil {
			f.by, f.pgbench = "pgbench", path
		}
	}
	at, err := url.Parse(server)
	if err != nil {
		return nil, err
	}
	at.Path = "/" + f.name
	f.database = at.String()
	if err := execute(ctx, server, `CREATE DATABASE `+f.name); err != nil {
		return nil, err
	}
	if err := execute(ctx, f.database, scratch); err != nil {
		f.drop()
		return nil, err
	}
	return f, nil
}

// drop removes the scratch database, also when the run was interrupted.
func (f *floor) drop() {
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	_ = execute(ctx, f.server, `DROP DATABASE IF EXISTS `+f.name+` WITH (FORCE)`) // scratch, of a name of its own
}

func execute(ctx context.Context, database, sql string) error {
	c, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // nothing is pending on it
	_, err = c.Exec(ctx, sql)
	return err
}

// measure is how many transactions a second there are. It starts after a checkpoint, as
// claims do: the first change of each page is then written whole.
func (f *floor) measure(ctx context.Context, d time.Duration) (float64, error) {
	if err := execute(ctx, f.database, `CHECKPOINT`); err != nil {
		return 0, err
	}
	if f.pgbench == "" {
		return f.loop(ctx, d)
	}
	file, err := os.CreateTemp("", "nightwarrant-floor-*.sql")
	if err != nil {
		return 0, err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // scratch
	_, err = fmt.Fprintf(file, "\\set id random(1, 40000)\n"+once+";\n", ":id")
	if err := firstError(err, file.Close()); err != nil {
		return 0, err
	}
	at, password, err := withoutPassword(f.database)
	if err != nil {
		return 0, err
	}
	seconds := max(1, int(d.Seconds()))
	c := exec.CommandContext(ctx, f.pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(floorConnections), "-j", "2", "-T", strconv.Itoa(seconds), "-f", file.Name(), at) //nolint:gosec // beside the server's own binaries
	c.Env = append(os.Environ(), "PGPASSWORD="+password)
	text, err := c.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pgbench: %w: %.300s", err, text)
	}
	return readTPS(text)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// withoutPassword keeps a password out of the list of processes.
func withoutPassword(database string) (at, password string, err error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", "", err
	}
	password, _ = u.User.Password()
	u.User = url.User(u.User.Username())
	return u.String(), password, nil
}

var tpsLine = regexp.MustCompile(`(?m)^tps = ([0-9.]+)`)

// readTPS finds the figure in what pgbench prints.
func readTPS(text []byte) (float64, error) {
	found := tpsLine.FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("pgbench printed no tps: %.300s", text)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// loop does the same from this process.
func (f *floor) loop(ctx context.Context, d time.Duration) (float64, error) {
	config, err := pgxpool.ParseConfig(f.database)
	if err != nil {
		return 0, err
	}
	config.MaxConns = floorConnections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	var n atomic.Int64
	began := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range floorConnections {
		g.Go(func() error {
			for time.Since(began) < d {
				if _, err := pool.Exec(ctx, fmt.Sprintf(once, "$1::bigint"), 1+n.Add(1)*7919%40000); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return float64(n.Load()) / time.Since(began).Seconds(), err
}
