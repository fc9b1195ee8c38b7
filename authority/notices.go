package authority

import (
	"context"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// NoticeSettings says how a member is told of what happens.
func (a *Authority) NoticeSettings(ctx context.Context, m Actor) (s api.NoticeSettings, err error) {
	if err := a.present(ctx, m); err != nil {
		return s, err
	}
	ref := m.Member()
	if _, err = pg.Call(ctx, a.Pool, `SELECT hour FROM nw.show_notice_settings($1)`, []any{ref[:]}, &s.Daily); err != nil {
		return s, unavailable(err)
	}
	return s, nil
}

// Notify sets how a member is told. It also holds for what waits to be told.
func (a *Authority) Notify(ctx context.Context, m Actor, s api.NoticeSettings) error {
	if s.Daily != nil && (*s.Daily < 0 || *s.Daily > 23) {
		return api.Refusef(api.InvalidRequest, "daily must be an hour of UTC, from 0 to 23.")
	}
	return a.call(ctx, "notice", m.spent, `SELECT verdict FROM nw.set_notices($1, $2, $3, $4, $5, $6, $7)`, m.args(s.Daily), nil)
}
