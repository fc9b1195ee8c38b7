package main

import (
	"fmt"
	"io"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// The account of a command where the test is root.
const nobody = 65534

// closeScript is a script of ten lines as somebody has it.
const closeScript = `#!/bin/sh
# closes the books
set -e
effect() { NIGHTWARRANT_TEST_AS_PROGRAM=1 BINARY effect --guard GUARD --action row.append --resource table:entries "$@"; }
env
for entry in debit credit; do
  effect --key "$entry" --parameters "{\"table\":\"entries\",\"values\":{\"memo\":\"$entry\"}}"
done
cat TOKEN 2>&1 || echo "cannot read it"
`

// secretsAround is an environment as cron users have it.
var secretsAround = []string{"API_KEY=sesame-1", "AWS_SECRET_ACCESS_KEY=sesame-2", "DB_PASSWORD=sesame-3", "GITHUB_TOKEN=sesame-4", "SSH_AUTH_SOCK=/tmp/sesame-5", "SSH_AGENT_PID=1",
	"NIGHTWARRANT_DATABASE_URL=postgres://sesame-6", "my_credentials=sesame-7", "BASIC_AUTH=sesame-8", "OTHER=sesame-9"}

// shift is a folder with the program, a queue in NATS and the files of a worker.
type shift struct {
	*night
	dir, binary string
	server      *localstack.NATS
	js          jetstream.JetStream
	queue       queue.Ref
}

func (n *night) shift() *shift {
	t := n.t
	dir, err := os.MkdirTemp("", "nw-shift-")
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the command's account must pass
	s := &shift{night: n, dir: dir, binary: filepath.Join(dir, "nightwarrant"), server: teststack.NATS(t)}
	self, err := os.Executable()
	require.NoError(t, err)
	copyProgram(t, self, s.binary)
	require.NoError(t, n.Owner.QueryRow(t.Context(), `SELECT queue FROM nw.role_queues`).Scan(&s.queue))
	conn, err := nats.Connect(s.server.URL(teststack.Admin))
	require.NoError(t, err)
	closed := make(chan struct{})
	conn.SetClosedHandler(func(*nats.Conn) { close(closed) })
	t.Cleanup(func() {
		conn.Close()
		<-closed
	})
	s.js, err = jetstream.New(conn)
	require.NoError(t, err)
	require.NoError(t, queue.Ensure(t.Context(), s.js, queue.Settings{Replicas: 1}, []queue.Ref{s.queue}))
	return s
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	require.NoError(t, err)
	defer in.Close()                                                      //nolint:errcheck // it was only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // it is a program
	require.NoError(t, err)
	_, err = io.Copy(out, in)
	require.NoError(t, err)
	require.NoError(t, out.Close())
}

// script writes a script that the command's account may run.
func (s *shift) script(name, text string) string {
	text = strings.NewReplacer("BINARY", s.binary, "GUARD", s.guard, "TOKEN", filepath.Join(s.dir, "token"), "DIR", s.dir).Replace(text)
	path := write(s.t, s.dir, name, text)
	require.NoError(s.t, os.Chmod(path, 0o755)) //nolint:gosec // as a script is
	return path
}

// begins starts a worker process on a script, with secrets in its environment.
func (s *shift) begins(script string) (stop func() string, output string) {
	t := s.t
	of, err := url.Parse(s.server.URL(teststack.Admin))
	require.NoError(t, err)
	password, _ := of.User.Password()
	output = filepath.Join(s.dir, "output-"+filepath.Base(script))
	require.NoError(t, os.Mkdir(output, 0o700))
	file := fmt.Sprintf("authority: %s\nclient: books\nassertion_file: %s\nqueue: {url: \"nats://%s\", reference: %s, user: %s, password_file: %s}\ncommand:\n  output_dir: %s\n  grace: 500ms\n",
		s.URL, write(t, s.dir, "token", s.Assertion("system:serviceaccount:jobs:bookkeeper")), of.Host, s.queue, of.User.Username(),
		write(t, s.dir, "nats.password", password), output)
	if os.Geteuid() == 0 {
		file += fmt.Sprintf("  uid: %d\n  gid: %d\n", nobody, nobody)
	}
	log := &watched{want: `"msg":"working"`, seen: make(chan struct{})}
	cmd := osexec.Command(s.binary, "worker", "exec", "--config", write(t, s.dir, "worker.yaml", file), "--", script) //nolint:noctx // it is stopped
	cmd.Env = append(append(os.Environ(), secretsAround...), asProgram+"=1")
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	ended := false
	stop = func() string {
		if !ended {
			ended = true
			assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			assert.NoError(t, cmd.Wait(), log)
		}
		return log.String()
	}
	t.Cleanup(func() { stop() })
	select {
	case <-log.seen:
	case <-time.After(testWithin):
		require.FailNow(t, "it does not begin", log.String())
	}
	return stop, output
}

// publish gives the one queued run to whoever pulls, as the relay would.
func (s *shift) publish() {
	var run, q []byte
	require.Eventually(s.t, func() bool {
		return s.scheduler.QueryRow(s.t.Context(), `SELECT run_ref, queue FROM nw.take_outbox(1, 60000)`).Scan(&run, &q) == nil
	}, testWithin, 20*time.Millisecond, "nothing is queued")
	_, err := s.js.Publish(s.t.Context(), queue.Subject(s.queue), []byte(queue.Ref(run).String()))
	require.NoError(s.t, err)
}

// A line of a crontab becomes a task; its script of ten lines runs under its owner's consent, brings about what it may, and finds no secret; and another is killed with what it
// started at its deadline.
func TestAScriptOfTenLines(t *testing.T) {
	t.Parallel()
	n := newNight(t).guarded()
	s := n.shift()
	script := s.script("close.sh", closeScript)
	draft := env{}.good(t, "worker", "import", "crontab", "--zone", "Europe/Berlin", write(t, s.dir, "crontab", "30 2 * * * "+script+"\n"))
	assert.Contains(t, draft, "-- /bin/sh -c '"+script+"'\n")
	task := n.Consent(strings.NewReplacer("CLIENT", "books", "role: close-sh", "role: bookkeeper", "POLICY", "default", "ISSUER", n.Platform.URL, `subject: ""`, "subject: member-1", "GUARD", "ledger",
		"ACTION", "row.append", "RESOURCE", "table:entries", "dial: read", "dial: low").Replace(draft))
	stop, output := s.begins(script)
	run := n.Plan(task)
	s.publish()
	assert.Equal(t, "succeeded", n.ended(run))
	assert.Equal(t, map[string]int{"stale": 1, "fresh": 1, "debit": 1, "credit": 1}, n.memos())
	log := stop()
	assert.Contains(t, log, `"outcome":"committed"`)
	printed := onlyFile(t, output)
	assert.Contains(t, printed, "\ncommitted\ncommitted\n")
	assert.Regexp(t, `(?m)^NIGHTWARRANT_SOCKET=/`, printed)
	for _, secret := range []string{"sesame", "SSH_", asProgram, "eyJ"} {
		assert.NotContains(t, printed, secret)
	}
	if os.Geteuid() == 0 {
		assert.Contains(t, printed, "cannot read it", "the assertion is out of reach")
	}

	// Another one does not listen and leaves its group; at the deadline nothing of it lives.
	long := s.script("long.sh", "#!/bin/sh\ntrap '' TERM\nsetsid sh -c 'trap \"\" TERM; echo child $$; while :; do sleep 1; done' &\necho parent $$\nwhile :; do sleep 1; done\n")
	task = n.Consent(strings.Replace(n.Task("long"), "runtime_s: 600", "runtime_s: 15", 1))
	stop, output = s.begins(long)
	n.Plan(task)
	s.publish()
	var text string
	require.Eventually(t, func() bool {
		text, _ = tryOnlyFile(output)
		return strings.Contains(text, "child") && strings.Contains(text, "parent")
	}, testWithin, 20*time.Millisecond)
	pids := regexp.MustCompile(`\d+`).FindAllString(text, -1)
	require.Len(t, pids, 2)
	require.Eventually(t, func() bool { return !lives(pids[0]) && !lives(pids[1]) }, testWithin, 20*time.Millisecond)
	assert.Contains(t, stop(), `the authority deadline of this run has passed`)
	assert.Zero(t, n.Count(`SELECT count(*) FROM nw.runs WHERE state = 'succeeded' AND ref <> (SELECT ref FROM nw.runs WHERE state = 'succeeded' ORDER BY id LIMIT 1)`))
}

func lives(pid string) bool {
	n, _ := strconv.Atoi(pid)
	return syscall.Kill(n, 0) == nil
}

func onlyFile(t *testing.T, dir string) string {
	t.Helper()
	text, err := tryOnlyFile(dir)
	require.NoError(t, err)
	return text
}

func tryOnlyFile(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("%d files in %s: %w", len(files), dir, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, files[0].Name()))
	return string(text), err
}
