package scheduler

import (
	"context"
	"errors"

	"github.com/nightwarrant/nightwarrant/internal/pg"
)

// reapOnce ends or requeues runs whose lease or deadline has passed, ends
// effects, consents and questions whose time is over, and gives back what ended
// runs had reserved. It works while admission is closed.
// The list is a hint; each verb decides again, under its locks (P10).
func (s *Scheduler) reapOnce(ctx context.Context) error {
	runs, err := s.store.reapable(ctx, s.limits.Runs)
	failed := []error{err}
	for _, run := range runs {
		state, err := s.store.reap(ctx, run)
		if errors.Is(err, pg.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		failed = append(failed, err)
		if err == nil {
			s.metrics.reaped.WithLabelValues(state).Inc()
		}
		if state == "queued" {
			s.relay.wake()
		}
	}
	expired, err := s.store.expireEffects(ctx, s.limits.Runs)
	failed = append(failed, err)
	s.metrics.expired.Add(float64(expired))
	ended, err := s.store.expireConsents(ctx, s.limits.Runs)
	failed = append(failed, err)
	s.metrics.consents.Add(float64(ended))
	silent, err := s.store.expireDecisions(ctx, s.limits.Runs)
	failed = append(failed, err)
	s.metrics.silences.Add(float64(silent))
	released, err := s.store.releaseReservations(ctx, s.limits.Runs)
	failed = append(failed, err)
	if max(int64(len(runs)), expired, ended, silent, released) == int64(s.limits.Runs) && errors.Join(failed...) == nil {
		s.reaper.wake() // there are more
	}
	return errors.Join(failed...)
}

// recycleOnce empties partitions whose rows nobody needs any more, in the one
// order that is safe (P31): the floor is committed, then all admissions that
// could have read the old one end, then rows below it go.
func (s *Scheduler) recycleOnce(ctx context.Context) error {
	if err := s.store.raiseFloors(ctx); err != nil {
		return err
	}
	if err := s.store.drain(ctx); err != nil {
		return err
	}
	recycled, err := s.store.recycle(ctx)
	s.metrics.recycled.Add(float64(recycled))
	return err
}
