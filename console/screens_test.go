package console_test

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// full is a site on which every page has something to show; it returns the pages by the names of their pictures.
func (s *site) full() map[string]string {
	s.T.Helper()
	task := s.busy()
	w := s.Claim(s.Plan(task))
	asked := w.MintDetail("tidy", api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.delete"}, Locations: []string{authoritytest.GuardURI}, Identifier: "table:entries",
		Parameters: []byte(`{"key":{"memo":"` + strings.Repeat("wood", 40) + "\u202e" + `"},"table":"entries"}`)})
	require.Equal(s.T, api.ApprovalRequired, s.Send(s.Form(w.Key, asked)).Problem().Code)
	weekly := strings.NewReplacer("Close the day", "Write the weekly repоrt of "+strings.Repeat("Donaudampf", 7), "every_s: 1, anchor: \"2026-01-01T00:00:00Z\", zone: UTC",
		"cron: \"30 2 * * 1\", zone: Europe/Berlin").Replace(optional(s.Task("weekly-report")))
	s.Apply(weekly)
	me := s.visitor(authoritytest.MemberName)
	offer := link(s.T, me.get("/").Body, "/offers/")
	digest := field(s.T, me.get(offer).Body, "digest")
	require.Equal(s.T, 303, me.post(offer+"/less", "digest", digest, "grant", "1", "effects", "2", "until", "", "dial", "", "silence", "wait").Status)
	acting := me.get("/acting").Body
	return map[string]string{"tasks": "/", "task": "/tasks/" + task, "offer": offer, "less": offer + "/less", "review": offer + "/review", "receipt": link(s.T, acting, "/receipts/"),
		"decisions": "/decisions", "decision": link(s.T, me.get("/decisions").Body, "/decisions/"), "runs": "/runs", "run": link(s.T, me.get("/tasks/" + task).Body[strings.Index(me.get("/tasks/"+task).Body, `id="runs"`):], "/runs/"),
		"ambiguous": "/ambiguous", "acting": "/acting", "settings": "/settings", "nothing": "/nothing"}
}

// Every page holds to WCAG 2.2 AA as far as axe-core knows, is no wider than 320 px when the window is, weighs under 100 kB
// with all that it loads, and its policy has nothing to refuse; which means something, as what it refuses is refused, and its report arrives.
func TestBrowserFindsEveryPageAccessible(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	s := newSite(t)
	pages := s.full()
	require.GreaterOrEqual(t, len(pages), 10)
	b := s.window(authoritytest.MemberName)
	for name, path := range pages {
		b.visit(path)
		b.sound(name)
		assert.Less(t, b.weight(), 100<<10, name)
		b.do(dark(), narrow())
		b.sound(name + "-dark-narrow")
		b.do(screened(), chromedp.ResetViewport())
	}
	b.quiet()
	assert.Zero(t, s.Console.Reported(), "the policy of content refused something")
	b.policyBites()
	require.Eventually(t, func() bool { return s.Console.Reported() > 0 }, time.Minute, 100*time.Millisecond)
	b.lock.Lock()
	defer b.lock.Unlock()
	assert.NotEmpty(t, b.bad)
}

// A page while an offer comes, then its other states.
func TestBrowserSeesPagesChange(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	s := newSite(t)
	s.Consent(s.Task("close-the-day"))
	part(s.House, "a page refreshes itself", s.pageRefreshesItself)
	part(s.House, "other states", s.pagesInOtherStates)
}

// A receipt is printed without what only a screen needs; a closed gate is said before anybody answers.
func (s *site) pagesInOtherStates(t *testing.T) {
	me := s.visitor(authoritytest.MemberName)
	b := s.window(authoritytest.MemberName)
	b.visit(link(t, me.get("/acting").Body, "/receipts/"))
	b.do(printed())
	b.shot("receipt-printed")
	assert.NotContains(t, b.text(), "Print this page")
	b.do(screened())
	s.Close()
	s.See()
	b.visit(link(t, me.get("/").Body, "/offers/"))
	assert.Contains(t, b.text(), "No yes can be given right now")
	b.sound("offer-closed")
	b.visit("/offers/" + strings.Repeat("A", 22))
	b.sound("refused")
	b.quiet()
}

// A page refreshes by itself what may have changed: without going anywhere, without taking the focus, and saying it politely.
func (s *site) pageRefreshesItself(t *testing.T) {
	b := s.window(authoritytest.MemberName)
	b.visit("/")
	require.Contains(t, b.text(), "Nothing waits for you.")
	b.do(chromedp.Evaluate[chromedp.Void](`window.stayed = true; document.querySelector("table a").focus()`))
	s.Apply(strings.Replace(s.Task("close-the-week"), "Close the day", "Close the week", 1))
	b.do(chromedp.WaitVisible(`//h3[contains(., 'Close the week')]`))
	assert.Equal(t, "1 offer waits for your answer.", ask(b, chromedp.Text(`//p[@role='status' and contains(@class, 'summary')]`)))
	assert.True(t, ask(b, chromedp.Evaluate[bool](`window.stayed === true`)), "the page was loaded anew")
	assert.Equal(t, "Close the day", ask(b, chromedp.Evaluate[string](`document.activeElement.innerText`)), "the focus was taken")
	b.quiet()
}

// policyBites does on a page what the policy of content refuses.
func (b *browser) policyBites() {
	b.t.Helper()
	b.visit("/settings")
	b.do(chromedp.Evaluate[chromedp.Void](`{ let e = document.createElement("script"); e.textContent = "window.planted = true"; document.head.append(e);
		document.querySelector("h1").setAttribute("style", "color: red"); let i = document.createElement("img"); i.src = "https://elsewhere.example/x.png"; document.body.append(i) }`))
	assert.False(b.t, ask(b, chromedp.Evaluate[bool](`window.planted === true`)))
}
