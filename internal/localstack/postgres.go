package localstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Superuser is the role that initdb makes; its password lives in Dir.
const Superuser = "postgres"

const (
	port         = "5432"          // names the socket file; nothing listens on TCP
	startTimeout = 2 * time.Minute // a first start on a slow disk
	pollEvery    = 20 * time.Millisecond
	// maxSocketDir is sun_path's 107 bytes less "/.s.PGSQL.5432".
	maxSocketDir = 107 - len("/.s.PGSQL."+port)
)

// ErrUnreachable says that the account which runs PostgreSQL cannot enter Dir.
var ErrUnreachable = errors.New("the directory cannot be entered by the account that runs PostgreSQL: choose one whose parents everybody may pass")

// PostgresOptions says where a private cluster lives.
type PostgresOptions struct {
	// Dir keeps the data, the log and the superuser's password. It is made when
	// absent and used as it is when present.
	Dir string
	// Settings are added to the command line, over the defaults.
	Settings map[string]string
	// Env is added to the server's otherwise empty environment.
	Env []string
}

// Postgres is one private cluster. Its methods may be called from any goroutine.
type Postgres struct {
	options  PostgresOptions
	binaries string
	account  *account
	sockets  string
	password string

	mu      sync.Mutex
	server  *process // nil while stopped
	dirLock *os.File // inherited by the server: held until the last of its processes is gone
}

// StartPostgres makes the cluster in Dir unless it is there, starts it and
// returns when it answers. ctx bounds the start only. Errors: ErrNoPostgres,
// ErrUnreachable, and whatever PostgreSQL's log says.
func StartPostgres(ctx context.Context, options PostgresOptions) (*Postgres, error) {
	binaries, _, err := FindPostgres()
	if err != nil {
		return nil, err
	}
	account, err := serviceAccount()
	if err != nil {
		return nil, err
	}
	if options.Dir, err = filepath.Abs(options.Dir); err != nil {
		return nil, err
	}
	p := &Postgres{options: options, binaries: binaries, account: account}
	if p.sockets, err = socketDir(options.Dir); err != nil {
		return nil, err
	}
	if err := p.start(ctx, os.O_TRUNC); err != nil {
		return nil, err
	}
	return p, nil
}

// socketDir names a directory short enough for a Unix socket.
func socketDir(dir string) (string, error) {
	sockets := filepath.Join(dir, "run")
	if len(sockets) <= maxSocketDir && !strings.ContainsAny(sockets, `,"`) {
		return sockets, nil
	}
	return os.MkdirTemp("/tmp", "nightwarrant-")
}

// Restart stops the cluster if it runs and starts it again; URLs stay valid.
func (p *Postgres) Restart(ctx context.Context) error {
	if err := p.Stop(ctx); err != nil {
		return err
	}
	return p.start(ctx, os.O_APPEND)
}

// SetEnv is what the server's environment has besides, from its next start on.
func (p *Postgres) SetEnv(env ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.options.Env = env
}

// Own hands a path to the account that runs the server.
func (p *Postgres) Own(path string) error { return p.account.own(path) }

// Stop ends all sessions, writes everything out and returns when the server is
// gone. When ctx ends first the server is killed and the error says so.
func (p *Postgres) Stop(ctx context.Context) error {
	return p.end(func(server *process) error {
		if err := server.stop(ctx, syscall.SIGINT); err != nil {
			return fmt.Errorf("PostgreSQL %w", err)
		}
		return nil
	})
}

// Kill ends every process of the cluster at once, as a crash does.
func (p *Postgres) Kill() {
	_ = p.end(func(server *process) error { server.kill(); return nil })
}

func (p *Postgres) end(how func(*process) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return nil
	}
	err := how(p.server)
	p.server = nil
	p.release()
	return err
}

// release gives up what start took; data, log and password stay.
func (p *Postgres) release() {
	_ = os.RemoveAll(p.sockets)
	_ = p.dirLock.Close()
}

// AdminURL is the superuser's URL for a database.
func (p *Postgres) AdminURL(database string) string {
	return p.URL(Superuser, p.password, database)
}

// URL is a pgx URL over the cluster's socket.
func (p *Postgres) URL(user, password, database string) string {
	query := url.Values{"host": {p.sockets}, "port": {port}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Path: "/" + database, RawQuery: query.Encode()}
	return u.String()
}

func (p *Postgres) path(name string) string { return filepath.Join(p.options.Dir, name) }

// start takes the directory, makes what is missing and runs the server.
func (p *Postgres) start(ctx context.Context, logFlag int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.enterDir(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.release()
		}
	}()
	log, err := os.OpenFile(p.path("postgres.log"), os.O_CREATE|os.O_WRONLY|logFlag, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the server has its own handle
	if err := p.ensureCluster(ctx, log); err != nil {
		return err
	}
	return p.launch(ctx, log)
}

// enterDir makes Dir and locks it against another process.
func (p *Postgres) enterDir(ctx context.Context) error {
	if err := os.MkdirAll(p.options.Dir, p.account.passable()); err != nil {
		return err
	}
	if err := os.Chmod(p.options.Dir, p.account.passable()); err != nil {
		return err
	}
	lock, err := lockFile(ctx, p.path("lock"))
	if err != nil {
		return fmt.Errorf("%s %w: %w", p.options.Dir, ErrInUse, err)
	}
	p.dirLock = lock
	_ = os.RemoveAll(p.sockets)
	if err := p.account.mkdir(p.sockets); err != nil {
		p.release()
		return err
	}
	return nil
}

// lockTimeout covers the end of a server whose owner was killed just before.
const lockTimeout = 10 * time.Second

// lockFile takes an exclusive lock that ends with the last holder of the file.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if err := poll(ctx, func() (bool, error) { return locked(file), nil }); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func locked(file *os.File) bool {
	return syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// ErrInUse says that another process has locked a directory.
var ErrInUse = errors.New("is in use by another process")

// Lock takes a directory for this process, until it ends or closes what it got. It does not wait: ErrInUse.
func Lock(dir string) (io.Closer, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if !locked(file) {
		_ = file.Close()
		return nil, fmt.Errorf("%s %w", dir, ErrInUse)
	}
	return file, nil
}

// poll asks until the answer is yes or an error, or ctx ends.
func poll(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ensureCluster runs initdb unless the data are there, and reads the password.
// The data directory appears under its name only when it is complete.
func (p *Postgres) ensureCluster(ctx context.Context, log *os.File) error {
	_, err := os.Stat(p.path("data"))
	if errors.Is(err, fs.ErrNotExist) {
		err = p.initdb(ctx, log)
	}
	if err != nil {
		return err
	}
	password, err := os.ReadFile(p.path("superuser"))
	if err != nil {
		return fmt.Errorf("the superuser's password: %w", err)
	}
	p.password = strings.TrimSpace(string(password))
	return nil
}

func (p *Postgres) initdb(ctx context.Context, log *os.File) error {
	fresh := p.path("data.new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := p.account.mkdir(fresh); err != nil {
		return err
	}
	if err := os.WriteFile(p.path("superuser"), []byte(rand.Text()), 0o600); err != nil {
		return err
	}
	if err := p.account.own(p.path("superuser")); err != nil {
		return err
	}
	cmd := p.command(log, "initdb", "--pgdata="+fresh, "--username="+Superuser, "--pwfile="+p.path("superuser"),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums")
	if err := p.explain(run(ctx, cmd)); err != nil {
		return err
	}
	return os.Rename(fresh, p.path("data"))
}

func (p *Postgres) launch(ctx context.Context, log *os.File) error {
	cmd := p.command(log, "postgres", "-D", p.path("data"))
	for name, value := range p.settings() {
		cmd.Args = append(cmd.Args, "-c", name+"="+value)
	}
	cmd.ExtraFiles = []*os.File{p.dirLock}
	server, err := spawn(cmd)
	if err != nil {
		return p.explain(err)
	}
	if err := p.awaitAnswer(ctx, server); err != nil {
		server.kill()
		return p.explain(err)
	}
	p.server = server
	return nil
}

func (p *Postgres) settings() map[string]string {
	settings := map[string]string{
		"listen_addresses":        "",
		"port":                    port,
		"unix_socket_directories": p.sockets,
		"fsync":                   "on",
		"synchronous_commit":      "on",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		// Shared memory of parallel queries stays in Dir, where a crash leaves nothing behind.
		"dynamic_shared_memory_type": "mmap",
	}
	for name, value := range p.options.Settings {
		settings[name] = value
	}
	return settings
}

// command prepares a server program. It inherits no environment, so that no
// PGDATA or PGPORT of the caller reaches it.
func (p *Postgres) command(log *os.File, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.binaries, name), args...) //nolint:noctx // the process is ended by its owner
	cmd.Dir = p.options.Dir
	cmd.Env = append([]string{"PATH=" + p.binaries + ":/usr/bin:/bin", "LC_ALL=C"}, p.options.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = sysProcAttr(p.account)
	return cmd
}

// awaitAnswer returns when the superuser can log in.
func (p *Postgres) awaitAnswer(ctx context.Context, server *process) error {
	return poll(ctx, func() (bool, error) {
		select {
		case <-server.done:
			return false, fmt.Errorf("it ended while starting: %w", server.err)
		default:
		}
		conn, err := pgconn.Connect(ctx, p.AdminURL("postgres"))
		if err != nil {
			return false, refusedLogin(err)
		}
		return true, conn.Close(ctx)
	})
}

// refusedLogin keeps the errors that waiting does not heal: SQLSTATE class 28.
func refusedLogin(err error) error {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(refusal.Code, "28") {
		return refusal
	}
	return nil
}

// logTail is how many bytes of PostgreSQL's log go into an error.
const logTail = 1000

func (p *Postgres) explain(err error) error {
	if err == nil {
		return nil
	}
	if p.account != nil && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s as %s: %w", p.options.Dir, p.account.name, ErrUnreachable)
	}
	log, _ := os.ReadFile(p.path("postgres.log"))
	return fmt.Errorf("PostgreSQL in %s: %w: %s", p.options.Dir, err, log[max(0, len(log)-logTail):])
}
