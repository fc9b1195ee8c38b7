package exec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	osexec "os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/worker"
)

// job is one start of the command, with its socket and its output.
type job struct {
	runner    *Runner
	log       *slog.Logger
	reference string
	fence     int64
	began     time.Time
	reaped    time.Time
	process   *process
	socket    *socket
	output    *output

	started   chan struct{} // closed when process is set
	strangers sync.Once

	mu      sync.Mutex
	hold    Hold
	round   int           // how many holds there were
	changed chan struct{} // closed at the next
	noted   time.Time     // when the command last said how far it is
}

const noteEvery = time.Second

// note logs what a command says of itself, so seldom that it cannot fill a disk.
func (j *job) note(p Progress) {
	j.mu.Lock()
	now := j.runner.config.Now()
	quiet := now.Sub(j.noted) < noteEvery
	if !quiet {
		j.noted = now
	}
	j.mu.Unlock()
	if !quiet {
		j.log.Info("progress", "done", p.Done, "of", p.Of, "note", strings.ToValidUTF8(p.Note[:min(len(p.Note), maxNote)], ""))
	}
}

// begin starts the command for a hold.
func (r *Runner) begin(h Hold) (j *job, err error) {
	j = &job{runner: r, log: r.log.With("run", h.Reference(), "fence", h.Fence()), reference: h.Reference(), fence: h.Fence(),
		began: r.config.Now(), changed: make(chan struct{}), started: make(chan struct{})}
	if j.socket, err = openSocket(r.config.SocketDir, r.config.As); err != nil {
		return nil, err
	}
	j.socket.serve(j)
	if err = j.start(); err != nil {
		return nil, errors.Join(err, j.socket.close())
	}
	j.log.Info("the command has begun", "pid", j.process.cmd.Process.Pid)
	return j, nil
}

func (j *job) start() error {
	c := &j.runner.config
	out, pipe, err := openOutput(c.OutputDir, fmt.Sprintf("%s.%d", j.reference, j.fence), c.MaxOutput)
	if err != nil {
		return err
	}
	cmd := osexec.Command(c.Command[0], c.Command[1:]...) //nolint:gosec,noctx // it is what this is for; it is ended with all that it started
	cmd.Dir, cmd.Env = c.Dir, append(slices.Clone(c.Environment), Variable+"="+j.socket.path)
	cmd.Stdout, cmd.Stderr = pipe, pipe
	p, err := start(cmd, c.As)
	_ = pipe.Close() // the command has its own
	if err != nil {
		var nothing Report
		return errors.Join(err, out.end(&nothing))
	}
	j.process, j.output = p, out
	close(j.started)
	return nil
}

// allows asks the kernel who a peer is. Nobody is known before the command has begun.
func (j *job) allows(c *net.UnixConn) bool {
	select {
	case <-j.started:
	case <-time.After(time.Second):
		return false
	}
	ok := j.process.allows(c)
	if !ok {
		j.strangers.Do(func() { j.log.Warn("a stranger at the socket was turned away; more are not reported") })
	}
	return ok
}

func (j *job) attach(h Hold) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.hold = h
	j.round++
	close(j.changed)
	j.changed = make(chan struct{})
}

// held waits for a hold later than a round; ctx is the call's.
func (j *job) held(ctx context.Context, after int) (Hold, error) {
	h, _, err := j.later(ctx, after)
	return h, err
}

func (j *job) later(ctx context.Context, after int) (Hold, int, error) {
	for {
		j.mu.Lock()
		h, round, changed := j.hold, j.round, j.changed
		j.mu.Unlock()
		if round > after {
			return h, round, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

func (j *job) left() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.hold.Left()
}

// do asks for an effect, again under the next hold when it had to wait and is to block.
func (j *job) do(ctx context.Context, e worker.Effect) (worker.Result, error) {
	for round := 0; ; {
		h, now, err := j.later(ctx, round)
		if err != nil {
			return worker.Result{}, err
		}
		round = now
		result, err := h.Do(ctx, e)
		if j.runner.config.WhenWaiting != Block || !errors.Is(err, worker.ErrWaiting) {
			return result, err
		}
		j.log.Info("the command waits for a decision")
	}
}

func (j *job) reap() {
	if now := j.runner.config.Now(); now.Sub(j.reaped) >= reapEvery {
		j.reaped = now
		j.process.tree()
	}
}

// stop ends the command for a cause, and returns the cause.
func (j *job) stop(cause error, grace time.Duration) error {
	j.log.Warn("the command is ended", "cause", cause)
	_ = j.finish(grace) // how it ends does not count any more
	return cause
}

// finish ends what the command has left behind, and says whether the command succeeded.
func (j *job) finish(grace time.Duration) error {
	err := j.process.end(grace)
	report := Report{Run: j.reference, Fence: j.fence, Status: -1, Took: j.runner.config.Now().Sub(j.began)}
	err = errors.Join(err, j.socket.close(), j.output.end(&report))
	if state := j.process.cmd.ProcessState; state != nil {
		report.Status = state.ExitCode()
	}
	j.log.Info("the command has ended", "status", report.Status, "output", report.Output, "kept", report.Kept, "printed", report.Printed,
		"sha256", report.SHA256, "took", report.Took)
	if err != nil {
		j.log.Error("the command did not end well", "error", err)
	}
	if j.runner.config.Report != nil {
		j.runner.config.Report(report)
	}
	if report.Status != 0 {
		return fmt.Errorf("the command ended with status %d", report.Status)
	}
	return err
}

var (
	worker0    worker.Result
	errInvalid = worker.ErrInvalid
)

const maxReply = 1 << 20

func ask(ctx context.Context, client *http.Client, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://run"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return errors.New("the socket of the run does not answer")
	}
	defer answer.Body.Close() //nolint:errcheck // it was only read
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxReply)).Decode(out); err != nil {
		return errors.New("the socket of the run gave no answer that can be read")
	}
	return nil
}
