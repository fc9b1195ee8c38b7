package migrations_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
)

// mayCall is what each process role may do: EXECUTE these verbs, and nothing else (P4). Whoever grants more says so here, too.
var mayCall = map[string]string{
	"nw_authority": `
		admit alive apply approve audit_append audit_cosign audit_health audit_lag audit_last audit_lead audit_notes audit_position audit_records audit_sign
		audit_stretches begin_session board boot_component claim count_refusals cut_off cut_off_many cut_off_scope decision decline deny depart
		effect_for_holder end_session entries evaluate expire_sessions find_session give_consent hold_keys key_state mint narrow note_refusal offer_task
		present product_consent product_offer product_revoke product_withdraw record_finding register_replica renew report_component report_replica require
		retire revocation_scope revoke set_notices settle_effect settle_run show_ambiguous show_audit show_builds show_coalesced show_consents show_decisions
		show_entries show_epoch show_gate show_notice_settings show_offers show_receipt show_requirements show_revisions show_runs show_tasks show_timeline
		show_uncertain spend_component store_health stranded task_reference unsettled withdraw would_run`,
	"nw_scheduler": `
		decision drain due expire_consents expire_decisions expire_effects notice_delivered notice_refused notices_health plan queues raise_floors reap
		reapable recycle register_replica release_reservations report_replica rezone store_health take_digest take_notices take_outbox zones`,
	"nw_operator": `
		audit_cut audit_disclosed audit_keep audit_notes audit_plan audit_prune audit_records audit_redact audit_resume board cut_off_keys decision entries
		gate_close gate_release gate_standby key_state register_keys retry_notices rotate_keys show_notices`,
}

// wanted is the whole of it, line by line as [granted] says it.
func wanted() []string {
	all := []string{"PUBLIC USAGE schema public"} // PostgreSQL's own; nothing of ours but goose's table is there
	for role, verbs := range mayCall {
		all = append(all, role+" USAGE schema nw", role+" SELECT table public.goose_db_version")
		for _, v := range strings.Fields(verbs) {
			all = append(all, role+" EXECUTE function nw."+v)
		}
	}
	return all
}

// granted is every right that somebody has who does not own the thing: on functions, tables, columns, sequences and schemas, by default on those
// that are made later, by membership of a role, and by what a role is. A function without an ACL is everybody's.
func granted(t *testing.T, by querier) []string {
	t.Helper()
	var out []string
	for _, g := range rows[struct{ Grant string }](t, by, `
		WITH things AS (
		  SELECT 'function nw.' || p.proname AS thing, p.proowner AS owner, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl FROM pg_proc p WHERE p.pronamespace = 'nw'::regnamespace
		  UNION ALL SELECT CASE c.relkind WHEN 'S' THEN 'sequence ' ELSE 'table ' END || n.nspname || '.' || c.relname, c.relowner, coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner))
		    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname !~ '^(pg_|information_schema)' AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
		  UNION ALL SELECT 'column ' || a.attrelid::regclass || '.' || a.attname, c.relowner, a.attacl FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE a.attacl IS NOT NULL AND n.nspname !~ '^(pg_|information_schema)'
		  UNION ALL SELECT 'schema ' || nspname, nspowner, coalesce(nspacl, acldefault('n', nspowner)) FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema)')
		SELECT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(x.grantee) END || ' ' || x.privilege_type || ' ' || CASE WHEN x.is_grantable THEN 'AND GRANT ' ELSE '' END || thing
		  FROM things, aclexplode(acl) x WHERE x.grantee <> owner AND NOT (x.grantee <> 0 AND pg_get_userbyid(x.grantee) = 'pg_database_owner')
		UNION ALL SELECT pg_get_userbyid(m.member) || ' IS ' || pg_get_userbyid(m.roleid) FROM pg_auth_members m WHERE pg_get_userbyid(m.member) LIKE 'nw\_%'
		UNION ALL SELECT rolname || ' MAY ' || concat_ws(',', CASE WHEN rolcanlogin AND rolname = 'nw_owner' THEN 'login' END, CASE WHEN rolsuper THEN 'everything' END, CASE WHEN rolcreatedb THEN 'create databases' END,
		       CASE WHEN rolcreaterole THEN 'create roles' END, CASE WHEN rolreplication THEN 'replicate' END, CASE WHEN rolbypassrls THEN 'bypass' END)
		  FROM pg_roles WHERE rolname LIKE 'nw\_%' AND (rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication OR rolbypassrls OR rolcanlogin AND rolname = 'nw_owner')
		UNION ALL SELECT 'by default ' || pg_get_userbyid(CASE x.grantee WHEN 0 THEN d.defaclrole ELSE x.grantee END) || ' ' || x.privilege_type FROM pg_default_acl d, aclexplode(d.defaclacl) x
		ORDER BY 1`) {
		out = append(out, g.Grant)
	}
	return out
}

// Every grant there is, held against the list. A grant too many, a REVOKE too few and a verb that lost its role are each found.
func TestGrantsAreExactlyThese(t *testing.T) {
	t.Parallel()
	assert.ElementsMatch(t, wanted(), granted(t, teststack.Database(t).Pool(t, teststack.Owner)))
}

// The test above can fail: each of these is found, and is all that is found.
func TestAGrantTooManyIsFound(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, teststack.Superuser)
	for name, c := range map[string]struct{ plant, found string }{
		"a verb of another role":           {`GRANT EXECUTE ON FUNCTION nw.claim TO nw_scheduler`, "nw_scheduler EXECUTE function nw.claim"},
		"a helper":                         {`GRANT EXECUTE ON FUNCTION nw.finish_run TO nw_authority`, "nw_authority EXECUTE function nw.finish_run"},
		"a table":                          {`GRANT SELECT ON nw.runs TO nw_authority`, "nw_authority SELECT table nw.runs"},
		"a column":                         {`GRANT UPDATE (fence) ON nw.lanes TO nw_operator`, "nw_operator UPDATE column nw.lanes.fence"},
		"a sequence":                       {`GRANT USAGE ON SEQUENCE nw.admissions TO nw_scheduler`, "nw_scheduler USAGE sequence nw.admissions"},
		"a schema to write in":             {`GRANT CREATE ON SCHEMA nw TO nw_authority`, "nw_authority CREATE schema nw"},
		"a right to pass on":               {`GRANT EXECUTE ON FUNCTION nw.reap TO nw_scheduler WITH GRANT OPTION`, "nw_scheduler EXECUTE AND GRANT function nw.reap"},
		"another role's rights":            {`GRANT nw_operator TO nw_authority`, "nw_authority IS nw_operator"},
		"everybody":                        {`GRANT SELECT ON nw.documents TO PUBLIC`, "PUBLIC SELECT table nw.documents"},
		"a role that nobody listed":        {`CREATE ROLE nw_guest; GRANT EXECUTE ON FUNCTION nw.revoke TO nw_guest`, "nw_guest EXECUTE function nw.revoke"},
		"a missing REVOKE":                 {`CREATE FUNCTION nw.novel() RETURNS int LANGUAGE sql AS 'SELECT 1'`, "PUBLIC EXECUTE function nw.novel"},
		"later tables":                     {`ALTER DEFAULT PRIVILEGES FOR ROLE nw_owner IN SCHEMA nw GRANT SELECT ON TABLES TO nw_authority`, "by default nw_authority SELECT"},
		"a role that may do too much":      {`ALTER ROLE nw_authority CREATEROLE BYPASSRLS`, "nw_authority MAY create roles,bypass"},
		"an owner who can be signed in as": {`ALTER ROLE nw_owner LOGIN`, "nw_owner MAY login"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			tx, err := pool.Begin(ctx) // roles belong to the cluster: nothing of this is committed
			require.NoError(t, err)
			defer tx.Rollback(ctx) //nolint:errcheck // nothing to keep
			_, err = tx.Exec(ctx, c.plant)
			require.NoError(t, err)
			known, more := map[string]bool{}, []string(nil)
			for _, w := range wanted() {
				known[w] = true
			}
			for _, g := range granted(t, tx) {
				if !known[g] {
					more = append(more, g)
				}
			}
			assert.Equal(t, []string{c.found}, more)
		})
	}
}

// A verb that no process calls is a right for nobody but a thief.
func TestEveryGrantedVerbIsCalled(t *testing.T) {
	t.Parallel()
	var calls strings.Builder
	for _, dir := range []string{"authority", "readiness", "scheduler", "cmd", "internal/session"} {
		require.NoError(t, filepath.WalkDir(filepath.Join("..", dir), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			calls.Write(text)
			return err
		}))
	}
	for role, verbs := range mayCall {
		for _, v := range strings.Fields(verbs) {
			assert.Contains(t, calls.String(), "nw."+v+"(", "%s may call it", role)
		}
	}
}
