package bench

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

func TestTimed(t *testing.T) {
	t.Parallel()
	n := 0
	p, err := timed(100, func() (int, error) { n++; return n, nil })
	require.NoError(t, err)
	assert.Equal(t, 100, p.Bytes)
	assert.LessOrEqual(t, p.Best, p.P50)
	assert.LessOrEqual(t, p.P50, p.P99)
	broken := errors.New("no answer")
	_, err = timed(100, func() (int, error) { return 0, broken })
	require.ErrorIs(t, err, broken)
}

// With few tasks and runs everything is read, and weighs something.
func TestPages(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-bench-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL's account must get to its own directory
	var out bytes.Buffer
	r, err := Pages(t.Context(), PagesOptions{Dir: dir, Tasks: 100, Runs: 1000, Each: 2}, &out)
	if errors.Is(err, localstack.ErrNoPostgres) && os.Getenv("CI") != "true" {
		t.Skip("PostgreSQL is not installed")
	}
	require.NoError(t, err, out.String())
	for name, of := range map[string]map[string]Page{"reads": r.Reads, "pages": r.Pages} {
		require.Greater(t, len(of), 10, name)
		for what, p := range of {
			assert.Positive(t, p.Bytes, what)
			assert.Positive(t, p.P99, what)
		}
	}
	for name, p := range r.Pages {
		assert.Less(t, p.Bytes, goalWeight, name)
	}
}
