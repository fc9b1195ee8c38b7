package failover

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// patience is beyond what any step of these tests takes.
const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// place is a database with its reporters, on the server where it stands now.
type place struct {
	*fixture.World
	t        *testing.T
	guard    guard
	gated    []fixture.Gated // calls that are admitted while the gate is open
	reports  int64           // so far
	replicas map[string]boot // by kind
}

type boot struct{ Instance, Boot int64 }

// guard is the guard's one instance, as it shows itself, and the highest that it has seen.
type guard struct {
	Name, Instance, Key []byte
	Fence, Admission    int64
}

// quick is a requirement with the shortest closed time that there is, and reports that outlive a busy machine.
const quick = `INSERT INTO nw.documents (digest, kind, body) VALUES (sha256('requirement'), 'requirement', '{}');
	INSERT INTO nw.readiness_requirements (generation, document, closed_ms, closed_max_ms, rounds, valid_ms, report_ttl_ms, protocols)
		VALUES (2, sha256('requirement'), 1000, 60000, 3, 2000, 10000, '{1}');
	UPDATE nw.readiness_decision SET requirement = 2, closed_ms = 1000`

// newPlace enters a registry in a database, starts its reporters and opens the
// gate: for an hour, so that nothing but what is looked for keeps it closed.
func newPlace(t *testing.T, db *teststack.DB) *place {
	t.Helper()
	p := &place{World: fixture.On(t, db), t: t, replicas: map[string]boot{}}
	_, err := p.Owner.Exec(within(t), quick, pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	p.OpenGate(t)
	p.gated = p.Gated(t)
	p.guard = one[guard](p, `SELECT g.name, i.instance, i.jkt, 0, 0 FROM nw.registry g JOIN nw.instances i ON i.component_id = g.id WHERE g.id = $1`, p.Guard)
	for _, kind := range []string{"authority", "scheduler"} {
		p.replicas[kind] = one[boot](p, `SELECT * FROM nw.register_replica($1, sha256($1::text::bytea))`, kind)
	}
	return p
}

// at is the same place on another server: what its processes remember, they remember.
func (p *place) at(db *teststack.DB) *place {
	p.t.Helper()
	world, moved := *p.World, *p
	world.DB, world.Owner = db, db.Pool(p.t, teststack.Owner)
	moved.World = &world
	return &moved
}

// one reads one row by position into a struct.
func one[T any](p *place, sql string, args ...any) T {
	p.t.Helper()
	list := fixture.List[T](p.t, p.World, sql, args...)
	require.Len(p.t, list, 1)
	return list[0]
}

// verdict sends a verb.
func (p *place) verdict(c fixture.Call) string {
	p.t.Helper()
	verdict, err := c.Verdict(within(p.t), p.Owner)
	require.NoError(p.t, err)
	return verdict
}

// decision is the row as it stands.
type decision struct {
	State                        string
	Epoch, Sequence, Incarnation int64
	Timeline                     int32
	Reason                       string
}

const decided = `state, epoch, sequence, incarnation, timeline, reason`

func (p *place) decision() decision {
	p.t.Helper()
	return one[decision](p, `SELECT `+decided+` FROM nw.readiness_decision`)
}

// evaluate is a turn of an evaluator that remembers nothing.
func (p *place) evaluate() decision { return p.remembering(decision{}) }

// remembering is a turn of one that remembers a decision.
func (p *place) remembering(d decision) decision {
	p.t.Helper()
	return one[decision](p, `SELECT `+decided+` FROM nw.evaluate($1, $2)`, d.Incarnation, d.Sequence)
}

// report is the guard's next report: good, and with what it has seen.
func (p *place) report() fixture.Call {
	p.reports++
	return fixture.Call{From: `nw.report_component($1, 'guard', $2, 1, $3, clock_timestamp() + interval '6 seconds', $4, 'guards', $5, true, 'good', 0, 1::smallint, sha256('catalogue'), '{}', '{}', $6, $7)`,
		Args: []any{p.guard.Name, p.guard.Instance, p.guard.Key, fixture.Random(), p.reports, p.guard.Fence, p.guard.Admission}}
}

// allGood lets every family report good, at this moment.
func (p *place) allGood() {
	p.t.Helper()
	require.Equal(p.t, "ok", p.verdict(p.report()))
	for kind, b := range p.replicas {
		families := []string{"store", "signing", "nonces", "clock", "audit", "attestation", "directory"}
		if kind == "scheduler" {
			families = []string{"queue", "approvals"}
		}
		for _, family := range families {
			p.reports++
			require.Equal(p.t, "ok", p.verdict(fixture.Call{From: `nw.report_replica($1, $2, $3, $4, $5, true, 'good', 0)`, Args: []any{kind, b.Instance, b.Boot, family, p.reports}}))
		}
	}
}

// open lets good reports and evaluations come until the gate opens by itself.
func (p *place) open() decision {
	p.t.Helper()
	var d decision
	require.Eventually(p.t, func() bool {
		p.allGood()
		d = p.evaluate()
		return d.State == "open"
	}, patience, 50*time.Millisecond)
	// As long as a test may take, whoever evaluates.
	p.Exec(p.t, `UPDATE nw.readiness_decision SET valid_until = clock_timestamp() + interval '1 hour'`)
	return d
}
