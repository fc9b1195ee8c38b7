package authority

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

const timelineRows = 100

// titleOf is the title of a task or of a consent, from its canonical bytes.
func titleOf(body []byte) string {
	var d struct{ Title string }
	_ = json.Unmarshal(body, &d) // no title, then
	return d.Title
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// optionally is a reference that may be absent.
func optionally(b []byte) string {
	if b == nil {
		return ""
	}
	return encode(b)
}

func (a *Authority) tasks(ctx context.Context, who seen, one []byte, before int64) ([]row[api.Task], error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r row[api.Task], err error) {
		var ref, consent, body, offer []byte
		var last lastRun
		t := &r.item
		err = from.Scan(append([]any{&r.id, &ref, &t.Revision, &t.ActivationEpoch, &consent, &t.ConsentUntil, &t.NextAt, &body, &offer}, last.dest()...)...)
		t.Task, t.Consent, t.Consented, t.Offer, t.Document = encode(ref), optionally(consent), consent != nil, optionally(offer), body
		t.ConsentUntil, t.NextAt, t.Title, t.LastRun = utc(t.ConsentUntil), utc(t.NextAt), titleOf(body), last.view()
		return r, err
	}, `SELECT id, ref, revision, epoch, consent, consent_until, next_at, body, offer, run, run_state, run_nominal_at, run_ended_at FROM nw.show_tasks($1, $2, $3, $4, $5)`,
		who.member[:], who.all, one, before, pageRows)
}

// lastRun is a run beside something else, or none.
type lastRun struct {
	ref            []byte
	state          *string
	nominal, ended *time.Time
}

func (l *lastRun) dest() []any { return []any{&l.ref, &l.state, &l.nominal, &l.ended} }

func (l *lastRun) view() *api.LastRun {
	if l.ref == nil {
		return nil
	}
	return &api.LastRun{Run: encode(l.ref), State: deref(l.state), NominalAt: l.nominal.UTC(), EndedAt: utc(l.ended)}
}

func (a *Authority) revisions(ctx context.Context, who seen, task []byte) ([]api.Revision, error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r api.Revision, err error) {
		var body []byte
		err = from.Scan(&r.Revision, &r.EnteredAt, &body)
		r.EnteredAt, r.Document = r.EnteredAt.UTC(), body
		return r, err
	}, `SELECT revision, entered_at, body FROM nw.show_revisions($1, $2, $3, $4, $5)`, who.member[:], who.all, task, top.id, pageRows)
}

// consentsOf says which consents are meant: of a task, one, or a member's own.
type consentsOf struct {
	task, consent []byte
	ended         bool
}

func (a *Authority) consents(ctx context.Context, who seen, of consentsOf, before int64, limit int) ([]row[api.ConsentRecord], error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r row[api.ConsentRecord], err error) {
		var ref, task, digest, body []byte
		c := &r.item
		err = from.Scan(&r.id, &ref, &task, &c.TaskRevision, &digest, &c.State, &c.GivenAt, &c.NotBefore, &c.ExpiresAt, &c.EndedAt, &body)
		c.Consent, c.Task, c.Digest, c.Document = encode(ref), encode(task), encode(digest), body
		c.GivenAt, c.NotBefore, c.ExpiresAt, c.EndedAt = c.GivenAt.UTC(), c.NotBefore.UTC(), c.ExpiresAt.UTC(), utc(c.EndedAt)
		var d struct {
			Title, Client, Policy string
			Role                  string `json:"workload_role"`
			RoleRevision          int64  `json:"role_revision"`
			PolicyRevision        int64  `json:"policy_revision"`
		}
		_ = json.Unmarshal(body, &d) // the document itself is there
		c.Title, c.Client, c.Role, c.RoleRevision, c.Policy, c.PolicyRevision = d.Title, d.Client, d.Role, d.RoleRevision, d.Policy, d.PolicyRevision
		return r, err
	}, `SELECT id, ref, task, revision, digest, state, given_at, not_before, expires_at, ended_at, body FROM nw.show_consents($1, $2, $3, $4, $5, $6, $7)`,
		who.member[:], who.all, of.task, of.consent, of.ended, before, limit)
}

// runRow is a run with what only its own page shows.
type runRow struct {
	api.Run
	deadline  time.Time
	shortfall string
}

func (a *Authority) runs(ctx context.Context, who seen, task, one []byte, before int64) ([]row[runRow], error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r row[runRow], err error) {
		var ref, of []byte
		var currency, shortfall *string
		x := &r.item
		err = from.Scan(&r.id, &ref, &of, &x.NominalAt, &x.State, &x.Fence, &x.EndedAt, &x.Committed, &x.NotApplied, &x.Ambiguous, &x.Steps, &x.Spent, &currency,
			&x.MoreEffects, &x.deadline, &shortfall)
		x.Run.Run, x.Task, x.Currency, x.shortfall = encode(ref), encode(of), deref(currency), deref(shortfall)
		x.NominalAt, x.EndedAt, x.deadline = x.NominalAt.UTC(), utc(x.EndedAt), x.deadline.UTC()
		return r, err
	}, `SELECT id, ref, task, nominal_at, state, fence, ended_at, committed, not_applied, ambiguous, steps, spent, currency, more, deadline, shortfall FROM nw.show_runs($1, $2, $3, $4, $5, $6)`,
		who.member[:], who.all, task, one, before, pageRows)
}

func (a *Authority) coalesced(ctx context.Context, who seen, run []byte) ([]time.Time, error) {
	return list(ctx, a, func(from pgx.CollectableRow) (t time.Time, err error) {
		err = from.Scan(&t)
		return t.UTC(), err
	}, `SELECT nominal_at FROM nw.show_coalesced($1, $2, $3)`, who.member[:], who.all, run)
}

func (a *Authority) decisions(ctx context.Context, member [32]byte, one []byte, pending bool, before int64, limit int) ([]row[api.OwnerDecision], error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r row[api.OwnerDecision], err error) {
		var ref, task, run, digest, body, taskBody []byte
		var risk int16
		d := &r.item
		if err = from.Scan(&r.id, &ref, &task, &run, &digest, &d.State, &d.AskedAt, &d.ExpiresAt, &d.DecidedAt, &d.Silence, &risk, &body, &taskBody); err != nil {
			return r, err
		}
		d.Decision, d.Task, d.Run, d.Digest, d.Effect = encode(ref), encode(task), encode(run), encode(digest), body
		d.Risk, d.Title = catalogue.Risk(risk).String(), titleOf(taskBody)
		d.AskedAt, d.ExpiresAt, d.DecidedAt = d.AskedAt.UTC(), d.ExpiresAt.UTC(), utc(d.DecidedAt)
		return r, nil
	}, `SELECT id, ref, task, run, digest, state, asked_at, expires_at, decided_at, silence, risk, body, task_body FROM nw.show_decisions($1, $2, $3, $4, $5)`, member[:], one, pending, before, limit)
}

func (a *Authority) ambiguous(ctx context.Context, member [32]byte, before int64) ([]row[api.AmbiguousEffect], error) {
	return list(ctx, a, func(from pgx.CollectableRow) (r row[api.AmbiguousEffect], err error) {
		var effect, run, task, guard, action, resource, consent []byte
		var finding, late, answered *string
		var status *int16
		var sent, state []byte
		e := &r.item
		if err = from.Scan(&r.id, &effect, &run, &task, &guard, &action, &resource, &e.AdmittedAt, &finding, &late, &consent, &e.SentAt, &answered, &status, &sent, &state); err != nil {
			return r, err
		}
		e.Effect, e.Run, e.Task = encode(effect), encode(run), encode(task)
		e.Guard, e.Action, e.Resource = namesOf(consent, action, resource)
		e.Finding, e.Late, e.Answered, e.Sent, e.State = deref(finding), deref(late), deref(answered), sent, state
		if status != nil {
			e.Status = int(*status)
		}
		return r, nil
	}, `SELECT id, effect, run, task, guard_body, action, resource, admitted_at, finding, late, consent_body, sent_at, answered, status, arguments, state FROM nw.show_ambiguous($1, $2, $3)`,
		member[:], before, pageRows)
}

// timelineRow is one audit row of a run.
type timelineRow struct {
	body, digest, effect, step, guard, action, resource, consent []byte
	amount, spent                                                *int64
	currency                                                     *string
}

func (a *Authority) timeline(ctx context.Context, who seen, run []byte, after int64) ([]row[api.TimelineEntry], error) {
	names := grantNames{}
	return list(ctx, a, func(from pgx.CollectableRow) (r row[api.TimelineEntry], err error) {
		var x timelineRow
		e := &r.item
		if err = from.Scan(&r.id, &e.At, &e.Kind, &e.Code, &x.body, &x.digest, &x.effect, &x.step, &x.guard, &x.action, &x.resource, &x.amount, &x.spent, &x.currency, &x.consent); err != nil {
			return r, err
		}
		e.At, e.Digest = e.At.UTC(), encode(x.digest)
		x.tell(e, names)
		return r, nil
	}, `SELECT id, at, verb, verdict, body, digest, effect, key, guard, action, resource, amount, spent, currency, consent_body FROM nw.show_timeline($1, $2, $3, $4, $5)`,
		who.member[:], who.all, run, after, timelineRows)
}

// tell adds what the row's body and its effect say.
func (x timelineRow) tell(e *api.TimelineEntry, names grantNames) {
	var row struct {
		More struct {
			Fence                                               int64
			Decision, Outcome, Answer, Finding, State, Answered string
			Settled                                             string
			Asked                                               *bool
			Spent, Amount                                       int64
		}
	}
	_ = json.Unmarshal(x.body, &row) // what a body does not say is left out
	more := row.More
	e.Fence, e.Outcome = more.Fence, firstOf(more.Outcome, more.Answer, more.Finding, more.State, more.Answered, more.Settled)
	switch {
	case e.Kind == "expire_effect":
		e.Outcome = "ambiguous"
	case more.Asked != nil && *more.Asked:
		e.Outcome = "succeeded"
	case more.Asked != nil:
		e.Outcome = "failed"
	}
	if ref, err := hex.DecodeString(more.Decision); err == nil && len(ref) == 16 {
		e.Decision = encode(ref)
	}
	if x.effect == nil {
		return
	}
	e.Effect, e.Step = encode(x.effect), encode(x.step)
	e.Guard, e.Action, e.Resource = names.of(x.consent, x.action, x.resource)
	if x.amount != nil && *x.amount > 0 {
		e.Amount, e.Currency = *x.amount, deref(x.currency)
	}
	e.Spent = more.Spent
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

// grantNames remembers the grants of the one consent that a page is about.
type grantNames map[[2][32]byte]document.ConsentGrant

func (n grantNames) of(consent, action, resource []byte) (guard, act, res string) {
	if len(n) == 0 {
		for _, g := range grantsIn(consent) {
			n[[2][32]byte{actionDigest(g.Action), resourceDigest(g.Resource)}] = g
		}
	}
	g := n[[2][32]byte{[32]byte(action), [32]byte(resource)}]
	return g.Guard, g.Action, g.Resource
}

func (a *Authority) epoch(ctx context.Context, who seen, task []byte) (*api.CutOffRecord, error) {
	rows, err := list(ctx, a, func(from pgx.CollectableRow) (c api.CutOffRecord, err error) {
		err = from.Scan(&c.ActivationEpoch, &c.AskedAt, &c.AdvancedAt, &c.LastAdmittedAt)
		c.AskedAt, c.AdvancedAt, c.LastAdmittedAt = c.AskedAt.UTC(), c.AdvancedAt.UTC(), utc(c.LastAdmittedAt)
		if c.LastAdmittedAt != nil {
			c.LagMS = max(0, c.LastAdmittedAt.Sub(c.AskedAt).Milliseconds())
		}
		return c, err
	}, `SELECT epoch, asked_at, advanced_at, last_admitted_at FROM nw.show_epoch($1, $2, $3)`, who.member[:], who.all, task)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	return &rows[0], nil
}

func (a *Authority) wouldRun(ctx context.Context, who seen, task []byte) (d api.DryRun, q question, found bool, err error) {
	var ceiling *string
	err = a.look(ctx, `SELECT known, at, next_at, reasons, ceiling, about FROM nw.would_run($1, $2, $3)`, []any{who.member[:], who.all, task}, &found, &d.At, &d.NextAt, &d.Reasons, &ceiling, &q.about)
	d.At, d.NextAt, d.Ceiling = d.At.UTC(), utc(d.NextAt), deref(ceiling)
	return d, q, found, err
}

func (a *Authority) revocationScope(ctx context.Context, who seen, task []byte) (s api.RevocationScope, found bool, err error) {
	var consent []byte
	var open lastRun
	err = a.look(ctx, `SELECT known, coalesce(epoch, 0), consent, next_at, run, run_state, run_nominal_at, NULL::timestamptz, in_flight, minted, cards FROM nw.revocation_scope($1, $2, $3)`,
		[]any{who.member[:], who.all, task}, append(append([]any{&found, &s.ActivationEpoch, &consent, &s.NextAt}, open.dest()...), &s.InFlight, &s.Minted, &s.Cards)...)
	s.Consent, s.NextAt = optionally(consent), utc(s.NextAt)
	if run := open.view(); run != nil {
		s.Runs = []api.LastRun{*run}
	}
	return s, found, err
}

// look reads one row of a reading function.
func (a *Authority) look(ctx context.Context, sql string, args []any, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if _, err := pg.Call(ctx, a.Pool, sql, args, dest...); err != nil {
		return unavailable(err)
	}
	return nil
}
