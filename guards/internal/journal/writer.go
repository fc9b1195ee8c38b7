package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"github.com/nightwarrant/nightwarrant/internal/disk"
)

const maxBatch = 256 // calls that share a commit

// call is one change, which the writer makes together with others.
type call struct {
	do        func(*txn) error // its error is a verdict and no trouble: what was written stands
	probe     bool
	wait      time.Duration
	done      chan error // of size 1
	abandoned atomic.Bool
	verdict   error
}

// last is the end of a call that the writer was told of before it ended, if it came to it.
func (c *call) last() error {
	select {
	case err := <-c.done:
		return err
	default:
		return errClosed
	}
}

// writer owns the files. Everything but open and close runs in one goroutine.
type writer struct {
	dir    string
	now    func() time.Time
	log    *slog.Logger
	disk   disk.Watch
	lock   *os.File
	db     *bbolt.DB
	file   *os.File // of db
	mark   *mark
	clock  clock
	swept  map[string][]byte // where each bucket is looked at next for what may be forgotten
	wrote  time.Time         // when a commit was acknowledged last
	broken error             // why nothing can be believed until the file was opened again
	closed error             // of closing
}

// run ends after everything that was called before stop.
func (w *writer) run(calls <-chan *call, stop <-chan struct{}) {
	debug.SetPanicOnFault(true) // of a file that shrinks under its mapping
	for {
		select {
		case c := <-calls:
			w.commit(batch(c, calls))
		case <-stop:
			for len(calls) > 0 {
				w.commit(batch(<-calls, calls))
			}
			w.closed = w.close()
			return
		}
	}
}

// batch takes whatever waits. While one commit is made the next batch gathers, so there is no delay to choose.
func batch(first *call, calls <-chan *call) []*call {
	all := []*call{first}
	for len(all) < maxBatch {
		select {
		case c := <-calls:
			all = append(all, c)
		default:
			return all
		}
	}
	return all
}

// commit answers nobody before the commit is durable, and everybody alike when it fails: a verdict may rest on what the same
// batch wrote.
func (w *writer) commit(calls []*call) {
	err := w.mend(calls)
	if err == nil {
		err = protected(func() error { return w.transact(calls) })
		if err != nil {
			w.log.Error("the journal cannot be written", "error", err)
			w.abandon(err)
			err = settings(err)
			w.broken = err
		}
	}
	for _, c := range calls {
		if err != nil {
			c.done <- err
			continue
		}
		c.done <- c.verdict
	}
}

// mend opens a broken journal again when a probe asks for it.
func (w *writer) mend(calls []*call) error {
	if w.broken == nil {
		return nil
	}
	for _, c := range calls {
		if c.probe {
			if err := w.reopen(); err != nil {
				w.broken = settings(err)
			}
			break
		}
	}
	return w.broken
}

// transact makes all calls in one transaction. Its error may be of a commit that happened.
func (w *writer) transact(calls []*call) error {
	tx, err := w.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit there is nothing to roll back
	t, err := w.begin(tx)
	if err != nil {
		return err
	}
	for _, c := range calls {
		if c.abandoned.Load() {
			c.verdict = errTimeout
			continue
		}
		c.verdict = c.do(t)
		if c.probe && c.verdict == nil {
			c.verdict = w.healthy(t)
		}
		if t.err != nil {
			return t.err
		}
	}
	if !t.changed {
		return nil
	}
	w.sweep(t, 32+4*len(calls))
	return w.finish(t)
}

// finish commits, then tells the mark.
func (w *writer) finish(t *txn) error {
	t.save()
	if t.err != nil {
		return t.err
	}
	reached := t.state() // which it does not know any more after the commit
	if err := t.tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	w.wrote = w.now()
	if err := w.mark.write(reached); err != nil { // what was committed stands
		w.broken = settings(fmt.Errorf("the mark: %w", err))
	}
	return nil
}

// healthy is the verdict of a probe. An idle journal is written to, because only that shows that it can be.
func (w *writer) healthy(t *txn) error {
	if err := errors.Join(w.disk.Check(), w.unmoved()); err != nil {
		return settings(err)
	}
	if w.now().Sub(w.wrote) > probeFresh {
		t.changed = true
	}
	return nil
}

// protected turns a panic into an error: bbolt panics over pages that are not what they should be, and reading a mapping whose
// file has become shorter faults.
func protected(work func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = damaged{p}
		}
	}()
	return work()
}

type damaged struct{ panicked any }

func (d damaged) Error() string { return fmt.Sprintf("the journal is damaged: %v", d.panicked) }

// abandon gives up a file in whose transaction bbolt panicked: it may hold locks that its own Close waits for. The mapping is lost.
func (w *writer) abandon(err error) {
	if _, ok := errors.AsType[damaged](err); ok {
		w.db = nil
	}
}
