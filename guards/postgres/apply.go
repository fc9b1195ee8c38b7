package postgres

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

const (
	maxResult  = 64 << 10
	proveTries = 3
	provePause = 100 * time.Millisecond
	purgeEvery = time.Minute // well below what the ledger counts as work at most
	purgeRows  = 5000
)

// notApplied is why a transaction was given up before its COMMIT was sent.
type notApplied struct {
	reason api.Code // "" when there is no code for it
	cause  error
}

func (n *notApplied) Error() string {
	return fmt.Sprintf("not applied (%s): %v", n.reason, quietly(n.cause))
}
func (n *notApplied) Unwrap() error { return n.cause }

// Intend implements guards.Ledger.
func (l *Ledger) Intend(ctx context.Context, a guards.Attempt) error { return l.store.intend(ctx, a) }

// Apply implements guards.Ledger. Whatever is not an acknowledged COMMIT is proven on another connection before it is
// called anything.
func (l *Ledger) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	result, err := l.transact(ctx, a)
	if err == nil {
		return guards.Ending{Outcome: guards.Committed, Result: result}, nil
	}
	l.log.Warn("an effect was not seen to commit", "effect", a.Effect, "error", err)
	ending, unproven := l.readBack(ctx, a)
	if unproven != nil {
		return guards.Ending{}, errors.Join(err, unproven)
	}
	if ending.Outcome == guards.Committed {
		ending.Result = result
	} else if given, ok := errors.AsType[*notApplied](err); ok {
		ending.Reason = given.reason
	}
	return ending, nil
}

// readBack asks more than once, because the connections that it is given may be broken too.
func (l *Ledger) readBack(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	for try := 1; ; try++ {
		ending, err := l.Prove(ctx, a.Effect, a.ID)
		if err == nil || try == proveTries {
			return ending, err
		}
		select {
		case <-ctx.Done():
			return guards.Ending{}, ctx.Err()
		case <-time.After(provePause):
		}
	}
}

// Prove implements guards.Ledger. An effect that was committed by an attempt that the authority does not know is
// ambiguous: both are wrong, and only a person can tell how.
func (l *Ledger) Prove(ctx context.Context, effect, attempt guards.Ref) (guards.Ending, error) {
	committed, by, err := l.store.prove(ctx, effect, attempt)
	switch {
	case err != nil:
		return guards.Ending{}, err
	case !committed:
		return guards.Ending{Outcome: guards.NotApplied}, nil
	case by != attempt:
		l.log.Error("an effect was committed by another attempt", "effect", effect, "attempt", attempt, "committed_by", by)
		return guards.Ending{Outcome: guards.Ambiguous}, nil
	}
	return guards.Ending{Outcome: guards.Committed}, nil
}

// Probe implements guards.Ledger. Once in a while it also forgets what the authority cannot ask for any more.
func (l *Ledger) Probe(ctx context.Context) (guards.Seen, error) {
	seen, _, err := l.look(ctx)
	if err == nil && l.purgeIsDue() {
		if _, err := l.store.purge(ctx, purgeRows); err != nil {
			l.log.Warn("the ledger does not forget", "error", err) // and can be used all the same
		}
	}
	return seen, err
}

func (l *Ledger) purgeIsDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Sub(l.purged) < purgeEvery {
		return false
	}
	l.purged = now
	return true
}

// transact does everything in one transaction. Its error says that no COMMIT was acknowledged, and no more; only a
// notApplied says why. The result is told even with an error of COMMIT.
func (l *Ledger) transact(ctx context.Context, a guards.Admitted) (json.RawMessage, error) {
	operation, ok := l.operations[a.Action]
	if !ok {
		return nil, &notApplied{api.NotFound, errors.New("no such operation")}
	}
	left := a.Left()
	working, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-working.Done():
		return nil, &notApplied{api.TooLate, working.Err()}
	}
	tx, err := l.store.db.begin(working)
	if err != nil {
		return nil, &notApplied{cmp.Or(reasonOf(err), api.Unavailable), err}
	}
	result, err := l.work(working, tx, operation, a, left)
	if err != nil {
		_ = tx.end(ctx, false)
		return nil, err
	}
	return result, quietly(tx.end(ctx, true))
}

// work is everything between BEGIN and COMMIT. left is what was left before BEGIN was sent.
func (l *Ledger) work(ctx context.Context, tx transaction, operation operation, a guards.Admitted, left time.Duration) (json.RawMessage, error) {
	if err := l.store.take(ctx, tx, a, left); err != nil {
		return nil, err
	}
	result, err := do(ctx, tx, operation, a.Params)
	if err != nil {
		return nil, &notApplied{reasonOf(err), err}
	}
	if err := l.store.inTime(ctx, tx, left); err != nil {
		return nil, &notApplied{reasonOf(err), err}
	}
	if a.Left() <= 0 {
		return nil, &notApplied{api.TooLate, context.DeadlineExceeded}
	}
	return result, nil
}

// do runs an operation. A panic of it is an error like another: the transaction is rolled back.
func do(ctx context.Context, tx transaction, operation operation, params json.RawMessage) (result json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the operation panicked: %T", p)
		}
	}()
	v, err := operation.do(ctx, tx, params)
	if err != nil || v == nil {
		return nil, err
	}
	encoded, err := json.Marshal(v)
	if err != nil || len(encoded) > maxResult || !bytes.HasPrefix(encoded, []byte("{")) {
		return nil, errResult
	}
	return encoded, nil
}

var (
	errResult = errors.New("the operation's result is not one JSON object of at most 64 KiB")
	errEnding = errors.New("guards/postgres: an operation must not end its transaction")
)

// unendable is a transaction that its user cannot end.
type unendable struct{ pgx.Tx }

func (unendable) Commit(context.Context) error   { return errEnding }
func (unendable) Rollback(context.Context) error { return errEnding }

// reasonOf names what a worker can act on: it was too late, or the database does not take these values.
func reasonOf(err error) api.Code {
	state := sqlState(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), state == codeTooLate:
		return api.TooLate
	case errors.Is(err, errParameters), errors.Is(err, errResult):
		return api.InvalidRequest
	case len(state) != 5:
		return ""
	}
	switch state[:2] {
	case "22", "23": // data exception, integrity constraint violation
		return api.InvalidRequest
	case "55", "57": // lock_timeout, statement_timeout
		return api.TooLate
	}
	return ""
}
