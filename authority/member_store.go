package authority

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

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

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// grantsIn reads the grants of a stored consent. It was held against every rule when it
// was stored, and a page of them needs no more than the words.
func grantsIn(consent []byte) []document.ConsentGrant {
	var c struct{ Grants []document.ConsentGrant }
	_ = json.Unmarshal(consent, &c) // no names, then
	return c.Grants
}

// namesOf finds the grant of a consent that digests stand for.
func namesOf(consent, action, resource []byte) (guard, act, res string) {
	for _, g := range grantsIn(consent) {
		if actionDigest(g.Action) == [32]byte(action) && resourceDigest(g.Resource) == [32]byte(resource) {
			return g.Guard, g.Action, g.Resource
		}
	}
	return "", "", ""
}
