package authority_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

// somebody is a person's actor, as a browser's session makes it.
func somebody(t *testing.T, h *authoritytest.House, name string) authority.Actor {
	t.Helper()
	var who principal.Principal
	who, err := h.Authority.Envelopes.FromEnvelope(context.Background(), h.Envelope(name))
	require.NoError(t, err)
	return h.Authority.FromSession(who, [32]byte{1, byte(len(name))})
}

func TestReads(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	ctx := context.Background()
	task := h.Consent(h.Task("books"))
	m, op := somebody(t, h, authoritytest.MemberName), somebody(t, h, authoritytest.OperatorName)
	a := h.Authority

	tasks, err := a.Tasks(ctx, m, "")
	require.NoError(t, err)
	require.Len(t, tasks.Items, 1)
	d, err := a.Task(ctx, m, task)
	require.NoError(t, err)
	dry, err := a.DryRun(ctx, m, task)
	require.NoError(t, err, "%v", authority.Cause(err))
	assert.True(t, dry.WouldRun, "%v", dry)
	run := h.Plan(task)
	w := h.Claim(run)
	w.Minted("one", "1")
	scope, err := a.RevocationScope(ctx, m, task)
	require.NoError(t, err)
	assert.Len(t, scope.Runs, 1)
	t.Logf("%+v", scope)
	runs, err := a.Runs(ctx, m, "", "")
	require.NoError(t, err)
	require.Len(t, runs.Items, 1)
	line, err := a.Timeline(ctx, m, run)
	require.NoError(t, err)
	for _, e := range line.Entries {
		t.Logf("%+v", e)
	}
	all, err := a.Consents(ctx, m, "")
	require.NoError(t, err)
	require.Len(t, all.Items, 1)
	_, err = a.Consent(ctx, m, all.Items[0].Consent)
	require.NoError(t, err)
	_, err = a.Inbox(ctx, m, "")
	require.NoError(t, err)
	_, err = a.Ambiguous(ctx, m, "")
	require.NoError(t, err)

	reg, err := a.Registry(ctx, op, "WorkloadRole", "")
	require.NoError(t, err)
	require.Len(t, reg.Items, 1)
	_, err = a.Entry(ctx, op, "WorkloadRole", "bookkeeper", "")
	require.NoError(t, err)
	board, err := a.Board(ctx, op)
	require.NoError(t, err)
	t.Logf("%+v", board)
	_, err = a.Requirements(ctx, op, "")
	require.NoError(t, err)
	_, err = a.Stranded(ctx, op, "")
	require.NoError(t, err)
	_, err = a.AllTasks(ctx, op, "")
	require.NoError(t, err)
	found, err := a.AuditSearch(ctx, op, api.AuditQuery{Verb: "mint"}, "")
	require.NoError(t, err)
	require.Len(t, found.Items, 1)
	var out bytes.Buffer
	require.NoError(t, a.AuditExport(ctx, op, &out, api.AuditQuery{}, ""))
	t.Log(out.String())
	cs, err := a.CutOffScope(ctx, op, "books")
	require.NoError(t, err)
	t.Logf("%+v", cs)
	cut, err := a.CutOffClient(ctx, op, "books")
	require.NoError(t, err)
	assert.EqualValues(t, 1, cut.Runs)
	cut, err = a.CutOffAll(ctx, op)
	require.NoError(t, err)
	assert.EqualValues(t, 1, cut.Tasks)
	d, err = a.Task(ctx, m, task)
	require.NoError(t, err)
	require.NotNil(t, d.CutOff)
}
