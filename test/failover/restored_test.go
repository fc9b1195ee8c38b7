package failover

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/teststack"
	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// An older state of the same server, with its system id and its timeline, says nothing of itself. Whoever remembers more finds it out.
func TestAnOlderCopy(t *testing.T) {
	t.Parallel()
	cluster := teststack.OwnCluster(t)
	replica, number, fence := newWork(t, cluster), newWork(t, cluster.Sibling(t)), newWork(t, cluster.Sibling(t))
	restart := func(change func(context.Context) error) {
		require.NoError(t, cluster.Postgres.Stop(within(t)))
		require.NoError(t, change(within(t)))
		require.NoError(t, cluster.Postgres.Restart(within(t)))
		for _, w := range []*work{replica, number, fence} {
			w.place = w.at(w.DB) // with new connections
		}
	}
	restart(cluster.Postgres.Save)
	gate := readiness.NewGate(cluster.Pool(t, "nw_authority"), slog.New(slog.DiscardHandler))
	watching(t, gate)
	require.Eventually(t, func() bool { return gate.Known().Sequence > replica.before.Sequence }, patience, 10*time.Millisecond)
	number.fly(number.claim(number.queued))
	fence.laterIncarnation()
	restart(cluster.Postgres.Restore)

	require.Eventually(t, func() bool { return replica.decision().Incarnation == 2 }, patience, 10*time.Millisecond, "an evaluating replica")
	turns := replica.decision().Sequence + 3
	require.Eventually(t, func() bool { return replica.decision().Sequence >= turns }, patience, 10*time.Millisecond)
	assert.Equal(t, []string{"first 1", "restored 2"}, replica.history(), "once")
	assert.Empty(t, keepsRuns(replica))

	number.found("a guard that has seen another admission", 2, checks[1:]...) // the first is about what an evaluation finds by itself
	fence.guard.Admission = 0
	fence.found("a guard that has seen a later incarnation", 3, goesOn, reusesFences, reusesNumbers)
}

// watching evaluates as a replica does, until t ends.
func watching(t *testing.T, gate *readiness.Gate) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		gate.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
}

// laterIncarnation goes through a restored copy once, and on.
func (w *work) laterIncarnation() {
	w.t.Helper()
	require.EqualValues(w.t, 2, w.remembering(decision{Incarnation: 1, Sequence: 1 << 40}).Incarnation)
	w.open()
	require.Equal(w.t, int64(1)<<40+1, w.fly(w.again(w.claimed)).Fence)
}

// found lets the guard report what it has seen: a new incarnation, once, and everything that comes with one.
func (w *work) found(by string, incarnation int64, then ...check) {
	w.t.Helper()
	require.Equal(w.t, w.before.Incarnation, w.evaluate().Incarnation, "nobody else can tell")
	require.Equal(w.t, "ok", w.verdict(w.report()))
	require.Equal(w.t, incarnation, w.decision().Incarnation, by)
	require.Equal(w.t, "ok", w.verdict(w.report()))
	require.Len(w.t, w.history(), 2, "each further report is a new incarnation")
	for _, c := range then {
		require.Empty(w.t, c(w), by)
	}
}

// Another server, filled from a dump.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	w := newWork(t, teststack.OwnCluster(t))
	w.Exec(t, `UPDATE nw.readiness_decision SET valid_until = clock_timestamp() + interval '2 seconds'`) // what stands there longer is not believed
	other := w.DB.Elsewhere(t)
	copyByDump(t, w.DB, other)
	require.Greater(t, w.Now(t), fixture.Value[time.Time](t, w.World, `SELECT valid_until FROM nw.readiness_decision`))

	w.place = w.at(other)
	replica := other.Pool(t, "nw_authority")
	require.Eventually(t, func() bool { // as a replica tries it again
		_, err := replica.Exec(within(t), `SELECT nw.evaluate()`)
		return err == nil
	}, patience, 100*time.Millisecond, "the process roles have come along")
	assert.Equal(t, []string{"first 1", "failover 2"}, w.history())
	for _, c := range checks[1:] {
		require.Empty(t, c(w))
	}
}

// copyByDump does what the page on restoring says.
func copyByDump(t *testing.T, from, to *teststack.DB) {
	t.Helper()
	dump := filepath.Join(t.TempDir(), "dump")
	var roles []string
	for line := range strings.Lines(string(client(t, "pg_dumpall", "--globals-only", "--dbname="+from.URL(teststack.Superuser)))) {
		if !strings.Contains(line, "ROLE "+teststack.Superuser) { // each server has its own
			roles = append(roles, line)
		}
	}
	client(t, "pg_dump", "--format=custom", "--file="+dump, from.URL(teststack.Superuser))
	file := dump + ".roles"
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(roles, "")), 0o600))
	client(t, "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file="+file, to.Postgres.AdminURL("postgres"))
	client(t, "pg_restore", "--create", "--exit-on-error", "--dbname="+to.Postgres.AdminURL("postgres"), dump)
}

// client runs one of PostgreSQL's programs to its end.
func client(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	binaries, _, err := localstack.FindPostgres()
	require.NoError(t, err)
	out, err := exec.CommandContext(within(t), filepath.Join(binaries, name), args...).Output()
	if refusal, ok := err.(*exec.ExitError); ok {
		require.NoError(t, err, string(refusal.Stderr))
	}
	require.NoError(t, err)
	return out
}
