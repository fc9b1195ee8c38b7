package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const goodWorker = `authority: https://night.example
client: books
assertion_file: /run/token
queue:
  url: nats://a:4222,nats://b:4222
  reference: AAAAAAAAAAAAAAAAAAAAAA
command:
  dir: /srv/books
  pass: [EDITION]
  secrets: [BOOKS_API_VERSION]
  socket_dir: /run/nightwarrant
  output_dir: /var/log/nightwarrant
  max_output: 4096
  grace: 10s
  when_waiting: block
  uid: 1000
  gid: 1001
`

func TestAGoodWorker(t *testing.T) {
	t.Parallel()
	var w Worker
	require.NoError(t, Parse("f", []byte(goodWorker), &w, noEnv))
	assert.Equal(t, Worker{Authority: "https://night.example", Client: "books", Identity: Identity{AssertionFile: "/run/token"},
		Queue: WorkerQueue{URL: "nats://a:4222,nats://b:4222", Reference: "AAAAAAAAAAAAAAAAAAAAAA"},
		Command: Command{Dir: "/srv/books", Pass: []string{"EDITION"}, Secrets: []string{"BOOKS_API_VERSION"}, SocketDir: "/run/nightwarrant", OutputDir: "/var/log/nightwarrant",
			MaxOutput: 4096, Grace: Duration(10 * time.Second), WhenWaiting: "block", UID: 1000, GID: 1001}}, w)
}

func TestAWorkersDefaults(t *testing.T) {
	t.Parallel()
	password := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(password, []byte("hush\n"), 0o600))
	var w Worker
	require.NoError(t, Parse("f", []byte("authority: https://night.example\nassertion_file: /a\nqueue: {url: \"nats://a\", reference: AAAAAAAAAAAAAAAAAAAAAA, user: u, password_file: "+password+
		"}\ncommand: {output_dir: /var/log}\n"), &w, noEnv))
	assert.Equal(t, Command{SocketDir: "/tmp", OutputDir: "/var/log", MaxOutput: 1 << 20, Grace: Duration(5 * time.Second), WhenWaiting: "end"}, w.Command)
	assert.Equal(t, "hush", w.Queue.Password.Reveal())
}

func TestAWrongWorker(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"authority: http://night.example":                     "f line 1: authority must be https, or http on a loopback address",
		"assertion_file: \"\"":                                "f line 3: assertion_file is missing",
		"  url: nats://u:hush@a":                              "f line 5: queue.url must not hold a user or a password",
		"  url: http://a":                                     "f line 5: queue.url must be nats:// or tls:// URLs",
		"  reference: short":                                  "f line 6: queue.reference must be the 22 characters",
		"  reference: AAAAAAAAAAAAAAAAAAAAAA\n  user: u":      "f line 7: queue.user and queue.password_file must be given both or neither",
		"  socket_dir: run":                                   "f line 11: command.socket_dir must be an absolute path",
		"  socket_dir: /" + strings.Repeat("a", maxSocketDir): "f line 11: command.socket_dir must have at most 60 bytes",
		"  output_dir: \"\"":                                  "f line 12: command.output_dir is missing",
		"  output_dir: log":                                   "f line 12: command.output_dir must be an absolute path",
		"  max_output: 1073741825":                            "f line 13: command.max_output must be between 1 and 1073741824",
		"  grace: 61s":                                        "f line 14: command.grace must be between 10ms and 1m0s",
		"  when_waiting: hope":                                "f line 15: command.when_waiting must be end or block",
		"  uid: 0":                                            "f line 16: command.uid and command.gid must be given both or neither",
		"  uid: -1":                                           "f line 16: command.uid must be between 0 and 4294967294",
		"  gid: 4294967295":                                   "f line 17: command.gid must be between 0 and 4294967294",
		"  dir: /srv\n  shell: /bin/sh":                       "f line 9: command.shell",
		"  reference: AAAAAAAAAAAAAAAAAAAAAA\n  password: hush": "f line 7: queue.password",
	} {
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			assert.ErrorContains(t, Parse("f", []byte(changed(t, goodWorker, change)), &Worker{}, noEnv), want)
		})
	}
}
