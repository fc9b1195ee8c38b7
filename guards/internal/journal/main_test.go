package journal

import (
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/guards"
)

func TestMain(m *testing.M) {
	if os.Getenv(envChild) != "" {
		os.Exit(child())
	}
	_ = flag.Set("rapid.checks", "40") // each is a journal with some thirty commits and openings; -rapid.checks=1000 is the long form
	goleak.VerifyTestMain(m)
}

// create makes a journal in a directory of its own.
func create(t *testing.T) (*Journal, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ledger")
	return reopen(t, dir, Options{Create: true}), dir
}

func reopen(t *testing.T, dir string, o Options) *Journal {
	t.Helper()
	o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	o.Free = 1
	o.Wait = 20 * time.Second // of a loaded machine
	j, err := Open(dir, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = j.Close() }) // once more does nothing
	return j
}

// refused opens what must not be opened, and returns why.
func refused(t *testing.T, dir string) error {
	t.Helper()
	j, err := Open(dir, Options{Create: true})
	if !assert.ErrorIs(t, err, guards.ErrSettings) && err == nil {
		require.NoError(t, j.Close())
	}
	return err
}

// probe asks once more where a loaded machine takes longer than a probe waits.
func probe(j *Journal) (seen guards.Seen, err error) {
	for range 20 {
		if seen, err = j.Probe(); !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return seen, err
}

const someParams = `{"text":"<a> & b"}`

func attempt() guards.Attempt {
	return guards.Attempt{Effect: guards.NewRef(), ID: guards.NewRef(), Action: "order.pay", Digest: [32]byte{1}, Params: json.RawMessage(someParams)}
}

// goAhead is for an attempt that was written ahead.
func goAhead(t *testing.T, j *Journal, lane guards.Ref, fence int64) guards.Admitted {
	t.Helper()
	a := attempt()
	require.NoError(t, j.Intend(a))
	return admitted(a, lane, fence)
}

func admitted(a guards.Attempt, lane guards.Ref, fence int64) guards.Admitted {
	return guards.Admitted{Attempt: a, Run: guards.NewRef(), Lane: lane, Fence: fence, Number: 100 + fence, Left: func() time.Duration { return time.Minute }}
}

func proven(t *testing.T, j *Journal, a guards.Attempt) guards.Ending {
	t.Helper()
	ending, err := j.Prove(a.Effect, a.ID)
	require.NoError(t, err)
	return ending
}

var sentAt = time.UnixMilli(1764450000123)
