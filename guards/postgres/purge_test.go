package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

const deadlines = 7 // days, that authority lasts at most

// pass lets days go by, which nobody can make a ledger believe but its owner, without its triggers.
func (r *resource) pass(t require.TestingT, ctx context.Context, days int) {
	_, err := r.owner.Exec(ctx, fmt.Sprintf(`ALTER TABLE nightwarrant_guard.ledger DISABLE TRIGGER only_rises;
	  UPDATE nightwarrant_guard.ledger SET day = day + %d; ALTER TABLE nightwarrant_guard.ledger ENABLE TRIGGER only_rises`, days), pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
}

// TestNoReplayIsPossible: whatever is applied, proven, purged and repeated in whatever order, while authority could last no effect is applied
// twice, no end changes and no lane goes back.
func TestNoReplayIsPossible(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(func(ctx context.Context, tx pgx.Tx) (any, error) {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT gen_random_uuid()::text`)
		return nil, err
	}))
	type done struct {
		guards.Admitted
		end guards.Outcome
		day int
	}
	rapid.Check(t, func(rt *rapid.T) {
		day := 0
		lanes := []guards.Ref{guards.NewRef(), guards.NewRef()}
		fence, used := map[guards.Ref]int64{}, map[guards.Ref]int{}
		var all []*done
		young := func() *done {
			if len(all) == 0 {
				rt.Skip("nothing yet")
			}
			d := all[rapid.IntRange(0, len(all)-1).Draw(rt, "effect")]
			if day-d.day > deadlines {
				rt.Skip("too old")
			}
			return d
		}
		rt.Repeat(map[string]func(*rapid.T){
			"pass": func(rt *rapid.T) {
				days := rapid.IntRange(0, 4).Draw(rt, "days")
				day += days
				r.pass(rt, t.Context(), days)
			},
			"purge": func(rt *rapid.T) {
				_, err := l.store.purge(t.Context(), rapid.IntRange(1, 10).Draw(rt, "rows"))
				require.NoError(rt, err)
			},
			"apply": func(rt *rapid.T) {
				a := goAhead("custom", rapid.Int64Range(1, 5).Draw(rt, "fence"), `{}`)
				a.Lane = rapid.SampledFrom(lanes).Draw(rt, "lane")
				require.NoError(rt, l.Intend(t.Context(), a.Attempt))
				ending, err := l.Apply(t.Context(), a)
				require.NoError(rt, err)
				if a.Fence < fence[a.Lane] && day-used[a.Lane] <= deadlines {
					require.Equal(rt, api.FenceStale, ending.Reason)
				}
				if ending.Outcome == guards.Committed {
					fence[a.Lane], used[a.Lane] = a.Fence, day
				}
				all = append(all, &done{a, ending.Outcome, day})
			},
			"tombstone": func(*rapid.T) {
				a := goAhead("custom", 1, `{}`)
				ending, err := l.Prove(t.Context(), a.Effect, a.ID)
				require.NoError(rt, err)
				all = append(all, &done{a, ending.Outcome, day})
			},
			"replay": func(*rapid.T) {
				d := young()
				before := r.count(t, "orders")
				again := d.Admitted
				again.Fence = 100
				again.Lane = guards.NewRef()
				require.ErrorIs(rt, l.Intend(t.Context(), again.Attempt), guards.ErrSettled)
				ending, err := l.Apply(t.Context(), again)
				require.NoError(rt, err)
				require.Equal(rt, d.end, ending.Outcome)
				require.Equal(rt, before, r.count(t, "orders"))
			},
			"prove": func(*rapid.T) {
				d := young()
				ending, err := l.Prove(t.Context(), d.Effect, d.ID)
				require.NoError(rt, err)
				require.Equal(rt, d.end, ending.Outcome)
			},
		})
	})
}

// TestPurge forgets what is old, a bounded number of rows at a time, and never the highest of all.
func TestPurge(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(func(context.Context, pgx.Tx) (any, error) { return nil, nil }))
	for n := range int64(12) {
		a := goAhead("custom", 50-n, `{}`)
		a.Number = 100 - n
		require.NoError(t, l.Intend(t.Context(), a.Attempt))
		_, err := l.Apply(t.Context(), a)
		require.NoError(t, err)
	}
	rows := func() (n int) {
		for _, table := range []string{"effects", "fences", "intents"} {
			n += r.count(t, "nightwarrant_guard."+table)
		}
		return n
	}
	for _, days := range []int{0, 8, 1} { // of 9 none may be forgotten
		r.pass(t, t.Context(), days)
		n, err := l.store.purge(t.Context(), 1000)
		require.NoError(t, err)
		require.Zero(t, n)
		for _, table := range []string{"effects", "fences"} {
			_, err = r.owner.Exec(t.Context(), `DELETE FROM nightwarrant_guard.`+table)
			require.ErrorContains(t, err, "so early")
		}
	}
	r.pass(t, t.Context(), 1)
	for left := 36; left > 0; left -= 15 {
		require.Equal(t, left, rows())
		_, err := l.store.purge(t.Context(), 5)
		require.NoError(t, err)
	}
	require.Zero(t, rows())
	var fence, admission int64
	require.NoError(t, r.owner.QueryRow(t.Context(), `SELECT fence, admission FROM nightwarrant_guard.probe()`).Scan(&fence, &admission))
	require.Equal(t, []int64{50, 100}, []int64{fence, admission})
}

// TestPurgeWaitsForNobodyAndNobodyForIt: operations under way hold their lanes, another guard may be purging.
func TestPurgeWaitsForNobodyAndNobodyForIt(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	working, finish := make(chan struct{}), make(chan struct{})
	l := r.ledger(t, r.pool(t), doing(func(context.Context, pgx.Tx) (any, error) {
		close(working)
		<-finish
		return nil, nil
	}))
	old := goAhead("row.append", 1, `{"table":"orders","values":{"id":"old"}}`)
	_, err := l.Apply(t.Context(), old)
	require.NoError(t, err)
	r.pass(t, t.Context(), 10)
	var group sync.WaitGroup
	a := goAhead("custom", 2, `{}`)
	a.Lane = old.Lane // whose row is old, and is held
	group.Go(func() {
		ending, err := l.Apply(t.Context(), a)
		assert.NoError(t, err)
		assert.Equal(t, guards.Committed, ending.Outcome)
	})
	<-working
	n, err := l.store.purge(t.Context(), 100)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the effect, and not the lane")

	r.pass(t, t.Context(), 1)
	purging, err := r.owner.Begin(t.Context())
	require.NoError(t, err)
	_, err = purging.Exec(t.Context(), `SELECT nightwarrant_guard.purge(100)`)
	require.NoError(t, err)
	n, err = l.store.purge(t.Context(), 100)
	require.NoError(t, err)
	require.Zero(t, n)
	ending, err := l.Apply(t.Context(), goAhead("row.append", 1, `{"table":"orders","values":{"id":"new"}}`))
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)
	require.NoError(t, purging.Rollback(t.Context()))
	close(finish)
	group.Wait()
}

// TestDaysAreWorkedNotRead: a clock that jumps counts for minutes, one that goes back for nothing.
func TestDaysAreWorkedNotRead(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), nil)
	worked := func() (d time.Duration, day int) {
		_, err := l.store.purge(t.Context(), 1)
		require.NoError(t, err)
		require.NoError(t, r.owner.QueryRow(t.Context(), `SELECT worked, day FROM nightwarrant_guard.ledger`).Scan(&d, &day))
		return d, day
	}
	before, _ := worked()
	r.exec(t, `UPDATE nightwarrant_guard.ledger SET seen = clock_timestamp() - interval '1000 years'`)
	after, day := worked()
	require.Equal(t, 5*time.Minute, after-before)
	require.Zero(t, day)
	r.exec(t, `UPDATE nightwarrant_guard.ledger SET seen = clock_timestamp() + interval '1000 years'`)
	again, _ := worked()
	require.Equal(t, after, again)
	for range 24*60/5 - 1 {
		r.exec(t, `UPDATE nightwarrant_guard.ledger SET seen = clock_timestamp() - interval '5 minutes'`)
		_, day = worked()
	}
	require.Equal(t, 1, day)
}

// TestProbePurgesOnceInAWhile, and not at each report.
func TestProbePurgesOnceInAWhile(t *testing.T) {
	t.Parallel()
	l := &Ledger{now: func() time.Time { return time.Unix(1000, 0) }}
	require.True(t, l.purgeIsDue())
	require.False(t, l.purgeIsDue())
	l.now = func() time.Time { return time.Unix(1060, 0) }
	require.True(t, l.purgeIsDue())
}
