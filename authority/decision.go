package authority

import (
	"context"
	"encoding/json"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
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
