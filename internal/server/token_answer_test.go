package server_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// Stock clients read a refusal of the token endpoint only when it calls itself JSON (RFC 6749 §5.2), a challenge for a nonce included.
func TestTheTokenEndpointRefusesInJSON(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	form := authoritytest.ComponentForm(authoritytest.GuardName, h.Assertion(authoritytest.GuardClaim))
	for code, prove := range map[api.Code]func(*http.Request){
		api.UseDPoPNonce: func(r *http.Request) {
			proof, err := capability.NewProof(h.Key(), capability.ProofParams{Method: http.MethodPost, URL: h.URL + api.PathToken, Now: time.Now()})
			require.NoError(t, err)
			r.Header.Set(api.HeaderProof, proof)
		},
		api.InvalidDPoPProof: func(r *http.Request) { r.Header.Set(api.HeaderProof, "x.y.z") },
		api.InvalidRequest:   func(r *http.Request) { r.Header.Del(api.HeaderProof) },
	} {
		r := h.Form(h.Key(), form)
		prove(r)
		a := h.Send(r)
		assert.Equal(t, code, a.Problem().Code)
		assert.Equal(t, http.StatusBadRequest, a.Status)
		assert.Equal(t, "application/json", a.Header.Get("Content-Type"), code)
		assert.NotEmpty(t, a.Header.Get(api.HeaderNonce))
	}
}
