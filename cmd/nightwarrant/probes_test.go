package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// trusting is a replica that has everything but a database.
func trusting(t testing.TB) (*replica, *site) {
	t.Helper()
	s := newSite(t, unreachable)
	c := &config.Authority{}
	require.NoError(t, config.Load(s.file, c, func(string) string { return "" }))
	bundle, err := keys.Open(c.Keys.Dir, c.Keys.IdentityFile)
	require.NoError(t, err)
	r := &replica{config: c, keys: bundle, inForce: func() *keys.Bundle { return bundle },
		hold: func(_ context.Context, opened *keys.Bundle) error { return opened.Prove(bundle.Identity()) }}
	require.NoError(t, r.trust())
	return r, s
}

// reasonOf is the word of a look, which says more when it is not the good one.
func reasonOf(reason string, why error) string {
	if (reason == readiness.Good) != (why == nil) {
		return fmt.Sprintf("%s, but %v", reason, why)
	}
	return reason
}

// none says that no profile is registered.
func none() []string { return nil }

func TestProbesNameTheirFamilies(t *testing.T) {
	t.Parallel()
	r, _ := trusting(t)
	var families []string
	for _, p := range r.probes(none) {
		families = append(families, p.Family)
	}
	assert.ElementsMatch(t, []string{"store", "clock", "audit", "signing", "nonces", "attestation", "directory"}, families, "what nw.report_replica takes of an authority")
}

func TestKeysProveThemselves(t *testing.T) {
	t.Parallel()
	r, _ := trusting(t)
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtSigning(t.Context())))
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtNonces(t.Context())))
}

// Attestation is good when each issuer's keys were fetched in time and the
// canaries are judged rightly, and not before.
func TestAttestationIsHealthyOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	assert.Equal(t, readiness.Stale, reasonOf(r.lookAtAttestation(t.Context(), nil)), "no key was ever fetched")
	now := time.Now().Unix()
	_, err := r.assertions.Verify(t.Context(), s.workloads.Token(map[string]any{"sub": "x", "aud": s.url, "iat": now, "exp": now + 60}))
	require.NoError(t, err)
	fetched := s.workloads.Fetches()
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtAttestation(t.Context(), nil)))
	assert.Equal(t, fetched, s.workloads.Fetches(), "a probe asks no issuer")

	// A verifier that judges one canary wrongly is found out.
	r.assertions, err = attestation.New(attestation.Config{Keys: r.workloads, Audience: s.url + "/elsewhere"})
	require.NoError(t, err)
	assert.Equal(t, readiness.Canary, reasonOf(r.lookAtAttestation(t.Context(), nil)))
}

func TestAttestationWantsEveryIssuer(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	second := jwkstest.New(t)
	r.config.Assertion.Issuers = append(r.config.Assertion.Issuers, config.Workloads{Issuer: config.Issuer{URL: second.URL, Algorithms: []string{"ES256"}}})
	require.NoError(t, r.trust())
	now := time.Now().Unix()
	claims := map[string]any{"sub": "x", "aud": s.url, "iat": now, "exp": now + 60}
	for i, issuer := range []*jwkstest.Issuer{s.workloads, second} {
		assert.Equal(t, readiness.Stale, reasonOf(r.lookAtAttestation(t.Context(), nil)), i)
		_, err := r.assertions.Verify(t.Context(), issuer.Token(claims))
		require.NoError(t, err)
	}
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtAttestation(t.Context(), nil)))
}

// A cluster that is to be asked further and does not answer closes admission.
func TestAttestationWantsEveryCluster(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	cluster := jwkstest.NewCluster(t)
	dir := t.TempDir()
	roots := write(t, dir, "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cluster.Server.Certificate().Raw})))
	ours := write(t, dir, "token", cluster.Project(cluster.Pod("system", "authority", "authority-0", "node-1"), jwkstest.APIAudience))
	r.config.Assertion.Issuers = append(r.config.Assertion.Issuers, config.Workloads{Issuer: config.Issuer{URL: cluster.URL, Algorithms: []string{"RS256"}, RootsFile: roots},
		TokenReview: config.TokenReview{URL: cluster.URL, TokenFile: ours, RootsFile: roots}})
	require.NoError(t, r.trust())
	now := time.Now().Unix()
	_, err := r.assertions.Verify(t.Context(), s.workloads.Token(map[string]any{"sub": "x", "aud": s.url, "iat": now, "exp": now + 60}))
	require.NoError(t, err)
	pod := cluster.Pod("night", "worker", "worker-0", "node-1")
	_, err = r.assertions.Verify(t.Context(), cluster.Project(pod, s.url))
	require.NoError(t, err)
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtAttestation(t.Context(), nil)))
	cluster.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
	assert.Equal(t, readiness.Unreachable, reasonOf(r.lookAtAttestation(t.Context(), nil)))

	r.config.Assertion.Issuers[1].TokenReview.RootsFile = write(t, dir, "none.pem", "none")
	require.ErrorContains(t, r.trust(), "token_review.roots_file")
}

// The certificates in roots_file are the only ones that are trusted.
func TestRootsFile(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.NewTLS(t)
	file := write(t, t.TempDir(), "roots.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Server.Certificate().Raw})))
	const own = "https://night.example"
	now := time.Now().Unix()
	token := issuer.Token(map[string]any{"sub": "x", "aud": own, "iat": now, "exp": now + 60})
	for roots, want := range map[string]error{file: nil, "": jwks.Unavailable} {
		cache, err := cacheOf(own, "assertion.issuers", config.Freshness{}, config.Issuer{URL: issuer.URL, Algorithms: []string{"ES256"}, RootsFile: roots})
		require.NoError(t, err)
		_, err = cache.Verify(t.Context(), token, jwks.Expect{Audience: own, MaxLifetime: time.Hour})
		require.ErrorIs(t, err, want)
	}
}

// Operators' pages are on their own listener and nowhere else.
func TestListeners(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	require.Equal(t, exitOK, s.register(t, db).code)
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	admin := "http://" + regexp.MustCompile(`"admin_listen":"([^"]+)"`).FindStringSubmatch(r.log.String())[1]
	ready := func() bool { // as soon as the database has answered once
		answer, err := plainClient().Get(s.url + "/readyz")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}
	require.Eventually(t, ready, testWithin, 20*time.Millisecond)
	for url, want := range map[string]int{
		admin + "/metrics": http.StatusOK, admin + "/healthz": http.StatusOK, admin + "/readyz": http.StatusOK,
		s.url + "/metrics": http.StatusNotFound, s.url + "/healthz": http.StatusOK, s.url + "/readyz": http.StatusOK,
		admin + "/v1/token": http.StatusNotFound, admin + "/v1/jwks": http.StatusNotFound,
	} {
		answer, err := plainClient().Get(url)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		assert.Equal(t, want, answer.StatusCode, url)
	}

	// A second process on the same address ends at once, and takes nothing from the first.
	env{}.run(t, "serve", "--config", s.file).bad(t, exitFailed, "listen: listen tcp "+strings.TrimPrefix(s.url, "http://")+": bind: address already in use")
	boots := 0
	require.NoError(t, db.Pool(t, teststack.Owner).QueryRow(t.Context(), `SELECT max(boot) FROM nw.instances`).Scan(&boots))
	assert.Equal(t, 1, boots)
	assert.Equal(t, exitOK, r.end(), r.log)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	busy := s.with(t, "admin_listen: 127.0.0.1:0", "admin_listen: "+taken.Addr().String())
	env{}.run(t, "serve", "--config", busy).bad(t, exitFailed, "admin_listen: listen tcp")
	_, err = net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	require.Error(t, err, "the public listener was left open")
}

// JSON is what the authority said, for every command that prints any.
func TestJSON(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member := signIn(t, h, "member-1")
	offer, digest := offerOf(t, h, member, "nightly")
	for _, args := range [][]string{
		{"offer", "list"}, {"offer", "show", offer}, {"offer", "accept", offer, "--digest", digest}, {"task", "list"}, {"run", "list"}, {"finding", "list"},
	} {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(member.good(t, append(args, "--json")...)), &v), args)
		assert.NotEmpty(t, v, args)
	}
}

func TestOwnKeyRefusesOtherKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := filepath.Join(dir, "good.pem")
	_, err := ownKey(good)
	require.NoError(t, err)
	text, err := os.ReadFile(good)
	require.NoError(t, err)
	for name, content := range map[string]string{
		"two":       string(text) + string(text),
		"cut":       string(text[:len(text)/2]),
		"empty":     "",
		"directory": "",
	} {
		path := write(t, dir, name, content)
		if name == "directory" {
			path = dir
		}
		_, err := ownKey(path)
		var wrong *config.Error
		require.ErrorAs(t, err, &wrong, name)
	}
}

func FuzzWords(f *testing.F) {
	for _, s := range []string{"", "WorkloadRole/a/1", "a/b", "\x1b[2J", "AAAAAAAAAAAAAAAAAAAAAA", "../x", "a\nb", "é\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		line := oneLine(s, 40)
		require.NotContains(t, line, "\n")
		require.NotContains(t, line, "\x1b")
		require.LessOrEqual(t, len([]rune(line)), 41)
		if ref, err := reference("x", s); err == nil {
			require.Regexp(t, `^[A-Za-z0-9_-]{22}$`, ref)
		}
		if r, err := retirement(s); err == nil {
			require.Positive(t, r.Revision)
			require.NotEmpty(t, r.Kind)
			require.NotEmpty(t, r.Name)
			require.NotContains(t, r.Kind+r.Name, "/")
		}
	})
}

// The directory is good when it takes our token and says that it does not know whom nobody can know.
func TestTheDirectoryAnswersOrSaysWhyNot(t *testing.T) {
	t.Parallel()
	r, s := trusting(t)
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtDirectory(t.Context())))
	s.members.Add("somebody", "")
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtDirectory(t.Context())), "whoever else there is")

	token := filepath.Join(s.dir, "directory.token")
	require.NoError(t, os.WriteFile(token, []byte("another"), 0o600))
	reason, why := r.lookAtDirectory(t.Context())
	assert.Equal(t, readiness.Unreachable, reason, "a token that it does not take")
	require.ErrorContains(t, why, "status 401")
	require.NoError(t, os.Remove(token))
	reason, _ = r.lookAtDirectory(t.Context())
	assert.Equal(t, readiness.Unreachable, reason)
	require.NoError(t, os.WriteFile(token, []byte("directory-token"), 0o600))
	assert.Equal(t, readiness.Good, reasonOf(r.lookAtDirectory(t.Context())), "a token that was rotated")

	knowing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // whoever is asked about
		w.Header().Set("Content-Type", "application/scim+json")
		var asked string
		_ = json.Unmarshal([]byte(strings.TrimPrefix(r.URL.Query().Get("filter"), "externalId eq ")), &asked)
		_ = json.NewEncoder(w).Encode(map[string]any{"schemas": []string{"urn:ietf:params:scim:api:messages:2.0:ListResponse"}, "totalResults": 1,
			"Resources": []any{map[string]any{"externalId": asked, "active": true}}})
	}))
	defer knowing.Close()
	r.config.Directory.URL = knowing.URL
	members, err := membersOf(r.config.Directory, r.config.Envelope.Issuer.URL)
	require.NoError(t, err)
	defer members.Close()
	r.members = members
	reason, _ = r.lookAtDirectory(t.Context())
	assert.Equal(t, readiness.Canary, reason, "one that knows everybody")
}
