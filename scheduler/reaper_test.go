package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// held is a claimed run of a new task.
func (s *stage) held(t testing.TB) fixture.Hold {
	t.Helper()
	return s.Claim(t, s.NewRun(t, s.Task(t, fixture.TaskOptions{})).ID)
}

// pastDeadline is a held run whose deadline is over. The past is planted
// without the trigger that keeps deadlines where they are.
func (s *stage) passDeadline(t testing.TB, run int64) {
	t.Helper()
	s.Exec(t, `ALTER TABLE nw.runs DISABLE TRIGGER runs_fixed`)
	s.Exec(t, `UPDATE nw.runs SET deadline = clock_timestamp() - interval '1 second' WHERE id = $1`, run)
	s.Exec(t, `ALTER TABLE nw.runs ENABLE TRIGGER runs_fixed`)
}

func TestALostLeaseIsRequeued(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	hold := s.held(t)
	require.NoError(t, s.reapOnce(within(t)))
	require.Equal(t, "claimed", s.RunByID(t, hold.Run.ID).State, "its lease lives")

	s.LoseLease(t, hold.Run.ID)
	require.NoError(t, s.reapOnce(within(t)))
	run := s.RunByID(t, hold.Run.ID)
	require.Equal(t, "queued", run.State)
	require.True(t, run.Queued)
	require.Equal(t, hold.Fence, run.Fence, "the next claim takes a higher one")
	require.Equal(t, hold.Run.Deadline, run.Deadline)
	require.Len(t, s.relay.wakes, 1)
	require.Greater(t, s.Claim(t, run.ID).Fence, hold.Fence)
}

// The reaper works while admission is closed: it admits nothing.
func TestReapingNeedsNoOpenGate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	hold := s.held(t)
	effect := s.Admitted(t, s.held(t), -time.Second)
	s.CloseGate(t)
	s.LoseLease(t, hold.Run.ID)
	require.NoError(t, s.reapOnce(within(t)))
	require.Equal(t, "queued", s.RunByID(t, hold.Run.ID).State)
	require.Equal(t, "ambiguous", s.EffectState(t, effect))
	require.NoError(t, s.relayOnce(within(t)))
	require.Empty(t, s.paper.take())
}

func TestALostLeaseWithAnEffectInFlight(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ outcome, want string }{
		"everything proven": {"committed", "queued"},
		"nothing applied":   {"not_applied", "queued"},
		"ambiguous":         {"ambiguous", "ambiguous"},
	}
	s := newStage(t)
	for name, c := range cases {
		hold := s.held(t)
		effect := s.Admitted(t, hold, time.Minute)
		s.LoseLease(t, hold.Run.ID)
		for range 2 {
			require.NoError(t, s.reapOnce(within(t)), name)
			run := s.RunByID(t, hold.Run.ID)
			require.Equal(t, "ending", run.State, name)
			require.Equal(t, "lease_lost", *run.Ending, name)
			require.False(t, run.Queued, name)
		}
		s.Land(t, effect, c.outcome)
		run := s.RunByID(t, hold.Run.ID)
		require.Equal(t, c.want, run.State, name)
		require.Equal(t, c.want == "queued", run.Queued, name)
		require.Equal(t, hold.Fence, run.Fence, name)
	}
}

func TestAPassedDeadline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	queued, held, busy := s.NewRun(t, s.Task(t, fixture.TaskOptions{})), s.held(t), s.held(t)
	effect := s.Admitted(t, busy, time.Minute)
	for _, run := range []int64{queued.ID, held.Run.ID, busy.Run.ID} {
		s.passDeadline(t, run)
	}
	require.NoError(t, s.reapOnce(within(t)))
	require.Equal(t, "expired", s.RunByID(t, queued.ID).State)
	require.False(t, s.RunByID(t, queued.ID).Queued)
	require.Equal(t, "expired", s.RunByID(t, held.Run.ID).State)
	require.Equal(t, "ending", s.RunByID(t, busy.Run.ID).State)
	s.Land(t, effect, "committed")
	require.Equal(t, "expired", s.RunByID(t, busy.Run.ID).State)
}

func TestAnEffectThatNobodySettles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	hold, alive := s.held(t), s.held(t)
	effect, other := s.Admitted(t, hold, -time.Second), s.Admitted(t, alive, time.Minute)
	require.NoError(t, s.reapOnce(within(t)))
	require.Equal(t, "ambiguous", s.EffectState(t, effect))
	run := s.RunByID(t, hold.Run.ID)
	require.Equal(t, "ambiguous", run.State)
	require.False(t, run.Queued, "never replayed")
	require.Equal(t, "admitted", s.EffectState(t, other))
	require.Equal(t, "claimed", s.RunByID(t, alive.Run.ID).State)
	require.EqualValues(t, 1, fixture.Value[int64](t, s.World, `SELECT count(*) FROM nw.audit WHERE verb = 'expire_effect' AND effect_id = $1`, effect))
}

func TestAConsentWhoseTimeIsOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	until := s.Now(t).Add(-time.Minute)
	over := s.Task(t, fixture.TaskOptions{Until: until})
	once := s.Task(t, fixture.TaskOptions{Until: until})
	s.Exec(t, `DELETE FROM nw.schedules WHERE task_id = $1`, once.ID)
	unplanned := s.Task(t, fixture.TaskOptions{Until: until, FirstAt: until.Add(-time.Minute)})
	alive := s.Task(t, fixture.TaskOptions{})
	s.CloseGate(t)
	require.NoError(t, s.reapOnce(within(t)))
	s.requireEnded(t, over, "expired")
	s.requireEnded(t, once, "expired")
	require.Empty(t, s.Slots(t, over), "its next slot had not come")
	for _, task := range []fixture.Task{unplanned, alive} {
		require.Equal(t, "active", fixture.Value[string](t, s.World, `SELECT state FROM nw.consents WHERE id = $1`, task.Consent))
		require.NotNil(t, s.NextAt(t, task))
	}
	s.OpenGate(t)
	require.NoError(t, s.planOnce(within(t)))
	s.requireEnded(t, unplanned, "expired")
}

// A run of a consent that is over has expired; nobody has revoked it.
func TestARunOfAConsentThatIsOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	task := s.Task(t, fixture.TaskOptions{})
	run := s.NewRun(t, task)
	s.passDeadline(t, run.ID)
	s.Exec(t, `ALTER TABLE nw.consents DISABLE TRIGGER consents_end`)
	s.Exec(t, `UPDATE nw.consents SET expires_at = clock_timestamp() - interval '1 second'`)
	s.Exec(t, `ALTER TABLE nw.consents ENABLE TRIGGER consents_end`)
	n, err := s.store.expireConsents(within(t), 10)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Equal(t, "expired", s.RunByID(t, run.ID).State)
}

func TestReapingGoesOnUntilAllIsDone(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *Config) { c.Limits.Runs = 2 })
	var runs []int64
	for range 5 {
		hold := s.held(t)
		s.LoseLease(t, hold.Run.ID)
		runs = append(runs, hold.Run.ID)
	}
	for i := range 3 {
		require.NoError(t, s.reapOnce(within(t)))
		require.Equal(t, i < 2, len(s.reaper.wakes) == 1, "it comes back at once while there are more")
		for len(s.reaper.wakes) > 0 {
			<-s.reaper.wakes
		}
	}
	for _, run := range runs {
		require.Equal(t, "queued", s.RunByID(t, run).State)
	}
}

// Between the list and the deed a run may have gone to another worker.
func TestAReaperThatComesLateLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run, err := s.reapLate(t, func(h fixture.Hold) {
		require.NoError(t, s.reapOnce(within(t)))
		s.Claim(t, h.Run.ID)
	})
	require.NoError(t, err)
	require.Equal(t, "claimed", run.State)
	require.False(t, run.Queued)
}

func TestManyReapersRequeueOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	other := newScheduler(t, s.World, s.paper)
	var holds []fixture.Hold
	for range 10 {
		hold := s.held(t)
		s.LoseLease(t, hold.Run.ID)
		holds = append(holds, hold)
	}
	done := make(chan error, 2)
	for _, x := range []*Scheduler{s.Scheduler, other} {
		go func() { done <- x.reapOnce(within(t)) }()
	}
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	for _, hold := range holds {
		require.Equal(t, "queued", s.RunByID(t, hold.Run.ID).State)
		require.EqualValues(t, 1, fixture.Value[int64](t, s.World, `SELECT count(*) FROM nw.audit WHERE verb = 'requeue' AND run_id = $1`, hold.Run.ID))
	}
}
