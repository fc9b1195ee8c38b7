package readiness

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

func evaluate(ctx context.Context, pool *pgxpool.Pool) error {
	var epoch int64
	_, err := pg.Call(ctx, pool, `SELECT (nw.evaluate()).epoch`, nil, &epoch)
	return err
}

func readDecision(ctx context.Context, pool *pgxpool.Pool) (d Decision, err error) {
	var valid int64
	var family *string
	_, err = pg.Call(ctx, pool, `SELECT open, epoch, sequence, incarnation, valid_ms, held, reason, family FROM nw.decision()`, nil,
		&d.Open, &d.Epoch, &d.Sequence, &d.Incarnation, &valid, &d.Held, &d.Reason, &family)
	d.Valid = time.Duration(valid) * time.Millisecond
	if family != nil {
		d.Family = *family
	}
	return d, err
}

func registerReplica(ctx context.Context, pool *pgxpool.Pool, kind string, instance [32]byte) (id, boot int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT instance_id, boot FROM nw.register_replica($1, $2)`, []any{kind, instance[:]}, &id, &boot)
	return id, boot, err
}

func reportReplica(ctx context.Context, pool *pgxpool.Pool, kind string, instance, boot int64, family string, sequence int64, reason string, age time.Duration) (verdict string, err error) {
	_, err = pg.Call(ctx, pool, `SELECT verdict FROM nw.report_replica($1, $2, $3, $4, $5, $6, $7, $8)`,
		[]any{kind, instance, boot, family, sequence, reason == Good, reason, age.Milliseconds()}, &verdict)
	return verdict, err
}

// Close holds admission closed by hand and returns the epoch; Release ends that
// hold and opens nothing by itself. pool is the operator's database role.
func Close(ctx context.Context, pool *pgxpool.Pool) (epoch int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.gate_close()`, nil, &epoch)
	return epoch, err
}

// Release ends a hold; it reports whether there was one.
func Release(ctx context.Context, pool *pgxpool.Pool) (released bool, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.gate_release()`, nil, &released)
	return released, err
}
