package demo

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func TestAnAttackTellsTheCodeThatRefusedIt(t *testing.T) {
	t.Parallel()
	for evidence, code := range map[string]api.Code{
		"row.delete: not_granted":                                                                                      api.NotGranted,
		"an assertion: assertion_bound; a capability: invalid_token":                                                   api.AssertionBound,
		"a guard that nobody runs closed admission within 365ms (absent); consent: admission_closed":                   api.AdmissionClosed,
		"a link, and a cookie that was made up: turned away":                                                           "",
		"an assertion that the attacker has signed: invalid_client; one that nobody has signed: invalid_client":        api.InvalidClient,
		"by the old task: authority_changed; by the old role: authority_changed; by the old policy: authority_changed": api.AuthorityChanged,
		"a run that is held: held; one that has ended: run_ended":                                                      api.Held,
		"the same proof once more: proof_replayed":                                                                     api.ProofReplayed,
		"an effect capability, at the guard, 500ms after the lease's end: lease_lost":                                  api.LeaseLost,
		"the same effect in the next run: effect_ambiguous":                                                            api.EffectAmbiguous,
		"": "",
	} {
		a := Attack{ID: "A16.1", Title: "an effect", Verdict: "pass", Evidence: evidence}.told()
		assert.True(t, a.Refused)
		assert.Equal(t, "an effect", a.Name)
		assert.Equal(t, code, a.Code, evidence)
	}
	a := Attack{Verdict: "fail", Evidence: "it was not refused: held"}.told()
	assert.False(t, a.Refused)
	assert.Empty(t, a.Code, "what was let through has no code")
}
