package guardtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const sloppyEnv = "NIGHTWARRANT_SLOPPY_GUARD"

func TestMain(m *testing.M) {
	if text := os.Getenv(sloppyEnv); text != "" {
		var s started
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, runSloppy(s.Environment, s.Resource, s.Bug))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// started is what a process is told.
type started struct {
	Environment
	Resource, Bug string
}

// sloppyGuard is the guard with a bug, or without one.
func sloppyGuard(t *testing.T, bug string) Guard {
	t.Helper()
	s, resource := newShelf(t)
	self, err := os.Executable()
	require.NoError(t, err)
	return Guard{
		Start: func(e Environment) (Process, error) {
			log := e.Log
			e.Log = nil
			text, err := json.Marshal(started{e, resource, bug})
			if err != nil {
				return nil, err
			}
			cmd := exec.Command(self)
			cmd.Env, cmd.Stdout, cmd.Stderr = []string{sloppyEnv + "=" + string(text)}, log, log
			return Command(cmd)
		},
		Effect: func(n int) Effect {
			return Effect{Action: "count.up", Resource: "counter", Parameters: json.RawMessage(fmt.Sprintf(`{"number":%d}`, n))}
		},
		Applied: s.applied, Provable: true, Replicas: true, HoldBefore: s.holdIn(s.before), HoldAfter: s.holdIn(s.after),
		Kills: len(steps),
	}
}

// A guard that shares nothing with package guards passes.
func TestGuardOfSomebodyElsePasses(t *testing.T) { Run(t, sloppyGuard(t, "")) }

// bugs are refused by the case that is there for them, which says why.
var bugs = []struct{ bug, by, why string }{
	{"applies twice", "start", "times that effect 1 happened"},
	{"keeps no ledger", "once, whatever the authority says", "times that it happened, after the authority forgot it"},
	{"ignores the fence", "fence", "under a lower fence"},
	{"applies after its time", "late at the resource", "after its time"},
	{"counts from the answer", "late go-ahead", "after a late go-ahead"},
	{"has no tombstone", "a stopped process comes back", "after it was recorded as not applied"},
	{"believes the capability", "exact match", "it was answered with 200"},
	{"guesses at junk", "junk requests", "it was answered with 200"},
	{"reads on", "oversized body", "the guard reads on and on"},
	{"accepts any audience", "wrong audience", "times that the authority was asked for a go-ahead"},
	{"believes the Host header", "proofs that are none", "times that the authority was asked for a go-ahead"},
	{"offers Bearer too", "nonce challenge", "challenges"},
	{"tidies paths", "paths", "it was answered with 307"},
	{"says not applied without proof", "crash when it has been applied", "is recorded as not_applied; times that it happened"},
	{"says committed without proof", "orphan admission", "is recorded as committed; times that it happened"},
	{"says not applied of what it has applied", "start", "as the authority has it"},
	{"follows redirects", "redirect", "it was not refused"},
	{"takes any go-ahead", "answers that are none", "the go-ahead for another: it was answered with 200"},
	{"asks again as another attempt", "lost admit answer", "attempts of one presentation"},
	{"applies without a go-ahead", "admit answers that stay lost", "200"},
	{"never sweeps", "lost settle", "waited in vain: the effect is settled"},
	{"sweeps too early", "a sweep leaves what still has time", "it still has a minute"},
	{"keeps a stale capability", "stale component capability", "the guard does not get another capability"},
	{"forgets what it has seen", "fence after a crash", "waited in vain: the guard reports the highest fence"},
	{"logs what it gets", "start", "the guard wrote a capability or a proof into its log"},
}

func TestBugsAreRefused(t *testing.T) {
	for _, b := range bugs {
		t.Run(b.bug, func(t *testing.T) {
			t.Parallel()
			s := &suite{guard: sloppyGuard(t, b.bug), waits: 8 * time.Second}
			all := append(cases(), named{"start", works, calm})
			i := slices.IndexFunc(all, func(c named) bool { return c.name == b.by })
			require.GreaterOrEqual(t, i, 0, "there is no case %q", b.by)
			r := &recorder{T: t}
			r.run(func() { s.run(r, all[i]) })
			assert.Contains(t, r.said(), b.why, "of a guard that %s, %q says", b.bug, b.by)
		})
	}
}

// recorder is a test that may fail without failing this one.
type recorder struct {
	*testing.T
	mu       sync.Mutex
	failed   bool
	errors   []string
	cleanups []func()
}

func (r *recorder) run(try func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(r.cleanups) {
				f()
			}
		}()
		try()
	}()
	<-done
}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() {
	r.mu.Lock()
	r.failed = true
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Skip(...any)         { runtime.Goexit() }
func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// said is all that was found wrong.
func (r *recorder) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.errors, "\n")
}
