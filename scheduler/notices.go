package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// telling makes a notifier, with a loop, for each channel that there is.
func (s *Scheduler) telling(c Config) (err error) {
	var channels []string
	if c.Webhook != nil {
		channels = append(channels, notify.ByWebhook)
	}
	if c.Mail != nil {
		channels = append(channels, notify.ByMail)
	}
	base := notify.Config{Link: c.Link, Untold: c.Untold, Registerer: c.Registerer, Logger: c.Logger}
	if c.Webhook != nil {
		by := base
		by.Store, by.Poster = shelf{s.store, channels, notify.ByWebhook}, c.Webhook
		if s.webhook, err = notify.New(by); err != nil {
			return err
		}
		s.notifier = s.loop("notifier", notifyEvery, s.notifyOnce)
	}
	if c.Mail != nil {
		by := base
		by.Store, by.Mailer = shelf{s.store, channels, notify.ByMail}, c.Mail
		if s.mail, err = notify.New(by); err != nil {
			return err
		}
		s.mailer = s.loop("mailer", notifyEvery, s.mailOnce)
	}
	return nil
}

// notifyOnce tells owners what is due, also while admission is closed. When the
// receiver is away, that is looked at at once.
func (s *Scheduler) notifyOnce(ctx context.Context) error {
	return s.tellOnce(ctx, s.webhook, s.notifier)
}

// mailOnce does so by mail.
func (s *Scheduler) mailOnce(ctx context.Context) error { return s.tellOnce(ctx, s.mail, s.mailer) }

func (s *Scheduler) tellOnce(ctx context.Context, by *notify.Notifier, l *loop) error {
	more, err := by.Once(ctx)
	if err != nil {
		s.assessor.wake()
	}
	if more {
		l.wake()
	}
	return err
}

// askNotices asks whoever tells owners whether they are told, by each channel.
func (s *Scheduler) askNotices(ctx context.Context) queue.Health {
	said := make([]queue.Health, 2)
	var group sync.WaitGroup
	for i, by := range []*notify.Notifier{s.webhook, s.mail} {
		said[i].Reason = queue.Good
		if by != nil {
			group.Go(func() { said[i] = asked(ctx, by) })
		}
	}
	group.Wait()
	if !said[0].OK() {
		return said[0]
	}
	return said[1]
}

func asked(ctx context.Context, by *notify.Notifier) (health queue.Health) {
	err := contained(ctx, func(ctx context.Context) error {
		reason, why := by.Look(ctx)
		health = queue.Health{Reason: queue.Reason(reason), Err: why}
		return nil
	})
	if err != nil {
		return queue.Health{Reason: queue.Unreachable, Err: err}
	}
	return health
}

// shelf is where the notices of one channel are.
type shelf struct {
	store
	channels []string // that this cluster has
	channel  string
}

const noticeColumns = `matter, kind, member, owner, task, run, due_at, expires_at, attempt`

// Take implements [notify.Store].
func (s shelf) Take(ctx context.Context, limit int, again time.Duration) ([]notify.Notice, error) {
	return all[notify.Notice](ctx, s.pool, `SELECT `+noticeColumns+` FROM nw.take_notices($1, $2, $3, $4)`, s.channels, s.channel, limit, again.Milliseconds())
}

// Digest implements [notify.Store].
func (s shelf) Digest(ctx context.Context, limit int, again time.Duration) ([]notify.Notice, error) {
	return all[notify.Notice](ctx, s.pool, `SELECT `+noticeColumns+` FROM nw.take_digest($1, $2)`, limit, again.Milliseconds())
}

// Settle implements [notify.Store].
func (s shelf) Settle(ctx context.Context, n notify.Notice, delivered bool) (dead bool, err error) {
	if delivered {
		return false, s.call(ctx, `SELECT nw.notice_delivered($1, $2, $3)`, n.Matter, n.Kind, s.channel)
	}
	_, err = pg.Call(ctx, s.pool, `SELECT nw.notice_refused($1, $2, $3)`, []any{n.Matter, n.Kind, s.channel}, &dead)
	return dead, err
}

// Waiting implements [notify.Store].
func (s shelf) Waiting(ctx context.Context) (w notify.Waiting, err error) {
	var untold int64
	_, err = pg.Call(ctx, s.pool, `SELECT due, dead, untold_ms FROM nw.notices_health($1)`, []any{s.channel}, &w.Due, &w.Dead, &untold)
	w.Untold = time.Duration(untold) * time.Millisecond
	return w, err
}

// Untold is a notice that waits or was given up, as operators see it.
type Untold struct {
	Matter   []byte // reference of the card, run, effect or consent; of a pause, one that it alone has
	Kind     string
	Channel  string // webhook or mail
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
	return all[Untold](ctx, pool, `SELECT matter, kind, channel, task, state, due_at, attempt, refusals FROM nw.show_notices($1)`, maxUntold)
}

// RetryUntold lets what was given up be told after all, by the operator's
// database role, and returns how many there are.
func RetryUntold(ctx context.Context, pool *pgxpool.Pool) (n int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.retry_notices()`, nil, &n)
	return n, err
}

var _ notify.Store = shelf{}
