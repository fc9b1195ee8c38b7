package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/directory/scimserver"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/migrations"
)

// site is everything that a replica needs, on disk.
type site struct {
	dir       string
	url       string
	workloads *jwkstest.Issuer
	platform  *jwkstest.Issuer
	members   *scimserver.Server
	file      string // authority.yaml
}

const siteFile = `database_url: DATABASE
issuer: ISSUER
listen: LISTEN
admin_listen: 127.0.0.1:0
instance: one
keys: {dir: DIR/bundle, identity_file: DIR/identity}
assertion:
  issuers: [{url: WORKLOADS}]
envelope:
  issuer: {url: PLATFORM}
  audience: AUDIENCE
  max_age: 1h
  operators: [{issuer: PLATFORM, subject: operator-1}]
directory: {url: MEMBERS, token_file: DIR/directory.token}
`

// newSite writes the files; database may be a URL that nobody answers.
func newSite(t testing.TB, database string) *site {
	t.Helper()
	listen, err := freeport.Address()
	require.NoError(t, err)
	s := &site{dir: t.TempDir(), url: "http://" + listen, workloads: jwkstest.New(t), platform: jwkstest.New(t), members: scimserver.New("directory-token")}
	directory := httptest.NewServer(s.members)
	t.Cleanup(directory.Close)
	write(t, s.dir, "directory.token", "directory-token")
	env{}.good(t, "keys", "init", "--dir", filepath.Join(s.dir, "bundle"), "--identity-file", filepath.Join(s.dir, "identity"))
	s.file = write(t, s.dir, "authority.yaml", strings.NewReplacer("DATABASE", database, "ISSUER", s.url, "LISTEN", listen, "DIR", s.dir,
		"WORKLOADS", s.workloads.URL, "PLATFORM", s.platform.URL, "MEMBERS", directory.URL, "AUDIENCE", authoritytest.Audience).Replace(siteFile))
	return s
}

// with is the site's file with one text replaced.
func (s *site) with(t testing.TB, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(s.file)
	require.NoError(t, err)
	require.Contains(t, string(text), from)
	return write(t, t.TempDir(), "authority.yaml", strings.Replace(string(text), from, to, 1))
}

func (s *site) register(t testing.TB, db *teststack.DB) result {
	t.Helper()
	return env{}.run(t, "keys", "register", "--dir", filepath.Join(s.dir, "bundle"), "--identity-file", filepath.Join(s.dir, "identity"), "--database-url", db.URL("nw_operator"))
}

// unreachable is a database that is not there; nothing may get as far as that.
const unreachable = "postgres://nw_authority:hunter2@127.0.0.1:1/nightwarrant"

// Whatever is wrong with the files of a replica ends it with code 78 and one
// sentence, before it asks the database, listens or writes anything.
func TestServeRefusesFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t, unreachable)
	for _, c := range []struct{ from, to, sentence string }{
		{"issuer: http://", "issuer: http://nightwarrant.example@", "issuer must be an absolute URL in plain form"},
		{"issuer: " + s.url, "issuer: http://nightwarrant.example", "issuer must be https, or http on a loopback address"},
		{"issuer: " + s.url, "issuer: " + s.url + "/path", "issuer must be an origin: no path and no slash at its end"},
		{"issuer: " + s.url, "issuer: " + s.url + "?a=b", "issuer must have no query and no fragment"},
		{"listen: 127.0.0.1", "listen: nowhere", "listen must name an IP address"},
		{"admin_listen: 127.0.0.1:0", "admin_listen: \"0\"", "admin_listen must be an address and a port"},
		{"instance: one", "instance: one\nlease: 1s", "lease must be between 2s and 1m0s"},
		{"instance: one", "instance: one\nlease: 2m", "lease must be between 2s and 1m0s"},
		{"instance: one", "instance: one\ninstances: 2", "instances is not a known key"},
		{"instance: one", "instance: one\naudit: {anchors: [here]}", "audit.anchors[0] must be the absolute path of a file"},
		{"instance: one", "instance: one\naudit: {witnesses: [{url: \"http://w.example\"}]}", "audit.witnesses[0].url must be https"},
		{"instance: one", "instance: one\naudit: {witnesses: [{url: \"https://w.example\", key: x}]}", "audit.witnesses[0].key is not the key of a witness"},
		{"audience: " + authoritytest.Audience, "audience: \"\"", "envelope.audience is missing"},
		{"audience: " + authoritytest.Audience, "audience: " + s.url, "envelope cannot be used: principal: the envelope's issuer and audience must differ from our issuer"},
		{"audience: " + authoritytest.Audience, "audience: " + s.platform.URL, "envelope cannot be used"},
		{"subject: operator-1", "subject: \"\"", "envelope.operators must each have an issuer and a subject"},
		{"operators: [{issuer: ", "operators: [{issuer: x", "an operator or auditor must be named by the envelope's issuer"},
		{"issuers: [{url: " + s.workloads.URL, "issuers: [{url: " + s.url, "our own issuer cannot be a configured issuer"},
		{"issuers: [{url: http://127.0.0.1", "issuers: [{url: http://192.0.2.1", "it must be https (http only for loopback addresses)"},
		{"issuers: [{url: ", "issuers: [{roots_file: /nowhere, url: ", "roots_file that cannot be used"},
		{"issuers: [{url: ", "issuers: [{roots_file: " + s.file + ", url: ", "it holds no PEM certificate"},
		{"issuer: {url: " + s.platform.URL, "issuer: {url: " + s.url, "our own issuer cannot be a configured issuer"},
		{"keys: {dir: ", "keys: {dir: /nowhere", "cannot be found"},
		{"identity_file: " + s.dir + "/identity", "identity_file: " + s.dir + "/bundle/identity", "the identity file lies inside the bundle directory"},
		{"directory: {url: ", "directory: {url: \"\", token_file: x}\n#", "directory.url is missing"},
		{"directory: {url: http://127.0.0.1", "directory: {url: http://192.0.2.1", "directory.url must be https, or http on a loopback address"},
		{"token_file: ", "token_file: /nowhere", `directory.token_file names "/nowhere`},
		{"directory.token}", "directory.token, timeout: 1s}", "directory.timeout must be between 10ms and 500ms"},
		{"directory.token}", "directory.token, roots_file: " + s.file + "}", "directory.roots_file cannot be used: it holds no PEM certificate"},
		{"directory: {", "#", "directory.url is missing"},
		{"database_url: ", "database_url_file: /nowhere\n#", `database_url_file names "/nowhere", which cannot be opened`},
		{"database_url: ", "database_url: \"\"\n#", "database_url must be given"},
		{"database_url: " + unreachable, "database_url: \"http://u:hunter2@h/\"", "its URL cannot be read"},
	} {
		t.Run(c.to, func(t *testing.T) {
			t.Parallel()
			r := env{}.run(t, "serve", "--config", s.with(t, c.from, c.to))
			r.bad(t, exitMisconfigured, c.sentence)
			assert.NotContains(t, r.err, "hunter2")
		})
	}
	env{}.run(t, "serve", "--config", filepath.Join(s.dir, "absent.yaml")).bad(t, exitMisconfigured, "cannot be opened")
	r := env{}.run(t, "serve", "--config", s.file)
	assert.Equal(t, exitFailed, r.code, "a database that is away may come back")
	assert.NotContains(t, r.err, "hunter2")
}

// Key material that was changed or is missing stops the replica (mission B13).
func TestServeRefusesMaterial(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *site) error{
		"no identity":   func(s *site) error { return os.Remove(filepath.Join(s.dir, "identity")) },
		"open identity": func(s *site) error { return os.Chmod(filepath.Join(s.dir, "identity"), 0o644) },
		"no bundle":     func(s *site) error { return os.RemoveAll(filepath.Join(s.dir, "bundle")) },
		"no seal":       func(s *site) error { return os.Remove(filepath.Join(s.dir, "bundle", "secrets.age")) },
		"changed seal": func(s *site) error {
			return os.WriteFile(filepath.Join(s.dir, "bundle", "secrets.age"), []byte("x"), 0o600)
		},
		"changed text": func(s *site) error {
			return os.WriteFile(filepath.Join(s.dir, "bundle", "bundle.json"), []byte("{}"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, unreachable)
			before := listing(t, s.dir)
			require.NoError(t, spoil(s))
			spoiled := listing(t, s.dir)
			require.NotEqual(t, before, spoiled)
			env{}.run(t, "serve", "--config", s.file).bad(t, exitMisconfigured, "")
			assert.Equal(t, spoiled, listing(t, s.dir), "it repaired something")
		})
	}
}

// listing is every file below a directory with its mode and its content.
func listing(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		all[path] = info.Mode().String() + string(text)
		return err
	}))
	return all
}

// The database decides which bundle is the cluster's: none is never entered on
// the way, and another one is refused (mission A11).
func TestServeHoldsTheRegisteredKeysOrNothing(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s, other := newSite(t, db.URL("nw_authority")), newSite(t, db.URL("nw_authority"))
	env{}.run(t, "serve", "--config", s.file).bad(t, exitMisconfigured, "no key bundle is registered for this cluster: run `nightwarrant keys register` once")
	env{}.run(t, "serve", "--config", s.file).bad(t, exitMisconfigured, "no key bundle is registered") // it did not enter its own

	require.Equal(t, exitOK, s.register(t, db).code)
	require.Equal(t, exitOK, s.register(t, db).code, "the same again")
	other.register(t, db).bad(t, exitMisconfigured, "another key bundle is registered for this cluster; nothing was changed")
	env{}.run(t, "serve", "--config", other.file).bad(t, exitMisconfigured, "the key bundle belongs to another cluster than the database")

	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	assert.Equal(t, s.url, get(t, s.url+"/.well-known/oauth-authorization-server")["issuer"])
	keys := get(t, s.url+"/v1/jwks")["keys"].([]any)
	require.Len(t, keys, 1)
	assert.NotContains(t, keys[0], "d")
	assert.Equal(t, exitOK, r.end(), r.log)
	assert.NotContains(t, r.log.String(), db.URL("nw_authority"))
}

func get(t testing.TB, url string) (body map[string]any) {
	t.Helper()
	answer, err := plainClient().Get(url)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &body))
	return body
}

// A replica runs on exactly the schema that it was built for.
func TestServeRefusesAnotherSchema(t *testing.T) {
	t.Parallel()
	_, newest, err := migrations.Version(t.Context(), teststack.Database(t).URL(teststack.Owner))
	require.NoError(t, err)
	for change, sentence := range map[string]string{
		`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`:                      "the database has schema version 9999 and this program is older",
		`DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`: fmt.Sprintf("the database has schema version %d and this program needs %d: run `nightwarrant migrate`", newest-1, newest),
	} {
		db := teststack.Database(t)
		s := newSite(t, db.URL("nw_authority"))
		require.Equal(t, exitOK, s.register(t, db).code)
		_, err := db.Pool(t, teststack.Owner).Exec(t.Context(), change)
		require.NoError(t, err)
		env{}.run(t, "serve", "--config", s.file).bad(t, exitMisconfigured, sentence)
	}
}

// A replica reports every family that it answers for as good but for what the
// scratch database of the tests really is: one that may lose a commit.
func TestServeReportsItsFamilies(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	require.Equal(t, exitOK, s.register(t, db).code)
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	owner := db.Pool(t, teststack.Owner)
	want := "attestation good, audit good, clock good, directory good, nonces good, signing good, store settings"
	var got string
	require.Eventually(t, func() bool {
		err := owner.QueryRow(t.Context(), `SELECT coalesce(string_agg(family || ' ' || reason, ', ' ORDER BY family), '') FROM nw.readiness_reports`).Scan(&got)
		return err == nil && got == want
	}, testWithin, 50*time.Millisecond, "%s", &got)

	var out string
	require.Eventually(t, func() bool { // as soon as the replica has evaluated once, after those reports
		out = env{}.good(t, "readiness", "--authority", s.url)
		return strings.Contains(out, "\n  queue: absent (0 of 1 good)\n") && !strings.Contains(out, "signing")
	}, testWithin, 50*time.Millisecond, "%s", &out)
	assert.Regexp(t, `^Admission is closed; readiness epoch \d+: .+\.\n`, out)
	var d map[string]any
	require.NoError(t, json.Unmarshal([]byte(env{envAuthority: s.url}.good(t, "readiness", "--json")), &d))
	assert.Equal(t, false, d["open"])

	assert.Equal(t, exitOK, r.end(), r.log)
}

func TestGate(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	e := env{"NIGHTWARRANT_DATABASE_URL": db.URL("nw_operator")}
	assert.Contains(t, e.good(t, "gate", "close"), "Admission is closed and held")
	assert.Contains(t, e.good(t, "gate", "release"), "The hold has ended.")
	assert.Equal(t, "There was no hold.\n", e.good(t, "gate", "release"))
	file := write(t, t.TempDir(), "url", db.URL("nw_operator")+"\n")
	assert.Contains(t, env{}.good(t, "gate", "close", "--database-url-file", file), "held")
	require.NoError(t, os.Chmod(file, 0o644))
	env{}.run(t, "gate", "close", "--database-url-file", file).bad(t, exitMisconfigured, "must be 0600 or 0400")
	env{}.run(t, "gate", "close").bad(t, exitMisconfigured, "name the database with --database-url")
	// Nobody opens the gate by hand, and the authority's own role does not close it either.
	env{}.run(t, "gate", "open").bad(t, exitFailed, `unknown command "open" for "nightwarrant gate"`)
	env{}.run(t, "gate", "close", "--database-url", db.URL("nw_authority")).bad(t, exitFailed, "permission denied")
	e.run(t, "gate", "close", "--why", "I say so").bad(t, exitMisconfigured, "--why must be one of incident, maintenance, drill, other")
	e.good(t, "gate", "close", "--why", "drill")
	e.run(t, "gate", "standby").bad(t, exitFailed, "does not wait for a synchronous standby")
}

// The board is read with the database alone: no replica, no login, no queue.
func TestReadinessBoard(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	e := env{"NIGHTWARRANT_DATABASE_URL": db.URL("nw_operator")}
	out := e.good(t, "readiness")
	assert.Regexp(t, `^Admission is closed: start since \S+Z. Epoch 1, incarnation 1, requirement 1.\n\n`, out)
	assert.Regexp(t, `(?m)^FAMILY +COMPONENT +STATE +SINCE +GOOD +NEEDED +AGE +TASKS$`, out)
	for _, family := range []string{"store", "signing", "nonces", "queue", "clock", "audit", "attestation", "directory", "approvals", "guards"} {
		assert.Regexp(t, `(?m)^`+family+` +absent +never +0 +1 +never +0$`, out)
	}
	e.good(t, "gate", "close")
	assert.Contains(t, e.good(t, "readiness"), "Admission is closed and held by hand since ")
	var b struct {
		Held     bool
		Families []map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(e.good(t, "readiness", "--json")), &b))
	assert.True(t, b.Held)
	assert.Len(t, b.Families, 10)
	env{}.run(t, "readiness", "--database-url", db.URL("nw_scheduler")).bad(t, exitFailed, "permission denied")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	assert.Equal(t, "The database has schema version 18.\n", env{}.good(t, "migrate", "--database-url", db.URL(teststack.Owner)), "it is there already")
	r := env{}.run(t, "migrate", "--database-url", "postgres://u:hunter2@[")
	r.bad(t, exitMisconfigured, "the database's URL cannot be read")
	assert.NotContains(t, r.err, "hunter2")
	r = env{}.run(t, "migrate", "--database-url", unreachable)
	r.bad(t, exitFailed, "the migration did not end")
	assert.NotContains(t, r.err, "hunter2")
}

func TestKeysInitNeverOverwrites(t *testing.T) {
	t.Parallel()
	s := newSite(t, unreachable)
	before := listing(t, s.dir)
	env{}.run(t, "keys", "init", "--dir", filepath.Join(s.dir, "bundle"), "--identity-file", filepath.Join(s.dir, "identity")).bad(t, exitMisconfigured, "never overwritten")
	assert.Equal(t, before, listing(t, s.dir))
	env{}.run(t, "keys", "init", "--dir", filepath.Join(s.dir, "two"), "--identity-file", filepath.Join(s.dir, "two", "identity")).bad(t, exitMisconfigured, "")
}

// SIGTERM ends a replica with code 0; a misconfigured one ends with 78.
func TestSignalsAndExitCodes(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	start := func(ready string) (*exec.Cmd, *watched) {
		w := &watched{want: ready, seen: make(chan struct{})}
		c := exec.CommandContext(t.Context(), os.Args[0], "serve", "--config", s.file)
		c.Env, c.Stderr, c.WaitDelay = append(os.Environ(), asProgram+"=1"), w, testWithin
		require.NoError(t, c.Start())
		return c, w
	}
	c, w := start("registered")
	require.Error(t, c.Wait())
	assert.Equal(t, exitMisconfigured, c.ProcessState.ExitCode())
	assert.Equal(t, "nightwarrant: no key bundle is registered for this cluster: run `nightwarrant keys register` once\n", w.String())

	require.Equal(t, exitOK, s.register(t, db).code)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c, w := start(`"msg":"serving"`)
		select {
		case <-w.seen:
		case <-time.After(testWithin):
			require.FailNow(t, "it is not ready", w.String())
		}
		require.NoError(t, c.Process.Signal(signal))
		require.NoError(t, c.Wait(), w.String())
	}
}
