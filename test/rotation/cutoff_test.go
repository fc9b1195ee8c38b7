package rotation

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/keys"
)

// deaf is a house whose replica follows nothing: it is always behind, as a
// replica is for a moment.
func deaf(t *testing.T) (h *authoritytest.House, cut func()) {
	t.Helper()
	h = authoritytest.New(t)
	operator := h.DB.Pool(t, "nw_operator")
	next, err := keys.Prepare(h.KeysDir, h.Identity, h.KeysDir+".2", 1, 1, nil)
	require.NoError(t, err)
	done, err := authority.Rotate(t.Context(), operator, authority.Publish, 1, next)
	require.NoError(t, err)
	require.Equal(t, "ok", done.Verdict)
	return h, func() {
		verdict, dead, err := authority.CutOff(t.Context(), operator, next.ClusterID, 2)
		require.NoError(t, err)
		require.Equal(t, "ok", verdict)
		require.EqualValues(t, 1, dead)
	}
}

// What an older generation signed is dead when the cut-off has committed, at a
// replica that has not heard of it, too; and it leaves nothing behind.
func TestCutOffEndsCapabilitiesInFlight(t *testing.T) {
	t.Parallel()
	h, cut := deaf(t)
	guard := h.Guard()
	w := h.Claim(h.Plan(h.Consent(h.Task("close"))))
	minted := w.Minted("a", "1")
	admitted := w.Minted("b", "2")
	attempt := authoritytest.NewAttempt()
	require.Equal(t, 200, guard.Admit(guard.Ask(w, admitted, "2", attempt)).Status)
	cut()
	was := h.Consumed()
	for name, send := range map[string]func() authoritytest.Answer{
		"renew":       w.Renew,
		"mint":        func() authoritytest.Answer { return w.Mint("c", "3") },
		"settle run":  func() authoritytest.Answer { return w.Settle("succeeded") },
		"admit":       func() authoritytest.Answer { return guard.Admit(guard.Ask(w, minted, "1", authoritytest.NewAttempt())) },
		"admit again": func() authoritytest.Answer { return guard.Admit(guard.Ask(w, admitted, "2", attempt)) },
		"settle":      func() authoritytest.Answer { return guard.Settle(admitted.Effect, attempt, "committed") },
		"guard nonces": func() authoritytest.Answer {
			return h.Send(h.Bearing(guard.Key, guard.Token, "POST", api.PathNonces, api.NoncesRequest{Count: 1}))
		},
	} {
		a, want := send(), api.InvalidToken
		if name == "settle run" {
			want = api.EffectsInFlight // it is refused anyway, and says why
		}
		assert.Equal(t, want, a.Problem().Code, "%s: %s", name, a.Body)
	}
	assert.Equal(t, was, h.Consumed())

	// The replica hears of it, has not the key that signs now, and stays as it is: nothing that it signs is good.
	_, err := h.Authority.Hold(t.Context(), h.Bundle)
	var wrong *keys.MaterialError
	require.ErrorAs(t, err, &wrong)
	a := h.Send(h.Request("GET", api.PathJWKS, "", nil))
	assert.Equal(t, api.Unavailable, a.Problem().Code, "a replica without the key that signs publishes nothing")

	// It gets the bundle, and all goes on.
	successor, err := keys.Open(h.KeysDir+".2", h.Identity)
	require.NoError(t, err)
	holds, err := h.Authority.Hold(t.Context(), successor)
	require.NoError(t, err)
	assert.Equal(t, []int64{2}, holds)
	assert.Equal(t, api.InvalidToken, w.Renew().Problem().Code)
	again := h.Guard()
	assert.Equal(t, 200, again.Settle(admitted.Effect, attempt, "committed").Status)
	require.Equal(t, 200, h.Send(h.Form(w.Key, authoritytest.ClaimForm(w.Run, h.Assertion(authoritytest.WorkerClaim)))).Status, "the holder claims anew")
}

// Nonces of an older generation are dead as well: whoever has the old nonce key
// can make fresh ones, which a replica that has not heard of it takes for good.
func TestCutOffEndsNonces(t *testing.T) {
	t.Parallel()
	h, cut := deaf(t)
	run := h.Plan(h.Consent(h.Task("close")))
	key := h.Key()
	member := h.Person(authoritytest.MemberName)
	before := h.Form(key, authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim)))
	cut()
	was := h.Consumed()
	after := h.Form(key, authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim)))
	assert.Equal(t, api.UseDPoPNonce, h.Send(before).Problem().Code, "made before")
	assert.Equal(t, api.UseDPoPNonce, h.Send(after).Problem().Code, "made after, with the key of before")
	assert.Equal(t, api.UseDPoPNonce, h.Send(member.Request("GET", api.PathOffers, "", nil)).Problem().Code)
	assert.Equal(t, was, h.Consumed())
	successor, err := keys.Open(h.KeysDir+".2", h.Identity)
	require.NoError(t, err)
	_, err = h.Authority.Hold(t.Context(), successor)
	require.NoError(t, err)
	require.Equal(t, 200, h.Send(h.Form(key, authoritytest.ClaimForm(run, h.Assertion(authoritytest.WorkerClaim)))).Status)
}

// Only a generation that signs or is published can stay.
func TestWhatMayBeCutOff(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	operator := h.DB.Pool(t, "nw_operator")
	id := h.Bundle.Identity()
	cut := func(generation int64) (string, int64) {
		verdict, dead, err := authority.CutOff(t.Context(), operator, id.ClusterID, generation)
		require.NoError(t, err)
		return verdict, dead
	}
	verdict, _ := cut(2)
	assert.Equal(t, "stale", verdict)
	verdict, dead := cut(1)
	assert.Equal(t, "ok", verdict)
	assert.Zero(t, dead, "there is nothing older")
	id.ClusterID[0] ^= 1
	verdict, _ = cut(1)
	assert.Equal(t, "foreign", verdict)
	assert.Equal(t, 200, h.Send(h.Request("GET", api.PathJWKS, "", nil)).Status)
}

// Without its check a verb admits what was cut off, and the tests above see that.
func TestAVerbThatForgetsTheCutOffIsCaught(t *testing.T) {
	t.Parallel()
	h, cut := deaf(t)
	h.Unsound()
	w := h.Claim(h.Plan(h.Consent(h.Task("close"))))
	h.Exec(`CREATE OR REPLACE FUNCTION nw.alive(p_verdict text, p_capability bigint, p_nonce bigint) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS 'BEGIN END'`)
	cut()
	assert.Equal(t, 200, w.Renew().Status)
}
