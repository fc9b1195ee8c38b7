package closing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

// fault is one way in which a part of the platform goes wrong.
type fault struct {
	kind   string
	family string // that the decision must name while it lasts
	reason string // the same, where only this one will do
	down   bool   // the database itself is away, so that nobody can be asked
	silent bool   // nobody can write that it closed: the decision runs out

	prepare func(context.Context, *lane) (undo func(context.Context) error, err error) // nil: nothing to prepare
	strike  func(context.Context, *lane) error
	heal    func(context.Context, *lane) error
}

// skipped says why a kind cannot be tried on this machine.
type skipped string

func (s skipped) Error() string { return string(s) }

// faults is every kind. What needs room or another server comes first, while a lane is fresh.
func faults() []fault {
	return []fault{
		{kind: "disk_full", silent: true, prepare: ownDisk, strike: fillDisk, heal: emptyDisk},
		{kind: "clock_skew", family: "clock", prepare: ownClock, strike: stepClock, heal: setClock},
		{kind: "postgres_stopped", down: true, strike: func(ctx context.Context, l *lane) error { return l.stack.Postgres().Stop(ctx) }, heal: startPostgres},
		{kind: "postgres_killed", down: true, strike: func(_ context.Context, l *lane) error { l.stack.Postgres().Kill(); return nil }, heal: startPostgres},
		{kind: "postgres_read_only", silent: true, strike: readOnly, heal: writable},
		{kind: "nats_killed", family: "queue", strike: func(_ context.Context, l *lane) error { l.stack.Kill("nats"); return nil }, heal: startQueue},
		{kind: "stream_deleted", family: "queue", reason: "settings", strike: deleteStream, heal: repairQueue},
		{kind: "consumer_deleted", family: "queue", reason: "settings", strike: deleteConsumer, heal: repairQueue},
		{kind: "sync_always_off", family: "queue", reason: "settings", strike: lazyQueue, heal: restartQueue},
		{kind: "guard_killed", family: "guards", strike: func(_ context.Context, l *lane) error { l.stack.Kill("guard"); return nil },
			heal: func(_ context.Context, l *lane) error { return l.stack.StartGuard() }},
		lying("guard_protocol", func(r *api.Report) { r.Protocol++ }),
		lying("guard_model", func(r *api.Report) { r.Models = []string{encode(foreignModel)} }),
		lying("guard_dataset", func(r *api.Report) { r.Datasets = []string{encode(foreignDataset)} }),
		{kind: "attestation_keys_gone", family: "attestation", strike: func(_ context.Context, l *lane) error { l.stack.Kill("issuer"); return nil },
			heal: func(_ context.Context, l *lane) error { return l.stack.StartIssuer() }},
		{kind: "profile_removed", family: "attestation", reason: "profile", strike: retireProfile, heal: nextRequirement},
		{kind: "signing_broken", family: "signing", strike: moveKeys(false), heal: moveKeys(true)},
		{kind: "webhook_gone", family: "approvals", reason: "unreachable", strike: func(_ context.Context, l *lane) error { l.stack.StopHook(); return nil },
			heal: func(ctx context.Context, l *lane) error { return l.stack.StartHook(ctx) }},
		{kind: "report_frozen", family: "queue", strike: signal(syscall.SIGSTOP, "scheduler"), heal: signal(syscall.SIGCONT, "scheduler")},
		{kind: "evaluators_stopped", silent: true, strike: signal(syscall.SIGSTOP, "replica-a", "replica-b"), heal: signal(syscall.SIGCONT, "replica-a", "replica-b")},
	}
}

// lying is a guard whose reports tell of something that no requirement lists.
func lying(kind string, lie func(*api.Report)) fault {
	tell := func(lie func(*api.Report)) func(context.Context, *lane) error {
		return func(_ context.Context, l *lane) error { l.meter.tell(lie); return nil }
	}
	return fault{kind: kind, family: "guards", reason: "incompatible", strike: tell(lie), heal: tell(nil)}
}

func signal(s syscall.Signal, names ...string) func(context.Context, *lane) error {
	return func(_ context.Context, l *lane) (all error) {
		for _, name := range names {
			all = errors.Join(all, l.stack.Signal(name, s))
		}
		return all
	}
}

// startPostgres starts it again. Whoever asks it next asks on a new connection.
func startPostgres(ctx context.Context, l *lane) error {
	err := l.stack.Postgres().Restart(ctx)
	l.admin.Reset()
	return err
}

func readOnly(ctx context.Context, l *lane) error {
	return l.execute(ctx, `ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
}

func writable(ctx context.Context, l *lane) error {
	return l.execute(ctx, `ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`)
}

// execute runs statements as superuser.
func (l *lane) execute(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := l.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// The queue.

func startQueue(ctx context.Context, l *lane) error { return l.stack.StartQueue(ctx, false) }

func lazyQueue(ctx context.Context, l *lane) error {
	l.stack.Kill("nats")
	return l.stack.StartQueue(ctx, true)
}

func restartQueue(ctx context.Context, l *lane) error {
	l.stack.Kill("nats")
	return l.stack.StartQueue(ctx, false)
}

func repairQueue(ctx context.Context, l *lane) error { return l.stack.RepairQueue(ctx) }

func deleteStream(ctx context.Context, l *lane) error {
	return l.withQueue(func(js jetstream.JetStream) error { return js.DeleteStream(ctx, natsqueue.Stream) })
}

func deleteConsumer(ctx context.Context, l *lane) error {
	consumer, err := l.stack.Consumer(ctx, "bookkeeper")
	if err != nil {
		return err
	}
	return l.withQueue(func(js jetstream.JetStream) error { return js.DeleteConsumer(ctx, natsqueue.Stream, consumer) })
}

func (l *lane) withQueue(f func(jetstream.JetStream) error) error {
	conn, err := nats.Connect(l.stack.BreakerURL(), nats.NoReconnect(), nats.Timeout(answerIn))
	if err != nil {
		return errors.New("the queue cannot be reached by who breaks it") // the URL holds a password
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	return f(js)
}

// Keys and profiles.

func moveKeys(back bool) func(context.Context, *lane) error {
	return func(_ context.Context, l *lane) error {
		from, to := l.stack.Path("keys", "bundle"), l.stack.Path("keys", "away")
		if back {
			from, to = to, from
		}
		return os.Rename(from, to)
	}
}

func retireProfile(ctx context.Context, l *lane) error {
	return l.stack.Retire(ctx, fmt.Sprintf("AttestationProfile/spare-%d", l.spare))
}

// nextRequirement registers another spare profile, because what is retired stays so, and requires that one.
func nextRequirement(ctx context.Context, l *lane) error {
	l.spare++
	workloads, _ := l.stack.Issuers()
	if err := l.stack.Apply(ctx, "closing-profile.yaml", profile(workloads, l.spare)); err != nil {
		return err
	}
	return l.stack.Apply(ctx, "closing-requirement.yaml", requirement(l.spare))
}

// The disk that the audit log is on, and the clock.

const (
	diskOptions = "size=64m,mode=0700"
	auditDisk   = "audit-disk" // where it is mounted; the replicas look whether it has room
	ballast     = "ballast"
)

// ownDisk moves the audit log to a small file system of its own.
func ownDisk(ctx context.Context, l *lane) (func(context.Context) error, error) {
	if os.Geteuid() != 0 {
		return nil, skipped("only root can mount a file system to be filled")
	}
	dir := l.stack.Path(auditDisk)
	if err := mount(dir); err != nil {
		return nil, skipped(fmt.Sprintf("a tmpfs cannot be mounted: %v", err))
	}
	undo := func(ctx context.Context) error {
		return errors.Join(l.execute(ctx, `ALTER TABLE nw.audit SET TABLESPACE pg_default`, `CHECKPOINT`, `DROP TABLESPACE IF EXISTS audit_disk`), unmount(dir))
	}
	if err := l.stack.Postgres().Own(dir); err != nil {
		return nil, errors.Join(err, unmount(dir))
	}
	if err := l.execute(ctx, `CREATE TABLESPACE audit_disk LOCATION '`+dir+`'`, `ALTER TABLE nw.audit SET TABLESPACE audit_disk`); err != nil {
		return nil, errors.Join(err, undo(ctx))
	}
	return undo, nil
}

// fillDisk writes until there is no room left for a block.
func fillDisk(_ context.Context, l *lane) error {
	f, err := os.Create(l.stack.Path(auditDisk, ballast))
	if err != nil {
		return err
	}
	block := make([]byte, 1<<16)
	for err == nil {
		if _, err = f.Write(block); errors.Is(err, syscall.ENOSPC) && len(block) > 4096 {
			block, err = block[:4096], nil
		}
	}
	if err = errors.Join(err, f.Close()); errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

func emptyDisk(_ context.Context, l *lane) error { return os.Remove(l.stack.Path(auditDisk, ballast)) }

const (
	libfaketime = "/usr/lib/*/faketime/libfaketime.so.1" // Debian's package faketime
	skew        = 5                                      // seconds, well above the replicas' bound
)

// ownClock starts PostgreSQL again with a clock that can be set.
func ownClock(ctx context.Context, l *lane) (func(context.Context) error, error) {
	found, err := filepath.Glob(libfaketime)
	if err != nil || len(found) == 0 {
		return nil, skipped("libfaketime is not installed (Debian: apt-get install faketime)")
	}
	if err := setClock(ctx, l); err != nil {
		return nil, err
	}
	restart := func(ctx context.Context, env ...string) error {
		l.stack.Postgres().SetEnv(env...)
		return startPostgres(ctx, l)
	}
	undo := func(ctx context.Context) error { return restart(ctx) }
	// Each server process looks at the file once a second, so that their clocks
	// differ for a moment. At every look at the clock would be too often: a signal
	// handler looks too, and a library that reads a file in one breaks the process.
	return undo, restart(ctx, "LD_PRELOAD="+found[0], "FAKETIME_TIMESTAMP_FILE="+l.stack.Path("clock"), "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
}

// stepClock goes ahead and back in turns.
func stepClock(_ context.Context, l *lane) error {
	l.steps++
	by := skew
	if l.steps%2 == 0 {
		by = -skew
	}
	return l.writeClock(by)
}

func setClock(_ context.Context, l *lane) error { return l.writeClock(0) }

// writeClock puts the file in its place whole.
func (l *lane) writeClock(seconds int) error {
	next := l.stack.Path("clock.next")
	text := strconv.Itoa(seconds)
	if seconds >= 0 {
		text = "+" + text
	}
	if err := os.WriteFile(next, []byte(text+"\n"), 0o644); err != nil { //nolint:gosec // PostgreSQL runs as another account
		return err
	}
	return os.Rename(next, l.stack.Path("clock"))
}

// down is longer than a decision is valid, so that one which was open when the database went away has run out when it is back.
const down = 2500 * time.Millisecond

// injection is what one fault did.
type injection struct {
	admitted time.Duration  // from the fault to the last admission before the close, answered
	applied  time.Duration  // and to the last effect before the close, applied
	reopened time.Duration  // from the healing to the opening
	late     int            // admissions between the close and the opening
	verbs    map[string]int // of those
}

const (
	closeWithin = 20 * time.Second
	strikeIn    = 30 * time.Second
)

// try injects one kind n times. An error is a fault that did not close, did not
// heal, or was counted wrongly.
func (l *lane) try(ctx context.Context, f fault, n int) (done []injection, err error) {
	if f.prepare != nil {
		undo, unable := f.prepare(ctx, l)
		if unable != nil {
			return nil, unable
		}
		defer func() { err = errors.Join(err, undo(context.WithoutCancel(ctx)), l.waitOpen(ctx)) }()
	}
	for i := range n {
		one, failed := l.inject(ctx, f)
		if failed != nil {
			return done, fmt.Errorf("%s: %w", f.kind, failed)
		}
		l.say("%-21s %2d of %d: last admitted after %5.0f ms, last applied after %5.0f ms, %d after the close; open again %4.1f s after healing",
			f.kind, i+1, n, milli(one.admitted), milli(one.applied), one.late, one.reopened.Seconds())
		if one.late > 0 {
			l.say("%-21s admitted after the close, by verb: %v", f.kind, one.verbs)
		}
		done = append(done, one)
	}
	return done, nil
}

func (l *lane) inject(ctx context.Context, f fault) (one injection, err error) {
	if err := l.steady(ctx); err != nil {
		return one, err
	}
	l.meter.forget(time.Now().Add(-time.Minute))
	if _, err := l.count(ctx); err != nil { // what was before is not this one's
		return one, err
	}
	striking, cancel := context.WithTimeout(ctx, strikeIn)
	defer cancel()
	began := time.Now()
	if err := f.strike(striking, l); err != nil {
		return one, fmt.Errorf("the fault could not be brought about: %w", err)
	}
	if err := l.closed(ctx, f); err != nil {
		return one, err
	}
	healed := time.Now()
	if err := l.mend(ctx, f); err != nil {
		return one, err
	}
	opened, err := l.await(ctx, openWithin, "the opening", func(s state) bool { return s.open })
	if err != nil {
		return one, err
	}
	one.reopened = time.Since(healed)
	c, err := l.count(ctx)
	if err != nil {
		return one, err
	}
	one.late, one.verbs = c.late, c.lateVerb
	one.admitted = sinceFault(began, l.load.last(opened.epoch))
	one.applied = sinceFault(began, l.meter.latest(c.last))
	if f.down && one.admitted > down {
		return one, errors.New("a decision of before the outage admitted after it")
	}
	return one, c.sound()
}

// sound says whether what was counted makes sense beside the counts that are told.
func (c counted) sound() error {
	switch {
	case len(c.wrong) > 0:
		return fmt.Errorf("the decision went wrong: %v", c.wrong)
	case c.closes == 0:
		return errors.New("nothing was closed")
	}
	return nil
}

// sinceFault is 0 for what was over before the fault.
func sinceFault(fault, last time.Time) time.Duration { return max(0, last.Sub(fault)) }

// closed waits for the close. Where nobody can write it, it is marked. A database
// that is away is left so until a decision of before has run out.
func (l *lane) closed(ctx context.Context, f fault) error {
	if f.down {
		if !until(ctx, time.Now().Add(down)) {
			return ctx.Err()
		}
		return nil
	}
	if f.silent {
		if _, err := l.await(ctx, closeWithin, "the close", func(s state) bool { return !s.open }); err != nil {
			return err
		}
		return l.seal(ctx)
	}
	_, err := l.await(ctx, closeWithin, "a close because of "+f.family+" "+f.reason, func(s state) bool {
		return s.closed && s.family == f.family && (f.reason == "" || s.reason == f.reason)
	})
	return err
}

// mend heals. The first thing that a database does which is back is to be marked.
func (l *lane) mend(ctx context.Context, f fault) error {
	ctx, cancel := context.WithTimeout(ctx, strikeIn)
	defer cancel()
	if err := f.heal(ctx, l); err != nil {
		return fmt.Errorf("it could not be healed: %w", err)
	}
	if !f.down {
		return nil
	}
	return l.seal(ctx)
}
