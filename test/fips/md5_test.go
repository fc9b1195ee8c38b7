//go:build fips

package fips_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// A real server that asks for md5 is refused before one is computed: computing it would end the process.
func TestAServerThatAsksForMD5(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	db := teststack.OwnCluster(t)
	admin, err := pgx.Connect(ctx, db.Postgres.AdminURL("postgres"))
	require.NoError(t, err)
	defer admin.Close(ctx)
	var rules string
	require.NoError(t, admin.QueryRow(ctx, "SHOW hba_file").Scan(&rules))
	before, err := os.ReadFile(rules)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(rules, append([]byte("host all old 127.0.0.1/32 md5\nlocal all old md5\n"), before...), 0o600))
	for _, sql := range []string{"SET password_encryption = 'md5'", "CREATE ROLE old LOGIN PASSWORD 'hush'", "SELECT pg_reload_conf()"} {
		_, err := admin.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
	var errors int
	require.Eventually(t, func() bool {
		return admin.QueryRow(ctx, "SELECT count(*) FROM pg_hba_file_rules WHERE 'old' = ANY (user_name) AND auth_method = 'md5' AND error IS NULL").Scan(&errors) == nil && errors == 2
	}, 30*time.Second, 10*time.Millisecond)
	u, err := url.Parse(db.Postgres.URL("old", "hush", db.Name))
	require.NoError(t, err)

	dir := place(t)
	shipped := built(t, dir, modules()[0], "", "nightwarrant", "0")
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	config := filepath.Join(dir, "scheduler.yaml")
	text := fmt.Sprintf("database_url: %q\ninstance: one\nnats: {url: \"nats://127.0.0.1:1\", monitor_url: \"http://127.0.0.1:1\"}\napprovals: {link: \"http://127.0.0.1:1\", webhook: {url: \"http://127.0.0.1:1\", secret_file: %s}}\n", u, secret)
	for name, c := range map[string]struct {
		env, first string
		refused    bool
	}{
		"required":                      {"GODEBUG=", "fips: required\n", true},
		"required, and enforced":        {only, "fips: required\n", true},
		"not required, and enforced":    {only, "", true},
		"neither: it goes on, with md5": {"GODEBUG=", "", false},
	} {
		require.NoError(t, os.WriteFile(config, []byte(c.first+text), 0o600))
		r := run(t, time.Minute, []string{c.env}, shipped, "scheduler", "--config", config)
		assert.NotContains(t, r.err, "panic", name)
		assert.NotContains(t, r.err, "hush", name)
		assert.Equal(t, c.refused, strings.Contains(r.err, "DEP_NON_APPROVED_ALGORITHM"), "%s: %s", name, r.err)
		if c.refused {
			assert.Equal(t, 78, r.code, name)
		}
	}
	r := run(t, time.Minute, []string{only}, shipped, "readiness", "--database-url", u.String())
	assert.NotZero(t, r.code)
	assert.NotContains(t, r.err, "panic")
}
