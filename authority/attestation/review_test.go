package attestation

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

// yard is a cluster, a verifier that asks it, and the pod of a worker.
type yard struct {
	*jwkstest.Cluster
	*Verifier
	tokenFile string
	pod       jwkstest.Pod
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{Cluster: jwkstest.NewCluster(t), tokenFile: filepath.Join(t.TempDir(), "token")}
	y.pod = y.Pod("night", "worker", "worker-0", "node-1")
	y.write(t, y.Project(y.Pod("system", "authority", "authority-0", "node-1"), jwkstest.APIAudience))
	reviews, err := NewTokenReview(TokenReviewConfig{URL: y.URL, TokenFile: y.tokenFile, Roots: y.Roots()})
	require.NoError(t, err)
	t.Cleanup(reviews.Close)
	keys, err := jwks.New(jwks.Config{Own: own, Issuers: []jwks.Issuer{{URL: y.URL, Algorithms: []string{"RS256", "ES256"}, Roots: y.Roots()}}})
	require.NoError(t, err)
	y.Verifier, err = New(Config{Keys: keys, Audience: own, Reviews: map[string]Reviewer{y.URL: reviews}})
	require.NoError(t, err)
	return y
}

func (y *yard) write(t *testing.T, token string) {
	t.Helper()
	require.NoError(t, os.WriteFile(y.tokenFile, []byte(token+"\n"), 0o600))
}

// says answers a review with what a good one says, changed.
func (y *yard) says(change func(review, status map[string]any)) {
	y.Serve(func(w http.ResponseWriter, _ *http.Request) {
		status := map[string]any{"authenticated": true, "audiences": []string{own}, "user": map[string]any{"username": "system:serviceaccount:night:worker",
			"extra": map[string]any{"authentication.kubernetes.io/pod-uid": []string{y.pod.UID}}}}
		review := map[string]any{"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status}
		change(review, status)
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	})
}

func TestReviewsAreConfiguredOrRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]TokenReviewConfig{
		"nothing": {}, "no token": {URL: "https://cluster.example"}, "relative": {URL: "cluster.example", TokenFile: "/t"}, "path": {URL: "https://cluster.example/", TokenFile: "/t"},
		"user": {URL: "https://a:b@cluster.example", TokenFile: "/t"}, "query": {URL: "https://cluster.example?a", TokenFile: "/t"}, "scheme": {URL: "ftp://cluster.example", TokenFile: "/t"},
	} {
		_, err := NewTokenReview(c)
		require.Error(t, err, name)
	}
	issuer := jwkstest.New(t)
	_, err := New(Config{Keys: cacheFor(t, issuer), Audience: own, Reviews: map[string]Reviewer{"https://other.example": nil}})
	require.ErrorContains(t, err, "not configured")
}

// What is not vouched for, to the letter, is refused; what cannot be learned is unavailable.
func TestReviewRefuses(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	token := y.Project(y.pod, own)
	for name, change := range map[string]func(review, status map[string]any){
		"not authenticated": func(_, s map[string]any) { s["authenticated"] = false },
		"an error":          func(_, s map[string]any) { s["error"] = "hush" },
		"no audiences":      func(_, s map[string]any) { delete(s, "audiences") },
		"empty audiences":   func(_, s map[string]any) { s["audiences"] = []string{} },
		"other audiences":   func(_, s map[string]any) { s["audiences"] = []string{jwkstest.APIAudience, own + "/"} },
		"another account":   func(_, s map[string]any) { s["user"] = map[string]any{"username": "system:serviceaccount:night:other"} },
		"nobody":            func(_, s map[string]any) { delete(s, "user") },
		"another pod": func(_, s map[string]any) {
			s["user"].(map[string]any)["extra"] = map[string]any{extraPod: []string{"u"}}
		},
		"two pods": func(_, s map[string]any) {
			s["user"].(map[string]any)["extra"] = map[string]any{extraPod: []string{y.pod.UID, "u"}}
		},
		"no pod":    func(_, s map[string]any) { delete(s["user"].(map[string]any), "extra") },
		"no status": func(r, _ map[string]any) { delete(r, "status") },
	} {
		y.says(change)
		_, err := y.Verify(t.Context(), token)
		requireReason(t, err, Withdrawn, api.InvalidClient)
		require.NotContains(t, err.Error(), "hush", name)
	}
	for name, change := range map[string]func(review, status map[string]any){
		"another kind":    func(r, _ map[string]any) { r["kind"] = "Status" },
		"another version": func(r, _ map[string]any) { r["apiVersion"] = "authentication.k8s.io/v1beta1" },
		"text for truth":  func(_, s map[string]any) { s["authenticated"] = "true" },
		"too large":       func(r, _ map[string]any) { r["metadata"] = strings.Repeat("a", maxReview) },
	} {
		y.says(change)
		_, err := y.Verify(t.Context(), token)
		requireReason(t, err, Unavailable, api.Unavailable)
		require.Error(t, err, name)
	}
}

func TestReviewThatCannotBeHad(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	token := y.Project(y.pod, own)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { assert.Fail(t, "our token went elsewhere") }))
	defer elsewhere.Close()
	refused := func(name string) {
		_, err := y.Verify(t.Context(), token)
		requireReason(t, err, Unavailable, api.Unavailable)
		require.Error(t, y.Reachable(t.Context()), name)
	}
	for name, serve := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"broken":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"empty":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		"endless":   func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, endless{}) },
		"never":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	} {
		y.Serve(serve)
		refused(name)
	}
	y.Serve(nil)
	good, err := os.ReadFile(y.tokenFile)
	require.NoError(t, err)
	for name, ours := range map[string]string{"empty": "", "two lines": "a\nb", "large": strings.Repeat("a", maxReviewer+1), "not for the API": y.Project(y.pod, own)} {
		y.write(t, ours)
		refused("our own token: " + name)
	}
	require.NoError(t, os.Remove(y.tokenFile))
	refused("no token of our own")
	y.write(t, string(good))
	_, err = y.Verify(t.Context(), token)
	require.NoError(t, err, "it is read anew each time")
	require.NoError(t, y.Reachable(t.Context()))
	y.says(func(_, s map[string]any) {})
	require.ErrorContains(t, y.Reachable(t.Context()), "vouches for anything")
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// Whoever asks a lot is refused; nobody waits, and the API server gets no more than so many at once.
func TestReviewsAtOnce(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	arrived, release := make(chan struct{}, reviewsAtOnce), make(chan struct{})
	y.Serve(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		w.WriteHeader(http.StatusTeapot)
	})
	token := y.Project(y.pod, own)
	_, err := y.keys.Verify(t.Context(), token, y.expect) // the keys are there
	require.NoError(t, err)
	var all sync.WaitGroup
	for range reviewsAtOnce {
		all.Go(func() { _, _ = y.Verify(context.Background(), token) })
	}
	for range reviewsAtOnce {
		<-arrived
	}
	_, err = y.Verify(t.Context(), token)
	requireReason(t, err, Unavailable, api.Unavailable)
	close(release)
	all.Wait()
	require.Equal(t, reviewsAtOnce, y.Reviews())
}

// A token stays signed when its pod is gone; the cluster knows.
func TestReviewOfWhatIsBound(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	token := y.Project(y.pod, own)
	a, err := y.Verify(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, y.pod.UID, a.Pod())
	_, err = y.Verify(t.Context(), y.Project(y.pod, "https://other.example"))
	requireReason(t, err, WrongAudience, api.InvalidClient)
	_, err = y.Verify(t.Context(), token[:len(token)-6]+"AAAAAA")
	requireReason(t, err, BadSignature, api.InvalidClient)
	require.Equal(t, 1, y.Reviews(), "the cluster is asked about what verifies only")

	y.Delete(y.pod)
	_, err = y.Verify(t.Context(), token)
	requireReason(t, err, Withdrawn, api.InvalidClient)
	again := y.Pod(y.pod.Namespace, y.pod.ServiceAccount, y.pod.Name, y.pod.Node)
	_, err = y.Verify(t.Context(), token)
	requireReason(t, err, Withdrawn, api.InvalidClient)
	_, err = y.Verify(t.Context(), y.Project(again, own))
	require.NoError(t, err)
}
