package dev

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ours     = "http://127.0.0.1:1"
	platform = "https://platform.example/nightwarrant"
)

func noEnv(string) string { return "" }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serving is an issuer on a listener of its own, and a cache that trusts it.
func serving(t *testing.T, algorithm string) (*Issuer, *jwks.Cache) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	url := "http://" + server.Listener.Addr().String()
	issuer, err := NewIssuer(url, algorithm, "")
	require.NoError(t, err)
	server.Config.Handler = issuer.Handler()
	server.Start()
	t.Cleanup(server.Close)
	cache, err := jwks.New(jwks.Config{Own: ours, Issuers: []jwks.Issuer{{URL: url, Algorithms: []string{algorithm}}}})
	require.NoError(t, err)
	return issuer, cache
}

// The authority's own verifier takes a projected token as the service account
// that it names, and as no other.
func TestAProjectedTokenProvesItsServiceAccount(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"ES256", "RS256"} {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			issuer, cache := serving(t, algorithm)
			verifier, err := attestation.New(attestation.Config{Keys: cache, Audience: ours})
			require.NoError(t, err)
			token, err := issuer.Token(Account{Namespace: "jobs", Name: "keeper", Pod: "keeper-7"}.claims(ours), time.Now(), time.Minute)
			require.NoError(t, err)
			a, err := verifier.Verify(t.Context(), token)
			require.NoError(t, err)
			assert.Equal(t, "system:serviceaccount:jobs:keeper", a.Subject)
			profile := attestation.Profile{Name: "keeper", Issuer: issuer.url, Binding: attestation.FirstKey,
				ServiceAccount: &attestation.ServiceAccount{Namespace: "jobs", Name: "keeper"}, RequiredClaims: map[string]any{"/kubernetes.io/pod/name": "keeper-7"}}
			require.NoError(t, profile.Matches(a))
			profile.ServiceAccount.Name = "other"
			require.Error(t, profile.Matches(a))
		})
	}
}

func TestATokenIsForItsAudienceAndItsTimeOnly(t *testing.T) {
	t.Parallel()
	issuer, cache := serving(t, "ES256")
	verifier, err := attestation.New(attestation.Config{Keys: cache, Audience: ours})
	require.NoError(t, err)
	account := Account{Namespace: "jobs", Name: "keeper", Pod: "p"}
	for name, make := range map[string]func() (string, error){
		"audience": func() (string, error) { return issuer.Token(account.claims(platform), time.Now(), time.Minute) },
		"past": func() (string, error) {
			return issuer.Token(account.claims(ours), time.Now().Add(-time.Hour), time.Minute)
		},
		"ahead": func() (string, error) {
			return issuer.Token(account.claims(ours), time.Now().Add(time.Hour), time.Minute)
		},
	} {
		token, err := make()
		require.NoError(t, err)
		_, err = verifier.Verify(t.Context(), token)
		require.Error(t, err, name)
	}
	other, err := NewIssuer(issuer.url, "ES256", "")
	require.NoError(t, err)
	forged, err := other.Token(account.claims(ours), time.Now(), time.Minute)
	require.NoError(t, err)
	_, err = verifier.Verify(t.Context(), forged)
	require.Error(t, err, "another key under the same name")
}

func TestAnEnvelopeNamesAPerson(t *testing.T) {
	t.Parallel()
	issuer, cache := serving(t, "ES256")
	envelopes, err := principal.New(principal.Config{Keys: cache, Issuer: issuer.url, Audience: platform, Own: ours, MaxAge: time.Hour,
		Operators: []principal.OperatorRef{{Issuer: issuer.url, Subject: "o-1"}}})
	require.NoError(t, err)
	people := People{Common: Common{Audience: platform}, People: []Person{{Subject: "o-1", Email: "o@people.example"}, {Subject: "m-1", Email: "m@people.example"}, {Subject: "x"}}}
	var digests [][32]byte
	for i, p := range append(people.projections(), people.projections()...) {
		token, err := issuer.Token(p.claims, time.Now(), time.Minute)
		require.NoError(t, err)
		who, err := envelopes.FromEnvelope(t.Context(), token)
		if i%3 == 2 {
			require.ErrorContains(t, err, "envelope_without_email")
			continue
		}
		require.NoError(t, err)
		assert.Equal(t, people.People[i%3].Subject, who.Subject())
		assert.Equal(t, i%3 == 0, who.Operator())
		assert.NotContains(t, digests, who.Digest(), "a jti came twice")
		digests = append(digests, who.Digest())
	}
}

func TestAKeptKeySurvives(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []string{"ES256", "RS256"} {
		dir := t.TempDir()
		first, err := NewIssuer("http://127.0.0.1:9", algorithm, dir)
		require.NoError(t, err)
		again, err := NewIssuer("http://127.0.0.1:9", algorithm, dir)
		require.NoError(t, err)
		assert.Equal(t, string(first.keys), string(again.keys))
		info, err := os.Stat(filepath.Join(dir, keyFile))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		assert.NotContains(t, string(first.keys), `"d"`, "the private key is published")

		other := map[string]string{"ES256": "RS256", "RS256": "ES256"}[algorithm]
		_, err = NewIssuer("http://127.0.0.1:9", other, dir)
		require.ErrorContains(t, err, "is not one for")
		require.NoError(t, os.WriteFile(filepath.Join(dir, keyFile), []byte("nonsense"), 0o600))
		_, err = NewIssuer("http://127.0.0.1:9", algorithm, dir)
		require.ErrorContains(t, err, "no PEM block")
	}
	fresh, err := NewIssuer("http://127.0.0.1:9", "ES256", "")
	require.NoError(t, err)
	another, err := NewIssuer("http://127.0.0.1:9", "ES256", "")
	require.NoError(t, err)
	assert.NotEqual(t, string(fresh.keys), string(another.keys))
	_, err = NewIssuer("http://127.0.0.1:9", "HS256", "")
	require.Error(t, err)
	_, err = NewIssuer("http://127.0.0.1:9", "ES256", filepath.Join(t.TempDir(), "absent"))
	require.Error(t, err)
}

// Files are replaced well before their tokens are over, each with a token of
// its own, for as long as the issuer runs.
func TestFilesStayFresh(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	issuer, err := NewIssuer("http://127.0.0.1:9", "ES256", "")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, rounds := time.Now(), 0
		seen := map[string]bool{}
		ended := make(chan error, 1)
		go func() {
			ended <- issuer.project(ctx, []projection{{file, map[string]any{"sub": "s", "aud": "a"}}}, 10*time.Minute, func() {
				text, err := os.ReadFile(file)
				assert.NoError(t, err)
				assert.False(t, seen[string(text)], "the same token again")
				seen[string(text)] = true
				assert.Equal(t, time.Duration(rounds)*8*time.Minute, time.Since(began))
				rounds++
			})
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		cancel()
		require.NoError(t, <-ended)
		assert.Equal(t, 8, rounds)
	})
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	assert.Len(t, entries, 1, "a temporary file was left")
}

func freePort(t *testing.T) string {
	t.Helper()
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

func TestRunServesAndStops(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &Workloads{Common: Common{Listen: freePort(t), Audience: ours}, Accounts: []Account{{Namespace: "jobs", Name: "keeper", File: filepath.Join(dir, "token")}}}
	require.NoError(t, c.Check(noEnv))
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	log := slog.New(slog.NewTextHandler(signal(func() { close(ready) }), nil))
	ended := make(chan error, 1)
	go func() { ended <- RunWorkloads(ctx, c, log) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(30 * time.Second):
		t.Fatal("it is not ready")
	}
	cache, err := jwks.New(jwks.Config{Own: ours, Issuers: []jwks.Issuer{{URL: c.URL(), Algorithms: []string{"ES256"}}}})
	require.NoError(t, err)
	verifier, err := attestation.New(attestation.Config{Keys: cache, Audience: ours})
	require.NoError(t, err)
	token, err := os.ReadFile(c.Accounts[0].File)
	require.NoError(t, err)
	_, err = verifier.Verify(t.Context(), string(token))
	require.NoError(t, err)
	response, err := http.Post(c.URL()+pathKeys, "text/plain", strings.NewReader("x"))
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	assert.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
	http.DefaultClient.CloseIdleConnections()

	busy := &People{Common: c.Common, People: []Person{{Subject: "s", File: filepath.Join(dir, "envelope")}}}
	require.Error(t, RunPeople(t.Context(), busy, quiet()), "the address is taken")
	cancel()
	require.NoError(t, <-ended)
}

// signal calls f at the first write.
type signal func()

func (s signal) Write(b []byte) (int, error) {
	s()
	return len(b), nil
}

func TestRunFailsWhereItCannotWrite(t *testing.T) {
	t.Parallel()
	c := &People{Common: Common{Listen: freePort(t), Audience: platform}, People: []Person{{Subject: "s", File: filepath.Join(t.TempDir(), "absent", "envelope")}}}
	require.NoError(t, c.Check(noEnv))
	require.ErrorContains(t, RunPeople(t.Context(), c, quiet()), "cannot be written")
}

func TestWrongFiles(t *testing.T) {
	t.Parallel()
	const issuer, idp = "listen: 127.0.0.1:9400\naudience: a\naccounts: [{namespace: n, name: m, file: f}]\n", "listen: 127.0.0.1:9400\naudience: a\npeople: [{subject: s, file: f}]\n"
	require.NoError(t, config.Parse("f", []byte(issuer), &Workloads{}, noEnv))
	require.NoError(t, config.Parse("f", []byte(idp), &People{}, noEnv))
	for _, change := range [][2]string{
		{"127.0.0.1:9400", "0.0.0.0:9400"}, {"127.0.0.1:9400", ":9400"}, {"127.0.0.1:9400", "127.0.0.1:0"}, {"127.0.0.1:9400", "192.0.2.1:9400"}, {"127.0.0.1:9400", "x"},
		{"audience: a", "audience: \"\""}, {"audience: a", "audience: a\nalgorithm: none"}, {"audience: a", "audience: a\nlifetime: 1s"}, {"audience: a", "audience: a\nlifetime: 13h"},
		{"audience: a", "audience: a\nkey: x"}, {"file: f", "file: \"\""}, {"[{", "[{namespace: n, name: m, subject: s, file: f}, {"}, {"file: f}]", "file: f}, {namespace: n, name: m, file: f}]"},
		{"file: f}]", "file: f}, {subject: s, file: f}]"},
	} {
		for text, document := range map[string]config.Document{issuer: &Workloads{}, idp: &People{}} {
			require.Contains(t, text, change[0])
			var e *config.Error
			require.ErrorAs(t, config.Parse("f", []byte(strings.Replace(text, change[0], change[1], 1)), document, noEnv), &e, "%v", change)
		}
	}
}

// A pod that starts again has another token of the same account.
func TestRenew(t *testing.T) {
	t.Parallel()
	issuer, cache := serving(t, "ES256")
	verifier, err := attestation.New(attestation.Config{Keys: cache, Audience: ours})
	require.NoError(t, err)
	pod := Account{Namespace: "jobs", Name: "keeper", Pod: "keeper-7", File: filepath.Join(t.TempDir(), "token")}
	var seen []string
	for range 2 {
		require.NoError(t, issuer.Renew(pod, ours, time.Minute))
		token, err := os.ReadFile(pod.File)
		require.NoError(t, err)
		a, err := verifier.Verify(t.Context(), string(token))
		require.NoError(t, err)
		assert.Equal(t, "system:serviceaccount:jobs:keeper", a.Subject)
		seen = append(seen, string(token))
	}
	assert.NotEqual(t, seen[0], seen[1])
	pod.File = filepath.Join(t.TempDir(), "absent", "token")
	require.Error(t, issuer.Renew(pod, ours, time.Minute))
}

func TestAPodKeepsItsUID(t *testing.T) {
	t.Parallel()
	a := Account{Namespace: "jobs", Name: "keeper", Pod: "keeper-0"}
	one, err := json.Marshal(a.claims(ours))
	require.NoError(t, err)
	two, err := json.Marshal(a.claims(ours))
	require.NoError(t, err)
	assert.Equal(t, string(one), string(two))
	assert.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, uid("x"))
	assert.NotEqual(t, uid("pod:a"), uid("pod:b"))
}
