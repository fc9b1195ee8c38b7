package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

const guardHTTPFile = `kind: http
uri: URI
listen: 127.0.0.1:0
name: ledger
authority: AUTHORITY
assertion_file: ASSERTION
ledger_dir: DIR/journal
credential: {file: DIR/key}
allow_private: ["HOST"]
operations:
  - action: order.cancel
    title: Cancel an order
    parameters:
      type: object
      additionalProperties: false
      required: [order]
      properties:
        order: {type: string, maxLength: 40}
    resource: http://HOST/orders/{order}
    request: {method: DELETE}
    answer: {success: [204]}
    inspect: {fields: [state]}
`

// A guard of HTTP is made, runs, holds its journal, and its state can be looked at meanwhile.
func TestGuardOfHTTP(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	destination := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "Bearer hush-hush-hush", r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, `{"state":"open hush-hush-hush","private":1}`)
	}))
	t.Cleanup(destination.Close)
	dir := t.TempDir()
	write(t, dir, "key", "hush-hush-hush\n")
	params := write(t, dir, "params.json", `{"order":"o-7"}`)
	text := strings.NewReplacer("URI", authoritytest.GuardURI, "AUTHORITY", h.URL, "ASSERTION", write(t, dir, "assertion", h.Assertion(authoritytest.GuardClaim)), "DIR", dir,
		"HOST", strings.TrimPrefix(destination.URL, "http://")).Replace(guardHTTPFile)
	file := write(t, dir, "guard.yaml", text)

	env{}.run(t, "guard", "--config", file).bad(t, exitMisconfigured, "ledger_dir cannot be used")
	assert.Contains(t, env{}.good(t, "guard", "init", "--config", file), "The journal is there")
	r := env{}.start(t, `"msg":"guarding"`, "guard", "--config", file)
	require.Eventually(t, func() bool { return h.Count(`SELECT count(*) FROM nw.readiness_reports WHERE family = 'guards'`) == 1 },
		testWithin, 50*time.Millisecond, r.log)
	env{}.run(t, "guard", "--config", file).bad(t, exitFailed, "") // one process at a time

	assert.Equal(t, `{"state":"open [redacted]"}`+"\n", env{}.good(t, "guard", "inspect", "--config", file, "-f", params, "order.cancel"))
	env{}.run(t, "guard", "inspect", "--config", file, "-f", params, "order.read").bad(t, exitFailed, "no inspection")
	assert.Equal(t, exitOK, r.end(), r.log)
	assert.NotContains(t, r.log.String(), "hush-hush")

	for change, sentence := range map[string]string{
		"kind: http\n":                      "",
		"    request: {method: DELETE}\n":   "operations cannot be used: guards/http",
		"allow_private: [\"10.0.0.1/8\"]\n": "operations cannot be used",
		"roots_file: " + params + "\n":      "roots_file cannot be used",
	} {
		changed := text
		switch {
		case strings.HasPrefix(change, "kind"):
			changed, sentence = strings.Replace(text, change, "", 1), "kind must be one of"
		case strings.HasPrefix(change, "    request"):
			changed = strings.Replace(text, change, "    request: {method: CONNECT}\n", 1)
		case strings.HasPrefix(change, "allow"):
			changed = strings.Replace(text, "allow_private: [", "allow_private: [\"10.0.0.1/8\", ", 1)
		default:
			changed += change
		}
		bad := write(t, t.TempDir(), "guard.yaml", changed)
		env{}.run(t, "guard", "--config", bad).bad(t, exitMisconfigured, sentence)
	}
	require.NoError(t, os.RemoveAll(dir+"/journal"))
	env{}.run(t, "guard", "--config", file).bad(t, exitMisconfigured, "ledger_dir cannot be used")
}
