package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhereAnAssertionComesFrom(t *testing.T) {
	t.Parallel()
	const line = "assertion_file: /run/token"
	for instead, want := range map[string]string{
		"": "f: assertion_file is missing, and so is assertion.spiffe.socket",
		line + "\nassertion: {spiffe: {socket: /run/agent.sock}}":    "f line 4: assertion must not stand beside assertion_file",
		line + "\nassertion: {spiffe: {id: \"spiffe://a/b\"}}":       "f line 4: assertion must not stand beside assertion_file",
		"assertion: {spiffe: {id: \"spiffe://a/b\"}}":                "f line 3: assertion.spiffe.socket must be an absolute path",
		"assertion: {spiffe: {socket: agent.sock}}":                  "f line 3: assertion.spiffe.socket must be an absolute path",
		"assertion: {spiffe: {socket: /a, id: worker}}":              "f line 3: assertion.spiffe.id must be a SPIFFE id",
		"assertion: {spiffe: {socket: /a, id: \"spiffe://A/b\"}}":    "f line 3: assertion.spiffe.id must be a SPIFFE id",
		"assertion: {spiffe: {socket: /a, id: \"spiffe://a\"}}":      "f line 3: assertion.spiffe.id must be a SPIFFE id",
		"assertion: {spiffe: {socket: /a, id: \"spiffe://a/b//c\"}}": "f line 3: assertion.spiffe.id must be a SPIFFE id",
		"assertion: {spiffe: {socket: /a, audience: b}}":             "assertion.spiffe.audience is not a known key",
		"assertion: {kubernetes: {socket: /a}}":                      "assertion.kubernetes is not a known key",
	} {
		require.ErrorContains(t, Parse("f", []byte(strings.Replace(goodWorker, line, instead, 1)), &Worker{}, noEnv), want, instead)
	}
	const api = "assertion: {spiffe: {socket: /run/agent.sock, id: \"spiffe://prod.example/ns/books\"}}"
	var w Worker
	require.NoError(t, Parse("f", []byte(strings.Replace(goodWorker, line, api, 1)), &w, noEnv))
	assert.Equal(t, Identity{Assertion: FromSPIFFE{WorkloadAPI{"/run/agent.sock", "spiffe://prod.example/ns/books"}}}, w.Identity)
	g, err := ParseGuard("f", []byte(strings.Replace(goodGuard, "assertion_file: /var/run/secrets/nightwarrant/token", api, 1)), noEnv)
	require.NoError(t, err)
	assert.Equal(t, w.Identity, g.Common().Identity)
}
