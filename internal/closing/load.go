package closing

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	holders  = 16 // runs that are held, each on a connection of its own
	answerIn = 2 * time.Second
	arrears  = time.Second            // what was due longer ago is left out: after an outage there is no burst
	noStorm  = 500 * time.Millisecond // after an error, so that a server which comes up is not met by a storm of connections
	leaseMS  = 60_000                 // longer than anything stays closed
)

// load admits directly, as a replica does and without its HTTP: renewals of
// runs that it holds. It goes on whatever happens to the replicas.
type load struct {
	pool  *pgxpool.Pool // as nw_authority
	holds []*hold

	mu      sync.Mutex
	granted map[int64]time.Time // by readiness epoch: when the last answer came
	count   int
	refused error         // the newest
	opened  chan struct{} // closed while the gate is open, as far as is known
}

// hold is one run that is held.
type hold struct {
	run, key, member               []byte
	fence, activation, incarnation int64
}

func random() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return b
}

// takeHold claims a queued run. profiles are those that its role accepts, and member whose run it is: this load says itself that they are one.
func takeHold(ctx context.Context, pool *pgxpool.Pool, run []byte, profiles []int64, member []byte) (*hold, string, error) {
	h := &hold{run: run, key: random(), member: member}
	var verdict string
	err := pool.QueryRow(ctx, `SELECT verdict, coalesce(fence, 0), coalesce(activation_epoch, 0), coalesce(incarnation, 0)
		FROM nw.claim($1, NULL, $2, $3, clock_timestamp() + interval '10 minutes', false, $4, clock_timestamp(), $5, $6, $7, ARRAY[$8::bytea], ARRAY[clock_timestamp()])`,
		run, profiles, random(), h.key, random(), random(), leaseMS, member).Scan(&verdict, &h.fence, &h.activation, &h.incarnation)
	return h, verdict, err
}

// renew is one admission. The epoch is the one that it was admitted under.
func (l *load) renew(ctx context.Context, h *hold) (verdict string, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	var epoch int64
	err = l.pool.QueryRow(ctx, `SELECT verdict, coalesce(readiness_epoch, 0) FROM nw.renew($1, $2, $3, $4, $5, clock_timestamp(), $6, $7, $8, NULL, NULL, NULL, ARRAY[$9::bytea], ARRAY[clock_timestamp()])`,
		h.run, h.fence, h.activation, h.incarnation, h.key, random(), random(), leaseMS, h.member).Scan(&verdict, &epoch)
	if err == nil && verdict == "ok" {
		l.note(epoch, time.Now())
		return verdict, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused = err; err == nil {
		l.refused = errors.New(verdict)
	}
	return verdict, err
}

func (l *load) note(epoch int64, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	if at.After(l.granted[epoch]) {
		l.granted[epoch] = at
	}
}

// last is when the last admission under an epoch below this one was answered; zero when there was none.
func (l *load) last(below int64) (at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for epoch, granted := range l.granted {
		if epoch < below && granted.After(at) {
			at = granted
		}
	}
	return at
}

func (l *load) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *load) lastRefusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused
}

// openLoop renews at a fixed rate until ctx ends, whatever the answers are.
func (l *load) openLoop(ctx context.Context, perSecond int) {
	every := time.Duration(len(l.holds)) * time.Second / time.Duration(perSecond)
	began := time.Now()
	var all sync.WaitGroup
	for i, h := range l.holds {
		all.Go(func() {
			first := began.Add(every * time.Duration(i) / time.Duration(len(l.holds)))
			for due := first; until(ctx, due); due = nextDue(due, every, time.Now()) {
				if _, err := l.renew(ctx, h); err != nil { // a refusal is none: what is not granted is the point
					until(ctx, time.Now().Add(noStorm))
				}
			}
		})
	}
	all.Wait()
}

// nextDue leaves out what was due too long ago.
func nextDue(due time.Time, every time.Duration, now time.Time) time.Time {
	due = due.Add(every)
	if late := now.Sub(due); late > arrears {
		due = due.Add(every * (late / every))
	}
	return due
}

// saturate renews on every connection as fast as answers come, until ctx ends.
// What is refused waits for the next opening, so that refusals are no load.
func (l *load) saturate(ctx context.Context) {
	var all sync.WaitGroup
	for _, h := range l.holds {
		all.Go(func() {
			for l.whileOpen(ctx) {
				if verdict, err := l.renew(ctx, h); err != nil || verdict != "ok" {
					l.shut()
				}
			}
		})
	}
	all.Wait()
}

// whileOpen waits for an open gate; false when ctx has ended.
func (l *load) whileOpen(ctx context.Context) bool {
	l.mu.Lock()
	opened := l.opened
	l.mu.Unlock()
	select {
	case <-opened:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (l *load) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.opened:
		l.opened = make(chan struct{})
	default:
	}
}

func (l *load) open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.opened:
	default:
		close(l.opened)
	}
}

// until waits for a time; false when ctx ends first.
func until(ctx context.Context, at time.Time) bool {
	t := time.NewTimer(time.Until(at))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
