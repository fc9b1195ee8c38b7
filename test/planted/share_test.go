package planted

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// admitters renew without a pause, and each admission lasts for 100 ms in any build: so it is the lock that decides, and not how busy this machine is.
const admitters = 16

var lasting = bug{"renew", "  d := nw.admitting();", "  d := nw.admitting();\n  PERFORM pg_sleep(0.1);"}

// saturated closes a gate with that many admissions under way, and opens it again, and says how long each close took: at most limit.
func saturated(t *testing.T, closes int, limit time.Duration, bugs ...bug) (took []time.Duration) {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	authority, operator := patientPool(t, w, "nw_authority"), patientPool(t, w, "nw_operator")
	under := make(chan struct{}, admitters)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	for range admitters {
		l := w.Held(t, fixture.TaskOptions{})
		all.Go(func() {
			for ctx.Err() == nil {
				if verdict, _ := l.Renew(fixture.Random()).Verdict(context.Background(), authority); verdict == "ok" {
					select {
					case under <- struct{}{}:
					default:
					}
				}
			}
		})
	}
	plantIn(t, w, append(bugs, lasting))
	for n := range closes {
		if n > 0 {
			w.Exec(t, `UPDATE nw.readiness_decision SET held = false`)
			w.OpenGate(t)
		}
		for range 2 * admitters { // each has come round since
			<-under
		}
		took = append(took, timeToClose(operator, limit))
	}
	return took
}

func timeToClose(operator *pgxpool.Pool, limit time.Duration) time.Duration {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	began := time.Now()
	_, err := operator.Exec(ctx, `SELECT nw.gate_close('drill')`)
	if err != nil {
		return limit
	}
	return time.Since(began)
}

// patientPool waits longer than production does, where a close would fail instead of waiting.
func patientPool(t *testing.T, w *fixture.World, role string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := pg.Open(ctx, pg.Config{URL: w.DB.URL(role) + "&options=-c%20lock_timeout%3D1min%20-c%20statement_timeout%3D1min", MaxConns: admitters})
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// Under saturated admission a close comes through promptly, because the advisory lock queues (design.md §3). With a share lock on the
// decision's row newcomers overtake it for ever.
func TestPlantedStarvation(t *testing.T) {
	t.Parallel()
	t.Run("FOR SHARE on the decision instead of the advisory lock", func(t *testing.T) {
		var sound, limit, starved time.Duration
		for range 3 { // how fair the machine is to those who wait differs from time to time
			sound = slices.Max(saturated(t, 5, patience))
			limit = max(5*sound, 2*time.Second)
			starved = saturated(t, 1, limit,
				bug{"enter", "  PERFORM pg_advisory_xact_lock_shared(nw.gate_key());\n", ""},
				bug{"alone", "  PERFORM pg_advisory_xact_lock(nw.gate_key());\n", ""},
				bug{"admitting", "timeline = nw.timeline();", "timeline = nw.timeline() FOR SHARE;"})[0]
			t.Log("a close took at most", sound, "and then", starved)
			if sound < 10*time.Second && starved >= limit {
				return
			}
		}
		require.Less(t, sound, 10*time.Second, "the sound database is found guilty")
		require.GreaterOrEqual(t, starved, limit, "the planted bug was not caught")
	})
}
