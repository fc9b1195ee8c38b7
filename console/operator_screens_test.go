package console_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// What operators see and do in a browser, in one house.
func TestBrowserOnOperatorsPages(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	s := newSite(t)
	task := s.Consent(s.Task("close-the-day"))
	w := s.Claim(s.Plan(task))
	w.Minted("book", "rent for December")
	part(s.House, "are accessible", func(t *testing.T) { s.operatorsPagesAreAccessible(t, task) })
	part(s.House, "a cut-off without scripts", func(t *testing.T) { s.cutOffWithoutScripts(t, task, w) })
	part(s.House, "the board is live", s.boardIsLive)
}

// Every page of operators, as they see it: in the light, in the dark and on a narrow window.
func (s *site) operatorsPagesAreAccessible(t *testing.T, task string) {
	s.Apply(strings.NewReplacer("Close the day", "Write the weekly report for everybody who has asked for it", "every_s: 1, anchor: \"2026-01-01T00:00:00Z\", zone: UTC", "cron: \"30 2 * * 1\", zone: Europe/Berlin").Replace(s.Task("weekly-report")))
	s.Exec(`UPDATE nw.readiness_reports SET sequence = sequence + 1, healthy = false, reason = 'canary' WHERE family = 'queue'`)
	b := s.window(authoritytest.OperatorName)
	pages := map[string]string{"operate": "/operate", "operate-tasks": "/operate/tasks", "operate-task": "/operate/tasks/" + task, "operate-stranded": "/operate/stranded", "operate-registry": "/operate/registry/roles",
		"operate-entry": "/operate/registry/roles/bookkeeper", "operate-requirements": "/operate/requirements", "operate-cut-off": "/operate/cut-off?client=books", "operate-audit": "/operate/audit?verb=mint"}
	for name, path := range pages {
		b.visit(path)
		b.sound(name)
		b.do(dark())
		b.legible(name + "-dark")
		b.do(narrow())
		b.sound(name + "-narrow")
		b.do(screened(), chromedp.ResetViewport())
	}
	b.quiet()
}

// An operator cuts a task off without scripts: a wrong word is said beside its field, and the right one is answered after the commit.
func (s *site) cutOffWithoutScripts(t *testing.T, task string, w *authoritytest.Holder) {
	b := s.window(authoritytest.OperatorName)
	b.do(withoutScript())
	b.visit("/operate")
	b.press("//nav//a[normalize-space(.)='All tasks']")
	b.link("Close the day")
	write := func(word string) { b.do(chromedp.SendKeys("#cut-off", word)) }
	write("yes")
	b.button("Cut this task off")
	assert.Contains(t, b.text(), "Nothing was done.")
	write("cut off")
	b.button("Cut this task off")
	require.Contains(t, b.text(), "Cut off, and committed")
	assert.Equal(t, "/operate/tasks/"+task, b.where())
	assert.NotEqual(t, 200, w.Renew().Status)
	b.quiet()
}

// The board refreshes by itself.
func (s *site) boardIsLive(t *testing.T) {
	b := s.window(authoritytest.OperatorName)
	b.visit("/operate")
	require.Contains(t, b.text(), "Open since")
	s.Exec(`SELECT nw.alone()`)
	s.Exec(`SELECT nw.shut('canary', 'queue', false)`)
	b.do(chromedp.WaitVisible(chromedp.Search(`//main//p[contains(., 'A test of it went wrong')]`)))
	assert.Contains(t, b.text(), "Closed since")
	b.quiet()
}
