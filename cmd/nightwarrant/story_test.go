package main

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// place is a whole deployment as an operator would set one up: each process
// from its own file, on a database that loses nothing.
type place struct {
	t         *testing.T
	dir       string
	names     map[string]string // in the files, and what they stand for
	postgres  *localstack.Postgres
	processes []*running
}

const (
	storyIssuer = `listen: WORKLOADS
audience: http://AUTHORITY
accounts:
  - {namespace: guards, name: ledger, file: DIR/ledger.token}
`
	storyIDP = `listen: PLATFORM
audience: https://platform.example/nightwarrant
people:
  - {subject: operator-1, email: o@people.example, file: DIR/operator.envelope}
  - {subject: member-1, email: m@people.example, file: DIR/member.envelope}
`
	storyAuthority = `database_url_file: DIR/nw_authority.url
issuer: http://AUTHORITY
listen: AUTHORITY
keys: {dir: DIR/bundle, identity_file: DIR/identity}
assertion: {issuers: [{url: "http://WORKLOADS"}]}
envelope:
  issuer: {url: "http://PLATFORM"}
  audience: https://platform.example/nightwarrant
  operators: [{issuer: "http://PLATFORM", subject: operator-1}]
directory: {url: "http://MEMBERS", token_file: DIR/directory.token}
`
	storyDirectory = `listen: MEMBERS
token_file: DIR/directory.token
members: [{subject: operator-1}, {subject: member-1}]
`
	storyScheduler = `database_url_file: DIR/nw_scheduler.url
nats: {url: "nats://NATS", user: admin, password_file: DIR/nats.password, monitor_url: "MONITOR"}
approvals: {webhook: {url: "http://HOOK/hook", secret_file: DIR/webhook}, link: "http://AUTHORITY"}
`
	storyGuard = `kind: postgres
database_url_file: DIR/ledger_guard.url
uri: http://GUARD/ledger
listen: GUARD
name: ledger
authority: http://AUTHORITY
assertion_file: DIR/ledger.token
tables: {entries: {columns: [memo]}}
`
	storyRegistry = `kind: AttestationProfile
name: ledger
issuer: http://WORKLOADS
subject: system:serviceaccount:guards:ledger
binding: first_key
max_lifetime_s: 3600
---
kind: AttestationProfile
name: keeper
issuer: http://WORKLOADS
subject: system:serviceaccount:jobs:keeper
binding: first_key
max_lifetime_s: 3600
---
kind: Client
name: books
title: Books
---
kind: Guard
name: ledger
title: The ledger
catalogue: postgres
uri: http://GUARD/ledger
profile: ledger
provable: true
---
kind: WorkloadRole
name: bookkeeper
client: books
revision: 1
profiles: [keeper]
actions: [{guard: ledger, action: row.append}]
limits: {max_runtime_s: 3600, max_effects: 10}
---
kind: Policy
name: default
revision: 1
dial_max: high
limits: {max_runtime_s: 3600, max_effects: 10, max_consent_days: 90}
`
)

// From an empty database to a member's yes, by commands and files only.
func TestFromNothingToAYes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.people()
	p.serve(storyAuthority)
	authority := "http://" + p.names["AUTHORITY"]
	operator, member := p.person("operator"), p.person("member")
	applied := operator.apply(t, p.fill(storyRegistry))
	require.Equal(t, exitOK, applied.code, applied.err)
	assert.Contains(t, env{}.good(t, "readiness", "--authority", authority), "Admission is closed")
	p.rest()
	p.awaitOpen()
	p.consent(operator, member)

	env{}.good(t, "gate", "close", "--database-url-file", filepath.Join(p.dir, "nw_operator.url"))
	require.Eventually(t, func() bool { // a replica's copy may be half a second old; admission is closed already
		return strings.HasPrefix(env{}.good(t, "readiness", "--authority", authority), "Admission is closed")
	}, testWithin, 100*time.Millisecond)
	p.end()
}

// newPlace makes the databases, their roles, the queue and the keys.
func newPlace(t *testing.T) *place {
	t.Helper()
	if _, _, err := localstack.FindPostgres(); err != nil && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	p := &place{t: t, dir: t.TempDir(), names: map[string]string{}}
	for _, name := range []string{"AUTHORITY", "GUARD", "WORKLOADS", "PLATFORM", "MEMBERS"} {
		address, err := freeport.Address()
		require.NoError(t, err)
		p.names[name] = address
	}
	nats := teststack.NATS(t)
	of, err := url.Parse(nats.URL(teststack.Admin))
	require.NoError(t, err)
	p.names["NATS"], p.names["MONITOR"] = of.Host, nats.MonitorURL()
	password, _ := of.User.Password()
	write(t, p.dir, "nats.password", password)
	p.names["HOOK"], _ = receiver(t)
	write(t, p.dir, "webhook", hookSecret)
	write(t, p.dir, "directory.token", "directory-token")
	p.postgres = p.server()
	p.prepare()
	return p
}

// server starts an empty database server, which is stopped when the test ends.
func (p *place) server() *localstack.Postgres {
	t := p.t
	t.Helper()
	cluster, err := os.MkdirTemp("", "nw-story-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(cluster, 0o755)) // the server's account must pass
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(cluster)) })
	ctx, cancel := context.WithTimeout(t.Context(), testWithin)
	defer cancel()
	server, err := localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: cluster})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, server.Stop(context.Background())) })
	return server
}

// people starts who says who somebody is.
func (p *place) people() {
	p.run("dev-issuer", "issuer.yaml", storyIssuer, `"msg":"tokens are current"`)
	p.run("dev-idp", "idp.yaml", storyIDP, `"msg":"tokens are current"`)
	p.run("dev-directory", "directory.yaml", storyDirectory, `"msg":"answering"`)
}

func (p *place) serve(file string) { p.run("serve", "authority.yaml", file, `"msg":"serving"`) }

// rest starts what is needed besides a replica.
func (p *place) rest() {
	p.run("scheduler", "scheduler.yaml", storyScheduler, `"msg":"running"`)
	p.run("guard", "guard.yaml", storyGuard, `"msg":"guarding"`)
}

func (p *place) awaitOpen() {
	p.t.Helper()
	var decision string
	require.Eventually(p.t, func() bool {
		decision = env{}.good(p.t, "readiness", "--authority", "http://"+p.names["AUTHORITY"])
		return strings.HasPrefix(decision, "Admission is open")
	}, 2*testWithin, 200*time.Millisecond, "%s", &decision)
}

// consent is a member's yes to a task.
func (p *place) consent(operator, member env) (task string) {
	p.t.Helper()
	applied := operator.apply(p.t, strings.ReplaceAll(taskFile, "PLATFORM", "http://"+p.names["PLATFORM"]))
	require.Equal(p.t, exitOK, applied.code, applied.err)
	var offers api.Page[api.Offer]
	require.NoError(p.t, json.Unmarshal([]byte(member.good(p.t, "offer", "list", "--json")), &offers))
	require.Len(p.t, offers.Items, 1)
	offer := offers.Items[0]
	assert.Contains(p.t, member.good(p.t, "offer", "show", offer.Offer), "Allow until")
	assert.Contains(p.t, member.good(p.t, "offer", "accept", offer.Offer, "--digest", offer.Digest), "You have allowed this until")
	return offer.Task
}

func (p *place) prepare() {
	t := p.t
	p.sql("postgres", `CREATE DATABASE night`, `CREATE DATABASE books`, `CREATE ROLE ledger_guard LOGIN PASSWORD 'hush'`)
	env{}.good(t, "migrate", "--database-url", p.postgres.AdminURL("night"))
	for _, role := range processRoles {
		p.sql("night", "ALTER ROLE "+role+" PASSWORD 'hush'")
	}
	p.logins()
	p.sql("books", `CREATE TABLE entries (memo text)`, `GRANT SELECT, INSERT ON entries TO ledger_guard`)
	env{}.good(t, "guard", "migrate", "--role", "ledger_guard", "--database-url", p.postgres.AdminURL("books"))
	bundle := []string{"--dir", filepath.Join(p.dir, "bundle"), "--identity-file", filepath.Join(p.dir, "identity")}
	env{}.good(t, append([]string{"keys", "init"}, bundle...)...)
	env{}.good(t, append([]string{"keys", "register", "--database-url-file", filepath.Join(p.dir, "nw_operator.url")}, bundle...)...)
}

var processRoles = []string{"nw_authority", "nw_scheduler", "nw_operator"}

// logins writes the database URLs of the server that is in place.
func (p *place) logins() {
	for _, role := range processRoles {
		write(p.t, p.dir, role+".url", p.postgres.URL(role, "hush", "night"))
	}
	write(p.t, p.dir, "ledger_guard.url", p.postgres.URL("ledger_guard", "hush", "books"))
}

func (p *place) sql(database string, statements ...string) {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), p.postgres.AdminURL(database))
	require.NoError(p.t, err)
	defer conn.Close(context.Background())
	for _, s := range statements {
		_, err := conn.Exec(p.t.Context(), s)
		require.NoError(p.t, err)
	}
}

// fill puts this place's names into a file's text.
func (p *place) fill(text string) string {
	pairs := []string{"DIR", p.dir}
	for name, value := range p.names {
		pairs = append(pairs, name, value)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// run starts a process on its file.
func (p *place) run(command, name, text, ready string) {
	p.t.Helper()
	p.processes = append(p.processes, env{}.start(p.t, ready, command, "--config", write(p.t, p.dir, name, p.fill(text))))
}

func (p *place) person(name string) env {
	return env{envAuthority: "http://" + p.names["AUTHORITY"], envEnvelope: filepath.Join(p.dir, name+".envelope"), envKey: filepath.Join(p.dir, name+".pem")}
}

// end stops the processes, the last that was started first.
func (p *place) end() {
	for _, r := range slices.Backward(p.processes) {
		assert.Equal(p.t, exitOK, r.end(), r.log)
	}
}
