package console_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// A run with an effect done, one that is unclear, and one that waits for its owner.
func (s *site) busy() (task string) {
	s.T.Helper()
	task = s.Consent(strings.Replace(s.Task("close-the-day"), "consent:", "when_more_is_needed: wait\nconsent:", 1))
	g := s.Guard()
	w := s.Claim(s.Plan(task))
	for _, e := range [][2]string{{"rent", api.Committed}, {"power", api.Ambiguous}} { // after what is unclear there is nothing more
		key, outcome := e[0], e[1]
		minted := w.Minted(key, key)
		attempt := authoritytest.NewAttempt()
		s.Into(g.Admit(g.Ask(w, minted, key, attempt)), nil)
		s.Into(g.Settle(minted.Effect, attempt, outcome), nil)
	}
	s.Into(w.Settle("succeeded"), nil)
	return task
}

// A task that is allowed: who sees what of it, its receipt, settings, the board, and a stop of it in the end.
func TestATaskThatIsAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	part(s.House, "who sees operators' pages", func(t *testing.T) { s.whoSeesOperatorsPages(t, task) })
	part(s.House, "its receipt is kept", s.receiptIsKept)
	part(s.House, "settings", s.settings)
	part(s.House, "the board", s.board)
	part(s.House, "a stop works while closed", func(t *testing.T) { s.stopWhileClosed(t, task) })
}

// A run whose effects went well and not, and what its owner says of one that is unclear.
func TestARun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.busy()
	part(s.House, "is read", func(t *testing.T) { s.runIsRead(t, task) })
	part(s.House, "a finding is recorded", s.findingIsRecorded)
}

// A task's page says what a stop ends, the stop is committed when it answers, and the page says so and how fast it was.
func TestATaskIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	s.Claim(s.Plan(task))
	me := s.visitor(authoritytest.MemberName)
	page := me.get("/tasks/" + task)
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	assert.Contains(t, page.Body, "1 open run")
	assert.Contains(t, page.Body, "It would not run")
	assert.Equal(t, http.StatusConflict, me.post("/tasks/"+task+"/revoke", "epoch", "999").Status, "another epoch than shown")
	assert.Equal(t, http.StatusNotFound, s.visitor("member-2").post("/tasks/"+task+"/revoke", "epoch", field(t, page.Body, "epoch")).Status)
	require.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`))
	stopped := me.post("/tasks/"+task+"/revoke", "epoch", field(t, page.Body, "epoch"))
	require.Equal(t, http.StatusSeeOther, stopped.Status, stopped.Body)
	assert.Zero(t, s.Count(`SELECT count(*) FROM nw.consents WHERE state = 'active'`), "it is committed when the page answers")
	after := me.get("/tasks/" + task)
	assert.Contains(t, after.Body, "Stopped, and committed.")
	assert.Contains(t, after.Body, "Let through after the click")
	assert.NotContains(t, after.Body, "Stop this task")
	assert.Contains(t, me.get("/acting").Body, "Nothing can act as you.")
}

// With the gate closed everything can be read, and stopped.
func (s *site) stopWhileClosed(t *testing.T, task string) {
	s.Close()
	s.See()
	me := s.visitor(authoritytest.MemberName)
	page := me.get("/tasks/" + task)
	assert.Contains(t, page.Body, "Admission is closed")
	assert.Equal(t, http.StatusSeeOther, me.post("/tasks/"+task+"/revoke", "epoch", field(t, page.Body, "epoch")).Status)
}

// A run's page shows what became of each effect, and its export is the same as data.
func (s *site) runIsRead(t *testing.T, task string) {
	me := s.visitor(authoritytest.MemberName)
	at := link(t, me.get("/tasks/"+task).Body, "/runs/")
	page := me.get(at)
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	for _, says := range []string{"A worker took it", "Let through, once", "Done", "Unclear", "Add one row to a table", "1 change, 1 unclear"} {
		assert.Contains(t, page.Body, says)
	}
	export := me.get(at + "/export")
	assert.Contains(t, export.Header.Get("Content-Disposition"), "attachment")
	var line api.Timeline
	require.NoError(t, json.Unmarshal([]byte(export.Body), &line))
	assert.Equal(t, strings.TrimPrefix(at, "/runs/"), line.Run.Run)
	assert.NotEmpty(t, line.Entries)
	stranger := s.visitor("member-2")
	for _, path := range []string{at, at + "/export", "/tasks/" + task} {
		assert.Equal(t, http.StatusNotFound, stranger.get(path).Status, path)
	}
	assert.Contains(t, me.get("/runs").Body, at)
	assert.NotContains(t, stranger.get("/runs").Body, at)
}

// What nobody knows is said by its owner, once the owner has seen all that is known; and it repeats nothing.
func (s *site) findingIsRecorded(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	page := me.get("/ambiguous")
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	assert.Contains(t, page.Body, "1 effect without a finding.")
	_, rest, _ := strings.Cut(page.Body, `action="/ambiguous/`)
	effect, _, _ := strings.Cut(rest, `"`)
	shown := field(t, page.Body, "shown")
	at := "/ambiguous/" + effect
	assert.Equal(t, http.StatusConflict, me.post(at, "finding", "happened", "shown", strings.Repeat("A", 43), "cursor", "").Status)
	assert.Equal(t, http.StatusBadRequest, me.post(at, "finding", "perhaps", "shown", shown, "cursor", "").Status)
	assert.Equal(t, http.StatusNotFound, s.visitor("member-2").post(at, "finding", "happened", "shown", shown, "cursor", "").Status)
	require.Equal(t, http.StatusSeeOther, me.post(at, "finding", "did_not", "shown", shown, "cursor", "").Status)
	assert.Contains(t, me.get("/ambiguous").Body, "It did not happen")
}

// A receipt is there again whenever it is wanted, for its owner only.
func (s *site) receiptIsKept(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	acting := me.get("/acting")
	assert.Contains(t, acting.Body, "1 task can run as you.")
	at := link(t, acting.Body, "/receipts/")
	page := me.get(at)
	require.Equal(t, http.StatusOK, page.Status, page.Body)
	assert.Contains(t, page.Body, strings.TrimPrefix(at, "/receipts/"))
	assert.Contains(t, page.Body, "Digest of what you were shown")
	assert.Equal(t, http.StatusNotFound, s.visitor("member-2").get(at).Status)
}

// What changed between what is allowed and what is offered stands on the offer, additions first; the task shows what changed in it.
func TestChangesAreShown(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	s.Apply(strings.NewReplacer("revision: 1\nowner", "revision: 2\nowner", "effects: 5", "effects: 7").Replace(s.Task("close-the-day")))
	me := s.visitor(authoritytest.MemberName)
	offer := me.get(link(t, me.get("/tasks/"+task).Body, "/offers/"))
	assert.Contains(t, offer.Body, "What is different from what you last allowed")
	assert.Contains(t, offer.Body, `<bdi>7</bdi></td><td data-label="Before"><bdi>5</bdi>`)
	assert.Contains(t, me.get("/tasks/"+task).Body, "Changes in a run")
}

// The zone of times is the browser's, how mail comes is the member's, and nonsense is said beside the field.
func (s *site) settings(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	require.Equal(t, http.StatusOK, me.get("/settings").Status)
	for _, name := range []string{"Europe", "Local", "../etc/passwd", "<b>", "Mars/Base"} {
		a := me.post("/settings/zone", "zone", name)
		assert.Equal(t, http.StatusUnprocessableEntity, a.Status, name)
		assert.Contains(t, a.Body, "not a zone that we know")
	}
	require.Equal(t, http.StatusSeeOther, me.post("/settings/zone", "zone", "Asia/Tokyo").Status)
	assert.Contains(t, me.get("/").Body, "JST")
	require.Equal(t, http.StatusSeeOther, me.post("/settings/zone", "zone", "").Status)
	assert.NotContains(t, me.get("/").Body, "JST")
	require.Equal(t, http.StatusSeeOther, me.post("/settings/mail", "daily", "7").Status)
	assert.Contains(t, me.get("/settings").Body, `<option value="7" selected>`)
	for _, hour := range []string{"24", "-1", "x"} {
		assert.Equal(t, http.StatusBadRequest, me.post("/settings/mail", "daily", hour).Status, hour)
	}
}
