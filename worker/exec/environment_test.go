package exec

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestWhatPasses(t *testing.T) {
	e := Environment{Pass: []string{"EDITION"}, Secrets: []string{"BOOKS_API_VERSION"}}
	require.NoError(t, e.Check())
	got := e.Of([]string{"PATH=/bin", "HOME=/h", "EDITION=2", "BOOKS_API_VERSION=3", "OTHER=1", "API_KEY=x", "my_token=x", "Monkey=x", "SSH_AUTH_SOCK=x", "SSH_CLIENT=x", "GPG_AGENT_INFO=x",
		"NIGHTWARRANT_SOCKET=x", "NIGHTWARRANT_DATABASE_URL=x", "XDG_RUNTIME_DIR=x", "DOCKER_HOST_SOCK=x", "broken", "=x"})
	assert.Equal(t, []string{"PATH=/bin", "HOME=/h", "EDITION=2", "BOOKS_API_VERSION=3"}, got)
}

func TestNamesThatMayNotPass(t *testing.T) {
	for _, name := range []string{"", "A=B", "a\x00", "SSH_AUTH_SOCK", "ssh_client", "NIGHTWARRANT_SOCKET", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "KRB5CCNAME", "GNUPGHOME"} {
		assert.Error(t, Environment{Pass: []string{name}}.Check(), name)
		assert.Error(t, Environment{Secrets: []string{name}}.Check(), name)
	}
	for _, word := range words {
		name := "A_" + strings.ToLower(word) + "S"
		assert.Error(t, Environment{Pass: []string{name}}.Check(), name)
		assert.NoError(t, Environment{Secrets: []string{name}}.Check(), name)
	}
}

// Whatever a file names and an environment holds: nothing that reads like a secret passes without its own exception, and nothing of an agent ever.
func TestNothingElsePasses(t *testing.T) {
	name := rapid.StringMatching(`(SSH_|NIGHTWARRANT_|MY_)?(API|key|Token|AUTH|EDITION|LANG|AGENT|SOCK)?[A-Z]{0,2}`)
	rapid.Check(t, func(t *rapid.T) {
		e := Environment{Pass: rapid.SliceOf(name).Draw(t, "pass"), Secrets: rapid.SliceOf(name).Draw(t, "secrets")}
		n := name.Draw(t, "name")
		passed := len(e.Of([]string{n + "=x"})) == 1
		upper := strings.ToUpper(n)
		for _, never := range []string{"AGENT", "SOCK"} {
			if passed && (strings.Contains(upper, never) || strings.HasPrefix(upper, "SSH_") || strings.HasPrefix(upper, "NIGHTWARRANT_")) {
				t.Fatalf("%s passed", n)
			}
		}
		for _, word := range words {
			if passed && strings.Contains(upper, word) && !strings.Contains("\x00"+strings.Join(e.Secrets, "\x00")+"\x00", "\x00"+n+"\x00") {
				t.Fatalf("%s passed without an exception", n)
			}
		}
	})
}
