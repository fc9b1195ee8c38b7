package scheduler

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// plant changes the text of a verb in one test's database.
func plant(t testing.TB, w *fixture.World, verb, from, to string) {
	t.Helper()
	text := fixture.Value[string](t, w, `SELECT pg_get_functiondef(('nw.' || $1)::regproc)`, verb)
	require.Contains(t, text, from, "the bug has no soil any more: plant it elsewhere")
	w.Exec(t, strings.Replace(text, from, to, 1))
}

// story goes through something that goes wrong when a verb has its bug, and
// says what did; nothing when the verb is sound.
type story func(t testing.TB, s *stage) string

// plantings are bugs that the protocol warns of, each with the story that must
// notice it.
var plantings = map[string]struct {
	verb, from, to string
	story          story
}{
	"P1 a plan without its lane's lock": {"plan",
		`FROM lanes WHERE task_id = p_task FOR NO KEY UPDATE`, `FROM lanes WHERE task_id = p_task`, revisedWhilePlanning},
	"P1 a plan that trusts what it read": {"plan",
		`s.next_at <> p_expected OR l.task_revision <> p_revision`, `false`, revisedWhilePlanning},
	"P1 a recycler that looks before it locks": {"recycle",
		`LOCK TABLE nw.%I IN ACCESS EXCLUSIVE MODE`, `SELECT %L`, rowWhileRecycling},
	"P1 a reaper that looks before it locks": {"reap",
		`PERFORM FROM lanes WHERE task_id = (SELECT task_id FROM runs WHERE id = p_run) FOR NO KEY UPDATE;
  SELECT runs.* INTO r FROM runs WHERE id = p_run FOR NO KEY UPDATE;`,
		`SELECT runs.* INTO r FROM runs WHERE id = p_run;
  PERFORM FROM lanes WHERE task_id = r.task_id FOR NO KEY UPDATE;`, renewedWhileReaping},
	"P10 a reaper that trusts its list, renewed": {"reap",
		`r.state = 'claimed' AND r.lease_until <= t`, `true`, renewedBeforeReaping},
	"P10 a reaper that trusts its list, settled": {"reap",
		`r.state = 'claimed' AND r.lease_until <= t THEN`,
		`true THEN UPDATE runs SET state = 'queued', holder = NULL, lease_until = NULL WHERE id = p_run;`, settledBeforeReaping},
	"P11 a requeue with an effect in flight": {"finish_run",
		`IF r.inflight > 0 THEN`, `IF false THEN`, leaseLostInFlight},
	"P31 a floor that is not raised": {"raise_floors",
		`ring_floors.floor < floor(s / 60)::bigint - 3`, `false`, replayBelowTheFloor},
	"P31 rows that go above the floor": {"recycle",
		`SELECT coalesce(max(%I) < $1, false)`, `SELECT coalesce(min(%I) < $1, false)`, rowWhileRecycling},
	"a plan that does not ask the gate": {"plan",
		`d.state IS NULL`, `false`, plannedWhileClosed},
	"a relay that does not ask the gate": {"take_outbox",
		`IF d.state IS NULL THEN RETURN; END IF;`, ``, publishedWhileClosed},
	"an outage that ends in a burst": {"plan",
		`greatest(next_at, t) + make_interval(secs => 1.0 / p_rate) RETURNING`, `greatest(next_at, t) RETURNING`, burst},
	"a revocation that forgets an open slot": {"end_consent",
		`s.next_at <= clock_timestamp()`, `false`, slotForgotten},
	"fires that overlap": {"plan",
		`ELSIF live IS NOT NULL THEN`, `ELSIF false THEN`, overlap},
	"a hint that is published once and no more": {"take_outbox",
		`UPDATE outbox o SET attempt = o.attempt + 1, next_at = clock_timestamp() + make_interval(secs => p_again_ms / 1000.0)
      FROM ready`, `DELETE FROM outbox o USING ready`, hintLost},
}

func patientStage(t testing.TB) *stage {
	t.Helper()
	w, p := fixture.New(t), &paper{}
	patient(t, w)
	w.Exec(t, `ALTER FUNCTION nw.recycle() SET lock_timeout = '60s'`)
	w.OpenGate(t)
	return &stage{w, p, newScheduler(t, w, p)}
}

func TestNoStoryGoesWrong(t *testing.T) {
	t.Parallel()
	told := map[uintptr]bool{} // each story once, however many bugs it notices
	for name, p := range plantings {
		if id := reflect.ValueOf(p.story).Pointer(); !told[id] {
			told[id] = true
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				require.Empty(t, p.story(t, patientStage(t)))
			})
		}
	}
}

func TestPlanted(t *testing.T) {
	t.Parallel()
	for name, p := range plantings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := patientStage(t)
			plant(t, s.World, p.verb, p.from, p.to)
			require.NotEmpty(t, p.story(t, s), "the bug went unseen")
		})
	}
}

// wrong is what a story says when something is not as it must be.
func wrong(is bool, what string) string {
	if is {
		return what
	}
	return ""
}

func renewedWhileReaping(t testing.TB, s *stage) string {
	hold := s.held(t)
	s.LoseLease(t, hold.Run.ID)
	s.meanwhile(t, func() { _ = s.reapOnce(within(t)) },
		`SELECT FROM nw.lanes FOR NO KEY UPDATE`,
		`UPDATE nw.runs SET lease_until = clock_timestamp() + interval '1 minute'`)
	return wrong(s.RunByID(t, hold.Run.ID).State != "claimed", "a run that its holder had renewed was reaped")
}

// meanwhile lets somebody's transaction stand open until deed waits for it.
func (s *stage) meanwhile(t testing.TB, deed func(), statements ...string) {
	t.Helper()
	tx, err := s.Owner.Begin(within(t))
	require.NoError(t, err)
	for _, sql := range statements {
		_, err = tx.Exec(within(t), sql)
		require.NoError(t, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		deed()
	}()
	s.blockedOrDone(t, done)
	require.NoError(t, tx.Commit(within(t)))
	<-done
}

// blockedOrDone waits until somebody waits for a lock, or is through without.
func (s *stage) blockedOrDone(t testing.TB, done <-chan struct{}) {
	t.Helper()
	watched := watch(t, s.World)
	require.Eventually(t, func() bool {
		select {
		case <-done:
			return true
		default:
			return isBlocked(t, watched)
		}
	}, testWithin, 2*time.Millisecond)
}

func renewedBeforeReaping(t testing.TB, s *stage) string {
	run, _ := s.reapLate(t, func(h fixture.Hold) {
		s.Exec(t, `UPDATE nw.runs SET lease_until = clock_timestamp() + interval '1 minute' WHERE id = $1`, h.Run.ID)
	})
	return wrong(run.State != "claimed" || run.Queued, "a run that its holder had renewed was reaped")
}

func settledBeforeReaping(t testing.TB, s *stage) string {
	run, err := s.reapLate(t, func(h fixture.Hold) { s.Settle(t, h) })
	return wrong(err != nil || run.State != "succeeded" || run.Queued, "a run that had ended was touched")
}

// reapLate lets a replica list a run and stand still while something happens.
func (s *stage) reapLate(t testing.TB, happens func(fixture.Hold)) (fixture.Run, error) {
	t.Helper()
	hold := s.held(t)
	s.LoseLease(t, hold.Run.ID)
	listed, err := s.store.reapable(within(t), 10)
	require.NoError(t, err)
	require.Equal(t, []int64{hold.Run.ID}, listed)
	happens(hold)
	_, err = s.store.reap(within(t), hold.Run.ID)
	return s.RunByID(t, hold.Run.ID), err
}

func leaseLostInFlight(t testing.TB, s *stage) string {
	hold := s.held(t)
	s.Admitted(t, hold, time.Minute)
	s.LoseLease(t, hold.Run.ID)
	err := s.reapOnce(within(t))
	return wrong(err != nil || s.RunByID(t, hold.Run.ID).State != "ending", "a run went on while its effect was in flight")
}

func revisedWhilePlanning(t testing.TB, s *stage) string {
	task := dueNow(t, s.World)
	list, err := s.store.due(within(t), 10)
	require.NoError(t, err)
	p, err := planOf(list[0], 10)
	require.NoError(t, err)
	s.meanwhile(t, func() { _, _, _ = s.store.plan(within(t), p, 10) },
		`SELECT nw.enter()`, `SELECT FROM nw.lanes FOR NO KEY UPDATE`, `INSERT INTO nw.task_revisions SELECT task_id, 2, document, role_id, policy_id FROM nw.task_revisions`,
		`UPDATE nw.lanes SET task_revision = 2`)
	return wrong(len(s.Runs(t, task)) > 0, "a run was planned by a document that was replaced")
}

func plannedWhileClosed(t testing.TB, s *stage) string {
	task := dueNow(t, s.World)
	s.CloseGate(t)
	require.NoError(t, s.planOnce(within(t)))
	return wrong(len(s.Slots(t, task)) > 0, "a slot was planned while closed")
}

func publishedWhileClosed(t testing.TB, s *stage) string {
	s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	s.CloseGate(t)
	require.NoError(t, s.relayOnce(within(t)))
	return wrong(len(s.paper.take()) > 0, "a run was published while closed")
}

func hintLost(t testing.TB, s *stage) string {
	s.NewRun(t, s.Task(t, fixture.TaskOptions{}))
	for attempt := 1; attempt <= 2; attempt++ {
		again(t, s.World)
		require.NoError(t, s.relayOnce(within(t)))
	}
	return wrong(len(s.paper.take()) != 2, "a run whose message was lost is lost")
}

func burst(t testing.TB, s *stage) string {
	for range 5 {
		dueNow(t, s.World)
	}
	require.NoError(t, s.planOnce(within(t)))
	span := fixture.Value[float64](t, s.World, `SELECT extract(epoch FROM max(next_at) - min(next_at))::float8 FROM nw.outbox`)
	return wrong(span < 4.0/defaultRate, "runs start faster than the rate")
}

func overlap(t testing.TB, s *stage) string {
	at := ago(t, s.World, 25*time.Second)
	task := s.Task(t, fixture.TaskOptions{Schedule: every(10*time.Second, at, "skip", 0), FirstAt: at})
	err := s.planOnce(within(t))
	return wrong(err != nil || len(s.Runs(t, task)) != 1, "runs of one task overlap")
}

func slotForgotten(t testing.TB, s *stage) string {
	task := dueNow(t, s.World)
	s.Revise(t, task, 2, fixture.TaskOptions{})
	return wrong(len(s.Slots(t, task)) != 1, "a slot that had come is not on record")
}

func replayBelowTheFloor(t testing.TB, s *stage) string {
	s.Exec(t, `ALTER TABLE nw.ring_floors DISABLE TRIGGER floors_rise`) // as if an hour had passed
	s.Exec(t, `UPDATE nw.ring_floors SET floor = floor - 60 WHERE ring = 'replay'`)
	s.Exec(t, `ALTER TABLE nw.ring_floors ENABLE TRIGGER floors_rise`)
	require.NoError(t, s.recycleOnce(within(t)))
	_, err := s.Owner.Exec(within(t), `SELECT nw.spend_proof(clock_timestamp() - interval '6 minutes', $1)`, fixture.Random())
	return wrong(err == nil, "a proof was admitted whose row may have gone")
}

func rowWhileRecycling(t testing.TB, s *stage) string {
	now := s.minute(t)
	s.remember(t, now-16)
	require.NoError(t, s.store.raiseFloors(within(t)))
	s.meanwhile(t, func() { _, _ = s.store.recycle(within(t)) },
		`SELECT nw.spend_proof(to_timestamp(floor(extract(epoch FROM clock_timestamp()) / 60) * 60), sha256('x'))`)
	return wrong(fixture.Value[int](t, s.World, `SELECT count(*) FROM nw.replay WHERE digest = sha256('x')`) == 0, "a proof that was spent meanwhile can be replayed")
}
