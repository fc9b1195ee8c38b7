package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/testbinary"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// shelf is a directory of software tokens.
type shelf struct {
	testing.TB
	dir, library string
	module       string // that the key host loads
}

func newShelf(t testing.TB) *shelf {
	file := testbinary.SoftHSM(t)
	s := &shelf{t, t.TempDir(), file, file}
	require.NoError(t, os.Mkdir(s.tokens(), 0o700))
	s.write("softhsm2.conf", "directories.tokendir = "+s.tokens()+"\nobjectstore.backend = file\nlog.level = ERROR\n")
	return s
}

func (s *shelf) tokens() string { return filepath.Join(s.dir, "tokens") }

func (s *shelf) write(name, text string) string {
	s.Helper()
	file := filepath.Join(s.dir, name)
	require.NoError(s, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func (s *shelf) env() []string {
	return append(os.Environ(), "SOFTHSM2_CONF="+filepath.Join(s.dir, "softhsm2.conf"), "NIGHTWARRANT_TEST_SHIM="+s.dir, asProcess+"=1")
}

func (s *shelf) run(name string, args ...string) string {
	s.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = s.env()
	out, err := cmd.CombinedOutput()
	require.NoError(s, err, "%s", out)
	return string(out)
}

// token makes one and returns its serial.
func (s *shelf) token(label string) string {
	s.Helper()
	s.run("softhsm2-util", "--init-token", "--free", "--label", label, "--pin", pin, "--so-pin", "654321")
	out := s.run("softhsm2-util", "--show-slots")
	m := regexp.MustCompile(`Serial number:\s+(\S+)\s+Initialized:\s+yes\s+User PIN init\.:\s+yes\s+Label:\s+` + label).FindStringSubmatch(out)
	require.NotNil(s, m, out)
	return m[1]
}

func (s *shelf) tool(label string, args ...string) {
	s.Helper()
	s.run("pkcs11-tool", append([]string{"--module", s.library, "--token-label", label, "--login", "--pin", pin}, args...)...)
}

// keys makes both keys in a token.
func (s *shelf) keys(label string) {
	s.Helper()
	s.tool(label, "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive")
	s.tool(label, "--keygen", "--key-type", "GENERIC:32", "--id", "02", "--usage-sign", "--sensitive")
}

// made is a key of openssl's, and its file.
func (s *shelf) made(name string) string {
	s.Helper()
	key := filepath.Join(s.dir, name)
	s.run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key)
	return key
}

// put imports a key.
func (s *shelf) put(key, id string) {
	s.Helper()
	s.run("softhsm2-util", "--import", key, "--token", "one", "--label", "x", "--id", id, "--pin", pin)
}

func (s *shelf) socket() string { return filepath.Join(s.dir, "s") }

// config is the key host's file.
func (s *shelf) config(serial string, changed ...string) string {
	s.Helper()
	s.write("pin", pin)
	text := fmt.Sprintf("module: %s\nserial: %s\nkeys: [{signing: \"01\", nonce: \"02\"}]\npin_file: %s\nsocket: %s\nusers: [%s]\n", s.module, serial, filepath.Join(s.dir, "pin"), s.socket(), me(s))
	for i := 0; i < len(changed); i += 2 {
		require.Contains(s, text, changed[i])
		text = strings.Replace(text, changed[i], changed[i+1], 1)
	}
	return s.write("keyhost.yaml", text)
}

func me(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	require.NoError(t, err)
	return u.Username
}

// output is what a process has said until now.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// process is a running key host.
type process struct {
	cmd    *exec.Cmd
	stderr *output
	ended  chan struct{}
}

func (s *shelf) start(config string) *process {
	s.Helper()
	p := &process{exec.Command(os.Args[0], "--config", config), &output{}, make(chan struct{})}
	p.cmd.Env, p.cmd.Stderr = s.env(), p.stderr
	require.NoError(s, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	s.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// exits waits for the end of a key host and holds it to its code and its word.
func (s *shelf) exits(p *process, code int, word string) {
	s.Helper()
	select {
	case <-p.ended:
	case <-time.After(within):
		require.Fail(s, "the key host does not end")
	}
	assert.Equal(s, code, p.cmd.ProcessState.ExitCode(), p.stderr)
	assert.Contains(s, p.stderr.String(), word)
	assert.NotContains(s, p.stderr.String(), pin)
}

// client waits until the key host answers.
func (s *shelf) client(p *process) *keyhost.Client {
	s.Helper()
	c := keyhost.NewClient(s.socket(), os.Getuid())
	s.Cleanup(func() { _ = c.Close() })
	s.answers(c, p)
	return c
}

func (s *shelf) answers(c *keyhost.Client, p *process) {
	s.Helper()
	ended := false
	require.Eventually(s, func() bool {
		select {
		case <-p.ended:
			ended = true
		default:
		}
		return ended || c.Health(s.Context()) == nil
	}, within, 10*time.Millisecond)
	require.False(s, ended, "the key host has ended: %s", p.stderr)
}

// shim has the key host load SoftHSM through testdata/shim.c, which goes wrong as files in the shelf say.
func (s *shelf) shim() {
	s.Helper()
	s.module = filepath.Join(s.dir, "shim.so")
	s.write("shim.so", once(s, "shim.so", func() string {
		header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/miekg/pkcs11").Output()
		require.NoError(s, err)
		s.run("cc", "-shared", "-fPIC", "-I", strings.TrimSpace(string(header)), "-DSOFTHSM=\""+s.library+"\"", "-o", s.module, "testdata/shim.c", "-ldl")
		text, err := os.ReadFile(s.module)
		require.NoError(s, err)
		return string(text)
	}))
}

var (
	onceOnly sync.Mutex
	already  = map[string]string{}
)

// once is what the first that asks has made.
func once(t testing.TB, name string, do func() string) string {
	t.Helper()
	onceOnly.Lock()
	defer onceOnly.Unlock()
	if _, ok := already[name]; !ok {
		already[name] = do()
	}
	return already[name]
}

// logins are how often a key host has tried a PIN through the shim.
func (s *shelf) logins() int {
	s.Helper()
	tried, err := os.ReadFile(filepath.Join(s.dir, "logins"))
	if !os.IsNotExist(err) {
		require.NoError(s, err)
	}
	return len(tried)
}

func (s *shelf) remove(name string) {
	s.Helper()
	require.NoError(s, os.Remove(filepath.Join(s.dir, name)))
}

// made is a shelf with a token that has both keys, and its serial: each test has a copy of the same.
func made(t testing.TB) (*shelf, string) {
	t.Helper()
	s := newShelf(t)
	serial, files, _ := strings.Cut(once(t, "token", func() string {
		first := newShelf(t)
		serial := first.token("one")
		first.keys("one")
		files, err := exec.Command("tar", "-c", "-C", first.tokens(), ".").Output()
		require.NoError(t, err)
		return serial + "\n" + string(files)
	}), "\n")
	cmd := exec.Command("tar", "-x", "-C", s.tokens())
	cmd.Stdin = strings.NewReader(files)
	require.NoError(t, cmd.Run())
	return s, serial
}
