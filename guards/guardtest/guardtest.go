// Package guardtest holds a guard to the protocol, whoever wrote it and in
// whatever language: it runs the guard as a process, over HTTP, between an
// authority and a worker that are the suite's own, kills it at every step, and
// counts at the resource what really happened.
//
// A guard's author says how to start the process, which effects to ask for and
// how often one has happened:
//
//	func TestConformance(t *testing.T) { guardtest.Run(t, guardtest.Guard{…}) }
//
// Every effect must end committed, not applied or ambiguous at the authority,
// none may happen twice, and what is said to have happened, or not, must be so
// (protocol P13–P19).
package guardtest

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// Guard is what the suite is told about the guard under test. Effects are
// numbered: no number is used twice in one Run.
type Guard struct {
	// Start starts one process of the guard, at once and again after each kill. It need not wait until the process is ready:
	// that is when it reports itself healthy. See [Command].
	Start func(Environment) (Process, error)

	// Effect is what effect n is. Each is another, and each can be told from all others at the resource.
	Effect func(n int) Effect

	// Applied counts how often effect n has happened at the resource.
	Applied func(n int) (int, error)

	// Provable says that the guard's ledger proves after a crash whether an effect was applied, as guards/postgres does. Such
	// a guard may leave nothing ambiguous that it is given the time to prove.
	Provable bool

	// Replicas says that several processes of the guard may run over one ledger.
	Replicas bool

	// HoldBefore stops the resource before effect n has happened, HoldAfter after it has and before the guard is told. Both are
	// optional: what needs them is left out, and kills while an effect is applied are timed by chance alone.
	HoldBefore, HoldAfter func(n int) (*Hold, error)

	// Secrets are what must stand in no answer and in nothing that a process says, such as the credential of the resource.
	Secrets []string

	// Kills is how many processes are killed in the campaign; optional, 25. The environment variable
	// NIGHTWARRANT_GUARDTEST_KILLS overrides it.
	Kills int
}

// Environment is what a process of the guard is to be configured with.
type Environment struct {
	URI           string    // of the guard, as registered: capabilities and proofs name it, whatever address is dialled
	Name          string    // of the registered component: its client_id at the token endpoint
	Authority     string    // issuer and base URL of the authority
	Listen        string    // address and port to serve HTTP at, under the path of the URI
	AssertionFile string    // holds the workload assertion
	Dir           string    // private directory for a ledger in files, the same for a process and its successors
	Log           io.Writer // for what the process says; searched for secrets
}

// Process is a running process.
type Process interface {
	// Kill ends it as kill -9 does and returns when it is gone.
	Kill() error
}

// Pauser is a Process that can be stopped for a while, as kill -STOP and -CONT do. Optional.
type Pauser interface {
	Pause() error
	Resume() error
}

// Effect is one intended change and the request that asks for it.
type Effect struct {
	Action     string
	Resource   string
	Parameters json.RawMessage // all that the guard acts on
	Amount     int64           // minor units of Currency; 0 for an effect without an amount
	Currency   string

	// Path below the guard's URI, Header and Body are the request. All are optional: the usual one is a POST to
	// /operations/{action} with the members resource, parameters, amount and currency.
	Path   string
	Header http.Header
	Body   []byte
}

// Hold is an effect that is stopped at the resource.
type Hold struct {
	Reached <-chan struct{} // closed when the guard's request waits there
	Release func()          // lets it go on; called once, also when nothing was reached
}

const defaultKills = 25

// Run runs the whole suite.
func Run(t *testing.T, g Guard) {
	t.Helper()
	s := &suite{guard: g, whole: t}
	if !t.Run("start", func(t *testing.T) { s.run(t, named{"start", works, calm}) }) {
		return // nothing else would say more
	}
	for _, c := range append(cases(), named{"kills", s.kills(), alone}) {
		t.Run(c.name, func(t *testing.T) { s.run(t, c) })
	}
}

// tb is as much of testing.TB as a case needs, so that a test can see it fail.
type tb interface {
	Helper()
	Failed() bool
	Errorf(format string, args ...any)
	FailNow()
	Logf(format string, args ...any)
	Skip(args ...any)
	Cleanup(func())
	TempDir() string
}

// suite is one Run.
type suite struct {
	guard Guard
	whole tb            // the test of the whole Run; nil where a case stands alone
	calm  *stage        // of the calm cases, while it is good
	last  atomic.Int64  // number of an effect
	waits time.Duration // for whatever must come; 0 is a minute
}

func (s *suite) patience() time.Duration { return cmp.Or(s.waits, time.Minute) }

// named is one case.
type named struct {
	name string
	try  func(w *world)
	temper
}

// temper says whether a case leaves the process and the authority as it found them. All calm ones have the same, each with a
// lane and effects of its own; every other one has an authority and processes to itself.
type temper bool

const (
	calm  temper = true
	alone temper = false
)

// cases are all but the first and the last, the calm ones first.
func cases() []named {
	by := map[temper][]named{}
	for _, some := range [][]named{requestCases, presentationCases, timeCases, authorityCases, crashCases} {
		for _, c := range some {
			by[c.temper] = append(by[c.temper], c)
		}
	}
	return append(by[calm], by[alone]...)
}

func (s *suite) run(t tb, c named) {
	w := s.newWorld(t, c.temper)
	c.try(w)
	w.judge()
}

func (s *suite) kills() func(w *world) {
	n := s.guard.Kills
	if n == 0 {
		n = defaultKills
	}
	if given, err := strconv.Atoi(os.Getenv("NIGHTWARRANT_GUARDTEST_KILLS")); err == nil && given > 0 {
		n = given
	}
	return func(w *world) { w.campaign(n) }
}
