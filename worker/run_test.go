package worker

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func TestTheLeaseIsRenewedAtAThird(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.once(t, func(ctx context.Context, _ *Run) error {
			time.Sleep(95 * time.Second)
			assert.Equal(t, 9, b.count(vRenew))
			return ctx.Err()
		})
		assert.Equal(t, "succeeded", r.state)
		time.Sleep(time.Hour)
		assert.Equal(t, 9, b.count(vRenew), "no heartbeat after the handler has returned")
	})
}

func TestAHoldIsLostWithItsLease(t *testing.T) {
	for name, c := range map[string]struct {
		twist twist
		also  error
	}{
		"no connection":  {drops, nil},
		"no answer":      {hangs, nil},
		"closed":         {refuses(api.AdmissionClosed, 0), ErrAdmissionClosed},
		"unavailable":    {refuses(api.Unavailable, 0), nil},
		"unknown":        {refuses(api.OutcomeUnknown, 0), nil},
		"always a nonce": {challenges("DPoP"), nil},
		"no JSON":        {answers("<html>"), nil},
		"another fence":  {answers(`{"access_token":"x","token_type":"DPoP","run":{"fence":9,"lease_ms":60000,"remaining_ms":60000}}`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vRenew, c.twist)
				r := b.once(t, func(ctx context.Context, run *Run) error {
					begin := time.Now()
					<-ctx.Done()
					assert.Equal(t, b.lease, time.Since(begin))
					assert.ErrorIs(t, context.Cause(ctx), ErrLeaseLost)
					if c.also != nil {
						assert.ErrorIs(t, context.Cause(ctx), c.also)
					}
					return nil
				})
				assert.Equal(t, "claimed", r.state, "the reaper's business")
				assert.Zero(t, b.count(vSettle))
				assert.Less(t, b.count(vRenew), 50, "no storm")
			})
		})
	}
}

func TestAHoldSurvivesAShortClose(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.once(t, func(ctx context.Context, _ *Run) error {
			time.Sleep(5 * time.Second)
			b.setOpen(false)
			time.Sleep(20 * time.Second)
			b.setOpen(true)
			time.Sleep(time.Minute)
			return ctx.Err()
		})
		assert.Equal(t, "succeeded", r.state)
	})
}

func TestARefusedRenewalEndsTheHold(t *testing.T) {
	for code, want := range map[api.Code]error{
		api.FenceStale: ErrFenceLost, api.LeaseLost: ErrLeaseLost, api.AuthorityChanged: ErrAuthorityChanged, api.ConsentEnded: ErrAuthorityChanged,
		api.RunEnded: ErrEnded, api.UnknownRun: ErrEnded, api.DeadlinePassed: ErrDeadline, api.InvalidToken: ErrLeaseLost, api.WrongKey: ErrLeaseLost,
	} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vRenew, refuses(code, 0))
				b.once(t, func(ctx context.Context, _ *Run) error {
					begin := time.Now()
					<-ctx.Done()
					assert.Equal(t, b.lease/3, time.Since(begin), "at once")
					assert.ErrorIs(t, context.Cause(ctx), want)
					refusal, ok := Refused(context.Cause(ctx))
					if assert.True(t, ok) {
						assert.Equal(t, code, refusal.Code)
					}
					return nil
				})
				assert.Equal(t, 1, b.count(vRenew))
				assert.Zero(t, b.count(vSettle))
			})
		})
	}
}

func TestTheDeadlineEndsTheHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.remaining = 100 * time.Second
		b.once(t, func(ctx context.Context, run *Run) error {
			begin := time.Now()
			b.with(func() { b.runs[run.Reference()].deadline = begin.Add(time.Hour) }) // nothing extends it
			<-ctx.Done()
			assert.Equal(t, b.remaining, time.Since(begin))
			assert.ErrorIs(t, context.Cause(ctx), ErrDeadline)
			assert.LessOrEqual(t, run.Left(), time.Duration(0))
			return nil
		})
		assert.Zero(t, b.count(vSettle))
	})
}

func TestADeadlineWithinTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.remaining = 7 * time.Second
		b.once(t, func(ctx context.Context, _ *Run) error {
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), ErrDeadline)
			assert.NotErrorIs(t, context.Cause(ctx), ErrLeaseLost)
			return nil
		})
	})
}

// Queue row 57: a handler that ignored its end kept its slot for ever, because renewals went on.
func TestAHandlerThatIgnoresItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.remaining = time.Minute
		r := b.once(t, func(context.Context, *Run) error {
			time.Sleep(time.Hour)
			return nil
		})
		assert.LessOrEqual(t, b.count(vRenew), 6)
		assert.NotEqual(t, "succeeded", r.state)
		assert.Zero(t, b.count(vSettle))
	})
}

func TestTimeCountsFromBeforeTheQuestion(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.world.once(vClaim, nil, first(func() { time.Sleep(8 * time.Second) }))
		b.forever(vRenew, drops)
		b.once(t, func(ctx context.Context, run *Run) error {
			assert.Equal(t, time.Hour-8*time.Second-8*time.Second, run.Left(), "the authority counts from its answer, the worker from its question")
			begin := time.Now()
			<-ctx.Done()
			assert.Equal(t, b.lease-8*time.Second, time.Since(begin))
			return nil
		})
	})
}

func TestARenewalCountsFromBeforeItsQuestion(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vRenew, drops)
		b.world.once(vRenew, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(rw, r)
				time.Sleep(8 * time.Second)
			})
		})
		b.once(t, func(ctx context.Context, _ *Run) error {
			begin := time.Now()
			<-ctx.Done()
			assert.Equal(t, b.lease/3+b.lease, time.Since(begin))
			return nil
		})
	})
}

// Case 68: a client whose clock drifts was locked out.
func TestAClockThatIsOff(t *testing.T) {
	for name, off := range map[string]time.Duration{"ahead": 5 * time.Minute, "behind": -5 * time.Minute, "far behind": -20 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.config.Now = func() time.Time { return time.Now().Add(off) }
				r := b.once(t, func(ctx context.Context, run *Run) error {
					assert.Equal(t, time.Hour, run.Left())
					time.Sleep(2 * time.Minute)
					_, err := run.Do(ctx, b.effect("one"))
					return err
				})
				assert.Equal(t, "succeeded", r.state)
			})
		})
	}
}

func TestWhatARunKnowsIsRenewed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.once(t, func(_ context.Context, run *Run) error {
			b.with(func() {
				b.runs[run.Reference()].effectsLeft = 2
				b.runs[run.Reference()].wrapUp = true
			})
			assert.False(t, run.WrapUp())
			time.Sleep(11 * time.Second)
			assert.True(t, run.WrapUp())
			assert.EqualValues(t, 2, run.Budget().Effects)
			return nil
		})
	})
}

func TestAFailedHandlerIsSettledAsFailed(t *testing.T) {
	for name, handler := range map[string]Handler{
		"error": func(context.Context, *Run) error { return errors.New("no") },
		"panic": func(context.Context, *Run) error { panic("no") },
		"nil pointer": func(context.Context, *Run) error {
			var e *fakeEffect
			e.applied++
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				r := b.once(t, handler)
				assert.Equal(t, "failed", r.state)
				assert.Equal(t, 1, r.settles)
			})
		})
	}
}

func TestSettlingIsRepeatedUntilItIsAnswered(t *testing.T) {
	for name, c := range map[string]twist{
		"closed": refuses(api.AdmissionClosed, 0), "in flight": refuses(api.EffectsInFlight, 0), "unavailable": refuses(api.Unavailable, 0),
		"unknown": refuses(api.OutcomeUnknown, 0), "internal": refuses(api.Internal, 0), "cut": drops, "lost": loses, "no answer": hangs, "no JSON": answers("<html>"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vSettle, c, c, c)
				r := b.once(t, nothing)
				assert.Equal(t, "succeeded", r.state)
				assert.Equal(t, 1, r.settles)
				assert.Equal(t, 4, b.count(vSettle))
			})
		})
	}
}

func TestTheLeaseIsKeptWhileSettling(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		r.effects["late"] = &fakeEffect{ref: reference(), state: "admitted"}
		time.AfterFunc(2*time.Minute, func() { b.with(func() { r.effects["late"].state = api.Committed }) })
		b.q.push(r.ref)
		close(b.q.messages)
		assert.ErrorIs(t, b.worker(t).Run(t.Context(), nothing), errEmpty)
		assert.Equal(t, "succeeded", r.state)
	})
}

func TestSettlingEndsAtTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.remaining = time.Minute
		b.forever(vSettle, refuses(api.EffectsInFlight, 0))
		begin := time.Now()
		r := b.once(t, nothing)
		assert.Equal(t, b.remaining, time.Since(begin))
		assert.Equal(t, "claimed", r.state)
	})
}

func TestSettlingGivesUpWhatIsOver(t *testing.T) {
	for _, code := range []api.Code{api.RunEnded, api.FenceStale, api.LeaseLost, api.DeadlinePassed, api.InvalidToken, api.UseDPoPNonce} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vSettle, refuses(code, 0))
				b.once(t, nothing)
				assert.Equal(t, 1, b.count(vSettle))
			})
		})
	}
}

var errHandler = errors.New("the handler says no")

// Whatever happens on the way, a run whose handler did not return nil never ends as succeeded, a run is settled once at
// most, and the worker comes to an end.
func TestAHandlersErrorIsNeverASuccess(t *testing.T) {
	t.Parallel()
	trouble := map[string]twist{"none": nil, "drops": drops, "loses": loses, "hangs": hangs, "closed": refuses(api.AdmissionClosed, 0),
		"unknown": refuses(api.OutcomeUnknown, 0), "fence": refuses(api.FenceStale, 0), "ended": refuses(api.RunEnded, 0), "garbage": answers("{}")}
	names := []string{"none", "drops", "loses", "hangs", "closed", "unknown", "fence", "ended", "garbage"}
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(verb string) (out []twist) {
			for _, name := range rapid.SliceOfN(rapid.SampledFrom(names), 0, 4).Draw(rt, verb) {
				out = append(out, trouble[name])
			}
			return out
		}
		renews, settles, guards := draw(vRenew), draw(vSettle), draw(vGuard)
		ending := rapid.SampledFrom([]string{"nil", "error", "panic"}).Draw(rt, "ending")
		busy := time.Duration(rapid.IntRange(0, 120).Draw(rt, "busy")) * time.Second
		stopAfter := time.Duration(rapid.IntRange(1, 240).Draw(rt, "stop")) * time.Second
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.world.once(vRenew, renews...)
			b.world.once(vSettle, settles...)
			b.world.once(vGuard, guards...)
			r, wanted := b.addRun(), false
			b.q.push(r.ref)
			close(b.q.messages)
			ctx, cancel := context.WithTimeout(t.Context(), stopAfter)
			defer cancel()
			_ = b.worker(t).Run(ctx, func(ctx context.Context, run *Run) error {
				_, err := run.Do(ctx, b.effect("one"))
				sleep(ctx, busy)
				switch {
				case ending == "panic":
					panic("the handler panics")
				case ending == "error":
					return errHandler
				}
				wanted = err == nil
				return err
			})
			if !wanted {
				assert.NotEqual(t, "succeeded", r.state)
			}
			assert.LessOrEqual(t, r.settles, 1)
			if e := r.effects["one"]; e != nil {
				assert.LessOrEqual(t, e.applied, 1)
			}
		})
	})
}

var _ http.RoundTripper = (*world)(nil)
