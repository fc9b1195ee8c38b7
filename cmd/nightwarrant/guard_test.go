package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	doc "github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/config"
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

const specification = `openapi: 3.0.3
info: {title: Orders, version: "1"}
servers: [{url: "https://api.example"}]
paths:
  /orders/{order}:
    parameters: [{name: order, in: path, required: true, schema: {type: string}}]
    get: {operationId: readOrder, summary: "Read: an order", responses: {"200": {description: x, content: {application/json: {schema: {type: object, properties: {state: {type: string}}}}}}}}
    patch:
      operationId: changeOrder
      parameters: [{name: notify, in: query, schema: {type: boolean}}]
      requestBody: {content: {application/json: {schema: {type: object, required: [state], properties: {state: {type: string, enum: ["open", "no", "1"]}, lines: {type: array, items: {type: object, properties: {id: {type: integer}}}}}}}}}
      responses: {"200": {description: x, content: {application/json: {schema: {type: object, properties: {state: {type: string}, "true": {type: boolean}}}}}}}
`

// A draft is a guard's file and a Guard document without another word, and both agree.
func TestGuardImport(t *testing.T) {
	t.Parallel()
	file := write(t, t.TempDir(), "openapi.yaml", specification)
	both := env{}.good(t, "guard", "import", "openapi", file)
	part, registered, found := strings.Cut(both, "---\n")
	require.True(t, found)

	head, _, _ := strings.Cut(guardHTTPFile, "credential:")
	head = strings.NewReplacer("URI", "https://guard.example/api", "AUTHORITY", "https://night.example", "DIR", "/var/lib").Replace(head)
	document, err := config.ParseGuard("f", []byte(head+part), func(string) string { return "" })
	require.NoError(t, err)
	c := document.(*config.HTTPGuard)
	of, err := httpGuard(c, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Len(t, of.Operations, 2)
	require.NotNil(t, of.Operations[1].Inspect)

	registry, err := doc.ParseYAML([]byte("kind: Guard\nname: orders\ntitle: Orders\ncatalogue: http\nuri: https://guard.example/api\nprofile: orders\nprovable: false\nmax_call_ms: 5000\n" + strings.SplitN(registered, "\n", 2)[1]))
	require.NoError(t, err)
	var theirs, ours []catalogue.Action
	for _, o := range registry[0].(*doc.Guard).Operations {
		a, err := catalogue.Compile(catalogue.HTTP, o)
		require.NoError(t, err)
		theirs = append(theirs, a)
	}
	for _, o := range of.Operations {
		a, err := catalogue.Compile(catalogue.HTTP, o.Operation)
		require.NoError(t, err)
		ours = append(ours, a)
	}
	require.Equal(t, catalogue.DigestOf(theirs...), catalogue.DigestOf(ours...))

	only := env{}.good(t, "guard", "import", "openapi", file, "--operation", "readOrder", "--server", "https://other.example")
	assert.Contains(t, only, "https://other.example/orders/{order}")
	assert.NotContains(t, only, "change_order")
	env{}.run(t, "guard", "import", "openapi", write(t, t.TempDir(), "x", "a: b")).bad(t, exitFailed, "no OpenAPI 3 document")
	env{}.run(t, "guard", "import", "openapi", "/nowhere").bad(t, exitFailed, "no such file")
}
