package planted

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// A replica's copy of the decision says open for up to a second after a close. It admits nothing: the verb reads the row itself (design.md §8).
func TestAnOpenCopyAdmitsNothing(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	run := h.Plan(h.Consent(h.Task("race")))
	replica, gate, _ := h.Replica(h.Bundle) // nobody but this test makes it look
	require.Eventually(t, func() bool {
		h.Open()
		_, err := gate.Current(context.Background())
		require.NoError(t, err)
		h.Close()
		key, assertion := h.Key(), authority.ClientAssertion{Type: api.AssertionJWTBearer, Token: capability.Token(h.Assertion(authoritytest.WorkerClaim))}
		_, err = replica.Claim(context.Background(), authority.Call{Proof: h.Proof(key, "POST", api.PathToken, ""), Method: "POST", URL: h.URL + api.PathToken}, run, "", assertion)
		refusal, _ := errors.AsType[*api.Refusal](err)
		require.NotNil(t, refusal, "what the copy says was believed: %v", err)
		require.Equal(t, api.AdmissionClosed, refusal.Code)
		return gate.Known().Open // or the copy was too old to say anything
	}, patience, 1)
	require.Zero(t, h.Count(`SELECT count(*) FROM nw.runs WHERE state <> 'queued'`))
}
