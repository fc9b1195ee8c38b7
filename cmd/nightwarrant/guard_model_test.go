package main

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
)

const guardModelFile = `kind: model
uri: URI
listen: 127.0.0.1:0
name: ledger
authority: AUTHORITY
assertion_file: ASSERTION
ledger_dir: DIR/journal
base_url: PROVIDER/v1
currency: EUR
models:
  - id: little
    version: "1"
    input_price: 10
    output_price: 100
credential: {file: DIR/key}
allow_private: ["127.0.0.0/8"]
`

// A guard of models is made, runs, holds its journal, and names what readiness must require.
func TestGuardOfModels(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	provider := httptest.NewServer(modelserver.New(modelserver.Config{Key: "hush-hush-hush", Models: []string{"little"}}))
	t.Cleanup(provider.Close)
	dir := t.TempDir()
	write(t, dir, "key", "hush-hush-hush\n")
	text := strings.NewReplacer("URI", authoritytest.GuardURI, "AUTHORITY", h.URL, "ASSERTION", write(t, dir, "assertion", h.Assertion(authoritytest.GuardClaim)),
		"DIR", dir, "PROVIDER", provider.URL).Replace(guardModelFile)
	file := write(t, dir, "guard.yaml", text)

	env{}.run(t, "guard", "--config", file).bad(t, exitMisconfigured, "ledger_dir cannot be used")
	assert.Contains(t, env{}.good(t, "guard", "init", "--config", file), "The journal is there")
	assert.Regexp(t, `^[A-Za-z0-9_-]{43}  `+provider.URL+"/v1/models/little\n$", env{}.good(t, "guard", "models", "--config", file))
	r := env{}.start(t, `"msg":"guarding"`, "guard", "--config", file)
	require.Eventually(t, func() bool { return h.Count(`SELECT count(*) FROM nw.readiness_reports WHERE family = 'guards'`) == 1 },
		testWithin, 50*time.Millisecond, r.log)
	env{}.run(t, "guard", "--config", file).bad(t, exitFailed, "") // one process at a time
	assert.Equal(t, exitOK, r.end(), r.log)
	assert.NotContains(t, r.log.String(), "hush-hush")

	for before, c := range map[string]struct{ after, sentence string }{
		"/v1\n":                      {"/v1/\n", "base URL"},
		"currency: EUR":              {"currency: eur", "currency"},
		"credential: {file: DIR/key": {"credential: {none: true", "credential.none"},
		"input_price: 10":            {"input_price: -1", "a price"},
		"[\"127.0.0.0/8\"]":          {"[\"everything\"]", "neither a range"},
		"kind: model":                {"kind: models", "kind must be one of"},
	} {
		changed := strings.Replace(text, strings.ReplaceAll(before, "DIR", dir), c.after, 1)
		require.NotEqual(t, text, changed, before)
		env{}.run(t, "guard", "--config", write(t, t.TempDir(), "guard.yaml", changed)).bad(t, exitMisconfigured, c.sentence)
	}
	env{}.run(t, "guard", "inspect", "--config", file, "x").bad(t, exitMisconfigured, "kind")
}
