// Package sequencer grows the audit log: it numbers audit rows in the order in
// which they were seen committed, signs a checkpoint every second, and hands it
// to anchors that the database's owner cannot reach (mission B14).
//
// Every replica runs one, and one of them leads. A leader signs only what goes
// on from what it, or the leader before it, has signed: a database whose log
// became shorter, or other, gets no signature and closes admission by its lag.
package sequencer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

// Times of the loop.
const (
	tick      = 200 * time.Millisecond
	signEvery = time.Second
	refresh   = time.Minute // a checkpoint of an unchanged log says that it is unchanged
	patience  = 3 * time.Second
	batch     = 2000
)

// Key signs checkpoints and opens them again; its name is the log's origin.
type Key interface {
	note.Signer
	Verifier() note.Verifier
}

// Anchor keeps signed checkpoints where the database's owner cannot change them.
type Anchor interface {
	// Anchor keeps a checkpoint. It has kept it when it returns no error.
	Anchor(ctx context.Context, signed []byte) error
	// Newest is the last checkpoint that it kept; nil when it has none.
	Newest(ctx context.Context) ([]byte, error)
}

// Config configures a sequencer.
type Config struct {
	Pool    *pgxpool.Pool
	Key     Key
	Who     [32]byte // this replica
	Anchors []Anchor
	Log     *slog.Logger
}

// Sequencer is one replica's. Run it once.
type Sequencer struct {
	Config
	tree   *audit.Tree      // nil until it is known
	signed audit.Checkpoint // the newest
	owed   []byte           // the newest, signed
	owing  []Anchor         // that do not have it yet
	broken atomic.Pointer[failure]
}

// New returns a sequencer.
func New(c Config) *Sequencer { return &Sequencer{Config: c} }

// ErrDiffers says that the database holds another log than the one that was signed.
var ErrDiffers = errors.New("the audit log in the database is not the one that was signed")

// failure is why the log does not go on, and since when.
type failure struct {
	error
	since time.Time
}

// Health is why this replica cannot go on with the log; nil when it can, or
// another one leads, or it could not for a moment only. Another log than the
// signed one is told at once.
func (s *Sequencer) Health() error {
	f := s.broken.Load()
	if f == nil || !errors.Is(f.error, ErrDiffers) && time.Since(f.since) < patience {
		return nil
	}
	return f.error
}

// Run numbers and signs until ctx ends.
func (s *Sequencer) Run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		more, err := s.Round(ctx)
		if ctx.Err() != nil {
			return
		}
		s.tell(ctx, err)
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// tell remembers how a round went and logs what changed.
func (s *Sequencer) tell(ctx context.Context, err error) {
	before := s.broken.Load()
	if err == nil {
		s.broken.Store(nil)
		return
	}
	s.tree = nil // whatever was in memory may be wrong: the next round reads it anew
	now := &failure{err, time.Now()}
	if before != nil {
		now.since = before.since
	}
	s.broken.Store(now)
	if before == nil || before.Error() != err.Error() {
		s.Log.LogAttrs(ctx, slog.LevelError, "the audit log does not go on", slog.String("error", err.Error()))
	}
}

// Round numbers what waits, and signs when it is time to. more tells that more may wait.
func (s *Sequencer) Round(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, leading, err := s.lead(ctx)
	if err != nil {
		return false, err
	}
	if !leading { // another one goes on, and its checkpoints are newer
		s.tree, s.owing = nil, nil
		return false, nil
	}
	if s.tree == nil || s.tree.Size() != w.size {
		if err := s.load(ctx, w.size); err != nil {
			return false, err
		}
	}
	if len(w.ids) > 0 {
		grown := s.tree.Clone()
		grown.Append(w.digests...)
		if err := s.append(ctx, w); err != nil {
			return false, err
		}
		s.tree = grown
	}
	if err := s.sign(ctx, w); err != nil {
		return false, err
	}
	return len(w.ids) == batch, s.anchor(ctx)
}

// load reads the tree anew: from the newest checkpoint, which must be signed,
// over the records that came after it. No anchor may know more than that.
func (s *Sequencer) load(ctx context.Context, size int64) error {
	last, tree, err := s.last(ctx)
	if err != nil {
		return err
	}
	if last.Size > size || s.signed.Size > size {
		return fmt.Errorf("%w: it has %d records and %d were signed", ErrDiffers, size, max(last.Size, s.signed.Size))
	}
	if err := s.grow(ctx, tree, size); err != nil {
		return err
	}
	for i, a := range s.Anchors {
		if err := s.compare(ctx, a, size, last); err != nil {
			return fmt.Errorf("anchor %d: %w", i+1, err)
		}
	}
	s.tree, s.signed = tree, last
	return nil
}

// compare holds what an anchor has last kept against the database's newest checkpoint.
func (s *Sequencer) compare(ctx context.Context, a Anchor, size int64, last audit.Checkpoint) error {
	text, err := a.Newest(ctx)
	if err != nil || text == nil {
		return err
	}
	kept, err := audit.OpenCheckpoint(text, s.Key.Verifier())
	if err != nil {
		return err
	}
	if kept.Size > size || kept.Size == last.Size && kept.Root != last.Root {
		return fmt.Errorf("%w: %d records were anchored at %s", ErrDiffers, kept.Size, kept.At.Format(time.RFC3339))
	}
	return nil
}

// sign signs the log as it is, a second after the last time if it grew, and else
// after a minute.
func (s *Sequencer) sign(ctx context.Context, w waiting) error {
	age := w.at.Sub(s.signed.At)
	if s.tree.Size() == 0 || age < signEvery || s.tree.Size() == s.signed.Size && age < refresh {
		return nil
	}
	c := audit.Checkpoint{Origin: s.Key.Name(), Size: s.tree.Size(), Root: s.tree.Root(), At: w.at, Incarnation: w.incarnation, Epoch: w.epoch}
	signature, err := s.Key.Sign([]byte(c.Text()))
	if err != nil {
		return err
	}
	if err := s.keep(ctx, c, signature); err != nil {
		return err
	}
	s.signed, s.owed, s.owing = c, c.Signed(s.Key.KeyHash(), signature), slices.Clone(s.Anchors)
	return nil
}

// anchor hands the newest checkpoint on, again and again until every anchor has it.
func (s *Sequencer) anchor(ctx context.Context) error {
	var failed []error
	s.owing = slices.DeleteFunc(s.owing, func(a Anchor) bool {
		err := a.Anchor(ctx, s.owed)
		if err != nil {
			failed = append(failed, fmt.Errorf("an anchor: %w", err))
		}
		return err == nil
	})
	return errors.Join(failed...)
}
