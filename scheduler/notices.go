package scheduler

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// notifyOnce tells owners what is due, also while admission is closed. When the
// receiver is away, that is looked at at once.
func (s *Scheduler) notifyOnce(ctx context.Context) error {
	more, err := s.notices.Once(ctx)
	if err != nil {
		s.assessor.wake()
	}
	if more {
		s.notifier.wake()
	}
	return err
}

// askNotices asks whoever tells owners whether they are told.
func (s *Scheduler) askNotices(ctx context.Context) (health queue.Health) {
	err := contained(ctx, func(ctx context.Context) error {
		reason, why := s.notices.Look(ctx)
		health = queue.Health{Reason: queue.Reason(reason), Err: why}
		return nil
	})
	if err != nil {
		return queue.Health{Reason: queue.Unreachable, Err: err}
	}
	return health
}

// Take implements [notify.Store].
func (s store) Take(ctx context.Context, limit int, again time.Duration) ([]notify.Notice, error) {
	return all[notify.Notice](ctx, s.pool, `SELECT matter, kind, member, task, run, due_at, expires_at, attempt FROM nw.take_notices($1, $2)`, limit, again.Milliseconds())
}

// Settle implements [notify.Store].
func (s store) Settle(ctx context.Context, n notify.Notice, delivered bool) (dead bool, err error) {
	if delivered {
		return false, s.call(ctx, `SELECT nw.notice_delivered($1, $2)`, n.Matter, n.Kind)
	}
	_, err = pg.Call(ctx, s.pool, `SELECT nw.notice_refused($1, $2)`, []any{n.Matter, n.Kind}, &dead)
	return dead, err
}

// Waiting implements [notify.Store].
func (s store) Waiting(ctx context.Context) (w notify.Waiting, err error) {
	var untold int64
	_, err = pg.Call(ctx, s.pool, `SELECT due, dead, untold_ms FROM nw.notices_health()`, nil, &w.Due, &w.Dead, &untold)
	w.Untold = time.Duration(untold) * time.Millisecond
	return w, err
}

// Untold is a notice that waits or was given up, as operators see it.
type Untold struct {
	Matter   []byte // reference of the card, run, effect, task or consent
	Kind     string
	Task     []byte
	State    string // due or dead
	Due      time.Time
	Attempts int
	Refusals int
}

const maxUntold = 200

// ListUntold lists notices, those that were given up first; pool is the
// operator's database role.
func ListUntold(ctx context.Context, pool *pgxpool.Pool) ([]Untold, error) {
	return all[Untold](ctx, pool, `SELECT matter, kind, task, state, due_at, attempt, refusals FROM nw.show_notices($1)`, maxUntold)
}

// RetryUntold lets what was given up be told after all, by the operator's
// database role, and returns how many there are.
func RetryUntold(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.retry_notices()`, nil, &n)
	return n, err
}

var _ notify.Store = store{}
