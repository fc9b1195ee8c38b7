package journal

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
)

// commits counts the transactions of a journal.
func commits(t testing.TB, j *Journal) (n int) {
	t.Helper()
	require.NoError(t, j.change(func(x *txn) error {
		n = x.tx.ID()
		return nil
	}))
	return n
}

// TestEffectsAtOnceShareCommits: while one is made the next gather.
func TestEffectsAtOnceShareCommits(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	before := commits(t, j)
	var group sync.WaitGroup
	hold, held := make(chan struct{}), make(chan struct{})
	group.Go(func() {
		assert.NoError(t, j.change(func(*txn) error { close(held); <-hold; return nil }))
	})
	<-held
	for range 64 {
		group.Go(func() { assert.NoError(t, j.Intend(attempt())) })
	}
	gathered := assert.Eventually(t, func() bool { return len(j.calls) == 64 }, 10*time.Second, time.Millisecond)
	close(hold)
	group.Wait()
	require.True(t, gathered)
	require.LessOrEqual(t, commits(t, j)-before, 2)
}

// TestACallThatNobodyWaitsForAnyMoreIsNotMade, where it had not begun.
func TestACallThatNobodyWaitsForAnyMoreIsNotMade(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	hold, held := make(chan struct{}), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		assert.NoError(t, j.change(func(*txn) error { close(held); <-hold; return nil }))
	})
	<-held
	err := j.do(&call{wait: time.Millisecond, do: func(*txn) error { t.Error("it was made"); return nil }})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	close(hold)
	group.Wait()
	_, err = probe(j)
	require.NoError(t, err)
}

// TestAPanicSpoilsNothing: the whole batch fails, and a probe brings the journal back.
func TestAPanicSpoilsNothing(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	a := goAhead(t, j, guards.NewRef(), 1)
	require.ErrorIs(t, j.change(func(x *txn) error {
		x.put(bucketEffects, a.Effect[:], effect{Stage: ended})
		panic("of a page")
	}), guards.ErrSettings)
	require.ErrorIs(t, j.StartSending(a, sentAt), guards.ErrSettings)
	_, err := probe(j)
	require.NoError(t, err)
	require.NoError(t, j.StartSending(a, sentAt), "as it was before")
}

// TestAMarkThatCannotBeWritten: what was committed stands, and nothing more is until a probe.
func TestAMarkThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	a := attempt()
	require.NoError(t, j.change(func(x *txn) error {
		_ = j.writer.mark.file.Close()
		x.changed = true
		return nil
	}))
	require.ErrorIs(t, j.Intend(a), guards.ErrSettings)
	_, err := probe(j)
	require.NoError(t, err)
	require.NoError(t, j.Intend(a))
}

// TestARowThatIsDamagedIsBelievedByNobody: found at its first use too, not only at the start.
func TestARowThatIsDamagedIsBelievedByNobody(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	a := goAhead(t, j, guards.NewRef(), 1)
	b := goAhead(t, j, guards.NewRef(), 1)
	require.NoError(t, j.StartSending(b, sentAt))
	require.NoError(t, j.change(func(x *txn) error { // the row of another effect in its place
		other := x.bucket(bucketEffects).Get(b.Effect[:])
		x.fail(x.bucket(bucketEffects).Put(a.Effect[:], other))
		x.changed = true
		return nil
	}))
	_, err := j.Prove(a.Effect, a.ID)
	require.ErrorIs(t, err, guards.ErrSettings)
	_, err = probe(j)
	require.ErrorIs(t, err, guards.ErrSettings)
	require.NoError(t, j.Close())
	require.ErrorIs(t, refused(t, dir), errSum)
}

func TestCloseAnswersWhatWasCalledBefore(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	acknowledged := make(chan guards.Attempt, 64)
	var group sync.WaitGroup
	for range cap(acknowledged) {
		a := attempt()
		group.Go(func() {
			if err := j.Intend(a); err == nil {
				acknowledged <- a
			} else {
				assert.ErrorIs(t, err, errClosed)
			}
		})
	}
	require.NoError(t, j.Close())
	group.Wait()
	close(acknowledged)
	j = reopen(t, dir, Options{})
	for a := range acknowledged {
		require.Equal(t, guards.NotApplied, proven(t, j, a).Outcome, "it was written ahead")
	}
}

// BenchmarkEffect is one effect from its intent to its end, alone and with 63 others: what one fsync is shared by. BenchmarkSync is
// what the disk does at most without sharing.
func BenchmarkEffect(b *testing.B) {
	for name, together := range map[string]int{"alone": 1, "of 64": 64} {
		b.Run(name, func(b *testing.B) {
			j, err := Open(filepath.Join(b.TempDir(), "ledger"), Options{Create: true, Wait: time.Minute})
			require.NoError(b, err)
			defer j.Close()
			before := commits(b, j)
			lane := guards.NewRef()
			queue := make(chan struct{})
			var group sync.WaitGroup
			for range together {
				group.Go(func() {
					for range queue {
						a := admitted(attempt(), lane, 1)
						err := j.Intend(a.Attempt)
						if err == nil {
							_, err = j.Once(a, func() guards.Ending { return committed })
						}
						assert.NoError(b, err)
					}
				})
			}
			for b.Loop() {
				queue <- struct{}{}
			}
			close(queue)
			group.Wait()
			b.ReportMetric(float64(commits(b, j)-before)/float64(b.N), "commits/op")
		})
	}
}

func BenchmarkSync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "file"))
	require.NoError(b, err)
	defer f.Close()
	for b.Loop() {
		_, err := f.WriteAt(make([]byte, pageSize), 0)
		require.NoError(b, errors.Join(err, f.Sync()))
	}
}
