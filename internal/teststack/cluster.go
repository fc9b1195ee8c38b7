package teststack

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/migrations"
)

// template is the migrated database that every test's database is cloned from.
const template = "nw_template"

// scratch trades durability for speed: these clusters outlive no test run. A
// killed server loses nothing by it; only a power cut would. And nobody vacuums
// databases that end with their tests, nor starts processes to read them in parallel.
var scratch = with(durable, map[string]string{"fsync": "off", "full_page_writes": "off", "autovacuum": "off", "max_parallel_workers_per_gather": "0"})

// durable is what a server for production would be, but for its size.
var durable = map[string]string{"max_connections": "200", "shared_buffers": "64MB", "max_wal_size": "512MB", "jit": "off"}

func with(settings, more map[string]string) map[string]string {
	all := maps.Clone(settings)
	maps.Copy(all, more)
	return all
}

// cluster is a running copy of the cached cluster.
type cluster struct {
	dir      *scratchDir
	postgres *localstack.Postgres
	password string // of the owner and of every process role
	admin    *pgxpool.Pool
}

// startCluster copies the cached cluster, which it makes when there is none for
// this server and these migrations, and starts the copy.
func startCluster(ctx context.Context, settings map[string]string) (*cluster, error) {
	parent := os.TempDir()
	if settings["fsync"] == "off" {
		parent = inMemory()
	}
	dir, err := copyCached(ctx, parent)
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, password: rand.Text()}
	c.postgres, err = localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: dir.path, Settings: settings})
	if err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	c.admin, err = pg.Open(ctx, pg.Config{URL: c.postgres.AdminURL("postgres"), MaxConns: 4, Name: "teststack"})
	if err == nil {
		err = c.setPasswords(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// setPasswords lets the roles log in: the migrations make them without a password.
// The superuser keeps its own.
func (c *cluster) setPasswords(ctx context.Context) error {
	admin, err := url.Parse(c.postgres.AdminURL("postgres"))
	if err != nil {
		return err
	}
	supers, _ := admin.User.Password()
	return c.execute(ctx, fmt.Sprintf(`DO $$ DECLARE r record; BEGIN
	FOR r IN SELECT rolname, rolsuper FROM pg_roles WHERE rolcanlogin LOOP
		EXECUTE format('ALTER ROLE %%I PASSWORD %%L', r.rolname, CASE WHEN r.rolsuper THEN '%s' ELSE '%s' END);
	END LOOP; END $$`, verifier(supers), verifier(c.password)))
}

// verifier is what a server keeps of a password for SCRAM-SHA-256 (RFC 5803), with
// one iteration: nobody guesses these passwords, and a client computes all
// iterations anew for each of a suite's thousands of connections.
func verifier(password string) string {
	const iterations = 1
	salt := make([]byte, 16)
	_, _ = rand.Read(salt)
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		panic(err) // only for sizes that are wrong
	}
	stored := sha256.Sum256(mac(salted, "Client Key"))
	text := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, text(salt), text(stored[:]), text(mac(salted, "Server Key")))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func (c *cluster) stop() error {
	if c.admin != nil {
		c.admin.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	return errors.Join(c.postgres.Stop(ctx), c.dir.remove())
}

// execute runs one statement as the superuser.
func (c *cluster) execute(ctx context.Context, statement string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	_, err := c.admin.Exec(ctx, statement)
	return err
}

// buildTemplate makes a cluster in dir that holds the migrated template, and
// stops it. The migrations run as an owner who is no superuser.
func buildTemplate(ctx context.Context, dir string) error {
	p, err := localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: dir, Settings: scratch})
	if err != nil {
		return err
	}
	return errors.Join(migrateTemplate(ctx, p), p.Stop(ctx))
}

func migrateTemplate(ctx context.Context, p *localstack.Postgres) error {
	password := rand.Text()
	err := execute(ctx, p,
		fmt.Sprintf("CREATE ROLE %s LOGIN CREATEROLE PASSWORD '%s'", Owner, password),
		fmt.Sprintf("CREATE DATABASE %s OWNER %s", template, Owner))
	if err != nil {
		return err
	}
	if err := migrations.Up(ctx, p.URL(Owner, password, template)); err != nil {
		return fmt.Errorf("migrating the template: %w", err)
	}
	// Nobody connects to the template any more, so that it can always be cloned.
	return execute(ctx, p, "ALTER DATABASE "+template+" WITH IS_TEMPLATE true ALLOW_CONNECTIONS false")
}

// execute runs statements as the superuser on a connection of its own.
func execute(ctx context.Context, p *localstack.Postgres, statements ...string) error {
	conn, err := pgx.Connect(ctx, p.AdminURL("postgres"))
	if err != nil {
		return err
	}
	for _, statement := range statements {
		if _, err = conn.Exec(ctx, statement); err != nil {
			break
		}
	}
	return errors.Join(err, conn.Close(ctx))
}
