package exec

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker"
)

// TestMain makes the test binary behave as what a command starts: `ask KEY` asks for an effect and exits as
// `nightwarrant effect` does.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "ask" {
		os.Exit(asks(os.Args[2]))
	}
	if len(os.Args) > 2 && os.Args[1] == "host" {
		hosts(os.Args[2])
	}
	goleak.VerifyTestMain(m)
}

// hosts is a worker's process with one run, for tests in which it dies.
func hosts(dir string) {
	r, err := New(Config{Command: []string{"/bin/sh", "-c", "trap '' TERM\necho $NIGHTWARRANT_SOCKET > " + dir + "/path\necho $$ > " + dir + "/self\nwhile :; do sleep 1; done"}, SocketDir: dir, OutputDir: dir})
	if err == nil {
		err = r.handle(context.Background(), &hold{reference: "run", fence: 1, deadline: time.Hour})
	}
	fmt.Println(err)
	os.Exit(1)
}

func asks(key string) int {
	var a Answer
	in := Request{Key: key, Guard: "https://guard.example/a", Action: "row.append", Resource: "table:a", Parameters: json.RawMessage(`{"n":1}`)}
	if err := Ask(context.Background(), os.Getenv(Variable), "/effects", in, &a); err != nil {
		fmt.Println(err)
		return 99
	}
	fmt.Println(a.Outcome)
	return Exit(a.Outcome)
}

// within is longer than any machine needs.
const within = 60 * time.Second

// hold is a run whose effects end as a test says.
type hold struct {
	reference string
	fence     int64
	deadline  time.Duration
	lose      context.CancelCauseFunc
	becomes   func(worker.Effect) (worker.Result, error)

	mu    sync.Mutex
	asked []worker.Effect
}

func (h *hold) Do(_ context.Context, e worker.Effect) (worker.Result, error) {
	h.mu.Lock()
	h.asked = append(h.asked, e)
	h.mu.Unlock()
	if h.becomes == nil {
		return worker.Result{Outcome: api.Committed, Effect: "effect-of-" + e.Key}, nil
	}
	result, err := h.becomes(e)
	if refusal, ok := worker.Refused(err); ok && refusal.Code == api.ApprovalRequired {
		h.lose(err) // as a *worker.Run does
	}
	return result, err
}

func (h *hold) Reference() string   { return h.reference }
func (h *hold) Fence() int64        { return h.fence }
func (h *hold) Left() time.Duration { return h.deadline }
func (h *hold) Budget() api.Left    { return api.Left{Effects: 3, WrapUp: api.WrapUpNo} }

func (h *hold) keys() (keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.asked {
		keys = append(keys, e.Key)
	}
	return keys
}

// stage is a runner of one shell script.
type stage struct {
	t       testing.TB
	dir     string
	config  Config
	runner  *Runner
	reports chan Report
	log     *text
}

type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.b.String()
}

// newStage makes a runner of a script, in which DIR is a folder of the test and ASK asks for an effect.
func newStage(t testing.TB, script string, change ...func(*Config)) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), reports: make(chan Report, 100), log: &text{}}
	sockets, err := os.MkdirTemp("", "nw") // a socket's path is at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() {
		left, err := os.ReadDir(sockets)
		assert.NoError(t, err)
		assert.Empty(t, left, "a socket was left behind")
		assert.NoError(t, os.RemoveAll(sockets))
	})
	binary, err := os.Executable()
	require.NoError(t, err)
	script = strings.NewReplacer("DIR", s.dir, "ASK", binary+" ask").Replace(script)
	s.config = Config{Command: []string{"/bin/sh", "-c", script}, Environment: Environment{}.Of(os.Environ()), SocketDir: sockets, OutputDir: s.dir,
		Grace: 300 * time.Millisecond, Report: func(r Report) { s.reports <- r }, Logger: slog.New(slog.NewJSONHandler(s.log, nil))}
	for _, f := range change {
		f(&s.config)
	}
	s.runner, err = New(s.config)
	require.NoError(t, err)
	t.Cleanup(s.runner.Close)
	return s
}

var runs = 0

func newHold() *hold {
	runs++
	return &hold{reference: fmt.Sprintf("run-%d", runs), fence: 1, deadline: time.Hour}
}

// handle works on a run until the command has ended.
func (s *stage) handle(h *hold) error {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	life, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	h.lose = lose
	return s.runner.handle(life, h)
}

// begins works on a run in the background.
func (s *stage) begins(h *hold) (lose context.CancelCauseFunc, ended chan error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	h.lose = cancel
	ended = make(chan error, 1)
	go func() { ended <- s.runner.handle(ctx, h) }()
	return cancel, ended
}

func (s *stage) ends(ended chan error) error {
	s.t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(within):
		require.FailNow(s.t, "it does not end", s.log.String())
		return nil
	}
}

// written waits for a file that the script writes.
func (s *stage) written(name string) string {
	s.t.Helper()
	var text []byte
	require.Eventually(s.t, func() (ok bool) {
		text, _ = os.ReadFile(filepath.Join(s.dir, name))
		return len(text) > 0 && text[len(text)-1] == '\n'
	}, within, 5*time.Millisecond, "%s was not written", name)
	return strings.TrimSpace(string(text))
}

// gone holds a process that wrote its number into a file to having ended.
func (s *stage) gone(name string) {
	s.t.Helper()
	pid, err := strconv.Atoi(s.written(name))
	require.NoError(s.t, err)
	now, ok := statOf(pid)
	assert.False(s.t, ok && !now.ended, "%s, process %d, lives", name, pid)
}

func (s *stage) printed(r Report) string {
	s.t.Helper()
	text, err := os.ReadFile(r.Output)
	require.NoError(s.t, err)
	return string(text)
}
