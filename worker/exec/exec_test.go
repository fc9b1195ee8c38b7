package exec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	osexec "os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker"
)

func TestAScriptFromStartToStatus(t *testing.T) {
	s := newStage(t, `echo begun; ASK one && ASK two; echo $?`)
	h := newHold()
	require.NoError(t, s.handle(h))
	assert.Equal(t, []string{"one", "two"}, h.keys())
	assert.JSONEq(t, `{"n":1}`, fmt.Sprintf("%s", h.asked[0].Parameters))
	r := <-s.reports
	assert.Equal(t, "begun\ncommitted\ncommitted\n0\n", s.printed(r))
	digest := sha256.Sum256([]byte(s.printed(r)))
	assert.Equal(t, hex.EncodeToString(digest[:]), r.SHA256)
	assert.Equal(t, Report{Run: h.reference, Fence: 1, Output: r.Output, Kept: 28, Printed: 28, SHA256: r.SHA256, Took: r.Took}, r)
	info, err := os.Stat(r.Output)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), info.Mode())
}

func TestTheStatusSettles(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0": "", "exit 3": "the command ended with status 3", "kill -9 $$": "the command ended with status -1", "exec /nowhere": "the command ended with status 127",
	} {
		err := newStage(t, script).handle(newHold())
		if want == "" {
			assert.NoError(t, err, script)
		} else {
			assert.EqualError(t, err, want, script)
		}
	}
}

func TestACommandThatCannotBeStarted(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no program": func(c *Config) { c.Command = []string{"/nowhere/at/all"} },
		"no folder":  func(c *Config) { c.Dir = "/nowhere/at/all" },
		"no sockets": func(c *Config) { c.SocketDir = "/nowhere/at/all" },
		"no output":  func(c *Config) { c.OutputDir = "/nowhere/at/all" },
	} {
		s := newStage(t, "exit 0", change)
		assert.ErrorContains(t, s.handle(newHold()), "the command cannot be started", name)
	}
}

func TestNewRefusesConfigurations(t *testing.T) {
	for _, c := range []Config{{}, {Command: []string{"a"}, SocketDir: "/a"}, {Command: []string{"a"}, OutputDir: "/a"}, {SocketDir: "/a", OutputDir: "/a"},
		{Command: []string{"a"}, SocketDir: "/a", OutputDir: "/a", WhenWaiting: "hope"}} {
		_, err := New(c)
		assert.Error(t, err)
	}
}

// Whatever ends the hold ends every process of the command: one that does not listen, one that has left the group, and one that has
// left its parent.
func TestNothingOutlivesTheHold(t *testing.T) {
	const script = `trap '' TERM
setsid sh -c 'trap "" TERM; echo $$ > DIR/session; while :; do sleep 1; done' &
(sh -c 'trap "" TERM; echo $$ > DIR/orphan; while :; do sleep 1; done' &)
(setsid sh -c '(sh -c "trap \"\" TERM; echo \$\$ > DIR/daemon; while :; do sleep 1; done" &)' &)
echo $$ > DIR/self
while :; do sleep 1; done`
	for _, cause := range []error{worker.ErrDeadline, worker.ErrFenceLost, worker.ErrLeaseLost, context.Canceled} {
		s := newStage(t, script)
		lose, ended := s.begins(newHold())
		for _, name := range []string{"session", "orphan", "daemon", "self"} {
			s.written(name)
		}
		lose(cause)
		require.ErrorIs(t, s.ends(ended), cause)
		for _, name := range []string{"session", "orphan", "daemon", "self"} {
			s.gone(name)
		}
		assert.Equal(t, -1, (<-s.reports).Status)
	}
}

func TestChildrenThatOutliveTheCommand(t *testing.T) {
	s := newStage(t, `(setsid sh -c 'trap "" TERM; echo $$ > DIR/daemon; while :; do sleep 1; done' &)
while [ ! -s DIR/daemon ]; do sleep 0.01; done`)
	require.NoError(t, s.handle(newHold()))
	s.gone("daemon")
}

func TestACommandMayTidyUp(t *testing.T) {
	s := newStage(t, `trap 'echo tidy; exit 0' TERM; echo $$ > DIR/self; while :; do sleep 0.01; done`, func(c *Config) { c.Grace = within })
	lose, ended := s.begins(newHold())
	s.written("self")
	lose(worker.ErrDeadline)
	require.ErrorIs(t, s.ends(ended), worker.ErrDeadline, "it does not become a success")
	assert.Contains(t, s.printed(<-s.reports), "tidy\n")
}

func TestGigabytes(t *testing.T) {
	s := newStage(t, `head -c 50000000 /dev/zero; echo end >&2`, func(c *Config) { c.MaxOutput = 1000 })
	require.NoError(t, s.handle(newHold()))
	r := <-s.reports
	assert.Equal(t, int64(1000), r.Kept)
	assert.Equal(t, int64(50000004), r.Printed)
	assert.Len(t, s.printed(r), 1000)
}

func TestTheGateCloses(t *testing.T) {
	var open atomic.Bool
	open.Store(true)
	s := newStage(t, `echo $$ > DIR/self.$(ls DIR | grep -c self); [ -e DIR/again ] || while :; do sleep 0.01; done`, func(c *Config) { c.Open = open.Load })
	h := newHold()
	_, ended := s.begins(h)
	s.written("self.0")
	open.Store(false)
	assert.Equal(t, -1, (<-s.reports).Status)
	s.gone("self.0")
	require.NoError(t, os.WriteFile(s.dir+"/again", nil, 0o600))
	open.Store(true) // under the same hold the command begins again
	require.NoError(t, s.ends(ended))
	assert.NotEmpty(t, s.written("self.1"))
}

func TestTheGateStaysClosed(t *testing.T) {
	s := newStage(t, `echo begun`, func(c *Config) { c.Open = func() bool { return false } })
	lose, ended := s.begins(newHold())
	lose(worker.ErrLeaseLost)
	require.ErrorIs(t, s.ends(ended), worker.ErrLeaseLost)
	assert.Empty(t, s.reports, "nothing was started")
}

func waiting(worker.Effect) (worker.Result, error) {
	return worker.Result{}, fmt.Errorf("%w: %w", worker.ErrWaiting, api.Refuse(api.ApprovalRequired))
}

func TestWaitingEnds(t *testing.T) {
	s := newStage(t, `ASK one; echo $? > DIR/status; exit 7`, func(c *Config) { c.Grace = within })
	h := newHold()
	h.becomes = waiting
	require.ErrorIs(t, s.handle(h), worker.ErrWaiting)
	assert.Equal(t, "12", s.written("status"), "it was told and ended by itself")
}

func TestWaitingEndsWhoDoesNotEnd(t *testing.T) {
	s := newStage(t, `trap '' TERM; echo $$ > DIR/self; ASK one; while :; do sleep 1; done`)
	h := newHold()
	h.becomes = waiting
	require.ErrorIs(t, s.handle(h), worker.ErrWaiting)
	s.gone("self")
}

func block(c *Config) { c.WhenWaiting = Block }

func TestWaitingBlocks(t *testing.T) {
	s := newStage(t, `echo $$ > DIR/self; ASK one; echo $? > DIR/status`, block)
	h := newHold()
	h.becomes = waiting
	require.ErrorIs(t, s.handle(h), worker.ErrWaiting)
	assert.Equal(t, h.reference, s.runner.keeps())
	again := newHold()
	again.reference, again.fence = h.reference, 2
	require.NoError(t, s.handle(again))
	assert.Equal(t, "0", s.written("status"))
	assert.Equal(t, []string{"one"}, again.keys())
	assert.Len(t, s.reports, 1, "it was not started again")
	assert.Empty(t, s.runner.keeps())
}

func TestABlockedCommandIsNotKeptForEver(t *testing.T) {
	for name, f := range map[string]struct {
		change func(*stage, *hold, *atomic.Bool)
		end    func(*stage, *atomic.Bool)
	}{
		"deadline": {func(_ *stage, h *hold, _ *atomic.Bool) { h.deadline = time.Millisecond }, func(*stage, *atomic.Bool) {}},
		"closed":   {func(*stage, *hold, *atomic.Bool) {}, func(_ *stage, open *atomic.Bool) { open.Store(false) }},
		"stopped":  {func(*stage, *hold, *atomic.Bool) {}, func(s *stage, _ *atomic.Bool) { s.runner.Close() }},
	} {
		var open atomic.Bool
		open.Store(true)
		s := newStage(t, `trap '' TERM; echo $$ > DIR/self; ASK one; while :; do sleep 1; done`, block, func(c *Config) { c.Open = open.Load })
		h := newHold()
		h.becomes = waiting
		f.change(s, h, &open)
		require.ErrorIs(t, s.handle(h), worker.ErrWaiting, name)
		f.end(s, &open)
		assert.Equal(t, -1, (<-s.reports).Status, name)
		s.gone("self")
		s.runner.Close()
		assert.Empty(t, s.runner.keeps(), name)
	}
}

func TestASecondRun(t *testing.T) {
	s := newStage(t, `echo $$ > DIR/self; while :; do sleep 1; done`)
	lose, ended := s.begins(newHold())
	s.written("self")
	assert.ErrorIs(t, s.handle(newHold()), errSecond)
	lose(worker.ErrDeadline)
	require.ErrorIs(t, s.ends(ended), worker.ErrDeadline)
}

type messages chan *message

func (m messages) Pull(context.Context) (worker.Message, error) {
	next, ok := <-m
	if !ok {
		return nil, errors.New("empty")
	}
	return next, nil
}

type message struct {
	reference string
	back      time.Duration
}

func (m *message) Reference() string         { return m.reference }
func (m *message) Ack() error                { return nil }
func (m *message) Nak(d time.Duration) error { m.back = d; return nil }

func TestOthersGoBackWhileACommandIsBlocked(t *testing.T) {
	s := newStage(t, `ASK one`, block)
	h := newHold()
	h.becomes = waiting
	require.ErrorIs(t, s.handle(h), worker.ErrWaiting)
	other, own := &message{reference: "other"}, &message{reference: h.reference}
	queue := messages(make(chan *message, 2))
	queue <- other
	queue <- own
	m, err := s.runner.Source(queue).Pull(t.Context())
	require.NoError(t, err)
	assert.Equal(t, own, m)
	assert.Equal(t, othersAfter, other.back)
	close(queue)
	_, err = s.runner.Source(queue).Pull(t.Context())
	assert.Error(t, err)
}

// A worker that dies takes its command with it, and nobody answers at the socket any more; the next one begins again under a higher fence.
func TestTheWorkerDies(t *testing.T) {
	dir, err := os.MkdirTemp("", "nw")
	require.NoError(t, err)
	defer os.RemoveAll(dir) //nolint:errcheck // a test's
	s := &stage{t: t, dir: dir, log: &text{}}
	binary, err := os.Executable()
	require.NoError(t, err)
	host := osexec.Command(binary, "host", dir) //nolint:noctx // it is killed
	require.NoError(t, host.Start())
	path := s.written("path")
	s.written("self")
	require.NoError(t, host.Process.Kill())
	require.Error(t, host.Wait())
	require.Eventually(t, func() bool { return !alive(s.written("self")) }, within, 5*time.Millisecond)
	var left Left
	assert.Error(t, Ask(t.Context(), path, "/progress", Progress{}, &left))
}

func alive(text string) bool {
	pid, err := strconv.Atoi(text)
	s, ok := statOf(pid)
	return err == nil && ok && !s.ended
}
