package failover

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// However many runs are lost, they end within the role's time-out, a part with each evaluation, and nothing opens before the last.
func TestManyLostRunsEndInParts(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	for range 210 {
		w.Lane(t, fixture.TaskOptions{})
	}
	evaluate := func() (live int64) {
		w.Exec(t, `UPDATE nw.readiness_decision SET good_rounds = 100, round_at = '-infinity' WHERE state = 'closed'`)
		fixture.Value[string](t, w, `SELECT (nw.evaluate(7, 1)).state`)
		return fixture.Value[int64](t, w, `SELECT count(*) FROM nw.runs WHERE live`)
	}
	assert.EqualValues(t, 10, evaluate())
	assert.EqualValues(t, 8, fixture.Value[int64](t, w, `SELECT incarnation FROM nw.readiness_decision WHERE state = 'closed'`))
	assert.Zero(t, evaluate())
	assert.EqualValues(t, 210, fixture.Value[int64](t, w, `SELECT count(*) FROM nw.runs WHERE state = 'ambiguous'`))
	assert.EqualValues(t, 1, fixture.Value[int64](t, w, `SELECT count(*) FROM nw.incarnations WHERE reason = 'restored'`))
}
