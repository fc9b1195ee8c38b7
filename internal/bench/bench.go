// Package bench measures the product beside its own floors, in one run on one
// machine, because a ratio outlives a machine and a figure does not: a proof's
// check against crypto/ecdsa, durable claims over HTTP against pgbench, a
// claim's CPU against its cryptography, the latency of an open loop, and the
// audit log's growth against claims.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/demo"
)

// Goals, as ratios or milliseconds. A goal that is missed is stated.
const (
	goalS1     = 1.20
	goalS1News = 80 // allocations
	goalS2     = 0.50
	goalS3     = 2.2
	goalS5     = 1.0
	goalS10    = 2.0
)

const (
	inFlight    = 64     // requests, on as many connections
	liveRows    = 40_000 // runs, at least
	mostClaims  = 20_000 // of S2: what is ready before it starts
	warmUp      = 500
	toleratedIn = 1000 // one refusal in as many requests
	openIn      = time.Minute

	shortestFloor = 4 * time.Second
)

// Result is what one run measured.
type Result struct {
	S1      S1             `json:"s1"`
	S2      S2             `json:"s2"`
	S3      *S3            `json:"s3"` // null where the system does not tell a process's CPU
	S5      S5             `json:"s5"`
	S9      map[string]S9  `json:"s9"` // by requests a second
	S10     S10            `json:"s10"`
	Refused map[string]int `json:"refused"`
	Machine Machine        `json:"machine"`
}

// S1 is the check of a DPoP proof, with every rule, against one raw verification.
type S1 struct {
	Ratio       float64 `json:"ratio"`
	Allocations uint64  `json:"allocs"`
	RawUS       float64 `json:"raw_us"`
	ProofUS     float64 `json:"proof_us"`
	Goal        float64 `json:"goal"`
}

// S2 is durable claims over HTTP, 64 in flight, against one statement at 16 connections.
type S2 struct {
	Claims float64 `json:"claims_per_s"`
	Floor  float64 `json:"floor_per_s"`
	By     string  `json:"floor_by"` // pgbench, or pgx where there is no pgbench
	Ratio  float64 `json:"ratio"`
	Goal   float64 `json:"goal"`
}

// S3 is the server's CPU for a claim against two raw verifications and a raw signature.
type S3 struct {
	ServerUS float64 `json:"server_cpu_us"`
	CryptoUS float64 `json:"crypto_us"`
	Ratio    float64 `json:"ratio"`
	Goal     float64 `json:"goal"`
}

// S9 is the latency of claims that come at a fixed rate, from when each was due.
type S9 struct {
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	Goal    float64 `json:"goal_ms"` // of p99
	Offered float64 `json:"offered"` // a second
	Done    float64 `json:"done"`    // a second
}

// Machine is where it was measured.
type Machine struct {
	Cores    int    `json:"cores"`
	Go       string `json:"go"`
	Postgres string `json:"postgres"`
}

// rates of S9 and what 99 of 100 may take.
var rates = []struct {
	perSecond int
	goal      time.Duration
}{{300, 15 * time.Millisecond}, {1000, 30 * time.Millisecond}}

// Run measures on a fresh stack; each measurement lasts about as long as said.
// The error says so when more than one request in a thousand was refused.
func Run(ctx context.Context, o demo.Options, each time.Duration, out io.Writer) (Result, error) {
	r := Result{S9: map[string]S9{}, Refused: map[string]int{}, Machine: Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}}
	var err error
	if r.S1, err = proofs(time.Now); err != nil {
		return r, err
	}
	r.S1.print(out)
	stack, err := demo.New(o)
	if err != nil {
		return r, err
	}
	defer stack.Stop()
	b := &bench{stack: stack, each: each, out: out, result: &r}
	defer b.close()
	for _, step := range []func(context.Context) error{stack.Start, stack.Register, stack.StartRest, b.prepare, b.claims, b.admissions, b.openLoops, b.sequencing} {
		if err := step(ctx); err != nil {
			return r, err
		}
	}
	return r, b.judge()
}

// bench is a stack under measurement.
type bench struct {
	demo.Measured
	stack        *demo.Stack
	each         time.Duration
	out          io.Writer
	store        *pgx.Conn
	target       target
	runs         []string // references of queued runs that nobody has claimed
	reserved     int      // how many of them the open loops will need
	sent, failed int
	result       *Result
}

// close ends what prepare began. The stack goes down after it.
func (b *bench) close() {
	if b.store != nil {
		ctx, cancel := context.WithTimeout(context.Background(), answerIn)
		defer cancel()
		_ = b.store.Close(ctx) // nothing is pending on it
	}
	http.DefaultClient.CloseIdleConnections()
}

// prepare fills the store and sends the first claims, which pay for what is cached after them.
func (b *bench) prepare(ctx context.Context) (err error) {
	if b.Measured, err = b.stack.Measured(); err != nil {
		return err
	}
	if b.target, err = newTarget(b.stack.Origin(), b.Replica, b.Issuer); err != nil {
		return err
	}
	if b.store, err = pgx.Connect(ctx, b.Store); err != nil {
		return err
	}
	if err := b.store.QueryRow(ctx, `SHOW server_version`).Scan(&b.result.Machine.Postgres); err != nil {
		return err
	}
	for _, r := range rates {
		b.reserved += int(b.each.Seconds() * float64(r.perSecond))
	}
	needed := warmUp + mostClaims + sureRounds*inRound + b.reserved
	_, people := b.stack.Issuers()
	if b.runs, err = fill(ctx, b.store, max(needed, liveRows), document.Owner{Issuer: people, Subject: demo.Member}); err != nil {
		return fmt.Errorf("the store cannot be filled: %w", err)
	}
	_, err = b.measure(ctx, warmUp, nil)
	return err
}

// claims is S2 and S3. The floor is taken before and after and the better one counts: a floor
// that something else has slowed down would flatter the product.
func (b *bench) claims(ctx context.Context) error {
	f, err := newFloor(ctx, b.Server)
	if err != nil {
		return err
	}
	defer f.drop()
	before, err := f.measure(ctx, max(b.each/2, shortestFloor))
	if err != nil {
		return err
	}
	crypto, err := claimCrypto(time.Now)
	if err != nil {
		return err
	}
	used, cpuErr := cpuOf(b.PID)
	t, err := b.measure(ctx, mostClaims, nil)
	if err != nil {
		return err
	}
	if t.done() == 0 {
		return b.judge()
	}
	usedAfter, laterErr := cpuOf(b.PID)
	after, err := f.measure(ctx, max(b.each/2, shortestFloor))
	if err != nil {
		return err
	}
	s2 := S2{Claims: t.perSecond(), Floor: max(before, after), By: f.by, Goal: goalS2}
	s2.Ratio = s2.Claims / s2.Floor
	b.result.S2 = s2
	s2.print(b.out)
	if errors.Join(cpuErr, laterErr) == nil {
		s3 := S3{ServerUS: micro(usedAfter-used) / float64(t.done()), CryptoUS: micro(crypto), Goal: goalS3}
		s3.Ratio = s3.ServerUS / s3.CryptoUS
		b.result.S3 = &s3
		s3.print(b.out)
	}
	return nil
}

// openLoops is S9: requests come when they are due, whatever became of those before.
func (b *bench) openLoops(ctx context.Context) error {
	for _, r := range rates {
		n := int(b.each.Seconds() * float64(r.perSecond))
		t, err := b.measure(ctx, n, schedule(n, r.perSecond))
		if err != nil {
			return err
		}
		s9 := S9{P50: milli(percentile(t.latencies, 50)), P99: milli(percentile(t.latencies, 99)), Goal: milli(r.goal), Offered: float64(r.perSecond), Done: t.perSecond()}
		b.result.S9[fmt.Sprint(r.perSecond)] = s9
		s9.print(b.out)
	}
	return nil
}

// measure claims n runs as fast as answers come or, when due is given, as it says.
// Those that there was no time for remain. The runs are over when it returns, so that
// no lease runs out under the next measurement.
func (b *bench) measure(ctx context.Context, n int, due []time.Duration) (tally, error) {
	requests, _, err := b.target.claims(ctx, b.runs[:n])
	if err != nil {
		return tally{}, err
	}
	if err := b.ready(ctx); err != nil {
		return tally{}, err
	}
	r := &run{requests: requests, due: due}
	if due == nil {
		r.limit = b.each
	}
	t, err := b.drive(ctx, r)
	if err != nil {
		return t, err
	}
	b.runs = b.runs[r.taken():]
	return t, finish(ctx, b.store)
}

// ready leaves every measurement the same start, with an open gate.
func (b *bench) ready(ctx context.Context) error {
	return errors.Join(settle(ctx, b.store), b.stack.WaitOpen(ctx, openIn))
}

// drive sends requests to the replica and counts refusals for the whole run.
func (b *bench) drive(ctx context.Context, r *run) (tally, error) {
	r.address = b.target.address
	t, err := drive(ctx, r)
	if err != nil {
		return t, err
	}
	for code, count := range t.refused {
		b.result.Refused[code] += count
		b.failed += count
	}
	b.sent += t.sent()
	return t, nil
}

// judge says whether the requests were answered as they should be.
func (b *bench) judge() error {
	if b.failed*toleratedIn <= b.sent {
		return nil
	}
	var codes []string
	for code, n := range b.result.Refused {
		codes = append(codes, fmt.Sprintf("%s %d", code, n))
	}
	return fmt.Errorf("%d of %d requests were refused, more than one in a thousand: %s", b.failed, b.sent, strings.Join(codes, ", "))
}

func micro(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func milli(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Complete says that everything was measured.
func (r Result) Complete() bool { return len(r.S9) == len(rates) }
