package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	assertion := func(context.Context) (string, error) { return "", nil }
	for name, c := range map[string]Config{
		"nothing":       {},
		"no authority":  {Assertion: assertion, Source: newQueue()},
		"no URL":        {Authority: "authority.example", Assertion: assertion, Source: newQueue()},
		"other scheme":  {Authority: "ftp://authority.example", Assertion: assertion, Source: newQueue()},
		"with password": {Authority: "https://u:p@authority.example", Assertion: assertion, Source: newQueue()},
		"no assertion":  {Authority: "https://authority.example", Source: newQueue()},
		"no source":     {Authority: "https://authority.example", Assertion: assertion},
	} {
		_, err := New(c)
		assert.Error(t, err, name)
	}
}

func TestARunFromClaimToReceipt(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		called := 0
		r := b.once(t, func(ctx context.Context, run *Run) error {
			called++
			assert.Equal(t, "ack", b.nextTold(t), "acknowledged before the work begins")
			assert.EqualValues(t, 1, run.Fence())
			assert.EqualValues(t, 10, run.Budget().Effects)
			assert.False(t, run.WrapUp())
			assert.Equal(t, time.Hour, run.Left())
			deadline, ok := ctx.Deadline()
			assert.True(t, ok)
			assert.Equal(t, time.Hour, time.Until(deadline))
			assert.NoError(t, ctx.Err())
			return nil
		})
		assert.Equal(t, 1, called)
		assert.Equal(t, "succeeded", r.state)
		assert.Equal(t, 1, r.settles)
		assert.Equal(t, 2, b.count(vClaim), "the first claim of all meets one nonce challenge")
		assert.Equal(t, 1, b.count(vSettle))
		assert.Zero(t, b.count(vRenew))
	})
}

// Case 63: a client that forgets the nonce of a good answer pays two trips for each call.
func TestOnlyTheFirstRequestIsChallenged(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		const runs = 5
		for range runs {
			b.q.push(b.addRun().ref)
		}
		close(b.q.messages)
		require.ErrorIs(t, b.worker(t).Run(t.Context(), nothing), errEmpty)
		assert.Equal(t, runs+1, b.count(vClaim))
		assert.Equal(t, runs, b.count(vSettle))
	})
}

// Only these say that nobody needs this message any more.
var over = []api.Code{api.RunEnded, api.UnknownRun, api.DeadlinePassed, api.AuthorityChanged, api.ConsentEnded}

func TestEveryRefusalOfAClaimHasItsAnswer(t *testing.T) {
	for _, code := range api.Codes() {
		if code == api.UseDPoPNonce {
			continue // TestAlwaysChallengedClaim
		}
		t.Run(string(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.once2(t, code)
			})
		})
	}
}

// once2 refuses one claim with a code: the run is then acknowledged, or delivered again and worked on.
func (b *bench) once2(t *testing.T, code api.Code) {
	r := b.addRun()
	b.world.once(vClaim, refuses(code, 0))
	b.q.push(r.ref)
	b.starts(t, b.worker(t), nothing)
	first := b.nextTold(t)
	if slices.Contains(over, code) {
		assert.Equal(t, "ack", first)
		time.Sleep(time.Hour)
		assert.Equal(t, "queued", b.state(r))
		return
	}
	require.True(t, strings.HasPrefix(first, "nak "), first)
	delay, err := time.ParseDuration(strings.TrimPrefix(first, "nak "))
	require.NoError(t, err)
	assert.GreaterOrEqual(t, delay, time.Second)
	assert.LessOrEqual(t, delay, 5*time.Second)
	assert.Equal(t, "ack", b.nextTold(t))
	synctest.Wait()
	assert.Equal(t, "succeeded", b.state(r), "the worker recovers")
}

func TestAfterARefusedClaim(t *testing.T) {
	for _, c := range []struct {
		name  string
		twist twist
		told  string
		rest  time.Duration // until this worker asks for another run
	}{
		{"held", refuses(api.Held, 7*time.Second), "nak 7s", 0},
		{"lane uncertain", refuses(api.LaneUncertain, 3*time.Second), "nak 3s", 0},
		{"closed", refuses(api.AdmissionClosed, 0), "nak 1s", time.Second},
		{"closed for long", refuses(api.AdmissionClosed, 20*time.Second), "nak 20s", 20 * time.Second},
		{"unavailable", refuses(api.Unavailable, 0), "nak 1s", time.Second},
		{"outcome unknown", refuses(api.OutcomeUnknown, 0), "nak 1s", time.Second},
		{"assertion owned by another key", refuses(api.AssertionBound, 0), "nak 1s", time.Minute},
		{"worker refused", refuses(api.InvalidClient, 0), "nak 1s", refusedRest},
		{"cut off", drops, "nak 1s", time.Second},
		{"no answer", hangs, "nak 1s", 11 * time.Second},
		{"no JSON", answers("<html>"), "nak 1s", time.Second},
		{"no run", answers(`{"access_token":"x","token_type":"DPoP"}`), "nak 1s", time.Second},
		{"another type of token", answers(`{"access_token":"x","token_type":"Bearer","run":{"fence":1,"lease_ms":9,"remaining_ms":9}}`), "nak 1s", time.Second},
		{"no fence", answers(`{"access_token":"x","token_type":"DPoP","run":{"lease_ms":9,"remaining_ms":9}}`), "nak 1s", time.Second},
		{"no time", answers(`{"access_token":"x","token_type":"DPoP","run":{"fence":1,"lease_ms":0,"remaining_ms":9}}`), "nak 1s", time.Second},
		{"more time than there is", answers(`{"access_token":"x","token_type":"DPoP","run":{"fence":1,"lease_ms":9,"remaining_ms":9223372036854775807}}`), "nak 1s", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				var first, second time.Time
				b.world.once(vClaim, func(next http.Handler) http.Handler {
					b.with(func() { first = time.Now() })
					return c.twist(next)
				}, func(next http.Handler) http.Handler {
					b.with(func() { second = time.Now() })
					return next
				})
				b.q.push(b.addRun().ref)
				b.q.push(b.addRun().ref)
				b.starts(t, b.worker(t), nothing)
				assert.Equal(t, c.told, b.nextTold(t))
				assert.Equal(t, "ack", b.nextTold(t))
				b.with(func() { assert.Equal(t, c.rest, second.Sub(first)) })
				time.Sleep(time.Hour)
			})
		})
	}
}

// Case 65: an endless loop with a server that always challenges.
func TestAlwaysChallengedClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.forever(vClaim, challenges("DPoP"))
		b.q.push(b.addRun().ref)
		stop := b.starts(t, b.worker(t), nothing)
		assert.Equal(t, "nak 1s", b.nextTold(t))
		stop()
		assert.Equal(t, 2, b.count(vClaim), "one retry")
	})
}

// challenges always asks for another nonce.
func challenges(scheme string) twist {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			status := http.StatusBadRequest
			if r.Header.Get("Authorization") != "" {
				status = http.StatusUnauthorized
				rw.Header().Set("WWW-Authenticate", scheme+` error="use_dpop_nonce"`)
			}
			rw.Header().Set(api.HeaderNonce, reference())
			writeRefusal(rw, api.Refuse(api.UseDPoPNonce), status)
		})
	}
}

func TestNoAssertion(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		calls := 0
		b.config.Assertion = func(context.Context) (string, error) {
			if calls++; calls == 1 {
				return "", errors.New("the file is being replaced")
			}
			return "workload-1", nil
		}
		b.q.push(b.addRun().ref)
		b.starts(t, b.worker(t), nothing)
		assert.Equal(t, "nak 1s", b.nextTold(t))
		assert.Equal(t, "ack", b.nextTold(t))
	})
}

func TestOneKeyForEachAssertion(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.starts(t, b.worker(t), nothing)
		claims := func(n int) {
			for range n {
				b.q.push(b.addRun().ref)
				assert.Equal(t, "ack", b.nextTold(t))
			}
			synctest.Wait()
		}
		claims(3)
		b.with(func() { assert.Len(t, b.keys, 1) })
		b.token.Store("workload-2")
		claims(3)
		b.with(func() { assert.Len(t, b.keys, 2) })
		assert.Equal(t, 7, b.count(vClaim), "a new key goes on with the nonce of the old one")
	})
}

func TestARunKeepsTheKeyThatClaimedIt(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.once(t, func(ctx context.Context, run *Run) error {
			b.token.Store("workload-2")
			time.Sleep(2 * time.Minute)
			_, err := run.Do(ctx, b.effect("one"))
			return err
		})
		assert.Equal(t, "succeeded", r.state)
		assert.Len(t, b.keys, 1)
	})
}

func TestASecondWorkerMayNotUseTheSameAssertion(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.starts(t, b.worker(t), nothing)
		b.q.push(b.addRun().ref)
		assert.Equal(t, "ack", b.nextTold(t))
		other := newQueue()
		b.config.Source = other
		b.starts(t, b.worker(t), nothing)
		other.push(b.addRun().ref)
		assert.Equal(t, "nak 1s", <-other.told)
	})
}

// Threat 5: a redelivered message finds its run claimed, and later ended.
func TestRedelivered(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		w, called := b.worker(t), 0
		handler := func(ctx context.Context, _ *Run) error {
			called++
			sleep(ctx, 90*time.Second)
			return nil
		}
		r := b.addRun()
		b.starts(t, w, handler)
		b.q.push(r.ref)
		assert.Equal(t, "ack", b.nextTold(t))
		b.starts(t, w, handler)
		b.q.push(r.ref)
		assert.Equal(t, "nak 5s", b.nextTold(t), "this very worker is at it")
		for last := ""; last != "ack"; last = b.nextTold(t) {
		}
		assert.Equal(t, 1, called)
		assert.Equal(t, "succeeded", b.state(r))
		assert.EqualValues(t, 1, r.fence)
	})
}

func TestRedeliveredToAnother(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r, entered := b.addRun(), make(chan bool, 1)
		b.starts(t, b.worker(t), func(ctx context.Context, _ *Run) error {
			entered <- true
			sleep(ctx, 5*time.Minute)
			return nil
		})
		b.q.push(r.ref)
		<-entered
		<-b.q.told
		other := newQueue()
		b.config.Source = other
		b.token.Store("workload-2")
		b.starts(t, b.worker(t), func(context.Context, *Run) error {
			assert.Fail(t, "two workers on one run")
			return nil
		})
		other.push(r.ref)
		assert.Equal(t, "nak 30s", <-other.told, "as long as the lease lasts")
		for last := ""; last != "ack"; last = <-other.told {
		}
		assert.Equal(t, "succeeded", b.state(r))
	})
}

func TestALostAnswerOfAClaim(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		b.world.once(vClaim, nil, loses) // the challenge first
		b.q.push(r.ref)
		b.starts(t, b.worker(t), func(_ context.Context, run *Run) error {
			assert.EqualValues(t, 1, run.Fence(), "the same key gets the same fence")
			return nil
		})
		assert.Equal(t, "nak 1s", b.nextTold(t))
		assert.Equal(t, "ack", b.nextTold(t))
		synctest.Wait()
		assert.Equal(t, "succeeded", b.state(r))
	})
}

func TestALostAcknowledgementChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		b.q.messages <- &fakeMessage{q: b.q, reference: r.ref, lost: true}
		close(b.q.messages)
		require.ErrorIs(t, b.worker(t).Run(t.Context(), nothing), errEmpty)
		assert.Equal(t, "succeeded", r.state)
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b.q.push(b.addRun().ref)
		require.NoError(t, b.worker(t).Run(ctx, nothing))
		assert.Len(t, b.q.messages, 1, "nothing is pulled")
	})
}

func TestStoppedInTheMiddle(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		entered := make(chan bool, 1)
		stop := b.starts(t, b.worker(t), func(ctx context.Context, _ *Run) error {
			entered <- true
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), context.Canceled)
			return ctx.Err()
		})
		b.q.push(r.ref)
		<-entered
		stop()
		assert.Equal(t, "claimed", r.state, "neither failed nor succeeded: the next worker takes it")
		assert.Zero(t, b.count(vSettle))

		time.Sleep(time.Minute)
		b.with(func() { r.state = "queued" }) // as the reaper does
		b.starts(t, b.worker(t), func(_ context.Context, run *Run) error {
			assert.EqualValues(t, 2, run.Fence())
			return nil
		})
		b.token.Store("workload-2")
		b.q.push(r.ref)
		<-b.q.told
		assert.Equal(t, "ack", b.nextTold(t))
		synctest.Wait()
		assert.Equal(t, "succeeded", b.state(r))
	})
}

func TestStoppedAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		entered := make(chan bool, 1)
		stop := b.starts(t, b.worker(t), func(ctx context.Context, _ *Run) error {
			entered <- true
			<-ctx.Done()
			return nil // what was to be done is done
		})
		b.world.once(vSettle, refuses(api.AdmissionClosed, 0))
		b.q.push(r.ref)
		<-entered
		stop()
		assert.Equal(t, "succeeded", r.state)
	})
}

func TestStoppingIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		r := b.addRun()
		entered := make(chan bool, 1)
		b.forever(vSettle, hangs)
		stop := b.starts(t, b.worker(t), func(ctx context.Context, _ *Run) error {
			entered <- true
			<-ctx.Done()
			return nil
		})
		b.q.push(r.ref)
		<-entered
		begin := time.Now()
		stop()
		assert.Equal(t, stopGrace, time.Since(begin))
		assert.Equal(t, "claimed", r.state)
	})
}

func TestNothingSecretPrints(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		var logs bytes.Buffer
		b.config.Logger = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
		b.token.Store("workload-hunter2")
		b.world.once(vClaim, nil, loses)
		b.world.once(vGuard, loses)
		b.world.once(vSettle, loses)
		w := b.worker(t)
		stop := b.starts(t, w, func(ctx context.Context, run *Run) error {
			time.Sleep(time.Minute)
			_, err := run.Do(ctx, b.effect("one"))
			require.NoError(t, err)
			for _, v := range []any{run, w, reflect.ValueOf(run).Elem().Interface(), reflect.ValueOf(w).Elem().Interface(), run.hold, run.identity, run.identity.authority, []any{run}, map[string]any{"run": run}} {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
					fmt.Fprintf(&logs, verb, v)
				}
			}
			marshalled, err := json.Marshal([]any{run, w})
			require.NoError(t, err)
			logs.Write(marshalled)
			b.config.Logger.Info("x", "run", run, "worker", w)
			return nil
		})
		b.q.push(b.addRun().ref)
		<-b.q.told
		<-b.q.told
		time.Sleep(time.Hour)
		stop()
		assert.False(t, strings.Contains(logs.String(), "hunter2"))
		assert.False(t, strings.Contains(logs.String(), "eyJ"), "no token and no proof")
		assert.False(t, strings.Contains(logs.String(), "65794a"), "not in hexadecimal either")
		assert.Contains(t, logs.String(), "settled")
	})
}

// The same over real sockets.
func TestOverHTTP(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	authority, guard := httptest.NewServer(b.world), httptest.NewServer(b.world)
	defer authority.Close()
	defer guard.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	b.issuer, b.guardURI = authority.URL, guard.URL+"/ledger"
	b.config.Authority, b.config.HTTP = authority.URL, &http.Client{Transport: transport}
	b.world.once(vGuard, loses, drops)
	r := b.once(t, func(ctx context.Context, run *Run) error {
		for _, key := range []string{"one", "two", "three"} {
			if _, err := run.Do(ctx, b.effect(key)); err != nil {
				return err
			}
		}
		return nil
	})
	assert.Equal(t, "succeeded", r.state)
	for _, key := range []string{"one", "two", "three"} {
		assert.Equal(t, 1, r.effects[key].applied, key)
	}
}
