package journal

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

const deadlines = 7 * 24 * time.Hour // of authority are at most so long

// hurried makes commits of a journal that will not outlive its test cheap.
func hurried(j *Journal) error {
	return j.change(func(t *txn) error {
		t.tx.DB().NoSync = true
		return nil
	})
}

// rows counts the rows of a bucket.
func rows(t require.TestingT, j *Journal, bucket string) (n int) {
	require.NoError(t, j.change(func(x *txn) error {
		n = x.bucket(bucket).Stats().KeyN
		return nil
	}))
	return n
}

// known is what a test remembers of an effect.
type remembered struct {
	guards.Admitted
	changed time.Duration // on the test's clock
	sent    bool
	ended   guards.Outcome
}

// TestNothingIsForgottenForWhichTheAuthorityCouldAsk: whatever is done when, for as long as a deadline can last no effect is done
// again, no end changes and no lane goes back; and what is older goes.
func TestNothingIsForgottenForWhichTheAuthorityCouldAsk(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "nw-journal-")
		require.NoError(rt, err)
		defer os.RemoveAll(dir) //nolint:errcheck // of a test
		var passed atomic.Int64 // read by the writer
		start := time.Now().Round(0)
		options := Options{Create: true, Free: 1, Wait: time.Minute, Now: func() time.Time { return start.Add(time.Duration(passed.Load())) }}
		open := func() *Journal {
			j, err := Open(filepath.Join(dir, "ledger"), options)
			require.NoError(rt, err)
			require.NoError(rt, hurried(j))
			return j
		}
		j := open()
		defer func() { _ = j.Close() }()
		now := func() time.Duration { return time.Duration(passed.Load()) }
		lanes := []guards.Ref{guards.NewRef(), guards.NewRef(), guards.NewRef()}
		fence, usedAt := map[guards.Ref]int64{}, map[guards.Ref]time.Duration{}
		var all []*remembered
		highest := guards.Seen{}
		one := func(rt *rapid.T) *remembered {
			if len(all) == 0 {
				rt.Skip("nothing yet")
			}
			return all[rapid.IntRange(0, len(all)-1).Draw(rt, "effect")]
		}
		rt.Repeat(map[string]func(*rapid.T){
			"wait": func(rt *rapid.T) {
				passed.Add(rapid.Int64Range(0, int64(4*24*time.Hour)).Draw(rt, "for"))
			},
			"restart": func(*rapid.T) {
				require.NoError(rt, j.Close())
				j = open()
			},
			"do": func(rt *rapid.T) {
				lane := rapid.SampledFrom(lanes).Draw(rt, "lane")
				a := goAheadOf(lane, rapid.Int64Range(1, 9).Draw(rt, "fence"))
				require.NoError(rt, j.Intend(a.Attempt))
				e := &remembered{Admitted: a, changed: now()}
				all = append(all, e)
				if rapid.Bool().Draw(rt, "only intended") {
					return
				}
				err := j.StartSending(a, sentAt)
				if a.Fence < fence[lane] && now()-usedAt[lane] <= deadlines {
					requireRefused(rt, api.FenceStale, err)
				}
				if err != nil {
					e.ended = guards.NotApplied
					return
				}
				e.sent, fence[lane], usedAt[lane] = true, a.Fence, now()
				highest = guards.Seen{Fence: max(highest.Fence, a.Fence), Admission: max(highest.Admission, a.Number)}
			},
			"end": func(rt *rapid.T) {
				if e := one(rt); e.sent && e.ended == "" && now()-e.changed <= deadlines {
					require.NoError(rt, j.End(e.Effect, committed))
					e.ended, e.changed = guards.Committed, now()
				}
			},
			"prove": func(rt *rapid.T) {
				e := one(rt)
				if now()-e.changed > deadlines {
					return
				}
				ending, err := j.Prove(e.Effect, e.ID)
				require.NoError(rt, err)
				switch {
				case e.ended != "":
					require.Equal(rt, e.ended, ending.Outcome)
				case e.sent:
					require.Equal(rt, guards.Ambiguous, ending.Outcome)
				default:
					require.Equal(rt, guards.NotApplied, ending.Outcome)
					e.ended, e.changed = guards.NotApplied, now()
				}
			},
			"replay": func(rt *rapid.T) {
				e := one(rt)
				if now()-e.changed > deadlines || !e.sent && e.ended == "" {
					return
				}
				a := e.Admitted
				a.Fence = 100
				require.Error(rt, j.Intend(a.Attempt))
				require.Error(rt, j.StartSending(a, sentAt))
				require.Error(rt, j.Sending(a.Effect, sentAt))
			},
			"": func(rt *rapid.T) {
				seen, err := probe(j)
				require.NoError(rt, err)
				require.Equal(rt, highest, seen, "the highest of all is never forgotten")
			},
		})
		// However much there was, it goes after its time while there is work to do.
		passed.Add(int64(keep + time.Hour))
		for range 3 + len(all)/16 {
			require.NoError(rt, j.Intend(goAheadOf(lanes[0], 1).Attempt))
		}
		require.LessOrEqual(rt, rows(rt, j, bucketEffects), 3+len(all)/16)
		require.LessOrEqual(rt, rows(rt, j, bucketAttempts), 3+len(all)/16)
		require.Zero(rt, rows(rt, j, bucketLanes))
	})
}

func goAheadOf(lane guards.Ref, fence int64) guards.Admitted { return admitted(attempt(), lane, fence) }

func requireRefused(t require.TestingT, code api.Code, err error) {
	refusal, _ := err.(*api.Refusal)
	require.NotNil(t, refusal, "%v", err)
	require.Equal(t, code, refusal.Code)
}

// TestTheWallClockMakesNothingForgotten: it may jump to any year, and time in which nothing ran does not count.
func TestTheWallClockMakesNothingForgotten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ledger")
	at := time.Now()
	var a guards.Admitted
	for n, jump := range []time.Duration{0, 100 * 365 * 24 * time.Hour, -50 * 365 * 24 * time.Hour, 9 * 24 * time.Hour} {
		at = at.Round(0).Add(jump)
		j := reopen(t, dir, Options{Create: n == 0, Now: func() time.Time { return at }})
		if n == 0 {
			a = goAhead(t, j, guards.NewRef(), 1)
			require.NoError(t, j.StartSending(a, sentAt))
		}
		for range 5 {
			require.NoError(t, j.Intend(attempt()))
		}
		require.Equal(t, guards.Ambiguous, proven(t, j, a.Attempt).Outcome)
		require.Equal(t, sentAt.UnixMilli(), proven(t, j, a.Attempt).Evidence.SentUnixMS, "it was not forgotten")
		require.NoError(t, j.Close())
	}
	c := clock{last: at}
	require.Zero(t, c.read(at.Add(-time.Hour)), "a step back counts as nothing")
	require.Equal(t, int64(7), c.read(at.Add(-time.Hour+7*time.Millisecond)))
}

// TestForgettingIsBounded: an effect with many attempts goes over many commits.
func TestForgettingIsBounded(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	start := time.Now().Round(0)
	j := reopen(t, filepath.Join(t.TempDir(), "ledger"), Options{Create: true, Now: func() time.Time { return start.Add(time.Duration(passed.Load())) }})
	require.NoError(t, hurried(j))
	a := attempt()
	for range 200 {
		a.ID = guards.NewRef()
		require.NoError(t, j.Intend(a))
	}
	passed.Add(int64(keep + time.Hour))
	before := rows(t, j, bucketAttempts)
	require.NoError(t, j.Intend(attempt()))
	after := rows(t, j, bucketAttempts)
	require.Less(t, after, before)
	require.Greater(t, after, before-50)
	for range 20 {
		require.NoError(t, j.Intend(attempt()))
	}
	require.Equal(t, 21, rows(t, j, bucketAttempts))
	require.Equal(t, 21, rows(t, j, bucketEffects))
}

// TestWhatWasSentIsKeptNoLongerThanItIsEvidence.
func TestWhatWasSentIsKeptNoLongerThanItIsEvidence(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	a := goAhead(t, j, guards.NewRef(), 1)
	params := func() (has bool) {
		require.NoError(t, j.change(func(x *txn) error {
			var e effect
			has = x.get(bucketEffects, a.Effect[:], &e) && e.Params != nil
			return nil
		}))
		return has
	}
	require.False(t, params())
	require.NoError(t, j.StartSending(a, sentAt))
	require.True(t, params())
	require.NoError(t, j.End(a.Effect, committed))
	require.False(t, params())
}

// TestTheFileStopsGrowing while as much is forgotten as is written.
func TestTheFileStopsGrowing(t *testing.T) {
	t.Parallel()
	var passed atomic.Int64
	start := time.Now().Round(0)
	dir := filepath.Join(t.TempDir(), "ledger")
	j := reopen(t, dir, Options{Create: true, Now: func() time.Time { return start.Add(time.Duration(passed.Load())) }})
	require.NoError(t, hurried(j))
	size := map[int]int64{}
	for day := range 40 {
		passed.Add(int64(24 * time.Hour))
		for range 16 {
			a := goAhead(t, j, guards.NewRef(), 1)
			require.NoError(t, j.StartSending(a, sentAt))
		}
		info, err := os.Stat(filepath.Join(dir, fileName))
		require.NoError(t, err)
		size[day] = info.Size()
	}
	require.Less(t, size[39], 2*size[15])
	require.Less(t, rows(t, j, bucketEffects), 16*12)
}
