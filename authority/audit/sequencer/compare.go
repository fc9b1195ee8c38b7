package sequencer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

// load reads the tree anew: from the newest checkpoint, which must be signed,
// over the records that came after it. What this replica signed, and what each
// anchor has last kept, must be in it, before anything more is signed: a
// promoted standby or a restored backup that knows less, or something else, is
// found here.
func (s *Sequencer) load(ctx context.Context, w waiting) error {
	ctx, cancel := context.WithTimeout(ctx, comparing)
	defer cancel()
	last, tree, err := s.store.last(ctx, math.MaxInt64)
	if err != nil {
		return err
	}
	if last.Size > w.size {
		return fmt.Errorf("%w: it has %d records and %d were signed", ErrDiffers, w.size, last.Size)
	}
	if err := s.store.grow(ctx, tree, w.size); err != nil {
		return err
	}
	if err := s.compare(ctx, s.signed, last.Checkpoint, w); err != nil {
		return fmt.Errorf("this replica: %w", err)
	}
	shown, err := s.shown(last, w)
	if err != nil {
		return err
	}
	for _, p := range s.posts {
		if err := s.ask(ctx, p, shown, last.Checkpoint, w); err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
	}
	s.tree, s.signed, s.within = tree, last.Checkpoint, w.incarnation
	return nil
}

// shown is what an anchor is shown of the database: its newest checkpoint. A log
// that has none, or none since it was resumed, is shown as nothing, which says nothing.
func (s *Sequencer) shown(last kept, w waiting) ([]byte, error) {
	if last.Size > 0 && last.Resumed == w.resumed {
		return last.signed(s.Key.KeyHash()), nil
	}
	empty := &audit.Tree{}
	return audit.Sign(audit.Checkpoint{Origin: s.Key.Name(), Root: empty.Root(), At: w.at, Incarnation: w.incarnation, Epoch: w.epoch, Resumed: w.resumed}, s.Key)
}

func (s *Sequencer) ask(ctx context.Context, p *post, shown []byte, last audit.Checkpoint, w waiting) error {
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := p.Newest(asking, shown)
	if err != nil || text == nil {
		return err
	}
	kept, err := audit.OpenCheckpoint(text, s.Key.Verifier())
	if err != nil {
		return err
	}
	return s.compare(ctx, kept, last, w)
}

// compare holds a checkpoint that was signed before against what the database
// holds: the records then must have been those that it begins with. What an
// operator has given up on record is not looked for.
func (s *Sequencer) compare(ctx context.Context, known, last audit.Checkpoint, w waiting) error {
	differs := fmt.Errorf("%w: %d records were signed at %s", ErrDiffers, known.Size, known.At.Format(time.RFC3339))
	switch {
	case known.Size == 0:
		return nil
	case known.Resumed.Number < w.resumed.Number && w.resumed.Covers(known):
		return nil
	case known.Resumed != w.resumed || known.Size > w.size:
		return differs
	case known.Size == last.Size && known.Root == last.Root:
		return nil
	}
	_, tree, err := s.store.last(ctx, known.Size)
	if err != nil {
		return err
	}
	if err := s.store.grow(ctx, tree, known.Size); err != nil || tree.Root() != known.Root {
		return errors.Join(err, differs)
	}
	if known.Size > last.Size {
		return nil
	}
	if err := s.store.grow(ctx, tree, last.Size); err != nil || tree.Root() != last.Root {
		return errors.Join(err, differs)
	}
	return nil
}

// unlessOvertaken makes less of a difference that was found while another
// replica has gone on with the log.
func (s *Sequencer) unlessOvertaken(ctx context.Context, w waiting, err error) error {
	if !errors.Is(err, ErrDiffers) {
		return err
	}
	now, leading, failed := s.waiting(ctx)
	if failed != nil || leading && now.size == w.size {
		return err
	}
	return errOvertaken
}
