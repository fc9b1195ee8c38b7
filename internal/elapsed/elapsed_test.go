package elapsed

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clocks are a machine's three clocks. The wall clock of a time.Time can be moved apart from the monotonic one by
// stripping that one; together they cannot be faked, so each case moves one.
func TestLargestOfTheClocksCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		wall, boot, want time.Duration
	}{
		"the wall clock jumps ahead":        {wall: time.Hour, want: time.Hour},
		"the machine was suspended":         {boot: 10 * time.Minute, want: 10 * time.Minute},
		"the wall clock was set back":       {wall: -time.Hour, boot: 3 * time.Second, want: 3 * time.Second},
		"the wall clock was set back alone": {wall: -time.Hour, want: 0},
		"both":                              {wall: time.Minute, boot: time.Second, want: time.Minute},
	} {
		now, up := time.Now().Round(0), 5*time.Hour
		w := StartOn(func() time.Time { return now }, func() time.Duration { return up })
		now, up = now.Add(c.wall), up+c.boot
		require.Equal(t, c.want, w.Elapsed(), name)
	}
}

func TestMonotonicTimeCountsWhenTheWallClockIsSetBack(t *testing.T) {
	t.Parallel()
	began := time.Now()
	now := began
	w := StartOn(func() time.Time { return now }, func() time.Duration { return 0 })
	now = began.Add(time.Second) // moves both readings
	require.Equal(t, time.Second, w.Elapsed())
}

func TestTimePasses(t *testing.T) {
	t.Parallel()
	w := Start(nil)
	before := w.Elapsed()
	for w.Elapsed() <= before { // ends when any clock moves
	}
	if runtime.GOOS == "linux" {
		require.Positive(t, sinceBoot())
	}
}
