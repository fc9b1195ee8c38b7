package readiness

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAProbeAnswersForItself(t *testing.T) {
	t.Parallel()
	for want, look := range map[string]func(context.Context) (string, error){
		Good:      func(context.Context) (string, error) { return Good, nil },
		Canary:    func(context.Context) (string, error) { return Canary, errBroken },
		Unhealthy: func(context.Context) (string, error) { panic("broken") },
	} {
		var looks sync.WaitGroup
		ask := Probe{Look: look}.answering(&looks)
		for range 3 {
			assert.Equal(t, want, ask(t.Context()).reason)
		}
		looks.Wait()
	}
}

// A probe that ignores its context is stale when its time is over. It is not
// asked again while it goes on, and what it says too late counts for nothing.
func TestAProbeThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var looks sync.WaitGroup
		begun := 0
		release := make(chan struct{})
		ask := Probe{Look: func(context.Context) (string, error) {
			begun++
			<-release
			return Good, nil
		}}.answering(&looks)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			asked := time.Now()
			assert.Equal(t, Stale, ask(ctx).reason)
			assert.LessOrEqual(t, time.Since(asked), time.Second)
			cancel()
		}
		synctest.Wait()
		require.Equal(t, 1, begun)
		close(release)
		looks.Wait()
		assert.Equal(t, Good, ask(t.Context()).reason, "it is asked anew, and its late answer is gone")
		assert.Equal(t, 2, begun)
		looks.Wait()
	})
}

// A probe that was cut off in the middle is given its end before whoever asked
// it ends.
func TestAProbeEndsWithItsReporter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		ended := false
		var looks sync.WaitGroup
		ask := Probe{Look: func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(time.Minute) // whatever has to be put away
			ended = true
			return Good, nil
		}}.answering(&looks)
		go func() { time.Sleep(time.Second); stop() }()
		assert.Equal(t, Stale, ask(ctx).reason)
		looks.Wait()
		assert.True(t, ended)
	})
}
