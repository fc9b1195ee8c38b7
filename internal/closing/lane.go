package closing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/fsck"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// lane is one stack under load, with everything that measures it.
type lane struct {
	stack  *demo.Stack
	say    func(format string, args ...any)
	admin  *pgxpool.Pool // as superuser, who may write while everybody else must not
	meter  *meter
	load   *load
	order  order
	lsn    int64 // of the last commit that was counted
	spare  int   // the spare attestation profile that is registered now
	steps  int   // of the database's clock
	stop   context.CancelFunc
	loaded sync.WaitGroup
}

const (
	lease      = 2 * time.Second // of the workers' runs, so that they are soon over a close
	tasks      = 5               // that fire every second
	openWithin = 2 * time.Minute
	slot       = "closing"
)

// newLane starts a stack and its guard, and makes the tasks. The slot stands before the gate has ever opened.
func newLane(ctx context.Context, binary, dir string, say func(string, ...any)) (l *lane, err error) {
	if err := errors.Join(os.Mkdir(dir, 0o711), os.Mkdir(filepath.Join(dir, auditDisk), 0o700)); err != nil { //nolint:gosec // passable: PostgreSQL runs as another account
		return nil, err
	}
	private := func(string) string { return "" } // what is broken here is nobody else's
	stack, err := demo.New(demo.Options{Binary: binary, Dir: dir, Env: private, Lease: lease, Broken: &demo.Broken{Disk: filepath.Join(dir, auditDisk)}})
	if err != nil {
		return nil, err
	}
	l = &lane{stack: stack, say: say, spare: 1, stop: func() {}}
	for _, step := range []func(context.Context) error{stack.Start, l.connect, l.follow, l.register, stack.StartRest, l.waitOpen, l.startWorkers, l.consent, l.hold} {
		if err := step(ctx); err != nil {
			return l, fmt.Errorf("%w (logs are in %s)", err, stack.Path("logs"))
		}
	}
	return l, nil
}

// close ends the load and the stack.
func (l *lane) close() {
	l.rest()
	if l.meter != nil {
		l.meter.close()
	}
	for _, p := range []*pgxpool.Pool{l.admin, l.pool()} {
		if p != nil {
			p.Close()
		}
	}
	l.stack.Stop()
}

func (l *lane) pool() *pgxpool.Pool {
	if l.load == nil {
		return nil
	}
	return l.load.pool
}

// connect opens the superuser's pool. Its sessions stay writable when the server is set to read-only.
func (l *lane) connect(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(l.stack.Databases()[0])
	if err != nil {
		return err
	}
	config.MaxConns = 4
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "off"
	l.admin, err = pgxpool.NewWithConfig(ctx, config)
	return err
}

// follow makes the slot from which the order of commits is read.
func (l *lane) follow(ctx context.Context) error {
	_, err := l.admin.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, slot)
	return err
}

// register applies the registry, with a second guard that is served by this process.
func (l *lane) register(ctx context.Context) error {
	if err := l.stack.Register(ctx); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	workloads, _ := l.stack.Issuers()
	uri := "http://" + listener.Addr().String() + "/meter"
	if err := l.stack.Apply(ctx, "closing-registry.yaml", registry(workloads, uri, l.spare)); err != nil {
		return errors.Join(err, listener.Close())
	}
	if err := l.stack.Apply(ctx, "closing-requirement.yaml", requirement(l.spare)); err != nil {
		return errors.Join(err, listener.Close())
	}
	l.meter, err = startMeter(ctx, listener, uri, l.stack.Origin(), l.stack.ResourceURL(), l.assertion, slog.New(slog.DiscardHandler))
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return nil
}

// assertion is a fresh token of the meter's pod.
func (l *lane) assertion(context.Context) (string, error) {
	file := l.stack.Path("tokens", "meter")
	if err := l.stack.RenewToken(dev.Account{Namespace: "guards", Name: "meter", Pod: "meter-1", File: file}); err != nil {
		return "", err
	}
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

var workers = []string{"worker-1", "worker-2"}

func (l *lane) startWorkers(context.Context) error {
	for _, w := range workers {
		if err := l.stack.StartWorker(w, l.meter.uri); err != nil {
			return err
		}
	}
	return nil
}

// consent applies the tasks and has their owner agree to each.
func (l *lane) consent(ctx context.Context) error {
	_, people := l.stack.Issuers()
	if err := l.whenOpen(ctx, func() error { return l.stack.Apply(ctx, "closing-tasks.yaml", taskDocuments(people)) }); err != nil {
		return err
	}
	return l.whenOpen(ctx, func() error { return l.stack.ConsentToAll(ctx) })
}

// whenOpen does something that needs an open gate, again when the gate has closed meanwhile: a busy machine may do that.
func (l *lane) whenOpen(ctx context.Context, f func() error) error {
	for {
		if err := l.waitOpen(ctx); err != nil {
			return err
		}
		if err := f(); err == nil || !strings.Contains(err.Error(), string(api.AdmissionClosed)) {
			return err
		}
	}
}

// hold claims the runs that the direct load renews, when they have been planned.
func (l *lane) hold(ctx context.Context) error {
	pool, err := pg.Open(ctx, pg.Config{URL: l.stack.RoleURL("authority"), MaxConns: holders, Name: "nightwarrant-closing"})
	if err != nil {
		return err
	}
	l.load = &load{pool: pool, granted: map[int64]time.Time{}, opened: make(chan struct{})}
	_, people := l.stack.Issuers()
	role, member := canonical.Digest(canonical.DomainName, []byte("holder")), canonical.Digest(canonical.DomainMember, []byte(people), []byte(demo.Member))
	for {
		var runs [][]byte
		var profiles []int64
		err := l.admin.QueryRow(ctx, `SELECT array_agg(r.ref) FILTER (WHERE r.state = 'queued'), (SELECT array_agg(p.profile_id) FROM nw.role_profiles p WHERE p.role_id = g.id)
			FROM nw.registry g LEFT JOIN nw.runs r ON r.role_id = g.id WHERE g.kind = 'workload_role' AND g.name = $1 GROUP BY g.id`, role[:]).Scan(&runs, &profiles)
		if err != nil {
			return err
		}
		for _, run := range runs {
			h, verdict, err := takeHold(ctx, pool, run, profiles, member[:])
			if err != nil || verdict != "ok" && verdict != "admission_closed" {
				return errors.Join(err, fmt.Errorf("a run that is to be held was refused: %s", verdict))
			}
			if verdict == "ok" {
				l.load.holds = append(l.load.holds, h)
			}
		}
		if len(l.load.holds) == holders {
			return nil
		}
		if !until(ctx, time.Now().Add(100*time.Millisecond)) {
			return fmt.Errorf("%d of %d runs could be held: %w", len(l.load.holds), holders, ctx.Err())
		}
	}
}

// drive begins the load; rest ends it.
func (l *lane) drive(ctx context.Context, how func(context.Context)) {
	ctx, l.stop = context.WithCancel(ctx)
	l.loaded.Go(func() { how(ctx) })
}

func (l *lane) rest() {
	l.stop()
	l.loaded.Wait()
}

// state is the decision's row as an admission reads it: open, closed, or neither when it has run out.
type state struct {
	open, closed   bool
	epoch          int64
	family, reason string
}

func (l *lane) state(ctx context.Context) (s state, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	err = l.admin.QueryRow(ctx, `SELECT state = 'open' AND NOT held AND valid_until > clock_timestamp(), state = 'closed', epoch, coalesce(family, ''), reason FROM nw.readiness_decision`).
		Scan(&s.open, &s.closed, &s.epoch, &s.family, &s.reason)
	return s, err
}

// await asks for the decision until f is content.
func (l *lane) await(ctx context.Context, limit time.Duration, what string, f func(state) bool) (s state, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if s, err = l.state(ctx); err == nil && f(s) {
			return s, nil
		}
		if !until(ctx, time.Now().Add(10*time.Millisecond)) {
			return s, errors.Join(fmt.Errorf("%s did not come about within %s; it is %+v", what, limit, s), err)
		}
	}
}

func (l *lane) waitOpen(ctx context.Context) error {
	_, err := l.await(ctx, openWithin, "an open gate", func(s state) bool { return s.open })
	return err
}

// steady waits until everything is admitted and applied again, and then for a
// moment that has nothing to do with when anybody reports.
func (l *lane) steady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	phase := time.Duration(rand.Int64N(int64(time.Second))) //nolint:gosec // no secret
	for quiet := time.Now(); time.Since(quiet) < phase; {
		s, err := l.state(ctx)
		admitted, applied := time.Since(l.load.last(s.epoch+1)), time.Since(l.meter.latest(math.MaxInt64))
		if err != nil || !s.open || admitted > 200*time.Millisecond || applied > time.Second {
			quiet = time.Now()
		}
		if !until(ctx, time.Now().Add(20*time.Millisecond)) {
			return errors.Join(fmt.Errorf("admissions and effects do not go on: it is %+v, the last one was admitted %s and applied %s ago", s, admitted, applied), l.load.lastRefusal(), err)
		}
	}
	return nil
}

// seal marks the point after which nothing can be admitted before the next
// opening: alone at the gate, and sure that it is not open.
func (l *lane) seal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return pgx.BeginFunc(ctx, l.admin, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(nw.gate_key())`); err != nil {
			return err
		}
		var open bool
		if err := tx.QueryRow(ctx, `SELECT open FROM nw.decision()`).Scan(&open); err != nil || open {
			return errors.Join(err, errors.New("the gate is open"))
		}
		_, err := tx.Exec(ctx, `SELECT pg_logical_emit_message(true, $1, $2)`, markPrefix, markSealed)
		return err
	})
}

// count reads what was committed since the last look, in that order. After a
// crash the slot tells some of it again.
func (l *lane) count(ctx context.Context) (c counted, err error) {
	rows, err := l.admin.Query(ctx, `SELECT (lsn - '0/0'::pg_lsn)::bigint, data FROM pg_logical_slot_get_changes($1, pg_current_wal_lsn(), NULL, 'include-xids', '0')
		WHERE data LIKE ANY (ARRAY['BEGIN%', 'COMMIT%', 'table nw.audit:%', 'table nw.readiness_decision:%', 'message:%'])`, slot)
	if err != nil {
		return c, err
	}
	defer rows.Close()
	var transaction []string
	for rows.Next() {
		var lsn int64
		var line string
		if err := rows.Scan(&lsn, &line); err != nil {
			return c, err
		}
		transaction = append(transaction, line)
		if !strings.HasPrefix(line, "COMMIT") {
			continue
		}
		if lsn > l.lsn {
			l.lsn = lsn
			for _, line := range transaction {
				if err := l.order.take(line); err != nil {
					return c, err
				}
			}
		}
		transaction = transaction[:0]
	}
	return l.order.look(), rows.Err()
}

// check is the database's own account of itself.
func (l *lane) check(ctx context.Context) (string, error) {
	violations, err := fsck.Check(ctx, l.stack.Databases()[0])
	if err != nil || len(violations) == 0 {
		return "ok", err
	}
	text, err := json.Marshal(violations)
	return string(text), err
}
