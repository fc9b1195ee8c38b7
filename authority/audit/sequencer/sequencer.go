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
	"sync"
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
	handing   = time.Second // less than a leader's time: who does not answer holds nobody up
	comparing = 30 * time.Second
	anchorLag = 5 * time.Second // how long an anchor may be without the newest checkpoint
	batch     = 2000
)

// Key signs checkpoints and opens them again; its name is the log's origin.
type Key interface {
	note.Signer
	Verifier() note.Verifier
}

// Anchor keeps signed checkpoints where the database's owner cannot change them.
type Anchor interface {
	// Anchor keeps a checkpoint. It has kept it when it returns no error, and
	// may say ErrDiffers when it knows something else.
	Anchor(ctx context.Context, signed []byte) error
	// Newest is the last checkpoint that it kept; nil when it has none. It is
	// shown the database's newest: a witness tells nothing but whether that goes
	// on from what it saw, and else says ErrDiffers.
	Newest(ctx context.Context, shown []byte) ([]byte, error)
	// Name is for the log of this process.
	Name() string
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
	store  Store
	tree   *audit.Tree      // nil until it is known
	within int64            // the incarnation in which it was compared
	signed audit.Checkpoint // the newest
	owed   []byte           // the newest, signed
	posts  []*post
	broken atomic.Pointer[failure]
	late   atomic.Pointer[failure]
}

// post is where checkpoints are handed on to.
type post struct {
	Anchor
	since time.Time // that it owes the newest checkpoint; zero when it has it
	err   error     // of the last attempt
}

// New returns a sequencer.
func New(c Config) *Sequencer {
	s := &Sequencer{Config: c, store: Store{c.Pool, c.Key}}
	for _, a := range c.Anchors {
		s.posts = append(s.posts, &post{Anchor: a})
	}
	return s
}

// ErrDiffers says that the database holds another log than the one that was signed.
var ErrDiffers = audit.ErrDiffers

// failure is why the log does not go on, and since when.
type failure struct {
	error
	since time.Time
}

// Health is why this replica cannot go on with the log; nil when it can, or
// another one leads, or it could not for a moment only. Another log than the
// signed one is told at once.
func (s *Sequencer) Health() error {
	if f := s.broken.Load(); f != nil && (errors.Is(f.error, ErrDiffers) || time.Since(f.since) >= patience) {
		return f.error
	}
	if f := s.late.Load(); f != nil && time.Since(f.since) >= anchorLag {
		return f.error
	}
	return nil
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
	w, leading, err := s.waiting(ctx)
	if err != nil || !leading {
		return false, err
	}
	if s.tree == nil || s.tree.Size() != w.size || s.within != w.incarnation {
		if err := s.load(ctx, w); err != nil {
			return false, s.unlessOvertaken(ctx, w, err)
		}
		// It may have taken long: a checkpoint is of the moment in which it is made.
		if w, leading, err = s.waiting(ctx); err != nil || !leading {
			return false, err
		}
		if s.tree.Size() != w.size || s.within != w.incarnation {
			return true, nil
		}
	}
	if err := s.goOn(ctx, w); err != nil {
		return false, err
	}
	s.anchor(ctx)
	return len(w.ids) == batch, nil
}

// waiting leads, when nobody else does.
func (s *Sequencer) waiting(ctx context.Context) (w waiting, leading bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, leading, err = s.lead(ctx)
	if err == nil && !leading { // another one goes on, and its checkpoints are newer
		s.tree = nil
		s.late.Store(nil)
		for _, p := range s.posts {
			p.since, p.err = time.Time{}, nil
		}
	}
	return w, leading, err
}

// goOn numbers what waited, and signs.
func (s *Sequencer) goOn(ctx context.Context, w waiting) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if len(w.ids) > 0 {
		grown := s.tree.Clone()
		grown.Append(w.digests...)
		if err := s.append(ctx, w); err != nil {
			return err
		}
		s.tree = grown
	}
	return s.sign(ctx, w)
}

// sign signs the log as it is, a second after the last time if it grew, and else
// after a minute.
func (s *Sequencer) sign(ctx context.Context, w waiting) error {
	age := w.at.Sub(s.signed.At)
	if s.tree.Size() == 0 || age < signEvery || s.tree.Size() == s.signed.Size && age < refresh {
		return nil
	}
	c := s.checkpoint(w)
	signature, err := s.Key.Sign([]byte(c.Text()))
	if err != nil {
		return err
	}
	if err := s.keep(ctx, c, signature); err != nil {
		return err
	}
	s.signed, s.owed = c, c.Signed(s.Key.KeyHash(), signature)
	for _, p := range s.posts {
		if p.since.IsZero() {
			p.since = time.Now()
		}
	}
	return nil
}

func (s *Sequencer) checkpoint(w waiting) audit.Checkpoint {
	return audit.Checkpoint{Origin: s.Key.Name(), Size: s.tree.Size(), Root: s.tree.Root(), At: w.at, Incarnation: w.incarnation, Epoch: w.epoch, Resumed: w.resumed}
}

// anchor hands the newest checkpoint on, side by side and again and again until
// every anchor has it. The log goes on without one, and closes admission.
func (s *Sequencer) anchor(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, handing)
	defer cancel()
	var all sync.WaitGroup
	before := make([]error, len(s.posts))
	for i, p := range s.posts {
		if before[i] = p.err; !p.since.IsZero() {
			all.Go(func() { p.err = p.Anchor.Anchor(ctx, s.owed) })
		}
	}
	all.Wait()
	var late *failure
	for i, p := range s.posts {
		if p.err == nil {
			p.since = time.Time{}
			continue
		}
		if before[i] == nil || before[i].Error() != p.err.Error() {
			s.Log.LogAttrs(ctx, slog.LevelError, "an anchor does not keep the audit log's checkpoint", slog.String("anchor", p.Name()), slog.String("error", p.err.Error()))
		}
		if errors.Is(p.err, ErrDiffers) { // or another replica has been there: what the database holds now is compared
			s.tree = nil
		}
		if late == nil || p.since.Before(late.since) {
			late = &failure{fmt.Errorf("%s: %w", p.Name(), p.err), p.since}
		}
	}
	s.late.Store(late)
}
