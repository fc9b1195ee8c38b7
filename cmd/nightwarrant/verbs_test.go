package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// Revoking shows what ends and asks. Anything but yes ends nothing; and what was ended meanwhile by somebody else is not ended as if it were the same.
func TestRevokeShowsAndAsks(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member, other, operator := signIn(t, h, authoritytest.MemberName), signIn(t, h, "member-2"), signIn(t, h, authoritytest.OperatorName)
	task := h.Consent(h.Task("nightly"))
	holder := h.Claim(h.Plan(task))
	holder.Minted("one", "a")
	for _, said := range []string{"", "no\n", "y\n", "YES\n", "yes please\n", "\n"} {
		r := member.runWith(t, said, "revoke", task)
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "1 run that is open\n  1 effect that was granted but not admitted\n")
		assert.Equal(t, "nightwarrant: nothing was done\n", r.err)
	}
	member.run(t, "revoke", task, "--json").bad(t, exitFailed, "with --json nobody is asked: say --yes too")
	other.run(t, "revoke", task, "--yes").bad(t, exitFailed, "refused (not_found)")
	member.run(t, "revoke", "../tasks", "--yes").bad(t, exitFailed, "a reference of a task is 22 characters")
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.lanes WHERE consent_id IS NOT NULL`))

	assert.Contains(t, operator.good(t, "admin", "cut-off", task), "Cut off.")
	r := member.runWith(t, "yes\n", "revoke", task)
	require.Equal(t, exitOK, r.code, r.err)
	assert.Contains(t, r.out, "Revoked. Everything that this task had been given is dead since activation epoch")
	assert.EqualValues(t, 0, h.Count(`SELECT count(*) FROM nw.lanes WHERE consent_id IS NOT NULL`))
	member.run(t, "revoke", task, "--yes").bad(t, exitFailed, "refused (consent_ended)")
}

// What is revoked is held to what was shown.
func TestRevokeIsHeldToWhatWasShown(t *testing.T) {
	t.Parallel()
	var held string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(api.RevocationScope{Task: "AAECAwQFBgcICQoLDA0ODw", Consent: "AAECAwQFBgcICQoLDA0ODw", ActivationEpoch: 7})
			return
		}
		held = r.Header.Get("If-Match")
		problem(http.StatusPreconditionFailed, "stale", "", "")(w, r)
	}))
	defer server.Close()
	signedIn(t, server.URL, "a.b.c").run(t, "revoke", "AAECAwQFBgcICQoLDA0ODw", "--yes").bad(t, exitFailed, "refused (stale)")
	assert.Equal(t, `"7"`, held)
}

func TestWhatMembersRead(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member, other := signIn(t, h, authoritytest.MemberName), signIn(t, h, "member-2")
	assert.Equal(t, "Nothing can act as you.\n", member.good(t, "consent", "list"))
	task := h.Consent(h.Task("nightly"))
	holder, guard, attempt := h.Claim(h.Plan(task)), h.Guard(), authoritytest.NewAttempt()
	minted := holder.Minted("one", "a")
	h.Into(guard.Admit(guard.Ask(holder, minted, "a", attempt)), nil)
	h.Into(guard.Settle(minted.Effect, attempt, api.Committed), nil)

	assert.Contains(t, member.good(t, "task", "dry-run", task), "It would not run now")
	h.Into(holder.Settle("succeeded"), nil)
	shown := member.good(t, "task", "show", task)
	for _, want := range []string{"Close the day", "client    books", "role      bookkeeper, revision 1", "active", "nightwarrant revoke " + task} {
		assert.Contains(t, shown, want)
	}
	run := member.good(t, "run", "show", holder.Run)
	assert.Regexp(t, `claim +ok`, run)
	assert.Regexp(t, `settle_effect +ok +row\.append +table:entries +- +committed`, run)
	var whole api.Timeline
	require.NoError(t, json.Unmarshal([]byte(member.good(t, "run", "export", holder.Run)), &whole))
	assert.Equal(t, holder.Run, whole.Run.Run)
	assert.NotEmpty(t, whole.Entries)

	var page api.Page[api.ConsentRecord]
	require.NoError(t, json.Unmarshal([]byte(member.good(t, "consent", "list", "--json")), &page))
	require.Len(t, page.Items, 1)
	receipt := member.good(t, "consent", "show", page.Items[0].Consent)
	assert.Contains(t, receipt, "digest   "+page.Items[0].Digest)
	assert.Contains(t, receipt, "can     Add one row to a table")

	for _, line := range [][]string{{"task", "show", task}, {"task", "dry-run", task}, {"run", "show", holder.Run}, {"run", "export", holder.Run}, {"consent", "show", page.Items[0].Consent}} {
		other.run(t, line...).bad(t, exitFailed, "refused (not_found)")
		member.run(t, line[0], line[1], "x").bad(t, exitFailed, "is 22 characters")
	}
}

func TestWhatOperatorsReadAndCutOff(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("nightly"))
	member, operator := signIn(t, h, authoritytest.MemberName), signIn(t, h, authoritytest.OperatorName)
	for _, line := range []string{"admin tasks", "admin stranded", "admin registry Client", "admin audit search", "admin audit export", "admin cut-off --all --yes", "admin cut-off --client books --yes"} {
		member.run(t, strings.Fields(line)...).bad(t, exitFailed, "refused (forbidden)")
	}
	assert.Contains(t, operator.good(t, "admin", "tasks"), task)
	assert.Equal(t, "No task is stranded.\n", operator.good(t, "admin", "stranded"))
	assert.Regexp(t, `Client +books +1 +active`, operator.good(t, "admin", "registry", "Client"))
	assert.Regexp(t, `Client +books +1 +active`, operator.good(t, "admin", "registry", "Client", "books"))
	operator.run(t, "admin", "registry", "Client/../Guard").bad(t, exitFailed, "refused (not_found)")
	assert.Regexp(t, `consent +ok +`+task, operator.good(t, "admin", "audit", "search", "--verb", "consent", "--task", task))
	operator.run(t, "admin", "audit", "search", "--since", "yesterday").bad(t, exitFailed, "since and until must be instants")
	lines := strings.Split(strings.TrimSpace(operator.good(t, "admin", "audit", "export")), "\n")
	assert.Contains(t, lines[len(lines)-1], `"end":true`)

	for _, args := range [][]string{{"admin", "cut-off"}, {"admin", "cut-off", task, "--all"}, {"admin", "cut-off", "--all", "--client", "books"}} {
		operator.run(t, args...).bad(t, exitFailed, "name one task, one client, or all of them")
	}
	r := operator.runWith(t, "no\n", "admin", "cut-off", "--client", "books")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.out, "This concerns 1 tasks")
	assert.Equal(t, "Cut off. Tasks: 1; runs that were open: 0. Everything that they had been given is dead, which is committed.\n", operator.good(t, "admin", "cut-off", "--client", "books", "--yes"))
	assert.Contains(t, operator.good(t, "admin", "cut-off", "--all", "--yes", "--json"), `"tasks": 1`)
	assert.Contains(t, member.good(t, "task", "list"), "active", "the consents stay")
}

// An export without its last line is not whole, whatever it holds.
func TestAnExportThatBreaksOff(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{"nothing": "", "no end": `{"number":1}` + "\n", "half an end": `{"number":1}` + "\n" + `{"end":true,"lin`, "an end that is none": `{"end":false}` + "\n", "text behind it": `{"end":true}` + "\nx"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		r := signedIn(t, server.URL, "a.b.c").run(t, "admin", "audit", "export")
		server.Close()
		assert.Equal(t, exitFailed, r.code, name)
		assert.Contains(t, r.err, "it is not whole", name)
	}
}
