package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// A18: an owner sees exactly what would be done, and answers exactly that, once.
func TestADecisionFromListToAnswer(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member, other := signIn(t, h, authoritytest.MemberName), signIn(t, h, "member-2")
	assert.Equal(t, "Nothing waits for you.\n", member.good(t, "decision", "list"))
	run := h.Plan(h.Consent(h.Task("nightly")))
	ask := func(note string) string {
		w := h.Claim(run)
		parameters, err := json.Marshal(map[string]any{"table": "entries", "key": map[string]any{"note": note}})
		require.NoError(t, err)
		p := h.Send(h.Form(w.Key, authoritytest.MintDetails(w.Token, note, []api.Detail{{Type: api.DetailTypeEffect, Actions: []string{"row.delete"},
			Locations: []string{authoritytest.GuardURI}, Identifier: "table:entries", Parameters: parameters}}))).Problem()
		require.Equal(t, api.ApprovalRequired, p.Code)
		return p.Decision
	}
	card := ask("harmless\u202e\x1b[2Jlladeledluoherew\u200b")
	assert.Regexp(t, card+` +pending +\S+ \S+ \S+ +high +Close the day`, member.good(t, "decision", "list"))
	assert.Equal(t, "Nothing waits for you.\n", other.good(t, "decision", "list"))
	other.run(t, "decision", "show", card).bad(t, exitFailed, "refused (not_found)")

	shown := member.good(t, "decision", "show", card)
	for _, line := range []string{"Close the day asks you to decide, until ", `"action": "row.delete"`, `"note": "harmless\u202e\u001b[2Jlladeledluoherew\u200b"`,
		"written by the workload", "Risk high. Without an answer the run stops then.", "nightwarrant decision approve " + card + " --digest ", "nightwarrant decision deny " + card + " --digest "} {
		assert.Contains(t, shown, line)
	}
	assert.NotContains(t, shown, "\x1b")
	assert.NotContains(t, shown, "\u202e")
	digest := strings.Fields(shown[strings.Index(shown, "--digest ")+9:])[0]

	member.run(t, "decision", "approve", card).bad(t, exitFailed, `required flag(s) "digest" not set`)
	member.run(t, "decision", "approve", card, "--digest", strings.Repeat("A", 43)).bad(t, exitFailed, "refused (decision_changed)")
	other.run(t, "decision", "approve", card, "--digest", digest).bad(t, exitFailed, "refused (not_found)")
	assert.Contains(t, member.good(t, "decision", "approve", card, "--digest", digest), "You have said yes to this, once.")
	member.run(t, "decision", "deny", card, "--digest", digest).bad(t, exitFailed, "refused (decision_ended)")
	assert.Contains(t, member.good(t, "decision", "show", card), "This is approved; there is nothing to answer.")

	card = ask("second")
	shown = member.good(t, "decision", "show", card)
	digest = strings.Fields(shown[strings.Index(shown, "--digest ")+9:])[0]
	assert.Contains(t, member.good(t, "decision", "deny", card, "--digest", digest), "You have said no to this.")
}
