package failover

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// What a worker, a guard and a member see of it, and that the invariants of the
// whole database hold afterwards.
func TestAsSeenFromOutside(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t) // fsck at its end
	task := h.Consent(h.Task("nightly"))
	w, g := h.Claim(h.Plan(task)), h.Guard()
	first, second := w.Minted("first", "rent"), w.Minted("second", "gas")
	flying, ask := g.Ask(w, first, "rent", authoritytest.NewAttempt()), g.Ask(w, second, "gas", authoritytest.NewAttempt())
	h.Into(g.Admit(flying), nil)
	proof := h.Proof(w.Key, "POST", api.PathRenew, w.Token)

	evaluated := func(memory int64) {
		_, err := h.Pool.Exec(context.Background(), `SELECT nw.evaluate(1, $1)`, memory)
		require.NoError(t, err)
		h.See()
	}
	evaluated(1 << 40) // by a replica that remembers more than stands here
	d, err := h.Gate.Current(context.Background())
	require.NoError(t, err)
	assert.Equal(t, []any{false, int64(2), "incarnation"}, []any{d.Open, d.Incarnation, d.Reason})

	renew := h.Bearing(w.Key, w.Token, http.MethodPost, api.PathRenew, api.RenewRequest{})
	renew.Header.Set(api.HeaderProof, proof)
	refused(t, h.Send(renew), api.AdmissionClosed, api.RunEnded)
	require.Eventually(t, func() bool { return g.Settle(first.Effect, flying.Attempt, api.Committed).Status == http.StatusOK }, patience, 100*time.Millisecond,
		"nonces from after the start of the incarnation are good, and settling is possible while closed")
	var late api.EffectOutcome
	h.Into(g.Settle(first.Effect, flying.Attempt, api.Committed), &late)
	assert.Equal(t, []any{string(api.Ambiguous), true}, []any{late.State, late.Late})
	var receipt api.Receipt
	h.Into(w.Settle("succeeded"), &receipt)
	assert.Equal(t, "ambiguous", receipt.State, "its holder is told what became of the run")

	h.Open()
	refused(t, w.Renew(), api.RunEnded)
	refused(t, w.Mint("third", "water"), api.RunEnded)
	refused(t, g.Admit(ask), api.RunEnded)
	next := h.Claim(h.Plan(task))
	assert.Equal(t, int64(1)<<40+1, next.State.Fence)
	assert.Equal(t, http.StatusOK, g.Admit(g.Ask(next, next.Minted("first", "water"), "water", authoritytest.NewAttempt())).Status)
}

func refused(t *testing.T, a authoritytest.Answer, codes ...api.Code) {
	t.Helper()
	assert.GreaterOrEqual(t, a.Status, 400)
	assert.Contains(t, codes, a.Problem().Code, string(a.Body))
}
