package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/migrations"
)

// Database looks at a database as the process does that uses it.
type Database struct {
	URL   string // with the password
	Role  string // as which that process logs in; empty for a guard's own database
	Bound time.Duration
}

// Look connects once, in the process's own role, and reads settings only.
func (d Database) Look(ctx context.Context) []Finding {
	conn, err := pgx.Connect(ctx, d.URL)
	if err != nil {
		return []Finding{bad("connection", "Start the database, and look at the URL, the password, pg_hba.conf and the server's name.", "it cannot be reached: %s", reason(err))}
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is pending on it
	found := []Finding{d.link(ctx, conn), d.clock(ctx, conn), d.role(ctx, conn)}
	found = append(found, settings(ctx, conn)...)
	if d.Role != "" {
		found = append(found, standby(ctx, conn), d.schema(ctx), grants(ctx, conn))
	}
	return found
}

// reason is an error of connecting without what its URL says.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "): "); i >= 0 {
		text = text[i+3:]
	}
	return text
}

func failed(check string, err error) Finding {
	return Finding{check, Unknown, "the database does not say: " + reason(err), ""}
}

func (d Database) link(ctx context.Context, conn *pgx.Conn) Finding {
	var encrypted bool
	if err := conn.QueryRow(ctx, `SELECT coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)`).Scan(&encrypted); err != nil {
		return failed("connection", err)
	}
	host := conn.Config().Host
	if !encrypted && !strings.HasPrefix(host, "/") && !config.Loopback(host) {
		return bad("connection", "Add sslmode=verify-full (and sslrootcert) to the URL.", "it is reached over a network without TLS")
	}
	return ok("connection", "PostgreSQL %s answers", conn.PgConn().ParameterStatus("server_version"))
}

func (d Database) clock(ctx context.Context, conn *pgx.Conn) Finding {
	var now time.Time
	sent := time.Now()
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return failed("clock", err)
	}
	return judgeClock("clock", "the database's", sent.Add(time.Since(sent)/2).Sub(now), d.Bound)
}

// roles are those that the migrations make; a process has exactly one.
const roles = `ARRAY(SELECT r FROM unnest(ARRAY['nw_owner', 'nw_authority', 'nw_scheduler', 'nw_operator']) r JOIN pg_roles p ON p.rolname = r WHERE pg_has_role(current_user, r, 'USAGE'))`

func (d Database) role(ctx context.Context, conn *pgx.Conn) Finding {
	var name string
	var has []string
	var super, reads bool
	err := conn.QueryRow(ctx, `SELECT current_user, `+roles+`, r.rolsuper OR r.rolbypassrls OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication,
	  EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'nw' AND c.relkind IN ('r', 'p')
	    AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE'))
	  FROM pg_roles r WHERE r.rolname = current_user`).Scan(&name, &has, &super, &reads)
	switch {
	case err != nil:
		return failed("role", err)
	case super:
		return bad("role", "Take these rights from the role, or log in as another.", "the role %q is a superuser, or may make roles, databases or replicas", name)
	case d.Role != "" && !slices.Equal(has, []string{d.Role}):
		return bad("role", fmt.Sprintf("Log in as %s, which `nightwarrant migrate` has made, or as a member of it alone.", d.Role), "the process logs in as %q, which has the rights of %v", name, has)
	case reads:
		return bad("role", "Let the role call verbs only: revoke what was granted.", "the role %q reaches tables past the verbs", name)
	}
	return ok("role", "the process logs in as %s, which has no right that it does not need", name)
}

// wanted are the settings that a promise rests on.
var wanted = []struct {
	name, verdictUnless, remedy string
	good                        []string
}{
	{"fsync", "bad", "Set fsync = on.", []string{"on"}},
	{"full_page_writes", "bad", "Set full_page_writes = on, unless the file system writes pages as a whole.", []string{"on"}},
	{"synchronous_commit", "bad", "Set synchronous_commit = on or remote_apply, also for the role and the database.", []string{"on", "remote_apply"}},
	{"default_transaction_isolation", "bad", "Leave default_transaction_isolation at read committed.", []string{"read committed"}},
	{"transaction_read_only", "bad", "Point the URL at the primary (target_session_attrs=read-write).", []string{"off"}},
	{"data_checksums", "warn", "Turn data checksums on (pg_checksums --enable, with the server stopped): a page that went bad is found then.", []string{"on"}},
	{"password_encryption", "warn", "Set password_encryption = scram-sha-256, and set the passwords anew.", []string{"scram-sha-256"}},
}

func settings(ctx context.Context, conn *pgx.Conn) (found []Finding) {
	var wrong int
	for _, w := range wanted {
		var value string
		if err := conn.QueryRow(ctx, `SELECT current_setting($1)`, w.name).Scan(&value); err != nil {
			return append(found, failed("settings", err))
		}
		good := false
		for _, g := range w.good {
			good = good || g == value
		}
		if !good {
			wrong++
			found = append(found, Finding{"settings", Verdict(w.verdictUnless), w.name + " is " + value, w.remedy})
		}
	}
	if wrong == 0 {
		found = append(found, ok("settings", "%d settings are as they must be", len(wanted)))
	}
	return append(found, room(ctx, conn))
}

func standby(ctx context.Context, conn *pgx.Conn) Finding {
	var names string
	if err := conn.QueryRow(ctx, `SELECT current_setting('synchronous_standby_names')`).Scan(&names); err != nil {
		return failed("standby", err)
	}
	if names == "" {
		return warn("standby", "With a synchronous standby (`nightwarrant gate standby`) a fail-over loses nothing and ends no run; see docs/how-to/restore.md.", "no standby is waited for: a fail-over is a new incarnation")
	}
	return ok("standby", "commits wait for a standby")
}

// room wants a few replicas' connections, of which each may hold sixteen.
func room(ctx context.Context, conn *pgx.Conn) Finding {
	var most, used int64
	err := conn.QueryRow(ctx, `SELECT current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
	  coalesce((SELECT sum(numbackends) FROM pg_stat_database), 0)::bigint`).Scan(&most, &used)
	if err != nil {
		return failed("connections", err)
	}
	if most-used < 32 {
		return warn("connections", "Raise max_connections: a replica holds up to 16, a scheduler 12, a guard 12.", "%d of %d connections are in use", used, most)
	}
	return ok("connections", "%d of %d connections are in use", used, most)
}

func (d Database) schema(ctx context.Context) Finding {
	current, newest, err := migrations.Version(ctx, d.URL)
	switch {
	case err != nil:
		return bad("schema", "Run `nightwarrant migrate` as the owner.", "the schema's version cannot be read: %s", reason(err))
	case current < newest:
		return bad("schema", "Run `nightwarrant migrate` as the owner.", "the schema has version %d, and this program needs %d", current, newest)
	case current > newest:
		return bad("schema", "Use the program that made the schema.", "the schema has version %d, and this program was made for %d", current, newest)
	}
	return ok("schema", "the schema has version %d, which this program was made for", current)
}

func grants(ctx context.Context, conn *pgx.Conn) Finding {
	var open bool
	if err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'nw' AND has_function_privilege(p.oid, 'EXECUTE'))`).Scan(&open); err != nil {
		return failed("grants", err)
	}
	if !open {
		return bad("grants", "Run `nightwarrant migrate` as the owner.", "the role may call no verb")
	}
	return ok("grants", "the role may call its verbs")
}
