package queue

import (
	"context"
	"fmt"
)

// nearlyFull is the part of a limit that may be used: what is full refuses
// what is published.
const nearlyFull = 0.9

// FullError says that something is close to the most that it may store.
type FullError struct {
	Of   string // "stream NW_RUNS", "server …", "the account"
	Used uint64 // bytes
	Most int64  // bytes
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%s stores %d bytes of %d, which is too close", e.Of, e.Used, e.Most)
}

// hasRoom takes a limit of zero and below for none, as JetStream does.
func hasRoom(of string, used uint64, most int64) error {
	if most > 0 && float64(used) >= nearlyFull*float64(most) {
		return &FullError{of, used, most}
	}
	return nil
}

// checkAccount looks at what the account may store: there is one limit for all
// of it, or one for each number of replicas.
func (q *Queue) checkAccount(ctx context.Context) error {
	account, err := q.js.AccountInfo(ctx)
	if err != nil {
		return fmt.Errorf("the account's limits: %w", err)
	}
	if err := hasRoom("the account", account.Store, account.Limits.MaxStore); err != nil {
		return err
	}
	for name, tier := range account.Tiers {
		if err := hasRoom("the account's tier "+name, tier.Store, tier.Limits.MaxStore); err != nil {
			return err
		}
	}
	return nil
}
