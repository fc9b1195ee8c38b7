package authority

import (
	"context"
	"errors"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// fault is a refusal with the cause that operators need and callers must not see.
type fault struct {
	*api.Refusal
	cause error
}

func (f fault) Unwrap() []error { return []error{f.Refusal, f.cause} }

func unknown(cause error) error     { return fault{api.Refuse(api.OutcomeUnknown), cause} }
func unavailable(cause error) error { return fault{api.Refuse(api.Unavailable), cause} }

// Cause is what an operator should read about an error, or nil when the refusal says it all.
func Cause(err error) error {
	var f fault
	var r *api.Refusal
	switch {
	case errors.As(err, &f):
		return f.cause
	case errors.As(err, &r):
		return nil
	}
	return err
}

// audited is a refusal that has a row of its own in the audit log: a verb, which
// sees whether what was proved is new, has refused.
type audited struct{ *api.Refusal }

func (a audited) Unwrap() error { return a.Refusal }

// Audited tells whether a refusal has a row of its own. All others are counted.
func Audited(err error) bool {
	_, ok := errors.AsType[audited](err)
	return ok
}

// pay lets whoever was refused pay for the row that it was worth to the verb.
// Nonce trouble is routine and has none.
func (a *Authority) pay(by spent, code api.Code) {
	if !routine(code) {
		a.quota.charge(by.payer)
	}
}

// paid is a refusal that has its row.
func paid(r *api.Refusal) error {
	if routine(r.Code) {
		return r
	}
	return audited{r}
}

// routine tells what is no refusal of a caller: a challenge, and trouble of ours.
func routine(code api.Code) bool {
	switch code {
	case api.UseDPoPNonce, api.WorkerNonce, api.Unavailable, api.OutcomeUnknown, api.Internal:
		return true
	}
	return false
}

// noteRefusal keeps the audit row of a refusal that undid its own verb, or came
// before it. When even that fails there is nothing to undo: the refusal stands,
// and is counted.
func (a *Authority) noteRefusal(ctx context.Context, verb string, by spent, r *api.Refusal) error {
	var none any
	if _, err := pg.Call(ctx, a.Pool, `SELECT nw.note_refusal($1, $2, $3)::text`, []any{verb, string(r.Code), by.key[:]}, &none); err != nil {
		return r
	}
	a.pay(by, r.Code)
	return paid(r)
}

// refusals counts what has no row of its own, and writes one row a second for a
// code: junk cannot fill the database (P35).
type refusals struct {
	lock   sync.Mutex
	counts map[api.Code]int64
}

// CountRefusal counts a refusal that has no row of its own: of a caller who has
// proved nothing, of one who has used up his quota, and one that needed no verb.
func (a *Authority) CountRefusal(code api.Code) {
	if !routine(code) {
		a.refusals.add(code, 1)
	}
}

func (r *refusals) add(code api.Code, n int64) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.counts == nil {
		r.counts = map[api.Code]int64{}
	}
	r.counts[code] += n
}

func (r *refusals) take() map[api.Code]int64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	taken := r.counts
	r.counts = nil
	return taken
}

// flush writes the counts. One that is not known to be written is counted
// again: a number too high is better than one that is missing.
func (r *refusals) flush(ctx context.Context, pool *pgxpool.Pool) {
	for code, n := range r.take() {
		var none any
		if _, err := pg.Call(ctx, pool, `SELECT nw.count_refusals($1, $2)::text`, []any{string(code), n}, &none); err != nil {
			r.add(code, n)
		}
	}
}
