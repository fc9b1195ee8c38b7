package authority

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// inspect opens a reading of operators and auditors.
func (a *Authority) inspect(ctx context.Context, m Actor) error {
	if err := m.auditing(); err != nil {
		return err
	}
	return a.present(ctx, m)
}

// Registry lists the newest revision of each registered thing of a kind, such as
// Client or WorkloadRole.
func (a *Authority) Registry(ctx context.Context, m Actor, kind, cursor string) (none api.Page[api.Entry], err error) {
	return a.entryPage(ctx, m, kind, nil, a.paging(m, "registry", kind), cursor)
}

// Entry lists all revisions of one registered thing, newest first.
func (a *Authority) Entry(ctx context.Context, m Actor, kind, name, cursor string) (none api.Page[api.Entry], err error) {
	digest := nameDigest(name)
	page, err := a.entryPage(ctx, m, kind, digest[:], a.paging(m, "entry", kind, name), cursor)
	if err == nil && cursor == "" && len(page.Items) == 0 {
		err = api.Refuse(api.NotFound)
	}
	return page, err
}

func (a *Authority) entryPage(ctx context.Context, m Actor, kind string, name []byte, p paging, cursor string) (none api.Page[api.Entry], err error) {
	if err := m.auditing(); err != nil {
		return none, err
	}
	stored, ok := kinds[kind]
	if !ok {
		return none, api.Refuse(api.NotFound)
	}
	from, err := p.open(cursor)
	if err == nil {
		err = a.present(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := list(ctx, a, func(from pgx.CollectableRow) (r row[api.Entry], err error) {
		var digest, body []byte
		e := &r.item
		err = from.Scan(&r.id, &e.Revision, &e.State, &e.EnteredAt, &digest, &body)
		e.Kind, e.EnteredAt, e.Digest, e.Document = kind, e.EnteredAt.UTC(), encode(digest), body
		e.Name = nameOf(body)
		return r, err
	}, `SELECT id, revision, state, entered_at, digest, body FROM nw.show_entries($1, $2, $3, $4)`, stored, name, from.id, pageRows)
	return pageOf(p, rows), err
}

// Board is the readiness decision with each family and component behind it.
func (a *Authority) Board(ctx context.Context, m Actor) (b api.Board, err error) {
	if err := a.inspect(ctx, m); err != nil {
		return b, err
	}
	var family *string
	err = a.look(ctx, `SELECT open, held, epoch, incarnation, requirement, since, reason, family, at FROM nw.show_gate()`, nil,
		&b.Open, &b.Held, &b.Epoch, &b.Incarnation, &b.Requirement, &b.Since, &b.Reason, &family, &b.At)
	if err != nil {
		return b, err
	}
	b.Since, b.At, b.Family = b.Since.UTC(), b.At.UTC(), deref(family)
	b.Rows, err = list(ctx, a, func(from pgx.CollectableRow) (r api.BoardRow, err error) {
		var component *string
		err = from.Scan(&r.Family, &component, &r.Good, &r.Reason, &r.Instances, &r.Required, &r.AgeMS, &r.Since, &r.Tasks)
		r.Component, r.Since = deref(component), utc(r.Since)
		return r, err
	}, `SELECT family, component, good, reason, instances, required, age_ms, since, tasks FROM nw.board()`)
	return b, err
}

// Requirements lists the generations of what must be good, newest first.
func (a *Authority) Requirements(ctx context.Context, m Actor, cursor string) (none api.Page[api.Requirement], err error) {
	p := a.paging(m, "requirements")
	from, err := p.open(cursor)
	if err == nil {
		err = a.inspect(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := list(ctx, a, func(from pgx.CollectableRow) (r row[api.Requirement], err error) {
		var body []byte
		q := &r.item
		err = from.Scan(&q.Generation, &q.Since, &q.InForce, &q.ClosedMS, &q.ReportTTLMS, &q.Rounds, &q.ValidMS, &body)
		r.id, q.Since, q.Document = q.Generation, q.Since.UTC(), body
		return r, err
	}, `SELECT generation, since, in_force, closed_ms, report_ttl_ms, rounds, valid_ms, body FROM nw.show_requirements($1, $2)`, from.id, pageRows)
	return pageOf(p, rows), err
}

// Stranded lists tasks whose owner is no member any more, newest first.
func (a *Authority) Stranded(ctx context.Context, m Actor, cursor string) (none api.Page[api.StrandedTask], err error) {
	p := a.paging(m, "stranded")
	from, err := p.open(cursor)
	if err == nil {
		err = a.inspect(ctx, m)
	}
	if err != nil {
		return none, err
	}
	rows, err := list(ctx, a, func(from pgx.CollectableRow) (r row[api.StrandedTask], err error) {
		var task, member, body []byte
		s := &r.item
		err = from.Scan(&r.id, &task, &member, &s.DepartedAt, &body)
		s.Task, s.Member, s.Title, s.DepartedAt, s.Document = encode(task), encode(member), titleOf(body), s.DepartedAt.UTC(), body
		return r, err
	}, `SELECT id, task, member, at, body FROM nw.stranded($1, $2)`, from.id, pageRows)
	return pageOf(p, rows), err
}

const (
	auditLook   = 25_000    // rows of the log that one page of a search looks at, where no index helps
	exportRows  = 500       // a round trip
	exportMost  = 1_000_000 // lines of one export
	exportIn    = 10 * time.Minute
	exportYoung = 10 * time.Second // what is younger may still be committing
)

// auditFilter is a query as the database reads it.
type auditFilter struct {
	since, until      *time.Time
	verb, verdict     *string
	task, run, member []byte
	low, high         int64 // rows of the log
}

var (
	auditWord = regexp.MustCompile(`^[a-z_]{1,32}$`)
	frequent  = []string{"", "plan", "publish", "claim", "renew", "mint", "admit", "settle_effect", "settle_run", "end_run"} // of each run: audit_rare leaves them out
)

// indexed says that the rows of a search are found without looking at others.
func (f auditFilter) indexed() bool {
	return f.run != nil || !slices.Contains(frequent, deref(f.verb)) || (f.verdict != nil && *f.verdict != "ok")
}

// filter reads a query and finds where in the log it begins and ends.
func (a *Authority) filter(ctx context.Context, q api.AuditQuery) (f auditFilter, err error) {
	for _, word := range []string{q.Verb, q.Verdict} {
		if word != "" && !auditWord.MatchString(word) {
			return f, api.Refusef(api.InvalidRequest, "verb and verdict are words of the audit log.")
		}
	}
	f = auditFilter{since: q.Since, until: q.Until, verb: given(q.Verb), verdict: given(q.Verdict), high: math.MaxInt64}
	for _, r := range []struct {
		text string
		size int
		into *[]byte
	}{{q.Task, 16, &f.task}, {q.Run, 16, &f.run}, {q.Member, 32, &f.member}} {
		var ok bool
		if r.text == "" {
			continue
		}
		if *r.into, ok = decode(r.text, r.size); !ok {
			return f, api.Refusef(api.InvalidRequest, "task, run and member are references.")
		}
	}
	if q.Since != nil {
		if err = a.look(ctx, `SELECT place FROM nw.audit_position($1)`, []any{*q.Since}, &f.low); err != nil {
			return f, err
		}
	}
	if q.Until != nil {
		err = a.look(ctx, `SELECT place FROM nw.audit_position($1)`, []any{q.Until.Add(2 * exportYoung)}, &f.high)
	} else {
		err = a.look(ctx, `SELECT place + 1 FROM nw.audit_position('infinity')`, nil, &f.high)
	}
	return f, err
}

func given(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (a *Authority) audit(ctx context.Context, f auditFilter, rising bool, limit int) ([]api.AuditEntry, error) {
	return list(ctx, a, func(from pgx.CollectableRow) (e api.AuditEntry, err error) {
		var task, run, effect, digest, body, member []byte
		err = from.Scan(&e.Number, &e.At, &e.Verb, &e.Verdict, &task, &run, &effect, &digest, &body, &member)
		e.At, e.Task, e.Run, e.Effect, e.Digest, e.Body, e.Member = e.At.UTC(), optionally(task), optionally(run), optionally(effect), encode(digest), body, optionally(member)
		return e, err
	}, `SELECT id, at, verb, verdict, task, run, effect, digest, body, member FROM nw.show_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		f.low, f.high, f.since, f.until, f.verb, f.verdict, f.task, f.run, f.member, rising, limit)
}

// AuditSearch searches the audit log, newest first. It looks at a bounded number of
// rows; a page that is short of rows goes on with its cursor all the same.
func (a *Authority) AuditSearch(ctx context.Context, m Actor, q api.AuditQuery, cursor string) (page api.AuditPage, err error) {
	text, err := json.Marshal(q)
	if err != nil {
		return page, api.Refusef(api.InvalidRequest, "since and until must be instants.")
	}
	p := a.paging(m, "audit", string(text))
	from, err := p.open(cursor)
	if err == nil {
		err = a.inspect(ctx, m)
	}
	if err != nil {
		return page, err
	}
	f, err := a.filter(ctx, q)
	if err != nil {
		return page, err
	}
	f.high = min(f.high, from.id)
	floor := f.low
	if !f.indexed() {
		f.low = max(f.low, f.high-auditLook)
	}
	page.Items, err = a.audit(ctx, f, false, pageRows)
	switch {
	case err != nil:
	case len(page.Items) == pageRows:
		page.Next = p.seal(place{id: page.Items[pageRows-1].Number})
	case f.low > max(floor, 1):
		page.Next = p.seal(place{id: f.low})
	}
	return page, err
}

// AuditExport writes the rows of a search as JSON lines, oldest first, and an
// [api.AuditEnd] as the last one. It writes at most a million, and none that is
// younger than ten seconds, beside which others may still appear. What went wrong
// after the first line shows in that the last one is missing.
func (a *Authority) AuditExport(ctx context.Context, m Actor, w io.Writer, q api.AuditQuery, cursor string) error {
	ctx, cancel := context.WithTimeout(ctx, exportIn)
	defer cancel()
	text, err := json.Marshal(q)
	if err != nil {
		return api.Refusef(api.InvalidRequest, "since and until must be instants.")
	}
	p := a.paging(m, "export", string(text))
	from, err := p.open(cursor)
	if err == nil {
		err = a.inspect(ctx, m)
	}
	if err != nil {
		return err
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return err
	}
	if until := now.Add(-exportYoung); q.Until == nil || q.Until.After(until) {
		q.Until = &until
	}
	f, err := a.filter(ctx, q)
	if err != nil {
		return err
	}
	if from != top {
		f.low = max(f.low, from.id+1)
	}
	return a.export(ctx, json.NewEncoder(w), f, p)
}

func (a *Authority) export(ctx context.Context, w *json.Encoder, f auditFilter, p paging) error {
	end := api.AuditEnd{End: true, Until: f.until.UTC()}
	for end.Lines < exportMost {
		step := f
		if !f.indexed() {
			step.high = min(f.high, f.low+auditLook)
		}
		rows, err := a.audit(ctx, step, true, exportRows)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := w.Encode(r); err != nil {
				return fmt.Errorf("write the export: %w", err)
			}
		}
		end.Lines += int64(len(rows))
		switch {
		case len(rows) == exportRows:
			f.low = rows[len(rows)-1].Number + 1
		case step.high < f.high:
			f.low = step.high
		default:
			return w.Encode(end)
		}
	}
	end.Next = p.seal(place{id: f.low - 1})
	return w.Encode(end)
}

// cutOffBound is what a scope counts to.
const cutOffBound = 10_000

// CutOffScope says whom CutOffClient concerns or, without a client, CutOffAll. Operators only.
func (a *Authority) CutOffScope(ctx context.Context, m Actor, client string) (s api.CutOffScope, err error) {
	if err := m.operating(); err != nil {
		return s, err
	}
	if err := a.present(ctx, m); err != nil {
		return s, err
	}
	s.Client, s.Bound = client, cutOffBound
	err = a.look(ctx, `SELECT tasks, runs, in_flight FROM nw.cut_off_scope($1, $2)`, []any{clientName(client), cutOffBound}, &s.Tasks, &s.Runs, &s.InFlight)
	return s, err
}

func clientName(client string) []byte {
	if client == "" {
		return nil
	}
	d := nameDigest(client)
	return d[:]
}

// CutOffClient advances the epochs of all tasks of a client and keeps their
// consents. Operators only. It returns when all of them are committed; an error says
// that some may be, and that it should be asked for again.
func (a *Authority) CutOffClient(ctx context.Context, m Actor, client string) (api.CutOffResult, error) {
	if client == "" {
		return api.CutOffResult{}, api.Refuse(api.NotFound)
	}
	return a.cutOffMany(ctx, m, clientName(client))
}

// CutOffAll is CutOffClient for every client.
func (a *Authority) CutOffAll(ctx context.Context, m Actor) (api.CutOffResult, error) {
	return a.cutOffMany(ctx, m, nil)
}

const cutOffStep = 200 // tasks in one transaction, so that it ends well within the statement's time

// cutOffMany goes on until no task is left. Each step is an admission of its own, with
// a proof that follows from the caller's.
func (a *Authority) cutOffMany(ctx context.Context, m Actor, client []byte) (out api.CutOffResult, err error) {
	if err := m.operating(); err != nil {
		return out, err
	}
	m.spent = m.regardless()
	proof, began := m.digest, a.Now()
	for last, step := int64(0), uint64(0); ; step++ {
		var at *int64
		var tasks, runs int64
		if err := a.call(ctx, "cut_off", m.spent, `SELECT verdict, last, coalesce(advanced, 0), coalesce(ended, 0) FROM nw.cut_off_many($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
			m.args(client, last, cutOffStep), nil, &at, &tasks, &runs); err != nil {
			return out, err
		}
		out.Tasks, out.Runs = out.Tasks+tasks, out.Runs+runs
		if tasks < cutOffStep {
			a.lag.observe("cut_off_many", a.Now().Sub(began))
			return out, nil
		}
		last = *at
		m.digest = canonical.Digest(domainStep, proof[:], binary.BigEndian.AppendUint64(nil, step))
	}
}

const domainStep = "nightwarrant/step/v1"
