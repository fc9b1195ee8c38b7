package readiness_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/readiness"
)

// ready makes everything good and old enough, so that the next evaluation opens if it may.
func (c *cluster) ready() {
	c.t.Helper()
	c.exec(`UPDATE nw.readiness_decision SET since = since - interval '1 minute', good_rounds = 2, round_at = since - interval '1 minute' WHERE state = 'closed'`)
	c.allGood()
}

// sayGuard reports the guard with what it serves.
func (c *cluster) sayGuard(protocol int, models, datasets string) (verdict string) {
	c.t.Helper()
	c.sequence++
	require.NoError(c.t, c.owner.QueryRow(context.Background(), `SELECT nw.record_report($1, 1, 'guards', $2, true, 'good', 0, $3::smallint, sha256('catalogue'), $4::text::bytea[], $5::text::bytea[])`,
		c.guard, c.sequence, protocol, models, datasets).Scan(&verdict))
	return verdict
}

// list is an array of the digests of names.
func list(names ...string) string {
	out := "{"
	for i, n := range names {
		if i > 0 {
			out += ","
		}
		out += fmt.Sprintf(`"\\x%064x"`, n)
	}
	return out + "}"
}

// A17: configuration can only add. A generation that lists nothing still requires what is required in code.
func TestARequirementOnlyAdds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.require(3, "{}", "{}")
	c.exec(`INSERT INTO nw.requirement_families VALUES (3, 'queue', 1)`)
	for _, missing := range families {
		c.exec(`UPDATE nw.readiness_reports SET expires_at = '-infinity', sequence = sequence + 1`)
		c.ready()
		c.exec(`UPDATE nw.readiness_reports SET expires_at = '-infinity', sequence = sequence + 1 WHERE family = $1`, missing)
		c.sequence += 10
		d := c.evaluate()
		assert.False(t, d.Open, missing)
		assert.Equal(t, missing, d.Family)
	}
	c.ready()
	assert.True(t, c.evaluate().Open)
}

// A family that a requirement adds closes until somebody reports it; one that nobody can report yet, for good.
func TestAddedFamiliesAreRequired(t *testing.T) {
	t.Parallel()
	own := "x_" + fmt.Sprintf("%064x", "printing")
	for _, family := range []string{"brokering", "models", own} {
		c := newCluster(t)
		c.require(3, "{}", "{}")
		c.exec(`INSERT INTO nw.requirement_families VALUES (3, $1, 1)`, family)
		c.ready()
		d := c.evaluate()
		require.False(t, d.Open, family)
		require.Equal(t, []string{family, "absent"}, []string{d.Family, d.Reason})
		for _, kind := range []string{"authority", "scheduler"} {
			var v string
			id := c.ids[kind]
			require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT verdict FROM nw.report_replica($1, $2, $3, $4, 1, true, 'good', 0)`, kind, id[0], id[1], family).Scan(&v))
			require.Equal(t, "unknown_family", v, "no stand-in reports %s", family)
		}
	}
}

// A minimum counts instances, not reports: one instance that reports twice is one.
func TestAMinimumOfInstances(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.require(3, "{}", "{}")
	c.exec(`INSERT INTO nw.requirement_families VALUES (3, 'store', 2), (3, 'guards', 2)`)
	c.ready()
	d := c.evaluate()
	assert.Equal(t, []any{false, "guards", "absent"}, []any{d.Open, d.Family, d.Reason})

	c.exec(`INSERT INTO nw.instances (kind, component_id, instance, jkt) SELECT 'component', id, sha256('second'), sha256('k2') FROM nw.components`)
	c.exec(`SELECT nw.record_report(id, 1, 'guards', 1, true, 'good', 0, 1::smallint, sha256('catalogue')) FROM nw.instances WHERE instance = sha256('second')`)
	c.ready()
	d = c.evaluate()
	assert.Equal(t, []any{false, "store"}, []any{d.Open, d.Family})

	c.exec(`INSERT INTO nw.instances (kind, instance) VALUES ('authority', sha256('second'))`)
	c.exec(`SELECT nw.record_report(id, 1, 'store', 1, true, 'good', 0) FROM nw.instances WHERE kind = 'authority' AND instance = sha256('second')`)
	c.ready()
	d = c.evaluate()
	require.True(t, d.Open)
	for _, f := range d.Families {
		want := 1
		if f.Family == "store" || f.Family == "guards" {
			want = 2
		}
		assert.Equal(t, []any{want, true}, []any{f.Required, f.Good && f.Instances >= want}, f.Family)
	}

	// P34: one that leaves is no outage while enough are left; here it is.
	c.exec(`UPDATE nw.readiness_reports SET expires_at = clock_timestamp(), sequence = sequence + 1 WHERE instance_id = (SELECT id FROM nw.instances WHERE kind = 'authority' AND instance = sha256('second'))`)
	d = c.evaluate()
	assert.Equal(t, []any{false, "store", "stale"}, []any{d.Open, d.Family, d.Reason})
}

// P34: scaling down is not an outage, and a fresh bad instance outweighs every good one.
func TestOneBadInstanceCloses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`INSERT INTO nw.instances (kind, instance) VALUES ('authority', sha256('second'))`)
	c.exec(`SELECT nw.record_report(id, 1, 'store', 1, true, 'good', 0) FROM nw.instances WHERE kind = 'authority' AND instance = sha256('second')`)
	c.open()
	c.exec(`UPDATE nw.readiness_reports SET expires_at = clock_timestamp(), sequence = sequence + 1 WHERE instance_id = (SELECT id FROM nw.instances WHERE kind = 'authority' AND instance = sha256('second'))`)
	require.True(t, c.evaluate().Open, "one that has left drops out")
	c.exec(`SELECT nw.record_report(id, 1, 'store', 9, false, 'settings', 0) FROM nw.instances WHERE kind = 'authority' AND instance = sha256('second')`)
	c.say("store", "")
	d := c.evaluate()
	assert.Equal(t, []any{false, "store", "settings"}, []any{d.Open, d.Family, d.Reason})
}

// A14: a guard of another protocol, or that serves another model or dataset than those required, closes in the commit of its report.
func TestAnIncompatibleGuardClosesAtOnce(t *testing.T) {
	t.Parallel()
	for name, say := range map[string]func(c *cluster) string{
		"protocol":                func(c *cluster) string { return c.sayGuard(2, list("m"), list("d")) },
		"model":                   func(c *cluster) string { return c.sayGuard(1, list("m", "other"), list("d")) },
		"dataset":                 func(c *cluster) string { return c.sayGuard(1, list("m"), list("other")) },
		"a dataset as a model":    func(c *cluster) string { return c.sayGuard(1, list("d"), "{}") },
		"a prefix of the digest":  func(c *cluster) string { return c.sayGuard(1, list("M"), "{}") },
		"one of two is not known": func(c *cluster) string { return c.sayGuard(1, list("other", "m"), "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.require(3, list("m", "m2"), list("d"))
			before := c.open()
			require.Equal(t, "ok", c.sayGuard(1, list("m"), list("d")))
			require.Equal(t, "ok", c.sayGuard(1, list("m2"), "{}"))
			require.True(t, c.evaluate().Open, "a part of what is required is served")
			require.Equal(t, "ok", say(c))
			d, err := c.gate.Current(context.Background())
			require.NoError(t, err)
			assert.Equal(t, []any{false, before.Epoch + 1, "guards", "incompatible"}, []any{d.Open, d.Epoch, d.Family, d.Reason})
			c.exec(`UPDATE nw.readiness_decision SET since = since - interval '1 minute', good_rounds = 2, round_at = since - interval '1 minute'`)
			for _, f := range families {
				if f != "guards" {
					c.say(f, "")
				}
			}
			say(c)
			assert.False(t, c.evaluate().Open)
			c.ready()
			assert.Equal(t, before.Epoch+2, c.evaluate().Epoch, "it opens when the guard is compatible again")
		})
	}
	c := newCluster(t)
	var v string
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT nw.record_report($1, 1, 'guards', 1, true, 'good', 0)`, c.guard).Scan(&v))
	assert.Equal(t, "invalid_request", v, "without a protocol it is no guard's report")
}

// A15: the profiles that a requirement lists are an exact set. One that is retired closes in that commit; one that nobody listed closes too.
func TestProfilesAreAnExactSet(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.require(3, "{}", "{}")
	c.exec(`INSERT INTO nw.requirement_profiles SELECT 3, id FROM nw.registry WHERE kind = 'attestation_profile'`)
	c.open()
	c.exec(`INSERT INTO nw.registry (kind, name, revision, document) VALUES ('attestation_profile', sha256('p2'), 1, sha256('p'))`)
	d := c.evaluate()
	assert.Equal(t, []any{false, "attestation", "profile"}, []any{d.Open, d.Family, d.Reason})
	c.exec(`UPDATE nw.registry SET state = 'retired' WHERE name = sha256('p2')`)
	c.open()
	c.exec(`UPDATE nw.registry SET state = 'retired' WHERE name = sha256('p')`)
	d = c.evaluate()
	assert.Equal(t, []any{false, "attestation", "profile"}, []any{d.Open, d.Family, d.Reason})
	c.ready()
	assert.False(t, c.evaluate().Open)
}

// A report from the future, as after a clock that went back, counts for nothing until that time has come.
func TestAReportFromTheFutureDoesNotCount(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.open()
	c.exec(`UPDATE nw.readiness_reports SET began_at = clock_timestamp() + interval '1 minute', expires_at = clock_timestamp() + interval '1 hour', sequence = sequence + 1 WHERE family = 'queue'`)
	d := c.evaluate()
	assert.Equal(t, []any{false, "queue", "stale"}, []any{d.Open, d.Family, d.Reason})
}

// When the clock goes back while closed, the closed time begins anew and does not last until the old time has come again.
func TestAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`UPDATE nw.readiness_decision SET since = clock_timestamp() + interval '1 hour', round_at = clock_timestamp() + interval '1 hour', good_rounds = 2`)
	c.allGood()
	assert.False(t, c.evaluate().Open)
	var ahead bool
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT since > clock_timestamp() OR good_rounds > 0 FROM nw.readiness_decision`).Scan(&ahead))
	assert.False(t, ahead)
	c.open()
}

// An operator sees every family and component by name, since when, and what it concerns; with the operator's database role alone.
func TestBoard(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`INSERT INTO nw.documents (digest, kind, body) VALUES (sha256('r3'), 'requirement', '{"families":[{"family":"printing","minimum":1}]}')`)
	c.exec(`INSERT INTO nw.readiness_requirements (generation, document, closed_ms, closed_max_ms, rounds, valid_ms, report_ttl_ms, protocols) VALUES (3, sha256('r3'), 1000, 1000, 3, 2000, 3000, '{1}')`)
	c.exec(`INSERT INTO nw.requirement_families SELECT 3, 'x_' || encode(sha256(convert_to('nightwarrant/name/v1', 'UTF8') || '\x00' || 'printing'), 'hex'), 1`)
	c.exec(`UPDATE nw.readiness_decision SET requirement = 3`)
	c.ready()
	c.say("queue", readiness.Unreachable)
	d, lines, err := readiness.Board(context.Background(), c.operator)
	require.NoError(t, err)
	assert.False(t, d.Open)
	byFamily := map[string]readiness.Line{}
	for _, l := range lines {
		byFamily[l.Family] = l
	}
	require.Len(t, byFamily, len(families)+1)
	assert.Equal(t, []any{false, "absent", 1}, []any{byFamily["printing"].Good, byFamily["printing"].Reason, byFamily["printing"].Required})
	assert.Nil(t, byFamily["printing"].Since)
	assert.Equal(t, []any{false, "unreachable"}, []any{byFamily["queue"].Good, byFamily["queue"].Reason})
	require.NotNil(t, byFamily["queue"].Since)
	assert.WithinDuration(t, time.Now(), *byFamily["queue"].Since, time.Minute)
	assert.True(t, byFamily["store"].Good)
	assert.GreaterOrEqual(t, byFamily["store"].AgeMS, int64(0))
	_, _, err = readiness.Board(context.Background(), c.scheduler)
	assert.Error(t, err, "nobody else's")
}

// A hold has a reason out of a short list, and the audit log says which login it was, by number.
func TestAHoldSaysWhy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, why := range []string{"", "because I say so"} {
		_, err := readiness.Close(context.Background(), c.operator, why)
		require.Error(t, err)
	}
	for _, why := range readiness.Why {
		_, err := readiness.Close(context.Background(), c.operator, why)
		require.NoError(t, err)
	}
	var reasons []string
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT array_agg(b->'more'->'with'->>'why' ORDER BY id) FROM (SELECT id, convert_from(body, 'UTF8')::json b FROM nw.audit WHERE verb = 'hold') x
		WHERE (b->'more'->>'login')::bigint > 0`).Scan(&reasons))
	assert.Equal(t, readiness.Why, reasons)
}

// What has been taken from the audit log's guards shows, and a trial row stays nowhere.
func TestAuditHealth(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	health := func() (writable, sealed bool) {
		require.NoError(t, c.authority.QueryRow(context.Background(), `SELECT writable, sealed FROM nw.audit_health()`).Scan(&writable, &sealed))
		return writable, sealed
	}
	count := func() (n int) {
		require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT count(*) FROM nw.audit`).Scan(&n))
		return n
	}
	before := count()
	writable, sealed := health()
	assert.True(t, writable && sealed)
	assert.Equal(t, before, count())
	c.exec(`ALTER TABLE nw.audit DISABLE TRIGGER audit_fixed`)
	_, sealed = health()
	assert.False(t, sealed)
	c.exec(`ALTER TABLE nw.audit ENABLE TRIGGER audit_fixed`)
	c.exec(`CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE disk_full; END'`)
	c.exec(`CREATE TRIGGER full_disk BEFORE INSERT ON nw.audit FOR EACH ROW EXECUTE FUNCTION public.full()`)
	writable, _ = health()
	assert.False(t, writable)
}
