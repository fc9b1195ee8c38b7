package console_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// axe is axe-core, as it comes (testdata/axe).
//
//go:embed testdata/axe/axe.min.js
var axe string

// browserWithin is longer than any machine needs for one story.
const browserWithin = 8 * time.Minute

// browser is a window of Chromium, with cookies and settings of its own. What its console says against a page fails the test.
type browser struct {
	t   testing.TB
	ctx context.Context
	url string

	lock sync.Mutex
	bad  []string
}

// chrome is the one process of this package's tests: starting it costs as much as showing ten pages.
var chrome struct {
	sync.Mutex
	wanted int // by tests that have not ended
	ctx    context.Context
	stop   func() error
}

// needsBrowser is called before a test lets others run beside it. So all have said that they need the browser
// when the first uses it, and it is stopped after the last. Without one the test is skipped, but not in CI.
func needsBrowser(t testing.TB) {
	t.Helper()
	chromium(t)
	chrome.Lock()
	defer chrome.Unlock()
	chrome.wanted++
	t.Cleanup(func() {
		chrome.Lock()
		defer chrome.Unlock()
		if chrome.wanted--; chrome.wanted == 0 && chrome.stop != nil {
			assert.NoError(t, chrome.stop())
			chrome.ctx, chrome.stop = nil, nil
		}
	})
}

// chromium finds the browser. The one without any window of its own is the same engine at half the work.
func chromium(t testing.TB) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("Chromium is missing: scripts/ensure-chromium.sh installs it")
	}
	t.Skip("Chromium is missing: scripts/ensure-chromium.sh installs it; nothing about the pages was tested in a browser")
	return ""
}

// started is the browser's process, which the first who asks starts.
func started(t testing.TB) context.Context {
	t.Helper()
	chrome.Lock()
	defer chrome.Unlock()
	require.Positive(t, chrome.wanted, "a test says first that it needs the browser")
	if chrome.stop != nil {
		return chrome.ctx
	}
	ctx, _ := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(chromedp.ExecPath(chromium(t)), chromedp.NoSandbox, chromedp.WindowSize(1100, 900),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-software-rasterizer", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("mute-audio", true)))
	require.NoError(t, chromedp.Do(ctx))
	chrome.ctx, chrome.stop = ctx, func() error { return chromedp.Cancel(ctx) }
	return ctx
}

// window opens a browser on a site, as somebody where a name is given.
func (s *site) window(name string) *browser {
	s.T.Helper()
	b := open(s.T, s.URL)
	if name != "" {
		b.do(send(network.SetCookie, network.SetCookieParams{Name: cookieWho, Value: name, URL: s.URL}))
	}
	return b
}

// open opens a window that shares nothing with others, and watches what it says against the pages.
func open(t testing.TB, url string) *browser {
	t.Helper()
	outer, stop := context.WithTimeout(started(t), browserWithin)
	ctx, closed := chromedp.NewContext(outer, chromedp.WithNewBrowserContext())
	b := &browser{t: t, ctx: ctx, url: url}
	t.Cleanup(func() {
		closed()
		stop()
	})
	require.NoError(t, chromedp.Listen(ctx, b.hear))
	return b
}

// send is a command of the browser's protocol as an action, and call one whose answer is wanted.
func send[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[R] {
	return func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, command, params) }
}

// hear keeps what is said against a page: errors of scripts, and whatever the policy of content refuses.
func (b *browser) hear(event any) {
	said := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || strings.Contains(e.Entry.Text, "Content Security Policy") {
			said = fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		said = e.ExceptionDetails.Text + " " + e.ExceptionDetails.URL
	}
	if said != "" && !strings.Contains(said, "the server responded with a status of") { // refusals are pages too
		b.lock.Lock()
		defer b.lock.Unlock()
		b.bad = append(b.bad, said)
	}
}

// quiet fails the test when anything was said against a page.
func (b *browser) quiet() {
	b.t.Helper()
	b.lock.Lock()
	defer b.lock.Unlock()
	assert.Empty(b.t, b.bad)
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, actions...))
}

func ask[T any](b *browser, a chromedp.Action[T]) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, a)
	require.NoError(b.t, err)
	return v
}

// visit goes to a page and waits until it is there.
func (b *browser) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.url+path), chromedp.WaitReady("main"))
}

// press clicks on what a path (XPath) finds and waits for the page that comes.
func (b *browser) press(path string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.Search(path)))
	require.NoError(b.t, err, path)
	b.do(chromedp.WaitReady("main"))
}

// button presses the button that begins with some words, and link follows such a link.
func (b *browser) button(text string) {
	b.t.Helper()
	b.press("//button[starts-with(normalize-space(.), '" + text + "')]")
}

func (b *browser) link(text string) {
	b.t.Helper()
	b.press("//main//a[starts-with(normalize-space(.), '" + text + "')]")
}

// text is what a person reads on the page.
func (b *browser) text() string { b.t.Helper(); return ask(b, chromedp.Text("main")) }

// where is the path of the page.
func (b *browser) where() string {
	b.t.Helper()
	return strings.TrimPrefix(ask(b, chromedp.Location()), b.url)
}

// until loads a page until it says something.
func (b *browser) until(path, says string) {
	b.t.Helper()
	for began := time.Now(); ; b.wait(path, says) {
		b.visit(path)
		if strings.Contains(b.text(), says) {
			return
		}
		require.Less(b.t, time.Since(began), 2*time.Minute, "%s never says %q, but %s", path, says, b.text())
	}
}

// wait asks for a page, as the window would, until it may say something, for at most ten seconds. Nothing is drawn: the stack that is asked shares this machine.
func (b *browser) wait(path, says string) {
	b.t.Helper()
	kept := ask(b, call(network.GetCookies, network.GetCookiesParams{URLs: []string{b.url + path}}))
	for began := time.Now(); time.Since(began) < 10*time.Second; {
		<-time.After(200 * time.Millisecond)
		if strings.Contains(b.fetch(path, kept.Cookies), says) {
			return
		}
	}
}

func (b *browser) fetch(path string, cookies []*network.Cookie) string {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, b.url+path, nil)
	require.NoError(b.t, err)
	for _, c := range cookies {
		r.AddCookie(&http.Cookie{Name: c.Name, Value: c.Value})
	}
	a, err := http.DefaultClient.Do(r)
	require.NoError(b.t, err)
	defer a.Body.Close() //nolint:errcheck // read to its end below
	page, err := io.ReadAll(io.LimitReader(a.Body, 1<<20))
	require.NoError(b.t, err)
	return string(page)
}

// narrow makes the window 320 px wide, as a small phone or a page at 400 %.
func narrow() chromedp.Action[chromedp.Void] { return chromedp.EmulateViewport(320, 640) }

// dark asks for dark pages.
func dark() chromedp.Action[chromedp.Void] {
	return send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
}

// printed shows the page as it is printed.
func printed() chromedp.Action[chromedp.Void] {
	return send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
}

// screened ends what printed and dark began.
func screened() chromedp.Action[chromedp.Void] {
	return send(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{})
}

// withoutScript turns JavaScript off.
func withoutScript() chromedp.Action[chromedp.Void] {
	return send(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// shot keeps a picture of the whole page in build/screens, where pictures are asked for: PICTURES=1 go test ./console
func (b *browser) shot(name string) {
	b.t.Helper()
	if os.Getenv("PICTURES") == "" {
		return
	}
	png := ask(b, chromedp.FullScreenshot(100))
	dir := filepath.Join("..", "build", "screens")
	require.NoError(b.t, os.MkdirAll(dir, 0o755))                                   //nolint:gosec // pictures of made-up data
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)) //nolint:gosec // as above
}

// picture keeps one for the tutorial, where they are asked for: PICTURES=1 go test ./console -run Story/mouse
func (b *browser) picture(name string) {
	b.t.Helper()
	if os.Getenv("PICTURES") == "" {
		return
	}
	b.do(chromedp.EmulateViewport(820, 620))
	png := ask(b, chromedp.CaptureScreenshot())
	dir := filepath.Join("..", "docs", "pictures")
	require.NoError(b.t, os.MkdirAll(dir, 0o755))                                   //nolint:gosec // for everybody
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)) //nolint:gosec // for everybody
	b.do(chromedp.ResetViewport())
}

// sound keeps a picture of the page, holds it against WCAG 2.2 AA as far as a
// program can, and looks for what is wider than the window.
func (b *browser) sound(name string) {
	b.t.Helper()
	b.shot(name)
	assert.Empty(b.t, b.violations(allRules), name)
	assert.LessOrEqual(b.t, ask(b, chromedp.Evaluate[int](`document.documentElement.scrollWidth - document.documentElement.clientWidth`)), 0, "%s is wider than the window", name)
}

// legible is sound where nothing but colours is another.
func (b *browser) legible(name string) {
	b.t.Helper()
	b.shot(name)
	assert.Empty(b.t, b.violations(colourRules), name)
}

// weight is how many bytes a page and all that it loads have, as they come.
func (b *browser) weight() int {
	b.t.Helper()
	return ask(b, chromedp.Evaluate[int](`performance.getEntriesByType("navigation").concat(performance.getEntriesByType("resource").filter(e => e.initiatorType != "fetch"))
		.reduce((n, e) => n + e.decodedBodySize, 0)`))
}

// What axe-core is asked for: all that it knows of WCAG 2.2 AA, or what of it depends on colours alone.
const (
	allRules    = `["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]`
	colourRules = `{type: "rule", values: ["color-contrast", "link-in-text-block"]}`
)

// violations are what axe-core finds.
func (b *browser) violations(rules string) (found []string) {
	b.t.Helper()
	if !ask(b, chromedp.Evaluate[bool](`typeof axe == "object"`)) {
		b.do(chromedp.Evaluate[chromedp.Void](axe + ";0"))
	}
	text := ask(b, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"], runOnly: `+rules+`}).then(r =>
		JSON.stringify(r.violations.map(v => v.id + ": " + v.help + " — " + v.nodes.map(n => n.html + " " + n.failureSummary).join("; "))))`, chromedp.EvalAwaitPromise))
	require.NoError(b.t, json.Unmarshal([]byte(text), &found))
	return found
}

// keys presses keys, as somebody without a mouse does.
func (b *browser) keys(keys string) { b.t.Helper(); b.do(chromedp.KeyEvent(keys)) }
