package doctor_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/doctor"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

func client(t *testing.T) *http.Client {
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 30 * time.Second}
}

// through answers requests to origin by what a handler makes of them: as a
// proxy in front of the authority would, which keeps its name.
type through func(r *http.Request) *http.Response

func (f through) RoundTrip(r *http.Request) (*http.Response, error) {
	if a := f(r); a != nil {
		return a, nil
	}
	return nil, fmt.Errorf("connection refused")
}

func verdicts(found []doctor.Finding) map[string]doctor.Verdict {
	all := map[string]doctor.Verdict{}
	for _, f := range found {
		all[f.Check] = f.Verdict
	}
	return all
}

// What a proxy spoils is named, and nothing else is.
func TestAProxyInFrontOfTheAuthority(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Open()
	direct := client(t).Transport
	pass := func(r *http.Request) *http.Response {
		a, err := direct.RoundTrip(r)
		require.NoError(t, err)
		return a
	}
	var kept atomic.Pointer[string]
	for name, c := range map[string]struct {
		proxy through
		bad   []string
	}{
		"none": {pass, nil},
		"that drops the proof": {func(r *http.Request) *http.Response {
			r = r.Clone(r.Context())
			r.Header.Del(api.HeaderProof)
			return pass(r)
		}, []string{"proof"}},
		"that sends the proof twice": {func(r *http.Request) *http.Response {
			r = r.Clone(r.Context())
			r.Header[http.CanonicalHeaderKey(api.HeaderProof)] = append(r.Header.Values(api.HeaderProof), r.Header.Values(api.HeaderProof)...)
			return pass(r)
		}, []string{"proof"}},
		"that keeps the nonce": {func(r *http.Request) *http.Response {
			a := pass(r)
			a.Header.Del(api.HeaderNonce)
			return a
		}, []string{"proof", "caches"}},
		"that gives an old nonce": {func(r *http.Request) *http.Response {
			a := pass(r)
			nonce := a.Header.Get(api.HeaderNonce)
			if !kept.CompareAndSwap(nil, &nonce) {
				a.Header.Set(api.HeaderNonce, *kept.Load())
			}
			return a
		}, []string{"caches"}},
		"that leads elsewhere": {func(r *http.Request) *http.Response {
			w := httptest.NewRecorder()
			http.NotFound(w, r)
			return w.Result()
		}, []string{"metadata"}},
		"that answers nothing": {func(*http.Request) *http.Response { return nil }, []string{"metadata"}},
		"with another clock": {func(r *http.Request) *http.Response {
			a := pass(r)
			a.Header.Set("Date", time.Now().Add(-time.Minute).UTC().Format(http.TimeFormat))
			return a
		}, []string{"clock"}},
	} {
		before := h.Consumed()
		var bad []string
		for _, f := range (doctor.Origin{Issuer: h.URL, HTTP: &http.Client{Transport: c.proxy}, Bound: 2 * time.Second}).Look(soon(t)) {
			if f.Verdict == doctor.Bad {
				bad = append(bad, f.Check)
				assert.NotEmpty(t, f.Remedy, "%s: %s", name, f.Check)
			}
		}
		assert.ElementsMatch(t, c.bad, bad, name)
		assert.Equal(t, before, h.Consumed(), name)
	}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// The public name differs from the issuer: what workers prove is refused.
func TestAnotherNameThanTheIssuers(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	target, err := url.Parse(h.URL)
	require.NoError(t, err)
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(proxy.Close)
	found := verdicts(doctor.Origin{Issuer: proxy.URL, HTTP: client(t), Bound: time.Minute}.Look(soon(t)))
	assert.Equal(t, doctor.Bad, found["metadata"])
	assert.Equal(t, doctor.Bad, found["proof"])
	assert.Equal(t, doctor.OK, found["keys"])
}

func TestAClosedGateIsNoFault(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	h.Close()
	h.See()
	found := doctor.Origin{Issuer: h.URL, HTTP: client(t), Bound: time.Minute}.Look(soon(t))
	assert.Equal(t, doctor.Warn, verdicts(found)["readiness"])
	assert.False(t, doctor.Failed(found))
}

func TestADatabase(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	look := func(role, as string) map[string]doctor.Verdict {
		return verdicts(doctor.Database{URL: db.URL(as), Role: role, Bound: time.Minute}.Look(soon(t)))
	}
	good := look("nw_authority", "nw_authority")
	for _, check := range []string{"connection", "clock", "role", "schema", "grants"} {
		assert.Equal(t, doctor.OK, good[check], check)
	}
	assert.Equal(t, doctor.Warn, good["standby"])
	assert.Equal(t, doctor.Bad, good["settings"], "the cluster of the tests does not sync")
	assert.Equal(t, doctor.Bad, look("nw_authority", "nw_scheduler")["role"])
	assert.Equal(t, doctor.Bad, look("", teststack.Superuser)["role"])
	assert.Equal(t, doctor.Bad, look("", teststack.Owner)["role"], "who owns the tables needs no verb")

	pool := db.Pool(t, teststack.Superuser)
	_, err := pool.Exec(soon(t), `GRANT SELECT ON nw.tasks TO nw_authority`)
	require.NoError(t, err)
	assert.Equal(t, doctor.Bad, look("nw_authority", "nw_authority")["role"])

	away := doctor.Database{URL: "postgres://nw_authority:hunter2@127.0.0.1:1/nightwarrant", Role: "nw_authority"}.Look(soon(t))
	require.Len(t, away, 1)
	assert.Equal(t, doctor.Bad, away[0].Verdict)
	assert.NotContains(t, fmt.Sprint(away), "hunter2")
}

func TestADatabaseThatIsDurable(t *testing.T) {
	t.Parallel()
	db := teststack.DurableCluster(t)
	found := doctor.Database{URL: db.URL("nw_scheduler"), Role: "nw_scheduler", Bound: time.Minute}.Look(soon(t))
	assert.False(t, doctor.Failed(found), "%v", found)
	_, err := db.Pool(t, teststack.Superuser).Exec(soon(t), `ALTER ROLE nw_scheduler SET synchronous_commit = 'local'`)
	require.NoError(t, err)
	found = doctor.Database{URL: db.URL("nw_scheduler"), Role: "nw_scheduler", Bound: time.Minute}.Look(soon(t))
	assert.True(t, doctor.Failed(found), "a promise would be made that one server keeps")
	assert.Contains(t, fmt.Sprint(found), "synchronous_commit is local")
}

func TestACertificate(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	end := s.Certificate().NotAfter
	look := func(c doctor.Certificate) doctor.Verdict {
		found := c.Look(soon(t))
		require.Len(t, found, 1)
		return found[0].Verdict
	}
	at := func(before time.Duration) func() time.Time { return func() time.Time { return end.Add(-before) } }
	assert.Equal(t, doctor.OK, look(doctor.Certificate{URL: s.URL, Roots: roots, Now: at(60 * 24 * time.Hour)}))
	assert.Equal(t, doctor.Warn, look(doctor.Certificate{URL: s.URL, Roots: roots, Now: at(10 * 24 * time.Hour)}))
	assert.Equal(t, doctor.Bad, look(doctor.Certificate{URL: s.URL, Roots: roots, Now: at(24 * time.Hour)}))
	assert.Equal(t, doctor.Bad, look(doctor.Certificate{URL: s.URL, Roots: roots, Now: at(-time.Hour)}), "it has ended")
	assert.Equal(t, doctor.Bad, look(doctor.Certificate{URL: s.URL, Roots: x509.NewCertPool()}), "nobody vouches for it")
	assert.Equal(t, doctor.Bad, look(doctor.Certificate{URL: strings.Replace(s.URL, "127.0.0.1", "localhost", 1), Roots: roots}), "another name")
	assert.Empty(t, doctor.Certificate{URL: "http://127.0.0.1:1"}.Look(soon(t)))
}

func TestAGuard(t *testing.T) {
	t.Parallel()
	const uri, issuer = "https://guard.example/ledger", "https://authority.example"
	look := func(uri, body, nonce string) map[string]doctor.Verdict {
		return verdicts(doctor.Guard{URI: uri, Authority: issuer, HTTP: &http.Client{Transport: through(func(r *http.Request) *http.Response {
			if body == "" || r.URL.Path != "/.well-known/oauth-protected-resource/ledger" {
				return nil
			}
			w := httptest.NewRecorder()
			w.Header().Set(api.HeaderNonce, nonce)
			_, _ = w.WriteString(body)
			return w.Result()
		})}}.Look(soon(t)))
	}
	good := fmt.Sprintf(`{"resource": %q, "authorization_servers": [%q]}`, uri, issuer)
	assert.Equal(t, map[string]doctor.Verdict{"address": doctor.OK, "metadata": doctor.OK}, look(uri, good, "n"))
	assert.Equal(t, doctor.Bad, look(uri, "", "n")["metadata"], "nobody answers")
	assert.Equal(t, doctor.Bad, look(uri, "welcome", "n")["metadata"], "no guard")
	assert.Equal(t, doctor.Bad, look(uri, good, "")["metadata"], "no nonce")
	assert.Equal(t, doctor.Bad, look(uri, strings.Replace(good, "ledger", "other", 1), "n")["metadata"], "another guard")
	assert.Equal(t, doctor.Bad, look(uri, strings.Replace(good, "authority", "elsewhere", 1), "n")["metadata"], "another authority")
	assert.Equal(t, doctor.Bad, look(strings.Replace(uri, "https", "http", 1), good, "n")["address"], "in clear")
}

func TestPages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status           int
		policy, location string
		want             doctor.Verdict
	}{
		"a page":                   {200, "default-src 'none'", "", doctor.OK},
		"a way to sign in":         {303, "", "/login?to=%2F", doctor.OK},
		"a way to somewhere":       {303, "", "https://elsewhere.example/login", doctor.Bad},
		"a page without a policy":  {200, "", "", doctor.Bad},
		"a server that is in need": {502, "default-src 'none'", "", doctor.Bad},
	} {
		pages := doctor.Pages{Origin: "https://console.example", HTTP: &http.Client{Transport: through(func(*http.Request) *http.Response {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Security-Policy", c.policy)
			w.Header().Set("Location", c.location)
			w.WriteHeader(c.status)
			return w.Result()
		})}}
		assert.Equal(t, c.want, pages.Look(soon(t))[0].Verdict, name)
	}
}

// What hangs ends in time, and what it was is said.
func TestRunNamesEachCheck(t *testing.T) {
	t.Parallel()
	found := doctor.Run(t.Context(), []doctor.Check{
		doctor.Asked("one", "it works", "do this", func(context.Context) error { return fmt.Errorf("no") }),
		{Name: "two", Look: func(context.Context) []doctor.Finding { return []doctor.Finding{{Check: "half", Verdict: doctor.OK}} }},
	})
	assert.Equal(t, []doctor.Finding{{Check: "one", Verdict: doctor.Bad, What: "it works: no", Remedy: "do this"}, {Check: "two.half", Verdict: doctor.OK}}, found)
	assert.True(t, doctor.Failed(found))
	assert.False(t, doctor.Failed(found[1:]))
}
