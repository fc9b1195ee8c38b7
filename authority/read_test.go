package authority_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/directory"
)

// reader is a person in a browser's session.
type reader struct {
	authority.Actor
	a *authority.Authority
}

func somebody(t *testing.T, h *authoritytest.House, name string) reader {
	t.Helper()
	who, err := h.Authority.Envelopes.FromEnvelope(t.Context(), h.Envelope(name))
	require.NoError(t, err)
	return reader{h.Authority.FromSession(who, canonical.Digest("session", []byte(name))), h.Authority}
}

func refused(t *testing.T, code api.Code, err error, what ...any) {
	t.Helper()
	var r *api.Refusal
	require.ErrorAs(t, err, &r, what...)
	require.Equal(t, code, r.Code, what...)
}

// ended is a run with one committed effect, and its task.
func ended(t *testing.T, h *authoritytest.House) (task, run string) {
	t.Helper()
	task = h.Consent(h.Task("books"))
	run = h.Plan(task)
	w, g := h.Claim(run), h.Guard()
	minted := w.Minted("one", "1")
	attempt := authoritytest.NewAttempt()
	require.Equal(t, 200, g.Admit(g.Ask(w, minted, "1", attempt)).Status)
	require.Equal(t, 200, g.Settle(minted.Effect, attempt, "committed").Status)
	require.Equal(t, 200, w.Settle("succeeded").Status)
	return task, run
}

// byReference are the readings of one thing.
func byReference(task, run, consent string) map[string]func(context.Context, reader) error {
	none := func(_ any, err error) error { return err }
	return map[string]func(context.Context, reader) error{
		"task":     func(ctx context.Context, m reader) error { return none(m.a.Task(ctx, m.Actor, task)) },
		"dry run":  func(ctx context.Context, m reader) error { return none(m.a.DryRun(ctx, m.Actor, task)) },
		"scope":    func(ctx context.Context, m reader) error { return none(m.a.RevocationScope(ctx, m.Actor, task)) },
		"timeline": func(ctx context.Context, m reader) error { return none(m.a.Timeline(ctx, m.Actor, run)) },
		"consent":  func(ctx context.Context, m reader) error { return none(m.a.Consent(ctx, m.Actor, consent)) },
	}
}

// B2: what is somebody else's and what does not exist look the same, to the word.
func TestForeignAndUnknownLookTheSame(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task, run := ended(t, h)
	ctx := t.Context()
	owner, stranger, auditor := somebody(t, h, authoritytest.MemberName), somebody(t, h, "member-2"), somebody(t, h, authoritytest.AuditorName)
	consents, err := h.Authority.Consents(ctx, owner.Actor, "")
	require.NoError(t, err)
	require.Len(t, consents.Items, 1)
	consent := consents.Items[0].Consent
	unknown := base64.RawURLEncoding.EncodeToString(make([]byte, 16))
	nothing := byReference(unknown, unknown, unknown)
	malformed := byReference("x", "x", "x")
	for name, read := range byReference(task, run, consent) {
		require.NoError(t, read(ctx, owner), name)
		require.NoError(t, read(ctx, auditor), name)
		foreign, absent, wrong := read(ctx, stranger), nothing[name](ctx, stranger), malformed[name](ctx, stranger)
		refused(t, api.NotFound, foreign, name)
		require.Equal(t, absent.Error(), foreign.Error(), name)
		require.Equal(t, wrong.Error(), foreign.Error(), name)
		require.Error(t, read(ctx, reader{a: h.Authority}), "nobody reads the %s", name)
	}
	for _, ref := range []string{task, unknown} {
		runs, err := h.Authority.Runs(ctx, stranger.Actor, ref, "")
		require.NoError(t, err)
		require.Equal(t, api.Page[api.Run]{Items: []api.Run{}}, runs)
	}
	for name, empty := range map[string]func() (int, string, error){
		"tasks": func() (int, string, error) {
			p, err := h.Authority.Tasks(ctx, stranger.Actor, "")
			return len(p.Items), p.Next, err
		},
		"runs": func() (int, string, error) {
			p, err := h.Authority.Runs(ctx, stranger.Actor, "", "")
			return len(p.Items), p.Next, err
		},
		"consents": func() (int, string, error) {
			p, err := h.Authority.Consents(ctx, stranger.Actor, "")
			return len(p.Items), p.Next, err
		},
		"decisions": func() (int, string, error) {
			p, err := h.Authority.Inbox(ctx, stranger.Actor, "")
			return len(p.Items), p.Next, err
		},
		"ambiguous": func() (int, string, error) {
			p, err := h.Authority.Ambiguous(ctx, stranger.Actor, "")
			return len(p.Items), p.Next, err
		},
	} {
		n, next, err := empty()
		require.NoError(t, err, name)
		require.Zero(t, n, name)
		require.Empty(t, next, name)
	}
}

// What a call of the API brings is good for one reading; what a session brings, for as many as a page needs.
func TestAProofIsSpentByReading(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p := h.Person(authoritytest.MemberName)
	call := authority.Call{Proof: h.Proof(p.Key, "GET", api.PathTasks, p.Envelope), Method: "GET", URL: h.URL + api.PathTasks}
	m, err := h.Authority.FromCall(t.Context(), call, p.Envelope)
	require.NoError(t, err)
	_, err = h.Authority.Tasks(t.Context(), m, "")
	require.NoError(t, err)
	_, err = h.Authority.Runs(t.Context(), m, "", "")
	refused(t, api.ProofReplayed, err)

	s := somebody(t, h, authoritytest.MemberName)
	for range 3 {
		_, err = h.Authority.Tasks(t.Context(), s.Actor, "")
		require.NoError(t, err)
	}
	thief := h.Authority.FromSession(s.Principal, [32]byte{9})
	_, err = h.Authority.Tasks(t.Context(), thief, "")
	refused(t, api.AssertionBound, err, "an envelope belongs to the first session that uses it")
}

// many gives the owner of the first task n more with a queued run each, past the verbs.
func many(t *testing.T, h *authoritytest.House, n int) {
	t.Helper()
	h.Unsound()
	last := h.Count(`SELECT max(id) FROM nw.tasks`)
	h.Exec(`INSERT INTO nw.tasks (ref, name, client_id, owner) SELECT decode(md5('t' || i), 'hex'), sha256(convert_to('t' || i, 'UTF8')), k.client_id, k.owner FROM nw.tasks k, generate_series(1, $1::int) i WHERE k.id = 1`, n)
	h.Exec(`INSERT INTO nw.task_revisions SELECT k.id, 1, v.document, v.role_id, v.policy_id FROM nw.tasks k, nw.task_revisions v WHERE v.task_id = 1 AND k.id > $1`, last)
	h.Exec(`INSERT INTO nw.lanes (task_id, task_revision) SELECT id, 1 FROM nw.tasks WHERE id > $1`, last)
	h.Exec(`INSERT INTO nw.runs (ref, task_id, consent_id, member, role_id, nominal_at, activation_epoch, deadline, effects_left, steps_left, spend_left)
		SELECT decode(md5('r' || k.id), 'hex'), k.id, c.id, c.member, c.role_id, now(), 1, now() + interval '1 hour', 1, 1, 0 FROM nw.tasks k, nw.consents c WHERE k.id > $1 AND c.task_id = 1`, last)
}

// A list read page by page has everything once, in order, whatever is added meanwhile; and a cursor is good for who got it, for what it was got, and as it was got.
func TestPages(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ended(t, h)
	many(t, h, 120)
	ctx := t.Context()
	m, auditor := somebody(t, h, authoritytest.MemberName), somebody(t, h, authoritytest.AuditorName)
	var tasks []string
	var cursors []string
	for cursor := ""; ; {
		page, err := h.Authority.Tasks(ctx, m.Actor, cursor)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.Items), 100)
		for _, k := range page.Items {
			tasks = append(tasks, k.Task)
		}
		if page.Next == "" {
			break
		}
		cursor = page.Next
		cursors = append(cursors, cursor)
		h.Apply(h.Task(fmt.Sprintf("new-%d", len(cursors)))) // it stands before what was read, and moves nothing
	}
	require.Len(t, tasks, 121)
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(tasks))), 121)
	require.Len(t, cursors, 4)
	again, err := h.Authority.Tasks(ctx, m.Actor, cursors[0])
	require.NoError(t, err)
	require.Equal(t, tasks[30], again.Items[0].Task)

	runs, err := h.Authority.Runs(ctx, m.Actor, "", "")
	require.NoError(t, err)
	require.Len(t, runs.Items, 30)
	for name, read := range map[string]func() error{
		"another member's": func() error {
			_, err := h.Authority.Tasks(ctx, somebody(t, h, "member-2").Actor, cursors[0])
			return err
		},
		"another list's":  func() error { _, err := h.Authority.Runs(ctx, m.Actor, "", cursors[0]); return err },
		"another query's": func() error { _, err := h.Authority.Runs(ctx, m.Actor, tasks[0], runs.Next); return err },
		"of all tasks":    func() error { _, err := h.Authority.AllTasks(ctx, auditor.Actor, cursors[0]); return err },
		"a number":        func() error { _, err := h.Authority.Tasks(ctx, m.Actor, "MTcy"); return err },
		"turned":          func() error { _, err := h.Authority.Tasks(ctx, m.Actor, cursors[0][1:]+cursors[0][:1]); return err },
		"too long":        func() error { _, err := h.Authority.Tasks(ctx, m.Actor, cursors[0]+cursors[0]); return err },
	} {
		refused(t, api.InvalidRequest, read(), name)
	}
}

// Everything that can act as a member comes first, and then what could within two years.
func TestEverythingThatCanActAsMe(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task := h.Consent(h.Task("books"))
	h.Consent(h.Task("letters"))
	m := somebody(t, h, authoritytest.MemberName)
	_, err := h.Authority.Revoke(ctx, m.Actor, task)
	require.NoError(t, err)
	h.Consent(h.Task("books"))

	all, err := h.Authority.Consents(ctx, m.Actor, "")
	require.NoError(t, err)
	var states []string
	for _, c := range all.Items {
		states = append(states, c.State)
		require.Equal(t, c.State != "active", c.EndedAt != nil)
		require.Equal(t, "Close the day", c.Title)
		require.Equal(t, "bookkeeper", c.Role)
		one, err := h.Authority.Consent(ctx, m.Actor, c.Consent)
		require.NoError(t, err)
		require.Equal(t, c, one)
	}
	require.Equal(t, []string{"active", "active", "revoked"}, states)

	h.Exec(`ALTER TABLE nw.consents DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.consents SET ended_at = now() - interval '2 years 1 day', given_at = now() - interval '3 years' WHERE state = 'revoked'`)
	h.Exec(`ALTER TABLE nw.consents ENABLE TRIGGER USER`)
	all, err = h.Authority.Consents(ctx, m.Actor, "")
	require.NoError(t, err)
	require.Len(t, all.Items, 2)
}

// A task is shown with what it rests on as that is now.
func TestATaskInDetail(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task, run := ended(t, h)
	m := somebody(t, h, authoritytest.MemberName)
	d, err := h.Authority.Task(ctx, m.Actor, task)
	require.NoError(t, err)
	require.Equal(t, "Close the day", d.Title)
	require.Equal(t, api.Named{Name: "books", Title: "The bookkeeping product", Revision: 1, State: "active"}, d.Client)
	require.Equal(t, api.Named{Name: "bookkeeper", Revision: 1, State: "active"}, d.Role)
	require.Equal(t, []api.Named{{Name: "bookkeeper", Revision: 1, State: "active"}}, d.Profiles)
	require.Len(t, d.Revisions, 1)
	require.Len(t, d.Consents, 1)
	require.Equal(t, run, d.LastRun.Run)
	require.Equal(t, "succeeded", d.LastRun.State)
	require.Len(t, d.NextFires, 3)
	require.Equal(t, "UTC", d.Zone)
	require.Nil(t, d.CutOff, "a first yes ends nothing")

	line, err := h.Authority.Timeline(ctx, m.Actor, run)
	require.NoError(t, err)
	var kinds []string
	for _, e := range line.Entries {
		kinds = append(kinds, e.Kind+" "+e.Outcome)
		if e.Effect != "" {
			require.Equal(t, []string{"ledger", "row.append", "table:entries"}, []string{e.Guard, e.Action, e.Resource})
		}
	}
	require.Equal(t, []string{"plan ", "claim ", "mint ", "admit ", "settle_effect committed", "end_run succeeded", "settle_run succeeded"}, kinds)
	require.EqualValues(t, 1, line.Run.Committed)

	_, err = h.Authority.Revoke(ctx, m.Actor, task)
	require.NoError(t, err)
	d, err = h.Authority.Task(ctx, m.Actor, task)
	require.NoError(t, err)
	require.EqualValues(t, 3, d.CutOff.ActivationEpoch)
	require.Zero(t, d.CutOff.LagMS)
	require.True(t, d.CutOff.LastAdmittedAt.Before(d.CutOff.AdvancedAt))
	require.Empty(t, d.Consent)
}

// The scope that is shown is what ends.
func TestTheScopeIsWhatEnds(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task := h.Consent(h.Task("books"))
	run := h.Plan(task)
	w, g := h.Claim(run), h.Guard()
	first := w.Minted("one", "1")
	require.Equal(t, 200, g.Admit(g.Ask(w, first, "1", authoritytest.NewAttempt())).Status)
	w.Minted("two", "2")
	m := somebody(t, h, authoritytest.MemberName)
	s, err := h.Authority.RevocationScope(ctx, m.Actor, task)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1, 0}, []int64{s.InFlight, s.Minted, s.Cards})
	require.Len(t, s.Runs, 1)
	require.Equal(t, run, s.Runs[0].Run)
	require.NotNil(t, s.NextAt)
	_, err = h.Authority.Revoke(ctx, m.Actor, task)
	require.NoError(t, err)
	after, err := h.Authority.RevocationScope(ctx, m.Actor, task)
	require.NoError(t, err)
	require.Empty(t, after.Consent)
	require.Nil(t, after.NextAt)
	require.Equal(t, "ending", after.Runs[0].State, "what was admitted is settled as it is")
	require.EqualValues(t, 1, after.InFlight)
}

// A dry run and the verbs never disagree: in each situation the reason is what a verb says.
func TestADryRunSaysWhatWouldHappen(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	m := somebody(t, h, authoritytest.MemberName)
	dry := func(task string) []string {
		d, err := h.Authority.DryRun(ctx, m.Actor, task)
		require.NoError(t, err)
		require.Equal(t, len(d.Reasons) == 0, d.WouldRun)
		require.WithinDuration(t, time.Now(), d.At, time.Minute)
		for _, r := range d.Reasons {
			require.NotEmpty(t, api.WhyNot(r), r)
		}
		return d.Reasons
	}
	plan := func(task string) (verdict string) {
		h.Exec(`UPDATE nw.schedules SET next_at = date_trunc('second', clock_timestamp()) + make_interval(secs => (SELECT count(*) FROM nw.slots)) - interval '1 second' WHERE task_id = (SELECT id FROM nw.tasks WHERE ref = $1)`, authoritytest.Raw(task))
		err := h.Owner.QueryRow(ctx, `SELECT p.verdict FROM nw.tasks k LEFT JOIN nw.schedules s ON s.task_id = k.id, LATERAL nw.plan(k.id, 1, s.next_at, json_build_array(json_build_object('at', s.next_at)), s.next_at + interval '1 hour', sha256('z'), decode(md5(random()::text), 'hex'), 1000) p WHERE k.ref = $1`,
			authoritytest.Raw(task)).Scan(&verdict)
		require.NoError(t, err)
		return verdict
	}
	books := h.Consent(h.Task("books"))
	require.Empty(t, dry(books))

	h.Close()
	require.Equal(t, []string{"admission_closed"}, dry(books))
	require.Equal(t, "admission_closed", plan(books))
	h.Open()

	run := h.Plan(books)
	require.Equal(t, []string{"lane_busy"}, dry(books))
	require.Equal(t, "ok", plan(books))
	require.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.slots WHERE outcome = 'coalesced'`))
	w := h.Claim(run)
	for i := range 5 {
		w.Minted(fmt.Sprint(i), fmt.Sprint(i))
	}
	require.Equal(t, 200, w.Settle("failed").Status)
	require.Empty(t, dry(books))

	h.Exec(`UPDATE nw.lanes SET uncertain_until = clock_timestamp() + interval '1 hour'`)
	require.Equal(t, []string{"lane_uncertain"}, dry(books))
	held := h.Plan(books)
	_, ok := h.TryClaim(held)
	require.False(t, ok)
	h.Exec(`UPDATE nw.lanes SET uncertain_until = '-infinity'`)
	require.Equal(t, 200, h.Claim(held).Settle("succeeded").Status)

	_, err := h.Authority.Revoke(ctx, m.Actor, books)
	require.NoError(t, err)
	require.Equal(t, []string{"no_consent"}, dry(books))
	require.Equal(t, "revision_stale", plan(books), "its schedule is gone")

	letters := h.Consent(h.Task("letters"))
	h.Exec(`ALTER TABLE nw.consents DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.consents SET not_before = given_at - interval '2 days', expires_at = clock_timestamp() WHERE state = 'active'`)
	h.Exec(`ALTER TABLE nw.consents ENABLE TRIGGER USER`)
	require.Equal(t, []string{"consent_ended"}, dry(letters))
	require.Equal(t, "consent_ended", plan(letters))

	bills := h.Consent(h.Task("bills"))
	queued := h.Plan(bills)
	op := somebody(t, h, authoritytest.OperatorName)
	_, err = h.Authority.Retire(ctx, op.Actor, api.RetireRequest{Kind: "AttestationProfile", Name: "bookkeeper", Revision: 1})
	require.NoError(t, err)
	require.Contains(t, dry(bills), "retired")
	_, ok = h.TryClaim(queued)
	require.False(t, ok)
	h.Unsound()
}

// The limits of a day count for a dry run as they do for a mint.
func TestADryRunCountsWindows(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(strings.Replace(h.Task("books"), "effects: 5", "effects: 5, effects_day: 1", 1))
	m := somebody(t, h, authoritytest.MemberName)
	w := h.Claim(h.Plan(task))
	w.Minted("one", "1")
	require.Equal(t, "limit_reached", string(w.Mint("two", "2").Problem().Code))
	require.Equal(t, 200, w.Settle("failed").Status)
	d, err := h.Authority.DryRun(t.Context(), m.Actor, task)
	require.NoError(t, err)
	require.Equal(t, []string{"limit_reached"}, d.Reasons)
	require.Equal(t, "effects_day", d.Ceiling)
}

// Whoever has left is a reason, and asking ends nothing; a directory that does not answer is one too.
func TestADryRunAsksTheDirectory(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task := h.Consent(h.Task("books"))
	m, auditor := somebody(t, h, authoritytest.MemberName), somebody(t, h, authoritytest.AuditorName)
	dry := func(who reader) []string {
		d, err := h.Authority.DryRun(ctx, who.Actor, task)
		require.NoError(t, err)
		return d.Reasons
	}
	h.People.Break(true)
	require.Equal(t, []string{"directory_unavailable"}, dry(m))
	h.People.Break(false)
	require.Empty(t, dry(auditor))
	h.People.Say(h.Platform.URL, authoritytest.MemberName, directory.Absent)
	require.Equal(t, []string{"not_a_member"}, dry(auditor))
	require.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
	require.NotEmpty(t, api.WhyNot("not_a_member"))

	run := h.Plan(task)
	_, ok := h.TryClaim(run)
	require.False(t, ok)
	stranded, err := h.Authority.Stranded(ctx, auditor.Actor, "")
	require.NoError(t, err)
	require.Len(t, stranded.Items, 1)
	require.Equal(t, task, stranded.Items[0].Task)
	require.Equal(t, []string{"no_consent", "not_a_member"}, dry(auditor))
}

// Who takes a task over sees none of what ran as its earlier owner, and whose it was keeps what is about them.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task, run := ended(t, h)
	h.Apply(strings.NewReplacer("revision: 1\nowner", "revision: 2\nowner", "subject: member-1", "subject: member-2").Replace(h.Task("books")))
	old, next := somebody(t, h, authoritytest.MemberName), somebody(t, h, "member-2")
	d, err := h.Authority.Task(ctx, next.Actor, task)
	require.NoError(t, err)
	require.Len(t, d.Revisions, 1)
	require.EqualValues(t, 2, d.Revisions[0].Revision)
	require.Empty(t, d.Consents)
	require.Nil(t, d.LastRun)
	runs, err := h.Authority.Runs(ctx, next.Actor, task, "")
	require.NoError(t, err)
	require.Empty(t, runs.Items)
	_, err = h.Authority.Timeline(ctx, next.Actor, run)
	refused(t, api.NotFound, err)

	_, err = h.Authority.Task(ctx, old.Actor, task)
	refused(t, api.NotFound, err)
	line, err := h.Authority.Timeline(ctx, old.Actor, run)
	require.NoError(t, err)
	require.Equal(t, run, line.Run.Run)
	consents, err := h.Authority.Consents(ctx, old.Actor, "")
	require.NoError(t, err)
	require.Len(t, consents.Items, 1)
}
