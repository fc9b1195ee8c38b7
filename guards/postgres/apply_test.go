package postgres

import (
	"context"
	"errors"
	"strings"
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

func TestLowerFenceChangesNothing(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(appendOrder("1")))
	first := goAhead("row.append", 7, `{"table":"orders","values":{"id":"first"}}`)
	ending, err := l.Apply(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)

	lower := goAhead("custom", 6, `{}`)
	lower.Lane = first.Lane
	ending, err = l.Apply(t.Context(), lower)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.FenceStale}, ending)
	require.Equal(t, 1, r.count(t, "orders"))
	require.Equal(t, 1, r.count(t, "nightwarrant_guard.fences WHERE fence = 7"))
	require.Equal(t, 1, r.count(t, "nightwarrant_guard.effects WHERE effect = $1 AND outcome = 'tombstone'", lower.Effect[:]))

	elsewhere := goAhead("custom", 1, `{}`)
	ending, err = l.Apply(t.Context(), elsewhere)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome, "another lane has its own fence")
}

// TestFencesOrderALane: applied exactly when no higher fence was applied before, whatever the order.
func TestFencesOrderALane(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(func(context.Context, pgx.Tx) (any, error) { return nil, nil }))
	rapid.Check(t, func(rt *rapid.T) {
		lane, highest := guards.NewRef(), int64(0)
		for _, fence := range rapid.SliceOfN(rapid.Int64Range(1, 5), 1, 5).Draw(rt, "fences") {
			a := goAhead("custom", fence, `{}`)
			a.Lane = lane
			ending, err := l.Apply(t.Context(), a)
			require.NoError(rt, err)
			if fence >= highest {
				require.Equal(rt, guards.Committed, ending.Outcome)
			} else {
				require.Equal(rt, api.FenceStale, ending.Reason)
			}
			highest = max(highest, fence)
		}
	})
}

func TestOperationThatFailsIsNotApplied(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	r.exec(t, `CREATE TABLE pairs (id text UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	r.exec(t, `GRANT INSERT ON pairs TO PUBLIC`)
	write := func(then func(ctx context.Context, tx pgx.Tx) (any, error)) func(ctx context.Context, tx pgx.Tx) (any, error) {
		return func(ctx context.Context, tx pgx.Tx) (any, error) {
			if _, err := appendOrder("1")(ctx, tx); err != nil {
				return nil, err
			}
			return then(ctx, tx)
		}
	}
	sql := func(text string) func(ctx context.Context, tx pgx.Tx) (any, error) {
		return write(func(ctx context.Context, tx pgx.Tx) (any, error) {
			_, err := tx.Exec(ctx, text)
			return nil, err
		})
	}
	answer := func(v any) func(ctx context.Context, tx pgx.Tx) (any, error) {
		return write(func(context.Context, pgx.Tx) (any, error) { return v, nil })
	}
	for name, c := range map[string]struct {
		do     func(context.Context, pgx.Tx) (any, error)
		reason api.Code
	}{
		"an error":              {write(func(context.Context, pgx.Tx) (any, error) { return nil, errors.New("no") }), ""},
		"a panic":               {write(func(context.Context, pgx.Tx) (any, error) { panic("no") }), ""},
		"a commit of its own":   {write(func(ctx context.Context, tx pgx.Tx) (any, error) { return nil, tx.Commit(ctx) }), ""},
		"a rollback of its own": {write(func(ctx context.Context, tx pgx.Tx) (any, error) { return nil, tx.Rollback(ctx) }), ""},
		"an error kept quiet": {write(func(ctx context.Context, tx pgx.Tx) (any, error) {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil, nil
		}), ""},
		"a duplicate":           {sql(`INSERT INTO orders (id) VALUES ('1')`), api.InvalidRequest},
		"a value that is none":  {sql(`INSERT INTO orders (id, cents) VALUES ('2', 'x')`), api.InvalidRequest},
		"a check":               {sql(`INSERT INTO orders (id, cents) VALUES ('2', -1)`), api.InvalidRequest},
		"a deferred constraint": {sql(`INSERT INTO pairs VALUES ('a'), ('a')`), api.InvalidRequest},
		"a missing grant":       {sql(`DELETE FROM pairs`), ""},
		"the ledger itself":     {sql(`DELETE FROM nightwarrant_guard.effects`), ""},
		"a result that is text": {answer("x"), api.InvalidRequest},
		"a result too large":    {answer(map[string]string{"a": strings.Repeat("x", maxResult)}), api.InvalidRequest},
		"a result without JSON": {answer(make(chan int)), api.InvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			l := r.ledger(t, r.pool(t), doing(c.do))
			a := goAhead("custom", 1, `{}`)
			ending, err := l.Apply(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: c.reason}, ending)
			require.Zero(t, r.count(t, "orders")+r.count(t, "pairs"))
			require.Equal(t, 1, r.count(t, "nightwarrant_guard.effects WHERE effect = $1 AND outcome = 'tombstone'", a.Effect[:]))
		})
	}
}

func TestOperationThatTakesTooLongIsNotApplied(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	for name, do := range map[string]func(context.Context, pgx.Tx) (any, error){
		"in the database": func(ctx context.Context, tx pgx.Tx) (any, error) {
			_, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT pg_sleep(60)::text`)
			return nil, err
		},
		"in the program": func(ctx context.Context, tx pgx.Tx) (any, error) {
			_, _ = appendOrder("1")(ctx, tx)
			<-ctx.Done()
			return nil, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := r.ledger(t, r.pool(t), doing(do))
			a := goAhead("custom", 1, `{}`)
			began := time.Now()
			a.Left = func() time.Duration { return 300*time.Millisecond - time.Since(began) }
			ending, err := l.Apply(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate}, ending)
			require.Less(t, time.Since(began), 10*time.Second)
			require.Zero(t, r.count(t, "orders"))
		})
	}
}

// TestTimeIsJudgedInTheLastStatement: by the database's clock, and by the guard's once more.
func TestTimeIsJudgedInTheLastStatement(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	pool := r.pool(t)
	s := store{viaPgx{pool}, defaultSchema}
	tx, err := s.db.begin(t.Context())
	require.NoError(t, err)
	inTime, tooLate := s.inTime(t.Context(), tx, time.Hour), s.inTime(t.Context(), tx, 0)
	require.NoError(t, tx.end(t.Context(), false))
	require.NoError(t, inTime)
	require.Equal(t, api.TooLate, reasonOf(tooLate), "something has passed since BEGIN")

	left := []time.Duration{time.Hour, 0} // before BEGIN, and before COMMIT
	a := goAhead("custom", 1, `{}`)
	a.Left = func() (d time.Duration) { d, left = left[0], left[1:]; return d }
	ending, err := r.ledger(t, pool, doing(appendOrder("1"))).Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate}, ending)
	require.Zero(t, r.count(t, "orders"))
}

// TestTombstoneEndsAnAttemptForGood: an old transaction that comes late fails on it (P14).
func TestTombstoneEndsAnAttemptForGood(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(appendOrder("1")))
	a := goAhead("custom", 1, `{}`)
	proven, err := l.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
	ending, err := l.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.EffectSettled}, ending)
	require.Zero(t, r.count(t, "orders"))
	require.ErrorIs(t, l.Intend(t.Context(), a.Attempt), guards.ErrSettled)
}

// TestProofWaitsForATransactionUnderWay: it neither overtakes it nor guesses.
func TestProofWaitsForATransactionUnderWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fails error
		want  guards.Outcome
	}{"that commits": {nil, guards.Committed}, "that rolls back": {errors.New("no"), guards.NotApplied}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newResource(t)
			working, finish := make(chan struct{}), make(chan struct{})
			l := r.ledger(t, r.pool(t), doing(func(ctx context.Context, tx pgx.Tx) (any, error) {
				_, err := appendOrder("1")(ctx, tx)
				close(working)
				<-finish
				return nil, errors.Join(err, c.fails)
			}))
			a := goAhead("custom", 1, `{}`)
			var group sync.WaitGroup
			group.Go(func() {
				ending, err := l.Apply(t.Context(), a)
				assert.NoError(t, err)
				assert.Equal(t, c.want, ending.Outcome)
			})
			<-working
			group.Go(func() {
				proven, err := l.Prove(t.Context(), a.Effect, a.ID)
				assert.NoError(t, err)
				assert.Equal(t, c.want, proven.Outcome)
			})
			r.waitForLock(t)
			close(finish)
			group.Wait()
			require.Equal(t, c.want == guards.Committed, r.count(t, "orders") == 1)
		})
	}
}

func TestProofDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	working, finish := make(chan struct{}), make(chan struct{})
	l := r.ledger(t, r.pool(t), doing(func(context.Context, pgx.Tx) (any, error) {
		close(working)
		<-finish
		return nil, nil
	}))
	a := goAhead("custom", 1, `{}`)
	var group sync.WaitGroup
	group.Go(func() {
		_, err := l.Apply(t.Context(), a)
		assert.NoError(t, err)
	})
	<-working
	proven, err := l.Prove(t.Context(), a.Effect, a.ID)
	close(finish)
	group.Wait()
	require.ErrorContains(t, err, "SQLSTATE 55P03", "not known yet: it waited for the lock long enough")
	require.Empty(t, proven.Outcome)
	proven, err = l.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, proven.Outcome)
}

func TestCommitWhoseWordIsLostIsReadBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fate int32
		want guards.Outcome
		rows int
	}{"it had arrived": {loseWord, guards.Committed, 1}, "it had not": {loseIt, guards.NotApplied, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newResource(t)
			pool, line := r.cuttablePool(t)
			l := r.ledger(t, pool, doing(appendOrder("1")))
			line.commit.Store(c.fate)
			ending, err := l.Apply(t.Context(), goAhead("custom", 1, `{}`))
			require.NoError(t, err)
			require.Equal(t, c.want, ending.Outcome)
			require.Equal(t, c.rows, r.count(t, "orders"))
			require.Equal(t, c.rows == 1, len(ending.Result) > 0, "the answer is kept over the lost word")
		})
	}
}

func TestCommitThatCannotBeReadBackIsUnknownUntilItCan(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	pool, line := r.cuttablePool(t)
	l := r.ledger(t, pool, doing(appendOrder("1")))
	line.commit.Store(loseAll)
	a := goAhead("custom", 1, `{}`)
	ending, err := l.Apply(t.Context(), a)
	require.Error(t, err)
	require.Empty(t, ending)
	line.severed.Store(false)
	proven, err := l.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, proven.Outcome)
	require.Equal(t, 1, r.count(t, "orders"))
}

// TestSlowOperationsLeaveConnectionsForProofs: a busy guard must not pass for a dead one.
func TestSlowOperationsLeaveConnectionsForProofs(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	pool := r.pool(t)
	working, finish := make(chan struct{}, 64), make(chan struct{})
	l := r.ledger(t, pool, doing(func(context.Context, pgx.Tx) (any, error) {
		working <- struct{}{}
		<-finish
		return nil, nil
	}))
	var group sync.WaitGroup
	for range 2 * int(pool.Config().MaxConns) {
		group.Go(func() {
			_, err := l.Apply(t.Context(), goAhead("custom", 1, `{}`))
			assert.NoError(t, err)
		})
	}
	for range int(pool.Config().MaxConns) - reserved {
		<-working
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	proven, err := l.Prove(ctx, guards.NewRef(), guards.NewRef())
	close(finish)
	group.Wait()
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
}

func TestSameAttemptTwiceIsAppliedOnce(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	l := r.ledger(t, r.pool(t), doing(func(ctx context.Context, tx pgx.Tx) (any, error) {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT gen_random_uuid()::text`)
		return nil, err
	}))
	a := goAhead("custom", 1, `{}`)
	for range 2 {
		ending, err := l.Apply(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, guards.Committed, ending.Outcome)
	}
	require.Equal(t, 1, r.count(t, "orders"))
}

// TestManyAttemptsOfOneEffectApplyItOnce, even if an authority had lost its mind and admitted all of them.
func TestManyAttemptsOfOneEffectApplyItOnce(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	operations := doing(func(ctx context.Context, tx pgx.Tx) (any, error) {
		_, err := tx.Exec(ctx, `INSERT INTO orders (id) SELECT gen_random_uuid()::text`)
		return nil, err
	})
	replicas := []*Ledger{r.ledger(t, r.pool(t), operations), r.ledger(t, r.pool(t), operations)}
	one := goAhead("custom", 1, `{}`)
	outcomes := make(chan guards.Outcome, 40)
	var group sync.WaitGroup
	for i := range cap(outcomes) {
		a := one
		a.ID = guards.NewRef()
		group.Go(func() {
			ending, err := replicas[i%2].Apply(t.Context(), a)
			assert.NoError(t, err)
			outcomes <- ending.Outcome
		})
	}
	group.Wait()
	close(outcomes)
	count := map[guards.Outcome]int{}
	for o := range outcomes {
		count[o]++
	}
	require.Equal(t, map[guards.Outcome]int{guards.Committed: 1, guards.Ambiguous: 39}, count)
	require.Equal(t, 1, r.count(t, "orders"))
}

func TestActionThatIsNoneIsNotApplied(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	ending, err := r.ledger(t, r.pool(t), nil).Apply(t.Context(), goAhead("row.truncate", 1, `{}`))
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.NotFound}, ending)
}

func TestResourceThatIsAwayIsUnknownAfterAdmission(t *testing.T) {
	t.Parallel()
	r := newResource(t)
	pool, line := r.cuttablePool(t)
	l := r.ledger(t, pool, doing(appendOrder("1")))
	line.severed.Store(true)
	a := goAhead("custom", 1, `{}`)
	require.Error(t, l.Intend(t.Context(), a.Attempt))
	_, err := l.Probe(t.Context())
	require.Error(t, err)
	_, err = l.Apply(t.Context(), a)
	require.Error(t, err)
	line.severed.Store(false)
	proven, err := l.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
}
