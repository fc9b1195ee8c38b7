package worker

import (
	"context"
	"errors"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A worker is put into other people's programs: it brings nothing but the leaves and what they need.
func TestDependencies(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".").Output()
	require.NoError(t, err)
	const module = "github.com/nightwarrant/nightwarrant/"
	allowed := []string{
		module + "worker", module + "internal/dpopclient", module + "authority/api", module + "authority/capability", module + "authority/canonical",
		"github.com/go-jose/go-jose/v4", "github.com/go-jose/go-jose/v4/cipher", "github.com/go-jose/go-jose/v4/json", "github.com/gowebpki/jcs",
	}
	for _, path := range strings.Fields(string(out)) {
		assert.Contains(t, allowed, path)
	}
	assert.True(t, slices.Contains(strings.Fields(string(out)), module+"worker"), "the list is empty")
}

var errEmpty = errors.New("the queue is empty")

// bench is a world with a queue and a worker.
type bench struct {
	*world
	q      *queue
	config Config
	token  atomic.Value // the projected assertion
}

func newBench(t testing.TB) *bench {
	b := &bench{world: newWorld(t), q: newQueue()}
	b.q.err = errEmpty
	b.token.Store("workload-1")
	b.config = Config{Authority: b.issuer, Client: "diary", Source: b.q, HTTP: &http.Client{Transport: b.world},
		Assertion: func(context.Context) (string, error) { return b.token.Load().(string), nil }}
	return b
}

// bubble runs a test in fake time, on a bench.
func bubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { f(t, newBench(t)) })
}

func (b *bench) worker(t testing.TB) *Worker {
	w, err := New(b.config)
	require.NoError(t, err)
	return w
}

// once works on a new run, and on nothing else.
func (b *bench) once(t testing.TB, handler Handler) *fakeRun {
	r := b.addRun()
	b.q.push(r.ref)
	close(b.q.messages)
	require.ErrorIs(t, b.worker(t).Run(t.Context(), handler), errEmpty)
	return r
}

// starts runs a worker in the background until it is stopped or the test ends.
func (b *bench) starts(t testing.TB, w *Worker, handler Handler) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, handler) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			assert.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

// told is what was told about a message next.
func (b *bench) nextTold(t testing.TB) string {
	select {
	case s := <-b.q.told:
		return s
	case <-time.After(time.Hour):
		require.FailNow(t, "nothing was told")
		return ""
	}
}

func (b *bench) state(r *fakeRun) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return r.state
}

func nothing(context.Context, *Run) error { return nil }
