package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

func requirement(generation int, lines ...string) []byte {
	return []byte(fmt.Sprintf("kind: Requirement\nname: readiness\ngeneration: %d\nprotocols: [1]\n%s\n", generation, strings.Join(lines, "\n")))
}

const printing = `
kind: AttestationProfile
name: printing
issuer: WORKLOADS
subject: system:serviceaccount:print:probe
binding: first_key
max_lifetime_s: 3600
---
kind: Reporter
name: printing-probe
title: Looks at the printers
profile: printing
families: [printing]
`

// A14, A17: what must be good is a document with a generation; a new one closes, and only operators apply it.
func TestARequirementIsApplied(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	apply := func(who string, body []byte) (out api.Applied, err error) {
		return out, h.Person(who).Do("POST", api.PathRegistry, "application/yaml", body, &out)
	}
	refused := func(code api.Code, who string, body []byte) {
		t.Helper()
		before := h.Count(`SELECT count(*) FROM nw.readiness_requirements`) + h.Count(`SELECT epoch FROM nw.readiness_decision`)
		_, err := apply(who, body)
		assert.Equal(t, code, codeOf(err), "%v", err)
		assert.Equal(t, before, h.Count(`SELECT count(*) FROM nw.readiness_requirements`)+h.Count(`SELECT epoch FROM nw.readiness_decision`))
	}
	refused(api.Forbidden, authoritytest.MemberName, requirement(2))
	refused(api.RevisionStale, authoritytest.OperatorName, requirement(3))
	refused(api.InvalidDocument, authoritytest.OperatorName, requirement(2, "families: [{family: printing, minimum: 1}]"))
	refused(api.InvalidDocument, authoritytest.OperatorName, requirement(2, "profiles: [nobody]"))
	refused(api.InvalidDocument, authoritytest.OperatorName, append(append(requirement(2), "---\n"...), requirement(3)...))

	epoch := h.Count(`SELECT epoch FROM nw.readiness_decision`)
	out, err := apply(authoritytest.OperatorName, requirement(2, "closed_ms: 1000", "profiles: [bookkeeper, ledger-guard]", "families: [{family: queue, minimum: 2}]"))
	require.NoError(t, err)
	assert.Equal(t, []api.AppliedDocument{{Kind: "Requirement", Name: "readiness", Revision: 2, Result: "entered"}}, out.Documents)
	assert.Equal(t, epoch+1, h.Count(`SELECT epoch FROM nw.readiness_decision WHERE state = 'closed' AND requirement = 2 AND reason = 'requirement'`))

	out, err = apply(authoritytest.OperatorName, requirement(2, "closed_ms: 1000", "profiles: [bookkeeper, ledger-guard]", "families: [{family: queue, minimum: 2}]"))
	require.NoError(t, err)
	assert.Equal(t, "unchanged", out.Documents[0].Result)
	refused(api.RevisionImmutable, authoritytest.OperatorName, requirement(2))
	assert.Equal(t, api.InvalidRequest, codeOf(h.Person(authoritytest.OperatorName).JSON("POST", api.PathRetire, api.RetireRequest{Kind: "Requirement", Name: "readiness", Revision: 2}, nil)),
		"what is required is replaced, never retired")
}

// A14, A15: a profile that the requirement lists closes admission in the commit that retires it.
func TestRetiringARequiredProfileCloses(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	p := h.Person(authoritytest.OperatorName)
	require.NoError(t, p.Do("POST", api.PathRegistry, "application/yaml", requirement(2, "profiles: [bookkeeper, ledger-guard]"), nil))
	h.Open()
	require.NoError(t, p.JSON("POST", api.PathRetire, api.RetireRequest{Kind: "AttestationProfile", Name: "ledger-guard", Revision: 1}, nil))
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.readiness_decision WHERE state = 'closed' AND reason = 'profile' AND family = 'attestation'`))
}

// A14: reports are authenticated as the reporting workload. Forged, replayed, older and malformed ones change nothing and are audited.
func TestReportsOfAReporter(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Apply(strings.ReplaceAll(printing, "WORKLOADS", h.Workloads.URL))
	require.NoError(t, h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", requirement(2, "families: [{family: printing, minimum: 1}]"), nil))
	h.Open()
	component := func(name, subject string) (*capability.Key, capability.Token) {
		key := h.Key()
		var out api.TokenResponse
		h.Into(h.Send(h.Form(key, authoritytest.ComponentForm(name, h.Assertion(subject)))), &out)
		return key, capability.Token(out.AccessToken)
	}
	key, token := component("printing-probe", "system:serviceaccount:print:probe")
	guardKey, guardToken := component("ledger", authoritytest.GuardClaim)
	put := func(k *capability.Key, token capability.Token, family string, r api.Report) func() authoritytest.Answer {
		return func() authoritytest.Answer { return h.Send(h.Bearing(k, token, "PUT", api.PathReports+family, r)) }
	}
	good := api.Report{Sequence: 1, Healthy: true}
	audited := func(code api.Code, send func() authoritytest.Answer) {
		t.Helper()
		rows := h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'report' AND verdict = $1`, string(code))
		refusedWith(t, h, code, send)
		assert.Equal(t, rows+1, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'report' AND verdict = $1`, string(code)), code)
	}
	for _, family := range []string{"store", "queue", "guards", "directory", "weather", strings.Repeat("x", 64)} {
		audited(api.UnknownFamily, put(key, token, family, good))
	}
	audited(api.UnknownFamily, put(guardKey, guardToken, "printing", api.Report{Sequence: 1, Healthy: true, Protocol: 1}))
	audited(api.InvalidRequest, put(key, token, strings.Repeat("x", 65), good))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: 0, Healthy: true}))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: -1, Healthy: true}))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: 1, Healthy: true, AgeMS: -1}))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: 1, Healthy: true, AgeMS: 1 << 50}))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: 1, Healthy: true, MaxFence: -1}))
	audited(api.InvalidRequest, put(key, token, "printing", api.Report{Sequence: 1, Healthy: true, MaxAdmission: 1<<52 + 1}))
	audited(api.InvalidRequest, put(guardKey, guardToken, "guards", api.Report{Sequence: 1, Healthy: true, Protocol: 1 << 20}))
	audited(api.InvalidRequest, put(guardKey, guardToken, "guards", api.Report{Sequence: 1, Healthy: true, Protocol: 1, Models: []string{"sha256:abc"}}))
	refusedWith(t, h, api.InvalidToken, put(h.Key(), token, "printing", good)) // a stolen capability
	refusedWith(t, h, api.InvalidToken, put(key, guardToken, "printing", good))
	refusedWith(t, h, api.PayloadTooLarge, put(guardKey, guardToken, "guards", api.Report{Sequence: 1, Models: make([]string, 40_000)}))

	assert.NotContains(t, h.Log.String(), "a request failed")

	assert.Equal(t, http.StatusNoContent, put(key, token, "printing", good)().Status)
	audited(api.ReportStale, put(key, token, "printing", good))
	old, oldToken := key, token
	key, token = component("printing-probe", "system:serviceaccount:print:probe")
	if h.Count(`SELECT count(*) FROM nw.instances i JOIN nw.registry g ON g.id = i.component_id WHERE g.kind = 'reporter'`) == 1 {
		audited(api.BootSuperseded, put(old, oldToken, "printing", api.Report{Sequence: 99, Healthy: true}))
	}
	epoch := h.Count(`SELECT epoch FROM nw.readiness_decision WHERE state = 'open'`)
	assert.Equal(t, http.StatusNoContent, put(key, token, "printing", api.Report{Sequence: 1, Reason: "unreachable"})().Status)
	assert.Equal(t, epoch+1, h.Count(`SELECT epoch FROM nw.readiness_decision WHERE state = 'closed' AND reason = 'unreachable' AND family LIKE 'x\_%'`), "bad news close at once")
}
