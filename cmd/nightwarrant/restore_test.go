package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// The way of docs/how-to/restore.md, from a backup to an open gate: every
// command that it takes stands on the page.
func TestFromABackupToAnOpenGate(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/restore.md")
	require.NoError(t, err)
	step := func(command string) {
		t.Helper()
		require.Contains(t, string(page), command, "a step that the page has not")
	}
	p := newPlace(t)
	anchors := filepath.Join(p.dir, "anchors")
	authorityFile := storyAuthority + "audit: {anchors: [DIR/anchors]}\n"
	operator, member := p.person("operator"), p.person("member")
	p.people()
	p.serve(authorityFile)
	require.Equal(t, exitOK, operator.apply(t, p.fill(storyRegistry)).code)
	p.rest()
	p.awaitOpen()
	task := p.consent(operator, member)

	url := filepath.Join(p.dir, "nw_operator.url")
	step("pg_dumpall --globals-only")
	step("pg_dump")
	backup := p.backup()
	member.good(t, "revoke", task, "--yes")
	require.Contains(t, member.good(t, "task", "list"), "none")
	signed := func() int {
		text, err := os.ReadFile(anchors)
		require.NoError(t, err)
		return strings.Count(string(text), "\n")
	}
	for range 2 { // the first may have been written before the backup
		before := signed()
		env{}.good(t, "gate", "close", "--database-url-file", url)
		require.Eventually(t, func() bool { return signed() > before }, testWithin, 100*time.Millisecond, "the log is signed past the backup")
	}
	p.end() // and the old server does not come back
	p.processes = nil

	p.another(backup)
	step("nightwarrant migrate")
	env{}.good(t, "migrate", "--database-url", p.postgres.AdminURL("night"))
	step("nightwarrant gate close --why incident")
	env{}.good(t, "gate", "close", "--why", "incident", "--database-url-file", url)
	p.people()
	p.serve(authorityFile)
	p.rest()
	step("nightwarrant readiness")
	board := func() string { return env{}.good(t, "readiness", "--database-url-file", url) }
	require.Eventually(t, func() bool { return strings.Contains(board(), "incarnation 2") }, testWithin, 200*time.Millisecond, "another server is a new incarnation")
	require.Eventually(t, func() bool { return strings.Contains(board(), "material") }, testWithin, 200*time.Millisecond, "the log that was signed is longer")

	step("nightwarrant audit resume")
	env{}.good(t, "audit", "resume", "--anchors", anchors, "--database-url-file", url)
	require.Eventually(t, func() bool { // nonces of the first seconds are as dead as those from before
		r := member.run(t, "task", "list")
		return r.code == exitOK && !strings.Contains(r.out, "none")
	}, testWithin, 500*time.Millisecond, "what was taken back stands again")
	step("nightwarrant task revoke")
	member.good(t, "revoke", task, "--yes")
	step("nightwarrant fsck")
	env{}.good(t, "fsck", "--database-url", p.postgres.AdminURL("night"))
	step("nightwarrant gate release")
	env{}.good(t, "gate", "release", "--database-url-file", url)
	p.awaitOpen()
	p.end()
}

// dumps are the files of a backup.
type dumps struct{ roles, night, books string }

func (p *place) backup() dumps {
	p.t.Helper()
	d := dumps{filepath.Join(p.dir, "roles.sql"), filepath.Join(p.dir, "night.dump"), filepath.Join(p.dir, "books.dump")}
	var roles strings.Builder
	for line := range strings.Lines(p.client("pg_dumpall", "--globals-only", "--dbname="+p.postgres.AdminURL("postgres"))) {
		if !strings.Contains(line, "ROLE postgres") { // each server has its own superuser
			roles.WriteString(line)
		}
	}
	require.NoError(p.t, os.WriteFile(d.roles, []byte(roles.String()), 0o600))
	p.client("pg_dump", "--format=custom", "--file="+d.night, p.postgres.AdminURL("night"))
	p.client("pg_dump", "--format=custom", "--file="+d.books, p.postgres.AdminURL("books"))
	return d
}

// another puts a new server, filled from the backup, into the place of the old one.
func (p *place) another(from dumps) {
	p.t.Helper()
	require.NoError(p.t, p.postgres.Stop(p.t.Context()))
	p.postgres = p.server()
	admin := p.postgres.AdminURL("postgres")
	p.client("psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file="+from.roles, admin)
	for _, dump := range []string{from.night, from.books} {
		p.client("pg_restore", "--create", "--exit-on-error", "--dbname="+admin, dump)
	}
	p.logins()
}

// client runs one of PostgreSQL's programs to its end.
func (p *place) client(name string, args ...string) string {
	p.t.Helper()
	binaries, _, err := localstack.FindPostgres()
	require.NoError(p.t, err)
	ctx, cancel := context.WithTimeout(p.t.Context(), testWithin)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(binaries, name), args...).Output()
	if refusal, is := err.(*exec.ExitError); is {
		require.NoError(p.t, err, string(refusal.Stderr))
	}
	require.NoError(p.t, err)
	return string(out)
}
