package worker

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// effect is one that the fake guard applies.
func (b *bench) effect(key string) Effect {
	return Effect{Key: key, Guard: b.guardURI, Action: "ledger.post", Resource: "book/1", Parameters: map[string]any{"text": "<&>\u2028 é", "n": 1, "a": []int{1}},
		Amount: 250, Currency: "EUR"}
}

// does works on one run whose handler is f, and which then succeeds.
func (b *bench) does(t *testing.T, f func(ctx context.Context, run *Run)) *fakeRun {
	t.Helper()
	return b.once(t, func(ctx context.Context, run *Run) error {
		f(ctx, run)
		return nil
	})
}

func TestDoCommits(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.does(t, func(ctx context.Context, run *Run) {
			result, err := run.Do(ctx, b.effect("one"))
			require.NoError(t, err)
			assert.Equal(t, api.Committed, result.Outcome)
			assert.Len(t, result.Effect, 22)
			assert.JSONEq(t, `{"entry":1}`, string(result.Result))
			assert.EqualValues(t, 9, run.Budget().Effects)
		})
		assert.Equal(t, 1, r.effects["one"].applied)
		assert.Equal(t, "succeeded", r.state)
	})
}

// Case 63: one mint and one call to the guard for each effect, also when every nonce is good only until the next.
func TestNoncesCostNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		const effects = 10
		newest := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(rw, r)
				b.with(func() { b.keepNewest(rw.Header().Get(api.HeaderNonce)) })
			})
		}
		for _, verb := range []string{vClaim, vRenew, vMint, vGuard, vSettle} {
			b.forever(verb, newest)
		}
		b.does(t, func(ctx context.Context, run *Run) {
			for i := range effects {
				_, err := run.Do(ctx, b.effect(string(rune('a'+i))))
				require.NoError(t, err)
				time.Sleep(7300 * time.Millisecond) // renewals take turns with effects
			}
		})
		assert.Equal(t, 2, b.count(vClaim))
		assert.Equal(t, effects, b.count(vMint))
		assert.Equal(t, effects, b.count(vGuard))
		assert.Equal(t, 7, b.count(vRenew))
		assert.Equal(t, 1, b.count(vSettle))
	})
}

// keepNewest makes every nonce of an audience stale but the newest; a mint hands out one for the guard besides.
func (w *world) keepNewest(nonce string) {
	for _, live := range w.nonces {
		if live[nonce] {
			clear(live)
			live[nonce] = true
		}
	}
}

// Case 64: a nonce that went stale between two calls, twice, costs one more trip each.
func TestStaleNoncesCostOneTripEach(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			b.forgetNonces()
			b.world.once(vGuard, first(b.forgetNonces))
			_, err := run.Do(ctx, b.effect("one"))
			require.NoError(t, err)
		})
		assert.Equal(t, 2, b.count(vMint))
		assert.Equal(t, 2, b.count(vGuard))
	})
}

// Cases 65 and 66: a guard that always challenges, and a challenge of another scheme.
func TestAChallengeIsAnsweredOnceAndOnlyWhenItIsOne(t *testing.T) {
	for scheme, calls := range map[string]int{"DPoP": 2, "Bearer": 1, "Bearer realm=\"DPoP\",": 1} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vGuard, challenges(scheme))
				r := b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					refusal, ok := Refused(err)
					require.True(t, ok)
					assert.Equal(t, api.UseDPoPNonce, refusal.Code)
				})
				assert.Equal(t, calls, b.count(vGuard))
				assert.Equal(t, 1, b.count(vMint))
				assert.Zero(t, r.effects["one"].applied)
			})
		})
	}
}

func TestAnAuthorityThatAlwaysChallenges(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vMint, challenges("DPoP"))
		b.does(t, func(ctx context.Context, run *Run) {
			_, err := run.Do(ctx, b.effect("one"))
			assert.True(t, dpopclient.Refused(err, api.UseDPoPNonce))
		})
		assert.Equal(t, 2, b.count(vMint))
		assert.Zero(t, b.count(vGuard))
	})
}

func TestWhatCannotBeDescribedIsNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		bad := map[string]func(*Effect){
			"no key":                    func(e *Effect) { e.Key = "" },
			"no guard":                  func(e *Effect) { e.Guard = "" },
			"no action":                 func(e *Effect) { e.Action = "" },
			"no resource":               func(e *Effect) { e.Resource = "" },
			"blank in the resource":     func(e *Effect) { e.Resource = "a b" },
			"amount without currency":   func(e *Effect) { e.Currency = "" },
			"currency without amount":   func(e *Effect) { e.Amount = 0 },
			"currency in small letters": func(e *Effect) { e.Currency = "eur" },
			"negative amount":           func(e *Effect) { e.Amount = -1 },
			"parameters are a list":     func(e *Effect) { e.Parameters = []int{1} },
			"parameters are bytes":      func(e *Effect) { e.Parameters = []byte(`{}`) },
			"a fraction":                func(e *Effect) { e.Parameters = map[string]any{"x": 1.5} },
			"a null":                    func(e *Effect) { e.Parameters = map[string]any{"x": nil} },
			"twice the same member":     func(e *Effect) { e.Parameters = json.RawMessage(`{"a":1,"a":2}`) },
			"not marshallable":          func(e *Effect) { e.Parameters = map[string]any{"x": func() {}} },
		}
		b.does(t, func(ctx context.Context, run *Run) {
			for name, spoil := range bad {
				e := b.effect("one")
				spoil(&e)
				_, err := run.Do(ctx, e)
				assert.ErrorIs(t, err, ErrInvalid, name)
			}
		})
		assert.Zero(t, b.count(vMint))
	})
}

func TestNoParametersAreAnEmptyObject(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			_, err := run.Do(ctx, Effect{Key: "one", Guard: b.guardURI, Action: "ping", Resource: "book"})
			assert.NoError(t, err)
		})
	})
}

func TestOutcomesThatTheGuardTells(t *testing.T) {
	for outcome, want := range map[string]error{api.NotApplied: ErrNotApplied, api.Ambiguous: ErrAmbiguous} {
		t.Run(outcome, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vGuard, b.says(outcome))
				b.does(t, func(ctx context.Context, run *Run) {
					result, err := run.Do(ctx, b.effect("one"))
					assert.ErrorIs(t, err, want)
					assert.Equal(t, outcome, result.Outcome)
					assert.NotEmpty(t, result.Effect)
				})
				assert.Equal(t, 1, b.count(vGuard))
			})
		})
	}
}

func TestRefusedMints(t *testing.T) {
	for code, want := range map[api.Code]error{
		api.NotGranted: ErrNotGranted, api.InvalidTarget: ErrNotGranted, api.ApprovalUnavailable: ErrApprovalUnavailable, api.LimitReached: ErrLimit, api.LoopDetected: ErrLimit,
		api.EffectAmbiguous: ErrAmbiguous, api.EffectKeyConflict: ErrConflict, api.EffectRepeated: ErrRepeated, api.FenceStale: ErrFenceLost,
		api.LeaseLost: ErrLeaseLost, api.DeadlinePassed: ErrDeadline, api.AuthorityChanged: ErrAuthorityChanged, api.ConsentEnded: ErrAuthorityChanged,
		api.RunEnded: ErrEnded, api.LaneUncertain: nil, api.InvalidAuthorizationDetails: nil, api.InvalidDPoPProof: nil,
	} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vMint, refuses(code, 0))
				b.once(t, func(ctx context.Context, run *Run) error {
					result, err := run.Do(ctx, b.effect("one"))
					refusal, ok := Refused(err)
					require.True(t, ok)
					assert.Equal(t, code, refusal.Code)
					if want != nil {
						assert.ErrorIs(t, err, want)
					}
					assert.NotErrorIs(t, err, ErrUnknown)
					assert.Empty(t, result)
					if isOver(err) {
						<-ctx.Done()
						assert.ErrorIs(t, context.Cause(ctx), want, "the hold is over for the handler, too")
					} else {
						assert.NoError(t, ctx.Err())
					}
					return err
				})
				assert.Equal(t, 1, b.count(vMint))
				assert.Zero(t, b.count(vGuard))
			})
		})
	}
}

func TestRefusedByTheGuard(t *testing.T) {
	for _, code := range []api.Code{api.EffectMismatch, api.WrongGuard, api.WrongKey, api.InvalidRequest, api.InvalidDPoPProof, api.AuthorityChanged, api.DeadlinePassed, api.NotFound} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vGuard, refuses(code, 0))
				b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					assert.True(t, dpopclient.Refused(err, code), "%v", err)
					assert.NotErrorIs(t, err, ErrUnknown, "the guard said that nothing happened")
				})
				assert.Equal(t, 1, b.count(vGuard))
				assert.Zero(t, b.count(vStatus))
			})
		})
	}
}

// What a guard says about an effect that it will not do again is not an outcome: the authority has that.
func TestARefusalThatLeavesTheOutcomeOpenIsAskedFor(t *testing.T) {
	for _, code := range []api.Code{api.TooLate, api.EffectSettled, api.EffectAlreadyAdmitted, api.OutcomeUnknown, api.Unavailable, api.EffectInFlight} {
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vGuard, func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						b.says(api.NotApplied)(next).ServeHTTP(discard{http.Header{}}, r)
						refuses(code, 0)(nil).ServeHTTP(rw, r)
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

func TestAStatusThatCannotBeReadLeavesTheOutcomeUnknown(t *testing.T) {
	for name, trouble := range map[string]twist{"not found": refuses(api.NotFound, 0), "not this holder": refuses(api.WrongKey, 0), "expired": refuses(api.InvalidToken, 0)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.forever(vStatus, trouble)
				b.forever(vGuard, loses)
				b.once(t, func(ctx context.Context, run *Run) error {
					_, err := run.Do(ctx, b.effect("one"))
					assert.ErrorIs(t, err, ErrUnknown)
					return err
				})
				assert.Equal(t, 1, b.count(vGuard))
			})
		})
	}
}

func TestAStatusIsAskedForAgain(t *testing.T) {
	for name, trouble := range map[string]twist{"cut": drops, "no answer": hangs, "unavailable": refuses(api.Unavailable, 0), "another effect": answers(`{"effect":"x","state":"committed"}`)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.world.once(vStatus, trouble, trouble)
				b.world.once(vGuard, loses)
				b.does(t, func(ctx context.Context, run *Run) {
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
				})
				assert.Equal(t, 3, b.count(vStatus))
				assert.Equal(t, 1, b.count(vGuard))
			})
		})
	}
}

func TestAConflictingKey(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			_, err := run.Do(ctx, b.effect("one"))
			require.NoError(t, err)
			other := b.effect("one")
			other.Amount++
			_, err = run.Do(ctx, other)
			assert.ErrorIs(t, err, ErrConflict)
		})
	})
}

func TestARepetitionNamesWhatItRepeats(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.does(t, func(ctx context.Context, run *Run) {
			e := b.effect("one")
			_, err := run.Do(ctx, e)
			require.NoError(t, err)
			assert.False(t, b.lastMint.Has("repeat_of"))
			e.RepeatOf = reference()
			_, err = run.Do(ctx, e)
			require.NoError(t, err)
			assert.Equal(t, e.RepeatOf, b.lastMint.Get("repeat_of"))
		})
	})
}

func TestOneKeyAskedForManyTimesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.does(t, func(ctx context.Context, run *Run) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					_, err := run.Do(ctx, b.effect("one"))
					assert.NoError(t, err)
				})
			}
			wg.Wait()
		})
		assert.Equal(t, 1, r.effects["one"].applied)
		assert.EqualValues(t, 9, r.effectsLeft)
	})
}

func TestAnEffectOfARunThatIsOverForItsHandler(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		var kept *Run
		b.once(t, func(_ context.Context, run *Run) error {
			kept = run
			return nil
		})
		_, err := kept.Do(context.Background(), b.effect("one"))
		assert.Error(t, err, "a hold does not outlive its handler")
		assert.Zero(t, b.count(vGuard))
	})
}

// Whatever happens to the calls, an effect is applied at most once, and what Do says of it is what the authority has.
func TestDoSaysWhatHappened(t *testing.T) {
	t.Parallel()
	names := []string{"serves", "loses", "drops", "hangs", "admits", "ambiguous", "not applied", "closed", "lapsed", "unavailable", "garbage", "reopens"}
	rapid.Check(t, func(rt *rapid.T) {
		guard := rapid.SliceOfN(rapid.SampledFrom(names), 0, 6).Draw(rt, "guard")
		mint := rapid.SliceOfN(rapid.SampledFrom([]string{"serves", "loses", "drops", "hangs", "reopens"}), 0, 4).Draw(rt, "mint")
		status := rapid.SliceOfN(rapid.SampledFrom([]string{"serves", "drops", "unavailable"}), 0, 4).Draw(rt, "status")
		settled := rapid.SampledFrom([]string{api.Committed, api.NotApplied, api.Ambiguous}).Draw(rt, "settled")
		patience := time.Duration(rapid.IntRange(1, 120).Draw(rt, "patience")) * time.Second
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			twists := map[string]twist{"serves": nil, "loses": loses, "drops": drops, "hangs": hangs, "ambiguous": b.says(api.Ambiguous), "not applied": b.says(api.NotApplied),
				"closed": refuses(api.AdmissionClosed, 0), "lapsed": refuses(api.EffectLapsed, 0), "unavailable": refuses(api.Unavailable, 0), "garbage": answers("{}"),
				"reopens": first(func() { b.setOpen(true) }),
				"admits": func(next http.Handler) http.Handler {
					return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
						time.AfterFunc(20*time.Second, func() { b.settleAll(settled) })
						b.admits(next).ServeHTTP(rw, r)
					})
				}}
			for verb, drawn := range map[string][]string{vGuard: guard, vMint: mint, vStatus: status} {
				for _, name := range drawn {
					b.world.once(verb, twists[name])
				}
			}
			r := b.once(t, func(ctx context.Context, run *Run) error {
				ctx, cancel := context.WithTimeout(ctx, patience)
				defer cancel()
				result, err := run.Do(ctx, b.effect("one"))
				b.with(func() { b.agrees(t, b.runs[run.Reference()].effects["one"], result, err) })
				return err
			})
			if e := r.effects["one"]; e != nil {
				assert.LessOrEqual(t, e.applied, 1)
				assert.LessOrEqual(t, e.admitted, 1)
			}
		})
	})
}

func (w *world) settleAll(outcome string) {
	w.with(func() {
		for _, r := range w.runs {
			for _, e := range r.effects {
				if e.state == "admitted" {
					e.state = outcome
				}
			}
		}
	})
}

func (w *world) agrees(t *testing.T, e *fakeEffect, result Result, err error) {
	switch {
	case err == nil:
		assert.Equal(t, api.Committed, e.state)
		assert.Equal(t, api.Committed, result.Outcome)
	case errors.Is(err, ErrNotApplied):
		assert.Equal(t, api.NotApplied, e.state)
	case errors.Is(err, ErrAmbiguous):
		assert.Equal(t, api.Ambiguous, e.state)
	case errors.Is(err, ErrUnknown):
	default:
		assert.True(t, e == nil || e.state == "minted", "an error that does not say unknown says that nothing happened")
	}
}
