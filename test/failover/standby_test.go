package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const second = "second" // the standby's name

// promote takes the primary away, as a power cut does, and puts its standby in its place, which may have been away itself.
func promote(t *testing.T, primary, standby *teststack.DB) {
	t.Helper()
	primary.Postgres.Kill()
	require.NoError(t, standby.Postgres.Restart(within(t)))
	require.NoError(t, standby.Postgres.Promote(within(t)))
}

// A standby that lacks what was done last is promoted: a new incarnation.
func TestAsynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := teststack.OwnCluster(t)
	w := newWork(t, primary)
	standby := primary.Standby(t, second)
	require.NoError(t, standby.Postgres.Stop(within(t)))
	lost := w.fly(w.claim(w.queued))
	w.remember()
	promote(t, primary, standby)

	w.place = w.at(standby)
	require.Equal(t, "queued", w.RunByID(t, lost.Run.ID).State, "it has not heard of the claim")
	w.sound()
	verdict, _, _ := w.settle(lost)
	assert.Equal(t, "wrong_guard", verdict, "nobody knows of that effect here")
	assert.Equal(t, []string{"first 1", "failover 2"}, w.history())
}

// history is where this database has been.
func (p *place) history() (all []string) {
	p.t.Helper()
	type row struct {
		Reason      string
		Incarnation int64
	}
	for _, r := range fixture.List[row](p.t, p.World, `SELECT reason, incarnation FROM nw.incarnations ORDER BY id`) {
		all = append(all, fmt.Sprint(r.Reason, " ", r.Incarnation))
	}
	return all
}

// synchronous lets the primary wait for its standby.
func synchronous(t *testing.T, primary *teststack.DB) {
	t.Helper()
	root := primary.Pool(t, teststack.Superuser)
	for _, sql := range []string{`ALTER SYSTEM SET synchronous_standby_names = '` + second + `'`, `SELECT pg_reload_conf()`} {
		_, err := root.Exec(within(t), sql)
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		var n int
		err := root.QueryRow(within(t), `SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' AND current_setting('synchronous_standby_names') <> ''`).Scan(&n)
		return err == nil && n == 1
	}, patience, 10*time.Millisecond)
}

func (p *place) record(by *pgxpool.Pool) bool {
	p.t.Helper()
	recorded, err := readiness.RecordStandby(within(p.t), by)
	require.NoError(p.t, err)
	return recorded
}

// A synchronous standby that was recorded before has everything: it closes and goes on. Whatever differs in one thing is a new incarnation.
func TestSynchronousStandby(t *testing.T) {
	t.Parallel()
	const byHand = `INSERT INTO nw.standbys (system_id, timeline, at) SELECT system_id + $1, timeline + $2, clock_timestamp() - make_interval(hours => $3) FROM nw.here()`
	primary := teststack.OwnCluster(t)
	w := newWork(t, primary)
	others := map[string]func(p *place){
		"not recorded":                 func(*place) {},
		"recorded on another timeline": func(p *place) { p.Exec(t, byHand, 0, 1, 0) },
		"recorded on another server":   func(p *place) { p.Exec(t, byHand, 1, 0, 0) },
		"recorded the day before":      func(p *place) { p.Exec(t, byHand, 0, 0, 25) },
		"an older copy of the recorded one": func(p *place) {
			p.Exec(t, byHand, 0, 0, 0)
			p.Exec(t, `UPDATE nw.readiness_decision SET valid_until = clock_timestamp() - interval '11 minutes', round_at = '-infinity'`)
		},
	}
	places := map[string]*place{}
	for name, differ := range others {
		places[name] = newPlace(t, primary.Sibling(t))
		differ(places[name])
	}
	remembered := newPlace(t, primary.Sibling(t))
	remembered.Exec(t, byHand, 0, 0, 0)

	operator := primary.Pool(t, "nw_operator")
	require.False(t, w.record(operator), "nobody is waited for")
	standby := primary.Standby(t, second)
	synchronous(t, primary)
	refusesToRecord(t, w, operator)
	require.True(t, w.record(operator))
	w.remember()
	kept := w.fly(w.again(w.done))
	promote(t, primary, standby)

	w.place = w.at(standby)
	require.Empty(t, admitsAtOnce(w))
	goesOnAsItWas(t, w, kept)
	for name, p := range places {
		d := p.at(p.DB.On(standby)).evaluate()
		assert.Equal(t, []any{"closed", int64(2)}, []any{d.State, d.Incarnation}, name)
	}
	p := remembered.at(remembered.DB.On(standby))
	d := p.decision()
	d.Sequence++
	assert.EqualValues(t, 2, p.remembering(d).Incarnation, "an evaluator remembers what the promoted one has never heard of")
}

// refusesToRecord: one of the process roles does not wait, or the session itself does not.
func refusesToRecord(t *testing.T, w *work, operator *pgxpool.Pool) {
	t.Helper()
	root := w.DB.Pool(t, teststack.Superuser)
	for _, where := range []string{"ROLE nw_authority SET", "ROLE nw_scheduler IN DATABASE " + w.DB.Name + " SET"} {
		_, err := root.Exec(within(t), `ALTER `+where+` synchronous_commit = 'local'`)
		require.NoError(t, err)
		assert.False(t, w.record(operator), where)
		_, err = root.Exec(within(t), `ALTER `+where+` synchronous_commit = DEFAULT`)
		require.NoError(t, err)
	}
	var recorded bool
	require.NoError(t, root.QueryRow(within(t), `WITH local AS MATERIALIZED (SELECT set_config('synchronous_commit', 'remote_write', true)) SELECT nw.gate_standby() FROM local`).Scan(&recorded))
	assert.False(t, recorded)
	assert.Zero(t, fixture.Value[int64](t, w.World, `SELECT count(*) FROM nw.standbys`))
}

// goesOnAsItWas: it closes, because whoever admitted may still believe so, and that is all.
func goesOnAsItWas(t *testing.T, w *work, kept flight) {
	t.Helper()
	d := w.evaluate()
	require.Equal(t, []any{"closed", w.before.Epoch + 1, w.before.Incarnation, int32(2)}, []any{d.State, d.Epoch, d.Incarnation, d.Timeline})
	require.Greater(t, d.Sequence, w.before.Sequence)
	require.Equal(t, d.Epoch, w.evaluate().Epoch)
	require.Equal(t, []string{"first 1", "promoted 1"}, w.history())
	for run, state := range map[int64]string{w.queued.Run.ID: "queued", w.claimed.Run.ID: "claimed", w.waiting.Run.ID: "waiting", kept.Run.ID: "claimed", w.ending.Run.ID: "ending"} {
		require.Equal(t, state, w.RunByID(t, run).State)
	}
	require.Equal(t, "ok", w.spend(w.nonceAt), "the ring is whole")
	verdict, state, late := w.settle(kept)
	require.Equal(t, []any{"ok", "committed", false}, []any{verdict, state, late})

	require.Equal(t, d.Epoch+1, w.open().Epoch)
	require.Equal(t, "readiness_changed", w.verdict(w.claimed.Admit(w.minted, fixture.NewRef())), "no effect survives a close")
	require.Equal(t, "ok", w.verdict(w.claimed.Renew(fixture.Random())), "its holder goes on")
	require.Equal(t, int64(1), w.claim(w.queued).Fence)
	w.finish(kept.Lane)
	next := w.fly(w.again(kept.Lane))
	require.Equal(t, kept.Fence+1, next.Fence, "fences go on")
	require.Zero(t, w.guard.Admission>>40, "and numbers")
	w.allGood()
	require.Equal(t, w.before.Incarnation, w.evaluate().Incarnation, "the guard has nothing new to tell")
}

// The synchronous standby is cut off, and somebody ends the wait for it: the commit is the primary's alone, and the guard has its go-ahead. The
// promoted standby looks whole; only the guard knows better.
func TestACommitThatTheStandbyNeverHad(t *testing.T) {
	t.Parallel()
	primary := teststack.OwnCluster(t)
	w := newWork(t, primary)
	standby := primary.Standby(t, second)
	synchronous(t, primary)
	require.True(t, w.record(primary.Pool(t, "nw_operator")))
	w.fly(w.again(w.done)) // the sequence has told the standby of numbers ahead
	require.NoError(t, standby.Postgres.Stop(within(t)))

	root := primary.Pool(t, teststack.Superuser)
	number := make(chan int64, 1)
	admit := w.claimed.Admit(w.minted, fixture.NewRef())
	go func() {
		var n int64
		_ = w.Owner.QueryRow(within(t), `SELECT coalesce(number, 0) FROM `+admit.From, admit.Args...).Scan(&n)
		number <- n
	}()
	require.Eventually(t, func() bool {
		var n int
		err := root.QueryRow(within(t), `SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`).Scan(&n)
		return err == nil && n > 0
	}, patience, 10*time.Millisecond)
	w.guard.Admission = <-number
	require.Positive(t, w.guard.Admission)
	promote(t, primary, standby)

	w.place = w.at(standby)
	require.Equal(t, w.before.Incarnation, w.evaluate().Incarnation)
	require.Equal(t, "minted", fixture.Value[string](t, w.World, `SELECT state FROM nw.effects WHERE ref = $1`, w.minted.Ref[:]))
	require.LessOrEqual(t, w.guard.Admission, fixture.Value[int64](t, w.World, `SELECT last_value FROM nw.admissions`), "the sequence alone would tell nothing")
	require.Equal(t, "ok", w.verdict(w.report()))
	require.Equal(t, []string{"first 1", "promoted 1", "restored 2"}, w.history())
	require.Empty(t, goesOn(w))
	require.Empty(t, keepsRuns(w))
}
