package scheduler

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// again lets the time of each next attempt come.
func again(t testing.TB, w *fixture.World) {
	t.Helper()
	w.Exec(t, `UPDATE nw.outbox SET next_at = clock_timestamp()`)
}

func TestARunIsPublishedUntilItIsClaimed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	for attempt := 1; attempt <= 3; attempt++ {
		again(t, s.World)
		require.NoError(t, s.relayOnce(within(t)))
		require.Equal(t, []published{{queue.Ref(s.Queue), queue.Ref(run.Ref), attempt}}, s.paper.take())
		require.NoError(t, s.relayOnce(within(t)))
		require.Empty(t, s.paper.take(), "its next attempt has a time")
	}
	s.Claim(t, run.ID)
	again(t, s.World)
	require.NoError(t, s.relayOnce(within(t)))
	require.Empty(t, s.paper.take())
}

func TestARunThatEndedIsNotPublished(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	task := s.Task(t, fixture.TaskOptions{})
	run := s.NewRun(t, task)
	s.Revise(t, task, 2, fixture.TaskOptions{})
	require.Equal(t, "revoked", s.RunByID(t, run.ID).State)
	require.NoError(t, s.relayOnce(within(t)))
	require.Empty(t, s.paper.take())
}

func TestTheNextAttemptHasItsTime(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *Config) { c.Republish = 77 * time.Second })
	s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	before := s.Now(t)
	require.NoError(t, s.relayOnce(within(t)))
	next := fixture.Value[time.Time](t, s.World, `SELECT next_at FROM nw.outbox`)
	require.WithinRange(t, next, before.Add(77*time.Second), s.Now(t).Add(77*time.Second))
}

func TestWhileClosedNothingIsPublished(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	s.CloseGate(t)
	require.NoError(t, s.relayOnce(within(t)))
	require.Empty(t, s.paper.take())
	require.Zero(t, fixture.Value[int](t, s.World, `SELECT attempt FROM nw.outbox`))
	s.OpenGate(t)
	require.NoError(t, s.relayOnce(within(t)))
	require.Len(t, s.paper.take(), 1)
}

func TestAFailureEndsTheStepAndLosesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 3 {
		s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	}
	s.paper.refuse = errors.New("no disk")
	require.ErrorContains(t, s.relayOnce(within(t)), "no disk")
	require.Len(t, s.reporter.wakes, 1, "the queue is looked at at once")
	s.paper.refuse = nil
	require.NoError(t, s.relayOnce(within(t)))
	require.Empty(t, s.paper.take())
	again(t, s.World)
	require.NoError(t, s.relayOnce(within(t)))
	sent := s.paper.take()
	require.Len(t, sent, 3)
	for _, x := range sent {
		require.Equal(t, 2, x.attempt)
	}
}

// Rows are taken by state, not by a mark of what was seen: one that has a
// smaller number and commits later comes too.
func TestALateCommitIsNotSkipped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first, second := s.Task(t, fixture.TaskOptions{}), s.Task(t, fixture.TaskOptions{})
	insert := `WITH run AS (INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, effects_left, steps_left, spend_left)
			SELECT $2, task_id, id, member, role_id, clock_timestamp(), 1, expires_at, 1, 1, 0 FROM nw.consents WHERE task_id = $1 RETURNING id, ref)
		INSERT INTO nw.outbox (run_id, run_ref, queue) SELECT id, ref, $3 FROM run`
	refs := []fixture.Ref{fixture.NewRef(), fixture.NewRef()}
	early, err := s.Owner.Begin(within(t))
	require.NoError(t, err)
	_, err = early.Exec(within(t), insert, first.ID, refs[0][:], s.Queue[:])
	require.NoError(t, err)
	late, err := s.Owner.Begin(within(t))
	require.NoError(t, err)
	_, err = late.Exec(within(t), insert, second.ID, refs[1][:], s.Queue[:])
	require.NoError(t, err)

	require.NoError(t, late.Commit(within(t)))
	require.NoError(t, s.relayOnce(within(t)))
	require.Equal(t, []published{{queue.Ref(s.Queue), queue.Ref(refs[1]), 1}}, s.paper.take())
	require.NoError(t, early.Commit(within(t)))
	require.NoError(t, s.relayOnce(within(t)))
	require.Equal(t, []published{{queue.Ref(s.Queue), queue.Ref(refs[0]), 1}}, s.paper.take())
}

func TestTwoRelaysPublishAnAttemptOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *Config) { c.Limits.Hints = 5 })
	others := []*Scheduler{s.Scheduler, newScheduler(t, s.World, s.paper), newScheduler(t, s.World, s.paper)}
	for range 20 {
		s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	}
	var group sync.WaitGroup
	for _, other := range others {
		group.Go(func() {
			for range 20 {
				assert.NoError(t, other.relayOnce(within(t)))
			}
		})
	}
	group.Wait()
	sent := s.paper.take()
	require.Len(t, sent, 20)
	seen := map[queue.Ref]bool{}
	for _, x := range sent {
		require.Equal(t, 1, x.attempt)
		require.False(t, seen[x.run])
		seen[x.run] = true
	}
}

func TestThroughARealQueue(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	w.OpenGate(t)
	s := newScheduler(t, w, b.queue(t))
	require.NoError(t, s.reportOnce(within(t)))
	run := w.NewRun(t, w.Task(t, fixture.TaskOptions{}))
	for attempt := 1; attempt <= 2; attempt++ {
		again(t, w)
		require.NoError(t, s.relayOnce(within(t)))
		reference, id := b.next(t, queue.Ref(w.Queue))
		require.Equal(t, queue.Ref(run.Ref).String(), reference)
		require.Equal(t, reference+"."+strconv.Itoa(attempt), id)
	}
}

// A server that comes back with an empty disk has lost every message and no run.
func TestAnEmptiedServerLosesNoRun(t *testing.T) {
	t.Parallel()
	w, b := fixture.New(t), newNATS(t)
	w.OpenGate(t)
	s := newScheduler(t, w, b.queue(t))
	require.NoError(t, s.reportOnce(within(t)))
	want := map[string]bool{}
	for range 5 {
		run := w.NewRun(t, w.Task(t, fixture.TaskOptions{}))
		want[queue.Ref(run.Ref).String()] = true
	}
	require.NoError(t, s.relayOnce(within(t)))

	b.server.Stop()
	files, err := filepath.Glob(filepath.Join(b.server.Dir(), "*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NoError(t, os.RemoveAll(f))
	}
	again(t, w)
	require.Error(t, s.relayOnce(within(t)), "there is no server")
	require.NoError(t, b.server.Restart(within(t)))
	require.Eventually(t, func() bool {
		_, err := b.js.Stream(within(t), queue.Stream)
		return errors.Is(err, jetstream.ErrStreamNotFound)
	}, testWithin, 10*time.Millisecond)

	// The replica that ran all along says so, and repairs nothing.
	require.NoError(t, s.reportOnce(within(t)))
	require.Equal(t, "closed", fixture.Value[string](t, w, `SELECT state FROM nw.readiness_decision`))
	_, err = b.js.Stream(within(t), queue.Stream)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)

	// One that starts does; the runs come again.
	restarted := newScheduler(t, w, b.queue(t))
	require.NoError(t, restarted.reportOnce(within(t)))
	w.OpenGate(t)
	again(t, w)
	require.NoError(t, restarted.relayOnce(within(t)))
	for range 5 {
		reference, _ := b.next(t, queue.Ref(w.Queue))
		require.True(t, want[reference])
		delete(want, reference)
	}
	require.Empty(t, want)
}

func TestALostDatabaseIsAnError(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.store.pool.Close()
	for _, step := range []func(context.Context) error{s.planOnce, s.relayOnce, s.reapOnce, s.recycleOnce, s.reportOnce} {
		require.Error(t, step(within(t)))
	}
}
