package guards

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

// Protocol is the version of the guard protocol that this library speaks.
const Protocol = 1

const (
	pathJWKS     = api.PathJWKS
	family       = "guards" // of readiness reports
	reportEvery  = time.Second
	probeTimeout = 900 * time.Millisecond
	sweepEvery   = time.Second
	nonceEvery   = 30 * time.Second
	backoffMost  = 2 * time.Second // well within every window to settle
	maxOwed      = 1000
)

// Run owns the guard's background work until ctx ends: readiness reports, nonces and the sweep. It returns nil then, or
// earlier an error when a later boot of this instance has taken over. Stop the HTTP server first.
func (g *Guard) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for _, loop := range []func(context.Context) error{g.reportLoop, g.nonceLoop, g.sweepLoop} {
		group.Go(func() { cancel(loop(ctx)) })
	}
	group.Wait()
	g.config.HTTPClient.CloseIdleConnections()
	if err := context.Cause(ctx); errors.Is(err, ErrSuperseded) {
		return err
	}
	return nil
}

// ErrSuperseded says that a later boot of this guard's instance has registered: this process must end.
var ErrSuperseded = errors.New("guards: a later boot of this instance has registered")

func (g *Guard) reportLoop(ctx context.Context) error {
	return every(ctx, reportEvery, reportEvery, nil, g.report)
}

func (g *Guard) nonceLoop(ctx context.Context) error {
	return every(ctx, nonceEvery, time.Second, nil, g.nonces.refill)
}

func (g *Guard) sweepLoop(ctx context.Context) error {
	return every(ctx, sweepEvery, backoffMost, g.sweepNow, g.sweep)
}

// every calls work at once, then again after the interval, or when woken; after an error with doubled pauses up to most.
func every(ctx context.Context, interval, most time.Duration, wake <-chan struct{}, work func(context.Context) error) error {
	pause := interval
	for {
		err := unpanicked(ctx, work)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case dpopclient.Refused(err, api.BootSuperseded):
			return ErrSuperseded
		case err != nil:
			pause = min(2*pause, most)
		default:
			pause = interval
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-wake:
		}
		timer.Stop()
	}
}

func unpanicked(ctx context.Context, work func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("guards: background work panicked: %T", p)
		}
	}()
	return work(ctx)
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// report says once whether the ledger answers, with the age of that knowledge counted from before it was asked.
func (g *Guard) report(ctx context.Context) error {
	watch := elapsed.Start(g.config.Now)
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	seen, err := g.config.Ledger.Probe(probe)
	cancel()
	seen = g.saw(seen)
	r := api.Report{Sequence: g.nextSequence(), Healthy: err == nil, Protocol: Protocol, Models: encoded(g.config.Models), Datasets: encoded(g.config.Datasets),
		Catalogue: encoded([][32]byte{g.config.Catalogue})[0], MaxFence: seen.Fence, MaxAdmission: seen.Admission,
		Build: g.config.Build}
	if err != nil {
		g.log.Warn("the ledger does not answer", "error", err)
		r.Reason = "unreachable"
		if errors.Is(err, ErrSettings) {
			r.Reason = "settings"
		}
	}
	r.AgeMS = watch.Elapsed().Milliseconds()
	err = g.component.JSON(ctx, http.MethodPut, api.PathReports+family, r, nil)
	if err != nil && ctx.Err() == nil {
		g.log.Warn("a readiness report was not taken", "error", err)
	}
	return err
}

func encoded(digests [][32]byte) []string {
	out := make([]string, len(digests))
	for i, d := range digests {
		out[i] = base64.RawURLEncoding.EncodeToString(d[:])
	}
	return out
}

func (g *Guard) nextSequence() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sequence++
	return g.sequence
}

// saw raises what this guard has seen and returns it.
func (g *Guard) saw(s Seen) Seen {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = Seen{Fence: max(g.seen.Fence, s.Fence), Admission: max(g.seen.Admission, s.Admission)}
	return g.seen
}

func (g *Guard) begin(attempt Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alive[attempt] = true
}

func (g *Guard) end(attempt Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.alive, attempt)
	if len(g.owed) == 0 {
		return
	}
	select {
	case g.sweepNow <- struct{}{}:
	default:
	}
}

// owe remembers an effect whose end is to be settled.
func (g *Guard) owe(effect, attempt Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.owed) < maxOwed { // the authority lists what is forgotten here
		g.owed[effect] = attempt
	}
}

// sweep settles every admitted effect that nobody works on (protocol P15): those that the authority lists, whichever
// process began them, and those that this process still owes although their window has passed, as late evidence.
func (g *Guard) sweep(ctx context.Context) error {
	err := g.listUnsettled(ctx)
	if err != nil && ctx.Err() == nil {
		g.log.Warn("the unsettled effects cannot be listed", "error", err)
	}
	for effect, attempt := range g.orphans() {
		err = errors.Join(err, g.settleOrphan(ctx, effect, attempt))
	}
	return err
}

func (g *Guard) listUnsettled(ctx context.Context) error {
	var list api.Unsettled
	if err := g.component.JSON(ctx, http.MethodGet, api.PathUnsettled, nil, &list); err != nil {
		return err
	}
	for _, u := range list.Effects {
		effect, err := ParseRef(u.Effect)
		attempt, err2 := ParseRef(u.Attempt)
		if err != nil || err2 != nil || u.ApplyLeftMS > 0 {
			continue
		}
		g.owe(effect, attempt)
	}
	return nil
}

// orphans are the owed effects without a living attempt.
func (g *Guard) orphans() map[Ref]Ref {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := map[Ref]Ref{}
	for effect, attempt := range g.owed {
		if !g.alive[attempt] {
			found[effect] = attempt
		}
	}
	return found
}

func (g *Guard) settleOrphan(ctx context.Context, effect, attempt Ref) error {
	proof, cancel := context.WithTimeout(ctx, callTimeout)
	ending, err := g.config.Ledger.Prove(proof, effect, attempt)
	cancel()
	if err == nil && !ending.Outcome.known() {
		err = errors.New("guards: the ledger returned neither an end nor an error")
	}
	if err != nil {
		g.log.Warn("the end of an effect cannot be proven yet", "effect", effect, "error", err)
		return err
	}
	recorded, err := g.settle(ctx, effect, attempt, ending)
	switch {
	case dpopclient.Refused(err, api.EffectSettled, api.AttemptMismatch, api.WrongGuard):
		g.log.Error("the authority and the ledger do not agree on an effect", "effect", effect, "proven", ending.Outcome, "error", err)
	case err != nil:
		return err
	default:
		g.log.Info("an effect without an owner is settled", "effect", effect, "proven", ending.Outcome, "recorded", recorded)
	}
	g.forgive(effect)
	return nil
}

// forgive forgets an effect that is settled.
func (g *Guard) forgive(effect Ref) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.owed, effect)
}
