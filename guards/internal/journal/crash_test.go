package journal

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

// The child is this test binary, which works on a journal and is killed.
const (
	envChild  = "NIGHTWARRANT_JOURNAL_CHILD" // the directory
	envStep   = "NIGHTWARRANT_JOURNAL_STEP"  // after which step it kills itself; 0 is never
	childSent = "sent"                       // file of what really happened: a byte for each time
)

// steps are those of one effect. A kill comes after each of them, and within each of them in the test below it.
var steps = []string{"nothing", "intend", "start", "sending", "send", "end"}

var crashing = func() guards.Admitted {
	a := attempt()
	for i := range a.Effect {
		a.Effect[i], a.ID[i] = byte(i), byte(100+i)
	}
	return admitted(a, guards.Ref{1}, 3)
}()

func child() int {
	dir := os.Getenv(envChild)
	last, _ := strconv.Atoi(os.Getenv(envStep))
	j, err := Open(filepath.Join(dir, "ledger"), Options{Create: true, Free: 1, Wait: time.Minute})
	if err != nil {
		return 1
	}
	if last < 0 {
		return flood(j, dir)
	}
	for i, do := range []func() error{
		func() error { return nil },
		func() error { return j.Intend(crashing.Attempt) },
		func() error { return j.Start(crashing) },
		func() error { return j.Sending(crashing.Effect, sentAt) },
		func() error { return send(dir) },
		func() error { return j.End(crashing.Effect, committed) },
	} {
		if do() != nil {
			return 2
		}
		if i == last {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	return 3
}

// send is what happens at the resource.
func send(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, childSent), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write([]byte{'x'})
	return errors.Join(err, f.Close())
}

func startChild(t *testing.T, dir string, step int) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := exec.CommandContext(t.Context(), self)
	c.Env = append(os.Environ(), envChild+"="+dir, envStep+"="+strconv.Itoa(step))
	c.Stderr = t.Output()
	require.NoError(t, c.Start())
	return c
}

// killed waits for a child that must have been killed.
func killed(t *testing.T, c *exec.Cmd) {
	t.Helper()
	err := c.Wait()
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, -1, exit.ExitCode(), "it was to be killed: %v", err)
}

func sentBytes(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, childSent))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	return len(b)
}

// TestKilledBetweenAnyTwoSteps: proven rightly afterwards, and never done again.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	t.Parallel()
	want := map[string]guards.Outcome{"nothing": guards.Ambiguous, // which nobody asks for: an attempt that was not written ahead is not admitted
		"intend": guards.NotApplied, "start": guards.NotApplied, "sending": guards.Ambiguous, "send": guards.Ambiguous, "end": guards.Committed}
	for i, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			killed(t, startChild(t, dir, i))
			j := reopen(t, filepath.Join(dir, "ledger"), Options{})
			require.Equal(t, want[step], proven(t, j, crashing.Attempt).Outcome)
			if want[step] == guards.NotApplied {
				require.Zero(t, sentBytes(t, dir))
			}
			_, err := j.Once(crashing, func() guards.Ending { t.Fatal("sent again"); return committed })
			require.NoError(t, err)
			_, refused := errors.AsType[*api.Refusal](j.Start(crashing))
			require.True(t, refused)
		})
	}
}
