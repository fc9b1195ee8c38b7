package migrations_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func rows[T any](t *testing.T, by querier, sql string, args ...any) []T {
	t.Helper()
	r, err := by.Query(context.Background(), sql, args...)
	require.NoError(t, err)
	out, err := pgx.CollectRows(r, pgx.RowToStructByPos[T])
	require.NoError(t, err)
	return out
}

type column struct {
	Table, Column, Type string
	Class               string
	Closed              bool // a CHECK or a domain lists its values
	Bounded             bool // a CHECK, a domain or a foreign key says how many bytes
}

func columns(t *testing.T, pool *pgxpool.Pool) []column {
	t.Helper()
	return rows[column](t, pool, `
		SELECT c.relname, a.attname, format_type(coalesce(nullif(y.typbasetype, 0), y.oid), NULL), coalesce(col_description(c.oid, a.attnum), ''),
		       EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c' AND a.attnum = ANY (k.conkey) AND (pg_get_constraintdef(k.oid) LIKE '%ANY (ARRAY[%' OR pg_get_constraintdef(k.oid) LIKE '%<@ ARRAY[%'))
		       OR EXISTS (SELECT FROM pg_constraint k WHERE k.contypid = y.oid AND pg_get_constraintdef(k.oid) LIKE '%ANY (ARRAY[%'),
		       EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND a.attnum = ANY (k.conkey) AND (k.contype = 'f' OR k.contype = 'c' AND pg_get_constraintdef(k.oid) LIKE '%octet_length(' || a.attname || ')%'))
		       OR EXISTS (SELECT FROM pg_constraint k WHERE k.contypid = y.oid AND pg_get_constraintdef(k.oid) ~ 'octet_length|are_digests')
		  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type y ON y.oid = a.atttypid
		 WHERE c.relnamespace = 'nw'::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2`)
}

// fits lists the types that a class may have. Text is for closed vocabularies only.
var fits = map[string][]string{
	"reference": {"bytea"}, "digest": {"bytea", "bytea[]"}, "public_key": {"bytea"}, "document": {"bytea"}, "sealed": {"bytea"}, "state": {"text", "text[]"}, "flag": {"boolean"},
	"number": {"bigint", "integer", "smallint", "smallint[]"}, "time": {"timestamp with time zone", "date"},
}

// A8: every column has a class, and no column outside the document table can hold text from outside.
func TestEveryColumnHasAClass(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Owner)
	all := columns(t, pool)
	require.Greater(t, len(all), 200)
	for _, c := range all {
		class, _, _ := strings.Cut(c.Class, ":")
		name := c.Table + "." + c.Column
		if !assert.Contains(t, fits, class, "%s has no registered class", name) {
			continue
		}
		assert.Contains(t, fits[class], c.Type, "%s of class %s", name, class)
		if c.Type == "text" || c.Type == "text[]" {
			assert.True(t, c.Closed, "%s is text without a list of its values", name)
		}
		if strings.HasPrefix(c.Type, "bytea") && name != "audit.body" { // which the verbs build themselves
			assert.True(t, c.Bounded, "%s may be as long as anybody likes", name)
		}
		if class == "document" {
			assert.Contains(t, []string{"documents", "arguments"}, c.Table)
		}
		assert.NotContains(t, c.Column, "email")
		assert.NotContains(t, c.Column, "secret")
	}
}

// The check itself can fail: a column of free text is found, and one of as many bytes as anybody likes.
func TestAFreeTextColumnIsFound(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Owner)
	_, err := pool.Exec(context.Background(), `ALTER TABLE nw.runs ADD COLUMN note text, ADD COLUMN blob bytea`)
	require.NoError(t, err)
	assert.True(t, slices.ContainsFunc(columns(t, pool), func(c column) bool { return c.Table == "runs" && c.Column == "blob" && !c.Bounded }))
	assert.True(t, slices.ContainsFunc(columns(t, pool), func(c column) bool { return c.Table == "runs" && c.Column == "note" && c.Class == "" && !c.Closed }))
}

type verb struct {
	Name, Owner, Volatile string
	Definer               bool
	Config                string
	Public                bool
	Grantees              string
}

func verbs(t *testing.T, pool *pgxpool.Pool) []verb {
	t.Helper()
	return rows[verb](t, pool, `
		SELECT p.proname, pg_get_userbyid(p.proowner), p.provolatile::text, p.prosecdef, coalesce(array_to_string(p.proconfig, ';'), ''),
		       EXISTS (SELECT FROM aclexplode(p.proacl) x WHERE x.grantee = 0),
		       coalesce((SELECT string_agg(pg_get_userbyid(x.grantee), ',' ORDER BY 1) FROM aclexplode(p.proacl) x WHERE x.grantee <> p.proowner AND x.grantee <> 0), '')
		  FROM pg_proc p WHERE p.pronamespace = 'nw'::regnamespace ORDER BY 1`)
}

// P4: verbs are VOLATILE, run as an owner that nobody logs in as, with a fixed search path; helpers are callable by nobody.
func TestVerbs(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Owner)
	callable := 0
	for _, v := range verbs(t, pool) {
		assert.Equal(t, "nw_owner", v.Owner, v.Name)
		assert.False(t, v.Public, "%s may be called by everybody", v.Name)
		if v.Grantees == "" {
			continue
		}
		callable++
		assert.True(t, v.Definer, v.Name)
		assert.Equal(t, "v", v.Volatile, v.Name)
		assert.Contains(t, v.Config, "search_path=nw, pg_temp", v.Name)
		for _, g := range strings.Split(v.Grantees, ",") {
			assert.Contains(t, []string{"nw_authority", "nw_scheduler", "nw_operator"}, g, v.Name)
		}
	}
	assert.Greater(t, callable, 40)
}

// Stolen credentials of a replica read no table and change none.
func TestProcessRolesReachNoTable(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	owner := db.Pool(t, teststack.Owner)
	type name struct{ Name string }
	tables := rows[name](t, owner, `SELECT relname FROM pg_class WHERE relnamespace = 'nw'::regnamespace AND relkind IN ('r', 'p')`)
	for _, role := range []string{"nw_authority", "nw_scheduler", "nw_operator"} {
		pool := db.Pool(t, role)
		for _, table := range tables {
			for _, sql := range []string{"SELECT FROM nw." + table.Name, "DELETE FROM nw." + table.Name, "TRUNCATE nw." + table.Name} {
				_, err := pool.Exec(context.Background(), sql)
				assert.ErrorContains(t, err, "permission denied", "%s: %s", role, sql)
			}
		}
		for sql, why := range map[string]string{
			"SELECT nw.advance_epoch(1)": "a helper", "SELECT nw.finish_run(1, 'succeeded')": "a helper", "SELECT nw.shut('held', NULL, true)": "a helper",
			"SELECT nw.note('open', 'ok', NULL, NULL, NULL, NULL)": "a forged audit row", "SET ROLE nw_owner": "the owner",
		} {
			_, err := pool.Exec(context.Background(), sql)
			assert.ErrorContains(t, err, "permission denied", "%s: %s", role, why)
		}
	}
}

// Settings of the roles: read committed, and nothing waits or stays open for long (design.md §3).
func TestRoleSettings(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	for _, role := range []string{"nw_authority", "nw_scheduler", "nw_operator"} {
		pool := db.Pool(t, role)
		for setting, want := range map[string]string{"default_transaction_isolation": "read committed", "lock_timeout": "500ms", "statement_timeout": "1s",
			"idle_in_transaction_session_timeout": "250ms"} {
			var got string
			require.NoError(t, pool.QueryRow(context.Background(), "SELECT current_setting($1)", setting).Scan(&got))
			assert.Equal(t, want, got, "%s of %s", setting, role)
		}
	}
}

// Every refusal code of the wire can be a verdict, so that no refusal is lost on its way into the audit log.
func TestEveryCodeCanBeAudited(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Owner)
	for _, code := range api.Codes() {
		_, err := pool.Exec(context.Background(), `SELECT $1::text::nw.verdict`, string(code))
		assert.NoError(t, err, code)
	}
	_, err := pool.Exec(context.Background(), `SELECT 'no_such_code'::nw.verdict`)
	assert.Error(t, err)
}
