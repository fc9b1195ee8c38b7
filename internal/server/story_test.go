package server_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// One run through the HTTP surface: consent, plan, claim, mint, admit, settle, settle.
func TestOneRun(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	w := h.Claim(h.Plan(task))
	assert.EqualValues(t, 1, w.State.Fence)
	assert.EqualValues(t, 5, w.State.Left.Effects)

	minted := w.Minted("book", "rent")
	g := h.Guard()
	attempt := authoritytest.NewAttempt()
	ask := g.Ask(w, minted, "rent", attempt)
	var admission api.Admission
	h.Into(g.Admit(ask), &admission)
	assert.Equal(t, minted.Effect, admission.Effect)
	assert.EqualValues(t, 1, admission.Fence)
	assert.Positive(t, admission.ApplyWithinMS)
	assert.NotEmpty(t, admission.WorkerNonce)

	// The same attempt asked again gets the same go-ahead; another one does not (P13).
	var again api.Admission
	h.Into(g.Admit(ask), &again)
	assert.Equal(t, admission.Number, again.Number)
	other := ask
	other.Attempt = authoritytest.NewAttempt()
	assert.Equal(t, api.EffectAlreadyAdmitted, g.Admit(other).Problem().Code)
	assert.Equal(t, api.EffectsInFlight, w.Settle("succeeded").Problem().Code)

	var outcome api.EffectOutcome
	h.Into(g.Settle(minted.Effect, attempt, api.Committed), &outcome)
	assert.Equal(t, api.Committed, outcome.State)
	var status api.EffectOutcome
	h.Into(h.Send(h.Bearing(w.Key, w.Token, "GET", api.PathEffects+minted.Effect, nil)), &status)
	assert.Equal(t, api.Committed, status.State)
	settled := w.Minted("book", "rent")
	require.NotNil(t, settled.Outcome)
	assert.Equal(t, api.Committed, settled.Outcome.State)
	assert.Empty(t, settled.AccessToken)

	assert.Equal(t, http.StatusOK, w.Renew().Status)
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "succeeded", receipt.State)
	assert.EqualValues(t, 1, receipt.Committed)
	var same api.Receipt
	h.Into(w.Settle("succeeded"), &same)
	assert.Equal(t, receipt, same)
}
