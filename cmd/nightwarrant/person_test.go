package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// signedIn is a person at their own command line.
func signedIn(t testing.TB, authority, envelope string) env {
	t.Helper()
	dir := t.TempDir()
	return env{envAuthority: authority, envEnvelope: write(t, dir, "envelope", envelope+"\n"), envKey: filepath.Join(dir, "key.pem")}
}

func signIn(t testing.TB, h *authoritytest.House, subject string) env {
	t.Helper()
	return signedIn(t, h.URL, h.Envelope(subject))
}

// apply is `admin apply` of documents as a file.
func (e env) apply(t testing.TB, documents string) result {
	t.Helper()
	return e.run(t, "admin", "apply", "-f", write(t, t.TempDir(), "registry.yaml", documents))
}

// Through a real replica whose gate is closed: the registry can be entered,
// because guards must be there before the gate can open; a task cannot.
func TestApplyWhileTheGateIsClosed(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	s := newSite(t, db.URL("nw_authority"))
	require.Equal(t, exitOK, s.register(t, db).code)
	r := env{}.start(t, `"msg":"serving"`, "serve", "--config", s.file)
	envelope := func(changes map[string]any) string { return envelopeOf(s.platform, changes) }
	operator := signedIn(t, s.url, envelope(nil))

	applied := operator.apply(t, authoritytest.Registry(s.workloads.URL))
	require.Equal(t, exitOK, applied.code, applied.err)
	for _, line := range []string{`AttestationProfile +bookkeeper +1 +entered`, `Client +books +1 +entered`, `Guard +ledger +1 +entered`, `WorkloadRole +bookkeeper +1 +entered`, `Policy +default +1 +entered`} {
		assert.Regexp(t, line, applied.out)
	}
	again := operator.apply(t, authoritytest.Registry(s.workloads.URL))
	require.Equal(t, exitOK, again.code, again.err)
	assert.NotContains(t, again.out, "entered")

	task := strings.NewReplacer("PLATFORM", s.platform.URL).Replace(taskFile)
	operator.apply(t, task).bad(t, exitFailed, "refused (admission_closed): Admission is closed; nothing happened, try again later.")
	operator.apply(t, "kind: Client\nname: x\ntitel: y\n").bad(t, exitFailed, "refused (invalid_document): line 3: Client x titel is not a known field")
	operator.apply(t, "").bad(t, exitFailed, "there is no document in this file")
	operator.run(t, "admin", "apply", "-f", "/nowhere").bad(t, exitFailed, "no such file")
	fromStdin := operator.runWith(t, "kind: Client\nname: other\ntitle: Other\n", "admin", "apply", "-f", "-", "--json")
	require.Equal(t, exitOK, fromStdin.code, fromStdin.err)
	assert.Contains(t, fromStdin.out, `"result": "entered"`)

	for name, c := range map[string]struct {
		envelope string
		sentence string
	}{
		"without an email":   {envelope(map[string]any{"email": nil}), "refused (unknown_member): The platform envelope names no member with an email"},
		"an empty email":     {envelope(map[string]any{"email": ""}), "refused (unknown_member)"},
		"no operator":        {envelope(map[string]any{"sub": "member-1"}), "refused (forbidden)"},
		"another audience":   {envelope(map[string]any{"aud": "https://other.example"}), "refused (invalid_envelope)"},
		"expired":            {envelope(map[string]any{"iat": 1, "exp": 2}), "refused (invalid_envelope)"},
		"another issuer":     {s.workloads.Token(map[string]any{"sub": "operator-1", "aud": authoritytest.Audience}), "refused (invalid_envelope)"},
		"a workload's token": {s.workloads.Token(map[string]any{"sub": "system:serviceaccount:jobs:bookkeeper", "aud": s.url}), "refused (invalid_envelope)"},
		"nonsense":           {"a.b.c", "refused (invalid_envelope)"},
	} {
		signedIn(t, s.url, c.envelope).apply(t, "kind: Client\nname: more\ntitle: More\n").bad(t, exitFailed, c.sentence)
		assert.NotContains(t, r.log.String(), c.envelope, name)
	}

	// The first key that uses an envelope owns it.
	thief := env{envAuthority: s.url, envEnvelope: operator[envEnvelope], envKey: filepath.Join(t.TempDir(), "key.pem")}
	thief.apply(t, "kind: Client\nname: more\ntitle: More\n").bad(t, exitFailed, "refused (assertion_bound): Another key owns this assertion")
	thief.run(t, "offer", "list").bad(t, exitFailed, "refused (assertion_bound)")
	assert.Equal(t, "Nobody asks you for anything.\n", operator.good(t, "offer", "list"))
	assert.Equal(t, exitOK, r.end(), r.log)
}

const taskFile = `kind: Task
name: nightly
client: books
role: bookkeeper
role_revision: 1
policy: default
policy_revision: 1
revision: 1
owner: {issuer: PLATFORM, subject: member-1}
title: Close the day
schedule: {every_s: 3600, anchor: "2026-01-01T00:00:00Z", zone: UTC}
dial: low
grants:
  - {guard: ledger, action: row.append, resource: "table:entries"}
limits: {runtime_s: 600, effects: 5}
consent: {days: 30}
`

// envelopeOf is an operator's envelope with some claims changed; nil removes one.
func envelopeOf(platform *jwkstest.Issuer, changes map[string]any) string {
	now := time.Now().Unix()
	claims := map[string]any{"sub": "operator-1", "aud": authoritytest.Audience, "iat": now, "exp": now + 600, "jti": fmt.Sprint(len(changes), changes), "email": "o@people.example"}
	for name, value := range changes {
		if claims[name] = value; value == nil {
			delete(claims, name)
		}
	}
	return platform.Token(claims)
}

// offerOf applies a task and returns its offer and that offer's digest, as its owner sees them.
func offerOf(t testing.TB, h *authoritytest.House, member env, name string) (offer, digest string) {
	t.Helper()
	h.Apply(h.Task(name))
	var page api.Page[api.Offer]
	require.NoError(t, json.Unmarshal([]byte(member.good(t, "offer", "list", "--json")), &page))
	require.NotEmpty(t, page.Items)
	return page.Items[0].Offer, page.Items[0].Digest
}

func TestAnOfferFromListToRevocation(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member, other := signIn(t, h, authoritytest.MemberName), signIn(t, h, "member-2")
	offer, digest := offerOf(t, h, member, "nightly")
	assert.Regexp(t, offer+` +open +\S+ \S+ \S+ +Close the day`, member.good(t, "offer", "list"))

	shown := member.good(t, "offer", "show", offer)
	for _, line := range []string{
		"books runs “Close the day” every 1 second, as you, until ", "books, in its workload role bookkeeper, revision 1",
		"can     Add one row to a table\n          on table:entries, at ledger (row.append, risk low)\n          without asking you\n", "on table:entries, at ledger (row.delete, risk high)\n          asks you each time\n",
		"cannot  anything else", "at most 5 changes", "10 minutes", "spends nothing", "you are asked, about one exact change at a time", "the run stops after 1 hour", "Under policy default, revision 1", "nightwarrant task revoke ",
		"nightwarrant offer accept " + offer + " --digest " + digest, "nightwarrant offer decline " + offer + " --digest " + digest,
	} {
		assert.Contains(t, shown, line)
	}
	assert.NotContains(t, shown, "closed")

	// A yes needs exactly what was shown, and it is its owner's alone.
	member.run(t, "offer", "accept", offer).bad(t, exitFailed, `required flag(s) "digest" not set`)
	wrong := strings.Map(func(r rune) rune { return map[bool]rune{true: 'A', false: 'B'}[r == 'B'] }, digest)
	member.run(t, "offer", "accept", offer, "--digest", wrong).bad(t, exitFailed, "refused (offer_changed)")
	member.run(t, "offer", "accept", offer, "--digest", "").bad(t, exitFailed, "refused (offer_changed)")
	other.run(t, "offer", "show", offer).bad(t, exitFailed, "refused (not_found)")
	other.run(t, "offer", "accept", offer, "--digest", digest).bad(t, exitFailed, "refused (not_found)")
	member.run(t, "offer", "show", "../tasks").bad(t, exitFailed, "a reference of an offer is 22 characters")

	h.Close()
	h.See()
	assert.Contains(t, member.good(t, "offer", "show", offer), "a yes is not taken until it is open again")
	member.run(t, "offer", "accept", offer, "--digest", digest).bad(t, exitFailed, "refused (admission_closed)")
	h.Open()

	receipt := member.good(t, "offer", "accept", offer, "--digest", digest)
	assert.Contains(t, receipt, "You have allowed this until ")
	assert.Contains(t, receipt, digest)
	assert.Equal(t, receipt, member.good(t, "offer", "accept", offer, "--digest", digest), "the same yes has one receipt")
	assert.Contains(t, member.good(t, "offer", "show", offer), "This offer is accepted; there is nothing to answer.")

	task := regexp.MustCompile(`nightwarrant task revoke (\S{22})`).FindStringSubmatch(receipt)[1]
	assert.Regexp(t, task+` +1 +active +\S+ \S+ \S+ +Close the day`, member.good(t, "task", "list"))
	assert.Equal(t, "You have no tasks.\n", other.good(t, "task", "list"))
	other.run(t, "task", "revoke", task).bad(t, exitFailed, "refused (not_found)")
	other.run(t, "admin", "cut-off", task).bad(t, exitFailed, "refused (forbidden)")
	assert.Contains(t, signIn(t, h, authoritytest.OperatorName).good(t, "admin", "cut-off", task), "Cut off.")
	assert.Regexp(t, `^Revoked\. .* epoch \d+, which is committed\.\n$`, member.good(t, "task", "revoke", task))
	assert.Regexp(t, task+` +1 +none +never +Close the day`, member.good(t, "task", "list"))
}

func TestDecline(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member := signIn(t, h, authoritytest.MemberName)
	offer, digest := offerOf(t, h, member, "nightly")
	assert.Equal(t, "You have not allowed this. Nothing will run on it.\n", member.good(t, "offer", "decline", offer, "--digest", digest))
	member.run(t, "offer", "accept", offer, "--digest", digest).bad(t, exitFailed, "refused (offer_ended)")
}

func TestRunsAndFindings(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	member, other := signIn(t, h, authoritytest.MemberName), signIn(t, h, "member-2")
	assert.Equal(t, "Nothing has run.\n", member.good(t, "run", "list"))
	assert.Equal(t, "There is nothing to find out.\n", member.good(t, "finding", "list"))

	task := h.Consent(h.Task("nightly"))
	holder, guard, attempt := h.Claim(h.Plan(task)), h.Guard(), authoritytest.NewAttempt()
	minted := holder.Minted("one", "a")
	h.Into(guard.Admit(guard.Ask(holder, minted, "a", attempt)), nil)
	h.Into(guard.Settle(minted.Effect, attempt, api.Ambiguous), nil)
	h.Into(holder.Settle("failed"), nil)

	assert.Regexp(t, holder.Run+` +`+task+` +\S+ \S+ \S+ +ambiguous +0 +0 +1`, member.good(t, "run", "list"))
	assert.Equal(t, member.good(t, "run", "list"), member.good(t, "run", "list", "--task", task))
	assert.Equal(t, "Nothing has run.\n", other.good(t, "run", "list", "--task", task))
	member.run(t, "run", "list", "--cursor", "nonsense").bad(t, exitFailed, "refused (invalid_request)")

	assert.Regexp(t, minted.Effect+` +\S+ \S+ \S+ +row\.append +table:entries +ledger +none yet`, member.good(t, "finding", "list"))
	other.run(t, "finding", "record", minted.Effect, "happened").bad(t, exitFailed, "refused (not_found)")
	member.run(t, "finding", "record", minted.Effect, "perhaps").bad(t, exitFailed, "a finding is one of")
	assert.Contains(t, member.good(t, "finding", "record", minted.Effect, "did_not"), "did_not")
	assert.Regexp(t, minted.Effect+` .*ledger +did_not`, member.good(t, "finding", "list"))
}

func TestRetire(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	operator, member := signIn(t, h, authoritytest.OperatorName), signIn(t, h, authoritytest.MemberName)
	h.Consent(h.Task("nightly"))
	member.run(t, "admin", "retire", "WorkloadRole/bookkeeper/1").bad(t, exitFailed, "refused (forbidden)")
	operator.run(t, "admin", "retire", "WorkloadRole/bookkeeper/2").bad(t, exitFailed, "refused (not_found)")
	operator.run(t, "admin", "retire", "Nonsense/bookkeeper").bad(t, exitFailed, "refused (invalid_request)")
	for _, wrong := range []string{"bookkeeper", "WorkloadRole/", "/x", "a/b/c/d", "WorkloadRole/bookkeeper/0", "WorkloadRole/bookkeeper/x"} {
		assert.Equal(t, exitFailed, operator.run(t, "admin", "retire", wrong).code, wrong)
	}
	assert.Equal(t, "Retired WorkloadRole bookkeeper, revision 1; tasks that lost authority by it: 1.\n", operator.good(t, "admin", "retire", "WorkloadRole/bookkeeper"))
	operator.run(t, "admin", "retire", "WorkloadRole/bookkeeper/1").bad(t, exitFailed, "refused (retired)")
}

func TestFlagsOfAPerson(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := env{envAuthority: "https://night.example", envEnvelope: write(t, dir, "envelope", "a.b.c"), envKey: filepath.Join(dir, "key.pem")}
	with := func(name, value string) env {
		e := env{name: value}
		for k, v := range good {
			if k != name {
				e[k] = v
			}
		}
		return e
	}
	open := write(t, dir, "open", "a.b.c")
	require.NoError(t, os.Chmod(open, 0o644))
	openKey := write(t, dir, "open.pem", "x")
	require.NoError(t, os.Chmod(openKey, 0o640))
	for _, c := range []struct {
		e        env
		sentence string
	}{
		{with(envAuthority, ""), "--authority is needed"},
		{with(envEnvelope, ""), "--envelope-file is needed"},
		{with(envKey, ""), "--key-file is needed"},
		{with(envAuthority, "http://night.example"), "--authority must be https, or http on a loopback address"},
		{with(envAuthority, "https://night.example/x"), "--authority must be an origin"},
		{with(envEnvelope, open), "must be 0600 or 0400"},
		{with(envEnvelope, "/nowhere"), "cannot be opened"},
		{with(envEnvelope, write(t, dir, "two", "a.b.c\nd.e.f")), "must hold exactly one line"},
		{with(envKey, openKey), "is open to others"},
		{with(envKey, write(t, dir, "bad.pem", "nonsense")), "does not hold one P-256 key in PEM"},
		{with(envKey, filepath.Join(dir, "absent", "key.pem")), "where no key can be made"},
	} {
		c.e.run(t, "offer", "list").bad(t, exitMisconfigured, c.sentence)
	}
}

// Processes that make a person's key at once all use the one that won.
func TestAKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key.pem")
	var group sync.WaitGroup
	names := make([]string, 8)
	for i := range names {
		group.Go(func() {
			key, err := ownKey(path)
			if assert.NoError(t, err) {
				names[i] = key.Thumbprint().String()
			}
		})
	}
	group.Wait()
	for _, n := range names {
		assert.Equal(t, names[0], n)
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// A server that lies, breaks off or redirects gets nothing twice, and nothing
// that it says can do more than be read.
func TestAnswersThatCannotBeReliedOn(t *testing.T) {
	t.Parallel()
	const ref = "AAAAAAAAAAAAAAAAAAAAAA"
	for name, c := range map[string]struct {
		handler  http.HandlerFunc
		sentence string
		calls    int
	}{
		"garbage":    {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "garbage") }, "it is unknown whether this took effect", 1},
		"no problem": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "it is unknown whether this took effect", 1},
		"cut off":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "it is unknown whether this took effect", 1},
		"unknown":    {problem(503, "outcome_unknown", "", ""), "it is unknown whether this took effect", 1},
		"a redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		}, "it is unknown whether this took effect", 1},
		"endless":      {problem(401, "use_dpop_nonce", "", "n"), "refused (use_dpop_nonce)", 2},
		"no new nonce": {problem(401, "use_dpop_nonce", "", ""), "refused (use_dpop_nonce)", 1},
		"escapes":      {problem(403, "forbidden", "a\x1b[2Jb\nc", ""), "refused (forbidden): a [2Jb c", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			calls := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				calls++
				mu.Unlock()
				assert.Equal(t, []string{"a.b.c"}, r.Header.Values(api.HeaderEnvelope))
				assert.Len(t, r.Header.Values(api.HeaderProof), 1)
				assert.Empty(t, r.Header.Values("Authorization"))
				c.handler(w, r)
			}))
			t.Cleanup(server.Close)
			signedIn(t, server.URL, "a.b.c").run(t, "task", "revoke", ref).bad(t, exitFailed, c.sentence)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, c.calls, calls)
		})
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	r := signedIn(t, gone.URL, "a.b.c").run(t, "task", "list")
	r.bad(t, exitFailed, "gave no answer that can be relied on")
	assert.NotContains(t, r.err, "unknown whether", "reading changes nothing")
}

func problem(status int, code, sentence, nonce string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if nonce != "" {
			w.Header().Set(api.HeaderNonce, nonce)
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "error_description": sentence})
	}
}
