package history

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

var races = flag.Int("races", 300, "how many times a revocation races admissions")

// slot follows the order of commits: transactions come out of a logical decoding slot in that order, whatever any clock says.
const slot = "races"

// course is a database on which revocations race admissions.
type course struct {
	*fixture.World
	t         *testing.T
	authority *pgxpool.Pool
	lanes     []*fixture.Lane
	answers   map[string]int // by verb and verdict
	order     []commit
}

func newCourse(t *testing.T) *course {
	t.Helper()
	w := fixture.On(t, teststack.LogicalCluster(t))
	w.OpenGate(t)
	w.GuardInstance(t)
	c := &course{World: w, t: t, authority: pool(t, w, "nw_authority", 8), answers: map[string]int{}}
	for range 8 {
		c.lanes = append(c.lanes, w.Lane(t, fixture.TaskOptions{}))
	}
	_, err := w.DB.Pool(t, teststack.Superuser).Exec(within(t), `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, slot)
	require.NoError(t, err)
	return c
}

// racer is one call that is made together with others.
type racer struct {
	verb    string
	call    fixture.Call
	verdict string
}

// together sends all calls at once, each on a connection that stands ready.
func (c *course) together(racers ...*racer) {
	var ready, all sync.WaitGroup
	start := make(chan struct{})
	for _, r := range racers {
		ready.Add(1)
		all.Go(func() {
			conn, err := c.authority.Acquire(within(c.t))
			ready.Done()
			if !assert.NoError(c.t, err) {
				return
			}
			defer conn.Release()
			<-start
			r.verdict, err = r.call.Verdict(context.Background(), conn)
			assert.NoError(c.t, err, r.verb)
		})
	}
	ready.Wait()
	close(start)
	all.Wait()
	for _, r := range racers {
		c.answers[r.verb+" "+r.verdict]++
	}
}

// run is the n-th race: on a claimed run, with an effect that waits for its guard, or on a queued one. Every second revocation ends the consent.
func (c *course) run(n int) {
	l := c.lanes[n%len(c.lanes)]
	revocation := &racer{verb: "cut_off", call: c.CutOff(l.Task)}
	if n%2 == 0 {
		revocation = &racer{verb: "revoke", call: c.Revoke(l.Task)}
	}
	if n%3 == 0 {
		c.together(revocation, &racer{verb: "claim", call: l.Claim(fixture.Random())})
	} else {
		c.onClaimed(n, l, revocation)
	}
	require.Equal(c.t, "ok", revocation.verdict, "a revocation is always possible")
	require.Equal(c.t, "revoked", fixture.Value[string](c.t, c.World, `SELECT state FROM nw.runs WHERE id = $1`, l.Run.ID))
	if revocation.verb == "revoke" {
		c.Consent(c.t, &l.Task, fixture.TaskOptions{})
	}
	l.Queue(c.t)
}

// onClaimed races admit, mint, the same mint again and renew. What was consumed before the revocation is settled as if it had not come.
func (c *course) onClaimed(n int, l *fixture.Lane, revocation *racer) {
	l.Hold(c.t)
	waiting, again, attempt := fixture.NewEffect(), fixture.NewEffect(), fixture.NewRef()
	l.Mint(waiting).OK(c.t, c.authority)
	l.Mint(again).OK(c.t, c.authority)
	admit := &racer{verb: "admit", call: l.Admit(waiting, attempt)}
	racers := []*racer{revocation, admit, {verb: "mint", call: l.Mint(again)}, {verb: "renew", call: l.Renew(fixture.Random())}}
	c.together(append(racers[n%4:], racers[:n%4]...)...)

	state := fixture.Value[string](c.t, c.World, `SELECT state FROM nw.effects WHERE ref = $1`, waiting.Ref[:])
	if admit.verdict != "ok" {
		require.Equal(c.t, "lapsed", state, "an effect that was not consumed is over")
		return
	}
	require.Equal(c.t, "admitted", state, "what was consumed is not lost")
	require.Equal(c.t, "ending", fixture.Value[string](c.t, c.World, `SELECT state FROM nw.runs WHERE id = $1`, l.Run.ID))
	c.SettleEffect(waiting, attempt, "committed").OK(c.t, c.authority)
	require.Equal(c.t, "committed", fixture.Value[string](c.t, c.World, `SELECT state FROM nw.effects WHERE ref = $1`, waiting.Ref[:]))
}

// commit is an audit row of something that was done, in the order of commits.
type commit struct {
	Verb  string
	Task  int64
	Epoch int64 // of a revocation, the one that it begins; of an admission, the one of its run
}

// commits reads the order so far, and finds each audit row's place by the transaction that wrote it.
func (c *course) commits() []commit {
	root := c.DB.Pool(c.t, teststack.Superuser)
	rows, err := root.Query(within(c.t), `SELECT a.verb, a.task_id, CASE WHEN a.verb IN ('revoke', 'cut_off') THEN (convert_from(a.body, 'UTF8')::json #>> '{more,epoch}')::bigint
			ELSE r.activation_epoch END
		FROM pg_logical_slot_get_changes($1, NULL, NULL) WITH ORDINALITY AS o(lsn, xid, data, place) JOIN nw.audit a ON a.xmin = o.xid LEFT JOIN nw.runs r ON r.id = a.run_id
		WHERE o.data LIKE 'COMMIT%' AND a.verdict = 'ok' AND a.verb IN ('revoke', 'cut_off', 'claim', 'renew', 'mint', 'admit') ORDER BY o.place, a.id`, slot)
	require.NoError(c.t, err)
	more, err := pgx.CollectRows(rows, pgx.RowToStructByPos[commit])
	require.NoError(c.t, err)
	c.order = append(c.order, more...) // the slot tells each commit once
	return c.order
}

// late are the admissions of an epoch that had ended.
func late(commits []commit) (found []string) {
	epochs := map[int64]int64{}
	for _, c := range commits {
		switch {
		case c.Verb == "revoke" || c.Verb == "cut_off":
			epochs[c.Task] = c.Epoch
		case c.Epoch < epochs[c.Task]:
			found = append(found, fmt.Sprintf("task %d: %s of epoch %d after epoch %d had begun", c.Task, c.Verb, c.Epoch, epochs[c.Task]))
		}
	}
	return found
}

// A5: after a revocation's commit nothing of the old epoch is admitted; what was consumed before stays consumed.
func TestRevocationRacesAdmission(t *testing.T) {
	c := newCourse(t)
	for n := range *races {
		c.run(n)
	}
	t.Log(c.answers)
	commits := c.commits()
	assert.Empty(t, late(commits))
	sound(t, c.World)
	for _, verb := range []string{"claim", "renew", "mint", "admit"} {
		lost := 0
		for _, code := range []string{"authority_changed", "run_ended", "consent_ended"} {
			lost += c.answers[verb+" "+code]
		}
		assert.Greater(t, lost, *races/50, "%s never came second", verb)
		assert.Greater(t, c.answers[verb+" ok"], *races/50, "%s never came first", verb)
		assert.Equal(t, count(c.answers, verb), lost+c.answers[verb+" ok"], "%s was refused for another reason", verb)
	}
	for _, verb := range []string{"revoke", "cut_off", "renew", "admit"} {
		placed := len(slices.DeleteFunc(slices.Clone(commits), func(c commit) bool { return c.Verb != verb }))
		assert.Equal(t, c.answers[verb+" ok"], placed, "each %s that was answered has its place in the order", verb)
	}
}

func count(answers map[string]int, verb string) (all int) {
	for answer, n := range answers {
		if strings.HasPrefix(answer, verb+" ") {
			all += n
		}
	}
	return all
}

// The test above can fail: what a build with a bug admits late is found.
func TestRaceOfAPlantedBug(t *testing.T) {
	t.Run("a mint that decides before it locks", func(t *testing.T) {
		c := newCourse(t)
		c.Plant(t, "mint", "FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run) FOR NO KEY UPDATE", "FROM lanes WHERE task_id = (SELECT runs.task_id FROM runs WHERE ref = p_run)")
		c.Plant(t, "mint", "SELECT runs.* INTO r FROM runs WHERE ref = p_run FOR NO KEY UPDATE", "SELECT runs.* INTO r FROM runs WHERE ref = p_run")
		c.Plant(t, "mint", "UPDATE runs SET steps_left = runs.steps_left - 1, steps = runs.steps + 1 WHERE id = r.id AND runs.steps_left > 0 AND state = 'claimed' AND fence = p_fence RETURNING runs.* INTO r;", "PERFORM 1;") // which would notice
		found := false
		for n := 0; n < 2000 && !found; n++ {
			c.run(n)
			found = n%50 == 49 && len(late(c.commits())) > 0
		}
		assert.True(t, found)
	})
}

func TestLate(t *testing.T) {
	t.Parallel()
	before, after := commit{"admit", 1, 4}, commit{"mint", 1, 5}
	cut, other := commit{"cut_off", 1, 5}, commit{"claim", 2, 1}
	assert.Empty(t, late([]commit{before, other, cut, after, other}))
	assert.Equal(t, []string{"task 1: admit of epoch 4 after epoch 5 had begun"}, late([]commit{before, cut, other, before, after}))
}
