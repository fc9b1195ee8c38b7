package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPercentile(t *testing.T) {
	t.Parallel()
	assert.Zero(t, percentile(nil, 99))
	assert.Equal(t, time.Duration(7), percentile([]time.Duration{7}, 0))
	assert.Equal(t, time.Duration(7), percentile([]time.Duration{7}, 100))
	assert.Equal(t, time.Duration(2), percentile([]time.Duration{1, 2, 3}, 50))
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(i + 1)
	}
	assert.Equal(t, time.Duration(50), percentile(hundred, 50))
	assert.Equal(t, time.Duration(99), percentile(hundred, 99))
}

// The definition itself: at least p of 100 do not exceed it, and of anything smaller fewer do.
func TestPercentileIsTheSmallestThatCoversEnough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, p := rapid.IntRange(1, 300).Draw(t, "n"), rapid.IntRange(1, 100).Draw(t, "p")
		sorted := make([]time.Duration, n)
		for i := range sorted {
			sorted[i] = time.Duration(i)
		}
		covered := int(percentile(sorted, p)) + 1
		if covered*100 < n*p || (covered-1)*100 >= n*p {
			t.Fatalf("%d of %d for %d", covered, n, p)
		}
	})
}

func TestScheduleIsEvenAndDoesNotDrift(t *testing.T) {
	t.Parallel()
	assert.Empty(t, schedule(0, 300))
	due := schedule(901, 300)
	assert.Zero(t, due[0])
	assert.Equal(t, time.Second, due[300])
	assert.Equal(t, 3*time.Second, due[900])
	for i := range due[1:] {
		gap := due[i+1] - due[i]
		assert.InDelta(t, time.Second/300, gap, 1)
	}
}

func TestReadTPS(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"", "tps: 5", "latency tps = 5"} {
		_, err := readTPS([]byte(wrong))
		require.Error(t, err, wrong)
	}
	got, err := readTPS([]byte("pgbench (15.1)\nlatency average = 3.1 ms\ntps = 5416.25 (without initial connection time)\n"))
	require.NoError(t, err)
	assert.InEpsilon(t, 5416.25, got, 1e-9)
}

func TestReadCPU(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"", "1 (x) S 1 2", "1 (x) S 1 1 1 0 -1 4194304 1 0 0 0 x 50 0"} {
		_, err := readCPU(wrong)
		require.ErrorIs(t, err, errNoCPU, wrong)
	}
	// A process may be named anything, also like more fields.
	got, err := readCPU("17 (a) S 9 9) R 1 17 17 0 -1 4194304 500 0 1 0 250 50 3 4 20 0 1 0 100 0 0")
	require.NoError(t, err)
	assert.Equal(t, 3*time.Second, got)
	_, err = cpuOf(-1)
	require.Error(t, err)
}

func TestAPasswordIsNotInTheListOfProcesses(t *testing.T) {
	t.Parallel()
	at, password, err := withoutPassword("postgres://postgres:secret@/db?host=%2Ftmp%2Fx")
	require.NoError(t, err)
	assert.Equal(t, "secret", password)
	assert.Equal(t, "postgres://postgres@/db?host=%2Ftmp%2Fx", at)
}

func TestSidesStopAtAnError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	calls := 0
	_, err := sides(time.Now, func() error { calls++; return broken })
	require.ErrorIs(t, err, broken)
	assert.Equal(t, 1, calls)
}

// Every call counts the same under a clock that moves as it is told.
func TestSidesTakeTheMedianOfOneCall(t *testing.T) {
	t.Parallel()
	var clock time.Time
	n := 0
	slow := func() error {
		if n++; n%(10*inBatch) == 0 { // one batch of ten is interrupted
			clock = clock.Add(time.Second)
		}
		clock = clock.Add(30 * time.Microsecond)
		return nil
	}
	quick := func() error { clock = clock.Add(10 * time.Microsecond); return nil }
	took, err := sides(func() time.Time { return clock }, quick, slow)
	require.NoError(t, err)
	assert.Equal(t, []time.Duration{10 * time.Microsecond, 30 * time.Microsecond}, took)
}

// What is timed as a proof's check is a check that can fail.
func TestTheExampleProofIsCheckedForEverything(t *testing.T) {
	t.Parallel()
	proof, expect, err := exampleProof(time.Now())
	require.NoError(t, err)
	_, err = capability.CheckProof(proof, expect)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*capability.Expect){
		"method": func(e *capability.Expect) { e.Method = "GET" },
		"url":    func(e *capability.Expect) { e.URL += "x" },
		"token":  func(e *capability.Expect) { e.AccessToken += "x" },
		"holder": func(e *capability.Expect) { e.Holder[0] ^= 1 },
		"time":   func(e *capability.Expect) { e.Now = e.Now.Add(-48 * time.Hour) },
	} {
		other := expect
		spoil(&other)
		_, err := capability.CheckProof(proof, other)
		require.Error(t, err, name)
	}
	require.ErrorIs(t, expect.Nonce("another"), errWrongNonce)
}

func TestRawSignaturesAreRight(t *testing.T) {
	t.Parallel()
	r, err := newRaw([]byte("message"))
	require.NoError(t, err)
	require.NoError(t, r.verify())
	require.NoError(t, r.sign())
	r.message = []byte("another")
	require.ErrorIs(t, r.verify(), errWrongSignature)
}

// answering is a server that refuses as the function says: a code, or "" for yes.
func answering(t *testing.T, code func(n int64) string) *httptest.Server {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch c := code(n.Add(1)); c {
		case "":
			_, _ = w.Write([]byte(`{"access_token":"x"}`))
		case "junk":
			w.WriteHeader(http.StatusBadGateway)
			_, _ = w.Write([]byte("<html>"))
		case "cut":
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(api.Problem{Code: api.Code(c)})
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func requestsTo(n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = []byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
	}
	return out
}

func TestEveryRequestIsSentOnceAndCounted(t *testing.T) {
	t.Parallel()
	codes := []string{"", "held", "", "junk", "cut"}
	s := answering(t, func(n int64) string { return codes[n%5] })
	got, err := drive(t.Context(), &run{address: s.Listener.Addr().String(), requests: requestsTo(500)})
	require.NoError(t, err)
	assert.Equal(t, 200, got.done())
	assert.Equal(t, 500, got.sent())
	assert.Equal(t, map[string]int{"held": 100, "status_502": 100, noAnswer: 100}, got.refused)
	assert.IsNonDecreasing(t, got.latencies)
}

// Whatever order the connections come in, an answer stands where its request stood.
func TestAnswersAreKeptByRequest(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := r.URL.Path[1:]
		if strings.HasSuffix(n, "3") {
			w.WriteHeader(http.StatusConflict)
		}
		_, _ = w.Write([]byte(n))
	}))
	t.Cleanup(s.Close)
	requests := requestsTo(300)
	for i := range requests {
		requests[i] = fmt.Appendf(nil, "POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", i)
	}
	r := &run{address: s.Listener.Addr().String(), requests: requests, keep: true}
	got, err := drive(t.Context(), r)
	require.NoError(t, err)
	require.Len(t, got.answers, len(requests))
	for i, answer := range got.answers {
		if i%10 == 3 {
			assert.Nil(t, answer, i)
		} else {
			assert.Equal(t, fmt.Sprint(i), string(answer))
		}
	}
	assert.Equal(t, 30, got.refused["status_409"])
	assert.Equal(t, len(requests), r.taken())

	r = &run{address: r.address, requests: requests}
	got, err = drive(t.Context(), r)
	require.NoError(t, err)
	assert.Nil(t, got.answers)
}

// What there was no time for can be claimed later; what was perhaps sent cannot.
func TestOnlyRequestsThatWereNeverSentRemain(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	s := answering(t, func(int64) string { sent.Add(1); return "" })
	r := &run{address: s.Listener.Addr().String(), requests: requestsTo(1 << 16), limit: time.Millisecond}
	_, err := drive(t.Context(), r)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, int64(r.taken()), sent.Load())
	assert.Less(t, r.taken(), len(r.requests))
}

func TestRoundsAddUp(t *testing.T) {
	t.Parallel()
	var all tally
	all.add(tally{latencies: []time.Duration{2, 4}, refused: map[string]int{"held": 1}, elapsed: time.Second})
	all.add(tally{latencies: []time.Duration{1, 3, 5}, refused: map[string]int{"held": 2, noAnswer: 1}, elapsed: 4 * time.Second})
	assert.Equal(t, []time.Duration{1, 2, 3, 4, 5}, all.latencies)
	assert.Equal(t, map[string]int{"held": 3, noAnswer: 1}, all.refused)
	assert.Equal(t, 9, all.sent())
	assert.InDelta(t, 1.0, all.perSecond(), 1e-9)
}

// An open loop counts from when a request was due: what waits behind a server that stalls is late.
func TestLatencyIsCountedFromWhenARequestWasDue(t *testing.T) {
	t.Parallel()
	const stall = 50 * time.Millisecond
	stalled := make(chan struct{})
	s := answering(t, func(n int64) string {
		if n == inFlight { // every connection has sent one, and all were due before
			time.AfterFunc(stall, func() { close(stalled) })
		}
		<-stalled
		return ""
	})
	n := 2 * inFlight
	got, err := drive(t.Context(), &run{address: s.Listener.Addr().String(), requests: requestsTo(n), due: make([]time.Duration, n)})
	require.NoError(t, err)
	require.Equal(t, n, got.done())
	assert.GreaterOrEqual(t, got.latencies[0], stall, "the second half was sent after the stall and was due before it")
}

func TestDriveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := answering(t, func(int64) string { return "" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := drive(ctx, &run{address: s.Listener.Addr().String(), requests: requestsTo(1), due: []time.Duration{time.Hour}})
	require.Error(t, err)
	address, err := freeport.Address()
	require.NoError(t, err)
	_, err = drive(t.Context(), &run{address: address, requests: requestsTo(1)})
	require.Error(t, err, "nobody listens")
}

// Each request is a claim of its own run with an assertion, a key and a proof of its own.
func TestRequestsShareNothingButTheNonce(t *testing.T) {
	t.Parallel()
	replica := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(api.HeaderNonce, "fresh") }))
	defer replica.Close()
	defer http.DefaultClient.CloseIdleConnections()
	issuer, err := dev.NewIssuer("http://127.0.0.1:9", "ES256", "")
	require.NoError(t, err)
	const origin = "http://127.0.0.1:8"
	target, err := newTarget(origin, replica.URL, issuer)
	require.NoError(t, err)
	made, with, err := target.claims(t.Context(), []string{"run-1", "run-2"})
	require.NoError(t, err)
	keys, assertions := map[capability.Thumbprint]bool{}, map[string]bool{}
	for i, raw := range made {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		require.NoError(t, err)
		require.NoError(t, r.ParseForm())
		assert.Equal(t, []string{"run-1", "run-2"}[i], r.PostForm.Get("subject_token"))
		assertions[r.PostForm.Get("client_assertion")] = true
		nonce := func(n string) error { assert.Equal(t, "fresh", n); return nil }
		p, err := capability.CheckProof(r.Header.Get(api.HeaderProof), capability.Expect{Method: "POST", URL: origin + api.PathToken, Nonce: nonce, Now: time.Now()})
		require.NoError(t, err)
		assert.Equal(t, with[i].Thumbprint(), p.Key)
		keys[p.Key] = true
	}
	assert.Len(t, keys, 2)
	assert.Len(t, assertions, 2)
}

func TestTooManyRefusalsAreAFailureThatNamesThem(t *testing.T) {
	t.Parallel()
	b := &bench{sent: 3000, failed: 3, result: &Result{Refused: map[string]int{"held": 3}}}
	require.NoError(t, b.judge())
	b.failed++
	require.ErrorContains(t, b.judge(), "4 of 3000 requests were refused, more than one in a thousand: held 3")
}

func TestAMissedGoalIsStated(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	S2{Claims: 100, Floor: 1000, By: "pgbench", Ratio: 0.1, Goal: goalS2}.print(&out)
	S3{Ratio: 2, Goal: goalS3}.print(&out)
	S5{Ratio: 0.99, Goal: goalS5}.print(&out)
	assert.NotContains(t, out.String(), "CPU each", "where nobody knows it, nothing is said")
	cpu := 321.0
	S5{Ratio: 1, Goal: goalS5, ServerUS: &cpu}.print(&out)
	S9{P99: 30, Goal: 30}.print(&out)
	S10{Ratio: 1.9, Goal: goalS10}.print(&out)
	assert.Contains(t, out.String(), "(321 µs of the server's CPU each)")
	assert.Equal(t, 3, strings.Count(out.String(), "MISSED"))
	assert.Equal(t, 3, strings.Count(out.String(), "is met"))
}
