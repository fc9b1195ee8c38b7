package console_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/directory"
)

// operatorsPages are those without anything in their path.
var operatorsPages = []string{"/operate", "/operate/tasks", "/operate/stranded", "/operate/registry/clients", "/operate/registry/roles", "/operate/registry/profiles", "/operate/registry/policies",
	"/operate/registry/guards", "/operate/registry/reporters", "/operate/registry/products", "/operate/registry/roles/bookkeeper", "/operate/requirements", "/operate/cut-off", "/operate/audit"}

// A member sees none of them, an auditor all of them and no button that does anything, an operator all of it.
func (s *site) whoSeesOperatorsPages(t *testing.T, task string) {
	pages := append([]string{"/operate/tasks/" + task, "/operate/audit/export"}, operatorsPages...)
	for _, path := range pages {
		assert.Equal(t, http.StatusSeeOther, s.visitor("").get(path).Status, path)
		assert.Equal(t, http.StatusForbidden, s.visitor(authoritytest.MemberName).get(path).Status, path)
		a := s.visitor(authoritytest.AuditorName).get(path)
		assert.Equal(t, http.StatusOK, a.Status, "%s %s", path, a.Body)
		assert.NotContains(t, strings.ReplaceAll(a.Body, `action="/logout"`, ""), `method="post"`, path)
		assert.Equal(t, http.StatusOK, s.visitor(authoritytest.OperatorName).get(path).Status, path)
	}
	for name, sees := range map[string]bool{authoritytest.MemberName: false, authoritytest.AuditorName: true, authoritytest.OperatorName: true} {
		assert.Equal(t, sees, strings.Contains(s.visitor(name).get("/").Body, `href="/operate"`), "%s sees the way there", name)
	}
	assert.Contains(t, s.visitor(authoritytest.OperatorName).get("/operate/tasks/"+task).Body, "Cut this task off")
	assert.Contains(t, s.visitor(authoritytest.OperatorName).get("/operate/cut-off").Body, "Cut everything off")
	for _, path := range []string{"/operate/registry/secrets", "/operate/registry/roles/nobody", "/operate/tasks/" + strings.Repeat("A", 22)} {
		assert.Equal(t, http.StatusNotFound, s.visitor(authoritytest.AuditorName).get(path).Status, path)
	}
	for path, fields := range map[string][]string{"/operate/tasks/" + task + "/cut-off": {"word", "cut off", "epoch", "2"}, "/operate/tasks/" + task + "/revoke": {"word", "end consent", "epoch", "2"},
		"/operate/cut-off": {"word", "everything", "client", ""}} {
		for _, name := range []string{authoritytest.AuditorName, authoritytest.MemberName} {
			assert.Equal(t, http.StatusForbidden, s.visitor(name).post(path, fields...).Status, "%s %s", name, path)
		}
		assert.Equal(t, http.StatusSeeOther, s.visitor("").post(path, fields...).Status, path)
		cross := s.visitor(authoritytest.OperatorName)
		r := cross.form(path, fields...)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		assert.Equal(t, http.StatusForbidden, cross.do(r).Status, path)
	}
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`), "nobody has changed anything")
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.audit WHERE verb IN ('cut_off', 'revoke') AND verdict = 'ok'`))
}

// A cut-off of one task: its scope is shown before, a word confirms it, and the answer says how fast it was.
func TestOneTaskIsCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	w := s.Claim(s.Plan(task))
	op, path := s.visitor(authoritytest.OperatorName), "/operate/tasks/"+task
	page := op.get(path)
	assert.Contains(t, page.Body, "1 open run")
	epoch := field(t, page.Body, "epoch")
	for _, wrong := range []string{"", "yes", "cutoff"} {
		a := op.post(path+"/cut-off", "word", wrong, "epoch", epoch)
		assert.Equal(t, http.StatusBadRequest, a.Status)
		assert.Contains(t, a.Body, "Nothing was done.")
		assert.Contains(t, a.Body, `aria-describedby="cut-off-wrong"`)
	}
	assert.Equal(t, http.StatusConflict, op.post(path+"/cut-off", "word", "cut off", "epoch", "1").Status, "another epoch was shown")
	assert.Equal(t, http.StatusBadRequest, op.post(path+"/cut-off", "word", "cut off").Status)
	done := op.post(path+"/cut-off", "word", "  Cut  OFF ", "epoch", epoch)
	require.Equal(t, http.StatusSeeOther, done.Status, done.Body)
	assert.NotEqual(t, http.StatusOK, w.Renew().Status, "its capability is dead when the page answers")
	after := op.get(path)
	assert.Regexp(t, `Cut off, and committed \d+ ms after the click`, after.Body)
	assert.Contains(t, after.Body, "0 open runs")
	assert.Equal(t, http.StatusConflict, op.post(path+"/cut-off", "word", "cut off", "epoch", epoch).Status, "the same form twice")
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`), "the consent stands")
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.notices WHERE kind = 'task_paused' AND channel = 'mail'`), "its owner is told")

	ended := op.post(path+"/revoke", "word", "end consent", "epoch", field(t, after.Body, "epoch"))
	require.Equal(t, http.StatusSeeOther, ended.Status, ended.Body)
	over := op.get(path).Body
	assert.Contains(t, over, "The consent has ended")
	assert.NotContains(t, over, "Cut this task off", "there is nothing left")
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
}

// One client and everything: whom it concerns is shown before, and the word is not the same.
func TestManyAreCutOff(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.Claim(s.Plan(s.Consent(s.Task("close-the-day"))))
	op := s.visitor(authoritytest.OperatorName)
	page := op.get("/operate/cut-off?client=books")
	assert.Contains(t, page.Body, "One client: books")
	assert.Contains(t, page.Body, "1 task, whose epoch advances")
	assert.Equal(t, http.StatusBadRequest, op.post("/operate/cut-off", "word", "everything", "client", "books").Status, "the word for a client is its name")
	assert.Equal(t, http.StatusBadRequest, op.post("/operate/cut-off", "word", "books", "client", "").Status)
	require.Equal(t, http.StatusSeeOther, op.post("/operate/cut-off", "word", "books", "client", "books").Status)
	assert.Contains(t, op.get("/operate/cut-off").Body, "Cut off, and committed: 1 task, 1 open run.")
	assert.NotEqual(t, http.StatusOK, first.Renew().Status)
	require.Equal(t, http.StatusSeeOther, op.post("/operate/cut-off", "word", "everything", "client", "").Status)
	assert.Contains(t, op.get("/operate/cut-off").Body, "Cut off, and committed: 1 task, 0 open runs.")
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
	assert.NotContains(t, op.get(`/operate/cut-off?client="><script>alert(1)</script>`).Body, "<script>alert")
}

// The board says what is bad and why; it is there while admission is closed, and refreshes by itself where scripts run.
func (s *site) board(t *testing.T) {
	op := s.visitor(authoritytest.OperatorName)
	open := op.get("/operate").Body
	assert.Contains(t, open, "Open")
	assert.Contains(t, open, `hx-trigger="every 2s"`)
	assert.Contains(t, open, "<noscript>")
	for _, family := range []string{"store", "signing", "nonces", "queue", "clock", "audit", "attestation", "approvals", "guards"} {
		assert.Contains(t, open, family)
	}
	s.Exec(`SELECT nw.alone()`)
	s.Exec(`SELECT nw.shut('canary', 'queue', false)`)
	closed := op.get("/operate").Body
	assert.Contains(t, closed, "Closed")
	assert.Contains(t, closed, "Queue: A test of it went wrong.")
}

// The log is searched and exported; what is asked wrongly is said beside the form.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	au := s.visitor(authoritytest.AuditorName)
	page := au.get("/operate/audit?verb=consent")
	assert.Contains(t, page.Body, `<option selected>consent</option>`)
	assert.Contains(t, page.Body, task)
	assert.Contains(t, au.get("/operate/audit?verb=claim").Body, "Nothing was found.")
	for _, query := range []string{"task=nonsense", "since=yesterday", "run=%00", "member=x"} {
		a := au.get("/operate/audit?" + query)
		assert.Equal(t, http.StatusBadRequest, a.Status, query)
		assert.Contains(t, a.Body, `role="alert"`)
	}
	assert.NotContains(t, au.get(`/operate/audit?verdict="><script>`).Body, `"><script>`)
	s.Exec(`ALTER TABLE nw.audit DISABLE TRIGGER ALL`)
	s.Unsound()
	s.Exec(`UPDATE nw.audit SET at = at - interval '1 minute'`)
	file := au.get("/operate/audit/export?verb=consent")
	require.Equal(t, http.StatusOK, file.Status)
	assert.Equal(t, `attachment; filename="audit.jsonl"`, file.Header.Get("Content-Disposition"))
	lines := strings.Split(strings.TrimSuffix(file.Body, "\n"), "\n")
	require.Len(t, lines, 2, file.Body)
	var row, end map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &row))
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &end))
	assert.Equal(t, []any{"consent", task, true}, []any{row["verb"], row["task"], end["end"]})
	bad := au.get("/operate/audit/export?since=yesterday")
	assert.Equal(t, http.StatusBadRequest, bad.Status)
	assert.Empty(t, bad.Header.Get("Content-Disposition"), "a refusal is a page")
}

// Who has left is seen by operators, with the tasks that stand still; the owner's notice goes to whoever the directory has instead.
func TestStrandedTasksAreShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	w := s.Claim(s.Plan(task))
	au := s.visitor(authoritytest.AuditorName)
	assert.Contains(t, au.get("/operate/stranded").Body, "No task is stranded.")
	s.People.Say(s.Platform.URL, authoritytest.MemberName, directory.Absent)
	require.Eventually(t, func() bool { return w.Renew().Status != http.StatusOK }, 20*time.Second, 100*time.Millisecond)
	page := au.get("/operate/stranded").Body
	assert.Contains(t, page, `href="/operate/tasks/`+task+`"`)
	assert.Contains(t, page, "Close the day")
	assert.NotContains(t, page, authoritytest.MemberName, "by reference only")
	assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.notices WHERE kind = 'task_paused' AND channel = 'mail' AND nw.named(task_id, member)->>'subject' = $1`, authoritytest.MemberName))
	assert.Contains(t, s.visitor(authoritytest.OperatorName).get("/operate/tasks/"+task).Body, "Nothing: there is no consent.")
}
