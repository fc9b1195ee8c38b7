package workloads

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

type claims = map[string]any

// platform is one that issues tokens: what a good one says, and what its neighbours' say instead.
type platform struct {
	profile, issuer string
	lives           time.Duration
	good            claims
	neighbours      map[string]claims
}

// within changes one member of a nested claim.
func within(c claims, name string, changed claims) claims {
	inner := maps.Clone(c[name].(claims))
	maps.Copy(inner, changed)
	return claims{name: inner}
}

func github() platform {
	return platform{profile: "github-nightly", issuer: "https://token.actions.githubusercontent.com", lives: 5 * time.Minute, good: claims{
		"sub": "repo:octo-org/octo-repo:ref:refs/heads/main", "ref": "refs/heads/main", "ref_type": "branch", "ref_protected": "true", "sha": "2d1c5b3f0a9e8d7c6b5a49382716f5e4d3c2b1a0",
		"repository": "octo-org/octo-repo", "repository_id": "74", "repository_owner": "octo-org", "repository_owner_id": "65", "repository_visibility": "private",
		"run_id": "1234567890", "run_number": "10", "run_attempt": "1", "actor": "octocat", "actor_id": "12", "workflow": "nightly", "event_name": "schedule",
		"workflow_ref": "octo-org/octo-repo/.github/workflows/nightly.yml@refs/heads/main", "workflow_sha": "2d1c5b3f0a9e8d7c6b5a49382716f5e4d3c2b1a0",
		"job_workflow_ref": "octo-org/octo-repo/.github/workflows/nightly.yml@refs/heads/main", "runner_environment": "github-hosted", "head_ref": "", "base_ref": ""},
		neighbours: map[string]claims{
			"a fork":                          {"sub": "repo:mallory/octo-repo:ref:refs/heads/main", "repository": "mallory/octo-repo", "repository_id": "99", "repository_owner_id": "98"},
			"a repository that took the name": {"repository_id": "99", "repository_owner_id": "98"},
			"a pull request":                  {"sub": "repo:octo-org/octo-repo:pull_request", "event_name": "pull_request", "ref": "refs/pull/1/merge"},
			"another branch":                  {"sub": "repo:octo-org/octo-repo:ref:refs/heads/main2", "ref": "refs/heads/main2"},
			"a tag":                           {"sub": "repo:octo-org/octo-repo:ref:refs/tags/main", "ref": "refs/tags/main"},
			"an environment":                  {"sub": "repo:octo-org/octo-repo:environment:production"},
			"another workflow":                {"workflow_ref": "octo-org/octo-repo/.github/workflows/other.yml@refs/heads/main"},
			"the workflow of a branch":        {"workflow_ref": "octo-org/octo-repo/.github/workflows/nightly.yml@refs/heads/other"},
			"by hand":                         {"event_name": "workflow_dispatch"},
			"a machine of their own":          {"runner_environment": "self-hosted"},
			"a number for a text":             {"repository_id": 74},
			"letter case":                     {"sub": "repo:Octo-Org/octo-repo:ref:refs/heads/main"},
		}}
}

func gcp() platform {
	p := platform{profile: "gcp-nightly", issuer: "https://accounts.google.com", lives: time.Hour, good: claims{
		"sub": "112233445566778899000", "azp": "112233445566778899000", "email": "nightly@example-project.iam.gserviceaccount.com", "email_verified": true,
		"google": claims{"compute_engine": claims{"project_id": "example-project", "project_number": 739419398126, "zone": "europe-west3-b", "instance_id": "152986662232938449",
			"instance_name": "nightly-1", "instance_creation_timestamp": 1780000000, "license_id": []string{"1000201"}}}}}
	p.neighbours = map[string]claims{
		"another account":            {"sub": "112233445566778899001", "azp": "112233445566778899001"},
		"a person of that address":   {"email_verified": false},
		"another address":            {"email": "nightly@other-project.iam.gserviceaccount.com"},
		"not on a machine":           {"google": nil},
		"a machine of another owner": within(p.good, "google", claims{"compute_engine": claims{"project_id": "other-project"}}),
		"truth as a text":            {"email_verified": "true"},
	}
	return p
}

func aws() platform {
	const sts = "https://sts.amazonaws.com/"
	p := platform{profile: "aws-nightly", issuer: "https://abc123-def456-ghi789-jkl012.tokens.sts.global.api.aws", lives: 5 * time.Minute, good: claims{
		"sub": "arn:aws:iam::123456789012:role/Nightly",
		sts:   claims{"aws_account": "123456789012", "source_region": "eu-central-1", "org_id": "o-abc1234567", "principal_tags": claims{"team": "books"}, "request_tags": claims{"job": "nightly"}}}}
	p.neighbours = map[string]claims{
		"another role":         {"sub": "arn:aws:iam::123456789012:role/Daily"},
		"a role of its prefix": {"sub": "arn:aws:iam::123456789012:role/Nightly2"},
		"another account":      within(p.good, sts, claims{"aws_account": "210987654321"}),
		"another organization": within(p.good, sts, claims{"org_id": "o-zzz"}),
		"a tag that says so":   {sts: claims{"request_tags": claims{"aws_account": "123456789012", "org_id": "o-abc1234567"}}},
	}
	return p
}

func eks() platform {
	of := func(namespace, account string, pod any) claims {
		return claims{"sub": "system:serviceaccount:" + namespace + ":" + account, "kubernetes.io": claims{"namespace": namespace, "pod": pod, "node": claims{"name": "ip-10-0-0-1"},
			"serviceaccount": claims{"name": account, "uid": "14ee3fa4-a7e2-420f-9f9a-dbc4507c3798"}}}
	}
	pod := claims{"name": "worker-0", "uid": "5e0bd49b-f040-43b0-99b7-22765a53f7f3"}
	return platform{profile: "eks-nightly", issuer: "https://oidc.eks.eu-central-1.amazonaws.com/id/EXAMPLED539D4633E53DE1B71EXAMPLE", lives: time.Hour, good: of("nightly", "worker", pod),
		neighbours: map[string]claims{"another namespace": of("daily", "worker", pod), "another account": of("nightly", "default", pod), "bound to nothing": of("nightly", "worker", nil),
			"a subject of its own": {"sub": "system:serviceaccount:nightly:other"}}}
}

// token signs what a platform says, for an audience.
func (p platform) token(by *jwkstest.Issuer, audience any, changes ...claims) string {
	now := time.Now()
	all := claims{"iss": p.issuer, "aud": audience, "iat": now.Unix(), "nbf": now.Add(-5 * time.Minute).Unix(), "exp": now.Add(p.lives).Unix(), "jti": now.String()}
	maps.Copy(all, p.good)
	for _, c := range changes {
		maps.Copy(all, c)
	}
	return by.TokenBy("rsa", all)
}

// The example's profiles take the workload that they name, and nobody who is like it.
func TestPlatforms(t *testing.T) {
	t.Parallel()
	platforms := []platform{github(), gcp(), aws(), eks()}
	by := map[string]*jwkstest.Issuer{}
	var trust authoritytest.Trust
	for _, i := range issuers(t, "oidc/issuers.yaml") {
		_, err := jwks.New(jwks.Config{Own: "https://night.example", Issuers: []jwks.Issuer{{URL: i.URL, JWKSURL: i.JWKSURL, Algorithms: i.Algorithms}}})
		require.NoError(t, err, i.URL)
		by[i.URL] = jwkstest.New(t)
		by[i.URL].Add(t, "rsa", "RS256")
		trust.Issuers = append(trust.Issuers, jwks.Issuer{URL: i.URL, JWKSURL: by[i.URL].JWKSURL(), Algorithms: i.Algorithms})
	}
	require.Len(t, trust.Issuers, len(platforms))
	var names []string
	for _, p := range platforms {
		names = append(names, p.profile)
	}
	h := house(t, trust, example(t, "oidc/profiles.yaml"), names...)
	for n, p := range platforms {
		ask := func(token string) authoritytest.Answer {
			return prove(h, h.Key(), p.profile, api.AssertionJWTBearer, token)
		}
		before := h.Consumed()
		for name, change := range p.neighbours {
			refused(h, before, p.profile+", "+name, api.InvalidClient, ask(p.token(by[p.issuer], h.URL, change)))
		}
		for name, audience := range map[string]any{"another audience": "https://sts.example", "no audience": nil, "two audiences": []string{h.URL, "https://sts.example"}, "a slash more": h.URL + "/"} {
			refused(h, before, p.profile+", "+name, api.InvalidClient, ask(p.token(by[p.issuer], audience)))
		}
		other := platforms[(n+1)%len(platforms)]
		refused(h, before, p.profile+", signed by another platform", api.InvalidClient, ask(p.token(by[other.issuer], h.URL, claims{"iss": other.issuer})))
		now := time.Now()
		refused(h, before, p.profile+", expired", api.InvalidClient, ask(p.token(by[p.issuer], h.URL, claims{"iat": now.Add(-2 * time.Hour).Unix(), "exp": now.Add(-time.Hour).Unix()})))
		refused(h, before, p.profile+", long-lived", api.InvalidClient, ask(p.token(by[p.issuer], h.URL, claims{"exp": now.Add(25 * time.Hour).Unix()})))
		refused(h, before, p.profile+", for a trust domain", api.InvalidClient, prove(h, h.Key(), p.profile, api.AssertionJWTSPIFFE, p.token(by[p.issuer], h.URL)))
		good := p.token(by[p.issuer], h.URL)
		accepted(h, p.profile, ask(good))
		a := ask(good)
		require.Equal(t, api.AssertionBound, a.Problem().Code, "the first key owns it: %s", a.Body)
	}
	require.False(t, strings.Contains(h.Log.String(), "panic"))
}
