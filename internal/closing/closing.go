// Package closing measures how soon everything is closed when a part of the
// platform goes wrong, and that nothing is admitted after it: each kind of
// fault, on running stacks under load, and closes by hand under saturation.
//
// What comes after a close is read in the order of the commits, from a logical
// decoding slot; no timestamp decides it. How long something took is taken on
// the monotonic clock of this process, on one host: from just before the
// fault's signal or command to the last admission's answer, and to the last
// effect that a guard in this process applied.
package closing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options of a measurement.
type Options struct {
	Binary     string // of nightwarrant
	Dir        string // scratch; PostgreSQL's account must be able to pass it
	Injections int    // of each kind
	Explicit   int    // closes by hand
	Kinds      []string
	Stacks     int           // at once, for the faults
	Rate       int           // renewals a second, at each stack
	Clean      time.Duration // without any fault
}

// Kinds are all kinds of fault.
func Kinds() []string {
	var all []string
	for _, f := range faults() {
		all = append(all, f.kind)
	}
	return all
}

// Result is the last line.
type Result struct {
	Faults      map[string]Fault `json:"faults"` // by kind
	Explicit    Explicit         `json:"explicit"`
	FalseCloses float64          `json:"false_closes_per_hour"`
	CleanS      float64          `json:"clean_s"`   // that this was watched for, all stacks together
	ReopenMS    float64          `json:"reopen_ms"` // in the median, from healing to opening
	Load        Load             `json:"load"`
	Fsck        string           `json:"fsck"`
	OK          bool             `json:"ok"`
}

// Fault is what one kind did, in milliseconds after it.
type Fault struct {
	N          int     `json:"n"`
	P50        float64 `json:"p50_ms"` // to the last admission
	Max        float64 `json:"max_ms"`
	AppliedP50 float64 `json:"applied_p50_ms"` // to the last effect
	AppliedMax float64 `json:"applied_max_ms"`
	Late       int     `json:"admitted_after_close"`
	ReopenP50  float64 `json:"reopen_p50_ms"`
	Skipped    string  `json:"skipped,omitempty"` // why it was not tried
}

// Explicit is what closing by hand took, from the call to its return.
type Explicit struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
	Late int     `json:"admitted_after_close"`
	Rate int     `json:"admissions_per_s"` // until the close
}

// Load is what went on meanwhile.
type Load struct {
	Stacks   int `json:"stacks"`
	Renewals int `json:"renewals_per_s"` // at each, in an open loop
	Runs     int `json:"runs_per_s"`     // at each, due; with two effects
}

// bench is one measurement.
type bench struct {
	Options
	out, warn io.Writer
	began     time.Time
	faults    []fault

	mu      sync.Mutex
	next    int // of faults
	result  Result
	reopens []time.Duration
	closes  int // while nothing was done to a stack
}

// Run measures. What cannot be tried on this machine is said aloud on warn. The
// error says that something did not close, did not open again, or was admitted late.
func Run(ctx context.Context, o Options, out, warn io.Writer) (Result, error) {
	b := &bench{Options: o, out: out, warn: warn, began: time.Now(), result: Result{Faults: map[string]Fault{}, Fsck: "ok", Load: Load{o.Stacks, o.Rate, tasks}}}
	for _, f := range faults() {
		if slices.Contains(o.Kinds, f.kind) {
			b.faults = append(b.faults, f)
		}
	}
	b.Stacks = max(1, min(b.Stacks, len(b.faults)))
	b.result.Load.Stacks = b.Stacks
	g, ctx := errgroup.WithContext(ctx)
	var faulty sync.WaitGroup
	for i := range b.Stacks {
		faulty.Add(1)
		g.Go(func() error { return b.lane(ctx, i, &faulty) })
	}
	err := g.Wait()
	b.result.ReopenMS = spreadOf(b.reopens).p50
	b.result.OK = err == nil && b.result.sound()
	if err == nil && !b.result.OK {
		err = errors.New("something was admitted after a close, or the database's own account does not add up")
	}
	return b.result, err
}

// lane runs one stack: a clean stretch, then faults as long as there are some.
// The first one closes by hand when the others are down.
func (b *bench) lane(ctx context.Context, i int, faulty *sync.WaitGroup) (err error) {
	done := sync.OnceFunc(faulty.Done)
	defer done()
	l, err := newLane(ctx, b.Binary, filepath.Join(b.Dir, fmt.Sprintf("stack-%d", i+1)), func(format string, args ...any) {
		b.say("stack %d  "+format, append([]any{i + 1}, args...)...)
	})
	if l != nil {
		defer l.close()
	}
	if err != nil {
		return err
	}
	l.say("is up and open")
	l.drive(ctx, func(ctx context.Context) { l.load.openLoop(ctx, b.Rate) })
	if err := b.clean(ctx, l); err != nil {
		return err
	}
	if err := b.inject(ctx, l); err != nil {
		return err
	}
	l.rest()
	if i == 0 {
		done()
		faulty.Wait()
		hand, err := l.closeByHand(ctx, b.Options.Explicit)
		b.note(func(r *Result) { r.Explicit = hand.result() })
		if err != nil {
			return err
		}
	}
	account, err := l.check(ctx)
	if account != "ok" {
		b.note(func(r *Result) { r.Fsck = account })
	}
	return err
}

// clean watches a stack under load that nothing is done to.
func (b *bench) clean(ctx context.Context, l *lane) error {
	if err := l.steady(ctx); err != nil {
		return err
	}
	if _, err := l.count(ctx); err != nil {
		return err
	}
	began := time.Now()
	if !until(ctx, began.Add(b.Clean)) {
		return ctx.Err()
	}
	c, err := l.count(ctx)
	watched := time.Since(began).Seconds()
	b.note(func(r *Result) {
		b.closes += c.closes
		r.CleanS += math.Round(watched)
		r.FalseCloses = float64(b.closes) * 3600 / r.CleanS
	})
	l.say("was left alone for %.0f s: it closed %d times", watched, c.closes)
	return err
}

// inject takes kinds until none is left.
func (b *bench) inject(ctx context.Context, l *lane) error {
	for f, ok := b.take(); ok; f, ok = b.take() {
		done, err := l.try(ctx, f, b.Injections)
		var why skipped
		if errors.As(err, &why) {
			_, _ = fmt.Fprintf(b.warn, "skipped: %s: %s\n", f.kind, why) // where else?
			b.note(func(r *Result) { r.Faults[f.kind] = Fault{Skipped: string(why)} })
			continue
		}
		if err != nil {
			return fmt.Errorf("%w (logs are in %s)", err, l.stack.Path("logs"))
		}
		b.note(func(r *Result) { r.Faults[f.kind] = faultOf(done) })
		b.mu.Lock()
		for _, one := range done {
			b.reopens = append(b.reopens, one.reopened)
		}
		b.mu.Unlock()
	}
	return nil
}

func (b *bench) take() (f fault, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == len(b.faults) {
		return f, false
	}
	b.next++
	return b.faults[b.next-1], true
}

func faultOf(done []injection) Fault {
	f := Fault{N: len(done)}
	var admitted, applied, reopened []time.Duration
	for _, one := range done {
		admitted, applied, reopened = append(admitted, one.admitted), append(applied, one.applied), append(reopened, one.reopened)
		f.Late += one.late
	}
	a, p := spreadOf(admitted), spreadOf(applied)
	f.P50, f.Max, f.AppliedP50, f.AppliedMax, f.ReopenP50 = a.p50, a.most, p.p50, p.most, spreadOf(reopened).p50
	return f
}

func (b *bench) note(f func(*Result)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.result)
}

func (b *bench) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, _ = fmt.Fprintf(b.out, "%6.1fs  "+format+"\n", append([]any{time.Since(b.began).Seconds()}, args...)...) // a figure may get lost; the result is returned
}

// sound says whether nothing happened that must not.
func (r Result) sound() bool {
	ok := r.Fsck == "ok" && r.Explicit.Late == 0
	for _, f := range r.Faults {
		ok = ok && f.Late == 0
	}
	return ok
}

// rank is the smallest value of a sorted list that at least p of 100 do not exceed; 0 when there is none.
func rank(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// spread is how long something took, in milliseconds.
type spread struct{ p50, p99, most float64 }

func spreadOf(took []time.Duration) spread {
	sorted := slices.Clone(took)
	slices.Sort(sorted)
	return spread{milli(rank(sorted, 50)), milli(rank(sorted, 99)), milli(rank(sorted, 100))}
}

// milli keeps a tenth of a millisecond: more would be noise.
func milli(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
