// Package journal is the write-ahead ledger of a guard whose resource cannot
// prove what was applied: one bbolt file beside the guard (design.md §10).
//
// It is durable before anything is sent, so that after a crash an effect that may
// have been sent is ambiguous and every other one is provably not applied
// (protocol P14). It holds the highest fence of each lane, and forgets nothing
// for which the authority could still ask.
//
// An older copy of the file is found by a mark beside it, which knows of every
// commit. An older copy of the whole directory cannot be told from the
// directory itself; an effect that it never heard of is then ambiguous, never
// "not applied".
package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/disk"
)

const (
	defaultFree = 64 << 20
	defaultWait = 2 * time.Second
	probeWait   = 800 * time.Millisecond
	probeFresh  = 5 * time.Second // a commit so long ago says nothing any more
	keep        = 8 * 24 * time.Hour
)

// Options are all optional.
type Options struct {
	Create bool             // make a journal where there is none; without it a directory that was lost is noticed
	Free   uint64           // bytes of the file system that must be free for [Journal.Probe] to succeed; 64 MiB
	Wait   time.Duration    // of one call; 2 s. A call that waited for longer may still happen
	Now    func() time.Time // with a monotonic reading; time.Now
	Logger *slog.Logger
}

// Journal is the ledger of one guard process. It is safe for concurrent use:
// calls at the same time share their commits.
type Journal struct {
	options Options
	calls   chan *call
	stop    chan struct{} // closed by Close
	ended   chan struct{} // closed when the writer has ended
	closing chan struct{} // of size 1: who closes
	writer  *writer
}

// Open opens the journal in a directory on a local file system, which only its
// owner may reach, and holds it until [Journal.Close]. Its errors wrap
// guards.ErrSettings where only a person can help: there is no journal, or what
// is there is damaged, or older than it was.
func Open(dir string, o Options) (*Journal, error) {
	o = o.withDefaults()
	w := &writer{dir: dir, now: o.Now, log: o.Logger, disk: disk.Watch{Paths: []string{dir}, Free: o.Free}}
	if err := w.open(o.Create); err != nil {
		return nil, err
	}
	j := &Journal{options: o, calls: make(chan *call, maxBatch), stop: make(chan struct{}), ended: make(chan struct{}), closing: make(chan struct{}, 1), writer: w}
	go func() {
		defer close(j.ended)
		w.run(j.calls, j.stop)
	}()
	return j, nil
}

// Init makes a journal in a directory where there is none, and looks whether one
// that is there is good.
func Init(dir string) error {
	j, err := Open(dir, Options{Create: true})
	if err != nil {
		return err
	}
	return j.Close()
}

func (o Options) withDefaults() Options {
	if o.Free == 0 {
		o.Free = defaultFree
	}
	if o.Wait <= 0 {
		o.Wait = defaultWait
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Close ends the journal when the calls under way have ended. Another process may
// open it then.
func (j *Journal) Close() error {
	select {
	case j.closing <- struct{}{}:
		close(j.stop)
	default: // somebody else has
	}
	<-j.ended
	return j.writer.closed
}

// Probe returns the highest fence and admission that were ever started, when
// something could be written now. Otherwise it looks whether that can be set
// right: a journal that could not write is opened again, with all checks.
func (j *Journal) Probe() (guards.Seen, error) {
	var seen guards.Seen
	err := j.do(&call{wait: min(j.options.Wait, probeWait), probe: true, do: func(t *txn) error {
		seen = guards.Seen{Fence: t.meta.Fence, Admission: t.meta.Admission}
		return nil
	}})
	if err != nil {
		return guards.Seen{}, err // the writer may still write to the other
	}
	return seen, nil
}

var (
	errClosed  = errors.New("guards/journal: it is closed")
	errTimeout = fmt.Errorf("guards/journal: no answer in time: %w", os.ErrDeadlineExceeded)
)

// do hands a call to the writer and waits for its end, which may be unknown.
func (j *Journal) do(c *call) error {
	c.done = make(chan error, 1)
	timer := time.NewTimer(c.wait)
	defer timer.Stop()
	select {
	case <-j.stop:
		return errClosed
	default:
	}
	select {
	case j.calls <- c:
	case <-j.ended:
		return errClosed
	case <-timer.C:
		return errTimeout
	}
	select {
	case err := <-c.done:
		return err
	case <-j.ended:
		return c.last()
	case <-timer.C:
		c.abandoned.Store(true)
		return errTimeout
	}
}
