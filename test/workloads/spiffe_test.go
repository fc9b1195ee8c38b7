package workloads

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/worker"
	"github.com/nightwarrant/nightwarrant/worker/spiffe"
	"github.com/nightwarrant/nightwarrant/worker/spiffe/spiffetest"
)

// domains are the example's two trust domains with agents of their own, which both call their key "one".
func domains(t *testing.T) (prod, partner *spiffetest.Agent, trust authoritytest.Trust) {
	t.Helper()
	prod = spiffetest.New(t, "prod.example", "/ns/nightly/worker", "/ns/guards/ledger", "/ns/nightly/other")
	partner = spiffetest.New(t, "partner.example", "/worker")
	bundle := filepath.Join(t.TempDir(), "partner.json")
	require.NoError(t, os.WriteFile(bundle, partner.Keys.Set(), 0o600))
	for _, i := range issuers(t, "spiffe/issuers.yaml") {
		at := jwks.Issuer{URL: i.URL, JWKSURL: i.JWKSURL, File: i.JWKSFile, Algorithms: i.Algorithms}
		_, err := jwks.New(jwks.Config{Own: "https://night.example", Issuers: []jwks.Issuer{at}})
		require.NoError(t, err, i.URL)
		if at.File != "" {
			at.File = bundle
		} else {
			at.JWKSURL = prod.Keys.JWKSURL()
		}
		trust.Issuers = append(trust.Issuers, at)
	}
	require.Len(t, trust.Issuers, 2)
	return prod, partner, trust
}

func TestTrustDomains(t *testing.T) {
	t.Parallel()
	prod, partner, trust := domains(t)
	h := house(t, trust, example(t, "spiffe/profiles.yaml"), "spiffe-worker", "spiffe-guard", "spiffe-partner")
	worker, guard := prod.Domain+"/ns/nightly/worker", prod.Domain+"/ns/guards/ledger"
	before := h.Consumed()
	for _, kind := range []string{api.AssertionJWTSPIFFE, api.AssertionJWTBearer} {
		for name, svid := range map[string]string{
			"another trust domain's key of that name": partner.SVID("one", worker, h.URL),
			"another workload":                        prod.SVID("one", prod.Domain+"/ns/nightly/other", h.URL),
			"a longer path":                           prod.SVID("one", worker+"/2", h.URL),
			"another path":                            prod.SVID("one", prod.Domain+"/worker", h.URL),
			"that path in the other domain":           partner.SVID("one", partner.Domain+"/ns/nightly/worker", h.URL),
			"a trust domain that nobody configured":   prod.SVID("one", "spiffe://test.example/ns/nightly/worker", h.URL),
			"an audience too many":                    prod.SVID("one", worker, h.URL, "https://other.example"),
			"another audience":                        prod.SVID("one", worker, "https://other.example"),
			"no id":                                   prod.SVID("one", "ns/nightly/worker", h.URL),
		} {
			refused(h, before, name, api.InvalidClient, prove(h, h.Key(), "spiffe-worker", kind, svid))
		}
		refused(h, before, "another product's", api.InvalidClient, prove(h, h.Key(), "spiffe-guard", kind, prod.SVID("one", worker, h.URL)))
	}
	for _, kind := range []string{api.AssertionJWTSPIFFE, api.AssertionJWTBearer} {
		accepted(h, kind, prove(h, h.Key(), "spiffe-worker", kind, prod.SVID("one", worker, h.URL)))
		accepted(h, "from the file", prove(h, h.Key(), "spiffe-partner", kind, partner.SVID("one", partner.Domain+"/worker", h.URL)))
	}
	shared := prod.SVID("one", worker, h.URL)
	accepted(h, "a shared SVID", prove(h, h.Key(), "spiffe-worker", api.AssertionJWTSPIFFE, shared))
	accepted(h, "with another key", prove(h, h.Key(), "spiffe-worker", api.AssertionJWTSPIFFE, shared))
	owned := prod.SVID("one", guard, h.URL)
	accepted(h, "an SVID that is owned", prove(h, h.Key(), "spiffe-guard", api.AssertionJWTSPIFFE, owned))
	before = h.Consumed()
	refused(h, before, "by another key", api.AssertionBound, prove(h, h.Key(), "spiffe-guard", api.AssertionJWTSPIFFE, owned))
}

func open(t *testing.T, agent *spiffetest.Agent, h *authoritytest.House, id string) *spiffe.Source {
	t.Helper()
	s, err := spiffe.Open(t.Context(), spiffe.Config{Socket: agent.Socket, Audience: h.URL, ID: id})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

// role lets workloads of that profile run the standard registry's task.
func role(profile string) string {
	return `---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 2
profiles: [` + profile + `]
actions:
  - {guard: ledger, action: row.append}
  - {guard: ledger, action: row.delete}
limits: {max_runtime_s: 3600, max_effects: 10}
`
}

func consented(h *authoritytest.House) (task string) {
	return h.Consent(strings.Replace(h.Task("close"), "role_revision: 1", "role_revision: 2", 1))
}

// claim claims a run with what a source says.
func claim(h *authoritytest.House, k *capability.Key, run, kind string, from func(context.Context) (string, error)) authoritytest.Answer {
	h.T.Helper()
	assertion, err := from(context.Background())
	require.NoError(h.T, err)
	form := authoritytest.ClaimForm(run, assertion)
	form.Set("client_assertion_type", kind)
	return h.Send(h.Form(k, form))
}

// A run is claimed with a JWT-SVID of an agent. The SVID is replaced and even the agent fails in the middle of the run:
// what is done then needs the run's capability only.
func TestSVIDRotatedInTheMiddleOfARun(t *testing.T) {
	t.Parallel()
	prod, partner, trust := domains(t)
	h := house(t, trust, example(t, "spiffe/profiles.yaml")+role("spiffe-worker"))
	run, k := h.Plan(consented(h)), h.Key()
	ours, theirs := open(t, prod, h, prod.Domain+"/ns/nightly/worker"), open(t, partner, h, "")
	before := h.Consumed()
	refused(h, before, "another trust domain", api.InvalidClient, claim(h, k, run, api.AssertionJWTSPIFFE, func(context.Context) (string, error) {
		return partner.SVID("one", prod.Domain+"/ns/nightly/worker", h.URL), nil
	}))
	refused(h, before, "a workload of another trust domain", api.UnknownRun, claim(h, k, run, api.AssertionJWTSPIFFE, theirs.Assertion))
	var claimed api.TokenResponse
	h.Into(claim(h, k, run, api.AssertionJWTSPIFFE, ours.Assertion), &claimed)

	first, err := ours.Assertion(t.Context())
	require.NoError(t, err)
	prod.Rotate()
	second, err := ours.Assertion(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, first, second)
	prod.Answer(func() (string, error) { return "", status.Error(codes.Unavailable, "rotating") })

	token := capability.Token(claimed.AccessToken)
	var renewed, minted api.TokenResponse
	h.Into(h.Send(h.Bearing(k, token, http.MethodPost, api.PathRenew, api.RenewRequest{})), &renewed)
	token = capability.Token(renewed.AccessToken)
	require.Equal(t, claimed.Run.Fence, renewed.Run.Fence)
	h.Into(h.Send(h.Form(k, authoritytest.MintForm(token, "debit", "a"))), &minted)
	require.NotEmpty(t, minted.AccessToken)
	var receipt api.Receipt
	h.Into(h.Send(h.Bearing(k, token, http.MethodPost, api.PathSettleRun, api.SettleRunRequest{Result: "failed"})), &receipt)
}

// one hands out one reference at a time.
type one struct{ references chan string }

type message string

func (m message) Reference() string     { return string(m) }
func (message) Ack() error              { return nil }
func (message) Nak(time.Duration) error { return nil }

func (o one) Pull(ctx context.Context) (worker.Message, error) {
	select {
	case r := <-o.references:
		return message(r), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A worker of the SDK that asks an agent claims one run after the other, also with the SVID that came between them.
func TestWorkerBySPIFFE(t *testing.T) {
	t.Parallel()
	prod, _, trust := domains(t)
	h := house(t, trust, example(t, "spiffe/profiles.yaml")+role("spiffe-worker"))
	queue := one{make(chan string)}
	w, err := worker.New(worker.Config{Authority: h.URL, Client: "books", Assertion: open(t, prod, h, prod.Domain+"/ns/nightly/worker").Assertion,
		AssertionType: api.AssertionJWTSPIFFE, Source: queue})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	held := make(chan string)
	var working sync.WaitGroup
	working.Go(func() {
		assert.NoError(t, w.Run(ctx, func(_ context.Context, run *worker.Run) error {
			held <- run.Reference()
			return nil
		}))
	})
	task := consented(h)
	for range 2 {
		run := h.Plan(task)
		queue.references <- run
		require.Equal(t, run, <-held)
		prod.Rotate()
		require.Eventually(t, func() bool { return h.Count(`SELECT count(*) FROM nw.runs WHERE ended_at IS NULL`) == 0 }, time.Minute, 10*time.Millisecond)
	}
	stop()
	working.Wait()
	require.Equal(t, 2, prod.Asked())
}

func TestExamplesOfSPIFFE(t *testing.T) {
	t.Parallel()
	noEnv := func(string) string { return "" }
	var w config.Worker
	require.NoError(t, config.Parse("worker.yaml", []byte(example(t, "spiffe/worker.yaml")), &w, noEnv))
	assert.Contains(t, example(t, "spiffe/profiles.yaml"), "subject: "+w.Assertion.SPIFFE.ID+"\n")
	_, err := config.ParseGuard("guard.yaml", []byte(example(t, "spiffe/guard.yaml")), noEnv)
	require.ErrorContains(t, err, "database_url_file", "nothing else is wrong with it")
	assert.Contains(t, example(t, "spiffe/guard.yaml"), "id: spiffe://prod.example/ns/guards/ledger\n")
}
