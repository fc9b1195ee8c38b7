package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/worker/exec"
)

// runSocket is the socket of a run that answers the same to whatever is asked.
func runSocket(t *testing.T, answer any) (in env, asked func() map[string]any) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nw")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	bodies := make(chan []byte, 10)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test's
		body, _ := io.ReadAll(r.Body)
		bodies <- append([]byte(r.URL.Path+" "), body...)
		_ = json.NewEncoder(w).Encode(answer)
	})}}
	s.Start()
	t.Cleanup(s.Close)
	return env{exec.Variable: path}, func() map[string]any {
		var v map[string]any
		text := <-bodies
		i := 0
		for text[i] != ' ' {
			i++
		}
		require.NoError(t, json.Unmarshal(text[i:], &v))
		v["at"] = string(text[:i])
		return v
	}
}

var effectFlags = []string{"effect", "--guard", "https://g.example/a", "--action", "row.append", "--resource", "table:a", "--key", "one"}

func TestEveryOutcomeHasItsExitCode(t *testing.T) {
	t.Parallel()
	codes := map[int]string{}
	for _, o := range exec.Outcomes {
		assert.Empty(t, codes[o.Exit], "two outcomes with code %d", o.Exit)
		codes[o.Exit] = o.Code
		in, _ := runSocket(t, exec.Answer{Outcome: o.Code, Message: o.Message})
		r := in.run(t, effectFlags...)
		assert.Equal(t, o.Exit, r.code, o.Code)
		assert.Equal(t, o.Code+"\n", r.out)
		if o.Code != exec.Committed {
			assert.Equal(t, "nightwarrant: "+o.Code+": "+o.Message+"\n", r.err)
		}
	}
	assert.Equal(t, map[int]string{0: "committed", 1: "unavailable", 2: "invalid", 10: "not_applied", 11: "ambiguous", 12: "waiting", 13: "denied", 14: "limit",
		15: "not_granted", 16: "conflict", 17: "repeated", 18: "ended", 19: "unknown", 20: "busy"}, codes, "scripts depend on them")
}

func TestEffectByFlagsAndByInput(t *testing.T) {
	t.Parallel()
	want := map[string]any{"at": "/effects", "guard": "https://g.example/a", "action": "row.append", "resource": "table:a", "key": "one", "parameters": map[string]any{"n": 1.0},
		"amount": 5.0, "currency": "EUR"}
	in, asked := runSocket(t, exec.Answer{Outcome: exec.Committed})
	in.good(t, append(effectFlags, "--parameters", `{"n":1}`, "--amount", "5", "--currency", "EUR")...)
	assert.Equal(t, want, asked())
	require.Equal(t, 0, in.runWith(t, `{"n":1}`, append(effectFlags, "--parameters", "-", "--amount", "5", "--currency", "EUR")...).code)
	assert.Equal(t, want, asked())
	require.Equal(t, 0, in.runWith(t, `{"guard":"https://g.example/a","action":"row.append","resource":"table:a","key":"one","parameters":{"n":1},"amount":5,"currency":"EUR"}`, "effect").code)
	assert.Equal(t, want, asked())
}

func TestEffectsThatAreNone(t *testing.T) {
	t.Parallel()
	in := env{exec.Variable: "/nowhere/at/all"}
	env{}.run(t, effectFlags...).bad(t, exitFailed, "NIGHTWARRANT_SOCKET is not set")
	in.run(t, effectFlags...).bad(t, exitFailed, "the socket of the run does not answer")
	in.run(t, append(effectFlags, "--parameters", "{")...).bad(t, 2, "the parameters are not JSON")
	in.runWith(t, "{", "effect").bad(t, 2, "standard input must hold one effect as JSON")
	in.runWith(t, `{"key":"a","secret":"b"}`, "effect").bad(t, 2, "standard input must hold one effect as JSON")
}

func TestProgress(t *testing.T) {
	t.Parallel()
	in, asked := runSocket(t, exec.Left{LeftMS: 1000, Effects: 3, WrapUp: "no"})
	assert.JSONEq(t, `{"left_ms":1000,"effects":3,"steps":0,"spend":0,"wrap_up":"no"}`, in.good(t, "effect", "progress", "--done", "1", "--of", "2", "--note", "half"))
	assert.Equal(t, map[string]any{"at": "/progress", "done": 1.0, "of": 2.0, "note": "half"}, asked())
}

func TestImportCrontab(t *testing.T) {
	t.Parallel()
	file := write(t, t.TempDir(), "crontab", "30 2 * * * /opt/close\n@reboot /opt/start\n")
	out := env{}.good(t, "worker", "import", "crontab", "--zone", "Europe/Berlin", file)
	assert.Contains(t, out, "# not drafted: line 2: @reboot")
	assert.Contains(t, out, "  cron: 30 2 * * *\n  zone: Europe/Berlin\n")
	env{}.run(t, "worker", "import", "crontab", "/nowhere/at/all").bad(t, exitFailed, "no such file")
}

func TestWorkerExecRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const good = "authority: http://127.0.0.1:1\nassertion_file: /a\nqueue: {url: \"nats://127.0.0.1:1\", reference: AAAAAAAAAAAAAAAAAAAAAA}\n"
	for text, want := range map[string]string{
		"":                                     "command.output_dir is missing",
		"command: {output_dir: " + dir + "/a}": "command.",
		"command: {output_dir: " + dir + ", pass: [API_KEY]}":           "command.pass does not hold: API_KEY reads like a secret",
		"command: {output_dir: " + dir + ", secrets: [SSH_AUTH_SOCK]}":  "command.pass does not hold: SSH_AUTH_SOCK never passes",
		"command: {output_dir: " + dir + ", secrets: [GPG_AGENT_INFO]}": "GPG_AGENT_INFO never passes",
	} {
		env{}.run(t, "worker", "exec", "--config", write(t, t.TempDir(), "w.yaml", good+text), "--", "/bin/true").bad(t, exitMisconfigured, want)
	}
	file := write(t, dir, "w.yaml", good+"command: {output_dir: "+dir+"}")
	env{}.run(t, "worker", "exec", "--config", file, "--", "no-such-program-at-all").bad(t, exitMisconfigured, "the command cannot be found")
	if os.Geteuid() == 0 {
		env{}.run(t, "worker", "exec", "--config", file, "--", "/bin/true").bad(t, exitMisconfigured, "command.uid is missing")
	}
}
