package authority

import (
	"context"
	"encoding/json"
	"time"

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
	decision, digest, err := answering(reference, answer, api.DecisionChanged)
	if err == nil {
		err = a.refuseEarly()
	}
	if err == nil {
		_, err = a.standing(m.spent)
	}
	if err != nil {
		return err
	}
	return a.whileMember(ctx, "decide", m, func(asked time.Time) error {
		return a.call(ctx, "decide", m.spent, `SELECT verdict FROM nw.approve($1, $2, $3, $4, $5, $6, $7, $8, $9)`, m.args(decision, digest, asked), nil)
	})
}

// Deny is the owner's no. It is always possible.
func (a *Authority) Deny(ctx context.Context, m Actor, reference string, answer api.Answer) error {
	decision, digest, err := answering(reference, answer, api.DecisionChanged)
	if err != nil {
		return err
	}
	return a.call(ctx, "decide", m.spent, `SELECT verdict FROM nw.deny($1, $2, $3, $4, $5, $6, $7, $8)`, m.args(decision, digest), nil)
}
