package bench

import (
	"context"
	"time"
)

// numbered is how many audit rows S10 has numbered.
const numbered = 20_000

// S10 is how many audit rows a second get their number in the signed log, against the durable claims of S2.
type S10 struct {
	Records float64 `json:"records_per_s"`
	Claims  float64 `json:"claims_per_s"`
	Ratio   float64 `json:"ratio"`
	Goal    float64 `json:"goal"`
}

// sequencing is S10: rows that wait all at once, as after a burst, in a replica that does nothing else.
func (b *bench) sequencing(ctx context.Context) error {
	if err := b.noneWaits(ctx); err != nil {
		return err
	}
	if _, err := b.store.Exec(ctx, `SELECT nw.note('present', 'ok', NULL, NULL, NULL, json_build_object('n', x)) FROM generate_series(1, $1) x`, numbered); err != nil {
		return err
	}
	from := time.Now()
	if err := b.noneWaits(ctx); err != nil {
		return err
	}
	s := S10{Records: numbered / time.Since(from).Seconds(), Claims: b.result.S2.Claims, Goal: goalS10}
	s.Ratio = s.Records / s.Claims
	b.result.S10 = s
	s.print(b.out)
	return nil
}

// noneWaits returns when every audit row has its number.
func (b *bench) noneWaits(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, openIn)
	defer cancel()
	for waits := true; waits; {
		if err := b.store.QueryRow(ctx, `SELECT EXISTS (SELECT FROM nw.audit_waiting), pg_sleep(0.01)::text`).Scan(&waits, nil); err != nil {
			return err
		}
	}
	return nil
}
