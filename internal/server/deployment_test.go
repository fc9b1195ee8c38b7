package server_test

import (
	"encoding/base64"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// What a guard says that it runs reaches an auditor as it was said, but for text that the database does not keep.
func TestDeployment(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Open()
	key := h.Key()
	var out api.TokenResponse
	h.Into(h.Send(h.Form(key, authoritytest.ComponentForm("ledger", h.Assertion(authoritytest.GuardClaim)))), &out)
	sequence := int64(0)
	report := func(b *api.Build) authoritytest.Answer {
		sequence++
		return h.Send(h.Bearing(key, capability.Token(out.AccessToken), "PUT", api.PathReports+"guards",
			api.Report{Sequence: sequence, Healthy: true, Protocol: api.GuardProtocol, Catalogue: authoritytest.Catalogue(), Build: b}))
	}
	binary := base64.RawURLEncoding.EncodeToString(make([]byte, 31)) // and one short of a digest
	assert.Equal(t, http.StatusBadRequest, report(&api.Build{BinarySHA256: binary}).Status)
	assert.Equal(t, http.StatusBadRequest, report(&api.Build{}).Status)

	digest := base64.RawURLEncoding.EncodeToString(append(make([]byte, 31), 7))
	build := api.Build{BinarySHA256: digest, Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}
	require.Equal(t, http.StatusNoContent, report(&build).Status)
	assert.Equal(t, &build, ledgerOf(t, h).Build)
	require.Equal(t, http.StatusNoContent, report(nil).Status)
	assert.Equal(t, &build, ledgerOf(t, h).Build, "a report without one takes nothing back")
	require.Equal(t, http.StatusNoContent, report(&api.Build{BinarySHA256: digest, Go: "devel <script>", Module: "mine"}).Status)
	assert.Equal(t, &api.Build{BinarySHA256: digest, Module: "unknown"}, ledgerOf(t, h).Build)
}

func ledgerOf(t *testing.T, h *authoritytest.House) (found api.Replica) {
	t.Helper()
	var d api.Deployment
	require.NoError(t, h.Person(authoritytest.AuditorName).JSON("GET", api.PathDeployment, nil, &d))
	require.Len(t, d.Identity.Generations, 1)
	g := d.Identity.Generations[0]
	assert.Equal(t, api.Generation{Generation: 1, State: "current", KeyID: g.KeyID, Provenance: g.Provenance, PublishedAt: g.PublishedAt, ActivatedAt: g.ActivatedAt, Replicas: g.Replicas, Lacking: g.Lacking}, g)
	assert.Len(t, g.KeyID, 43)
	assert.NotNil(t, g.ActivatedAt)
	assert.Zero(t, d.Uncertain)
	for _, r := range d.Replicas {
		if r.Component == "ledger" && r.Build != nil {
			assert.Equal(t, "guard", r.Kind)
			assert.True(t, r.Live)
			require.NotNil(t, r.BuildSince)
			assert.WithinRange(t, *r.BuildSince, r.Since, d.At)
			found = r
		}
	}
	return found
}
