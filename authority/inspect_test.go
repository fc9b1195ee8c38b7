package authority_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// What operators and auditors read, members do not; and auditors change nothing.
func TestRolesAreAskedForEachReading(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Consent(h.Task("books"))
	ctx := t.Context()
	member, auditor, operator := somebody(t, h, authoritytest.MemberName), somebody(t, h, authoritytest.AuditorName), somebody(t, h, authoritytest.OperatorName)
	none := func(_ any, err error) error { return err }
	for name, read := range map[string]func(reader) error{
		"all tasks":    func(m reader) error { return none(m.a.AllTasks(ctx, m.Actor, "")) },
		"registry":     func(m reader) error { return none(m.a.Registry(ctx, m.Actor, "Client", "")) },
		"entry":        func(m reader) error { return none(m.a.Entry(ctx, m.Actor, "Client", "books", "")) },
		"board":        func(m reader) error { return none(m.a.Board(ctx, m.Actor)) },
		"requirements": func(m reader) error { return none(m.a.Requirements(ctx, m.Actor, "")) },
		"stranded":     func(m reader) error { return none(m.a.Stranded(ctx, m.Actor, "")) },
		"audit":        func(m reader) error { return none(m.a.AuditSearch(ctx, m.Actor, api.AuditQuery{}, "")) },
		"export":       func(m reader) error { return m.a.AuditExport(ctx, m.Actor, io.Discard, api.AuditQuery{}, "") },
	} {
		before := h.Consumed()
		refused(t, api.Forbidden, read(member), name)
		refused(t, api.Forbidden, read(reader{a: h.Authority}), name)
		require.Equal(t, before, h.Consumed(), name)
		require.NoError(t, read(auditor), name)
		require.NoError(t, read(operator), name)
	}
	for name, act := range map[string]func(reader) error{
		"scope":  func(m reader) error { return none(m.a.CutOffScope(ctx, m.Actor, "books")) },
		"client": func(m reader) error { return none(m.a.CutOffClient(ctx, m.Actor, "books")) },
		"all":    func(m reader) error { return none(m.a.CutOffAll(ctx, m.Actor)) },
	} {
		before := h.Consumed()
		refused(t, api.Forbidden, act(member), name)
		refused(t, api.Forbidden, act(auditor), name)
		require.Equal(t, before, h.Consumed(), name)
	}
	_, err := h.Authority.Registry(ctx, operator.Actor, "Nonsense", "")
	refused(t, api.NotFound, err)
	_, err = h.Authority.Entry(ctx, operator.Actor, "Client", "nobody", "")
	refused(t, api.NotFound, err)
}

// The registry shows the newest revision of each thing, and all revisions of one.
func TestTheRegistryIsShown(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Apply("kind: Policy\nname: default\nrevision: 2\ndial_max: low\nlimits: {max_runtime_s: 60, max_effects: 1, max_consent_days: 1}\n")
	ctx := t.Context()
	m := somebody(t, h, authoritytest.AuditorName)
	page, err := h.Authority.Registry(ctx, m.Actor, "Policy", "")
	require.NoError(t, err)
	require.Len(t, page.Items, 1)
	require.EqualValues(t, 2, page.Items[0].Revision)
	require.Equal(t, "default", page.Items[0].Name)
	page, err = h.Authority.Entry(ctx, m.Actor, "Policy", "default", "")
	require.NoError(t, err)
	require.Len(t, page.Items, 2)
	require.EqualValues(t, 1, page.Items[1].Revision)
	require.Contains(t, string(page.Items[1].Document), `"dial_max":"high"`)

	board, err := h.Authority.Board(ctx, m.Actor)
	require.NoError(t, err)
	require.True(t, board.Open)
	require.NotEmpty(t, board.Rows)
	q, err := h.Authority.Requirements(ctx, m.Actor, "")
	require.NoError(t, err)
	require.Len(t, q.Items, 1)
	require.True(t, q.Items[0].InForce)
}

// A cut-off of a client kills what was minted for its tasks and for nobody else's, keeps consents, and has been committed when it returns; also while closed.
func TestCutOffOfAClient(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Apply("kind: Client\nname: mail\ntitle: The mail product\n---\nkind: WorkloadRole\nname: postman\nclient: mail\nrevision: 1\nprofiles: [bookkeeper]\nactions: [{guard: ledger, action: row.append}]\nlimits: {max_runtime_s: 3600, max_effects: 10}\n")
	ctx := t.Context()
	books := h.Consent(h.Task("books"))
	letters := h.Consent(strings.NewReplacer("client: books", "client: mail", "role: bookkeeper", "role: postman", "  - {guard: ledger, action: row.delete, resource: \"table:entries\"}\n", "").Replace(h.Task("letters")))
	run, other := h.Plan(books), h.Plan(letters)
	w, v := h.Claim(run), h.Claim(other)
	many(t, h, 450) // several steps
	epoch := func(task string) int64 {
		return h.Count(`SELECT activation_epoch FROM nw.lanes l JOIN nw.tasks k ON k.id = l.task_id WHERE k.ref = $1`, authoritytest.Raw(task))
	}
	op := somebody(t, h, authoritytest.OperatorName)
	s, err := h.Authority.CutOffScope(ctx, op.Actor, "books")
	require.NoError(t, err)
	require.EqualValues(t, 451, s.Tasks)
	require.EqualValues(t, 451, s.Runs)
	_, err = h.Authority.CutOffClient(ctx, op.Actor, "nobody")
	refused(t, api.NotFound, err)
	_, err = h.Authority.CutOffClient(ctx, op.Actor, "")
	refused(t, api.NotFound, err)
	require.EqualValues(t, 2, epoch(books))

	h.Close()
	done, err := h.Authority.CutOffClient(ctx, op.Actor, "books")
	require.NoError(t, err)
	require.Equal(t, api.CutOffResult{Tasks: 451, Runs: 451}, done)
	require.EqualValues(t, 3, epoch(books))
	require.EqualValues(t, 2, epoch(letters))
	require.EqualValues(t, 3, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'cut_off' AND verdict = 'ok'`))
	require.EqualValues(t, 2, h.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
	h.Open()
	require.Equal(t, api.AuthorityChanged, w.Renew().Problem().Code)
	require.Equal(t, 200, v.Renew().Status)

	done, err = h.Authority.CutOffAll(ctx, op.Actor)
	require.NoError(t, err)
	require.EqualValues(t, 452, done.Tasks)
	require.Equal(t, api.AuthorityChanged, v.Renew().Problem().Code)
	require.EqualValues(t, 4, epoch(books))
	require.EqualValues(t, 3, epoch(letters))
}

// The log is searched by whatever narrows it, by page, and a search that finds little goes on from where it has looked.
func TestTheAuditLogIsSearched(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	task, run := ended(t, h)
	m := somebody(t, h, authoritytest.AuditorName)
	find := func(q api.AuditQuery) (verbs []string) {
		page, err := h.Authority.AuditSearch(ctx, m.Actor, q, "")
		require.NoError(t, err)
		for _, e := range page.Items {
			verbs = append(verbs, e.Verb)
		}
		return verbs
	}
	require.Equal(t, []string{"settle_run", "end_run", "settle_effect", "admit", "mint", "claim", "plan"}, find(api.AuditQuery{Run: run}))
	require.Equal(t, []string{"mint"}, find(api.AuditQuery{Verb: "mint"}))
	require.Equal(t, []string{"settle_run", "end_run", "settle_effect", "admit", "mint", "claim", "plan", "consent", "offer"}, find(api.AuditQuery{Task: task}))
	owner := somebody(t, h, authoritytest.MemberName).Member()
	require.Equal(t, find(api.AuditQuery{Task: task}), find(api.AuditQuery{Member: authoritytest.Text(owner[:])}))
	operator := somebody(t, h, authoritytest.OperatorName).Member()
	require.Contains(t, find(api.AuditQuery{Member: authoritytest.Text(operator[:])}), "apply")
	require.Empty(t, find(api.AuditQuery{Verdict: "forbidden"}))
	require.Empty(t, find(api.AuditQuery{Task: authoritytest.NewAttempt()}))
	hour, past := time.Now().Add(-time.Hour), time.Now().Add(-30*time.Minute)
	require.NotEmpty(t, find(api.AuditQuery{Since: &hour, Verb: "mint"}))
	require.Empty(t, find(api.AuditQuery{Since: &hour, Until: &past}))
	for _, q := range []api.AuditQuery{{Task: "x"}, {Run: run[1:]}, {Member: run}} {
		_, err := h.Authority.AuditSearch(ctx, m.Actor, q, "")
		refused(t, api.InvalidRequest, err)
	}
	for _, q := range []api.AuditQuery{{Verb: "' OR true --"}, {Verdict: "nonsense"}, {Verb: "\x00"}} {
		page, err := h.Authority.AuditSearch(ctx, m.Actor, q, "")
		if err != nil {
			refused(t, api.InvalidRequest, err)
			continue
		}
		require.Empty(t, page.Items)
	}

	h.Exec(`INSERT INTO nw.audit (at, verb, verdict, body, digest) SELECT now() - make_interval(secs => i), 'standby', 'ok', '{}', sha256('{}') FROM generate_series(120, 1, -1) i`)
	h.Unsound()
	var seen []int64
	cursor := ""
	for range 10 {
		page, err := h.Authority.AuditSearch(ctx, m.Actor, api.AuditQuery{Verb: "standby"}, cursor)
		require.NoError(t, err)
		for _, e := range page.Items {
			seen = append(seen, e.Number)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	require.Empty(t, cursor)
	require.Len(t, seen, 120)
	_, err := h.Authority.AuditSearch(ctx, m.Actor, api.AuditQuery{Verb: "mint"}, authoritytest.NewAttempt())
	refused(t, api.InvalidRequest, err)
}

// An export is whole, or says by its missing last line that it is not.
func TestTheAuditLogIsExported(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := t.Context()
	ended(t, h)
	h.Exec(`INSERT INTO nw.audit (at, verb, verdict, body, digest) SELECT now() - interval '1 minute', 'standby', 'ok', '{"a": 1}', sha256('{"a": 1}') FROM generate_series(1, 1234) i`)
	h.Unsound()
	m := somebody(t, h, authoritytest.AuditorName)
	var out bytes.Buffer
	require.NoError(t, h.Authority.AuditExport(ctx, m.Actor, &out, api.AuditQuery{}, ""))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 1235, "what is younger than ten seconds is not in it yet")
	var last int64
	for _, line := range lines[:1234] {
		var e api.AuditEntry
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		require.Equal(t, "standby", e.Verb)
		require.Greater(t, e.Number, last)
		last = e.Number
	}
	var end api.AuditEnd
	require.NoError(t, json.Unmarshal([]byte(lines[1234]), &end))
	require.True(t, end.End)
	require.EqualValues(t, 1234, end.Lines)
	require.Empty(t, end.Next)

	broken := errors.New("the reader has gone")
	require.ErrorIs(t, h.Authority.AuditExport(ctx, m.Actor, failing{broken}, api.AuditQuery{}, ""), broken)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
