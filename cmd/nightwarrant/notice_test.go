package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// Operators see what owners could not be told, by references, and may have it told after all.
func TestNotices(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	e := env{"NIGHTWARRANT_DATABASE_URL": w.DB.URL("nw_operator")}
	assert.Equal(t, "Every owner has been told.\n", e.good(t, "notice", "list"))
	assert.JSONEq(t, `[]`, e.good(t, "notice", "list", "--json"))
	lane := w.Held(t, fixture.TaskOptions{})
	verdict, err := lane.Ask(fixture.NewEffect(), fixture.NewRef()).Verdict(t.Context(), w.Owner)
	require.NoError(t, err)
	require.Equal(t, "approval_required", verdict)
	w.Exec(t, `UPDATE nw.notices SET state = 'dead', attempt = 9, refusals = 8 WHERE kind = 'asked' AND channel = 'webhook'`)
	out := e.good(t, "notice", "list")
	assert.Regexp(t, `(?m)^STATE +KIND +CHANNEL +MATTER +TASK +DUE +ATTEMPTS +REFUSALS$`, out)
	assert.Regexp(t, `(?m)^dead +asked +webhook +\S{22} +\S{22} +\S+Z +9 +8$`, out)
	var list []map[string]any
	require.NoError(t, json.Unmarshal([]byte(e.good(t, "notice", "list", "--json")), &list))
	require.Len(t, list, 1, "a reminder that is not due yet is no news")
	assert.Equal(t, "1 notices that were given up are due again.\n", e.good(t, "notice", "retry"))
	assert.Contains(t, e.good(t, "notice", "list"), "due")
	for _, role := range []string{"nw_scheduler", "nw_authority"} {
		env{}.run(t, "notice", "list", "--database-url", w.DB.URL(role)).bad(t, exitFailed, "permission denied")
		env{}.run(t, "notice", "retry", "--database-url", w.DB.URL(role)).bad(t, exitFailed, "permission denied")
	}
	assert.EqualValues(t, 1, fixture.Value[int64](t, w, `SELECT count(*) FROM nw.audit WHERE verb = 'notice' AND convert_from(body, 'UTF8')::json->'more'->>'role' = 'nw_operator'`))
}
