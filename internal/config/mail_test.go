package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Owners may be told by mail alone, or by both.
func TestMail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	password, hook := secret("password", "hush\n"), secret("webhook", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
	good := `database_url: postgres://nw_scheduler:hush@db/nightwarrant
nats: {url: "nats://127.0.0.1:4222", monitor_url: "http://127.0.0.1:8222"}
approvals:
  mail:
    url: smtp://mail.example
    user: nightwarrant
    password_file: ` + password + `
    from: notices@nightwarrant.example
    operators: operators@platform.example
    issuer: https://platform.example
  link: https://console.example
directory: {url: "https://people.example/scim/v2", token_file: ` + password + `}
`
	var s Scheduler
	require.NoError(t, Parse("f", []byte(good), &s, noEnv))
	assert.True(t, s.Approvals.Webhook.IsZero())
	assert.False(t, s.Approvals.Mail.IsZero())
	var both Scheduler
	require.NoError(t, Parse("f", []byte(changed(t, good, "  link: https://console.example\n  webhook: {url: \"https://platform.example/a\", secret_file: "+hook+"}")), &both, noEnv))
	assert.False(t, both.Approvals.Webhook.IsZero())
	for change, want := range map[string]string{
		"    url: \"\"":                             "f line 5: approvals.mail.url must be smtp://HOST or smtps://HOST, with a port where it is another one, and no user in it",
		"    url: https://mail.example":             "f line 5: approvals.mail.url must be smtp://HOST or smtps://HOST, with a port where it is another one, and no user in it",
		"    url: smtp://u:p@mail.example":          "f line 5: approvals.mail.url must be smtp://HOST or smtps://HOST, with a port where it is another one, and no user in it",
		"    url: smtp://mail.example/?tls=none":    "f line 5: approvals.mail.url must be smtp://HOST or smtps://HOST, with a port where it is another one, and no user in it",
		"    user: \"\"":                            "f line 6: approvals.mail.user and approvals.mail.password_file must be given both or neither",
		"    password_file: /nowhere":               `f line 7: approvals.mail.password_file names "/nowhere", which cannot be opened: no such file or directory`,
		"    from: Notices <a@b.example>":           "f line 8: approvals.mail.from must be an address, without a name",
		"    operators: \"\"":                       "f line 9: approvals.mail.operators must be an address, without a name",
		"    issuer: http://platform.example":       "f line 10: approvals.mail.issuer must be https, or http on a loopback address",
		"directory: {token_file: " + password + "}": "f line 12: directory.url is missing",
	} {
		require.EqualError(t, Parse("f", []byte(changed(t, good, change)), &Scheduler{}, noEnv), want, change)
	}
	alone := "database_url: postgres://nw_scheduler:hush@db/nightwarrant\nnats: {url: \"nats://127.0.0.1:4222\", monitor_url: \"http://127.0.0.1:8222\"}\n" +
		"approvals: {webhook: {url: \"https://platform.example/a\", secret_file: " + hook + "}, link: \"https://console.example\"}\ndirectory: {url: \"https://people.example\"}\n"
	require.EqualError(t, Parse("f", []byte(alone), &Scheduler{}, noEnv), "f line 4: directory.url is asked for addresses only, and approvals.mail is not given")
}
