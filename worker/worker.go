// Package worker runs unattended tasks: it pulls run references, claims runs, keeps their leases, and brings about
// their effects through guards, each exactly once or known not to have happened.
//
// A worker only calls out. Its key lives in memory only, and every request proves it (RFC 9449).
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

const (
	// DefaultGuardTimeout is a little more than the longest call of a guard's destination.
	DefaultGuardTimeout = 65 * time.Second

	stopGrace   = 10 * time.Second // for settling a finished run when the worker is told to stop
	activeDelay = 5 * time.Second  // until a reference that this worker is working on is delivered again
	refusedRest = 10 * time.Second // after the authority has refused the worker itself
)

// Config of a Worker. Authority, Assertion and Source are needed.
type Config struct {
	Authority     string                                // its issuer URL
	Client        string                                // name of the registered product, sent as client_id; optional
	Assertion     func(context.Context) (string, error) // reads the projected workload assertion anew each time
	AssertionType string                                // "" is api.AssertionJWTBearer
	Source        Source
	HTTP          *http.Client     // nil is http.DefaultClient; redirects are never followed
	GuardTimeout  time.Duration    // of one call to a guard; 0 is DefaultGuardTimeout
	Logger        *slog.Logger     // nil discards
	Now           func() time.Time // nil is time.Now; only its differences matter
}

// Handler does the work of one run. Its context ends at the authority deadline, when the hold on the run is lost
// (context.Cause tells: ErrDeadline, ErrLeaseLost, ErrFenceLost, ErrAuthorityChanged, ErrEnded) and when the worker
// stops. Only a run whose handler returned nil is settled as succeeded.
type Handler func(ctx context.Context, run *Run) error

// Worker claims runs and works on them. It is safe for concurrent use: each call of Run works on one run at a time.
type Worker struct {
	config Config
	log    *slog.Logger

	mu       sync.Mutex
	identity *identity
	active   map[string]bool // references that this worker is working on
}

// New checks the configuration and contacts nobody.
func New(c Config) (*Worker, error) {
	if _, err := capability.NormalizeHTU(c.Authority); err != nil {
		return nil, errors.New("worker: the authority must be an absolute http or https URL")
	}
	if c.Assertion == nil || c.Source == nil {
		return nil, errors.New("worker: an assertion and a source of references are needed")
	}
	c.AssertionType = cmp.Or(c.AssertionType, api.AssertionJWTBearer)
	c.GuardTimeout = cmp.Or(c.GuardTimeout, DefaultGuardTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Worker{config: c, log: c.Logger, active: map[string]bool{}}, nil
}

// Format prints where the worker works, under every verb.
func (w *Worker) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "worker at "+w.config.Authority)
}

// Run pulls, claims and works until ctx ends, and then returns nil, or until the source has nothing more to give, and
// then returns why. A run that is unfinished when ctx ends is left to the next worker, whose fence is higher.
func (w *Worker) Run(ctx context.Context, handler Handler) error {
	for ctx.Err() == nil {
		m, err := w.config.Source.Pull(ctx)
		switch {
		case err == nil:
			sleep(ctx, w.serve(ctx, m, handler))
		case ctx.Err() == nil:
			return fmt.Errorf("worker: no more references: %w", err)
		}
	}
	return nil
}

// serve deals with one message, and says how long to rest before the next.
func (w *Worker) serve(ctx context.Context, m Message, handler Handler) time.Duration {
	log := w.log.With("run", m.Reference())
	if !w.begin(m.Reference()) {
		// The same key would get the same fence again: two handlers would work under one hold.
		report(log, "deliver again", m.Nak(activeDelay))
		return 0
	}
	defer w.end(m.Reference())
	r, err := w.claim(ctx, m.Reference(), log)
	if err != nil {
		v := afterClaim(err)
		log.Info("not claimed", "error", err, "done", v.done)
		report(log, "answer the message", v.tell(m))
		return v.rest
	}
	report(log, "acknowledge", m.Ack())
	r.work(ctx, handler)
	return 0
}

func report(log *slog.Logger, what string, err error) {
	if err != nil {
		log.Warn("could not "+what, "error", err)
	}
}

func (w *Worker) begin(reference string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.active[reference] {
		return false
	}
	w.active[reference] = true
	return true
}

func (w *Worker) end(reference string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.active, reference)
}

// claim exchanges a reference for a hold on its run. The worker counts time from before it sends its question.
func (w *Worker) claim(ctx context.Context, reference string, log *slog.Logger) (*Run, error) {
	id, form, err := w.identify(ctx)
	if err != nil {
		return nil, fmt.Errorf("worker: no identity: %w", err)
	}
	sent := w.config.Now()
	var answer api.TokenResponse
	if err := id.authority.PostForm(ctx, api.PathToken, w.tokenExchange(form, reference, api.TokenTypeRunReference), &answer); err != nil {
		return nil, typed(err)
	}
	return w.newRun(id, reference, sent, answer, log)
}

// verdict is what becomes of a message whose run was not claimed.
type verdict struct {
	done  bool          // acknowledge it
	delay time.Duration // otherwise until it is delivered again
	rest  time.Duration // of this worker, when every other claim would fare the same
}

func (v verdict) tell(m Message) error {
	if v.done {
		return m.Ack()
	}
	return m.Nak(v.delay)
}

// afterClaim acknowledges only what the authority has said to be over. Everything else may be claimed later, perhaps by
// another worker.
func afterClaim(err error) verdict {
	refusal, ok := Refused(err)
	if !ok {
		return verdict{delay: time.Second, rest: time.Second}
	}
	wait := max(refusal.Wait(), time.Second)
	switch refusal.Code {
	case api.RunEnded, api.UnknownRun, api.DeadlinePassed, api.AuthorityChanged, api.ConsentEnded:
		return verdict{done: true}
	case api.Held, api.LaneUncertain:
		return verdict{delay: wait}
	}
	if passes(err) {
		return verdict{delay: wait, rest: wait}
	}
	return verdict{delay: time.Second, rest: max(refusal.Wait(), refusedRest)}
}

// sleep waits for d or the end of ctx, and tells whether ctx still goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// linger is a context that ends grace after its parent does.
func linger(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		time.AfterFunc(grace, func() { cancel(context.Cause(parent)) })
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

var errMalformed = fmt.Errorf("%w: it is not complete", dpopclient.ErrNoAnswer)
