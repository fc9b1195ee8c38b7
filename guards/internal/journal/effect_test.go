package journal

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

func refuses(t *testing.T, code api.Code, err error) {
	t.Helper()
	refusal, ok := errors.AsType[*api.Refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, refusal.Code)
}

var committed = guards.Ending{Outcome: guards.Committed, Result: json.RawMessage(`{"secret":"answer"}`)}

// TestWhatWasNotWrittenAheadIsNotStarted: no attempt but an intended one, no other effect, nothing twice.
func TestWhatWasNotWrittenAheadIsNotStarted(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	lane := guards.NewRef()
	a := admitted(attempt(), lane, 5)
	refuses(t, api.AttemptMismatch, j.Start(a))
	require.ErrorIs(t, j.Sending(a.Effect, sentAt), errStage)
	require.ErrorIs(t, j.End(a.Effect, committed), errStage)

	require.NoError(t, j.Intend(a.Attempt))
	require.ErrorIs(t, j.Sending(a.Effect, sentAt), errStage)
	require.ErrorIs(t, j.End(a.Effect, committed), errStage)
	stranger := a
	stranger.ID = guards.NewRef()
	refuses(t, api.AttemptMismatch, j.Start(stranger))
	altered := a
	altered.Digest[0]++
	refuses(t, api.EffectMismatch, j.Intend(altered.Attempt))
	refuses(t, api.EffectMismatch, j.Start(altered))
	altered = a
	altered.Action = "order.refund"
	refuses(t, api.EffectMismatch, j.Start(altered))
	fenceless := a
	fenceless.Fence = 0
	refuses(t, api.EffectMismatch, j.Start(fenceless))

	require.NoError(t, j.Start(a))
	refuses(t, api.EffectAlreadyAdmitted, j.Start(a))
	refuses(t, api.EffectAlreadyAdmitted, j.Intend(stranger.Attempt))
	require.ErrorIs(t, j.End(a.Effect, committed), errStage, "nothing was sent")
	require.NoError(t, j.Sending(a.Effect, sentAt))
	require.ErrorIs(t, j.Sending(a.Effect, sentAt), errStage)
	refuses(t, api.EffectAlreadyAdmitted, j.Start(a))
	require.ErrorIs(t, j.End(a.Effect, guards.Ending{Outcome: "maybe"}), errOutcome)
	require.NoError(t, j.End(a.Effect, committed))

	require.ErrorIs(t, j.End(a.Effect, guards.Ending{Outcome: guards.NotApplied}), guards.ErrSettled)
	require.ErrorIs(t, j.Intend(a.Attempt), guards.ErrSettled)
	require.ErrorIs(t, j.Sending(a.Effect, sentAt), errStage)
	refuses(t, api.EffectSettled, j.Start(a))
	require.Equal(t, guards.Ending{Outcome: guards.Committed}, proven(t, j, a.Attempt), "the answer is told once, by who had it")
}

// TestProofs of each stage, by the process itself and by the next one.
func TestProofs(t *testing.T) {
	t.Parallel()
	spent := int64(42)
	lost := guards.Ending{Outcome: guards.Ambiguous, Evidence: &api.Evidence{Answered: api.AnsweredUnknown}}
	sent := &api.Evidence{Action: "order.pay", Parameters: json.RawMessage(someParams), SentUnixMS: sentAt.UnixMilli(), Answered: api.AnsweredNothing}
	for name, c := range map[string]struct {
		bring func(t *testing.T, j *Journal, a guards.Admitted)
		other bool // attempt than the one that is asked for
		want  guards.Ending
	}{
		"never heard of": {want: lost, bring: func(*testing.T, *Journal, guards.Admitted) {}},
		"intended": {want: guards.Ending{Outcome: guards.NotApplied}, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, j.Intend(a.Attempt))
		}},
		"intended by another attempt": {want: lost, other: true, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, j.Intend(a.Attempt))
		}},
		"started": {want: guards.Ending{Outcome: guards.NotApplied}, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.Start(a)))
		}},
		"started by another attempt": {want: lost, other: true, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.Start(a)))
		}},
		"sending": {want: guards.Ending{Outcome: guards.Ambiguous, Evidence: sent}, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.StartSending(a, sentAt)))
		}},
		"committed": {want: guards.Ending{Outcome: guards.Committed, Spent: &spent}, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.StartSending(a, sentAt), j.End(a.Effect, guards.Ending{Outcome: guards.Committed, Spent: &spent})))
		}},
		"committed by another attempt": {want: lost, other: true, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.StartSending(a, sentAt), j.End(a.Effect, committed)))
		}},
		"not applied": {want: guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate}, bring: func(t *testing.T, j *Journal, a guards.Admitted) {
			require.NoError(t, errors.Join(j.Intend(a.Attempt), j.Start(a), j.End(a.Effect, guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate})))
		}},
		"ambiguous": {want: guards.Ending{Outcome: guards.Ambiguous, Evidence: &api.Evidence{Action: sent.Action, Parameters: sent.Parameters, SentUnixMS: sent.SentUnixMS, Answered: api.AnsweredStatus, Status: 502}},
			bring: func(t *testing.T, j *Journal, a guards.Admitted) {
				require.NoError(t, errors.Join(j.Intend(a.Attempt), j.StartSending(a, sentAt), j.End(a.Effect, guards.Ending{Outcome: guards.Ambiguous, Evidence: &api.Evidence{Answered: api.AnsweredStatus, Status: 502}})))
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, dir := create(t)
			a := admitted(attempt(), guards.NewRef(), 1)
			c.bring(t, j, a)
			require.NoError(t, j.Close())
			j = reopen(t, dir, Options{})
			asked := a.Attempt
			if c.other {
				asked.ID = guards.NewRef()
			}
			require.Equal(t, c.want, proven(t, j, asked))
			require.Equal(t, c.want, proven(t, j, asked), "it stays")
			if c.want.Outcome == guards.NotApplied {
				require.ErrorIs(t, j.Intend(a.Attempt), guards.ErrSettled)
				refuses(t, api.EffectSettled, j.Start(a))
				require.ErrorIs(t, j.Sending(a.Effect, sentAt), errStage, "a late one fails on the tombstone (P14)")
			}
		})
	}
}

// TestAnEndThatComesAfterAProof: the handler was alive after all, and what it knows is kept.
func TestAnEndThatComesAfterAProof(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	a := goAhead(t, j, guards.NewRef(), 1)
	require.NoError(t, j.StartSending(a, sentAt))
	require.Equal(t, guards.Ambiguous, proven(t, j, a.Attempt).Outcome)
	require.NoError(t, j.End(a.Effect, committed))
	require.Equal(t, guards.Committed, proven(t, j, a.Attempt).Outcome)
}

func TestLowerFenceIsRefusedAndEnds(t *testing.T) {
	t.Parallel()
	j, dir := create(t)
	lane := guards.NewRef()
	require.NoError(t, j.Start(goAhead(t, j, lane, 7)))
	require.NoError(t, j.Start(goAhead(t, j, lane, 7)), "one holder may do many things")
	require.NoError(t, j.Start(goAhead(t, j, guards.NewRef(), 1)), "another lane has its own")
	require.NoError(t, j.Close())
	j = reopen(t, dir, Options{})
	lower := goAhead(t, j, lane, 6)
	refuses(t, api.FenceStale, j.Start(lower))
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.FenceStale}, proven(t, j, lower.Attempt))
	seen, err := probe(j)
	require.NoError(t, err)
	require.Equal(t, guards.Seen{Fence: 7, Admission: 107}, seen)
}

// TestManyAttemptsOfOneEffectStartOnce, even if an authority had lost its mind and admitted all of them.
func TestManyAttemptsOfOneEffectStartOnce(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	one := attempt()
	lane := guards.NewRef()
	var all [40]guards.Admitted
	for i := range all {
		one.ID = guards.NewRef()
		require.NoError(t, j.Intend(one))
		all[i] = admitted(one, lane, 1)
	}
	var group sync.WaitGroup
	sent := make(chan struct{}, len(all))
	for _, a := range all {
		group.Go(func() {
			ending, err := j.Once(a, func() guards.Ending {
				sent <- struct{}{}
				return committed
			})
			assert.NoError(t, err)
			assert.NotEqual(t, guards.NotApplied, ending.Outcome, "one was")
		})
	}
	group.Wait()
	require.Len(t, sent, 1)
}

func TestOnce(t *testing.T) {
	t.Parallel()
	j, _ := create(t)
	never := func() guards.Ending { panic("nothing may be sent") }

	late := goAhead(t, j, guards.NewRef(), 1)
	late.Left = func() time.Duration { return 0 }
	ending, err := j.Once(late, never)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate}, ending)
	require.Equal(t, ending, proven(t, j, late.Attempt))

	lane := guards.NewRef()
	a := goAhead(t, j, lane, 9)
	ending, err = j.Once(a, func() guards.Ending {
		require.Equal(t, guards.Ambiguous, proven(t, j, a.Attempt).Outcome, "already while it is being sent")
		return committed
	})
	require.NoError(t, err)
	require.Equal(t, committed, ending)
	ending, err = j.Once(a, never)
	require.NoError(t, err)
	require.Equal(t, guards.Committed, ending.Outcome)

	ending, err = j.Once(goAhead(t, j, lane, 8), never)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.FenceStale}, ending)

	dead := goAhead(t, j, lane, 9)
	require.Equal(t, guards.NotApplied, proven(t, j, dead.Attempt).Outcome)
	ending, err = j.Once(dead, never)
	require.NoError(t, err)
	require.Equal(t, guards.Ending{Outcome: guards.NotApplied, Reason: api.EffectSettled}, ending)

	strange := goAhead(t, j, lane, 9)
	_, err = j.Once(strange, func() guards.Ending { return guards.Ending{} })
	require.ErrorIs(t, err, errOutcome)
	require.Equal(t, guards.Ambiguous, proven(t, j, strange.Attempt).Outcome)

	require.NoError(t, j.Close())
	_, err = j.Once(strange, never)
	require.ErrorIs(t, err, errClosed)
}
