package console_test

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In Debian's Chromium, on a loopback address without TLS: the cookies that are
// for TLS only are kept, people come back to the page that they wanted, are told
// before they are signed out, and nothing of it needs JavaScript.
func TestBrowserSignsIn(t *testing.T) {
	needsBrowser(t)
	t.Parallel()
	for name, script := range map[string]bool{"as it comes": true, "without JavaScript": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			b := open(t, g.URL)
			if !script {
				b.do(withoutScript())
			}
			b.visit("/decisions?x=1")
			require.True(t, strings.HasPrefix(ask(b, chromedp.Location()), g.Provider+"/authorize?"))
			assert.Contains(t, b.text(), "for development")
			b.button("ada")
			assert.Equal(t, "/decisions?x=1", b.where(), "the page that was asked for")
			assert.Contains(t, b.text(), "No decision waits for you")
			body := func() string { return ask(b, chromedp.Text("body")) }
			if script {
				assert.NotContains(t, body(), "You are signed in until", "it will be said in time")
			} else {
				assert.Contains(t, body(), "You are signed in until")
			}
			g.plant(`idle_until = clock_timestamp() + interval '10 minutes', idle_ms = 180000`)
			b.visit("/decisions")
			assert.NotContains(t, body(), "You will be signed out", "it idles for longer")
			g.plant(`idle_until = clock_timestamp() + interval '2 minutes'`)
			b.visit("/decisions")
			assert.Contains(t, body(), "You will be signed out")
			if script {
				b.sound("session-ends")
			}
			b.button("Stay signed in")
			assert.Equal(t, "/decisions", b.where())
			b.button("Sign out")
			assert.Equal(t, "/signed-out", b.where())
			if script {
				b.sound("signed-out")
			}
			b.visit("/decisions")
			require.True(t, strings.HasPrefix(ask(b, chromedp.Location()), g.Provider+"/authorize?"))
			b.button("Nobody")
			assert.Contains(t, b.text(), "signing in was refused")
			if script {
				b.sound("not-signed-in")
			}
			b.quiet()
		})
	}
}
