package attestation

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

const cluster = "https://cluster.example"

// seen is an assertion as Verify returns it: claims went through JSON.
func seen(t testing.TB, pairs ...any) Assertion {
	t.Helper()
	b, err := json.Marshal(projected(pairs...))
	require.NoError(t, err)
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	a := Assertion{Issuer: cluster, Audience: own, IssuedAt: start, Expires: start.Add(time.Hour)}
	require.NoError(t, d.Decode(&a.Claims))
	a.Subject = a.Claims["sub"].(string)
	return a
}

func profile(change func(p *Profile)) Profile {
	p := Profile{Name: "worker", Issuer: cluster, ServiceAccount: &ServiceAccount{Namespace: "night", Name: "worker"}, Binding: FirstKey}
	if change != nil {
		change(&p)
	}
	return p
}

func exact(change func(p *Profile)) Profile {
	return profile(func(p *Profile) {
		p.ServiceAccount, p.Subject = nil, account
		change(p)
	})
}

func requiring(pointer string, value any) Profile {
	return exact(func(p *Profile) { p.RequiredClaims = map[string]any{pointer: value} })
}

func TestProfileInvalid(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]Profile{
		"zero":               {},
		"no name":            profile(func(p *Profile) { p.Name = "" }),
		"no issuer":          profile(func(p *Profile) { p.Issuer = "" }),
		"no subject":         profile(func(p *Profile) { p.ServiceAccount = nil }),
		"two subjects":       profile(func(p *Profile) { p.Subject = account }),
		"no namespace":       profile(func(p *Profile) { p.ServiceAccount.Namespace = "" }),
		"no account":         profile(func(p *Profile) { p.ServiceAccount.Name = "" }),
		"colon in namespace": profile(func(p *Profile) { p.ServiceAccount.Namespace = "a:b" }),
		"pattern":            profile(func(p *Profile) { p.ServiceAccount.Name = "*" }),
		"pattern of pods":    profile(func(p *Profile) { p.ServiceAccount.Pod = "worker-*" }),
		"pod stands twice": profile(func(p *Profile) {
			p.ServiceAccount.Pod, p.RequiredClaims = "a", map[string]any{"/kubernetes.io/pod/name": "a"}
		}),
		"no binding":          profile(func(p *Profile) { p.Binding = "" }),
		"unknown binding":     profile(func(p *Profile) { p.Binding = "first-key" }),
		"long":                profile(func(p *Profile) { p.MaxLifetime = 25 * time.Hour }),
		"negative":            profile(func(p *Profile) { p.MaxLifetime = -1 }),
		"claim is no pointer": requiring("kubernetes.io", "x"),
		"claim is empty":      requiring("", "x"),
		"value null":          requiring("/a", nil),
		"value list":          requiring("/a", []any{"x"}),
		"value object":        requiring("/a", map[string]any{}),
		"value fraction":      requiring("/a", 1.5),
		"value huge":          requiring("/a", 1e300),
		"repeats namespace": profile(func(p *Profile) {
			p.RequiredClaims = map[string]any{"/kubernetes.io/namespace": "night"}
		}),
	} {
		require.Error(t, p.Validate(), name)
		requireReason(t, p.Matches(seen(t)), Unmatched, api.InvalidClient)
		requireReason(t, p.Matches(Assertion{}), Unmatched, api.InvalidClient)
	}
}

func TestProfileMatchesExactly(t *testing.T) {
	t.Parallel()
	k8s := func(namespace, name string) map[string]any {
		return map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": name}, "pod": map[string]any{"name": "worker-0", "uid": "u2"}, "node": map[string]any{"name": "node-1"}}
	}
	without := func(claim string) map[string]any {
		c := k8s("night", "worker")
		delete(c, claim)
		return c
	}
	on := func(pod, node string) Profile {
		return profile(func(p *Profile) { p.ServiceAccount.Pod, p.ServiceAccount.Node = pod, node })
	}
	jkt := capability.Thumbprint{1}
	for name, tc := range map[string]struct {
		p  Profile
		a  Assertion
		ok bool
	}{
		"service account": {profile(nil), seen(t), true},
		"subject":         {exact(func(*Profile) {}), seen(t), true},
		"audience":        {profile(func(p *Profile) { p.Audience = own }), seen(t), true},
		"lifetime":        {profile(func(p *Profile) { p.MaxLifetime = time.Hour }), seen(t), true},
		"claims": {exact(func(p *Profile) {
			p.RequiredClaims = map[string]any{"/kubernetes.io/pod/name": "worker-0", "/n": 7, "/b": true, "/a~1b~0c": "d"}
		}), seen(t, "n", 7, "b", true, "a/b~c", "d"), true},
		"claim as float64": {requiring("/n", float64(7)), seen(t, "n", 7), true},
		"named key":        {profile(func(p *Profile) { p.Binding = CNF }), bound(seen(t), jkt), true},
		"waived":           {profile(func(p *Profile) { p.Binding = Waived }), seen(t), true},

		"pod":          {on("worker-0", ""), seen(t), true},
		"pod and node": {on("worker-0", "node-1"), seen(t), true},

		"bound to nothing":        {profile(nil), seen(t, "kubernetes.io", without("pod")), false},
		"other pod":               {on("worker-1", ""), seen(t), false},
		"pod prefix":              {on("worker", ""), seen(t), false},
		"other node":              {on("", "node-2"), seen(t), false},
		"node not claimed":        {on("", "node-1"), seen(t, "kubernetes.io", without("node")), false},
		"other issuer":            {profile(func(p *Profile) { p.Issuer = cluster + "/" }), seen(t), false},
		"issuer prefix":           {profile(func(p *Profile) { p.Issuer = cluster[:10] }), seen(t), false},
		"other audience":          {profile(func(p *Profile) { p.Audience = "https://other.example" }), seen(t), false},
		"longer":                  {profile(func(p *Profile) { p.MaxLifetime = time.Hour - 1 }), seen(t), false},
		"no named key":            {profile(func(p *Profile) { p.Binding = CNF }), seen(t), false},
		"subject prefix":          {exact(func(p *Profile) { p.Subject = account[:20] }), seen(t), false},
		"subject longer":          {exact(func(p *Profile) { p.Subject = account + "2" }), seen(t), false},
		"subject pattern":         {exact(func(p *Profile) { p.Subject = "system:serviceaccount:night:*" }), seen(t), false},
		"subject case":            {exact(func(p *Profile) { p.Subject = strings.ToUpper(account) }), seen(t), false},
		"other namespace":         {profile(func(p *Profile) { p.ServiceAccount = &ServiceAccount{Namespace: "day", Name: "worker"} }), seen(t), false},
		"other account":           {profile(func(p *Profile) { p.ServiceAccount = &ServiceAccount{Namespace: "night", Name: "worker-2"} }), seen(t), false},
		"subject says otherwise":  {profile(nil), seen(t, "sub", "system:serviceaccount:day:worker"), false},
		"namespace not claimed":   {profile(nil), seen(t, "kubernetes.io", nil), false},
		"namespace claimed other": {profile(nil), seen(t, "kubernetes.io", k8s("day", "worker")), false},
		"account claimed other":   {profile(nil), seen(t, "kubernetes.io", k8s("night", "worker2")), false},
		"claims flattened":        {profile(nil), seen(t, "kubernetes.io", nil, "kubernetes.io/namespace", "night"), false},

		"claim absent":          {requiring("/team", "a"), seen(t), false},
		"claim prefix":          {requiring("/team", "a"), seen(t, "team", "ab"), false},
		"claim case":            {requiring("/team", "a"), seen(t, "team", "A"), false},
		"claim null":            {requiring("/team", "a"), seen(t, "team", (*int)(nil)), false},
		"claim in a list":       {requiring("/team", "a"), seen(t, "team", []any{"a"}), false},
		"claim by position":     {requiring("/team/0", "a"), seen(t, "team", []any{"a"}), false},
		"number for text":       {requiring("/n", "7"), seen(t, "n", 7), false},
		"text for number":       {requiring("/n", 7), seen(t, "n", "7"), false},
		"text for truth":        {requiring("/b", true), seen(t, "b", "true"), false},
		"number for truth":      {requiring("/b", true), seen(t, "b", 1), false},
		"other number":          {requiring("/n", 7), seen(t, "n", 8), false},
		"fraction":              {requiring("/n", 7), seen(t, "n", 7.5), false},
		"exponent":              {requiring("/n", 70), seen(t, "n", json.Number("7e1")), false},
		"the whole document":    {requiring("/", account), seen(t), false},
		"too deep":              {requiring("/sub/sub", account), seen(t), false},
		"one of two is missing": {exact(func(p *Profile) { p.RequiredClaims = map[string]any{"/a": "1", "/b": "2"} }), seen(t, "a", "1"), false},
		"zero assertion":        {profile(nil), Assertion{}, false},
	} {
		err := tc.p.Matches(tc.a)
		if tc.ok {
			require.NoError(t, err, name)
			require.NoError(t, tc.p.Validate(), name)
			continue
		}
		require.Error(t, err, name)
		requireReason(t, err, Unmatched, api.InvalidClient)
	}
}

func bound(a Assertion, jkt capability.Thumbprint) Assertion {
	a.JKT = &jkt
	return a
}

func TestMatchIsMembership(t *testing.T) {
	t.Parallel()
	first, second := profile(nil), exact(func(p *Profile) { p.Name = "exact" })
	other := exact(func(p *Profile) { p.Name, p.Subject = "other", "somebody" })
	all := []Profile{other, second, first}
	got, err := Match(all, seen(t))
	require.NoError(t, err)
	require.Equal(t, []Profile{second, first}, got, "all that match, in their order")
	require.Equal(t, "other", all[0].Name, "the caller's list is left alone")
	for _, none := range [][]Profile{nil, {}, {other}} {
		got, err = Match(none, seen(t))
		require.Empty(t, got)
		requireReason(t, err, Unmatched, api.InvalidClient)
	}
}

func TestServiceAccountsCannotBeConfused(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-z][a-z0-9-]{0,8}`)
	rapid.Check(t, func(rt *rapid.T) {
		ns, sa, ns2, sa2 := name.Draw(rt, "ns"), name.Draw(rt, "sa"), name.Draw(rt, "ns2"), name.Draw(rt, "sa2")
		a := seen(t, "sub", "system:serviceaccount:"+ns+":"+sa, "kubernetes.io",
			map[string]any{"namespace": ns, "serviceaccount": map[string]any{"name": sa}, "pod": map[string]any{"uid": "u2"}})
		err := profile(func(p *Profile) { p.ServiceAccount = &ServiceAccount{Namespace: ns2, Name: sa2} }).Matches(a)
		require.Equal(rt, ns == ns2 && sa == sa2, err == nil)
	})
}

// One issuer's workload never matches a profile of another issuer, whatever else agrees.
func TestProfileOfAnotherCluster(t *testing.T) {
	t.Parallel()
	blue, green := jwkstest.New(t), jwkstest.New(t)
	v := verifierFor(t, blue, green)
	p := profile(func(p *Profile) { p.Issuer = blue.URL })
	a, err := v.Verify(t.Context(), blue.Token(projected()))
	require.NoError(t, err)
	require.NoError(t, p.Matches(a))
	a, err = v.Verify(t.Context(), green.Token(projected()))
	require.NoError(t, err)
	requireReason(t, p.Matches(a), Unmatched, api.InvalidClient)
}
