package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// ago is a whole second in the past of the database's clock.
func ago(t testing.TB, w *fixture.World, d time.Duration) time.Time {
	t.Helper()
	return w.Now(t).Add(-d).Truncate(time.Second)
}

// every is a schedule of one slot in each interval, the first at a time.
func every(interval time.Duration, from time.Time, missed timetable.Missed, window time.Duration) timetable.Document {
	return timetable.Document{EveryS: int64(interval / time.Second), Anchor: timetable.InstantOf(from), Zone: "UTC", Missed: missed, WindowS: int64(window / time.Second)}
}

// dueNow is a task with one slot that came a few seconds ago.
func dueNow(t testing.TB, w *fixture.World) fixture.Task {
	t.Helper()
	at := ago(t, w, 3*time.Second)
	return w.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Skip, 0), FirstAt: at})
}

// outcomes are a task's slots in short: outcome or reason of each.
func outcomes(slots []fixture.Slot) (list []string) {
	for _, s := range slots {
		if s.Reason != nil {
			list = append(list, *s.Reason)
			continue
		}
		list = append(list, s.Outcome)
	}
	return list
}

func TestASlotBecomesARun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	task, later := dueNow(t, s.World), s.Task(t, fixture.TaskOptions{})
	first := *s.NextAt(t, task)
	before := s.Now(t)
	require.NoError(t, s.planOnce(within(t)))

	runs := s.Runs(t, task)
	require.Len(t, runs, 1)
	require.Equal(t, "queued", runs[0].State)
	require.True(t, runs[0].Queued)
	require.True(t, runs[0].Nominal.Equal(first))
	require.WithinRange(t, runs[0].Deadline, before.Add(time.Hour), s.Now(t).Add(time.Hour), "set once, from the run's limit")
	slots := s.Slots(t, task)
	require.Equal(t, []string{"run"}, outcomes(slots))
	require.Equal(t, runs[0].ID, *slots[0].Run)
	require.True(t, s.NextAt(t, task).Equal(first.Add(time.Hour)))
	require.Empty(t, s.Runs(t, later), "its time has not come")

	require.NoError(t, s.planOnce(within(t)))
	require.Len(t, s.Runs(t, task), 1)
}

func TestReferencesAreDrawnAtRandom(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	seen := map[fixture.Ref]bool{{}: true}
	var tasks []fixture.Task
	for range 8 {
		tasks = append(tasks, dueNow(t, s.World))
	}
	require.NoError(t, s.planOnce(within(t)))
	for _, task := range tasks {
		ref := s.Runs(t, task)[0].Ref
		require.False(t, seen[ref])
		seen[ref] = true
	}
}

// Unique (task, nominal time) decides, leadership never.
func TestTwoSchedulersPlanASlotOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	others := []*Scheduler{s.Scheduler, newScheduler(t, s.World, s.paper), newScheduler(t, s.World, s.paper)}
	var tasks []fixture.Task
	for range 30 {
		tasks = append(tasks, dueNow(t, s.World))
	}
	var group sync.WaitGroup
	start := make(chan struct{})
	for _, other := range others {
		group.Go(func() {
			<-start
			assert.NoError(t, other.planOnce(within(t)))
		})
	}
	close(start)
	group.Wait()
	for _, task := range tasks {
		require.Len(t, s.Runs(t, task), 1)
		require.Equal(t, []string{"run"}, outcomes(s.Slots(t, task)))
	}
}

// A planner that is killed before its commit leaves neither a run nor a slot.
func TestAKilledPlannerLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	patient(t, s.World)
	task := dueNow(t, s.World)
	tasks, err := s.store.due(within(t), 1)
	require.NoError(t, err)
	conn, err := pgx.Connect(within(t), s.DB.URL("nw_scheduler"))
	require.NoError(t, err)
	defer conn.Close(context.Background()) //nolint:errcheck // it was killed
	_, err = conn.Exec(within(t), `BEGIN`)
	require.NoError(t, err)
	p, err := planOf(tasks[0], 10)
	require.NoError(t, err)
	list, err := json.Marshal(p.slots)
	require.NoError(t, err)
	var verdict string
	require.NoError(t, conn.QueryRow(within(t), `SELECT verdict FROM nw.plan($1, $2, $3, $4, $5, $6, $7, 10)`,
		task.ID, p.due.Revision, p.due.Next, string(list), p.next, p.zone[:], fixture.Random()[:16]).Scan(&verdict))
	require.Equal(t, "ok", verdict)
	_, err = watch(t, s.World).Exec(within(t), `SELECT pg_terminate_backend($1, 10000)`, conn.PgConn().PID())
	require.NoError(t, err)

	require.Empty(t, s.Runs(t, task))
	require.Empty(t, s.Slots(t, task))
	require.NoError(t, s.planOnce(within(t)))
	require.Len(t, s.Runs(t, task), 1)
}

func TestFiresCoalesceIntoAnOpenRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := ago(t, s.World, 25*time.Second)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(10*time.Second, at, timetable.Skip, 0), FirstAt: at})
	require.NoError(t, s.planOnce(within(t)))
	run := s.Runs(t, task)
	require.Len(t, run, 1, "runs of one task never overlap")
	slots := s.Slots(t, task)
	require.Equal(t, []string{"run", "coalesced", "coalesced"}, outcomes(slots[:3]))
	for _, slot := range slots {
		require.Equal(t, run[0].ID, *slot.Run)
	}

	// Also one that a worker holds, and one that is only ending.
	hold := s.Claim(t, run[0].ID)
	effect := s.Admitted(t, hold, time.Minute)
	for _, state := range []string{"claimed", "ending"} {
		if state == "ending" {
			s.LoseLease(t, run[0].ID)
			require.NoError(t, s.reapOnce(within(t)))
		}
		require.Equal(t, state, s.RunByID(t, run[0].ID).State)
		next := s.NextAt(t, task).Add(-30 * time.Second).Truncate(time.Second)
		s.Exec(t, `UPDATE nw.schedules SET next_at = $1`, next)
		require.NoError(t, s.planOnce(within(t)))
		require.Len(t, s.Runs(t, task), 1)
	}
	s.Land(t, effect, "committed")
}

func TestMissedFires(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		missed timetable.Missed
		window time.Duration
		want   []string
		runs   int
	}{
		"skip":                {timetable.Skip, 0, []string{"missed", "missed", "missed"}, 0},
		"latest":              {timetable.Latest, time.Hour, []string{"window", "missed", "run"}, 1},
		"latest, too late":    {timetable.Latest, 5 * time.Minute, []string{"window", "window", "window"}, 0},
		"latest, a wide view": {timetable.Latest, 24 * time.Hour, []string{"missed", "missed", "run"}, 1},
	}
	s := newStage(t)
	for name, c := range cases {
		at := ago(t, s.World, 75*time.Minute) // and 45, and 15 minutes ago
		task := s.Task(t, fixture.TaskOptions{Schedule: every(30*time.Minute, at, c.missed, c.window), FirstAt: at})
		require.NoError(t, s.planOnce(within(t)), name)
		require.Equal(t, c.want, outcomes(s.Slots(t, task)), name)
		require.Len(t, s.Runs(t, task), c.runs, name)
		require.True(t, s.NextAt(t, task).Equal(at.Add(90*time.Minute)), name)
	}
}

// An outage leaves more slots than get a row each: all of them are on record.
func TestEverySkippedSlotIsOnRecord(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *Config) { c.Limits.Slots = 3 })
	at := ago(t, s.World, 10*time.Hour+30*time.Minute)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Skip, 0), FirstAt: at})
	require.NoError(t, s.planOnce(within(t)))
	slots := s.Slots(t, task)
	require.Equal(t, []string{"too_many", "missed", "missed", "missed"}, outcomes(slots))
	require.True(t, slots[0].At.Equal(at))
	require.EqualValues(t, 8, slots[0].Covers)
	require.True(t, slots[1].At.Equal(at.Add(8*time.Hour)))
}

func TestWhileClosedNothingIsPlanned(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.CloseGate(t)
	onTime := dueNow(t, s.World)
	at := ago(t, s.World, 10*time.Minute)
	late := s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Skip, 0), FirstAt: at})
	for range 3 {
		require.NoError(t, s.planOnce(within(t)))
	}
	for _, task := range []fixture.Task{onTime, late} {
		require.Empty(t, s.Runs(t, task))
		require.Empty(t, s.Slots(t, task))
	}
	s.OpenGate(t)
	require.NoError(t, s.planOnce(within(t)))
	require.Equal(t, []string{"run"}, outcomes(s.Slots(t, onTime)))
	require.Equal(t, []string{"missed"}, outcomes(s.Slots(t, late)))
}

// A close that a planner has to wait for wins over it (P1).
func TestACloseBeatsAPlannerThatWaits(t *testing.T) {
	t.Parallel()
	w, p := fixture.New(t), &paper{}
	patient(t, w)
	s, watched := newScheduler(t, w, p), watch(t, w)
	w.OpenGate(t)
	task := dueNow(t, w)
	tx, err := w.Owner.Begin(within(t))
	require.NoError(t, err)
	_, err = tx.Exec(within(t), `SELECT nw.alone()`)
	require.NoError(t, err)
	_, err = tx.Exec(within(t), `SELECT nw.shut('unhealthy', 'queue', false)`)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.planOnce(within(t)) }()
	blocked(t, watched)
	require.NoError(t, tx.Commit(within(t)))
	require.NoError(t, <-done)
	require.Empty(t, w.Runs(t, task))
}

// After an outage runs start one by one, however many became due and however
// many replicas plan them.
func TestNoBurstAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(c *Config) { c.StartRate = 4 })
	other := newScheduler(t, s.World, s.paper, func(c *Config) { c.StartRate = 4 })
	at := ago(t, s.World, 12*time.Hour)
	for range 50 {
		s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Latest, 12*time.Hour), FirstAt: at})
	}
	before := s.Now(t)
	var group sync.WaitGroup
	for _, x := range []*Scheduler{s.Scheduler, other} {
		group.Go(func() { assert.NoError(t, x.planOnce(within(t))) })
	}
	group.Wait()
	type row struct{ At time.Time }
	starts := fixture.List[row](t, s.World, `SELECT next_at FROM nw.outbox ORDER BY next_at`)
	require.Len(t, starts, 50)
	require.False(t, starts[0].At.Before(before))
	for i := range starts[1:] {
		require.GreaterOrEqual(t, starts[i+1].At.Sub(starts[i].At), 250*time.Millisecond)
	}
	require.NoError(t, s.relayOnce(within(t)))
	require.LessOrEqual(t, len(s.paper.take()), 4*int(1+s.Now(t).Sub(before)/time.Second)+1)
}

func TestAConsentThatHasExpired(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	now := s.Now(t)
	at := ago(t, s.World, 150*time.Minute)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Latest, 24*time.Hour), FirstAt: at, Until: now.Add(-time.Hour)})
	require.NoError(t, s.planOnce(within(t)))
	s.requireEnded(t, task, "expired")
	// Of the slots, those in the consent's time are on record; the last one was nobody's.
	slots := s.Slots(t, task)
	require.Equal(t, []string{"missed", "consent"}, outcomes(slots))
	require.True(t, slots[1].At.Equal(at.Add(time.Hour)))
}

func (s *stage) requireEnded(t testing.TB, task fixture.Task, state string) {
	t.Helper()
	require.Equal(t, state, fixture.Value[string](t, s.World, `SELECT state FROM nw.consents WHERE id = $1`, task.Consent))
	require.EqualValues(t, 2, fixture.Value[int64](t, s.World, `SELECT activation_epoch FROM nw.lanes WHERE task_id = $1`, task.ID))
	require.True(t, fixture.Value[bool](t, s.World, `SELECT consent_id IS NULL FROM nw.lanes WHERE task_id = $1`, task.ID))
	require.Nil(t, s.NextAt(t, task))
}

func TestSlotsBeforeAConsentBegins(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := ago(t, s.World, 25*time.Second)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(10*time.Second, at, timetable.Skip, 0), FirstAt: at, NotBefore: at.Add(15 * time.Second)})
	require.NoError(t, s.planOnce(within(t)))
	require.Equal(t, []string{"consent", "consent", "run"}, outcomes(s.Slots(t, task))[:3])
}

func TestADeadlineEndsWithTheConsent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := ago(t, s.World, time.Second)
	until := s.Now(t).Add(20 * time.Minute)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at, timetable.Skip, 0), FirstAt: at, Until: until})
	require.NoError(t, s.planOnce(within(t)))
	require.WithinDuration(t, until, s.Runs(t, task)[0].Deadline, time.Microsecond)
}

func TestOneInstantFiresOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := ago(t, s.World, time.Second)
	task := s.Task(t, fixture.TaskOptions{Schedule: timetable.Document{At: timetable.InstantOf(at), Zone: "UTC"}, FirstAt: at})
	for range 2 {
		require.NoError(t, s.planOnce(within(t)))
		require.Len(t, s.Runs(t, task), 1)
		require.Nil(t, s.NextAt(t, task))
	}
}

// A plan made from what is not so any more changes nothing.
func TestAStalePlanChangesNothing(t *testing.T) {
	t.Parallel()
	read := func(t *testing.T, s *stage) planned {
		list, err := s.store.due(within(t), 10)
		require.NoError(t, err)
		require.Len(t, list, 1)
		p, err := planOf(list[0], 10)
		require.NoError(t, err)
		return p
	}
	requireStale := func(t *testing.T, s *stage, p planned) {
		t.Helper()
		verdict, n, err := s.store.plan(within(t), p, 10)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, "revision_stale", verdict)
	}
	t.Run("revised", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		task := dueNow(t, s.World)
		p := read(t, s)
		s.Revise(t, task, 2, fixture.TaskOptions{})
		requireStale(t, s, p)
		require.Empty(t, s.Runs(t, task))
		s.requireEnded(t, task, "superseded")
		require.Equal(t, []string{"consent"}, outcomes(s.Slots(t, task)), "the slot that came due is on record")
	})
	t.Run("planned by another", func(t *testing.T) {
		t.Parallel()
		s := newStage(t)
		task := dueNow(t, s.World)
		p := read(t, s)
		require.NoError(t, s.planOnce(within(t)))
		requireStale(t, s, p)
		require.Len(t, s.Runs(t, task), 1)
	})
	t.Run("revised while it waits", func(t *testing.T) {
		t.Parallel()
		w := fixture.New(t)
		patient(t, w)
		s, watched := &stage{w, &paper{}, newScheduler(t, w, &paper{})}, watch(t, w)
		w.OpenGate(t)
		task := dueNow(t, w)
		p := read(t, s)
		tx, err := w.Owner.Begin(within(t))
		require.NoError(t, err)
		for _, sql := range []string{`SELECT nw.enter()`, `SELECT FROM nw.lanes FOR NO KEY UPDATE`, `SELECT nw.end_consent(task_id, 'superseded') FROM nw.lanes`} {
			_, err = tx.Exec(within(t), sql)
			require.NoError(t, err)
		}
		done := make(chan string, 1)
		go func() {
			verdict, _, err := s.store.plan(within(t), p, 10)
			assert.NoError(t, err)
			done <- verdict
		}()
		blocked(t, watched)
		require.NoError(t, tx.Commit(within(t)))
		require.Equal(t, "revision_stale", <-done)
		require.Empty(t, w.Runs(t, task))
	})
}

// Newer zone rules move a coming slot, on record; rules that are the same move
// nothing.
func TestNewerZoneRulesMoveAComingSlot(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	now := s.Now(t).Truncate(time.Second)
	at := timetable.Document{Cron: "30 2 * * *", Zone: "Europe/Berlin"}
	schedule, err := timetable.Parse(timetable.Document{Cron: at.Cron, Zone: at.Zone, Missed: timetable.Skip})
	require.NoError(t, err)
	want, ok := schedule.Next(now)
	require.True(t, ok)
	moved := s.Task(t, fixture.TaskOptions{Schedule: at, FirstAt: want.Add(time.Hour)})
	same := s.Task(t, fixture.TaskOptions{Schedule: at, FirstAt: want})
	s.Exec(t, `UPDATE nw.schedules SET zone = $2 WHERE task_id = $1`, moved.ID, fixture.Random())

	s.CloseGate(t)
	require.NoError(t, s.planOnce(within(t)))
	require.True(t, s.NextAt(t, moved).Equal(want.Add(time.Hour)))
	s.OpenGate(t)
	for range 2 {
		require.NoError(t, s.planOnce(within(t)))
		require.True(t, s.NextAt(t, moved).Equal(want))
	}
	require.True(t, s.NextAt(t, same).Equal(want))
	require.True(t, s.zonesSeen)
	rules := timetable.ZoneFingerprint(schedule.Zone(), want)
	require.Equal(t, rules[:], fixture.Value[[]byte](t, s.World, `SELECT zone FROM nw.schedules WHERE task_id = $1`, moved.ID))
	audited := fixture.Value[string](t, s.World, `SELECT string_agg(convert_from(body, 'UTF8'), '') FROM nw.audit WHERE verb = 'plan'`)
	require.Contains(t, audited, fmt.Sprintf(`"from" : %d, "to" : %d`, want.Unix()+3600, want.Unix()))
	require.Equal(t, 1, strings.Count(audited, `"to"`))
}

// A slot that has come and was not planned yet does not get lost by that, nor
// one that fires twice.
func TestZoneRulesMoveToTheFirstSlotAfterTheLast(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := ago(t, s.World, 10*time.Second)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(time.Hour, at.Add(-time.Hour), timetable.Skip, 0), FirstAt: at})
	s.Exec(t, `INSERT INTO nw.slots (task_id, nominal_at, outcome, reason, zone) VALUES ($1, $2, 'skipped', 'missed', $3)`, task.ID, at.Add(-time.Hour), fixture.Random())
	s.Exec(t, `UPDATE nw.schedules SET zone = $1, next_at = next_at + interval '1 day'`, fixture.Random())
	s.Exec(t, `UPDATE nw.consents SET given_at = $1`, at.Add(-2*time.Hour))
	require.NoError(t, s.planOnce(within(t)))
	require.Equal(t, []string{"missed", "run"}, outcomes(s.Slots(t, task)))
}

// One document that cannot be read holds up no other task, and is not silent.
func TestOneBadDocumentHoldsUpNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	bad, good := dueNow(t, s.World), dueNow(t, s.World)
	digest := fixture.Random()
	s.Exec(t, `INSERT INTO nw.documents (digest, kind, body) VALUES ($1, 'task', '{"schedule":{"cron":"every day","zone":"UTC"}}')`, digest)
	s.Exec(t, `INSERT INTO nw.task_revisions SELECT $1, 2, $2, role_id, policy_id FROM nw.task_revisions WHERE task_id = $1`, bad.ID, digest)
	s.Exec(t, `UPDATE nw.lanes SET task_revision = 2 WHERE task_id = $1`, bad.ID)
	require.ErrorContains(t, s.planOnce(within(t)), "cron")
	require.Len(t, s.Runs(t, good), 1)
	require.Empty(t, s.Runs(t, bad))
}

func TestPlanOfRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, body := range []string{``, `[]`, `{}`, `{"schedule":null}`, `{"schedule":{"zone":"UTC"}}`, `{"schedule":{"cron":"* * * * *","zone":"Nowhere/Land"}}`, `{"schedule":{"at":1,"zone":"UTC"}}`} {
		_, err := planOf(due{Body: []byte(body), Next: time.Unix(1, 0), Now: time.Unix(2, 0), ConsentUntil: time.Unix(3, 0)}, 10)
		require.Error(t, err, body)
	}
}

// Whatever the outage, the limit and the consent: each slot in the looked-at
// time is covered exactly once, in order, and the next one lies after it.
func TestPlanOfCoversEachSlotOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.Int64Range(1, 7200).Draw(t, "step")
		first := time.Unix(rapid.Int64Range(1_700_000_000, 1_800_000_000).Draw(t, "first"), 0).UTC()
		outage := time.Duration(rapid.Int64Range(0, 30*24*3600).Draw(t, "outage")) * time.Second
		consent := time.Duration(rapid.Int64Range(1, 31*24*3600).Draw(t, "consent")) * time.Second
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		body, err := json.Marshal(map[string]any{"schedule": every(time.Duration(step)*time.Second, first, timetable.Latest, time.Hour)})
		require.NoError(t, err)
		d := due{Body: body, Next: first, Now: first.Add(outage), ConsentUntil: first.Add(consent), NotBefore: first}
		p, err := planOf(d, limit)
		require.NoError(t, err)

		until := min(outage, consent-time.Second)
		covered, running := 0, 0
		at := first
		for _, slot := range p.slots {
			require.True(t, slot.At.Equal(at), "%v, not %v", slot.At, at)
			n := max(1, slot.Covers)
			covered += n
			at = at.Add(time.Duration(int64(n)*step) * time.Second)
			if slot.Skip == "" {
				running++
			}
		}
		require.Equal(t, int(int64(until/time.Second)/step)+1, covered)
		require.LessOrEqual(t, len(p.slots), limit+1)
		require.NotNil(t, p.next)
		require.True(t, p.next.Equal(at))
		onTime := int(int64(timetable.OnTime/time.Second)/step) + 1
		require.LessOrEqual(t, running, max(1, onTime))
	})
}

// The plan's words are the database's words.
func TestReasonsAreTheDatabases(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	check := fixture.Value[string](t, w, `SELECT string_agg(pg_get_constraintdef(oid), ' ') FROM pg_constraint WHERE conrelid = 'nw.slots'::regclass`)
	for _, reason := range []string{skipTooMany, skipConsent, string(timetable.ReasonMissed), string(timetable.ReasonWindow)} {
		require.True(t, strings.Contains(check, "'"+reason+"'"), reason)
	}
	verdicts := fixture.Value[string](t, w, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contypid = 'nw.verdict'::regtype`)
	for _, verdict := range []string{verdictOK, verdictClosed, verdictSuperseded, verdictNotFound} {
		require.True(t, strings.Contains(verdicts, "'"+verdict+"'"), verdict)
	}
}
