package authority

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

func hexOf(b []byte) string { return hex.EncodeToString(b) }

// readTimeout bounds a reading query.
const readTimeout = 3 * time.Second

// list reads the rows of a set-returning verb.
func list[T any](ctx context.Context, a *Authority, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := a.Pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, unavailable(err)
	}
	out, err := pgx.CollectRows(rows, scan)
	if err != nil {
		return nil, unavailable(err)
	}
	return out, nil
}

func (a *Authority) databaseTime(ctx context.Context) (now time.Time, err error) {
	if _, err = pg.Call(ctx, a.Pool, `SELECT db_now FROM nw.store_health()`, nil, &now); err != nil {
		return now, unavailable(err)
	}
	return now, nil
}

func (a *Authority) tasks(ctx context.Context, member [32]byte, operator bool) ([]api.Task, error) {
	return list(ctx, a, func(row pgx.CollectableRow) (t api.Task, err error) {
		var ref, body []byte
		err = row.Scan(&ref, &t.Revision, &t.ActivationEpoch, &t.Consented, &t.NextAt, &body)
		t.Task, t.Document = encode(ref), json.RawMessage(body)
		return t, err
	}, `SELECT ref, revision, epoch, consented, next_at, body FROM nw.show_tasks($1, $2)`, member[:], operator)
}

func (a *Authority) runs(ctx context.Context, member [32]byte, task []byte, before *int64, limit int) (page api.Page[api.Run], err error) {
	var last int64
	page.Items, err = list(ctx, a, func(row pgx.CollectableRow) (r api.Run, err error) {
		var ref, of []byte
		var currency *string
		err = row.Scan(&last, &ref, &of, &r.NominalAt, &r.State, &r.Fence, &r.EndedAt, &r.Committed, &r.NotApplied, &r.Ambiguous, &r.Steps, &r.Spent, &currency)
		r.Run, r.Task, r.Currency = encode(ref), encode(of), deref(currency)
		return r, err
	}, `SELECT id, ref, task, nominal_at, state, fence, ended_at, committed, not_applied, ambiguous, steps, spent, currency FROM nw.show_runs($1, $2, $3, $4)`, member[:], task, before, limit)
	if len(page.Items) == limit {
		page.Next = encode([]byte(strconv.FormatInt(last, 10)))
	}
	return page, err
}

// openCursor reads a cursor. It holds a position and grants nothing: each page
// is authorised by itself.
func openCursor(cursor string) (before *int64, ok bool) {
	if cursor == "" {
		return nil, true
	}
	if len(cursor) > 32 {
		return nil, false
	}
	for n := 1; n <= 20; n++ {
		if b, ok := decode(cursor, n); ok {
			id, err := strconv.ParseInt(string(b), 10, 64)
			return &id, err == nil && id > 0
		}
	}
	return nil, false
}

func (a *Authority) ambiguous(ctx context.Context, member [32]byte) ([]api.AmbiguousEffect, error) {
	return list(ctx, a, func(row pgx.CollectableRow) (e api.AmbiguousEffect, err error) {
		var effect, run, task, guard, action, resource, consent []byte
		var finding, late, answered *string
		var status *int16
		var sent, state []byte
		if err = row.Scan(&effect, &run, &task, &guard, &action, &resource, &e.AdmittedAt, &finding, &late, &consent, &e.SentAt, &answered, &status, &sent, &state); err != nil {
			return e, err
		}
		e.Effect, e.Run, e.Task = encode(effect), encode(run), encode(task)
		e.Guard, e.Action, e.Resource = namesOf(consent, action, resource)
		e.Finding, e.Late, e.Answered, e.Sent, e.State = deref(finding), deref(late), deref(answered), sent, state
		if status != nil {
			e.Status = int(*status)
		}
		return e, nil
	}, `SELECT effect, run, task, guard_body, action, resource, admitted_at, finding, late, consent_body, sent_at, answered, status, arguments, state FROM nw.show_ambiguous($1)`, member[:])
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// namesOf finds the grant of a consent that digests stand for.
func namesOf(consent, action, resource []byte) (guard, act, res string) {
	c, err := document.ParseConsent(consent)
	if err != nil {
		return "", "", ""
	}
	for _, g := range c.Grants {
		if actionDigest(g.Action) == [32]byte(action) && resourceDigest(g.Resource) == [32]byte(resource) {
			return g.Guard, g.Action, g.Resource
		}
	}
	return "", "", ""
}
