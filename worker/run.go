package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Run is a hold on one run. It is safe for concurrent use and good only until its handler returns.
type Run struct {
	worker    *Worker
	identity  *identity
	reference string
	fence     int64
	log       *slog.Logger
	ctx       context.Context         // the handler's
	lose      context.CancelCauseFunc // ends the hold

	renewing chan struct{} // holds a token while one renewal is under way
	mu       sync.Mutex
	hold     hold
}

// hold is what the authority said last.
type hold struct {
	token    func() capability.Token // fmt would print a field that it may not call methods on
	epoch    int64                   // of readiness
	leaseEnd time.Time               // on the worker's clock, as are the others
	renewAt  time.Time
	deadline time.Time
	left     api.Left
	effects  map[string]string // digest of the effect key → the effect's reference
}

func (w *Worker) newRun(id *identity, reference string, sent time.Time, a api.TokenResponse, log *slog.Logger) (*Run, error) {
	r := &Run{worker: w, identity: id, reference: reference, renewing: make(chan struct{}, 1),
		hold: hold{effects: map[string]string{}}}
	if a.Run != nil {
		r.fence = a.Run.Fence
		r.log = log.With("fence", r.fence)
	}
	if err := r.take(sent, a); err != nil {
		return nil, err
	}
	return r, nil
}

// take keeps an answer of claim or renew. Time counts from before the question was sent, on the durations of the answer:
// no clock is compared with another.
func (r *Run) take(sent time.Time, a api.TokenResponse) error {
	s := a.Run
	if a.AccessToken == "" || a.TokenType != "DPoP" || s == nil || s.Fence <= 0 || s.Fence != r.fence || !isTime(s.LeaseMS) || !isTime(s.RemainingMS) {
		return errMalformed
	}
	lease := time.Duration(s.LeaseMS) * time.Millisecond
	deadline := sent.Add(time.Duration(s.RemainingMS) * time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &r.hold
	h.token, h.epoch = func() capability.Token { return capability.Token(a.AccessToken) }, s.ReadinessEpoch
	if h.deadline.IsZero() || deadline.Before(h.deadline) {
		h.deadline = deadline // nothing extends it
	}
	h.leaseEnd, h.renewAt = sent.Add(lease), sent.Add(lease/3)
	if s.LeaseMS >= s.RemainingMS {
		h.leaseEnd, h.renewAt = h.deadline, h.deadline // no renewal can add to it
	}
	h.left = s.Left
	for _, e := range s.Effects {
		h.effects[e.KeySHA256] = e.Effect
	}
	return nil
}

// isTime tells a duration in milliseconds that fits a time.Duration; no deadline is further than ten years.
func isTime(ms int64) bool { return ms > 0 && ms <= (10*366*24*time.Hour).Milliseconds() }

// Reference is the run's opaque reference.
func (r *Run) Reference() string { return r.reference }

// Fence is the number of this claim, higher than any before in the task's lane.
func (r *Run) Fence() int64 { return r.fence }

// Left is the time to the authority deadline, as the worker counts it. Nothing extends it.
func (r *Run) Left() time.Duration { return r.read().deadline.Sub(r.worker.config.Now()) }

// Budget is what this run may still use, as the authority last told. It is a hint: each effect is decided when it is asked for.
func (r *Run) Budget() api.Left { return r.read().left }

// WrapUp tells that a ceiling or the deadline is near: finish what is begun, and begin nothing new.
func (r *Run) WrapUp() bool {
	hint := r.Budget().WrapUp
	return hint != "" && hint != api.WrapUpNo
}

// Format prints the reference, under every verb.
func (r *Run) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "run "+r.reference) }

// LogValue is the reference.
func (r *Run) LogValue() slog.Value { return slog.StringValue(r.reference) }

// read is the hold as it stands, without its effects.
func (r *Run) read() hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.hold
	h.effects = nil
	return h
}

// work runs the handler under a kept lease and settles the run. It returns when the handler has.
func (r *Run) work(ctx context.Context, handler Handler) {
	life, end := linger(ctx, stopGrace)
	life, lose := context.WithCancelCause(life)
	r.lose = lose
	life, expire := context.WithTimeoutCause(life, r.Left(), ErrDeadline)
	kept := make(chan struct{})
	defer func() {
		expire()
		end()
		<-kept
	}()
	go func() {
		defer close(kept)
		lose(r.keep(life))
	}()
	err := r.handle(ctx, life, handler)
	switch {
	case life.Err() != nil:
		r.log.Warn("the hold on the run was lost", "cause", context.Cause(life))
	case err != nil && ctx.Err() != nil:
		r.log.Info("stopped before the run was finished; the next worker takes it", "error", err)
	default:
		r.settle(life, err)
	}
}

// handle calls the handler with a context that ends with the hold and when the worker stops.
func (r *Run) handle(ctx, life context.Context, handler Handler) (err error) {
	handling, stop := context.WithCancelCause(life)
	defer stop(nil)
	defer context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) })()
	r.ctx = handling
	defer func() {
		if v := recover(); v != nil {
			r.log.Error("the handler panicked", "panic", v, "stack", string(debug.Stack()))
			err = errors.New("the handler panicked")
		}
	}()
	return handler(handling, r)
}

// keep renews at a third of the lease until ctx ends, and then returns nil, or until the hold is lost, and then says
// why. A renewal that fails for another reason is tried again while the lease lives.
func (r *Run) keep(ctx context.Context) error {
	var trouble error
	for n := 0; ctx.Err() == nil; {
		now, h := r.worker.config.Now(), r.read()
		end, cause := h.end()
		switch {
		case !now.Before(end):
			return because(cause, trouble)
		case now.Before(h.renewAt):
			sleep(ctx, min(h.renewAt.Sub(now), end.Sub(now)))
			continue
		}
		trouble = r.renewWithin(ctx, end.Sub(now))
		switch {
		case trouble == nil:
			n = 0
		case isOver(trouble):
			return typed(trouble)
		default:
			r.log.Warn("could not renew", "error", trouble)
			r.postpone(pauseAfter(trouble, n))
			n++
		}
	}
	return nil
}

// end is when the hold ends unless it is renewed, and as what.
func (h hold) end() (time.Time, error) {
	if !h.deadline.After(h.leaseEnd) {
		return h.deadline, ErrDeadline
	}
	return h.leaseEnd, ErrLeaseLost
}

func (r *Run) postpone(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold.renewAt = r.worker.config.Now().Add(d)
}

func (r *Run) renewWithin(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return r.renew(ctx, 0)
}

// renew extends the lease and takes the run over a reopening. One renewal runs at a time; one that was asked for because
// of a readiness epoch is not needed when another has left it meanwhile.
func (r *Run) renew(ctx context.Context, stale int64) error {
	select {
	case r.renewing <- struct{}{}:
		defer func() { <-r.renewing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	h := r.read()
	if stale != 0 && h.epoch != stale {
		return nil
	}
	sent := r.worker.config.Now()
	var a api.TokenResponse
	if err := r.identity.authority.JSON(ctx, http.MethodPost, api.PathRenew, h.token(), api.RenewRequest{}, &a); err != nil {
		return err
	}
	return r.take(sent, a)
}

// settle asks the authority to end the run, again while the answer is that it cannot yet or is lost. Asking twice is
// safe: a run is settled once, and its holder gets the same receipt.
func (r *Run) settle(ctx context.Context, handled error) {
	result := "succeeded"
	if handled != nil {
		result = "failed"
		r.log.Warn("the handler failed", "error", handled)
	}
	var receipt api.Receipt
	err := r.persist(ctx, func() error {
		return r.identity.authority.JSON(ctx, http.MethodPost, api.PathSettleRun, r.read().token(), api.SettleRunRequest{Result: result}, &receipt)
	})
	if err != nil {
		r.log.Warn("not settled", "error", err)
		return
	}
	r.log.Info("settled", "state", receipt.State, "committed", receipt.Committed)
}

// persist asks until there is an answer that does not pass by itself. When ctx ends first, the error says why it ended
// and what was waited for.
func (r *Run) persist(ctx context.Context, ask func() error) error {
	var trouble error
	for n := 0; ; n++ {
		err := ask()
		if !passes(err) {
			return typed(err)
		}
		if ctx.Err() == nil {
			trouble = err // afterwards it is the end of ctx only
		}
		if !sleep(ctx, pauseAfter(err, n)) {
			return because(context.Cause(ctx), trouble)
		}
	}
}
