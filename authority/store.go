package authority

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// All SQL of this package. Each function calls one verb, which is one
// transaction and one round trip; its verdict is `ok` or a refusal code.

// sqlRefusal is the SQLSTATE with which a verb undoes itself; the message is the code.
const sqlRefusal = "NW409"

// call runs a verb whose first column is its verdict, and whose second is the
// milliseconds to wait where wait is given, and turns verdicts and errors into
// refusals. An error of COMMIT is unknown, never no (P6).
func (a *Authority) call(ctx context.Context, verb string, by spent, sql string, args []any, wait *int64, dest ...any) error {
	var verdict string
	into := []any{&verdict}
	if wait != nil {
		into = append(into, wait)
	}
	quiet, outcome, err := a.ask(ctx, by, sql, args, append(into, dest...))
	var e *pgconn.PgError
	var r *api.Refusal
	switch {
	case err == nil && verdict == "ok":
		return nil
	case err == nil && verdict == askDirectory:
		return errAskDirectory
	case err == nil:
		r = api.Refuse(api.Code(verdict))
		if wait != nil && r.Code.Retry() == api.After {
			r.RetryAfter = time.Duration(*wait) * time.Millisecond
		}
		if quiet {
			return r
		}
		return paid(r)
	case errors.As(err, &r):
		return r
	case outcome == pg.Ambiguous:
		return unknown(err)
	case errors.As(err, &e) && e.Code == sqlRefusal:
		r = api.Refuse(api.Code(e.Message))
		if quiet {
			return r
		}
		return a.noteRefusal(ctx, verb, by, r)
	case errors.Is(err, pg.ErrUnavailable), errors.As(err, &e) && transient(e.Code):
		return unavailable(err)
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// ask sends a verb whose verdict is the first of into, if the caller's quota lets
// him ask, and has it undone when what he proved was made with dead keys. It looks once more when it has a connection: many may wait for one at
// the same time, but no more than there are connections have asked since.
func (a *Authority) ask(ctx context.Context, by spent, sql string, args, into []any) (quiet bool, outcome pg.Outcome, err error) {
	if _, err := a.standing(by); err != nil {
		return false, pg.NotApplied, err
	}
	sql, args = fmt.Sprintf("%s, nw.alive(verdict, $%d, $%d)", sql, len(args)+1, len(args)+2), append(args, by.capability, by.nonce)
	conn, err := pg.Acquire(ctx, a.Pool)
	if err != nil {
		return false, pg.NotApplied, err
	}
	defer conn.Release()
	quiet, err = a.standing(by)
	switch {
	case err != nil:
		return false, pg.NotApplied, err
	case quiet:
		outcome, err = conn.Try(ctx, func() bool { return *into[0].(*string) == "ok" }, sql, args, into...)
	default:
		outcome, err = conn.Call(ctx, sql, args, into...)
		if verdict := *into[0].(*string); err == nil && verdict != "ok" && verdict != askDirectory {
			a.pay(by, api.Code(verdict)) // before anybody else has the connection
		}
	}
	return quiet, outcome, err
}

// transient are the classes of SQLSTATE in which nothing happened and asking
// again may help: locks and time-outs, resources, read-only servers, shutdown.
func transient(code string) bool {
	switch code[:2] {
	case "40", "53", "55", "57", "58":
		return true
	}
	return code == "25006"
}

// claimRow is what claim and renew answer.
type claimRow struct {
	wait                                      int64
	run, task, client                         []byte
	fence, activation, readiness, incarnation int64
	deadline                                  time.Time
	leaseMS, remainingMS                      int64
	left                                      leftRow
	effects                                   []effectRow
	question                                  question
}

// leftRow is nw.left_over.
type leftRow struct {
	effects, steps, spend int64
	used                  int16
}

const leftColumns = `coalesce(effects_left, 0), coalesce(steps_left, 0), coalesce(spend_left, 0), coalesce(used, 0)`

func (l *leftRow) dest() []any { return []any{&l.effects, &l.steps, &l.spend, &l.used} }

type effectRow struct {
	Ref    string `json:"ref"` // hex, like the others
	Key    string `json:"key"`
	Digest string `json:"digest"`
	State  string `json:"state"`
}

const claimColumns = `verdict, coalesce(wait_ms, 0), run_ref, task_ref, client, coalesce(fence, 0), coalesce(deadline, 'epoch'), coalesce(activation_epoch, 0), coalesce(readiness_epoch, 0),
	coalesce(incarnation, 0), coalesce(lease_left_ms, 0), coalesce(remaining_ms, 0), coalesce(effects, '[]'), ` + leftColumns + `, ` + questionColumns

func (r *claimRow) dest() []any {
	return append([]any{&r.run, &r.task, &r.client, &r.fence, &r.deadline, &r.activation, &r.readiness, &r.incarnation, &r.leaseMS, &r.remainingMS,
		(*effectRows)(&r.effects)}, append(r.left.dest(), r.question.dest()...)...)
}

// effectRows scans a JSON column.
type effectRows []effectRow

func (e *effectRows) Scan(src any) error { return scanJSON(src, (*[]effectRow)(e)) }

func scanJSON(src any, into any) error {
	switch v := src.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(v), into)
	case []byte:
		return json.Unmarshal(v, into)
	}
	return fmt.Errorf("a JSON column holds %T", src)
}

// identified is a verified assertion in the form in which a verb binds it.
type identified struct {
	profiles []int64
	digest   [32]byte
	until    time.Time
	bound    bool // the first key that uses it owns it
	payer    payer
}

func (a *Authority) claim(ctx context.Context, run []byte, client *[32]byte, by identified, p spent, capability [32]byte) (r claimRow, err error) {
	p.payer = by.payer
	err = a.forMember(ctx, "claim", p, func() string { return encode(r.task) }, &r.question, func(b brought) error {
		return a.call(ctx, "claim", p, `SELECT `+claimColumns+` FROM nw.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
			[]any{run, optional(client), by.profiles, by.digest[:], by.until, by.bound, p.key[:], p.nonceAt, p.digest[:], capability[:], a.Lease.Milliseconds(), b.members, b.at},
			&r.wait, r.dest()...)
	})
	return r, err
}

func optional(d *[32]byte) []byte {
	if d == nil {
		return nil
	}
	return d[:]
}

func (a *Authority) renew(ctx context.Context, c *capability.RunClaims, run []byte, p spent, capability [32]byte, q api.RenewRequest) (r claimRow, err error) {
	err = a.forMember(ctx, "renew", p, laneOf(c.Lane), &r.question, func(b brought) error {
		return a.call(ctx, "renew", p, `SELECT `+claimColumns+` FROM nw.renew($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`,
			[]any{run, c.Fence, c.ActivationEpoch, c.Incarnation, p.key[:], p.nonceAt, p.digest[:], capability[:], a.Lease.Milliseconds(), q.EffectsLeft, q.StepsLeft, q.SpendLeft, b.members, b.at},
			&r.wait, r.dest()...)
	})
	return r, err
}

// mintArgs is one exact effect on its way into the database: digests only.
type mintArgs struct {
	ref                                  [16]byte
	key, guard, action, resource, digest [32]byte
	amount                               int64
	currency                             *[32]byte
	risk                                 int16
	repeatOf                             []byte
	capability                           [32]byte
	decision                             [16]byte  // reference of the card, if one is opened
	arguments                            []byte    // that its owner would see
	approved                             *[32]byte // digest of the effect's key, if its action has one
}

type mintRow struct {
	wait         int64
	decision     []byte // of approval_required
	effect       []byte
	state        string
	digest       []byte
	task, client []byte
	deadline     time.Time
	ttlMS        int64
	ceiling      *string // of limit_reached and loop_detected
	left         leftRow
	question     question
}

func (a *Authority) mint(ctx context.Context, c *capability.RunClaims, run []byte, p spent, m mintArgs) (r mintRow, err error) {
	dest := append([]any{&r.decision, &r.effect, &r.state, &r.digest, &r.task, &r.client, &r.deadline, &r.ttlMS, &r.ceiling}, append(r.left.dest(), r.question.dest()...)...)
	err = a.forMember(ctx, "mint", p, laneOf(c.Lane), &r.question, func(b brought) error {
		return a.call(ctx, "mint", p, `SELECT verdict, coalesce(wait_ms, 0), decision, effect_ref, coalesce(effect_state, ''), effect_digest, task_ref, client, coalesce(deadline, 'epoch'), coalesce(ttl_left_ms, 0), ceiling, `+leftColumns+`, `+questionColumns+`
			FROM nw.mint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)`,
			[]any{run, c.Fence, c.ActivationEpoch, c.ReadinessEpoch, c.Incarnation, p.key[:], p.nonceAt, p.digest[:],
				m.ref[:], m.key[:], m.guard[:], m.action[:], m.resource[:], m.amount, optional(m.currency), m.risk, m.digest[:], m.repeatOf,
				m.capability[:], effectLifetime.Milliseconds(), m.decision[:], m.arguments, optional(m.approved), b.members, b.at}, &r.wait, dest...)
	})
	return r, err
}

// component is who calls with a component capability.
type component struct {
	name, instance [32]byte
	kind           string
	boot           int64
}

type admitRow struct {
	wait      int64
	run, task []byte
	fence     int64
	withinMS  int64
	number    int64
	question  question
}

func (a *Authority) admit(ctx context.Context, g component, gp spent, c *capability.EffectClaims, effect, attempt []byte, digest [32]byte, p spent) (r admitRow, err error) {
	capability := c.Header.Digest()
	p.payer = payerOf("admit", g.name[:], p.key[:])
	p.capability, p.nonce = min(p.capability, gp.capability), min(p.nonce, gp.nonce)
	dest := append([]any{&r.run, &r.task, &r.fence, &r.withinMS, &r.number}, r.question.dest()...)
	err = a.forMember(ctx, "admit", p, laneOf(c.Lane), &r.question, func(b brought) error {
		return a.call(ctx, "admit", p, `SELECT verdict, coalesce(wait_ms, 0), run_ref, task_ref, coalesce(fence, 0), coalesce(apply_within_ms, 0), coalesce(number, 0), `+questionColumns+`
			FROM nw.admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)`,
			[]any{g.name[:], g.instance[:], g.boot, gp.key[:], gp.nonceAt, gp.digest[:], effect, attempt, digest[:], capability[:],
				c.Fence, c.ActivationEpoch, c.ReadinessEpoch, c.Incarnation, p.key[:], p.nonceAt, p.digest[:], b.members, b.at}, &r.wait, dest...)
	})
	return r, err
}

type outcomeRow struct {
	wait   int64
	effect []byte
	state  string
	digest []byte
	late   bool
}

const outcomeColumns = `verdict, coalesce(wait_ms, 0), effect_ref, coalesce(effect_state, ''), effect_digest, coalesce(late, false)`

func (r *outcomeRow) dest() []any { return []any{&r.effect, &r.state, &r.digest, &r.late} }

// settlement is an outcome with what it cost and what is known of it.
type settlement struct {
	effect, attempt []byte
	outcome         string
	spent           *int64
	answered        *string // with what follows: evidence
	status          *int16
	sentAt          *time.Time
	digest          []byte // of the effect that the arguments are of
	arguments       []byte
	state           []byte // of the destination
}

func (a *Authority) settleEffect(ctx context.Context, g component, p spent, s settlement) (r outcomeRow, err error) {
	err = a.call(ctx, "settle_effect", p.regardless(), `SELECT `+outcomeColumns+` FROM nw.settle_effect($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
		[]any{g.name[:], g.instance[:], g.boot, p.key[:], p.nonceAt, p.digest[:], s.effect, s.attempt, s.outcome, s.spent, s.answered, s.status, s.sentAt, s.digest, s.arguments, s.state}, &r.wait, r.dest()...)
	return r, err
}

func (a *Authority) effectForHolder(ctx context.Context, run, effect []byte, p spent) (r outcomeRow, err error) {
	err = a.call(ctx, "present", p, `SELECT `+outcomeColumns+` FROM nw.effect_for_holder($1, $2, $3, $4, $5)`,
		[]any{effect, run, p.key[:], p.nonceAt, p.digest[:]}, &r.wait, r.dest()...)
	return r, err
}

// unsettledRow is one line of nw.unsettled; references are hex.
type unsettledRow struct {
	Ref          string `json:"ref"`
	Attempt      string `json:"attempt"`
	Lane         string `json:"lane"`
	Fence        int64  `json:"fence"`
	ApplyLeftMS  int64  `json:"apply_left_ms"`
	SettleLeftMS int64  `json:"settle_left_ms"`
}

type unsettledRows []unsettledRow

func (u *unsettledRows) Scan(src any) error { return scanJSON(src, (*[]unsettledRow)(u)) }

func (a *Authority) unsettled(ctx context.Context, g component, p spent, limit int) (rows unsettledRows, err error) {
	err = a.call(ctx, "present", p.regardless(), `SELECT verdict, coalesce(effects, '[]') FROM nw.unsettled($1, $2, $3, $4, $5, $6, $7)`,
		[]any{g.name[:], g.instance[:], g.boot, p.key[:], p.nonceAt, p.digest[:], limit}, nil, &rows)
	return rows, err
}

type settledRow struct {
	wait                             int64
	run                              []byte
	state                            string
	fence                            int64
	committed, notApplied, ambiguous int64
	steps, spent                     int64
	currency                         *string
	audit                            []byte
}

func (a *Authority) settleRun(ctx context.Context, c *capability.RunClaims, run []byte, p spent, succeeded bool) (r settledRow, err error) {
	capability := c.Header.Digest()
	err = a.call(ctx, "settle_run", p.regardless(), `SELECT verdict, coalesce(wait_ms, 0), run_ref, coalesce(state, ''), coalesce(fence, 0), coalesce(committed, 0), coalesce(not_applied, 0), coalesce(ambiguous, 0), coalesce(steps, 0), coalesce(spent, 0), currency, audit_digest
		FROM nw.settle_run($1, $2, $3, $4, $5, $6, $7)`,
		[]any{run, c.Fence, p.key[:], p.nonceAt, p.digest[:], capability[:], succeeded},
		&r.wait, &r.run, &r.state, &r.fence, &r.committed, &r.notApplied, &r.ambiguous, &r.steps, &r.spent, &r.currency, &r.audit)
	return r, err
}

func (a *Authority) bootComponent(ctx context.Context, name, instance [32]byte, by identified, p spent, capability [32]byte) (kind string, boot int64, err error) {
	p.payer = by.payer
	err = a.call(ctx, "component", p, `SELECT verdict, coalesce(component_kind, ''), coalesce(boot, 0) FROM nw.boot_component($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		[]any{name[:], by.profiles, instance[:], by.digest[:], by.until, by.bound, p.key[:], p.nonceAt, p.digest[:], capability[:]}, nil, &kind, &boot)
	return kind, boot, err
}

func (a *Authority) spendComponent(ctx context.Context, g component, p spent) error {
	return a.call(ctx, "present", p, `SELECT verdict FROM nw.spend_component($1, $2, $3, $4, $5, $6, $7)`,
		[]any{g.name[:], g.kind, g.instance[:], g.boot, p.key[:], p.nonceAt, p.digest[:]}, nil)
}

// reportRow is one report in the form in which the verb stores it.
type reportRow struct {
	api.Report
	family, reason   string
	catalogue        []byte
	models, datasets [][]byte
	build            builds.Build
}

func (a *Authority) reportComponent(ctx context.Context, g component, p spent, r reportRow) error {
	return a.call(ctx, "report", p.regardless(), `SELECT verdict FROM nw.report_component($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22)`,
		append([]any{g.name[:], g.kind, g.instance[:], g.boot, p.key[:], p.nonceAt, p.digest[:], r.family, r.Sequence, r.Healthy, r.reason, r.AgeMS,
			r.Protocol, r.catalogue, r.models, r.datasets, r.MaxFence, r.MaxAdmission}, r.build.Columns()...), nil)
}
