package authority

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

// shown is what an owner sees of an effect: exactly what executes (A18). The
// effect's digest covers all of it.
type shown struct {
	Guard      string          `json:"guard"`
	Action     string          `json:"action"`
	Resource   string          `json:"resource"`
	Parameters json.RawMessage `json:"parameters"`
	Amount     int64           `json:"amount,omitempty"`
	Currency   string          `json:"currency,omitempty"`
}

// argumentsOf are the canonical bytes that are kept with a card.
func argumentsOf(e capability.Effect, parameters json.RawMessage) ([]byte, error) {
	return canonical.CanonicalizeValue(shown{e.Guard, e.Action, e.Resource, parameters, e.Amount, e.Currency})
}

// Decisions lists a member's cards; one only when reference is given.
func (a *Authority) Decisions(ctx context.Context, m Actor, reference string) ([]api.OwnerDecision, error) {
	var one []byte
	if reference != "" {
		var ok bool
		if one, ok = decode(reference, 16); !ok {
			return nil, api.Refuse(api.NotFound)
		}
	}
	cards, err := a.decisions(ctx, m.Member(), one)
	if err != nil {
		return nil, err
	}
	if one != nil && len(cards) == 0 {
		return nil, api.Refuse(api.NotFound)
	}
	return cards, a.present(ctx, m)
}

func (a *Authority) decisions(ctx context.Context, member [32]byte, one []byte) ([]api.OwnerDecision, error) {
	return list(ctx, a, func(row pgx.CollectableRow) (d api.OwnerDecision, err error) {
		var ref, task, run, digest, body, taskBody []byte
		var risk int16
		err = row.Scan(&ref, &task, &run, &digest, &d.State, &d.AskedAt, &d.ExpiresAt, &d.DecidedAt, &d.Silence, &risk, &body, &taskBody)
		if err != nil {
			return d, err
		}
		d.Decision, d.Task, d.Run, d.Digest, d.Effect = encode(ref), encode(task), encode(run), encode(digest), body
		d.Risk, d.Title = catalogue.Risk(risk).String(), titleOf(taskBody)
		d.AskedAt, d.ExpiresAt = d.AskedAt.UTC(), d.ExpiresAt.UTC()
		return d, nil
	}, `SELECT ref, task, run, digest, state, asked_at, expires_at, decided_at, silence, risk, body, task_body FROM nw.show_decisions($1, $2)`, member[:], one)
}

func titleOf(body []byte) string {
	if d, err := document.ParseJSON(body); err == nil {
		if t, ok := d.(*document.Task); ok {
			return t.Title
		}
	}
	return ""
}

// Approve is the owner's yes to the exact effect whose digest the answer
// carries. It needs an open gate.
func (a *Authority) Approve(ctx context.Context, m Actor, reference string, answer api.Answer) error {
	return a.decide(ctx, m, reference, answer, `SELECT verdict FROM nw.approve($1, $2, $3, $4, $5, $6, $7, $8)`, a.refuseEarly)
}

// Deny is the owner's no. It is always possible.
func (a *Authority) Deny(ctx context.Context, m Actor, reference string, answer api.Answer) error {
	return a.decide(ctx, m, reference, answer, `SELECT verdict FROM nw.deny($1, $2, $3, $4, $5, $6, $7, $8)`, func() error { return nil })
}

func (a *Authority) decide(ctx context.Context, m Actor, reference string, answer api.Answer, sql string, early func() error) error {
	decision, digest, err := answering(reference, answer, api.DecisionChanged)
	if err == nil {
		err = early()
	}
	if err != nil {
		return err
	}
	return a.call(ctx, "decide", m.spent, sql, m.args(decision, digest), nil)
}
