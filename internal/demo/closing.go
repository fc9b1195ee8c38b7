package demo

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Closing is what came of a part of the platform that died under load.
type Closing struct {
	Skipped  string `json:"skipped,omitempty"` // why nothing was killed
	Admitted int64  `json:"admitted_after_close"`
	Applied  int64  `json:"applied_after_close"`
	ClosedMS int64  `json:"closed_ms"`   // from the kill to the close
	Reopened int64  `json:"reopened_ms"` // from the restart to the opening
	Epoch    int64  `json:"epoch"`       // of the opening
}

// Admitting are the verbs that admit something, as the audit log spells them.
// With the verdict ok between a close and the next opening they are what must
// never be; but an attempt that asks again is told what it was told before (P13).
var Admitting = []string{"offer", "consent", "plan", "publish", "claim", "renew", "mint", "admit"}

// closed kills NATS while runs are under way: everything closes, nothing is
// admitted or applied until it has healed, and then the runs finish.
func (t teller) closed(ctx context.Context) error {
	if !t.ownQueue() {
		t.closing.Skipped = "the queue is a server that was there before"
		t.say("NATS is not killed: it is a server that was there before.")
		return nil
	}
	live, err := t.underWay(ctx)
	if err != nil {
		return err
	}
	shut, drained, err := t.killQueue(ctx)
	if err != nil {
		return err
	}
	opened, err := t.heal(ctx, shut)
	if err != nil {
		return err
	}
	if err := t.count(ctx, shut, opened, drained); err != nil {
		return err
	}
	err = until(ctx, 45*time.Second, "the end of the runs that were under way", func() (bool, error) {
		var left int
		err := t.one(ctx, `SELECT count(*) FROM nw.runs WHERE id = ANY ($1) AND state <> 'succeeded'`, []any{live}, &left)
		return left == 0, err
	})
	t.say("What was under way has succeeded (runs: %d). While it was closed, %d things were admitted and %d applied.", len(live), t.closing.Admitted, t.closing.Applied)
	return err
}

// underWay waits until an effect is in flight and returns the runs that are not over.
func (t teller) underWay(ctx context.Context) (live []int64, err error) {
	if err := t.pace(ctx, 0.4); err != nil {
		return nil, err
	}
	err = until(ctx, 30*time.Second, "an effect in flight", func() (bool, error) {
		err := t.one(ctx, `SELECT array_agg(id) FROM nw.runs WHERE live HAVING bool_or(inflight > 0)`, nil, &live)
		return err == nil, err
	})
	return live, err
}

// turn is a close or an opening, where it stands in the audit log: the gate's lock puts every admission before or after it.
type turn struct {
	row, epoch int64
	at         time.Time // of the database
}

// killQueue kills NATS and waits until the published decision says what is
// missing and no go-ahead from before the close is left.
func (t teller) killQueue(ctx context.Context) (shut turn, drained time.Time, err error) {
	before, err := t.decision(ctx)
	if err != nil {
		return shut, drained, err
	}
	killed := time.Now()
	t.children["nats"].kill()
	t.say("NATS was killed while an effect was in flight.")
	if shut, err = t.turned(ctx, "close", before.Epoch, killed, &t.closing.ClosedMS); err != nil {
		return shut, drained, err
	}
	err = until(ctx, 10*time.Second, "a decision that names the queue", func() (bool, error) {
		d, err := t.decision(ctx)
		return !d.Open && d.Epoch == shut.epoch && bad(d, "queue"), err
	})
	if err != nil {
		return shut, drained, err
	}
	err = until(ctx, 10*time.Second, "the end of the effects in flight", func() (bool, error) {
		var left int
		err := t.one(ctx, `SELECT count(*), clock_timestamp() FROM nw.effects WHERE state = 'admitted'`, nil, &left, &drained)
		return left == 0, err
	})
	t.say("Everything closed after %d ms, and the decision says why: the queue. What the guard had been told to apply is settled; nothing new is.", t.closing.ClosedMS)
	return shut, drained, err
}

// heal starts NATS again and waits for the opening.
func (t teller) heal(ctx context.Context, shut turn) (turn, error) {
	healed := time.Now()
	if err := t.startNATS(ctx, queueConfig); err != nil {
		return turn{}, err
	}
	opened, err := t.turned(ctx, "open", shut.epoch, healed, &t.closing.Reopened)
	if err != nil {
		return opened, err
	}
	t.closing.Epoch = opened.epoch
	if err := t.pace(ctx, 0); err != nil {
		return opened, err
	}
	t.say("NATS is back with its files. Every family was judged anew, and the gate has opened with epoch %d.", opened.epoch)
	return opened, t.WaitOpen(ctx, 20*time.Second)
}

// turned waits for the close or opening after an epoch, and takes the time until it was there.
func (t teller) turned(ctx context.Context, verb string, after int64, from time.Time, ms *int64) (found turn, err error) {
	err = until(ctx, 70*time.Second, "the "+verb, func() (bool, error) {
		err := t.one(ctx, `SELECT id, epoch, at FROM (SELECT id, at, verb::text, (convert_from(body, 'UTF8')::json->'more'->>'epoch')::bigint AS epoch
			FROM nw.audit WHERE verb IN ('close', 'open') ORDER BY id DESC LIMIT 1) last WHERE verb = $1 AND epoch = $2 + 1`, []any{verb, after}, &found.row, &found.epoch, &found.at)
		return err == nil, err
	})
	*ms = time.Since(from).Milliseconds()
	return found, err
}

// count counts what must not be: admissions between the close and the opening, and rows of the ledger that came after the last go-ahead's end.
func (t teller) count(ctx context.Context, shut, opened turn, drained time.Time) error {
	err := t.one(ctx, `SELECT count(*) FROM nw.audit WHERE verdict = 'ok' AND verb = ANY ($1) AND id > $2 AND id < $3
		AND NOT (verb = 'admit' AND (convert_from(body, 'UTF8')::json->'more'->>'again')::boolean)`, []any{Admitting, shut.row, opened.row}, &t.closing.Admitted)
	if err != nil {
		return err
	}
	return t.execute(ctx, t.resource(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT count(*) FROM public.entries WHERE at > $1 AND at < $2`, drained, opened.at).Scan(&t.closing.Applied)
	})
}

// bad tells whether a decision names a family as one that is not good.
func bad(d api.Decision, family string) bool {
	return slices.ContainsFunc(d.Families, func(f api.FamilyState) bool { return f.Family == family && !f.Good })
}

// sound says whether nothing happened that must not.
func (c *Closing) sound() bool {
	return c.Skipped != "" || c.Admitted == 0 && c.Applied == 0 && c.ClosedMS > 0 && c.Reopened > 0 && c.Epoch > 0
}
