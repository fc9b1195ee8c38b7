package readiness_test

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/readiness"
)

func TestMain(m *testing.M) { teststack.Main(m) }

// cluster is a database with the reporters that the gate needs, told by hand.
type cluster struct {
	t                *testing.T
	owner, authority *pgxpool.Pool
	scheduler        *pgxpool.Pool
	operator         *pgxpool.Pool
	gate             *readiness.Gate
	ids              map[string][2]int64 // instance and boot by kind
	sequence         int64
	guard            int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	db := teststack.Database(t)
	c := &cluster{t: t, owner: db.Pool(t, teststack.Owner), authority: db.Pool(t, "nw_authority"), scheduler: db.Pool(t, "nw_scheduler"), operator: db.Pool(t, "nw_operator"),
		ids: map[string][2]int64{}}
	c.gate = readiness.NewGate(c.authority, slog.New(slog.DiscardHandler))
	// The shortest closed time that there is.
	c.require(2, "{}", "{}")
	for kind, pool := range map[string]*pgxpool.Pool{"authority": c.authority, "scheduler": c.scheduler} {
		c.boot(kind, pool)
	}
	c.registerGuard()
	return c
}

// require enters a generation with the shortest closed time that there is.
func (c *cluster) require(generation int, models, datasets string) {
	c.t.Helper()
	c.exec(`INSERT INTO nw.documents (digest, kind, body) VALUES (sha256('requirement'), 'requirement', '{}') ON CONFLICT DO NOTHING`)
	c.exec(`INSERT INTO nw.readiness_requirements (generation, document, closed_ms, closed_max_ms, rounds, valid_ms, report_ttl_ms, protocols, models, datasets)
		VALUES ($1, sha256('requirement'), 1000, 60000, 3, 2000, 3000, '{1}', $2, $3)`, generation, models, datasets)
	c.exec(`UPDATE nw.readiness_decision SET requirement = $1, closed_ms = 1000, since = clock_timestamp()`, generation)
}

func (c *cluster) exec(sql string, args ...any) {
	c.t.Helper()
	_, err := c.owner.Exec(context.Background(), sql, args...)
	require.NoError(c.t, err)
}

func (c *cluster) boot(kind string, pool *pgxpool.Pool) {
	c.t.Helper()
	instance := sha256.Sum256([]byte(kind))
	var id, boot int64
	require.NoError(c.t, pool.QueryRow(context.Background(), `SELECT instance_id, boot FROM nw.register_replica($1, $2)`, kind, instance[:]).Scan(&id, &boot))
	c.ids[kind] = [2]int64{id, boot}
}

// registerGuard enters a guard and an instance of it, as the owner.
func (c *cluster) registerGuard() {
	c.t.Helper()
	c.exec(`INSERT INTO nw.documents (digest, kind, body) VALUES (sha256('p'), 'attestation_profile', '{}'), (sha256('g'), 'guard', '{}')`)
	c.exec(`INSERT INTO nw.registry (kind, name, revision, document) VALUES ('attestation_profile', sha256('p'), 1, sha256('p')), ('guard', sha256('g'), 1, sha256('g'))`)
	c.exec(`INSERT INTO nw.components (id, profile_id, uri, catalogue) SELECT g.id, p.id, sha256('u'), sha256('catalogue') FROM nw.registry g, nw.registry p WHERE g.kind = 'guard' AND p.kind = 'attestation_profile'`)
	require.NoError(c.t, c.owner.QueryRow(context.Background(), `INSERT INTO nw.instances (kind, component_id, instance, jkt) SELECT 'component', id, sha256('i'), sha256('k') FROM nw.components RETURNING id`).Scan(&c.guard))
}

// say reports a family: good when reason is empty.
func (c *cluster) say(family, reason string) string {
	c.t.Helper()
	c.sequence++
	return c.sayAs(family, reason, c.sequence)
}

func (c *cluster) sayAs(family, reason string, sequence int64) (verdict string) {
	c.t.Helper()
	good := reason == ""
	if good {
		reason = readiness.Good
	}
	if family == "guards" {
		require.NoError(c.t, c.owner.QueryRow(context.Background(), `SELECT nw.record_report($1, 1, 'guards', $2, $3, $4, 0, 1::smallint, sha256('catalogue'))`, c.guard, sequence, good, reason).Scan(&verdict))
		return verdict
	}
	kind, pool := "authority", c.authority
	if family == "queue" || family == "approvals" {
		kind, pool = "scheduler", c.scheduler
	}
	id := c.ids[kind]
	require.NoError(c.t, pool.QueryRow(context.Background(), `SELECT verdict FROM nw.report_replica($1, $2, $3, $4, $5, $6, $7, 0)`,
		kind, id[0], id[1], family, sequence, good, reason).Scan(&verdict))
	return verdict
}

var families = []string{"store", "signing", "nonces", "queue", "clock", "audit", "attestation", "directory", "approvals", "guards"}

func (c *cluster) allGood() {
	for _, f := range families {
		c.say(f, "")
	}
}

// evaluate is one turn of an evaluator.
func (c *cluster) evaluate() readiness.Decision {
	c.t.Helper()
	_, err := c.authority.Exec(context.Background(), `SELECT nw.evaluate()`)
	require.NoError(c.t, err)
	d, err := c.gate.Current(context.Background())
	require.NoError(c.t, err)
	return d
}

// open lets good reports and evaluations come until the gate opens.
func (c *cluster) open() readiness.Decision {
	c.t.Helper()
	var d readiness.Decision
	require.Eventually(c.t, func() bool {
		c.allGood()
		d = c.evaluate()
		return d.Open
	}, 30*time.Second, 50*time.Millisecond, "%+v", d)
	return d
}

func TestItStartsClosed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	assert.False(t, c.gate.Known().Open, "before anybody has asked")
	d := c.evaluate()
	assert.False(t, d.Open)
	assert.EqualValues(t, 1, d.Epoch)
}

// A17: a family that is absent keeps everything closed, each one of them.
func TestEveryFamilyIsRequired(t *testing.T) {
	t.Parallel()
	for _, missing := range families {
		t.Run(missing, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.exec(`UPDATE nw.readiness_decision SET since = since - interval '1 minute', good_rounds = 2, round_at = since - interval '1 minute'`)
			for _, f := range families {
				if f != missing {
					c.say(f, "")
				}
			}
			d := c.evaluate()
			assert.False(t, d.Open)
			assert.Equal(t, missing, d.Family)
			assert.Equal(t, "absent", d.Reason)
		})
	}
}

// Without a single registered guard there is nobody to admit for: closed.
func TestNoGuardIsNotReady(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.exec(`UPDATE nw.registry SET state = 'retired' WHERE kind = 'guard'`)
	c.exec(`UPDATE nw.readiness_decision SET since = since - interval '1 minute', good_rounds = 2, round_at = since - interval '1 minute'`)
	c.allGood()
	d := c.evaluate()
	assert.False(t, d.Open)
	assert.Equal(t, "guards", d.Family)
}

// Opening takes three rounds and the closed time; epoch + 1; it is logged and audited.
func TestOpening(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	since := func() (at time.Time) {
		require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT since FROM nw.readiness_decision`).Scan(&at))
		return at
	}
	closed := since()
	c.allGood()
	assert.False(t, c.evaluate().Open, "one good round is not enough")
	d := c.open()
	assert.EqualValues(t, 2, d.Epoch)
	assert.GreaterOrEqual(t, since().Sub(closed), time.Second)
	assert.Positive(t, d.Valid)
	var logged int
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT count(*) FROM nw.readiness_log l JOIN nw.audit a ON a.verb = 'open' WHERE l.state = 'open' AND l.epoch = 2`).Scan(&logged))
	assert.Equal(t, 1, logged)
	assert.Equal(t, d.Epoch, c.evaluate().Epoch, "renewing is no change")
}

// Reports from before the close do not count for opening.
func TestOldReportsOpenNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.allGood()
	c.exec(`UPDATE nw.readiness_decision SET since = clock_timestamp(), closed_ms = 1000, good_rounds = 3, round_at = '-infinity'`)
	for range 4 {
		d := c.evaluate()
		assert.False(t, d.Open)
		assert.Equal(t, "stale", d.Reason)
	}
}

// A report of "unhealthy" closes at once, in its own transaction, with epoch + 1; it opens again only after it is good.
func TestABadReportClosesAtOnce(t *testing.T) {
	t.Parallel()
	for _, family := range families {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			before := c.open()
			require.Equal(t, "ok", c.say(family, readiness.Unhealthy))
			d, err := c.gate.Current(context.Background())
			require.NoError(t, err)
			assert.False(t, d.Open)
			assert.Equal(t, before.Epoch+1, d.Epoch)
			assert.Equal(t, family, d.Family)
		})
	}
}

// Silence closes: of a reporter by its TTL, of every evaluator by the decision's own validity.
func TestSilenceCloses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := c.open()
	c.exec(`UPDATE nw.readiness_reports SET expires_at = clock_timestamp(), sequence = sequence + 1 WHERE family = 'queue'`)
	d := c.evaluate()
	assert.False(t, d.Open)
	assert.Equal(t, []any{"queue", "stale", before.Epoch + 1}, []any{d.Family, d.Reason, d.Epoch})

	before = c.open()
	c.exec(`UPDATE nw.readiness_decision SET valid_until = clock_timestamp()`)
	d, err := c.gate.Current(context.Background())
	require.NoError(t, err)
	assert.False(t, d.Open, "expired, although the row says open")
	c.allGood()
	assert.Equal(t, before.Epoch+1, c.evaluate().Epoch, "what has expired is closed, not renewed")
}

// P34: only the latest boot counts, and its sequence strictly rises; an older or replayed report changes nothing.
func TestReportsRise(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	require.Equal(t, "ok", c.sayAs("store", "", 7))
	assert.Equal(t, "report_stale", c.sayAs("store", "", 7))
	assert.Equal(t, "report_stale", c.sayAs("store", readiness.Unhealthy, 6))
	old := c.ids["authority"]
	c.boot("authority", c.authority)
	assert.Equal(t, old[1]+1, c.ids["authority"][1])
	require.Equal(t, "ok", c.sayAs("store", "", 1), "a new boot begins anew")
	c.ids["authority"] = old
	assert.Equal(t, "boot_superseded", c.sayAs("store", "", 99))
	assert.Equal(t, "unknown_family", func() (v string) {
		require.NoError(t, c.authority.QueryRow(context.Background(), `SELECT verdict FROM nw.report_replica('authority', $1, $2, 'queue', 1, true, 'good', 0)`, old[0], old[1]+1).Scan(&v))
		return v
	}())
	for _, age := range []int64{-1, 3001} {
		var v string
		require.NoError(t, c.authority.QueryRow(context.Background(), `SELECT verdict FROM nw.report_replica('authority', $1, $2, 'store', 1000, true, 'good', $3)`, old[0], old[1]+1, age).Scan(&v))
		assert.Equal(t, "invalid_request", v)
	}
}

// A hand may close, and end its hold; neither opens anything.
func TestHold(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := c.open()
	epoch, err := readiness.Close(context.Background(), c.operator, "drill")
	require.NoError(t, err)
	assert.Equal(t, before.Epoch+1, epoch)
	for range 3 {
		c.allGood()
		d := c.evaluate()
		assert.False(t, d.Open)
		assert.True(t, d.Held)
	}
	released, err := readiness.Release(context.Background(), c.operator)
	require.NoError(t, err)
	assert.True(t, released)
	d, err := c.gate.Current(context.Background())
	require.NoError(t, err)
	assert.False(t, d.Open)
	assert.Equal(t, epoch+1, c.open().Epoch)
	var rows int
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT count(*) FROM nw.audit WHERE verb IN ('hold', 'release') AND convert_from(body, 'UTF8')::json->'more'->>'role' = 'nw_operator'`).Scan(&rows))
	assert.Equal(t, 2, rows)
}

// When it flaps, the closed time doubles, up to a minute.
func TestFlapping(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.open()
	c.say("queue", readiness.Unhealthy)
	var ms int
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT closed_ms FROM nw.readiness_decision`).Scan(&ms))
	assert.Equal(t, 2000, ms)
	c.exec(`UPDATE nw.readiness_decision SET closed_ms = 50000, state = 'open', epoch = epoch + 1, since = clock_timestamp()`)
	c.say("queue", readiness.Unhealthy)
	require.NoError(t, c.owner.QueryRow(context.Background(), `SELECT closed_ms FROM nw.readiness_decision`).Scan(&ms))
	assert.Equal(t, 60000, ms)
}

// Many evaluators at once: one close, one epoch, no deadlock.
func TestManyEvaluators(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	before := c.open()
	c.exec(`UPDATE nw.readiness_reports SET expires_at = clock_timestamp(), sequence = sequence + 1 WHERE family = 'clock'`)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := c.authority.Exec(context.Background(), `SELECT nw.evaluate()`)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	d, err := c.gate.Current(context.Background())
	require.NoError(t, err)
	assert.Equal(t, before.Epoch+1, d.Epoch)
}

// The copy is only ever used to refuse: it is closed when it is old, and when the database is away.
func TestTheCopyRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	require.True(t, c.open().Open)
	require.True(t, c.gate.Known().Open)
	require.Eventually(t, func() bool { return !c.gate.Known().Open }, 5*time.Second, 10*time.Millisecond, "a copy that is older than a second is closed")
	c.authority.Close()
	d, err := c.gate.Current(context.Background())
	assert.Error(t, err)
	assert.False(t, d.Open)
}

// A probe that panics or hangs is bad or stale, never good; loops end with their context.
func TestReporter(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	r, err := readiness.Register(context.Background(), c.authority, slog.New(slog.DiscardHandler), "authority", [32]byte{9}, builds.Build{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	hangs := make(chan struct{}, 100)
	go func() {
		defer close(done)
		r.Run(ctx, readiness.StoreProbe(c.authority, 0, disk.Watch{}), readiness.ClockProbe(c.authority, time.Minute, time.Now),
			readiness.Probe{Family: "signing", Look: func(context.Context) (string, error) { panic("broken") }},
			readiness.Probe{Family: "nonces", Look: func(ctx context.Context) (string, error) {
				hangs <- struct{}{}
				<-ctx.Done()
				return readiness.Good, nil
			}})
	}()
	reported := func(family, reason string) func() bool {
		return func() bool {
			var n int
			_ = c.owner.QueryRow(context.Background(), `SELECT count(*) FROM nw.readiness_reports WHERE family = $1 AND reason = $2`, family, reason).Scan(&n)
			return n == 1
		}
	}
	require.Eventually(t, reported("signing", readiness.Unhealthy), 10*time.Second, 10*time.Millisecond)
	require.Eventually(t, reported("clock", readiness.Good), 10*time.Second, 10*time.Millisecond)
	require.Eventually(t, reported("store", readiness.Settings), 10*time.Second, 10*time.Millisecond, "the scratch cluster runs without fsync, and the probe says so")
	<-hangs
	stop()
	<-done
}
