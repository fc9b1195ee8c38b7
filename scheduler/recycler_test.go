package scheduler

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// minute is the database's minute, as nonces count it.
func (s *stage) minute(t testing.TB) int64 {
	t.Helper()
	return fixture.Value[int64](t, s.World, `SELECT floor(extract(epoch FROM clock_timestamp()) / 60)::bigint`)
}

func (s *stage) floor(t testing.TB, ring string) int64 {
	t.Helper()
	return fixture.Value[int64](t, s.World, `SELECT floor FROM nw.ring_floors WHERE ring = $1`, ring)
}

// remember puts one row of a minute into the ring.
func (s *stage) remember(t testing.TB, minute int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO nw.replay (slot, minute, digest) VALUES ($1 % 16, $1, $2)`, minute, fixture.Random())
}

func (s *stage) minutes(t testing.TB) []int64 {
	t.Helper()
	return fixture.Value[[]int64](t, s.World, `SELECT coalesce(array_agg(minute ORDER BY minute), '{}') FROM nw.replay`)
}

func TestOnlyWhatIsBelowTheFloorGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	now := s.minute(t)
	for age := range int64(16) {
		s.remember(t, now+1-age)
	}
	for age := range int64(12) {
		s.Exec(t, `INSERT INTO nw.assertion_owners (slot, period, digest, jkt) VALUES ($1 % 12, $1, $2, $2)`, now/360+5-age, fixture.Random())
	}
	require.NoError(t, s.recycleOnce(within(t)))
	low := s.floor(t, "replay")
	require.InDelta(t, now-3, low, 1)
	left := s.minutes(t)
	require.Equal(t, low, left[0])
	require.Len(t, left, int(now+1-low)+1, "and nothing else has gone")

	owners := fixture.Value[[]int64](t, s.World, `SELECT array_agg(period ORDER BY period) FROM nw.assertion_owners`)
	require.Equal(t, s.floor(t, "assertion_owners"), owners[0])
	require.InDelta(t, now/360-1, owners[0], 1)
	require.Equal(t, now/360+5, owners[len(owners)-1])
}

// What is below the floor is refused, and so cannot be replayed once its row has gone.
func TestBelowTheFloorNothingIsAdmitted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	require.NoError(t, s.recycleOnce(within(t)))
	low := s.floor(t, "replay")
	spend := func(minute int64) error {
		_, err := s.Owner.Exec(within(t), `SELECT nw.spend_proof(to_timestamp($1::bigint * 60), $2)`, minute, fixture.Random())
		return err
	}
	require.ErrorContains(t, spend(low-1), "proof_replayed")
	require.NoError(t, spend(low))
	require.Equal(t, "use_dpop_nonce", fixture.Value[string](t, s.World, `SELECT nw.nonce_verdict(to_timestamp($1::bigint * 60 - 1))`, low))
}

func TestAFloorIsNeverLowered(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Exec(t, `UPDATE nw.ring_floors SET floor = floor + 1000000`) // the clock stood far ahead, and was set back
	before := s.floor(t, "replay")
	require.NoError(t, s.recycleOnce(within(t)))
	require.Equal(t, before, s.floor(t, "replay"))
}

// The order of P31: the floor is committed, then older admissions end, then
// rows go. An admission that began under the old floor holds everything up.
func TestRowsGoAfterTheLastOlderAdmission(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	patient(t, w)
	s, watched := &stage{w, &paper{}, newScheduler(t, w, &paper{})}, watch(t, w)
	now := s.minute(t)
	s.remember(t, now-10)
	admission, err := w.Owner.Begin(within(t))
	require.NoError(t, err)
	_, err = admission.Exec(within(t), `SELECT nw.enter()`)
	require.NoError(t, err)

	done := make(chan error, 1)
	go func() { done <- s.recycleOnce(within(t)) }()
	blocked(t, watched)
	require.InDelta(t, now-3, s.floor(t, "replay"), 1, "the floor is committed")
	require.Equal(t, []int64{now - 10}, s.minutes(t), "no row has gone")
	require.NoError(t, admission.Commit(within(t)))
	require.NoError(t, <-done)
	require.Empty(t, s.minutes(t))
}

func TestWithoutADrainNothingGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.remember(t, s.minute(t)-10)
	admission, err := s.Owner.Begin(within(t))
	require.NoError(t, err)
	defer admission.Rollback(context.Background()) //nolint:errcheck // it is over by then
	_, err = admission.Exec(within(t), `SELECT nw.enter()`)
	require.NoError(t, err)
	require.ErrorContains(t, s.recycleOnce(within(t)), "lock timeout")
	require.Len(t, s.minutes(t), 1)
	require.NoError(t, admission.Rollback(within(t)))
	require.NoError(t, s.recycleOnce(within(t)))
	require.Empty(t, s.minutes(t))
}

// A partition that is in use waits for the next round, and holds up no other.
func TestABusyPartitionWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	now := s.minute(t)
	for age := int64(8); age <= 11; age++ {
		s.remember(t, now-age)
	}
	busy, err := s.Owner.Begin(within(t))
	require.NoError(t, err)
	defer busy.Rollback(context.Background()) //nolint:errcheck // it is over by then
	_, err = busy.Exec(within(t), `SELECT FROM nw.replay WHERE slot = $1 % 16 AND minute = $1`, now-9)
	require.NoError(t, err)
	require.NoError(t, s.store.raiseFloors(within(t)))
	n, err := s.store.recycle(within(t))
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.Equal(t, []int64{now - 9}, s.minutes(t))
	require.NoError(t, busy.Rollback(within(t)))
	n, err = s.store.recycle(within(t))
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Empty(t, s.minutes(t))
}
