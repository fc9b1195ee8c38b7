package localstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgconn"
)

// Standby copies the running cluster into dir and starts the copy as a
// streaming standby that calls itself name. Roles and passwords are the
// primary's; who waits for whom is up to the caller's settings. ctx bounds the
// copy and the start only.
func (p *Postgres) Standby(ctx context.Context, dir, name string) (_ *Postgres, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	s := &Postgres{options: PostgresOptions{Dir: dir, Settings: p.options.Settings}, binaries: p.binaries, account: p.account}
	if s.sockets, err = socketDir(dir); err != nil {
		return nil, err
	}
	if err := s.copyOf(ctx, p, name); err != nil {
		return nil, fmt.Errorf("copy the primary: %w", err)
	}
	if err := s.start(ctx, os.O_APPEND); err != nil {
		return nil, err
	}
	return s, nil
}

// copyOf fills the directory with pg_basebackup, which also writes down where
// the primary is. The data appear under their name only when they are complete.
func (s *Postgres) copyOf(ctx context.Context, primary *Postgres, name string) error {
	if err := os.MkdirAll(s.options.Dir, s.account.passable()); err != nil {
		return err
	}
	if err := os.Chmod(s.options.Dir, s.account.passable()); err != nil {
		return err
	}
	if err := os.WriteFile(s.path("superuser"), []byte(primary.password), 0o600); err != nil {
		return err
	}
	fresh := s.path("data.new")
	if err := errors.Join(s.account.own(s.path("superuser")), s.account.mkdir(fresh)); err != nil {
		return err
	}
	log, err := os.OpenFile(s.path("postgres.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the program has its own handle
	source := fmt.Sprintf("host=%s port=%s user=%s application_name=%s", primary.sockets, port, Superuser, name)
	cmd := s.command(log, "pg_basebackup", "--pgdata="+fresh, "--dbname="+source, "--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync")
	cmd.Env = append(cmd.Env, "PGPASSWORD="+primary.password)
	if err := s.explain(run(ctx, cmd)); err != nil {
		return err
	}
	return os.Rename(fresh, s.path("data"))
}

// Promote makes a standby a primary, on a timeline of its own, and returns when
// it is one.
func (p *Postgres) Promote(ctx context.Context) error {
	conn, err := pgconn.Connect(ctx, p.AdminURL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is pending on it
	results, err := conn.Exec(ctx, "SELECT pg_promote()").ReadAll()
	if err == nil && string(results[0].Rows[0][0]) != "t" {
		err = errors.New("the standby was not promoted in time")
	}
	return err
}

// ErrRunning says that the data of a running cluster cannot be copied or replaced.
var ErrRunning = errors.New("the cluster runs")

// Save keeps a copy of a stopped cluster's data, in place of an earlier one.
func (p *Postgres) Save(ctx context.Context) error { return p.copyData(ctx, "data", "saved") }

// Restore puts the data of a stopped cluster back as they were saved.
func (p *Postgres) Restore(ctx context.Context) error { return p.copyData(ctx, "saved", "data") }

func (p *Postgres) copyData(ctx context.Context, from, to string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return ErrRunning
	}
	if _, err := os.Stat(p.path(from)); err != nil {
		return err
	}
	if err := os.RemoveAll(p.path(to)); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", p.path(from), p.path(to)).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", filepath.Base(from), err, out)
	}
	return nil
}
