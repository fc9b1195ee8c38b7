package workloads

import (
	"context"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

// yard is a cluster that a house trusts and asks, with the example's profiles and a role for its workers.
func yard(t *testing.T) (c *jwkstest.Cluster, h *authoritytest.House, project func()) {
	t.Helper()
	c = jwkstest.NewCluster(t)
	ours, pod := filepath.Join(t.TempDir(), "token"), c.Pod("nightwarrant", "authority", "authority-0", "node-1")
	project = func() { // the authority's own token
		require.NoError(t, os.WriteFile(ours, []byte(c.Project(pod, jwkstest.APIAudience)), 0o600))
	}
	project()
	reviews, err := attestation.NewTokenReview(attestation.TokenReviewConfig{URL: c.URL, TokenFile: ours, Roots: c.Roots()})
	require.NoError(t, err)
	t.Cleanup(reviews.Close)
	trust := authoritytest.Trust{Issuers: []jwks.Issuer{{URL: c.URL, Algorithms: []string{"RS256", "ES256"}, Roots: c.Roots()}}, Reviews: map[string]attestation.Reviewer{c.URL: reviews}}
	profiles := strings.NewReplacer("https://kubernetes.default.svc.cluster.local", c.URL, "name: ledger-guard", "name: cluster-ledger").Replace(example(t, "kubernetes/profiles.yaml"))
	return c, house(t, trust, profiles+role("worker"), "worker"), project
}

func TestWhoIsNotThePod(t *testing.T) {
	t.Parallel()
	c, h, _ := yard(t)
	pod := c.Pod("nightly", "worker", "worker-0", "node-1")
	changed := func(change func(claims)) string {
		said := c.Claims(pod, h.URL)
		change(said)
		return c.Token(said)
	}
	in := func(said claims) claims { return said["kubernetes.io"].(claims) }
	gone := c.Pod("nightly", "worker", "worker-1", "node-1")
	c.Delete(gone)
	before := h.Consumed()
	for name, token := range map[string]string{
		"for the API server":         c.Project(pod, jwkstest.APIAudience),
		"for both":                   c.Project(pod, h.URL, jwkstest.APIAudience),
		"another account":            c.Project(c.Pod("nightly", "default", "worker-0", "node-1"), h.URL),
		"another namespace":          c.Project(c.Pod("daily", "worker", "worker-0", "node-1"), h.URL),
		"bound to nothing":           changed(func(s claims) { delete(in(s), "pod") }),
		"a secret's, of old":         changed(func(s claims) { delete(s, "exp"); delete(s, "kubernetes.io") }),
		"a pod that is gone":         c.Project(gone, h.URL),
		"a pod that never was":       changed(func(s claims) { in(s)["pod"] = claims{"name": "worker-0", "uid": "made up"} }),
		"an account in a claim only": changed(func(s claims) { s["sub"] = "system:serviceaccount:nightly:default" }),
	} {
		refused(h, before, name, api.InvalidClient, prove(h, h.Key(), "worker", api.AssertionJWTBearer, token))
	}
	c.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	refused(h, before, "nobody to ask", api.Unavailable, prove(h, h.Key(), "worker", api.AssertionJWTBearer, c.Project(pod, h.URL)))
	c.Serve(nil)
	accepted(h, "the pod", prove(h, h.Key(), "worker", api.AssertionJWTBearer, c.Project(pod, h.URL)))
}

// The kubelet replaces the file, and the cluster its key, in the middle of a run: the run goes on, and what is read next is the new token.
func TestTokenReplacedInTheMiddleOfARun(t *testing.T) {
	t.Parallel()
	c, h, projectOurs := yard(t)
	pod := c.Pod("nightly", "worker", "worker-0", "node-1")
	file := filepath.Join(t.TempDir(), "token")
	project := func() { require.NoError(t, os.WriteFile(file, []byte(c.Project(pod, h.URL)), 0o600)) }
	mounted := func(context.Context) (string, error) { text, err := os.ReadFile(file); return string(text), err }
	project()
	task := consented(h)
	k := h.Key()
	var claimed, minted api.TokenResponse
	h.Into(claim(h, k, h.Plan(task), api.AssertionJWTBearer, mounted), &claimed)
	held := authoritytest.MintForm(tokenOf(claimed), "debit", "a")

	c.Rotate(t, "ES256")
	project()
	projectOurs()
	c.Retire()
	c.Delete(pod) // even then: what the run may do is the authority's to end
	h.Into(h.Send(h.Form(k, held)), &minted)
	require.NotEmpty(t, minted.AccessToken)
	h.Into(h.Send(h.Bearing(k, tokenOf(claimed), http.MethodPost, api.PathSettleRun, api.SettleRunRequest{Result: "failed"})), nil)

	pod = c.Pod("nightly", "worker", "worker-1", "node-2")
	project()
	run := h.Plan(task)
	taken := func() bool { return claim(h, h.Key(), run, api.AssertionJWTBearer, mounted).Status == http.StatusOK }
	require.Eventually(t, taken, time.Minute, 50*time.Millisecond, "an unknown key is asked for once in a while")
}

func tokenOf(r api.TokenResponse) capability.Token { return capability.Token(r.AccessToken) }

// manifest is what of an object concerns us.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct{ Name, Namespace string }
	Data       map[string]string `yaml:"data"`
	Spec       struct {
		Template struct {
			Spec struct {
				ServiceAccountName           string `yaml:"serviceAccountName"`
				AutomountServiceAccountToken *bool  `yaml:"automountServiceAccountToken"`
				Containers                   []struct {
					Args, Command []string
					VolumeMounts  []struct {
						Name      string `yaml:"name"`
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
				Volumes []volume
			}
		}
	}
}

type volume struct {
	Name      string
	Projected struct {
		Sources []struct {
			ServiceAccountToken struct {
				Audience, Path    string
				ExpirationSeconds int64 `yaml:"expirationSeconds"`
			} `yaml:"serviceAccountToken"`
			ConfigMap struct{ Items []struct{ Key, Path string } } `yaml:"configMap"`
		}
	}
}

// objects reads a manifest: each object has what every object has.
func objects(t *testing.T, name string) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for part := range strings.SplitSeq(example(t, name), "\n---\n") {
		var m manifest
		require.NoError(t, yaml.Unmarshal([]byte(part), &m), name)
		require.NotEmpty(t, m.APIVersion, part)
		require.NotEmpty(t, m.Metadata.Name, part)
		all[m.Kind+" "+m.Metadata.Name] = m
	}
	return all
}

// mounts lists the files that a deployment projects into its one container, and the audience of each token.
func (m manifest) mounts(t *testing.T) map[string]string {
	t.Helper()
	pod := m.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	require.NotNil(t, pod.AutomountServiceAccountToken)
	require.False(t, *pod.AutomountServiceAccountToken, "the API server's token is nobody's business")
	files := map[string]string{}
	for _, at := range pod.Containers[0].VolumeMounts {
		n := slices.IndexFunc(pod.Volumes, func(v volume) bool {
			return v.Name == at.Name
		})
		require.GreaterOrEqual(t, n, 0, at.Name)
		for _, source := range pod.Volumes[n].Projected.Sources {
			if token := source.ServiceAccountToken; token.Path != "" {
				assert.GreaterOrEqual(t, token.ExpirationSeconds, int64(600))
				files[path.Join(at.MountPath, token.Path)] = token.Audience
			}
			for _, item := range source.ConfigMap.Items {
				files[path.Join(at.MountPath, item.Path)] = ""
			}
		}
	}
	return files
}

// What the manifests mount is what our files name, for whom the profiles know.
func TestManifestsAgree(t *testing.T) {
	t.Parallel()
	noEnv := func(string) string { return "" }
	profiles := example(t, "kubernetes/profiles.yaml")

	all := objects(t, "kubernetes/worker.yaml")
	var w config.Worker
	require.NoError(t, config.Parse("worker.yaml", []byte(all["ConfigMap worker"].Data["worker.yaml"]), &w, noEnv))
	d := all["Deployment worker"]
	assert.Equal(t, w.Authority, d.mounts(t)[w.AssertionFile])
	assert.Contains(t, d.Spec.Template.Spec.Containers[0].Command, "/etc/nightwarrant/worker.yaml")
	assert.Contains(t, profiles, "service_account: {namespace: "+d.Metadata.Namespace+", name: "+d.Spec.Template.Spec.ServiceAccountName+"}")

	all = objects(t, "kubernetes/guard.yaml")
	database := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(database, []byte("postgres://guard@db/ledger"), 0o400))
	g, err := config.ParseGuard("guard.yaml", []byte(strings.Replace(all["ConfigMap ledger"].Data["guard.yaml"], "/var/run/secrets/database/url", database, 1)), noEnv)
	require.NoError(t, err)
	d = all["Deployment ledger"]
	assert.Equal(t, g.Common().Authority, d.mounts(t)[g.Common().AssertionFile])
	assert.Contains(t, profiles, "service_account: {namespace: "+d.Metadata.Namespace+", name: "+d.Spec.Template.Spec.ServiceAccountName+"}")

	all = objects(t, "kubernetes/authority.yaml")
	var part trusted
	require.NoError(t, config.Parse("issuers.yaml", []byte(all["ConfigMap authority-issuers"].Data["issuers.yaml"]), &part, noEnv))
	i, files := part.Assertion.Issuers[0], all["Deployment authority"].mounts(t)
	for _, file := range []string{i.RootsFile, i.TokenReview.TokenFile, i.TokenReview.RootsFile} {
		audience, mounted := files[file]
		assert.True(t, mounted, file)
		assert.Empty(t, audience, "our own token is for the API server")
	}
	assert.Contains(t, profiles, "issuer: "+i.URL+"\n")
	assert.Contains(t, example(t, "kubernetes/authority.yaml"), `name: "system:auth-delegator"`)
}
