package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// asProgram makes the test binary behave as the program: a test that needs a
// process of its own, with signals and an exit code, starts itself.
const asProgram = "NIGHTWARRANT_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	teststack.Main(m)
}

// testWithin is longer than any machine needs.
const testWithin = 60 * time.Second

// result is what one command line did.
type result struct {
	code     int
	out, err string
}

type env map[string]string

func (e env) run(t testing.TB, args ...string) result {
	t.Helper()
	return e.runWith(t, "", args...)
}

func (e env) runWith(t testing.TB, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testWithin)
	defer cancel()
	var out, err bytes.Buffer
	p := program{in: strings.NewReader(stdin), out: &out, err: &err, env: func(name string) string { return e[name] }}
	code := p.run(ctx, append([]string{}, args...)) // none are not those of the test binary
	return result{code, out.String(), err.String()}
}

// good is run that must succeed.
func (e env) good(t testing.TB, args ...string) string {
	t.Helper()
	r := e.run(t, args...)
	require.Equal(t, exitOK, r.code, r.err)
	require.Empty(t, r.err)
	return r.out
}

// bad holds a failed command line to its code and its one sentence.
func (r result) bad(t testing.TB, code int, sentence string) {
	t.Helper()
	assert.Equal(t, code, r.code, r.err)
	assert.Contains(t, r.err, sentence)
	assert.True(t, strings.HasPrefix(r.err, "nightwarrant: "), r.err)
	assert.Equal(t, 1, strings.Count(r.err, "\n"), r.err)
	assert.True(t, strings.HasSuffix(r.err, "\n"))
	assert.Empty(t, r.out)
}

// running is a process of this program as a goroutine.
type running struct {
	t    testing.TB
	log  *watched
	stop context.CancelFunc
	code chan int
}

// start starts a process and returns when its log says so.
func (e env) start(t testing.TB, ready string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, log: &watched{want: ready, seen: make(chan struct{})}, stop: cancel, code: make(chan int, 1)}
	p := program{in: strings.NewReader(""), out: r.log, err: r.log, env: func(name string) string { return e[name] }}
	go func() { r.code <- p.run(ctx, args) }()
	t.Cleanup(cancel)
	select {
	case <-r.log.seen:
	case code := <-r.code:
		require.FailNow(t, "it ended", "with code %d: %s", code, r.log)
	case <-time.After(testWithin):
		require.FailNow(t, "it is not ready", r.log.String())
	}
	return r
}

// end stops the process and returns its exit code.
func (r *running) end() int {
	r.t.Helper()
	r.stop()
	return r.wait()
}

func (r *running) wait() int {
	r.t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(testWithin):
		require.FailNow(r.t, "it does not end", r.log.String())
		return -1
	}
}

// watched keeps what was written, and tells when it contains something.
type watched struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	seen chan struct{}
	told bool
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(b)
	if !w.told && strings.Contains(w.text.String(), w.want) {
		w.told = true
		close(w.seen)
	}
	return len(b), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// write writes a file of mode 0600 and returns its path.
func write(t testing.TB, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args     string
		sentence string
	}{
		{"nonsense", `unknown command "nonsense" for "nightwarrant"`},
		{"serve", `required flag(s) "config" not set`},
		{"serve extra --config x", `unknown command "extra" for "nightwarrant serve"`},
		{"serve --nonsense", "unknown flag: --nonsense"},
		{"keys init --dir x", `required flag(s) "identity-file" not set`},
		{"offer show", "accepts 1 arg(s), received 0"},
		{"offer accept AAAAAAAAAAAAAAAAAAAAAA", `required flag(s) "digest" not set`},
		{"offer nonsense", `unknown command "nonsense" for "nightwarrant offer"`},
		{"finding record x", "accepts 2 arg(s), received 1"},
		{"admin apply", `required flag(s) "file" not set`},
		{"gate close --database-url a --database-url-file b", "none of the others can be"},
		{"guard migrate --database-url a", `required flag(s) "role" not set`},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			env{}.run(t, strings.Fields(c.args)...).bad(t, exitFailed, c.sentence)
		})
	}
}

func TestHelpNamesEveryCommandForPeople(t *testing.T) {
	t.Parallel()
	out := env{}.good(t)
	for _, name := range []string{"serve", "scheduler", "guard", "migrate", "keys", "admin", "offer", "task", "run", "finding", "gate", "readiness", "version"} {
		assert.Contains(t, out, "\n  "+name+" ")
	}
	assert.NotContains(t, out, "dev-issuer", "it is no part of the product")
	assert.NotContains(t, out, "dev-idp")
	assert.NotContains(t, out, "dev-directory")
}

// Every command says in one line what it does, and takes no flag by which an
// identity could come from anywhere but an envelope (mission B1).
func TestCommands(t *testing.T) {
	t.Parallel()
	p := program{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &bytes.Buffer{}, env: func(string) string { return "" }}
	all := p.commands()
	for len(all) > 0 {
		c := all[0]
		all = append(all[1:], c.Commands()...)
		assert.True(t, c.Hidden || c.Short != "", c.CommandPath())
		assert.NotContains(t, c.Short, "\n")
		for _, name := range []string{"member", "subject", "user", "email", "operator", "as"} {
			assert.Nil(t, c.Flags().Lookup(name), "%s --%s", c.CommandPath(), name)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	assert.Contains(t, env{}.good(t, "version"), "schema version 18\n")
	assert.Contains(t, env{}.good(t, "version", "--json"), `"guard_protocol": 1`)
}

func TestOneLine(t *testing.T) {
	t.Parallel()
	assert.Equal(t, "a b c", oneLine("a\nb\t\r c", 10))
	assert.Equal(t, "[31mred", oneLine("\x1b[31mred\x07", 20))
	assert.Equal(t, "x y", oneLine("x\u009by", 20), "a control character of 8 bits")
	assert.Equal(t, "?", oneLine("\xff", 20))
	assert.Equal(t, "ééé…", oneLine("éééé", 3))
	assert.NotContains(t, fmt.Sprintf("%q", oneLine(strings.Repeat("a\n", 5000), maxLine)), `\n`)
}
