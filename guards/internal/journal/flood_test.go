package journal

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/guards"
)

const childTold = "told" // file of what the child was told: a line for each effect and step, written after the step

// flood works on many effects at once until it is killed. It writes down what it was told, and each sending before and after.
func flood(j *Journal, dir string) int {
	f, err := os.OpenFile(filepath.Join(dir, childTold), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 1
	}
	told := func(word string, a guards.Admitted) {
		_, _ = fmt.Fprintf(f, "%s %x %x\n", word, a.Effect[:], a.ID[:])
	}
	var group sync.WaitGroup
	for n := range 16 {
		group.Go(func() {
			for {
				a := admitted(attempt(), guards.Ref{byte(n)}, 1)
				if j.Intend(a.Attempt) != nil {
					return
				}
				told("intended", a)
				_, err := j.Once(a, func() guards.Ending {
					told("sent", a)
					return committed
				})
				if err != nil {
					return
				}
				told("committed", a)
			}
		})
	}
	group.Wait()
	return 1
}

// kills is how often the child is killed: six times, or as often as make conformance says.
func kills() int {
	if given, err := strconv.Atoi(os.Getenv("NIGHTWARRANT_GUARDTEST_KILLS")); err == nil && given > 0 {
		return given
	}
	if testing.Short() {
		return 2
	}
	return 6
}

// TestKilledAtAnyMoment: whatever was told before the kill is proven after it, and nothing that was sent is called not applied.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds, dir := kills(), t.TempDir()
	effects := 0
	for n := range rounds {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, childTold)))
		c := startChild(t, dir, -1)
		lines := 1 + (n*7919)%250 // which moment it is is the machine's choice
		require.Eventually(t, func() bool { return toldBytes(dir) >= int64(lines*line) }, time.Minute, 2*time.Millisecond)
		require.NoError(t, c.Process.Kill())
		killed(t, c)
		j := reopen(t, filepath.Join(dir, "ledger"), Options{})
		for a, words := range effectsTold(t, dir) {
			effects++
			outcome := proven(t, j, guards.Attempt{Effect: guards.Ref(a[:16]), ID: guards.Ref(a[16:])}).Outcome
			switch {
			case words["committed"]:
				require.Equal(t, guards.Committed, outcome)
			case words["sent"]:
				require.Contains(t, []guards.Outcome{guards.Committed, guards.Ambiguous}, outcome)
			}
			require.False(t, words["sent"] && outcome == guards.NotApplied)
		}
		require.NoError(t, j.Close())
	}
	t.Logf("%d effects in %d kills", effects, rounds)
	require.Greater(t, effects, rounds)
}

const line = len("intended ") + 2*32 + len(" \n") // bytes, about

// toldBytes is how much the child was told. Nothing is read of it while the child works, which would take its time.
func toldBytes(dir string) int64 {
	info, err := os.Stat(filepath.Join(dir, childTold))
	if err != nil {
		return 0
	}
	return info.Size()
}

func toldLines(t *testing.T, dir string) (lines []string) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, childTold))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

func effectsTold(t *testing.T, dir string) map[[32]byte]map[string]bool {
	t.Helper()
	all := map[[32]byte]map[string]bool{}
	for _, line := range toldLines(t, dir) {
		word, rest, _ := strings.Cut(line, " ")
		b, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
		require.NoError(t, err)
		require.Len(t, b, 32, "a line of less than a page is written whole")
		if all[[32]byte(b)] == nil {
			all[[32]byte(b)] = map[string]bool{}
		}
		all[[32]byte(b)][word] = true
	}
	return all
}
