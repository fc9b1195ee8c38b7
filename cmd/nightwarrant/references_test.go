package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A reference may begin with a hyphen; it is still a reference, wherever it stands.
func TestReferencesAreNoFlags(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"-c0SKpFfvl2KnVXtfTLEjA", "--0SKpFfvl2KnVXtfTLEjA", "-jsonpfvl2KnVXtfTLEjAx", "bq61p0JRpLA1ZEM7KSRv7w"} {
		for line, want := range map[string]string{
			"task revoke REF":             "POST /v1/tasks/REF/revoke",
			"task revoke REF --json":      "POST /v1/tasks/REF/revoke",
			"task revoke --json REF":      "POST /v1/tasks/REF/revoke",
			"task revoke -- REF":          "POST /v1/tasks/REF/revoke",
			"run list --task REF":         "GET /v1/runs?task=REF",
			"run list --task=REF":         "GET /v1/runs?task=REF",
			"finding record REF happened": "POST /v1/findings",
			"offer accept REF --digest -HA88Fb__TSfqQIi76QgqztEH8TPfgRCJyltG2Xu45Y": "POST /v1/offers/REF/consent",
			"offer show REF":    "GET /v1/offers/REF",
			"offer narrow REF":  "POST /v1/offers/REF/narrow",
			"admin cut-off REF": "POST /v1/tasks/REF/cut-off",
		} {
			seen := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				seen = r.Method + " " + r.URL.String()
				problem(http.StatusForbidden, "forbidden", "", "")(w, r)
			}))
			r := signedIn(t, server.URL, "a.b.c").run(t, strings.Fields(strings.ReplaceAll(line, "REF", ref))...)
			server.Close() // waits for the handler
			r.bad(t, exitFailed, "refused (forbidden)")
			assert.Equal(t, strings.ReplaceAll(want, "REF", ref), seen, line)
		}
	}
}

func TestFlagsStayFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--nats-password-file-a"}, {"-f", "x"}, {"-"}, {"--"}, {"--digest", "-HA88Fb__TSfqQIi76QgqztEH8TPfgRCJyltG2Xu45Y"}, nil} {
		assert.Equal(t, args, marked(args))
	}
	for _, text := range []string{"", "short", "../../../../etc/passwd", "aaaaaaaaaaaaaaaaaaaaa/", "aaaaaaaaaaaaaaaaaaaaa%", mark, mark + "x"} {
		_, err := reference("a task", text)
		require.Error(t, err, text)
	}
}
