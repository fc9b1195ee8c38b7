package console_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/testbinary"
)

// stack is what `nightwarrant dev` keeps up: processes of their own, with workers and guards.
type stack struct {
	dir, binary string
	origin      string
}

// said is what a stack prints, read while it prints.
type said struct {
	lock sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.Write(b)
}

func (s *said) String() string {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.text.String()
}

var pagesAt = regexp.MustCompile(`The pages are at (http://\S+):`)

// newStack starts one and waits until it says where its pages are.
func newStack(t *testing.T) *stack {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "nightwarrant-pages-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711)) //nolint:gosec // PostgreSQL runs as another account
	s := &stack{dir: dir, binary: testbinary.Nightwarrant(t)}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var out said
	done := make(chan error, 1)
	go func() {
		done <- demo.Dev(ctx, demo.Options{Binary: s.binary, Dir: filepath.Join(dir, "dev"), Env: os.Getenv, Lease: 2 * time.Second}, &out)
	}()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-done, out.String())
		http.DefaultClient.CloseIdleConnections()
		assert.NoError(t, os.RemoveAll(dir))
	})
	for began := time.Now(); s.origin == ""; {
		select {
		case err := <-done:
			done <- err
			require.NoError(t, err, out.String())
		case <-time.After(100 * time.Millisecond):
		}
		if found := pagesAt.FindStringSubmatch(out.String()); found != nil {
			s.origin = found[1]
		}
		require.Less(t, time.Since(began), 3*time.Minute, out.String())
	}
	return s
}

// offer has the operator apply the next revision of the task that asks, so that its owner is asked again.
func (s *stack) offer(t *testing.T, revision int) {
	t.Helper()
	path := filepath.Join(s.dir, "dev", "config", "tidy.yaml")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	next := filepath.Join(s.dir, "next.yaml")
	require.NoError(t, os.WriteFile(next, []byte(strings.Replace(string(text), "\nrevision: 1\n", "\nrevision: "+strconv.Itoa(revision)+"\n", 1)), 0o600))
	who := filepath.Join(s.dir, "dev", "people", "operator")
	for began := time.Now(); ; {
		out, err := exec.Command(s.binary, "admin", "apply", "-f", next, "--authority", s.origin, "--envelope-file", who, "--key-file", who+".key").CombinedOutput()
		if err == nil {
			return
		}
		require.Contains(t, string(out), "admission_closed")
		require.Less(t, time.Since(began), time.Minute)
	}
}

// hand does what a person does with a page.
type hand interface {
	button(text string)
	link(text string)
	fill(id, text string)
}

// fill writes into a field.
func (b *browser) fill(id, text string) {
	b.t.Helper()
	b.do(chromedp.SendKeys(chromedp.ID(id), text))
}

// keyboard is a person without a mouse.
type keyboard struct{ *browser }

// reach goes on with Tab until the focus is on something that a test finds, and sees that the focus can be seen.
func (k keyboard) reach(found string) {
	k.t.Helper()
	for range 120 {
		k.keys(kb.Tab)
		if ask(k.browser, chromedp.Evaluate[bool](`(e => `+found+`)(document.activeElement)`)) {
			shown := ask(k.browser, chromedp.Evaluate[bool](`(e => { let s = getComputedStyle(e); return e.matches(":focus-visible") && s.outlineStyle != "none" && parseFloat(s.outlineWidth) > 0 })(document.activeElement)`))
			assert.True(k.t, shown, "the focus cannot be seen: %s", found)
			return
		}
	}
	require.Fail(k.t, "it cannot be reached with the keyboard: "+found)
}

func (k keyboard) enter() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.ctx, 30*time.Second)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, chromedp.KeyEvent(kb.Enter))
	require.NoError(k.t, err)
	k.do(chromedp.WaitReady("main"))
}

func (k keyboard) button(text string) {
	k.t.Helper()
	k.reach(`e.tagName == "BUTTON" && e.innerText.trim().startsWith("` + text + `")`)
	k.enter()
}

func (k keyboard) link(text string) {
	k.t.Helper()
	k.reach(`e.tagName == "A" && e.innerText.trim().startsWith("` + text + `")`)
	k.enter()
}

func (k keyboard) fill(id, text string) {
	k.t.Helper()
	k.reach(`e.id == "` + id + `"`)
	k.keys(text)
}

const asking = "Close dormant accounts" // the task of the stack that asks its owner

// story is a member's: signing in, an offer, less than it, a receipt, the first run, a decision, a stop, and nothing runs any more.
func (b *browser) story(by hand) {
	b.t.Helper()
	b.visit("/")
	b.picture("sign-in")
	by.button("member-7f3a")
	b.until("/", asking)
	b.picture("tasks")
	by.link(asking)
	offer := b.where()
	require.Contains(b.t, offer, "/offers/")
	assert.Contains(b.t, b.text(), "asks to run")
	b.picture("offer")
	for began := time.Now(); !strings.HasSuffix(b.where(), "/review"); {
		require.Less(b.t, time.Since(began), time.Minute, "the gate does not open")
		b.until(offer, "Allow less")
		by.link("Allow less")
		by.fill("effects", "2")
		by.button("Show me the result")
	}
	assert.Regexp(b.t, `Changes in a run\s+2\s+4`, b.text())
	b.picture("choice")
	b.yes(by, "Allow until")
	require.Contains(b.t, b.where(), "/receipts/")
	assert.Contains(b.t, b.text(), "You allowed books to run")
	b.picture("receipt")
	by.link("See the task, or stop it")
	task := b.where()
	b.until(task, "Waits for you")
	b.until("/decisions", "1 decision waits for you")
	by.link(asking)
	assert.Contains(b.t, b.text(), "Written by the workload")
	decision := b.where()
	b.picture("decision")
	b.yes(by, "Allow this once")
	require.Equal(b.t, decision, b.where())
	assert.Contains(b.t, b.text(), "You said yes, once.")
	b.until(task, "Succeeded")
	b.picture("task")
	b.run(task)
	by.button("Stop this task")
	require.Equal(b.t, task, b.where())
	assert.Contains(b.t, b.text(), "Stopped, and committed.")
	b.picture("stopped")
	b.nothingRuns(task)
	b.quiet()
}

// run looks at the run that has ended well, and goes back.
func (b *browser) run(task string) {
	b.t.Helper()
	b.press(`//tr[contains(., 'Succeeded')]//a`)
	assert.Contains(b.t, b.text(), "You decided")
	assert.Contains(b.t, b.text(), "Done")
	b.picture("run")
	b.visit(task)
}

// yes presses a button of this page that needs an open gate. A machine that is busy closes it now and then.
func (b *browser) yes(by hand, text string) {
	b.t.Helper()
	for page, began := b.where(), time.Now(); time.Since(began) < 2*time.Minute; {
		b.until(page, text)
		by.button(text)
		if !strings.Contains(b.text(), "is stopped right now") {
			return
		}
	}
	require.Fail(b.t, "the gate does not open: "+b.text())
}

// nothingRuns looks after three seconds whether there is a newer run of a task that ran each second.
func (b *browser) nothingRuns(task string) {
	b.t.Helper()
	newest := func() string {
		return ask(b, chromedp.Evaluate[string](`document.querySelector("table time").dateTime`))
	}
	last := newest()
	<-time.After(3 * time.Second)
	b.visit(task)
	require.Equal(b.t, last, newest(), "a run of a task that was stopped")
	assert.Contains(b.t, b.text(), "There is no consent that stands.")
	assert.NotContains(b.t, b.text(), "Waits for you")
}

// On the very stack that `nightwarrant dev` keeps up, as it comes, with the keyboard alone, without JavaScript, and 320 px wide.
func TestBrowserTellsAMembersStory(t *testing.T) {
	needsBrowser(t)
	s := newStack(t)
	revision := 1
	for name, way := range map[string]func(*browser) hand{
		"mouse":      func(b *browser) hand { return b },
		"keyboard":   func(b *browser) hand { return keyboard{b} },
		"no script":  func(b *browser) hand { b.do(withoutScript()); return b },
		"320 pixels": func(b *browser) hand { b.do(narrow()); return b },
	} {
		t.Run(name, func(t *testing.T) {
			if revision > 1 {
				s.offer(t, revision)
			}
			revision++
			b := open(t, s.origin)
			b.story(way(b))
		})
	}
}
