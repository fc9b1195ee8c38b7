//go:build spire

package spire

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/worker/spiffe"
)

func TestMain(m *testing.M) { teststack.Main(m) }

const registered = `kind: AttestationProfile
name: worker
issuer: spiffe://prod.example
subject: spiffe://prod.example/ns/nightly/worker
binding: first_key
max_lifetime_s: 3600
---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 2
profiles: [worker]
actions:
  - {guard: ledger, action: row.append}
  - {guard: ledger, action: row.delete}
limits: {max_runtime_s: 3600, max_effects: 10}
`

const life = 20 * time.Second // of an SVID; the agent replaces it when half of that is over

// story is what happened, as a table.
type story struct{ rows []string }

func (s *story) tell(step, outcome string) {
	s.rows = append(s.rows, fmt.Sprintf("%-58s | %s", step, outcome))
}

// A run is claimed with an SVID of a real agent, which replaces it in the middle of the run; another trust domain's is refused.
func TestStory(t *testing.T) {
	require.NotEmpty(t, os.Getenv("NIGHTWARRANT_SPIRE"), "make spire builds the servers and says where they are")
	var s story
	prod, partner := serve(t, "prod.example"), serve(t, "partner.example")
	prod.attest()
	prod.register("/ns/nightly/worker", life)
	bundle := filepath.Join(t.TempDir(), "partner.json")
	require.NoError(t, os.WriteFile(bundle, partner.must("bundle", "show", "-format", "spiffe"), 0o600))
	h := authoritytest.Trusting(t, authoritytest.Trust{Issuers: []jwks.Issuer{
		{URL: "spiffe://prod.example", JWKSURL: prod.bundleURL, Roots: prod.roots, Algorithms: []string{"ES256"}},
		{URL: "spiffe://partner.example", File: bundle, Algorithms: []string{"ES256"}}}})
	h.Apply(authoritytest.Registry(h.Workloads.URL))
	h.Apply(registered)
	h.Open()
	task := h.Consent(strings.Replace(h.Task("close"), "role_revision: 1", "role_revision: 2", 1))
	source, err := spiffe.Open(t.Context(), spiffe.Config{Socket: prod.path("agent.sock"), Audience: h.URL})
	require.NoError(t, err)
	defer source.Close() //nolint:errcheck // the test ends

	var first string
	prod.eventually(func() bool { first, err = source.Assertion(t.Context()); return err == nil })
	s.tell("agent attested by join token, workload by unix uid", "JWT-SVID of "+prod.id("/ns/nightly/worker"))
	run, k, before := h.Plan(task), h.Key(), h.Consumed()
	theirs := strings.TrimSpace(string(partner.must("jwt", "mint", "-spiffeID", partner.id("/ns/nightly/worker"), "-audience", h.URL)))
	a := claim(h, k, run, theirs)
	require.Equal(t, api.InvalidClient, a.Problem().Code, "%s", a.Body)
	require.Equal(t, before, h.Consumed())
	s.tell("claim with an SVID of partner.example, same path", string(a.Problem().Code)+", nothing consumed")

	var claimed, renewed, minted api.TokenResponse
	h.Into(claim(h, k, run, first), &claimed)
	s.tell("claim with the SVID", fmt.Sprintf("fence %d", claimed.Run.Fence))
	a = claim(h, h.Key(), run, first)
	require.Contains(t, []api.Code{api.AssertionBound, api.Held}, a.Problem().Code, "%s", a.Body)
	s.tell("the same SVID, by a thief's key", string(a.Problem().Code))

	second := first
	prod.eventually(func() bool { second, err = source.Assertion(t.Context()); return err == nil && second != first })
	s.tell("the agent replaces the SVID in the middle of the run", "another token")
	h.Into(h.Send(h.Bearing(k, capability.Token(claimed.AccessToken), http.MethodPost, api.PathRenew, api.RenewRequest{})), &renewed)
	h.Into(h.Send(h.Form(k, authoritytest.MintForm(capability.Token(renewed.AccessToken), "debit", "a"))), &minted)
	require.Equal(t, claimed.Run.Fence, renewed.Run.Fence)
	require.NotEmpty(t, minted.AccessToken)
	s.tell("renew and mint afterwards", fmt.Sprintf("fence %d, effect %s", renewed.Run.Fence, minted.Effect))
	h.Into(h.Send(h.Bearing(k, capability.Token(renewed.AccessToken), http.MethodPost, api.PathSettleRun, api.SettleRunRequest{Result: "failed"})), nil)

	var again api.TokenResponse
	h.Into(claim(h, h.Key(), h.Plan(task), second), &again)
	s.tell("claim of the next run, new SVID and new key", fmt.Sprintf("fence %d", again.Run.Fence))
	assert.Greater(t, again.Run.Fence, claimed.Run.Fence)
	fmt.Print("\n" + strings.Join(s.rows, "\n") + "\n\n") // what make spire shows
}

func claim(h *authoritytest.House, k *capability.Key, run, svid string) authoritytest.Answer {
	h.T.Helper()
	form := authoritytest.ClaimForm(run, svid)
	form.Set("client_assertion_type", api.AssertionJWTSPIFFE)
	return h.Send(h.Form(k, form))
}
