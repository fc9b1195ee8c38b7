// Package exec runs a command that exists already as the work of a run: it may ask for what the run's consent allows,
// through a socket of its own, and it gets no key, no capability and no assertion.
//
// One Runner works on one run at a time, because whatever its process has for children belongs to that run.
package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker"
)

// Variable is the one in which a command finds the path of its socket.
const Variable = "NIGHTWARRANT_SOCKET"

// What happens to a command that asked for something that waits for the owner's decision.
const (
	End   = "end"   // it is ended, and started again when the owner has decided
	Block = "block" // its call blocks until the owner has decided; this worker takes no other run meanwhile
)

// Defaults.
const (
	DefaultGrace     = 5 * time.Second
	DefaultMaxOutput = 1 << 20

	gateEvery   = 100 * time.Millisecond
	reapEvery   = time.Second
	othersAfter = 5 * time.Second // until a reference is delivered again while this worker keeps a blocked command
)

// Credential is the account of a command where it is not the worker's own.
type Credential struct{ UID, GID uint32 }

// Config of a Runner. Command, SocketDir and OutputDir are needed.
type Config struct {
	Command     []string // program and arguments; nothing is expanded
	Dir         string   // its working directory; the worker's when empty
	Environment []string // all of it but Variable
	SocketDir   string   // where a directory is made for each socket
	OutputDir   string   // where what commands print is kept
	MaxOutput   int64    // bytes that are kept of one; 0 is DefaultMaxOutput
	Grace       time.Duration
	WhenWaiting string           // End when empty, or Block
	As          *Credential      // nil is the worker's own account
	Open        func() bool      // whether admission is open, as far as is known; nil leaves that to the lease
	Report      func(Report)     // called after each end of a command; nil only logs. What keeps evidence elsewhere goes here
	Logger      *slog.Logger     // nil discards
	Now         func() time.Time // nil is time.Now
}

// Report says how a command ended.
type Report struct {
	Run     string // reference
	Fence   int64  // under which it began
	Status  int    // of its exit; -1 when a signal ended it
	Output  string // file with what it printed first, and then
	Kept    int64  // bytes in that file, whose digest is
	SHA256  string // in hex, and
	Printed int64  // bytes in all
	Took    time.Duration
}

// Hold is what a command needs of a *worker.Run.
type Hold interface {
	Do(ctx context.Context, e worker.Effect) (worker.Result, error)
	Reference() string
	Fence() int64
	Left() time.Duration
	Budget() api.Left
}

// Runner runs the command of a worker, for one run after the other.
type Runner struct {
	config Config
	log    *slog.Logger

	busy    sync.Mutex // one run at a time
	mu      sync.Mutex
	parked  *job
	resumed chan struct{} // closed when that command is not kept any longer
	closing chan struct{}
	close   sync.Once
	watched sync.WaitGroup
}

// New checks the configuration and starts nothing.
func New(c Config) (*Runner, error) {
	if len(c.Command) == 0 || c.SocketDir == "" || c.OutputDir == "" {
		return nil, errors.New("exec: a command, a folder for sockets and one for output are needed")
	}
	c.WhenWaiting = cmp.Or(c.WhenWaiting, End)
	if c.WhenWaiting != End && c.WhenWaiting != Block {
		return nil, errors.New("exec: a command that waits is ended or blocked")
	}
	c.Grace, c.MaxOutput = cmp.Or(c.Grace, DefaultGrace), cmp.Or(c.MaxOutput, DefaultMaxOutput)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Runner{config: c, log: c.Logger, closing: make(chan struct{})}, nil
}

// Close ends a command that is kept blocked. Nothing is to be handled afterwards.
func (r *Runner) Close() {
	r.close.Do(func() { close(r.closing) })
	r.watched.Wait()
}

// Handle is the worker.Handler. Only a command that ended with status 0 is a success.
func (r *Runner) Handle(ctx context.Context, run *worker.Run) error { return r.handle(ctx, run) }

var (
	errClosed  = errors.New("admission is closed")
	errSecond  = errors.New("exec: another run is under way")
	errStopped = errors.New("the worker stops")
)

func (r *Runner) handle(ctx context.Context, h Hold) error {
	if !r.busy.TryLock() {
		return errSecond
	}
	defer r.busy.Unlock()
	for {
		if err := r.awaitOpen(ctx); err != nil {
			return err
		}
		j, err := r.take(h)
		if err != nil {
			return fmt.Errorf("exec: the command cannot be started: %w", err)
		}
		j.attach(h)
		if err = r.attend(ctx, j); !errors.Is(err, errClosed) {
			return err
		}
		// The hold may outlive a short close: then the command is started again under it, as the next worker would.
	}
}

func (r *Runner) open() bool { return r.config.Open == nil || r.config.Open() }

func (r *Runner) awaitOpen(ctx context.Context) error {
	tick := time.NewTicker(gateEvery)
	defer tick.Stop()
	for !r.open() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// take is the blocked command of this run, or a new one.
func (r *Runner) take(h Hold) (*job, error) {
	if j := r.unpark(h.Reference()); j != nil {
		r.watched.Wait() // from here on it is watched by attend
		return j, nil
	}
	return r.begin(h)
}

// attend returns when the command has ended or is kept blocked.
func (r *Runner) attend(ctx context.Context, j *job) error {
	tick := time.NewTicker(gateEvery)
	defer tick.Stop()
	for {
		select {
		case <-j.process.exited:
			err := j.finish(r.config.Grace)
			if ctx.Err() != nil {
				err = context.Cause(ctx) // whatever it did afterwards
			}
			return err
		case <-ctx.Done():
			return r.lost(context.Cause(ctx), j)
		case <-tick.C:
			if !r.open() {
				return j.stop(errClosed, r.config.Grace)
			}
			j.reap()
		}
	}
}

// lost deals with a command whose hold is over.
func (r *Runner) lost(cause error, j *job) error {
	if !errors.Is(cause, worker.ErrWaiting) {
		return j.stop(cause, r.config.Grace)
	}
	if r.config.WhenWaiting == Block {
		r.park(j)
		return cause
	}
	// Its call has just been answered: it may end by itself.
	timer := time.NewTimer(r.config.Grace)
	defer timer.Stop()
	select {
	case <-j.process.exited:
	case <-timer.C:
	case <-r.closing:
	}
	return j.stop(cause, r.config.Grace)
}

// park keeps a command until its run comes back, its deadline passes, or the gate or this runner closes.
func (r *Runner) park(j *job) {
	r.mu.Lock()
	r.parked, r.resumed = j, make(chan struct{})
	resumed := r.resumed
	r.mu.Unlock()
	r.watched.Go(func() { r.watch(j, resumed) })
}

func (r *Runner) watch(j *job, resumed chan struct{}) {
	tick := time.NewTicker(gateEvery)
	defer tick.Stop()
	deadline := time.NewTimer(j.left())
	defer deadline.Stop()
	for {
		var why error
		select {
		case <-resumed:
			return
		case <-j.process.exited:
			why = errors.New("it ended while its call was blocked")
		case <-deadline.C:
			why = worker.ErrDeadline
		case <-r.closing:
			why = errStopped
		case <-tick.C:
			if r.open() {
				j.reap()
				continue
			}
			why = errClosed
		}
		if r.unpark(j.reference) == j {
			_ = j.stop(why, r.config.Grace) // it is logged
		}
		return
	}
}

// unpark gives the blocked command of a run to one caller.
func (r *Runner) unpark(reference string) *job {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := r.parked
	if j == nil || j.reference != reference {
		return nil
	}
	r.parked = nil
	close(r.resumed)
	return j
}

func (r *Runner) keeps() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.parked == nil {
		return ""
	}
	return r.parked.reference
}

// Source gives the references of another one, but while a command is kept blocked that of its run only: others go back
// to the queue.
func (r *Runner) Source(of worker.Source) worker.Source { return source{r, of} }

type source struct {
	runner *Runner
	of     worker.Source
}

func (s source) Pull(ctx context.Context) (worker.Message, error) {
	for {
		m, err := s.of.Pull(ctx)
		if err != nil {
			return nil, err
		}
		if kept := s.runner.keeps(); kept == "" || kept == m.Reference() {
			return m, nil
		}
		if err := m.Nak(othersAfter); err != nil {
			s.runner.log.Warn("could not give a reference back", "error", err)
		}
	}
}
