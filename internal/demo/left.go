package demo

import (
	"context"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/dev"
)

// Left is what came of a member who left and came back.
type Left struct {
	Consents int64  `json:"consents"` // that ended
	EndedMS  int64  `json:"ended_ms"` // from when the directory knew to when the last one had
	Code     string `json:"code"`     // with which the next thing that a worker asked for was refused
}

func (l *Left) sound() bool { return l.Consents > 0 && l.Code != "" }

// left lets the directory lose the member in the middle of a run. Back again, the member must say yes once more.
func (t teller) left(ctx context.Context) error {
	d := &dev.Directory{}
	if err := config.Load(t.path("config", directoryConfig), d, func(string) string { return "" }); err != nil {
		return err
	}
	began := time.Now()
	if err := d.SetActive(ctx, member, false); err != nil {
		return err
	}
	err := until(ctx, 45*time.Second, "the end of what a member who has left had allowed", func() (bool, error) {
		var active int64
		err := t.one(ctx, `SELECT (SELECT count(*) FROM nw.consents WHERE state = 'active') + (SELECT count(*) FROM nw.runs WHERE ended_at IS NULL)`, nil, &active)
		return active == 0, err
	})
	if err != nil {
		return err
	}
	var last time.Time
	if err := t.one(ctx, `SELECT count(*), max(at) FROM nw.departures`, nil, &t.gone.Consents, &last); err != nil {
		return err
	}
	err = t.one(ctx, `SELECT coalesce((SELECT verdict::text FROM nw.audit WHERE verb IN ('claim', 'renew', 'mint', 'admit') AND verdict <> 'ok' AND at > (SELECT min(at) FROM nw.departures)
		ORDER BY id LIMIT 1), '')`, nil, &t.gone.Code)
	if err != nil {
		return err
	}
	t.gone.EndedMS = last.Sub(began).Milliseconds()
	t.say("The directory let the member go, in the middle of it all: within %d ms all that they had allowed was over (consents: %d), and the next thing that a worker asked for was refused: %s.", t.gone.EndedMS, t.gone.Consents, t.gone.Code)
	if err := d.SetActive(ctx, member, true); err != nil {
		return err
	}
	if _, err := t.Consent(ctx, "task.yaml"); err != nil {
		return err
	}
	t.say("Back again, nothing had woken up by itself: the member was asked once more, and said yes.")
	return nil
}
