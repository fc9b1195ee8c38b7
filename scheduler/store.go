package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// store calls the scheduler's verbs; each is one transaction and one round
// trip. An error says that the outcome is not known to be good, and nobody acts
// on it: the next tick sees what is there.
type store struct{ pool *pgxpool.Pool }

// kind is what a replica of this process registers as.
const kind = "scheduler"

const (
	acquireWithin = 2 * time.Second
	rowsWithin    = 5 * time.Second // far above the role's statement_timeout
)

// due is a task with a slot whose time has come, by the database's clock.
type due struct {
	Task         int64
	Revision     int64
	Next         time.Time // the slot
	Now          time.Time
	Body         []byte // of the task's document
	NotBefore    time.Time
	ConsentUntil time.Time
}

func (s store) due(ctx context.Context, limit int) ([]due, error) {
	return all[due](ctx, s.pool, `SELECT task_id, revision, next_at, db_now, body, not_before, consent_until FROM nw.due($1)`, limit)
}

// slot is what the timetable says about one nominal time, or about several when
// it covers more than one.
type slot struct {
	At     time.Time `json:"at"`
	Skip   string    `json:"skip,omitempty"`
	Covers int       `json:"covers,omitempty"`
}

// planned takes a task forward, if it still stands where it was read.
type planned struct {
	due   due
	slots []slot
	next  *time.Time // nil when there is none
	zone  [32]byte
	run   queue.Ref
}

func (s store) plan(ctx context.Context, p planned, rate int) (verdict string, slots int64, err error) {
	list, err := json.Marshal(p.slots)
	if err != nil {
		return "", 0, err
	}
	_, err = pg.Call(ctx, s.pool, `SELECT verdict, planned FROM nw.plan(p_task => $1, p_revision => $2, p_expected => $3, p_slots => $4, p_next => $5, p_zone => $6,
		p_run => $7, p_rate => $8)`, []any{p.due.Task, p.due.Revision, p.due.Next, string(list), p.next, p.zone[:], p.run[:], rate}, &verdict, &slots)
	return verdict, slots, err
}

// coming is a slot whose time has not come, or has just come.
type coming struct {
	Task     int64
	Revision int64
	Next     time.Time // the slot
	Zone     []byte    // digest of the rules that it was computed by
	Body     []byte    // of the task's document
	Last     time.Time // it is the first slot after this
}

func (s store) zones(ctx context.Context, after int64, limit int) ([]coming, error) {
	return all[coming](ctx, s.pool, `SELECT task_id, revision, next_at, zone, body, last_at FROM nw.zones($1, $2)`, after, limit)
}

func (s store) rezone(ctx context.Context, c coming, next time.Time, zone [32]byte) (verdict string, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.rezone(p_task => $1, p_revision => $2, p_expected => $3, p_next => $4, p_zone => $5)`,
		[]any{c.Task, c.Revision, c.Next, next, zone[:]}, &verdict)
	return verdict, err
}

// hint is a run that nobody has claimed yet.
type hint struct {
	Run, Queue queue.Ref
	Attempt    int
}

func (s store) takeOutbox(ctx context.Context, limit int, again time.Duration) ([]hint, error) {
	return all[hint](ctx, s.pool, `SELECT run_ref, queue, attempt FROM nw.take_outbox($1, $2)`, limit, again.Milliseconds())
}

func (s store) queues(ctx context.Context) ([]queue.Ref, error) {
	type row struct{ Queue queue.Ref }
	rows, err := all[row](ctx, s.pool, `SELECT queue FROM nw.queues()`)
	list := make([]queue.Ref, len(rows))
	for i, r := range rows {
		list[i] = r.Queue
	}
	return list, err
}

func (s store) reapable(ctx context.Context, limit int) ([]int64, error) {
	type row struct{ Run int64 }
	rows, err := all[row](ctx, s.pool, `SELECT run FROM nw.reapable($1)`, limit)
	list := make([]int64, len(rows))
	for i, r := range rows {
		list[i] = r.Run
	}
	return list, err
}

// reap returns the state of the run afterwards.
func (s store) reap(ctx context.Context, run int64) (state string, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.reap($1)`, []any{run}, &state)
	return state, err
}

func (s store) expireEffects(ctx context.Context, limit int) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.expire_effects($1)`, []any{limit}, &n)
	return n, err
}

func (s store) expireConsents(ctx context.Context, limit int) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.expire_consents($1)`, []any{limit}, &n)
	return n, err
}

// releaseReservations gives back what was reserved for effects that never came to a guard.
func (s store) releaseReservations(ctx context.Context, limit int) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.release_reservations($1)`, []any{limit}, &n)
	return n, err
}

// expireDecisions ends cards that no owner has answered in time.
func (s store) expireDecisions(ctx context.Context, limit int) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.expire_decisions($1)`, []any{limit}, &n)
	return n, err
}

func (s store) raiseFloors(ctx context.Context) error {
	return s.call(ctx, `SELECT nw.raise_floors()::text`)
}

// drain returns when every admission that began before it has ended.
func (s store) drain(ctx context.Context) error {
	return s.call(ctx, `SELECT nw.drain()::text`)
}

// call runs a verb whose answer says nothing that matters here.
func (s store) call(ctx context.Context, sql string, args ...any) error {
	var nothing string
	_, err := pg.Call(ctx, s.pool, sql, args, &nothing)
	return err
}

func (s store) recycle(ctx context.Context) (n int64, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.recycle()`, nil, &n)
	return n, err
}

// registration is a numbered boot of this process (P34).
type registration struct{ instance, boot int64 }

func (s store) register(ctx context.Context, instance [32]byte, build builds.Build) (r registration, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT instance_id, boot FROM nw.register_replica($1, $2, $3, $4, $5, $6)`, append([]any{kind, instance[:]}, build.Columns()...), &r.instance, &r.boot)
	return r, err
}

// report is one judgement of a family.
type report struct {
	family   string
	sequence int64
	healthy  bool
	reason   queue.Reason
	age      time.Duration // since the probe began
}

func (s store) report(ctx context.Context, r registration, p report) (verdict string, err error) {
	_, err = pg.Call(ctx, s.pool, `SELECT nw.report_replica(p_kind => $1, p_instance => $2, p_boot => $3, p_family => $4, p_sequence => $5, p_healthy => $6,
		p_reason => $7, p_age_ms => $8)`, []any{kind, r.instance, r.boot, p.family, p.sequence, p.healthy, string(p.reason), p.age.Milliseconds()}, &verdict)
	return verdict, err
}

// all reads the rows of one statement. Like [pg.Call] it lets nobody's context
// cut a statement that was sent.
func all[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	waiting, cancel := context.WithTimeout(ctx, acquireWithin)
	defer cancel()
	conn, err := pool.Acquire(waiting)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pg.ErrUnavailable, err)
	}
	defer conn.Release()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), rowsWithin)
	defer cancel()
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
