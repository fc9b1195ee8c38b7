package main

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

const guardPostgresFile = `kind: postgres
uri: URI
listen: 127.0.0.1:0
name: ledger
authority: AUTHORITY
assertion_file: ASSERTION
ledger_schema: second_guard
report_dataset: true
tables:
  orders: {columns: [id, paid], key: [id]}
`

// A guard of PostgreSQL with a ledger of its own says which tables it stands before, and does not start before others than it was told of.
func TestGuardOfPostgres(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	db := teststack.DurableCluster(t)
	owner := db.Pool(t, teststack.Owner)
	exec := func(sql string) {
		_, err := owner.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`CREATE TABLE orders (id text PRIMARY KEY, paid boolean)`)
	exec(`CREATE ROLE orders_guard LOGIN PASSWORD 'x'`)
	dir := t.TempDir()
	text := strings.NewReplacer("URI", authoritytest.GuardURI, "AUTHORITY", h.URL, "ASSERTION", write(t, dir, "assertion", h.Assertion(authoritytest.GuardClaim))).Replace(guardPostgresFile)
	file := write(t, dir, "guard.yaml", text)
	e := env{"NIGHTWARRANT_DATABASE_URL": db.Postgres.URL("orders_guard", "x", db.Name)}

	e.run(t, "guard", "dataset", "--config", file).bad(t, exitMisconfigured, "the ledger is missing")
	e.run(t, "guard", "--config", file).bad(t, exitMisconfigured, "the ledger is missing")
	owned := env{"NIGHTWARRANT_DATABASE_URL": db.URL(teststack.Owner)}
	owned.run(t, "guard", "migrate", "--role", "orders_guard", "--schema", "Second").bad(t, exitFailed, "schema")
	assert.Contains(t, owned.good(t, "guard", "migrate", "--role", "orders_guard", "--schema", "second_guard"), "The ledger is there")

	first := strings.TrimSpace(e.good(t, "guard", "dataset", "--config", file))
	digest, err := base64.RawURLEncoding.DecodeString(first)
	require.NoError(t, err)
	require.Len(t, digest, 32)
	r := e.start(t, `"msg":"guarding"`, "guard", "--config", file)
	require.Eventually(t, func() bool {
		return h.Count(`SELECT count(*) FROM nw.readiness_reports WHERE family = 'guards' AND datasets::bytea[] = ARRAY[$1::bytea]`, digest) == 1
	}, testWithin, 50*time.Millisecond, r.log)
	assert.Equal(t, exitOK, r.end(), r.log)

	exec(`ALTER TABLE orders ADD CHECK (id <> '')`)
	assert.NotEqual(t, first, strings.TrimSpace(e.good(t, "guard", "dataset", "--config", file)))
	exec(`ALTER TABLE orders DROP COLUMN paid`)
	e.run(t, "guard", "--config", file).bad(t, exitMisconfigured, "no column public.orders.paid")
	for _, schema := range []string{"Second", "pg_guard", `"`} {
		changed := write(t, dir, "changed.yaml", strings.Replace(text, "second_guard", "'"+schema+"'", 1))
		e.run(t, "guard", "--config", changed).bad(t, exitMisconfigured, "ledger_schema must be")
	}
}
