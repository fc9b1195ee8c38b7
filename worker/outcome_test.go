package worker

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Threat 9: an answer that was lost is never repeated as it was.
func TestALostAnswerOfAGuardIsAskedFor(t *testing.T) {
	for outcome, want := range map[string]error{api.Committed: nil, api.NotApplied: ErrNotApplied, api.Ambiguous: ErrAmbiguous} {
		t.Run(outcome, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vGuard, b.admits)
				r := b.does(t, func(ctx context.Context, run *Run) {
					time.AfterFunc(25*time.Second, func() { b.with(func() { b.runs[run.Reference()].effects["one"].state = outcome }) })
					begin := time.Now()
					result, err := run.Do(ctx, b.effect("one"))
					if want == nil {
						assert.NoError(t, err)
					} else {
						assert.ErrorIs(t, err, want)
					}
					assert.Equal(t, outcome, result.Outcome)
					assert.Empty(t, result.Result)
					assert.WithinDuration(t, begin.Add(25*time.Second), time.Now(), 2*time.Second)
				})
				assert.Equal(t, 1, b.count(vGuard))
				assert.Equal(t, 1, b.count(vMint))
				assert.Equal(t, 1, r.effects["one"].admitted)
			})
		})
	}
}

func TestALostAnswerIsAskedForWhileClosed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.world.once(vGuard, func(next http.Handler) http.Handler {
			return loses(first(func() { time.AfterFunc(0, func() { b.setOpen(false) }) })(next))
		})
		b.does(t, func(ctx context.Context, run *Run) {
			_, err := run.Do(ctx, b.effect("one"))
			assert.NoError(t, err)
		})
		assert.Equal(t, 1, b.count(vGuard))
	})
}

func TestAnAnswerThatSaysNothingIsAskedFor(t *testing.T) {
	for name, body := range map[string]string{
		"empty": "", "no JSON": "<html>", "no outcome": `{"effect":"x"}`, "another effect": `{"effect":"AAAAAAAAAAAAAAAAAAAAAA","outcome":"committed"}`,
		"another word": `{"outcome":"done"}`,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vGuard, func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						b.says(api.NotApplied)(next).ServeHTTP(discard{http.Header{}}, r)
						answers(body)(nil).ServeHTTP(rw, r)
					})
				})
				b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					assert.ErrorIs(t, err, ErrNotApplied)
				})
				assert.Equal(t, 1, b.count(vGuard))
			})
		})
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// An effect that was not admitted is minted anew, which kills the capability that may still be under way.
func TestAnEffectThatWasNotAdmittedIsMintedAnew(t *testing.T) {
	for name, trouble := range map[string]twist{
		"cut": drops, "no answer": hangs, "unavailable": refuses(api.Unavailable, 0), "internal": refuses(api.Internal, 0), "lapsed": refuses(api.EffectLapsed, 0),
		"closed": refuses(api.AdmissionClosed, 0), "too many": refuses(api.TooManyRequests, 0), "expired": refuses(api.InvalidToken, 0), "older": refuses(api.FenceStale, 0),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				late := make(chan *http.Request, 1) // the first request, which arrives when everything is over
				b.world.once(vGuard, func(http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						late <- r.Clone(context.Background())
						trouble(nil).ServeHTTP(rw, r)
					})
				}, trouble)
				r := b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
					assert.EqualValues(t, 9, run.Budget().Effects, "it counts once")
				})
				assert.Equal(t, 3, b.count(vGuard))
				assert.Equal(t, 3, b.count(vMint))
				b.ServeHTTP(discard{http.Header{}}, <-late)
				assert.Equal(t, 1, r.effects["one"].applied)
			})
		})
	}
}

func TestAGuardThatStaysAwayIsNotStormed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vGuard, drops)
		b.does(t, func(ctx context.Context, run *Run) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
			defer cancel()
			_, err := run.Do(ctx, b.effect("one"))
			assert.ErrorIs(t, err, ErrUnknown, "its last call may still arrive")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
		assert.LessOrEqual(t, b.count(vGuard), 130)
	})
}

// Only a call that may still be under way leaves the outcome open.
func TestAMintThatIsRefusedAfterACall(t *testing.T) {
	for name, c := range map[string]struct {
		guard   twist
		unknown bool
	}{"lost": {drops, true}, "no answer": {hangs, true}, "unknown": {refuses(api.OutcomeUnknown, 0), true}, "refused": {refuses(api.EffectLapsed, 0), false}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vGuard, drops, c.guard)
				b.world.once(vMint, nil, nil, refuses(api.FenceStale, 0))
				b.once(t, func(ctx context.Context, run *Run) error {
					_, err := run.Do(ctx, b.effect("one"))
					assert.ErrorIs(t, err, ErrFenceLost)
					assert.Equal(t, c.unknown, errors.Is(err, ErrUnknown), "%v", err)
					return err
				})
			})
		})
	}
}

func TestAReopeningCostsOneRenewalForAll(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			b.setOpen(true)
			var wg, arrived sync.WaitGroup
			arrived.Add(4)
			together := first(func() {
				arrived.Done()
				arrived.Wait()
			})
			b.world.once(vMint, together, together, together, together)
			for _, key := range []string{"a", "b", "c", "d"} {
				wg.Go(func() {
					_, err := run.Do(ctx, b.effect(key))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
		})
		assert.Equal(t, 1, b.count(vRenew))
	})
}

func TestDoEndsWithoutAnOutcome(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vGuard, b.admits)
		r := b.addRun()
		b.q.push(r.ref)
		b.starts(t, b.worker(t), func(ctx context.Context, run *Run) error {
			short, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			result, err := run.Do(short, b.effect("one"))
			assert.ErrorIs(t, err, ErrUnknown)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.NotErrorIs(t, err, ErrAmbiguous)
			assert.Empty(t, result)
			b.with(func() { r.effects["one"].state = api.Committed })
			_, err = run.Do(ctx, b.effect("one"))
			assert.NoError(t, err, "the same key tells later")
			return nil
		})
		<-b.q.told
		time.Sleep(2 * time.Minute)
		assert.Equal(t, 1, b.count(vGuard))
	})
}

func TestASettledKeyNeedsNoGuard(t *testing.T) {
	for outcome, want := range map[string]error{api.Committed: nil, api.NotApplied: ErrNotApplied, api.Ambiguous: ErrAmbiguous} {
		t.Run(outcome, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				r := b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					require.NoError(t, err)
					b.with(func() { b.runs[run.Reference()].effects["one"].state = outcome })
					result, err := run.Do(ctx, b.effect("one"))
					assert.Equal(t, outcome, result.Outcome)
					assert.Equal(t, b.runs[run.Reference()].effects["one"].ref, result.Effect)
					assert.ErrorIs(t, err, want)
				})
				assert.Equal(t, 1, b.count(vGuard))
				assert.Equal(t, 1, r.effects["one"].applied)
			})
		})
	}
}

// The worker before had an effect admitted and died: the claim tells the effect's reference, the authority its outcome.
func TestAnEffectInFlightIsFollowed(t *testing.T) {
	for name, known := range map[string]bool{"known from the claim": true, "not known": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vGuard, b.admits)
				r := b.addRun()
				b.q.push(r.ref)
				stop := b.starts(t, b.worker(t), func(ctx context.Context, run *Run) error {
					_, err := run.Do(ctx, b.effect("one"))
					return err
				})
				<-b.q.told
				time.Sleep(1500 * time.Millisecond) // between two questions
				stop()
				b.with(func() { r.state = "queued" })
				time.AfterFunc(40*time.Second, func() { b.with(func() { r.effects["one"].state = api.Committed }) })
				b.token.Store("workload-2")
				status := b.count(vStatus)
				b.starts(t, b.worker(t), func(ctx context.Context, run *Run) error {
					assert.EqualValues(t, 2, run.Fence())
					if !known {
						run.mu.Lock()
						clear(run.hold.effects)
						run.mu.Unlock()
					}
					_, err := run.Do(ctx, b.effect("one"))
					return err
				})
				b.q.push(r.ref)
				time.Sleep(time.Minute)
				assert.Equal(t, "succeeded", b.state(r))
				assert.Equal(t, 1, b.count(vGuard), "the second worker calls no guard")
				assert.Equal(t, known, b.count(vStatus) > status)
			})
		})
	}
}

func TestAReopeningCostsOneRenewal(t *testing.T) {
	for name, reopen := range map[string]func(b *bench){
		"before the mint": func(b *bench) {
			b.setOpen(false)
			b.setOpen(true)
		},
		"before the guard": func(b *bench) {
			b.world.once(vGuard, first(func() {
				b.setOpen(false)
				b.setOpen(true)
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				r := b.does(t, func(ctx context.Context, run *Run) {
					reopen(b)
					begin := time.Now()
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
					assert.Less(t, time.Since(begin), time.Second, "it does not wait for the heartbeat")
				})
				assert.Equal(t, 1, b.count(vRenew))
				assert.Equal(t, 1, r.effects["one"].applied)
			})
		})
	}
}

func TestReadinessThatNeverSettlesIsNotStormed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vMint, refuses(api.ReadinessChanged, 0))
		b.does(t, func(ctx context.Context, run *Run) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err := run.Do(ctx, b.effect("one"))
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.NotErrorIs(t, err, ErrUnknown, "nothing was sent to a guard")
		})
		assert.Less(t, b.count(vMint), 50)
	})
}

func TestDoWaitsForTheGate(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			b.setOpen(false)
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := run.Do(short, b.effect("one"))
			assert.ErrorIs(t, err, ErrAdmissionClosed)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			time.AfterFunc(10*time.Second, func() { b.setOpen(true) })
			_, err = run.Do(ctx, b.effect("one"))
			assert.NoError(t, err)
		})
	})
}

func TestAnEndInTheMiddleOfAQuestionStillSaysWhatWasWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vMint, hangs)
		b.world.once(vMint, refuses(api.AdmissionClosed, 0))
		b.does(t, func(ctx context.Context, run *Run) {
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := run.Do(short, b.effect("one"))
			assert.ErrorIs(t, err, ErrAdmissionClosed)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	})
}

func TestAGuardHasItsTime(t *testing.T) {
	for name, limit := range map[string]time.Duration{"default": 0, "configured": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.config.GuardTimeout = limit
				b.world.once(vGuard, hangs)
				b.does(t, func(ctx context.Context, run *Run) {
					begin := time.Now()
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
					assert.Equal(t, cmp.Or(limit, DefaultGuardTimeout)+firstPause, time.Since(begin))
				})
			})
		})
	}
}

func TestDoWaitsNoLongerThanTheHold(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.once(t, func(ctx context.Context, run *Run) error {
			b.setOpen(false)
			_, err := run.Do(context.Background(), b.effect("one"))
			assert.ErrorIs(t, err, ErrLeaseLost)
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), ErrLeaseLost)
			_, err = run.Do(context.Background(), b.effect("one"))
			assert.ErrorIs(t, err, ErrLeaseLost, "a hold that is over stays over")
			return err
		})
		assert.Zero(t, b.count(vGuard))
	})
}

func TestDoEndsWithTheHoldWhateverItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vMint, drops)
		b.forever(vRenew, drops)
		b.once(t, func(_ context.Context, run *Run) error {
			begin := time.Now()
			_, err := run.Do(context.Background(), b.effect("one"))
			assert.ErrorIs(t, err, ErrLeaseLost)
			assert.Equal(t, b.lease, time.Since(begin))
			return err
		})
	})
}

func TestAMintIsRepeatedWhenItsAnswerIsLost(t *testing.T) {
	for name, trouble := range map[string]twist{"lost": loses, "cut": drops, "no answer": hangs, "unknown": refuses(api.OutcomeUnknown, 0), "garbage": answers("{}"),
		"no token": answers(`{"effect":"x","token_type":"DPoP"}`), "another type": answers(`{"effect":"x","access_token":"x","token_type":"N_A"}`),
		"an outcome that is none": answers(`{"outcome":{"effect":"x","state":"minted"}}`)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vMint, trouble)
				r := b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
				})
				assert.Equal(t, 1, r.effects["one"].applied)
				assert.Equal(t, 2, b.count(vMint))
			})
		})
	}
}
