package worker

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// footprint is what so many runs that are held at once take, and what one effect of each has cost.
type footprint struct {
	heap, stacks           int64 // bytes; the heap's with what the fake servers note
	claims, mints, effects int
}

// holdMany holds runs at once, each with one committed effect.
func holdMany(t testing.TB, runs int) (f footprint) {
	b := newBench(t)
	b.lease = 10 * time.Minute
	b.q = &queue{messages: make(chan *fakeMessage, runs), told: make(chan string, 2*runs)}
	b.config.Source = b.q
	for range runs {
		b.q.push(b.addRun().ref)
	}
	w, err := New(b.config)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	heap, stacks := memory()
	arrived, release := make(chan struct{}, runs), make(chan struct{})
	var all sync.WaitGroup
	for range runs {
		all.Go(func() {
			assert.NoError(t, w.Run(ctx, func(ctx context.Context, run *Run) error {
				_, err := run.Do(ctx, b.effect("one"))
				arrived <- struct{}{}
				<-release
				return err
			}))
		})
	}
	for range runs {
		<-arrived
	}
	f.claims, f.mints, f.effects = b.count(vClaim), b.count(vMint), b.count(vGuard)
	f.heap, f.stacks = memory()
	f.heap, f.stacks = f.heap-heap, f.stacks-stacks
	stop()
	close(release)
	all.Wait()
	return f
}

func memory() (heap, stacks int64) {
	for range 5 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse) //nolint:gosec // no machine has so much
}

// A thousand runs held at once take less than 10 MB beside their handlers' stacks, of which a hundred are held here; and each
// effect costs one request at the authority and one at its guard. It is not parallel: others would be measured, too.
func TestFootprint(t *testing.T) {
	const runs = 100
	f := holdMany(t, runs)
	t.Logf("a run that is held takes %.1f kB, and %.1f kB of stacks", float64(f.heap)/1e3/runs, float64(f.stacks)/1e3/runs)
	assert.Less(t, f.heap/runs, int64(10<<20/1000))
	assert.Equal(t, runs, f.mints, "one request for each effect at the authority")
	assert.Equal(t, runs, f.effects, "and one at the guard")
	assert.Less(t, f.claims, 2*runs, "only the first requests of all learn a nonce")
}

// The same for a thousand.
func BenchmarkThousandRuns(b *testing.B) {
	const runs = 1000
	for range b.N {
		f := holdMany(b, runs)
		b.ReportMetric(float64(f.heap)/1e6, "MB-heap")
		b.ReportMetric(float64(f.stacks)/1e6, "MB-stacks")
		b.ReportMetric(float64(f.mints)/runs, "mints/effect")
		b.ReportMetric(float64(f.effects)/runs, "guard-calls/effect")
	}
}
