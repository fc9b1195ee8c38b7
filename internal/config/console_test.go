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

func TestConsole(t *testing.T) {
	t.Parallel()
	rest := strings.Replace(goodAuthority, "  operators:\n", "  auditors: [{issuer: \"https://idp.example\", subject: eve}]\n  operators:\n", 1)
	a := &Authority{}
	require.NoError(t, Parse("f", []byte(rest), a, noEnv))
	assert.False(t, a.Console.Is(), "no pages unless somebody wants them")
	assert.Equal(t, []Operator{{"https://idp.example", "eve"}}, a.Envelope.Auditors)

	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret\n"), 0o600))
	a = &Authority{}
	require.NoError(t, Parse("f", []byte(rest+"console: {origin: \"https://console.example\", login: {client_id: c, client_secret_file: "+secret+"}}\n"), a, noEnv))
	assert.Equal(t, [2]time.Duration{30 * time.Minute, 12 * time.Hour}, [2]time.Duration{a.Console.Login.Idle.Std(), a.Console.Login.Life.Std()})
	assert.Equal(t, "s3cret", a.Console.Login.ClientSecret.Reveal())
	a = &Authority{}
	require.NoError(t, Parse("f", []byte(rest+"console: {origin: \"http://127.0.0.1:1\", envelope_header: Cf-Access-Jwt-Assertion}\n"), a, noEnv))
	assert.False(t, a.Console.Login.Is())

	for line, want := range map[string]string{
		`{origin: "https://c.example"}`:                                                                 "needs either login or envelope_header",
		`{origin: "https://c.example", envelope_header: X, login: {client_id: c}}`:                      "not both",
		`{envelope_header: X}`:                                                                          "console.origin",
		`{login: {client_id: c}}`:                                                                       "console.origin",
		`{origin: "http://c.example", envelope_header: X}`:                                              "console.origin",
		`{origin: "https://c.example/", envelope_header: X}`:                                            "console.origin",
		`{origin: "https://c.example/x", envelope_header: X}`:                                           "console.origin",
		`{origin: "https://c.example", login: {idle: 5m}}`:                                              "console.login.client_id is missing",
		`{origin: "https://c.example", login: {client_id: c, idle: 5s}}`:                                "console.login.idle",
		`{origin: "https://c.example", login: {client_id: c, life: 13h}}`:                               "console.login.life",
		`{origin: "https://c.example", login: {client_id: c, idle: 2h, life: 1h}}`:                      "must not be less than console.login.idle",
		`{origin: "https://c.example", login: {client_id: c, client_secret: a, client_secret_file: b}}`: "client_secret",
		`{origin: "https://c.example", login: {client_id: c, client_secret_file: /nowhere}}`:            "client_secret_file",
		`{origin: "https://c.example", login: {client_id: c, scope: x}}`:                                "not a known key",
		`{origin: "https://c.example", header: X}`:                                                      "not a known key",
	} {
		err := Parse("f", []byte(rest+"console: "+line+"\n"), &Authority{}, noEnv)
		var e *Error
		require.ErrorAs(t, err, &e, line)
		assert.Contains(t, err.Error(), want, line)
	}
	err := Parse("f", []byte(strings.Replace(rest, "subject: eve", `subject: ""`, 1)), &Authority{}, noEnv)
	assert.ErrorContains(t, err, "envelope.auditors")
}
