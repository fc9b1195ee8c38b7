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

// refusals counts what was refused before anybody had proved a key, and writes
// one row a second for a code: junk cannot fill the database (P35).
type refusals struct {
	lock   sync.Mutex
	counts map[api.Code]int64
}

// CountRefusal counts a refusal of a caller who has proved nothing.
func (a *Authority) CountRefusal(code api.Code) { a.refusals.add(code, 1) }

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
