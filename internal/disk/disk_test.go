package disk

import (
	"math"
	"math/big"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNothingIsWatched(t *testing.T) {
	t.Parallel()
	require.NoError(t, Watch{}.Check())
	require.NoError(t, Watch{Free: math.MaxUint64, Percent: 100}.Check())
}

// What cannot be examined is not free.
func TestWhatCannotBeExaminedIsBad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "absent"), "", "a\x00b"} {
		require.ErrorContains(t, Watch{Paths: []string{dir, path}}.Check(), "cannot be examined", "%q", path)
	}
	if _, err := os.Stat("/proc/self"); err == nil {
		require.ErrorContains(t, Watch{Paths: []string{"/proc"}}.Check(), "without a size")
	}
}

// A bound above and one below what is free, on the file system of the tests.
func TestBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r, err := roomAt(dir)
	require.NoError(t, err)
	require.NotZero(t, r.free)
	require.NoError(t, Watch{Paths: []string{dir}, Free: 1}.Check())
	for _, w := range []Watch{{Free: r.bytes + 1}, {Percent: 101}} {
		w.Paths = []string{dir}
		full := w.Check()
		require.ErrorContains(t, full, dir)
		require.ErrorContains(t, full, "bytes free")
	}
}

func TestEnough(t *testing.T) {
	t.Parallel()
	w := Watch{Free: 100, Percent: 10}
	for _, c := range []struct {
		room room
		want string
	}{
		{room{}, "is on a file system without a size"},
		{room{bytes: 1000, free: 100}, ""},
		{room{bytes: 1000, free: 99}, "has 99 of 1000 bytes free"},
		{room{bytes: 5000, free: 499}, "has 499 of 5000 bytes free"},
		{room{bytes: 5000, free: 500, files: 50, freeFiles: 5}, ""},
		{room{bytes: 5000, free: 500, files: 50, freeFiles: 4}, "has 4 of 50 files free"},
	} {
		err := w.enough(c.room)
		if c.want == "" {
			assert.NoError(t, err, "%+v", c.room)
			continue
		}
		assert.EqualError(t, err, c.want)
	}
}

func TestShareIsExactAndNeverOverflows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole, percent := rapid.Uint64().Draw(t, "whole"), rapid.Uint64Range(0, 100).Draw(t, "percent")
		want := new(big.Int).Mul(new(big.Int).SetUint64(whole), new(big.Int).SetUint64(percent))
		want.Div(want, big.NewInt(100))
		require.Equal(t, want.Uint64(), share(whole, percent))
	})
}

func TestASignalIsNoAnswer(t *testing.T) {
	t.Parallel()
	calls := 0
	err := ignoringSignals(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EIO
	})
	require.ErrorIs(t, err, unix.EIO)
	require.Equal(t, 3, calls)
}
