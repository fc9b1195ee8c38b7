package sequencer

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/nightwarrant/nightwarrant/authority/audit"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// Verbs of an operator about what audit rows hold and how long they stay; pool is the operator's database role.

// Reasons for a redaction. The list is that of nw.audit_redact.
var Reasons = []string{"erasure", "mistake", "retention", "other"}

const (
	redactStep = 2000 // rows of one transaction
	pruneStep  = 5000 // about
)

// Redact takes what is disclosed of a member out, of the rows with these ids or, without ids, of all. What was signed stays as it is.
func Redact(ctx context.Context, pool *pgxpool.Pool, member [32]byte, rows []int64, reason string) (redacted int64, err error) {
	for {
		var step int64
		if _, err := pg.Call(ctx, pool, `SELECT redacted FROM nw.audit_redact($1, $2, $3, $4)`, []any{member[:], rows, reason, redactStep}, &step); err != nil {
			return redacted, err
		}
		redacted += step
		if step < redactStep {
			return redacted, nil
		}
	}
}

// Keep sets how many days audit rows stay. It sets nothing when that is less than the least, which it returns.
func Keep(ctx context.Context, pool *pgxpool.Pool, days int) (least int, kept bool, err error) {
	_, err = pg.Call(ctx, pool, `SELECT least_days, kept FROM nw.audit_keep($1)`, []any{days}, &least, &kept)
	return least, kept, err
}

// Plan is what could be pruned: the records from From up to and without Size, where a checkpoint ends that has Root.
type Plan struct {
	Before     time.Time
	From, Size int64
	Root       tlog.Hash
}

// Why nothing can be pruned.
var (
	ErrNoPeriod = errors.New("nobody has set how long audit rows stay")
	ErrTooYoung = errors.New("rows from before that instant must stay longer")
	ErrNothing  = errors.New("no checkpoint is as old as that and not pruned yet")
)

// PlanPrune looks what of the rows before an instant could go.
func PlanPrune(ctx context.Context, pool *pgxpool.Pool, before time.Time) (p Plan, err error) {
	var days, size *int64
	var young *bool
	var root []byte
	_, err = pg.Call(ctx, pool, `SELECT keep_days, too_young, from_size, size, root FROM nw.audit_plan($1)`, []any{before}, &days, &young, &p.From, &size, &root)
	switch {
	case err != nil:
		return p, err
	case days == nil:
		return p, ErrNoPeriod
	case *young:
		return p, ErrTooYoung
	case size == nil:
		return p, ErrNothing
	}
	p.Before, p.Size, p.Root = before, *size, tlog.Hash(root)
	return p, nil
}

// Prune takes the rows of a plan out, in steps of about five thousand that each end at a checkpoint; one that broke off is gone on with by a new
// plan. The caller has found the records in an export, with their bodies, and the checkpoint at an anchor.
func Prune(ctx context.Context, pool *pgxpool.Pool, p Plan) (rows int64, err error) {
	for at := p.From; at < p.Size; {
		var cut *int64
		var gone int64
		if _, err := pg.Call(ctx, pool, `SELECT cut, gone FROM nw.audit_prune($1, $2, $3, $4)`, []any{p.Before, p.Size, p.Root[:], pruneStep}, &cut, &gone); err != nil {
			return rows, err
		}
		if cut == nil {
			break
		}
		at, rows = *cut, rows+gone
	}
	return rows, nil
}

// disclose adds to records what is disclosed of them.
func disclose(ctx context.Context, pool *pgxpool.Pool, records []audit.Record) error {
	if len(records) == 0 {
		return nil
	}
	from := records[0].Leaf
	rows, err := pool.Query(ctx, `SELECT leaf, field, salt, value FROM nw.audit_disclosed($1, $2)`, from, int64(len(records)))
	if err != nil {
		return err
	}
	_, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (none struct{}, err error) {
		var leaf int64
		var d audit.Disclosure
		if err = r.Scan(&leaf, &d.Field, &d.Salt, &d.Value); err == nil && records[leaf-from].Leaf == leaf {
			records[leaf-from].Disclosures = append(records[leaf-from].Disclosures, d)
		}
		return none, err
	})
	return err
}
