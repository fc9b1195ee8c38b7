package tripwire

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/builds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// audit is one against an authority that answers with pages.
func audit(t *testing.T, pages map[string]string) (*tripwire, *httptest.Server) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, ok := pages[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			page = `{"code":"not_found"}`
		}
		_, _ = w.Write([]byte(page))
	}))
	a := &tripwire{Config: Config{Authority: server.URL, Now: time.Now}, heard: newHeard()}
	a.http = a.heard.client()
	t.Cleanup(func() {
		a.http.CloseIdleConnections()
		server.Close()
	})
	return a, server
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for want, err := range map[Verdict]error{Pass: nil, NotApplicable: reason("nobody agreed"), Fail: errors.New("it happened")} {
		var said []Line
		a := &tripwire{Config: Config{Say: func(l Line) { said = append(said, l) }}}
		a.line("X", "a line", []string{"A1"}, func() (string, error) { return "seen", err })
		require.Len(t, said, 1)
		assert.Equal(t, want, said[0].Verdict)
		assert.NotEmpty(t, said[0].Evidence)
		assert.Equal(t, said, a.report.Lines)
		assert.Equal(t, want == Fail, a.report.Failed())
	}
	silent := &tripwire{}
	silent.line("X", "a line", nil, func() (string, error) { return "", nil })
	assert.Equal(t, Fail, silent.report.Lines[0].Verdict, "a pass says what was seen")
	assert.True(t, Report{}.Failed(), "nothing was tried")
	assert.True(t, Report{Lines: []Line{{Verdict: Pass}, {Verdict: "maybe"}}}.Failed(), "an unknown verdict")
}

// What is refused for another reason than the one that is due says nothing of the boundary.
func TestOnlyTheDueRefusalCounts(t *testing.T) {
	t.Parallel()
	try := func(err error) error {
		_, err = allRefused(attempt{"an attack", func() error { return err }, []api.Code{api.NotGranted, api.WrongKey}})
		return err
	}
	require.NoError(t, try(api.Refuse(api.NotGranted)))
	require.NoError(t, try(fmt.Errorf("inside: %w", api.Refuse(api.WrongKey))))
	require.ErrorIs(t, try(nil), errNotRefused)
	require.ErrorContains(t, try(api.Refuse(api.Unavailable)), "unavailable")
	require.ErrorContains(t, try(errors.New("no answer")), "could not be tried")
	said, err := allRefused(attempt{"one", func() error { return api.Refuse(api.Held) }, []api.Code{api.Held}}, attempt{"two", func() error { return api.Refuse(api.RunEnded) }, []api.Code{api.RunEnded}})
	require.NoError(t, err)
	assert.Equal(t, "one: held; two: run_ended", said)
}

// What a closing that passes refuses is tried again; what is not refused, or refused for a reason of its own, is not.
func TestInconclusive(t *testing.T) {
	t.Parallel()
	due := []api.Code{api.NotGranted}
	for _, code := range passing {
		_, err := refusedWith(api.Refuse(code), due)
		assert.True(t, inconclusive(err), code)
		assert.True(t, inconclusive(fmt.Errorf("claim: %w", api.Refuse(code))), code)
	}
	for _, given := range []error{nil, api.Refuse(api.WrongKey), api.Refuse(api.NotGranted), errors.New("a broken pipe")} {
		_, err := refusedWith(given, due)
		assert.False(t, inconclusive(err), "%v", given)
	}
	times := 0
	require.NoError(t, patient(t.Context(), func() error {
		if times++; times < 3 {
			return api.Refuse(api.AdmissionClosed)
		}
		return nil
	}))
	assert.Equal(t, 3, times)
	require.Error(t, patient(t.Context(), func() error { times++; return api.Refuse(api.Forbidden) }))
	assert.Equal(t, 4, times)
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	token := "eyJhbGciOiJFUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"i","sub":"s","iat":1700000000,"exp":1700000600}`)) + ".c2ln"
	c, err := claimsOf(token)
	require.NoError(t, err)
	assert.Equal(t, claims{"i", "s", 1700000000, 1700000600}, c)
	other, err := changed(token, "sub", "x")
	require.NoError(t, err)
	c, err = claimsOf(other)
	require.NoError(t, err)
	assert.Equal(t, claims{"i", "x", 1700000000, 1700000600}, c)
	assert.True(t, strings.HasSuffix(other, ".c2ln"), "the signature is the old one")
	key, err := capability.GenerateKey()
	require.NoError(t, err)
	forged, err := resigned(token, key)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(forged, token[:strings.LastIndex(token, ".")+1]))
	assert.NotEqual(t, token, forged)
	for _, bad := range []string{"", "a.b", "a.!.c", "a.YQ.c"} {
		_, err := changed(bad, "sub", "x")
		require.Error(t, err, bad)
		_, err = claimsOf(bad)
		require.Error(t, err, bad)
	}
	_, err = changed("a.bnVsbA.c", "sub", "x")
	require.Error(t, err, "nothing that claims could be in")
	_, err = resigned("a.b", key)
	require.Error(t, err)
}

func listening(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l.Addr().(*net.TCPAddr).Port
}

func TestPorts(t *testing.T) {
	t.Parallel()
	open := listening(t)
	for name, c := range map[string]struct {
		host Host
		want string
	}{
		"declared":        {Host{"127.0.0.1", open, open, []int{open}}, ""},
		"undeclared":      {Host{"127.0.0.1", open, open, nil}, "which is not declared"},
		"nobody is there": {Host{"127.0.0.1", 1, 1, []int{1}}, "does not listen on 1"},
	} {
		a := &tripwire{Config: Config{Hosts: []Host{c.host}}}
		said, err := a.ports(t.Context())
		if c.want == "" {
			require.NoError(t, err, name)
			assert.Contains(t, said, "1 listen, all declared")
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
	_, err := (&tripwire{}).ports(t.Context())
	var why reason
	require.ErrorAs(t, err, &why)
}

const jwt = "eyJ0eXAiOiJhdCtqd3QifQ.eyJpc3MiOiJodHRwIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"

func TestSecretsAreFoundWhereTheyStand(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(logs, "replica.log"), []byte(`{"msg":"`+strings.Split(jwt, ".")[2]+`"}`), 0o600))
	for name, c := range map[string]struct {
		pages map[string]string
		logs  []string
		want  string
	}{
		"nothing":                 {map[string]string{"/metrics": "up 1"}, nil, ""},
		"in metrics":              {map[string]string{"/metrics": jwt}, nil, "/metrics: a token"},
		"in the description":      {map[string]string{"/metrics": "", api.PathOpenAPI: "-----BEGIN PRIVATE KEY-----"}, nil, "a private key"},
		"in the set of keys":      {map[string]string{"/metrics": "", api.PathJWKS: `{"d":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`}, nil, "a private key"},
		"half of one in a log":    {map[string]string{"/metrics": ""}, []string{logs}, "known secret"},
		"logs that are not there": {map[string]string{"/metrics": ""}, []string{filepath.Join(logs, "absent")}, "no such file"},
		"no metrics to look at":   {map[string]string{}, nil, "status 404"},
	} {
		c.pages[api.PathReadiness] = `{"open":true,"signed":"` + jwt + `"}`
		a, server := audit(t, c.pages)
		a.Admin, a.Logs = []string{server.URL}, c.logs
		a.heard.secret(jwt)
		_, err := a.secretsIn(t.Context())
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// What refusals say is searched, too, and whoever asked still reads it.
func TestRefusalsAreHeard(t *testing.T) {
	t.Parallel()
	a, server := audit(t, map[string]string{"/metrics": "", api.PathReadiness: `{}`})
	require.Error(t, a.bare(t.Context(), http.MethodGet, server.URL+"/absent", nil))
	assert.Contains(t, a.heard.problems.String(), "not_found")
	a.heard.problems.WriteString(jwt)
	_, err := a.secretsIn(t.Context())
	require.ErrorContains(t, err, "what was refused")
}

func TestNoRedirectIsFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := 0
	to := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	t.Cleanup(to.Close)
	from := httptest.NewServer(http.RedirectHandler(to.URL, http.StatusFound))
	t.Cleanup(from.Close)
	client := newHeard().client()
	t.Cleanup(client.CloseIdleConnections)
	answer, err := client.Get(from.URL)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	assert.Equal(t, http.StatusFound, answer.StatusCode)
	assert.Zero(t, elsewhere)
}

// keySet is a set of one key, with what is changed of it.
func keySet(t *testing.T, change map[string]any) string {
	t.Helper()
	key, err := capability.GenerateKey()
	require.NoError(t, err)
	point, err := key.Public().Bytes()
	require.NoError(t, err)
	k := map[string]any{"kty": "EC", "crv": "P-256", "x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
		"kid": key.KeyID(), "alg": "ES256", "use": "sig", "generation": 1}
	for name, v := range change {
		k[name] = v
	}
	text, err := json.Marshal(map[string]any{"keys": []any{k}})
	require.NoError(t, err)
	return string(text)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	set := keySet(t, nil)
	for name, c := range map[string]struct{ first, second, want string }{
		"the same":             {set, set, ""},
		"another at a replica": {set, keySet(t, nil), "publishes other keys"},
		"another spelling":     {set, set + " ", "publishes other keys"},
		"none":                 {`{"keys":[]}`, `{"keys":[]}`, "there is no key"},
		"another name":         {keySet(t, map[string]any{"kid": "one"}), "", "not named by its thumbprint"},
		"another algorithm":    {keySet(t, map[string]any{"alg": "ES384"}), "", "not one for ES256"},
		"its private part":     {keySet(t, map[string]any{"d": strings.Repeat("A", 43)}), "", "private part"},
	} {
		a, _ := audit(t, map[string]string{api.PathJWKS: c.first})
		if c.second != "" {
			_, second := audit(t, map[string]string{api.PathJWKS: c.second})
			a.Replicas = []string{second.URL}
		}
		said, err := a.keys(t.Context())
		if c.want == "" {
			require.NoError(t, err, name)
			assert.Contains(t, said, "1 replicas and the authority publish ")
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// told is a person to whom the authority says always the same.
type told string

func (s told) Call(_ context.Context, _, _, _ string, _ []byte, out any) error {
	return json.Unmarshal([]byte(s), out)
}

func TestBuilds(t *testing.T) {
	t.Parallel()
	running := builds.Build{Binary: [32]byte{7}}
	mine := base64.RawURLEncoding.EncodeToString(running.Binary[:])
	replica := func(kind, component string, live bool, build string) string {
		return fmt.Sprintf(`{"kind":%q,"component":%q,"live":%t%s}`, kind, component, live, build)
	}
	this := replica("authority", "", true, `,"build":{"binary_sha256":"`+mine+`","fips":true,"module":"v1.0.0-c2097c7c"}`)
	for name, c := range map[string]struct {
		replicas []string
		fips     bool
		want     string
	}{
		"this very program":           {[]string{this}, true, ""},
		"one that is gone":            {[]string{this, replica("authority", "", false, `,"build":{"binary_sha256":"x"}`)}, true, ""},
		"a guard that says nothing":   {[]string{this, replica("component", "ledger", true, "")}, true, ""},
		"another program":             {[]string{this, replica("scheduler", "", true, `,"build":{"binary_sha256":"x"}`)}, false, "a process of the scheduler runs x"},
		"a replica that says nothing": {[]string{replica("authority", "", true, "")}, false, "does not say"},
		"nobody":                      {nil, false, "no process"},
		"no module":                   {[]string{this, replica("component", "ledger", true, `,"build":{"binary_sha256":"x"}`)}, true, "ledger: APP_MODULE"},
	} {
		a := &tripwire{Config: Config{Operator: Holder{Token: func() (string, error) { return jwt, nil }}, Running: running, FIPS: c.fips, As: func(string, *capability.Key, *http.Client) Person {
			return told(`{"replicas":[` + strings.Join(c.replicas, ",") + `]}`)
		}}, heard: newHeard()}
		_, err := a.builds(t.Context())
		if c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
}

// Who agrees to no closing sees it as not applicable, and nothing is closed.
func TestNothingIsClosedUnasked(t *testing.T) {
	t.Parallel()
	a := &tripwire{}
	a.close(t.Context())
	require.Len(t, a.report.Lines, 2)
	for _, l := range a.report.Lines {
		assert.Equal(t, NotApplicable, l.Verdict)
		assert.Contains(t, l.Evidence, "--close-gate")
	}
}

// A deployment that is closed, or not there, cannot be audited: that is no report, and no pass.
func TestWhatCannotBeAudited(t *testing.T) {
	t.Parallel()
	_, closed := audit(t, map[string]string{api.PathReadiness: `{"open":false}`})
	r, err := Run(t.Context(), Config{Authority: closed.URL, Now: time.Now})
	require.ErrorContains(t, err, "admission is closed")
	assert.True(t, r.Failed())
	_, err = Run(t.Context(), Config{Authority: "http://127.0.0.1:1", Now: time.Now})
	require.ErrorContains(t, err, "says nothing of its readiness")
}
