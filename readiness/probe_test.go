package readiness_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const testWithin = 30 * time.Second

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testWithin)
	t.Cleanup(cancel)
	return ctx
}

func run(t testing.TB, pool *pgxpool.Pool, statements ...string) {
	t.Helper()
	for _, s := range statements {
		_, err := pool.Exec(within(t), s)
		require.NoError(t, err, s)
	}
}

// reasonOf is the word of a look, which says more when it is not the good one.
func reasonOf(reason string, why error) string {
	if (reason == readiness.Good) != (why == nil) {
		return fmt.Sprintf("%s, but %v", reason, why)
	}
	return reason
}

// becomes waits for what a server does in its own time, such as reading its settings.
func becomes(t testing.TB, p readiness.Probe, want string) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		last = reasonOf(p.Look(within(t)))
		return last == want
	}, testWithin, 10*time.Millisecond, "want %s, last %s", want, &last)
}

func schemaOf(t testing.TB, pool *pgxpool.Pool) (version int64) {
	t.Helper()
	require.NoError(t, pool.QueryRow(within(t), `SELECT max(version_id) FROM goose_db_version`).Scan(&version))
	require.Positive(t, version)
	return version
}

// Each way in which a database may not be used, and back, on one pool: a replica
// is not started anew when its database is well again.
func TestStoreProbe(t *testing.T) {
	t.Parallel()
	db := teststack.DurableCluster(t)
	owner, root := db.Pool(t, teststack.Owner), db.Pool(t, teststack.Superuser)
	pool := db.Pool(t, "nw_authority")
	schema := schemaOf(t, owner)
	store := readiness.StoreProbe(pool, schema, disk.Watch{})
	becomes(t, store, readiness.Good)

	for _, c := range []struct{ spoil, want, heal string }{
		{`ALTER SYSTEM SET default_transaction_read_only = on`, readiness.Settings, `ALTER SYSTEM RESET default_transaction_read_only`},
		{`ALTER SYSTEM SET full_page_writes = off`, readiness.Settings, `ALTER SYSTEM RESET full_page_writes`},
		{`INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`, readiness.Schema, `DELETE FROM goose_db_version WHERE version_id = 9999`},
		{`UPDATE goose_db_version SET version_id = -version_id WHERE version_id = ` + fmt.Sprint(schema), readiness.Schema, `UPDATE goose_db_version SET version_id = -version_id WHERE version_id < 0`},
		{`REVOKE SELECT ON goose_db_version FROM nw_authority`, readiness.Schema, `GRANT SELECT ON goose_db_version TO nw_authority`},
		{`ALTER FUNCTION nw.store_health RENAME TO elsewhere`, readiness.Schema, `ALTER FUNCTION nw.elsewhere RENAME TO store_health`},
	} {
		run(t, root, c.spoil, `SELECT pg_reload_conf()`)
		becomes(t, store, c.want)
		run(t, root, c.heal, `SELECT pg_reload_conf()`)
		becomes(t, store, readiness.Good)
	}

	run(t, pool, `SET synchronous_commit = off`) // of the one connection that there is
	require.Equal(t, readiness.Settings, reasonOf(store.Look(within(t))))
	pool.Reset()
	require.Equal(t, readiness.Good, reasonOf(store.Look(within(t))))

	db.Postgres.Kill()
	require.Equal(t, readiness.Unreachable, reasonOf(store.Look(within(t))))
	require.NoError(t, db.Postgres.Restart(within(t)))
	becomes(t, store, readiness.Good)
}

// A primary that comes back as a standby answers, and is not to be used.
func TestADemotedPrimary(t *testing.T) {
	t.Parallel()
	db := teststack.DurableCluster(t)
	root, pool := db.Pool(t, teststack.Superuser), db.Pool(t, "nw_authority")
	store := readiness.StoreProbe(pool, schemaOf(t, root), disk.Watch{})
	becomes(t, store, readiness.Good)
	var data string
	require.NoError(t, root.QueryRow(within(t), `SHOW data_directory`).Scan(&data))
	require.NoError(t, db.Postgres.Stop(within(t)))
	require.Equal(t, readiness.Unreachable, reasonOf(store.Look(within(t))))
	require.NoError(t, os.WriteFile(filepath.Join(data, "standby.signal"), nil, 0o644))
	require.NoError(t, db.Postgres.Restart(within(t)))
	becomes(t, store, readiness.Settings)
	for _, p := range []readiness.Probe{readiness.AuditProbe(pool), readiness.ClockProbe(pool, time.Minute, time.Now)} {
		assert.Equal(t, readiness.Settings, reasonOf(p.Look(within(t))), p.Family)
	}
	conn, err := pgx.Connect(within(t), db.URL(teststack.Superuser)) // a pool of ours would refuse it
	require.NoError(t, err)
	_, err = conn.Exec(within(t), `SELECT pg_promote()`)
	require.NoError(t, errors.Join(err, conn.Close(within(t))))
	becomes(t, store, readiness.Good)
}

// A disk that fills up is bad before anything else about the database is.
func TestStoreProbeWatchesDisks(t *testing.T) {
	t.Parallel()
	db := teststack.DurableCluster(t)
	pool := db.Pool(t, "nw_authority")
	schema := schemaOf(t, pool)
	dir := t.TempDir()
	for want, watched := range map[string]disk.Watch{
		readiness.Good: {Paths: []string{dir}, Free: 1},
		readiness.Disk: {Paths: []string{dir}, Percent: 101},
	} {
		assert.Equal(t, want, reasonOf(readiness.StoreProbe(pool, schema, watched).Look(within(t))))
	}
	gone := disk.Watch{Paths: []string{filepath.Join(dir, "mounted"), dir}}
	assert.Equal(t, readiness.Disk, reasonOf(readiness.StoreProbe(pool, schema, gone).Look(within(t))), "what is not mounted has no room")
}

// A clock that is off says so, in both directions and from the bound on.
func TestClockProbe(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, "nw_authority")
	const bound = time.Minute // far more than a loaded machine needs between two readings
	for off, want := range map[time.Duration]string{
		0: readiness.Good, bound / 2: readiness.Good, -bound / 2: readiness.Good,
		bound + 10*time.Second: readiness.Skew, -bound - 10*time.Second: readiness.Skew,
		24 * time.Hour: readiness.Skew, -24 * time.Hour: readiness.Skew,
	} {
		p := readiness.ClockProbe(pool, bound, func() time.Time { return time.Now().Add(off) })
		assert.Equal(t, want, reasonOf(p.Look(within(t))), off)
	}
}

// The time that a question takes is not held against either clock.
func TestASlowAnswerIsNoSkew(t *testing.T) {
	t.Parallel()
	pool := teststack.Database(t).Pool(t, "nw_authority")
	for before, after := range map[time.Duration]time.Duration{-time.Hour: time.Minute, -time.Minute: time.Hour} {
		readings := []time.Duration{before, after}
		p := readiness.ClockProbe(pool, time.Second, func() time.Time {
			at := time.Now().Add(readings[0])
			readings = readings[1:]
			return at
		})
		assert.Equal(t, readiness.Good, reasonOf(p.Look(within(t))))
	}
}

// A database whose clock jumps is found out by every replica at its next look,
// and forgiven when it has come back.
func TestADatabaseClockThatJumps(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	root := db.Pool(t, teststack.Superuser)
	clock := readiness.ClockProbe(db.Pool(t, "nw_authority"), time.Minute, time.Now)
	require.Equal(t, readiness.Good, reasonOf(clock.Look(within(t))))
	run(t, root, `ALTER FUNCTION nw.store_health RENAME TO steady_health`)
	for _, jump := range []struct{ by, want string }{
		{"2 hours", readiness.Skew}, {"0", readiness.Good}, {"-2 hours", readiness.Skew}, {"61 seconds", readiness.Skew}, {"-70 seconds", readiness.Skew}, {"0", readiness.Good},
	} {
		run(t, root, `CREATE OR REPLACE FUNCTION nw.store_health(OUT writable boolean, OUT durable boolean, OUT version integer, OUT db_now timestamptz) LANGUAGE plpgsql SECURITY DEFINER AS $$
			BEGIN SELECT s.writable, s.durable, s.version, s.db_now + interval '`+jump.by+`' INTO writable, durable, version, db_now FROM nw.steady_health() s; END $$`,
			`GRANT EXECUTE ON FUNCTION nw.store_health TO nw_authority`)
		assert.Equal(t, jump.want, reasonOf(clock.Look(within(t))), jump.by)
	}
}

// The log of the audit is bad when it cannot be written, and when it could have
// been changed: nothing is admitted without it.
func TestAuditProbe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ spoil, want string }{
		"nothing":             {`SELECT 1`, readiness.Good},
		"no row fits":         {`ALTER TABLE nw.audit ADD CONSTRAINT none CHECK (false) NOT VALID`, readiness.Unhealthy},
		"no writer":           {`ALTER FUNCTION nw.note RENAME TO noted`, readiness.Unhealthy},
		"a trigger dropped":   {`DROP TRIGGER audit_fixed ON nw.audit`, readiness.Material},
		"a trigger disabled":  {`ALTER TABLE nw.audit DISABLE TRIGGER audit_kept`, readiness.Material},
		"all disabled":        {`ALTER TABLE nw.audit DISABLE TRIGGER ALL`, readiness.Material},
		"a row edited":        {`ALTER TABLE nw.audit DROP CONSTRAINT audit_check; SET LOCAL session_replication_role = replica; UPDATE nw.audit SET body = body || '\x20'`, readiness.Material},
		"the function gone":   {`DROP FUNCTION nw.audit_health`, readiness.Schema},
		"the right withdrawn": {`REVOKE EXECUTE ON FUNCTION nw.audit_health FROM nw_authority`, readiness.Schema},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := teststack.Database(t)
			root, pool := db.Pool(t, teststack.Superuser), db.Pool(t, "nw_authority")
			run(t, db.Pool(t, "nw_operator"), `SELECT nw.gate_close('drill')`) // so that there is a row
			audit := readiness.AuditProbe(pool)
			require.Equal(t, readiness.Good, reasonOf(audit.Look(within(t))))
			rows := `SELECT count(*) FROM nw.audit`
			var before, after int
			require.NoError(t, root.QueryRow(within(t), rows).Scan(&before))
			run(t, root, c.spoil)
			assert.Equal(t, c.want, reasonOf(audit.Look(within(t))))
			require.NoError(t, root.QueryRow(within(t), rows).Scan(&after))
			assert.Equal(t, before, after, "a look leaves no row")
		})
	}
	t.Run("a row that has waited too long for its number", func(t *testing.T) {
		t.Parallel()
		db := teststack.Database(t)
		audit := readiness.AuditProbe(db.Pool(t, "nw_authority"))
		late := func(by string) {
			run(t, db.Pool(t, teststack.Superuser), `INSERT INTO nw.audit (at, verb, verdict, body, digest) SELECT clock_timestamp() - interval '`+by+`', 'present', 'ok', '{}', sha256('{}')`)
		}
		late("1 second")
		assert.Equal(t, readiness.Good, reasonOf(audit.Look(within(t))))
		run(t, db.Pool(t, teststack.Superuser), `DELETE FROM nw.audit_waiting`)
		late("6 seconds")
		assert.Equal(t, readiness.Stale, reasonOf(audit.Look(within(t))))
	})
	t.Run("read only", func(t *testing.T) {
		t.Parallel()
		pool := teststack.Database(t).Pool(t, "nw_authority")
		run(t, pool, `SET default_transaction_read_only = on`)
		assert.Equal(t, readiness.Unhealthy, reasonOf(readiness.AuditProbe(pool).Look(within(t))))
	})
}

// A replica whose database dies refuses with its next evaluation, half a second
// later and not when its copy has become too old; it opens again by asking.
func TestAGateThatLosesItsDatabase(t *testing.T) {
	t.Parallel()
	db := teststack.OwnCluster(t)
	owner, pool := db.Pool(t, teststack.Owner), db.Pool(t, "nw_authority")
	// The decision stands open without reports; whoever evaluates it would close it for their lack.
	run(t, owner, `UPDATE nw.readiness_decision SET state = 'open', epoch = epoch + 1, reason = 'good', family = NULL, held = false, valid_until = clock_timestamp() + interval '1 hour'`)
	gate := readiness.NewGate(pool, slog.New(slog.DiscardHandler))
	d, err := gate.Current(within(t))
	require.NoError(t, err)
	require.True(t, d.Open)

	db.Postgres.Kill()
	ctx, stop := context.WithCancel(within(t))
	done := make(chan struct{})
	go func() { defer close(done); gate.Run(ctx) }()
	require.Eventually(t, func() bool { return gate.Known().Reason == "unreachable" }, testWithin, time.Millisecond)
	assert.False(t, gate.Known().Open)
	assert.False(t, gate.Fresh())

	require.NoError(t, db.Postgres.Restart(within(t)))
	require.Eventually(t, gate.Fresh, testWithin, 10*time.Millisecond)
	assert.NotEqual(t, "unreachable", gate.Known().Reason)
	stop()
	<-done
}

// A probe that hangs is reported, and closes before its last report runs out.
func TestAProbeThatHangsIsReported(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	pool := db.Pool(t, "nw_authority")
	r, err := readiness.Register(within(t), pool, slog.New(slog.DiscardHandler), "authority", [32]byte{9}, builds.Build{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(within(t))
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, readiness.Probe{Family: "nonces", Look: func(ctx context.Context) (string, error) { <-ctx.Done(); return readiness.Good, nil }})
	}()
	owner := db.Pool(t, teststack.Owner)
	var reason string
	require.Eventually(t, func() bool {
		return owner.QueryRow(within(t), `SELECT reason FROM nw.readiness_reports WHERE family = 'nonces'`).Scan(&reason) == nil
	}, testWithin, 10*time.Millisecond)
	assert.Equal(t, readiness.Stale, reason)
	stop()
	<-done
}

// What a replica finds is in its log once for each change, also where the
// database cannot be told.
func TestAChangeIsLoggedOnce(t *testing.T) {
	t.Parallel()
	db := teststack.Database(t)
	pool := db.Pool(t, "nw_authority")
	var log bytes.Buffer // read when Run has ended
	r, err := readiness.Register(within(t), pool, slog.New(slog.NewTextHandler(&log, nil)), "authority", [32]byte{9}, builds.Build{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(within(t))
	looks := 0
	r.Run(ctx, readiness.Probe{Family: "store", Look: func(context.Context) (string, error) {
		switch looks++; looks {
		case 1, 2:
			return readiness.Disk, errors.New("/var has no room")
		case 3, 4:
			return readiness.Good, nil
		}
		stop()
		return readiness.Settings, errors.New("whoever leaves says nothing")
	}})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	require.Len(t, lines, 2, log.String())
	assert.Contains(t, lines[0], `level=ERROR msg="this replica finds a family bad" family=store reason=disk error="/var has no room"`)
	assert.Contains(t, lines[1], `level=INFO msg="this replica finds a family good" family=store`)
	var last string
	require.NoError(t, db.Pool(t, teststack.Owner).QueryRow(within(t), `SELECT reason FROM nw.readiness_reports`).Scan(&last))
	assert.Equal(t, readiness.Good, last)
}
