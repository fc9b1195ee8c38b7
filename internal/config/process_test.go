package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const goodAuthority = `database_url: postgres://nw_authority:hush@db/nightwarrant
issuer: https://night.example
listen: 0.0.0.0:8443
admin_listen: 127.0.0.1:9090
instance: replica-1
lease: 20s
clock_bound: 1s
keys:
  dir: /etc/nightwarrant/bundle
  identity_file: /etc/nightwarrant/identity
disk:
  paths: [/var/lib/postgresql, /var/log]
  min_free_mb: 1024
  min_free_percent: 10
assertion:
  issuers:
    - url: https://kubernetes.example
      jwks_url: https://kubernetes.example/openid/v1/jwks
      algorithms: [RS256]
      roots_file: /etc/nightwarrant/ca.pem
  max_lifetime: 2h
  refresh: 10s
  max_stale: 1m
envelope:
  issuer:
    url: https://idp.example
  audience: nightwarrant
  max_age: 10m
  refresh: 1m
  max_stale: 30m
  operators:
    - issuer: https://idp.example
      subject: o-1
directory:
  url: https://people.example/scim/v2
  token_file: /etc/nightwarrant/directory
  timeout: 200ms
`

func TestAGoodAuthority(t *testing.T) {
	t.Parallel()
	var a Authority
	require.NoError(t, Parse("f", []byte(goodAuthority), &a, noEnv))
	assert.Equal(t, Authority{
		Database: Database{DatabaseURL: "postgres://nw_authority:hush@db/nightwarrant"},
		Issuer:   "https://night.example", Listen: "0.0.0.0:8443", AdminListen: "127.0.0.1:9090", Instance: "replica-1",
		Lease: Duration(20 * time.Second), ClockBound: Duration(time.Second),
		Keys: Keys{Dir: "/etc/nightwarrant/bundle", IdentityFile: "/etc/nightwarrant/identity"},
		Disk: Disk{[]string{"/var/lib/postgresql", "/var/log"}, 1024, 10},
		Assertion: Assertion{MaxLifetime: Duration(2 * time.Hour), Freshness: Freshness{Duration(10 * time.Second), Duration(time.Minute)}, Issuers: []Workloads{{Issuer{URL: "https://kubernetes.example",
			JWKSURL: "https://kubernetes.example/openid/v1/jwks", Algorithms: []string{"RS256"}, RootsFile: "/etc/nightwarrant/ca.pem"}, TokenReview{}}}},
		Envelope: Envelope{Issuer: Issuer{URL: "https://idp.example", Algorithms: []string{"RS256", "ES256"}}, Audience: "nightwarrant",
			MaxAge: Duration(10 * time.Minute), Freshness: Freshness{Duration(time.Minute), Duration(30 * time.Minute)}, Operators: []Operator{{"https://idp.example", "o-1"}}},
		Directory: Directory{URL: "https://people.example/scim/v2", TokenFile: "/etc/nightwarrant/directory", Timeout: Duration(200 * time.Millisecond)},
	}, a)
}

// each line of changes replaces the line of the good file that begins like it.
func changed(t *testing.T, good, change string) string {
	t.Helper()
	key, _, _ := strings.Cut(change, ":")
	lines := strings.Split(good, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, key+":") {
			lines[i] = change
			return strings.Join(lines, "\n")
		}
	}
	t.Fatalf("the good file has no line %q", key)
	return ""
}

func TestAWrongAuthority(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"issuer: http://night.example":         "f line 2: issuer must be https, or http on a loopback address",
		"issuer: http://127.0.0.1.example":     "f line 2: issuer must be https, or http on a loopback address",
		"issuer: https://night.example/":       "f line 2: issuer must be an origin: no path and no slash at its end",
		"issuer: https://night.example/a":      "f line 2: issuer must be an origin: no path and no slash at its end",
		"issuer: https://night.example?a=b":    "f line 2: issuer must have no query and no fragment",
		"issuer: \"https://night.example#\"":   "f line 2: issuer must be an absolute URL in plain form",
		"issuer: https://u:hush@night.example": "f line 2: issuer must be an absolute URL in plain form",
		"issuer: https://Night.example":        "f line 2: issuer must be an absolute URL in plain form",
		"issuer: night.example":                "f line 2: issuer must be an absolute URL in plain form",
		"issuer: \"\"":                         "f line 2: issuer is missing",
		"listen: \"8443\"":                     "f line 3: listen must be an address and a port, such as 127.0.0.1:8443",
		"listen: 0.0.0.0:http":                 "f line 3: listen must have a port between 0 and 65535",
		"listen: 0.0.0.0:70000":                "f line 3: listen must have a port between 0 and 65535",
		"listen: night.example:8443":           "f line 3: listen must name an IP address of this machine, or none for all of them",
		"admin_listen: nowhere":                "f line 4: admin_listen must be an address and a port, such as 127.0.0.1:8443",
		"lease: 1s":                            "f line 6: lease must be between 2s and 1m0s",
		"lease: 61s":                           "f line 6: lease must be between 2s and 1m0s",
		"lease: -30s":                          "f line 6: lease must be between 2s and 1m0s",
		"clock_bound: 1ms":                     "f line 7: clock_bound must be between 100ms and 30s",
		"  dir: \" \"":                         "f line 9: keys.dir is missing",
		"  identity_file: \"\"":                "f line 10: keys.identity_file is missing",
		"    - url: \"\"":                      "f line 17: assertion.issuers[0].url is missing",
		"      algorithms: [HS256]":            "f line 19: assertion.issuers[0].algorithms may be RS256 and ES256 only",
		"      algorithms: [none]":             "f line 19: assertion.issuers[0].algorithms may be RS256 and ES256 only",
		"  max_lifetime: 25h":                  "f line 21: assertion.max_lifetime must be between 1m0s and 24h0m0s",
		"    url: \"\"":                        "f line 26: envelope.issuer.url is missing",
		"  audience: \"\"":                     "f line 27: envelope.audience is missing",
		"  paths: [var/log]":                   "f line 12: disk.paths[0] must be an absolute path",
		"  paths: [/a, \"\"]":                  "f line 12: disk.paths[1] must be an absolute path",
		"  paths: [/1,/2,/3,/4,/5,/6,/7,/8,/9,/10,/11,/12,/13,/14,/15,/16,/17]": "f line 12: disk.paths may be at most 16",
		"  paths: /var/log":                        "f line 12: disk.paths must be a list",
		"  min_free_mb: -1":                        "f line 13: disk.min_free_mb must be between 1 and 1048576",
		"  min_free_percent: 51":                   "f line 14: disk.min_free_percent must be between 1 and 50",
		"  refresh: 999ms":                         "f line 22: assertion.refresh must be between 1s and 1h0m0s",
		"  refresh: 61m":                           "f line 22: assertion.refresh must be between 1s and 1h0m0s",
		"  refresh: 61s":                           "f line 23: assertion.max_stale must not be less than assertion.refresh, which is 1m1s",
		"  max_stale: 5s":                          "f line 23: assertion.max_stale must not be less than assertion.refresh, which is 10s",
		"  max_stale: 25h":                         "f line 23: assertion.max_stale must be between 1s and 24h0m0s",
		"  max_age: 13h":                           "f line 28: envelope.max_age must be between 1m0s and 12h0m0s",
		"  url: http://people.example":             "f line 35: directory.url must be https, or http on a loopback address",
		"  url: \"\"":                              "f line 35: directory.url is missing",
		"  token_file: \"\"":                       "f line 36: directory.token_file is missing",
		"  timeout: 501ms":                         "f line 37: directory.timeout must be between 10ms and 500ms",
		"      subject: \"\"":                      "f line 31: envelope.operators must each have an issuer and a subject",
		"database_url: \"\"":                       "f line 1: database_url must be given, here or as database_url_file, and not in both places",
		"database_url: a\ndatabase_url_file: /a/b": "f line 1: database_url must be given, here or as database_url_file, and not in both places",
		"database_url_file: /nowhere/at/all":       "",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			if want == "" {
				text := strings.Replace(goodAuthority, strings.SplitN(goodAuthority, "\n", 2)[0], change, 1)
				err := Parse("f", []byte(text), &Authority{}, noEnv)
				require.EqualError(t, err, `f line 1: database_url_file names "/nowhere/at/all", which cannot be opened: no such file or directory`)
				return
			}
			require.EqualError(t, Parse("f", []byte(changed(t, goodAuthority, change)), &Authority{}, noEnv), want)
		})
	}
}

func TestKeysOfThePlatformAreBoundedToo(t *testing.T) {
	t.Parallel()
	text := strings.Replace(goodAuthority, "max_stale: 30m", "max_stale: 59s", 1)
	require.EqualError(t, Parse("f", []byte(text), &Authority{}, noEnv), "f line 30: envelope.max_stale must not be less than envelope.refresh, which is 1m0s")
	text = strings.Replace(goodAuthority, "refresh: 1m\n", "refresh: 2h\n", 1)
	require.EqualError(t, Parse("f", []byte(text), &Authority{}, noEnv), "f line 29: envelope.refresh must be between 1s and 1h0m0s")
}

func TestDefaultsOfAnAuthority(t *testing.T) {
	t.Parallel()
	a := Authority{}
	require.NoError(t, Parse("f", []byte(`database_url: x
issuer: http://127.0.0.1:8443
listen: :8443
keys: {dir: a, identity_file: b}
assertion: {issuers: [{url: "https://k.example"}]}
envelope: {issuer: {url: "https://i.example"}, audience: n}
directory: {url: "https://d.example", token_file: d}
`), &a, noEnv))
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Equal(t, host, a.Instance)
	assert.Equal(t, 30*time.Second, a.Lease.Std())
	assert.Equal(t, 2*time.Second, a.ClockBound.Std())
	assert.Equal(t, time.Hour, a.Envelope.MaxAge.Std())
	assert.Equal(t, 300*time.Millisecond, a.Directory.Timeout.Std())
	assert.Equal(t, 24*time.Hour, a.Assertion.MaxLifetime.Std())
	assert.Empty(t, a.AdminListen)
	assert.Equal(t, Disk{nil, 512, 5}, a.Disk)
	for _, f := range []Freshness{a.Assertion.Freshness, a.Envelope.Freshness} {
		assert.Equal(t, Freshness{Duration(5 * time.Minute), Duration(time.Hour)}, f)
	}

	require.EqualError(t, Parse("f", []byte("database_url: x\nissuer: http://127.0.0.1:8443\nlisten: :8443\nkeys: {dir: a, identity_file: b}\n"), &Authority{}, noEnv),
		"f: assertion.issuers is missing")
}

func TestTheEnvironmentOverridesTheDatabase(t *testing.T) {
	t.Parallel()
	env := func(name string) string { return map[string]string{EnvDatabaseURL: "postgres://from/env"}[name] }
	for _, first := range []string{"database_url: postgres://other/one\n", "database_url_file: /nowhere\n", ""} {
		text := first + strings.SplitN(goodAuthority, "\n", 2)[1]
		var a Authority
		require.NoError(t, Parse("f", []byte(text), &a, env))
		assert.Equal(t, "postgres://from/env", a.DatabaseURL.Reveal())
	}
}

const goodGuard = `kind: postgres
uri: https://ledger.example/v1
listen: 127.0.0.1:9001
name: ledger
authority: https://night.example
assertion_file: /var/run/secrets/nightwarrant/token
database_url: postgres://guard:hush@db/ledger
tables:
  totals:
    columns: [day, total]
    key: [day]
`

func TestGuards(t *testing.T) {
	t.Parallel()
	d, err := ParseGuard("f", []byte(goodGuard), noEnv)
	require.NoError(t, err)
	assert.Equal(t, map[string]Table{"totals": {"", []string{"day", "total"}, []string{"day"}}}, d.(*PostgresGuard).Tables)
	assert.Equal(t, "ledger", d.Common().Name)
	for change, want := range map[string]string{
		"kind: other":                       "f line 1: kind must be one of ",
		"kind: 1":                           "f line 1: kind must be one of ",
		"kind: http":                        "f line 7: database_url is not a known key",
		"uri: http://ledger.example/v1":     "f line 2: uri must be https, or http on a loopback address",
		"uri: https://night.example/v1":     "f line 2: uri must be on an origin of its own, not the authority's",
		"listen: x":                         "f line 3: listen must be an address and a port, such as 127.0.0.1:8443",
		"name: \"\"":                        "f line 4: name is missing",
		"authority: https://night.example/": "f line 5: authority must be an origin: no path and no slash at its end",
		"assertion_file: \"\"":              "f line 6: assertion_file is missing",
		"    columns: []":                   "f line 9: tables.totals must list its columns",
	} {
		_, err := ParseGuard("f", []byte(changed(t, goodGuard, change)), noEnv)
		require.ErrorContains(t, err, want, change)
	}
	none, _, _ := strings.Cut(goodGuard, "tables:")
	_, err = ParseGuard("f", []byte(none), noEnv)
	require.EqualError(t, err, "f: tables is missing: a guard that may touch nothing has nothing to do")
	for text, want := range map[string]string{"": "exactly one document", "\xff": "not UTF-8", "{[": "cannot be read", "kind: &a b": "an anchor"} {
		_, err = ParseGuard("f", []byte(text), noEnv)
		require.ErrorContains(t, err, want, text)
	}
	for _, text := range []string{"[]", "a", "kind: {a: b}", "kind:\n", strings.TrimPrefix(goodGuard, "kind: postgres\n")} {
		_, err = ParseGuard("f", []byte(text), noEnv)
		require.ErrorContains(t, err, "kind must be one of ", text)
	}
	_, err = LoadGuard("/nowhere", noEnv)
	require.Error(t, err)
}

const goodHTTPGuard = `kind: http
uri: https://pay.example/v1
listen: 127.0.0.1:9001
name: payments
authority: https://night.example
assertion_file: /var/run/secrets/nightwarrant/token
ledger_dir: /var/lib/nightwarrant/payments
credential: {file: /etc/nightwarrant/key}
allow_private: [10.1.0.0/16]
operations:
  - action: payment.create
    title: Pay from an account
    parameters:
      type: object
      additionalProperties: false
      required: [account, cents]
      properties:
        account: {type: string, maxLength: 40}
        cents: {type: integer, minimum: 1}
    resource: https://api.example/accounts/{account}
    amount: cents
    currency: EUR
    request:
      url: https://api.example/accounts/{account}/payments
      query: {source: night}
      body: {amount: "{cents}", "a b": [true, 1, "x"]}
      idempotency_header: Idempotency-Key
    answer: {success: [201], fields: [id]}
    inspect: {fields: ["items[].id"]}
`

func TestGuardsOfHTTP(t *testing.T) {
	t.Parallel()
	d, err := ParseGuard("f", []byte(goodHTTPGuard), noEnv)
	require.NoError(t, err)
	g := d.(*HTTPGuard)
	o := g.Operations[0]
	assert.JSONEq(t, `{"type":"object","additionalProperties":false,"required":["account","cents"],"properties":{"account":{"type":"string","maxLength":40},"cents":{"type":"integer","minimum":1}}}`, string(o.Parameters))
	assert.JSONEq(t, `{"amount":"{cents}","a b":[true,1,"x"]}`, string(o.Request.Body))
	assert.Equal(t, map[string]string{"source": "night"}, o.Request.Query)
	assert.Equal(t, []int64{201}, o.Answer.Success)
	assert.Equal(t, []string{"items[].id"}, o.Inspect.Fields)
	assert.Equal(t, 4*time.Second, o.Timeout.Std())
	assert.Equal(t, Credential{Header: "Authorization", Prefix: "Bearer ", File: "/etc/nightwarrant/key"}, g.Credential)
	assert.EqualValues(t, 256<<10, g.MaxAnswer)
	for change, want := range map[string]string{
		"ledger_dir: here":                            "f line 7: ledger_dir must be an absolute path",
		"ledger_dir: \"\"":                            "f line 7: ledger_dir is missing",
		"credential: {}":                              "f line 8: credential must have exactly one of file, env and none",
		"credential: {file: a, env: B}":               "f line 8: credential must have exactly one of file, env and none",
		"credential: {none: true, header: X-A}":       "f line 8: credential.none leaves no header to send",
		"credential: {none: true, file: a}":           "f line 8: credential must have exactly one of file, env and none",
		"    title: \"\"":                             "f line 12: operations[0].title is missing",
		"    resource: \"\"":                          "f line 20: operations[0].resource is missing",
		"    currency: EUR\n    timeout: 2m":          "f line 23: operations[0].timeout must be between 100ms and 1m0s",
		"    amount: cents\n    amount: cents":        "f line 22: operations[0].amount stands twice",
		"        cents: {type: integer, min: 1.5}":    "f line 19: operations[0].parameters.properties.cents.min must be an object, a list, a text, a plain integer, true or false",
		"        cents: {type: integer, min: 0x1}":    "f line 19: operations[0].parameters.properties.cents.min must be an object, a list, a text, a plain integer, true or false",
		"        cents: {type: integer, min: }":       "f line 19: operations[0].parameters.properties.cents.min must be an object, a list, a text, a plain integer, true or false",
		"        cents: {a: 1, a: 2}":                 "f line 19: operations[0].parameters.properties.cents.a stands twice",
		"        cents: &a {a: 1}":                    "f line 19: an anchor is not allowed",
		"        cents: [{1: 2}]":                     "f line 19: operations[0].parameters.properties.cents[0] has a key that is not text",
		"    answer: {success: [\"201\"]}":            "f line 28: operations[0].answer.success[0] must be a plain integer",
		"    answer: {status: [201]}":                 "f line 28: operations[0].answer.status is not a known key",
		"allow_private: [10.1.0.0/16]\nmax_answer: 1": "f line 10: max_answer must be between 1024 and 16777216",
	} {
		_, err := ParseGuard("f", []byte(changed(t, goodHTTPGuard, change)), noEnv)
		require.EqualError(t, err, want, change)
	}
	none, _, _ := strings.Cut(goodHTTPGuard, "operations:")
	_, err = ParseGuard("f", []byte(none), noEnv)
	require.EqualError(t, err, "f: operations is missing: a guard that may send nothing has nothing to do")
	without := strings.Replace(goodHTTPGuard, "credential: {file: /etc/nightwarrant/key}\n", "", 1)
	_, err = ParseGuard("f", []byte(without), noEnv)
	require.EqualError(t, err, "f: credential must have exactly one of file, env and none")
	d, err = ParseGuard("f", []byte(strings.Replace(goodHTTPGuard, "{file: /etc/nightwarrant/key}", "{env: API_KEY, header: X-Api-Key}", 1)), noEnv)
	require.NoError(t, err)
	assert.Equal(t, Credential{Header: "X-Api-Key", Env: "API_KEY"}, d.(*HTTPGuard).Credential)
}

func TestSchedulers(t *testing.T) {
	t.Parallel()
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("hush\n"), 0o600))
	secret := filepath.Join(t.TempDir(), "webhook")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	good := `database_url: postgres://nw_scheduler:hush@db/nightwarrant
instance: one
nats:
  url: nats://127.0.0.1:4222,nats://127.0.0.2:4222
  user: scheduler
  password_file: ` + password + `
  monitor_url: http://127.0.0.1:8222,http://127.0.0.2:8222
  replicas: 3
start_rate: 5
republish: 20s
disk: {paths: [/var/lib/nats], min_free_percent: 20}
approvals:
  webhook:
    url: https://platform.example/hooks/nightwarrant
    secret_file: ` + secret + `
  link: https://console.example/night
`
	var s Scheduler
	require.NoError(t, Parse("f", []byte(good), &s, noEnv))
	assert.Equal(t, "hush", s.NATS.Password.Reveal())
	assert.Equal(t, []string{"http://127.0.0.1:8222", "http://127.0.0.2:8222"}, s.NATS.Monitors())
	assert.EqualValues(t, 5, s.StartRate)
	assert.Equal(t, Disk{[]string{"/var/lib/nats"}, 512, 20}, s.Disk)
	assert.False(t, s.Approvals.Webhook.Secret.IsZero())
	assert.Equal(t, "https://console.example/night", s.Approvals.Link)
	before, _, _ := strings.Cut(good, "approvals:")
	require.EqualError(t, Parse("f", []byte(before), &Scheduler{}, noEnv), "f: approvals.webhook.url is missing", "nobody runs without telling owners")
	for change, want := range map[string]string{
		"    url: \"\"":                         "f line 14: approvals.webhook.url is missing",
		"    url: http://platform.example/a":    "f line 14: approvals.webhook.url must be https, or http on a loopback address",
		"    url: https://u:p@platform.example": "f line 14: approvals.webhook.url must be an absolute URL in plain form",
		"    secret_file: \"\"":                 "f line 15: approvals.webhook.secret_file is missing",
		"    secret_file: /nowhere":             `f line 15: approvals.webhook.secret_file names "/nowhere", which cannot be opened: no such file or directory`,
		"    secret_file: " + password:          "f line 15: approvals.webhook.secret_file must be whsec_ and then the base64 of 24 to 64 random bytes",
		"  link: http://console.example":        "f line 16: approvals.link must be https, or http on a loopback address",
		"  link: https://console.example/":      "f line 16: approvals.link must not end with a slash",
		"  link: https://console.example?a=b":   "f line 16: approvals.link must have no query and no fragment",
		"  url: nats://u:hush@127.0.0.1:4222":   "f line 4: nats.url must not hold a user or a password; nats.user and nats.password_file do",
		"  url: http://127.0.0.1:4222":          "f line 4: nats.url must be nats:// or tls:// URLs, joined by commas without spaces",
		"  url: \"\"":                           "f line 4: nats.url is missing",
		"  url: nats://a:4222, nats://b:4222":   "f line 4: nats.url must be nats:// or tls:// URLs, joined by commas without spaces",
		"  user: \"\"":                          "f line 5: nats.user and nats.password_file must be given both or neither",
		"  password_file: /nowhere":             `f line 6: nats.password_file names "/nowhere", which cannot be opened: no such file or directory`,
		"  monitor_url: 127.0.0.1:8222":         "f line 7: nats.monitor_url must be http:// or https:// URLs, joined by commas without spaces",
		"start_rate: 1001":                      "f line 9: start_rate must be between 1 and 1000 runs in one second",
		"start_rate: -1":                        "f line 9: start_rate must be between 1 and 1000 runs in one second",
		"disk: {paths: [here]}":                 "f line 11: disk.paths[0] must be an absolute path",
		"republish: 1s":                         "f line 10: republish must be between 5s and 5m0s",
	} {
		require.EqualError(t, Parse("f", []byte(changed(t, good, change)), &Scheduler{}, noEnv), want, change)
	}
}
