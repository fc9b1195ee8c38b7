package scheduler

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Verdicts of the verbs that mean something here; all others mean that somebody
// else was faster.
const (
	verdictOK         = "ok"
	verdictClosed     = "admission_closed"
	verdictSuperseded = "boot_superseded"
	verdictNotFound   = "not_found"
)

// Reasons of the planner's own; the others are the timetable's.
const (
	skipTooMany = "too_many" // an outage left more than get a row each
	skipConsent = "consent"  // the consent does not reach there
)

// planOnce takes every task forward whose slot has come. One task that fails
// holds up no other. While admission is closed nothing is planned: what is late
// by then is skipped, and recorded, by its task's policy.
func (s *Scheduler) planOnce(ctx context.Context) error {
	failed := []error{s.checkZones(ctx)}
	tasks, err := s.store.due(ctx, s.limits.Tasks)
	if err != nil {
		return err
	}
	progress := false
	for _, t := range tasks {
		verdict, err := s.planTask(ctx, t)
		switch {
		case errors.Is(err, pg.ErrUnavailable) || ctx.Err() != nil:
			return err
		case err != nil:
			failed = append(failed, err)
		case verdict == verdictClosed:
			return errors.Join(failed...)
		case verdict == verdictOK:
			progress = true
		}
	}
	if progress {
		s.relay.wake()
	}
	if progress && len(tasks) == s.limits.Tasks {
		s.planner.wake() // there are more
	}
	return errors.Join(failed...)
}

func (s *Scheduler) planTask(ctx context.Context, t due) (verdict string, err error) {
	p, err := planOf(t, s.limits.Slots)
	if err != nil {
		return "", fmt.Errorf("task %d: %w", t.Task, err)
	}
	if _, err := rand.Read(p.run[:]); err != nil {
		return "", err
	}
	verdict, slots, err := s.store.plan(ctx, p, s.rate)
	if err != nil || verdict != verdictOK {
		return verdict, err
	}
	s.metrics.planned.Add(float64(slots))
	for _, slot := range p.slots {
		if slot.Skip != "" {
			s.metrics.skipped.WithLabelValues(slot.Skip).Add(float64(max(1, slot.Covers)))
		}
	}
	return verdict, nil
}

// planOf asks the timetable what became of a task's slots. Those after the
// consent's end are nobody's.
func planOf(t due, limit int) (planned, error) {
	schedule, err := scheduleOf(t.Body)
	if err != nil {
		return planned{}, err
	}
	until := t.Now
	if !until.Before(t.ConsentUntil) {
		until = t.ConsentUntil.Add(-time.Microsecond)
	}
	plan := schedule.Due(t.Next.Add(-time.Microsecond), until, limit)
	p := planned{due: t, slots: slotsOf(plan, t.NotBefore), zone: timetable.ZoneFingerprint(schedule.Zone(), t.Now)}
	if !plan.Next.IsZero() {
		p.next, p.zone = &plan.Next, timetable.ZoneFingerprint(schedule.Zone(), plan.Next)
	}
	return p, nil
}

func scheduleOf(body []byte) (timetable.Schedule, error) {
	var task struct {
		Schedule timetable.Document `json:"schedule"`
	}
	if err := json.Unmarshal(body, &task); err != nil {
		return timetable.Schedule{}, errors.New("its document cannot be read")
	}
	return timetable.Parse(task.Schedule)
}

func slotsOf(plan timetable.Plan, notBefore time.Time) []slot {
	slots := []slot{}
	if plan.Older.Count > 0 {
		slots = append(slots, slot{At: plan.Older.First, Skip: skipTooMany, Covers: plan.Older.Count})
	}
	for _, x := range plan.Slots {
		skip := string(x.Skip)
		if x.Nominal.Before(notBefore) {
			skip = skipConsent
		}
		slots = append(slots, slot{At: x.Nominal, Skip: skip})
	}
	return slots
}

// checkZones compares coming slots with the zone rules of this process, which
// may be newer than those that they were computed by: one page in each step,
// until all were seen once.
func (s *Scheduler) checkZones(ctx context.Context) error {
	if s.zonesSeen {
		return nil
	}
	page, err := s.store.zones(ctx, s.zonesAfter, zonesOfAPage)
	if err != nil {
		return err
	}
	for _, c := range page {
		verdict, err := s.checkZone(ctx, c)
		if err != nil {
			return fmt.Errorf("task %d: %w", c.Task, err)
		}
		if verdict == verdictClosed {
			return nil
		}
		s.zonesAfter = c.Task
	}
	s.zonesSeen = len(page) < zonesOfAPage
	return nil
}

func (s *Scheduler) checkZone(ctx context.Context, c coming) (verdict string, err error) {
	schedule, err := scheduleOf(c.Body)
	if err != nil {
		return "", nil //nolint:nilerr // planning says so, when its slot comes
	}
	if zone := timetable.ZoneFingerprint(schedule.Zone(), c.Next); bytes.Equal(zone[:], c.Zone) {
		return verdictOK, nil
	}
	next, ok := schedule.Next(c.Last)
	if !ok {
		return "", nil
	}
	return s.store.rezone(ctx, c, next, timetable.ZoneFingerprint(schedule.Zone(), next))
}

const zonesOfAPage = 200

// relayOnce publishes what is ready. Taking a row has already set the time of
// its next attempt, so that one which was not published comes again by itself.
// The first failure ends the step: the others would wait for the same server.
func (s *Scheduler) relayOnce(ctx context.Context) error {
	hints, err := s.store.takeOutbox(ctx, s.limits.Hints, s.again)
	if err != nil {
		return err
	}
	for i, h := range hints {
		if err := s.queue.Publish(ctx, h.Queue, h.Run, h.Attempt); err != nil {
			s.metrics.unpublished.Add(float64(len(hints) - i))
			s.reporter.wake()
			return fmt.Errorf("publishing: %w", err)
		}
		s.metrics.published.Inc()
	}
	if len(hints) == s.limits.Hints {
		s.relay.wake()
	}
	return nil
}

var _ Queue = (*queue.Queue)(nil)
