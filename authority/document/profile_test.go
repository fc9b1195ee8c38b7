package document

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProfileOfAServiceAccount(t *testing.T) {
	t.Parallel()
	of := func(issuer string, a ServiceAccount) *AttestationProfile {
		return &AttestationProfile{Header: Header{KindProfile, "a"}, Issuer: issuer, ServiceAccount: a, Binding: BindFirstKey, MaxLifetimeS: 3600}
	}
	const cluster = "https://cluster.example"
	for name, p := range map[string]*AttestationProfile{
		"neither":      of(cluster, ServiceAccount{}),
		"no namespace": of(cluster, ServiceAccount{Name: "sweeper"}),
		"no name":      of(cluster, ServiceAccount{Namespace: "nightly"}),
		"only a pod":   of(cluster, ServiceAccount{Pod: "a"}),
		"colon":        of(cluster, ServiceAccount{Namespace: "nightly:sweeper", Name: "a"}),
		"pattern":      of(cluster, ServiceAccount{Namespace: "nightly", Name: "sweep*"}),
		"upper case":   of(cluster, ServiceAccount{Namespace: "nightly", Name: "Sweeper"}),
		"pod":          of(cluster, ServiceAccount{Namespace: "nightly", Name: "sweeper", Pod: "sweeper/0"}),
		"node":         of(cluster, ServiceAccount{Namespace: "nightly", Name: "sweeper", Node: "-"}),
		"of a domain":  of("spiffe://prod.example", ServiceAccount{Namespace: "nightly", Name: "sweeper"}),
	} {
		assert.Error(t, p.Validate(), name)
	}
	good := of(cluster, ServiceAccount{"nightly", "sweeper", "sweeper-0", "node-1.example"})
	require.NoError(t, good.Validate())
	b, err := Canonical(good)
	require.NoError(t, err)
	assert.JSONEq(t, `{"kind":"AttestationProfile","name":"a","issuer":"https://cluster.example","binding":"first_key","max_lifetime_s":3600,
		"service_account":{"namespace":"nightly","name":"sweeper","pod":"sweeper-0","node":"node-1.example"}}`, string(b))
	back, err := ParseJSON(b)
	require.NoError(t, err)
	assert.Equal(t, good, back)
}

func TestProfileOfATrustDomain(t *testing.T) {
	t.Parallel()
	of := func(subject string) *AttestationProfile {
		return &AttestationProfile{Header: Header{KindProfile, "a"}, Issuer: "spiffe://prod.example", Subject: subject, Binding: BindNone, MaxLifetimeS: 300}
	}
	require.NoError(t, of("spiffe://prod.example/ns/diary").Validate())
	for _, subject := range []string{"", "diary", "spiffe://prod.example", "spiffe://prod.example/", "spiffe://prod.example.org/diary", "spiffe://test.example/diary", "spiffe://prod.example/*"} {
		assert.Error(t, of(subject).Validate(), subject)
	}
}
