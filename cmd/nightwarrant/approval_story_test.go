package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/worker"
)

// night is one worker that works on whatever is delivered, beside a guard, and an owner at their command line. The scheduler's verbs are called by the test.
type night struct {
	*authoritytest.House
	t         *testing.T
	guard     string // its URI
	books     *pgxpool.Pool
	scheduler *pgxpool.Pool
	member    env
	queue     delivered
	script    chan worker.Handler // what the worker's handler does next
	done      chan error          // what it returned
}

// delivered is a queue of run references.
type delivered chan string

func (d delivered) Pull(ctx context.Context) (worker.Message, error) {
	select {
	case reference := <-d:
		return note(reference), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type note string

func (n note) Reference() string       { return string(n) }
func (note) Ack() error                { return nil }
func (note) Nak(_ time.Duration) error { return nil }

func newNight(t *testing.T) *night {
	t.Helper()
	h := authoritytest.Bare(t)
	at, err := freeport.Address()
	require.NoError(t, err)
	n := &night{House: h, t: t, guard: "http://" + at + "/ledger", scheduler: h.DB.Pool(t, "nw_scheduler"), queue: make(delivered), script: make(chan worker.Handler), done: make(chan error)}
	h.Apply(strings.ReplaceAll(authoritytest.Registry(h.Workloads.URL), authoritytest.GuardURI, n.guard))
	h.Open()
	n.member = signIn(t, h, authoritytest.MemberName)
	n.work()
	return n
}

// guarded starts the guard before a table with two entries.
func (n *night) guarded() *night {
	n.t.Helper()
	db := teststack.DurableCluster(n.t)
	n.books = db.Pool(n.t, teststack.Owner)
	for _, sql := range []string{`CREATE TABLE entries (memo text)`, `INSERT INTO entries VALUES ('stale'), ('fresh')`, `CREATE ROLE books_guard LOGIN PASSWORD 'hush'`,
		`GRANT SELECT, INSERT, DELETE ON entries TO books_guard`} {
		_, err := n.books.Exec(n.t.Context(), sql)
		require.NoError(n.t, err)
	}
	env{}.good(n.t, "guard", "migrate", "--role", "books_guard", "--database-url", db.URL(teststack.Owner))
	dir := n.t.TempDir()
	file := write(n.t, dir, "guard.yaml", strings.NewReplacer("URI", n.guard, "AT", strings.TrimSuffix(strings.TrimPrefix(n.guard, "http://"), "/ledger"), "AUTHORITY", n.URL,
		"TOKEN", write(n.t, dir, "token", n.Assertion(authoritytest.GuardClaim)), "DATABASE", write(n.t, dir, "url", db.Postgres.URL("books_guard", "hush", db.Name))).Replace(
		"kind: postgres\ndatabase_url_file: DATABASE\nuri: URI\nlisten: AT\nname: ledger\nauthority: AUTHORITY\nassertion_file: TOKEN\ntables: {entries: {columns: [memo], key: [memo]}}\n"))
	guard := env{}.start(n.t, `"msg":"guarding"`, "guard", "--config", file)
	n.t.Cleanup(func() { assert.Equal(n.t, exitOK, guard.end(), guard.log) })
	n.Open()
	return n
}

// work starts the worker. It stops with the test.
func (n *night) work() {
	n.t.Helper()
	w, err := worker.New(worker.Config{Authority: n.URL, Client: "books", Source: n.queue, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Assertion: func(context.Context) (string, error) { return n.Assertion(authoritytest.WorkerClaim), nil }})
	require.NoError(n.t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() {
		ended <- w.Run(ctx, func(ctx context.Context, run *worker.Run) error {
			n.done <- (<-n.script)(ctx, run)
			return nil // whatever happened, this worker says that it went well
		})
	}()
	n.t.Cleanup(func() {
		stop()
		assert.NoError(n.t, <-ended)
	})
}

// deliver gives the one queued run to the worker, as the relay would, and lets it do something. It returns what came of it.
func (n *night) deliver(do worker.Handler) error {
	n.t.Helper()
	var run []byte
	require.Eventually(n.t, func() bool { // starts keep their distance
		return n.scheduler.QueryRow(n.t.Context(), `SELECT run_ref FROM nw.take_outbox(1, 60000)`).Scan(&run) == nil
	}, testWithin, 20*time.Millisecond, "nothing is queued")
	n.queue <- jwkstest.B64(run)
	select {
	case n.script <- do:
	case <-time.After(testWithin):
		require.FailNow(n.t, "it is not claimed")
	}
	return <-n.done
}

func (n *night) ended(run string) (state string) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		require.NoError(n.t, n.Owner.QueryRow(n.t.Context(), `SELECT state FROM nw.runs WHERE ref = $1 AND NOT live UNION ALL SELECT '' LIMIT 1`, authoritytest.Raw(run)).Scan(&state))
		return state != ""
	}, testWithin, 10*time.Millisecond, "it does not end")
	return state
}

func (n *night) add(key, memo string) worker.Effect {
	return worker.Effect{Key: key, Guard: n.guard, Action: "row.append", Resource: "table:entries", Parameters: map[string]any{"table": "entries", "values": map[string]any{"memo": memo}}}
}

func (n *night) remove(key, memo string) worker.Effect {
	return worker.Effect{Key: key, Guard: n.guard, Action: "row.delete", Resource: "table:entries", Parameters: map[string]any{"table": "entries", "key": map[string]any{"memo": memo}}}
}

// one is a handler that brings about one effect.
func one(e worker.Effect) worker.Handler {
	return func(ctx context.Context, run *worker.Run) error {
		_, err := run.Do(ctx, e)
		return err
	}
}

// memos are the entries, and how many there are of each.
func (n *night) memos() map[string]int {
	n.t.Helper()
	rows, err := n.books.Query(n.t.Context(), `SELECT memo FROM entries`)
	require.NoError(n.t, err)
	all := map[string]int{}
	for rows.Next() {
		var memo string
		require.NoError(n.t, rows.Scan(&memo))
		all[memo]++
	}
	require.NoError(n.t, rows.Err())
	return all
}

// card is the one card that waits for the owner.
func (n *night) card() api.OwnerDecision {
	n.t.Helper()
	var pending []api.OwnerDecision
	var page api.Page[api.OwnerDecision]
	require.NoError(n.t, json.Unmarshal([]byte(n.member.good(n.t, "decision", "list", "--json")), &page))
	for _, d := range page.Items {
		if d.State == "pending" {
			pending = append(pending, d)
		}
	}
	require.Len(n.t, pending, 1)
	return pending[0]
}

// The night of a task that needs more than its dial allows, from the first fire to a receipt: it waits without a worker, later fires go into it, its owner allows one
// exact effect, which happens once; another argument needs another decision; a second use is refused; and a run that was told no never says that it succeeded.
func TestANightWithAnApproval(t *testing.T) {
	t.Parallel()
	n := newNight(t).guarded()
	task := n.Consent(n.Task("tidy"))
	run := n.Plan(task)

	// It does what it may, and asks for what it may not.
	require.NoError(t, n.deliver(func(ctx context.Context, r *worker.Run) error {
		_, err := r.Do(ctx, n.add("begin", "begun"))
		require.NoError(t, err)
		_, err = r.Do(ctx, n.remove("tidy", "stale"))
		assert.ErrorIs(t, err, worker.ErrWaiting)
		return nil
	}))
	assert.Equal(t, map[string]int{"stale": 1, "fresh": 1, "begun": 1}, n.memos())
	assert.EqualValues(t, 1, n.Count(`SELECT count(*) FROM nw.runs WHERE state = 'waiting' AND holder IS NULL AND lease_until IS NULL AND inflight = 0`))

	// Nobody waits with it: the same worker finishes another task meanwhile. Three later fires go into the run that waits, and nobody is asked twice.
	other := n.Plan(n.Consent(n.Task("other")))
	require.NoError(t, n.deliver(one(n.add("begin", "other"))))
	assert.Equal(t, "succeeded", n.ended(other))
	for range 3 {
		n.Plan(task)
	}
	assert.EqualValues(t, 3, n.Count(`SELECT count(*) FROM nw.slots s JOIN nw.runs r ON r.id = s.run_id WHERE s.outcome = 'coalesced' AND r.ref = $1`, authoritytest.Raw(run)))
	assert.Zero(t, n.Count(`SELECT count(*) FROM nw.outbox`))
	assert.EqualValues(t, 1, n.Count(`SELECT count(*) FROM nw.decisions`))

	// Its owner sees the exact arguments, and says yes to them.
	card := n.card()
	assert.Equal(t, run, card.Run)
	shown := n.member.good(t, "decision", "show", card.Decision)
	assert.Contains(t, shown, `"action": "row.delete"`)
	assert.Contains(t, shown, `"memo": "stale"`)
	signIn(t, n.House, "member-2").run(t, "decision", "approve", card.Decision, "--digest", card.Digest).bad(t, exitFailed, "refused (not_found)")
	n.member.good(t, "decision", "approve", card.Decision, "--digest", card.Digest)

	// The run goes on where it was: what was done is done, what was allowed is allowed once, and nothing else is.
	require.NoError(t, n.deliver(func(ctx context.Context, r *worker.Run) error {
		assert.EqualValues(t, 2, r.Fence())
		done, err := r.Do(ctx, n.add("begin", "begun"))
		assert.NoError(t, err)
		assert.Equal(t, api.Committed, done.Outcome)
		_, err = r.Do(ctx, n.remove("tidy", "fresh"))
		assert.ErrorIs(t, err, worker.ErrConflict, "a changed argument is not what was allowed")
		done, err = r.Do(ctx, n.remove("tidy", "stale"))
		assert.NoError(t, err)
		assert.Equal(t, api.Committed, done.Outcome)
		_, err = n.books.Exec(ctx, `INSERT INTO entries VALUES ('stale')`) // somebody else's, which a second use would take
		assert.NoError(t, err)
		again, err := r.Do(ctx, n.remove("tidy", "stale"))
		assert.NoError(t, err)
		assert.Equal(t, done.Effect, again.Effect, "it is told what became of it")
		_, err = r.Do(ctx, n.remove("tidy-again", "stale"))
		assert.ErrorIs(t, err, worker.ErrRepeated, "a second use")
		_, err = r.Do(ctx, n.remove("tidy-more", "fresh"))
		assert.ErrorIs(t, err, worker.ErrWaiting, "a changed argument needs a decision of its own")
		return nil
	}))
	assert.Equal(t, map[string]int{"stale": 1, "fresh": 1, "begun": 1, "other": 1}, n.memos())
	assert.Contains(t, n.member.good(t, "decision", "show", card.Decision), "This is used; there is nothing to answer.")

	// To that its owner says no, and the run does not succeed, whatever its worker says.
	no := n.card()
	assert.NotEqual(t, card.Digest, no.Digest)
	n.member.run(t, "decision", "approve", no.Decision, "--digest", card.Digest).bad(t, exitFailed, "refused (decision_changed)")
	n.member.good(t, "decision", "deny", no.Decision, "--digest", no.Digest)
	require.NoError(t, n.deliver(func(ctx context.Context, r *worker.Run) error {
		_, err := r.Do(ctx, n.remove("tidy-more", "fresh"))
		assert.ErrorIs(t, err, worker.ErrDenied)
		return nil // it says that all is well
	}))
	assert.Equal(t, "failed", n.ended(run))
	assert.Equal(t, map[string]int{"stale": 1, "fresh": 1, "begun": 1, "other": 1}, n.memos())
	assert.Regexp(t, run+` .*failed`, n.member.good(t, "run", "list"))
	assert.Zero(t, n.Count(`SELECT count(*) FROM nw.audit a JOIN nw.runs r ON r.id = a.run_id WHERE r.ref = $1 AND a.verb = 'end_run' AND convert_from(a.body, 'UTF8')::json->'more'->>'state' = 'succeeded'`,
		authoritytest.Raw(run)))
	assert.EqualValues(t, 1, n.Count(`SELECT count(*) FROM nw.audit a JOIN nw.effects e ON e.id = a.effect_id JOIN nw.decisions d ON d.effect_id = e.id AND d.state = 'used' WHERE a.verb = 'admit' AND a.verdict = 'ok'`))

	// A yes is for one effect of one run: the next fire asks again.
	next := n.Plan(task)
	require.NoError(t, n.deliver(func(ctx context.Context, r *worker.Run) error {
		_, err := r.Do(ctx, n.remove("tidy", "stale"))
		assert.ErrorIs(t, err, worker.ErrWaiting)
		return nil
	}))
	assert.Equal(t, next, n.card().Run)
}

// Silence does what the owner chose at consent: the run stops after the window, or waits until nothing could be done any more. In neither case did it succeed, a late yes is
// refused and not accepted and lost, and the next fire asks anew.
func TestANightWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for silence, end := range map[string]string{"stop": "failed", "wait": "expired"} {
		t.Run(silence, func(t *testing.T) {
			t.Parallel()
			n := newNight(t)
			task := n.Consent(n.Task("tidy") + "when_more_is_needed: " + silence + "\ndecision_window_s: 60\n")
			ask := func(ctx context.Context, r *worker.Run) error {
				_, err := r.Do(ctx, n.remove("tidy", "stale"))
				assert.ErrorIs(t, err, worker.ErrWaiting)
				return nil
			}
			run := n.Plan(task)
			require.NoError(t, n.deliver(ask))
			card := n.card()
			var deadline time.Time
			require.NoError(t, n.Owner.QueryRow(t.Context(), `SELECT deadline FROM nw.runs WHERE ref = $1`, authoritytest.Raw(run)).Scan(&deadline))
			assert.WithinDuration(t, map[string]time.Time{"stop": card.AskedAt.Add(time.Minute), "wait": deadline.Add(-2 * time.Minute)}[silence], card.ExpiresAt, time.Second)

			expire := func() (cards int64) {
				require.NoError(t, n.scheduler.QueryRow(t.Context(), `SELECT expired FROM nw.expire_decisions(10)`).Scan(&cards))
				return cards
			}
			assert.Zero(t, expire(), "there is time left")
			n.Plan(task)
			n.Exec(`ALTER TABLE nw.decisions DISABLE TRIGGER decisions_fixed`) // time passes
			n.Exec(`UPDATE nw.decisions SET expires_at = clock_timestamp()`)
			n.Exec(`ALTER TABLE nw.decisions ENABLE TRIGGER decisions_fixed`)
			n.member.run(t, "decision", "approve", card.Decision, "--digest", card.Digest).bad(t, exitFailed, "refused (decision_ended)")
			assert.EqualValues(t, 1, expire())
			assert.Equal(t, end, n.ended(run))
			assert.Zero(t, n.Count(`SELECT count(*) FROM nw.outbox`), "nobody is given a run that is over")
			n.member.run(t, "decision", "approve", card.Decision, "--digest", card.Digest).bad(t, exitFailed, "refused (decision_ended)")
			assert.Regexp(t, run+` .*`+end, n.member.good(t, "run", "list"))

			next := n.Plan(task)
			require.NoError(t, n.deliver(ask))
			assert.Equal(t, next, n.card().Run)
		})
	}
}
