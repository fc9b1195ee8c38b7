package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/pkcs11"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// TestSpeed is `make bench-keyhost`: what the way through the key host costs, against the same library asked directly.
// Both take turns, so that whatever else the machine does meets both.
func TestSpeed(t *testing.T) {
	if os.Getenv("NIGHTWARRANT_BENCH_KEYHOST") == "" {
		t.Skip("make bench-keyhost measures it")
	}
	const callers, rounds, round, perSecond = 16, 5, time.Second, 500
	s, serial := made(t)
	t.Setenv("SOFTHSM2_CONF", filepath.Join(s.dir, "softhsm2.conf"))
	c := s.client(s.start(s.config(serial)))
	direct, err := open(&Config{Module: s.library, Serial: serial, Keys: []Pair{{"01", "02"}}, PIN: pin, Sessions: 1})
	require.NoError(t, err)
	defer direct.close()
	sessions := make(chan pkcs11.SessionHandle, callers)
	for range callers {
		session, err := direct.ctx.OpenSession(direct.slot, pkcs11.CKF_SERIAL_SESSION)
		require.NoError(t, err)
		sessions <- session
	}
	key := direct.served.Load().handles[keyhost.ClassPrivate+"01"]
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), direct.Describe().Pairs[0].PublicKey)
	require.NoError(t, err)
	alone := func(context.Context) ([]byte, error) {
		session := <-sessions
		defer func() { sessions <- session }()
		if err := direct.ctx.SignInit(session, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, key); err != nil {
			return nil, err
		}
		return direct.ctx.Sign(session, digest[:])
	}
	const through, verified, bare = 0, 1, 2
	ways := [3]func(context.Context) error{
		through: func(ctx context.Context) error { return sign(ctx, c) },
		verified: func(ctx context.Context) error {
			signature, err := alone(ctx)
			if err == nil && !ecdsa.Verify(public, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
				err = errors.New("it does not verify")
			}
			return err
		},
		bare: func(ctx context.Context) error {
			_, err := alone(ctx)
			return err
		},
	}
	var signed [len(ways)]float64
	var took [len(ways)][]time.Duration
	for range rounds {
		for i, way := range ways {
			signed[i] += float64(closedLoop(t, callers, round, way)) / (rounds * round).Seconds()
		}
		for i, way := range ways {
			took[i] = append(took[i], openLoop(t, perSecond, round, way)...)
		}
	}
	ms := func(way int, q float64) float64 {
		slices.Sort(took[way])
		return float64(took[way][int(q*float64(len(took[way])-1))].Microseconds()) / 1000
	}
	text, err := json.Marshal(map[string]any{
		"callers": callers, "signs_per_second": signed[through], "direct_verified_per_second": signed[verified], "direct_bare_per_second": signed[bare],
		"ratio": signed[through] / signed[verified], "ratio_to_bare": signed[through] / signed[bare], "open_loop_per_second": perSecond,
		"p50_ms": ms(through, .5), "p99_ms": ms(through, .99), "direct_p50_ms": ms(bare, .5), "direct_p99_ms": ms(bare, .99),
		"p99_added_ms": ms(through, .99) - ms(bare, .99),
	})
	require.NoError(t, err)
	fmt.Println(string(text))
}

// closedLoop is how much so many callers do, each at once again.
func closedLoop(t *testing.T, callers int, d time.Duration, do func(context.Context) error) int64 {
	var n atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(d)
	for range callers {
		all.Go(func() {
			for time.Now().Before(end) {
				if err := do(t.Context()); err != nil {
					t.Error(err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	return n.Load()
}

// openLoop is how long each took that came when it was due, whether or not others were done.
func openLoop(t *testing.T, perSecond int, d time.Duration, do func(context.Context) error) []time.Duration {
	out := make([]time.Duration, int(d.Seconds()*float64(perSecond)))
	var all sync.WaitGroup
	began := time.Now()
	for i := range out {
		due := began.Add(time.Duration(i) * time.Second / time.Duration(perSecond))
		time.Sleep(time.Until(due))
		came := time.Now() // a timer that fires late is the measurement's fault
		all.Go(func() {
			if err := do(t.Context()); err != nil {
				t.Error(err)
			}
			out[i] = time.Since(came)
		})
	}
	all.Wait()
	return out
}
