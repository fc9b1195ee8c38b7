package main

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/webhook"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

const secondRole = `kind: WorkloadRole
name: night.reader
client: books
revision: 1
profiles: [bookkeeper]
actions: [{guard: ledger, action: row.append}]
limits: {max_runtime_s: 3600, max_effects: 10}
`

// A server that runs on what is printed lets each role take from its own queue
// and do nothing else; and what --apply makes is what workers and schedulers need.
func TestNATSConfigRunsAServer(t *testing.T) { // not parallel: it sets variables of the environment
	h := authoritytest.Bare(t)
	h.Apply(authoritytest.Registry(h.Workloads.URL))
	h.Apply(secondRole)
	operator := env{config.EnvDatabaseURL: h.DB.URL("nw_operator")}
	printed := operator.good(t, "admin", "nats-config")
	for _, name := range []string{"NW_ROLE_BOOKKEEPER_PASSWORD", "NW_ROLE_NIGHT_READER_PASSWORD", "NW_SCHEDULER_PASSWORD"} {
		assert.Contains(t, printed, "password: $"+name+",")
		t.Setenv(name, `"password of `+name+`"`)
	}
	t.Setenv("NW_NATS_STORE_DIR", `"`+t.TempDir()+`"`)
	assert.Equal(t, 3, strings.Count(printed, "password:"), printed)

	url := natsServer(t, write(t, t.TempDir(), "nats.conf", printed))
	password := write(t, t.TempDir(), "password", "password of NW_SCHEDULER_PASSWORD\n")
	apply := []string{"admin", "nats-config", "--apply", "--nats-url", url, "--nats-password-file", password}
	assert.Equal(t, "The stream and 2 consumers are as they must be.\n", operator.good(t, apply...))
	assert.Equal(t, "The stream and 2 consumers are as they must be.\n", operator.good(t, apply...), "nothing is changed")
	wrong := write(t, t.TempDir(), "password", "nonsense")
	operator.run(t, "admin", "nats-config", "--apply", "--nats-url", url, "--nats-password-file", wrong).bad(t, exitFailed, "the queue cannot be reached")
	operator.run(t, append(apply, "--replicas", "2")...).bad(t, exitFailed, "1, 3 or 5 replicas")
	operator.run(t, "admin", "nats-config", "--apply").bad(t, exitMisconfigured, "nats.url is missing")

	queues := map[string]string{}
	for _, m := range regexp.MustCompile(`workers of role (\S+); their queue is (\S{22})\n`).FindAllStringSubmatch(printed, -1) {
		queues[m[1]] = m[2]
	}
	require.Len(t, queues, 2)
	open := func(user, password, of string) error {
		q, err := natsqueue.Open(t.Context(), natsqueue.Config{URL: url, Queue: queues[of], User: user, Password: password})
		if err == nil {
			err = q.Close()
		}
		return err
	}
	require.NoError(t, open("bookkeeper", "password of NW_ROLE_BOOKKEEPER_PASSWORD", "bookkeeper"))
	require.NoError(t, open("night.reader", "password of NW_ROLE_NIGHT_READER_PASSWORD", "night.reader"))
	require.Error(t, open("bookkeeper", "password of NW_ROLE_NIGHT_READER_PASSWORD", "bookkeeper"), "another role's password")
	require.Error(t, open("bookkeeper", "password of NW_ROLE_BOOKKEEPER_PASSWORD", "night.reader"), "another role's queue")
}

// natsServer runs a server on a configuration file, on free ports.
func natsServer(t *testing.T, file string) (url string) {
	t.Helper()
	options, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	assert.True(t, options.SyncAlways)
	assert.True(t, options.JetStream)
	assert.Equal(t, "127.0.0.1", options.HTTPHost)
	options.Host, options.Port, options.HTTPPort, options.NoLog, options.NoSigs = "127.0.0.1", -1, -1, true, true
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	require.True(t, s.ReadyForConnections(testWithin))
	return s.ClientURL()
}

func TestNATSConfigRefusesASharedPassword(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	require.ErrorContains(t, printNATS(&b, []roleQueue{{"night-reader", queue.Ref{1}}, {"night.reader", queue.Ref{2}}}), "$NW_ROLE_NIGHT_READER_PASSWORD")
	assert.Empty(t, b.String())
}

const schedulerFile = `database_url: DATABASE
instance: one
admin_listen: 127.0.0.1:0
nats: {url: "URL", user: admin, password_file: PASSWORD, monitor_url: "MONITOR"}
approvals: {webhook: {url: "http://HOOK/hook", secret_file: SECRET}, link: "https://console.example"}
`

const hookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver takes what owners must hear, at an address of its own.
func receiver(t testing.TB) (at string, r *dev.Receiver) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at = l.Addr().String()
	require.NoError(t, l.Close())
	secret, err := webhook.ParseSecret(hookSecret)
	require.NoError(t, err)
	r = dev.NewReceiver(secret, nil)
	require.NoError(t, r.Start(t.Context(), at))
	t.Cleanup(r.Stop)
	return at, r
}

// schedulerConfig is a scheduler's file.
func schedulerConfig(t testing.TB, database, url, password, monitor, hook string) string {
	t.Helper()
	dir := t.TempDir()
	return strings.NewReplacer("DATABASE", database, "URL", url, "PASSWORD", write(t, dir, "password", password), "MONITOR", monitor,
		"HOOK", hook, "SECRET", write(t, dir, "webhook", hookSecret)).Replace(schedulerFile)
}

// The scheduler of the tests' administrator: its reports arrive, and it stops when it is told to.
func TestScheduler(t *testing.T) {
	t.Parallel()
	db, nats := teststack.Database(t), teststack.NATS(t)
	_, password, _ := strings.Cut(strings.TrimPrefix(nats.URL(teststack.Admin), "nats://"), ":")
	password, host, _ := strings.Cut(password, "@")
	hook, taker := receiver(t)
	file := write(t, t.TempDir(), "scheduler.yaml", schedulerConfig(t, db.URL("nw_scheduler"), "nats://"+host, password, nats.MonitorURL(), hook))
	r := env{}.start(t, `"msg":"running"`, "scheduler", "--config", file)
	owner := db.Pool(t, teststack.Owner)
	reported := func(want string) {
		t.Helper()
		var got string
		require.Eventually(t, func() bool {
			err := owner.QueryRow(t.Context(), `SELECT string_agg(family || ' ' || reason, ', ' ORDER BY family) FROM nw.readiness_reports`).Scan(&got)
			return err == nil && got == want
		}, testWithin, 50*time.Millisecond, "%s\n%s", &got, r.log)
	}
	reported("approvals good, queue good")
	taker.Stop()
	reported("approvals unreachable, queue good")
	require.NoError(t, taker.Start(t.Context(), hook))
	reported("approvals good, queue good")
	assert.Equal(t, exitOK, r.end(), r.log)
	assert.NotContains(t, r.log.String(), password)
	assert.NotContains(t, r.log.String(), hookSecret)

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	bad := write(t, t.TempDir(), "scheduler.yaml", string(text)+"extra: x\n")
	env{}.run(t, "scheduler", "--config", bad).bad(t, exitMisconfigured, "extra is not a known key")
	without, _, _ := strings.Cut(string(text), "approvals:")
	env{}.run(t, "scheduler", "--config", write(t, t.TempDir(), "scheduler.yaml", without)).bad(t, exitMisconfigured, "approvals.webhook.url is missing")
	three := write(t, t.TempDir(), "scheduler.yaml", strings.Replace(string(text), "nats: {", "nats: {replicas: 2, ", 1))
	env{}.run(t, "scheduler", "--config", three).bad(t, exitMisconfigured, "1, 3 or 5 replicas")
	gone := write(t, t.TempDir(), "scheduler.yaml", strings.Replace(string(text), host, "127.0.0.1:1", 1))
	env{}.run(t, "scheduler", "--config", gone).bad(t, exitFailed, "the queue cannot be reached")
}

const guardFile = `kind: postgres
uri: URI
listen: 127.0.0.1:0
admin_listen: 127.0.0.1:0
name: ledger
authority: AUTHORITY
assertion_file: ASSERTION
database_url: DATABASE
tables: {entries: {columns: [memo]}}
`

// A guard of the standard registry: its ledger is made, its reports arrive, and
// a later boot ends the earlier.
func TestGuard(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	resource := teststack.Database(t)
	owner := resource.Pool(t, teststack.Owner)
	_, err := owner.Exec(t.Context(), `CREATE TABLE entries (memo text)`)
	require.NoError(t, err)
	const role = "nw_scheduler" // any role without rights will do
	_, err = owner.Exec(t.Context(), `GRANT INSERT, SELECT ON entries TO `+role)
	require.NoError(t, err)
	assert.Contains(t, env{}.good(t, "guard", "migrate", "--role", role, "--database-url", resource.URL(teststack.Owner)), "The ledger is there")

	dir := t.TempDir()
	assertion := write(t, dir, "assertion", h.Assertion(authoritytest.GuardClaim)+"\n")
	file := write(t, dir, "guard.yaml", strings.NewReplacer("URI", authoritytest.GuardURI, "AUTHORITY", h.URL, "ASSERTION", assertion, "DATABASE", resource.URL(role)).Replace(guardFile))
	r := env{}.start(t, `"msg":"guarding"`, "guard", "--config", file)
	require.Eventually(t, func() bool { return h.Count(`SELECT count(*) FROM nw.readiness_reports WHERE family = 'guards'`) == 1 },
		testWithin, 50*time.Millisecond, "%s", r.log)

	// Its pod's next process has another key, and another assertion.
	write(t, dir, "assertion", h.Assertion(authoritytest.GuardClaim))
	later := env{}.start(t, `"msg":"guarding"`, "guard", "--config", file)
	assert.Equal(t, exitFailed, r.wait(), r.log)
	assert.Contains(t, r.log.String(), "a later boot of this instance has registered")
	assert.Equal(t, exitOK, later.end(), later.log)

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for change, sentence := range map[string]string{
		"tables: {entries: {columns: [\"a;b\"]}}": "tables cannot be used",
		"name: ledger\nnames: x":                  "names is not a known key",
	} {
		key, _, _ := strings.Cut(change, ":")
		bad := write(t, t.TempDir(), "guard.yaml", regexp.MustCompile(`(?m)^`+key+`:.*$`).ReplaceAllLiteralString(string(text), change))
		env{}.run(t, "guard", "--config", bad).bad(t, exitMisconfigured, sentence)
	}
}

func TestAssertionFrom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	read := assertionFrom(path)
	_, err := read(t.Context())
	require.Error(t, err)
	for _, content := range []string{"one\n", "two"} {
		write(t, dir, "token", content)
		token, err := read(t.Context())
		require.NoError(t, err)
		assert.Equal(t, strings.TrimSpace(content), token, "it is read anew")
	}
	for _, content := range []string{"", " \n", strings.Repeat("a", maxAssertion+1)} {
		write(t, dir, "token", content)
		_, err := read(t.Context())
		require.Error(t, err)
	}
}
