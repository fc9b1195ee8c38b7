package demo

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/fsck"
)

// Summary is the demo's last line.
type Summary struct {
	Runs        map[string]int64 `json:"runs"` // by state
	Effects     Effects          `json:"effects"`
	AppliedRows int64            `json:"applied_rows"`
	Closing     *Closing         `json:"closing"`
	Approvals   *Approvals       `json:"approvals"`
	Spend       *Spend           `json:"spend"`
	Left        *Left            `json:"left"`
	Log         Log              `json:"audit"`
	Attacks     []Attack         `json:"attacks"`
	Replicas    int              `json:"replicas"`
	Fsck        string           `json:"fsck"`
	OK          bool             `json:"ok"`
}

// Effects counts outcomes.
type Effects struct {
	Committed  int64 `json:"committed"`
	NotApplied int64 `json:"not_applied"`
	Ambiguous  int64 `json:"ambiguous"`
}

// wantedRuns is how many runs the story waits for.
const wantedRuns = 5

// Story runs the main job on a fresh stack, tells it, and attacks it.
func Story(ctx context.Context, o Options, out io.Writer) (summary Summary, err error) {
	began := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	o.Mind = true
	s, err := New(o)
	if err != nil {
		return Summary{}, err
	}
	defer func() {
		s.Stop()
		err = errors.Join(err, s.leave())
	}()
	t := teller{s, say, &Closing{}, &Approvals{}, &Spend{}, &Left{}}
	for _, chapter := range []func(context.Context) error{t.setUp, t.consent, t.interrupted, t.restarted, t.closed, t.asked, t.left, t.revoked} {
		if err := chapter(ctx); err != nil {
			return Summary{}, fmt.Errorf("%w (logs are in %s)", err, s.path("logs"))
		}
	}
	attacks, err := t.attacks(ctx)
	if err != nil {
		return Summary{}, fmt.Errorf("%w (logs are in %s)", err, s.path("logs"))
	}
	if o.Before != nil {
		o.Before(s)
	}
	return t.summary(ctx, attacks)
}

// teller tells what happens on a stack.
type teller struct {
	*Stack
	say     func(format string, args ...any)
	closing *Closing

	approvals *Approvals
	spend     *Spend
	gone      *Left
}

func (t teller) setUp(ctx context.Context) error {
	if err := t.Start(ctx); err != nil {
		return err
	}
	t.say("PostgreSQL, two issuers and two replicas of the authority are up behind %s.", t.Origin())
	if err := t.Register(ctx); err != nil {
		return err
	}
	if err := t.StartRest(ctx); err != nil {
		return err
	}
	t.say("The operator has registered a client, a guard, two roles and a policy. NATS, the scheduler and the guard are up.")
	if err := t.WaitOpen(ctx, 40*time.Second); err != nil {
		return err
	}
	t.say("Every required family reports good: the gate has opened.")
	return nil
}

func (t teller) consent(ctx context.Context) error {
	if err := t.pace(ctx, 0.4); err != nil {
		return err
	}
	task, err := t.Consent(ctx, "task.yaml")
	if err != nil {
		return err
	}
	t.say("A member said yes to exactly one thing: append rows to table:entries at the ledger, every second, five effects a run (task %s).", task)
	for _, w := range []string{"worker-1", "worker-2"} {
		if _, err := t.start(w, "demo-worker", "--config", t.path("config", w+".json")); err != nil {
			return err
		}
	}
	return nil
}

// interrupted kills the worker that has an effect in flight, between admit and settle.
func (t teller) interrupted(ctx context.Context) error {
	var run string
	err := until(ctx, 30*time.Second, "an effect in flight", func() (bool, error) {
		err := t.one(ctx, `SELECT encode(r.ref, 'hex') FROM nw.effects e JOIN nw.runs r ON r.id = e.run_id WHERE e.state = 'admitted' AND r.state = 'claimed' LIMIT 1`, nil, &run)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	victim, err := t.workerOf(ctx, run)
	if err != nil {
		return err
	}
	t.children[victim].kill()
	t.say("%s was killed while the guard was applying its effect: admitted, not yet settled.", victim)
	if err := t.pace(ctx, 0); err != nil {
		return err
	}
	var fence int64
	var state string
	err = until(ctx, 30*time.Second, "the interrupted run's end", func() (bool, error) {
		err := t.one(ctx, `SELECT state, fence FROM nw.runs WHERE encode(ref, 'hex') = $1`, []any{run}, &state, &fence)
		return state == "succeeded", err
	})
	if err != nil {
		return err
	}
	t.say("Its lease ran out, the other worker claimed the run with fence %d, found the effect committed, and finished. Nothing happened twice.", fence)
	_, err = t.start(victim, "demo-worker", "--config", t.path("config", victim+".json"))
	return err
}

// workerOf finds the worker that holds a run: the audit log names the assertion that claimed it, by digest.
func (t teller) workerOf(ctx context.Context, run string) (string, error) {
	var used string
	err := t.one(ctx, `SELECT convert_from(a.body, 'UTF8')::json->'more'->>'assertion' FROM nw.audit a JOIN nw.runs r ON r.id = a.run_id
		WHERE encode(r.ref, 'hex') = $1 AND a.verb = 'claim' AND a.verdict = 'ok' ORDER BY a.id DESC LIMIT 1`, []any{run}, &used)
	if err != nil {
		return "", err
	}
	for _, w := range []string{"worker-1", "worker-2"} {
		token, err := os.ReadFile(t.path("tokens", w))
		if err != nil {
			return "", err
		}
		signed := string(token[:max(0, bytes.LastIndexByte(token, '.'))])
		if digest := canonical.Digest(canonical.DomainAssertion, []byte(signed)); hex.EncodeToString(digest[:]) == used {
			return w, nil
		}
	}
	return "", errors.New("the audit log names no assertion of the two workers")
}

func (t teller) restarted(ctx context.Context) error {
	t.children["replica-a"].kill()
	t.say("Replica A was killed; the origin goes on with replica B.")
	before, err := t.succeeded(ctx)
	if err != nil {
		return err
	}
	if err := t.reach(ctx, before+1); err != nil {
		return err
	}
	if err := t.startReplica(ctx, "replica-a"); err != nil {
		return err
	}
	t.say("Replica A is back with the same keys: nonces and capabilities of either replica are good at the other.")
	if err := t.reach(ctx, max(wantedRuns, before+2)); err != nil {
		return err
	}
	n, err := t.succeeded(ctx)
	t.say("%d runs have succeeded, with two effects each.", n)
	return err
}

func (t teller) reach(ctx context.Context, n int64) error {
	return until(ctx, 45*time.Second, fmt.Sprintf("%d runs that succeeded", n), func() (bool, error) {
		got, err := t.succeeded(ctx)
		return got >= n, err
	})
}

func (t teller) succeeded(ctx context.Context) (n int64, err error) {
	return n, t.one(ctx, `SELECT count(*) FROM nw.runs WHERE state = 'succeeded'`, nil, &n)
}

// revoked ends the task, so that the attacks have the house to themselves.
func (t teller) revoked(ctx context.Context) error {
	tasks, err := t.as(ctx, "member", "task", "list", "--json")
	if err != nil {
		return err
	}
	ref, err := firstTask(tasks)
	if err != nil {
		return err
	}
	if _, err := t.as(ctx, "member", "task", "revoke", ref); err != nil {
		return err
	}
	err = until(ctx, 45*time.Second, "the end of every run", func() (bool, error) {
		var live int64
		err := t.one(ctx, `SELECT count(*) FROM nw.runs WHERE ended_at IS NULL`, nil, &live)
		return live == 0, err
	})
	for _, w := range []string{"worker-1", "worker-2"} {
		t.children[w].stop()
	}
	t.say("The member took the consent back. It took effect before the command returned; nothing runs any more.")
	return err
}

// one reads one row of the authority's database, as its administrator.
func (s *Stack) one(ctx context.Context, sql string, args []any, dest ...any) error {
	return s.execute(ctx, s.database(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, sql, args...).Scan(dest...)
	})
}

func (t teller) summary(ctx context.Context, attacks []Attack) (Summary, error) {
	s := Summary{Runs: map[string]int64{}, Closing: t.closing, Approvals: t.approvals, Spend: t.spend, Left: t.gone, Attacks: attacks, Replicas: len(t.replicas), Fsck: "ok"}
	err := t.execute(ctx, t.database(), func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT state, count(*) FROM nw.runs GROUP BY state`)
		if err != nil {
			return err
		}
		var state string
		var n int64
		if _, err := pgx.ForEachRow(rows, []any{&state, &n}, func() error { s.Runs[state] = n; return nil }); err != nil {
			return err
		}
		return c.QueryRow(ctx, `SELECT count(*) FILTER (WHERE state = 'committed'), count(*) FILTER (WHERE state = 'not_applied'), count(*) FILTER (WHERE state = 'ambiguous') FROM nw.effects`).
			Scan(&s.Effects.Committed, &s.Effects.NotApplied, &s.Effects.Ambiguous)
	})
	if err != nil {
		return s, err
	}
	err = t.execute(ctx, t.resource(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT count(*) FROM public.entries`).Scan(&s.AppliedRows)
	})
	if err != nil {
		return s, err
	}
	if s.Log, err = t.audited(ctx); err != nil {
		return s, err
	}
	violations, err := fsck.Check(ctx, t.adminURL(t.database()))
	if err != nil {
		return s, err
	}
	if len(violations) > 0 {
		s.Fsck = fmt.Sprint(violations)
	}
	s.OK = s.sound()
	t.say("%d runs succeeded; %d effects committed, %d not applied, %d ambiguous; %d rows in the ledger; %d invariants hold: %s.",
		s.Runs["succeeded"], s.Effects.Committed, s.Effects.NotApplied, s.Effects.Ambiguous, s.AppliedRows, fsck.Count(), s.Fsck)
	return s, nil
}

// sound says whether all of it held.
func (s Summary) sound() bool {
	ok := s.Fsck == "ok" && s.Log.sound() && s.Closing.sound() && s.Runs["succeeded"] >= wantedRuns && s.Approvals.sound() && s.Spend.sound() && s.Left.sound() && s.AppliedRows+s.Approvals.Applied+s.Spend.Calls == s.Effects.Committed && len(s.Attacks) == 9 && s.Replicas == 2
	for _, a := range s.Attacks {
		ok = ok && a.Refused && a.Code != ""
	}
	return ok
}

func firstTask(list string) (string, error) {
	var page api.Page[api.Task]
	err := json.Unmarshal([]byte(list), &page)
	i := slices.IndexFunc(page.Items, func(k api.Task) bool { return k.Consented })
	if err != nil || i < 0 {
		return "", errors.Join(err, errors.New("the member has no task with a consent"))
	}
	return page.Items[i].Task, nil
}
