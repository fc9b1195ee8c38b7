package readiness

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// evaluate tells what this process remembers, which nothing but a restored
// older database can be behind of.
func evaluate(ctx context.Context, pool *pgxpool.Pool, known Decision) error {
	var epoch int64
	_, err := pg.Call(ctx, pool, `SELECT (nw.evaluate($1, $2)).epoch`, []any{known.Incarnation, known.Sequence}, &epoch)
	return err
}

func readDecision(ctx context.Context, pool *pgxpool.Pool) (d Decision, err error) {
	var valid int64
	var family *string
	var inputs, families []byte
	_, err = pg.Call(ctx, pool, `SELECT open, epoch, sequence, incarnation, requirement, valid_ms, since, held, reason, family, inputs, families::text::bytea FROM nw.decision()`, nil,
		&d.Open, &d.Epoch, &d.Sequence, &d.Incarnation, &d.Requirement, &valid, &d.Since, &d.Held, &d.Reason, &family, &inputs, &families)
	if err != nil {
		return Decision{}, err
	}
	d.Valid = time.Duration(valid) * time.Millisecond
	if family != nil {
		d.Family = *family
	}
	copy(d.Inputs[:], inputs)
	return d, json.Unmarshal(families, &d.Families)
}

func registerReplica(ctx context.Context, pool *pgxpool.Pool, kind string, instance [32]byte, build builds.Build) (id, boot int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT instance_id, boot FROM nw.register_replica($1, $2, $3, $4, $5, $6)`, append([]any{kind, instance[:]}, build.Columns()...), &id, &boot)
	return id, boot, err
}

func holdKeys(ctx context.Context, pool *pgxpool.Pool, instance, boot int64, generations []int64) error {
	var none string
	_, err := pg.Call(ctx, pool, `SELECT nw.hold_keys($1, $2, $3)::text`, []any{instance, boot, generations}, &none)
	return err
}

func reportReplica(ctx context.Context, pool *pgxpool.Pool, kind string, instance, boot int64, family string, sequence int64, reason string, age time.Duration) (verdict string, err error) {
	_, err = pg.Call(ctx, pool, `SELECT verdict FROM nw.report_replica($1, $2, $3, $4, $5, $6, $7, $8)`,
		[]any{kind, instance, boot, family, sequence, reason == Good, reason, age.Milliseconds()}, &verdict)
	return verdict, err
}

// Why an operator holds admission closed. The list is that of nw.gate_close.
var Why = []string{"incident", "maintenance", "drill", "other"}

// Close holds admission closed by hand and returns the epoch; pool is the
// operator's database role, which is all that it needs.
func Close(ctx context.Context, pool *pgxpool.Pool, why string) (epoch int64, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.gate_close($1)`, []any{why}, &epoch)
	return epoch, err
}

// Release ends a hold and opens nothing by itself; it reports whether there was one.
func Release(ctx context.Context, pool *pgxpool.Pool) (released bool, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.gate_release()`, nil, &released)
	return released, err
}

// RecordStandby records that a synchronous standby may be promoted within a
// day: its promotion is then no new incarnation (P24). It reports false where
// the server is not set to wait for one.
func RecordStandby(ctx context.Context, pool *pgxpool.Pool) (recorded bool, err error) {
	_, err = pg.Call(ctx, pool, `SELECT nw.gate_standby()`, nil, &recorded)
	return recorded, err
}

// Line is one line of the board: a required family, or one component in it.
type Line struct {
	Family    string     `json:"family"`
	Component string     `json:"component,omitempty"` // its registered name
	Good      bool       `json:"good"`
	Reason    string     `json:"reason,omitempty"`
	Instances int        `json:"instances"` // that report good
	Required  int        `json:"required"`
	AgeMS     int64      `json:"age_ms"`          // of the oldest good report; -1 when there is none
	Since     *time.Time `json:"since,omitempty"` // it is as it is; nil when nobody ever reported
	Tasks     int64      `json:"tasks"`           // consented ones that it concerns
}

// Board is the decision as an operator reads it, from the database alone.
func Board(ctx context.Context, pool *pgxpool.Pool) (d Decision, lines []Line, err error) {
	if d, err = readDecision(ctx, pool); err != nil {
		return d, nil, err
	}
	rows, err := pool.Query(ctx, `SELECT family, coalesce(component, ''), good, reason, instances, required, age_ms, since, tasks FROM nw.board()`)
	if err != nil {
		return d, nil, err
	}
	lines, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Line])
	return d, lines, err
}
