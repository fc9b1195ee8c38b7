package rotation

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/keys"
)

// size is a number of the long form, which `make rotation-long` gives.
func size(t testing.TB, name string, short int) int {
	text := os.Getenv(name)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// Rotations under load: nothing that is valid is refused, and at no instant two
// replicas publish different keys (A11, P27).
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	rotations, perSecond := size(t, "NIGHTWARRANT_ROTATIONS", 2), size(t, "NIGHTWARRANT_ROTATION_CLAIMS", 20)
	s := newStage(t, waits)
	l := newLoad(s, 8)
	w := newWatch(s.replicas[0].url, s.replicas[1].url, s.replicas[2].url)
	w.stepped(t)
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); w.run(ctx) }()
	began := time.Now()
	end := l.begin(t, perSecond)
	for range rotations {
		s.rotate(func() { w.stepped(t) })
	}
	took := time.Since(began)
	end()
	stop()
	<-watched

	assert.Empty(t, l.refusals())
	assert.Empty(t, differences(w.readings, w.order))
	assert.Len(t, w.order, 1+3*rotations)
	for i, set := range w.order {
		assert.NotContains(t, w.order[:i], set, "each step is seen")
	}
	assert.Greater(t, len(w.readings), 10*rotations)
	state, err := authority.ReadKeys(t.Context(), s.operator, true)
	require.NoError(t, err)
	require.Len(t, state.Generations, 1+rotations)
	current, _ := state.Of(keys.Current)
	assert.EqualValues(t, 1+rotations, current.Registered.Generation)
	t.Logf("%d rotations in %s: %d claims (%.0f/s), %d effects, %d readings of keys (%d did not arrive), %d nonce challenges, %d answers that said try again", rotations, took.Round(time.Second),
		l.claims.Load(), float64(l.claims.Load())/took.Seconds(), s.Count(`SELECT count(*) FROM nw.effects WHERE state = 'committed'`), len(w.readings), w.failed, l.challenges.Load(), l.busy.Load())
}

// Fifty restarts, in every state of a rotation, leave the keys that were
// registered; a replica with any other bundle does not start (A11, B13).
func TestRestartsLeaveTheRegisteredKeys(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	operator := h.DB.Pool(t, "nw_operator")
	set := func() string { return string(h.Send(h.Request("GET", api.PathJWKS, "", nil)).Body) }
	start := func(dir string) (*authority.Authority, error) {
		b, err := keys.Open(dir, h.Identity)
		require.NoError(t, err)
		return authority.New(context.Background(), authority.Config{Pool: h.Pool, Bundle: b, Gate: h.Gate, Directory: h.People, Issuer: h.URL, Lease: authority.MinLease, Log: slog.Default()})
	}
	restarts := func(n int, dirs ...string) {
		t.Helper()
		for i := range n {
			a, err := start(dirs[i%len(dirs)])
			require.NoError(t, err)
			jwks, _, err := a.JWKS(t.Context())
			require.NoError(t, err)
			require.Equal(t, set(), string(jwks))
		}
	}
	refuses := func(dirs ...string) {
		t.Helper()
		for _, dir := range dirs {
			_, err := start(dir)
			var wrong *keys.MaterialError
			require.ErrorAs(t, err, &wrong, dir)
		}
	}
	first, second, foreign, stray := h.KeysDir, h.KeysDir+".2", h.KeysDir+".foreign", h.KeysDir+".stray"
	_, err := keys.Init(foreign, h.Identity)
	require.NoError(t, err)
	next, err := keys.Prepare(first, h.Identity, second, 1, 1, nil)
	require.NoError(t, err)
	_, err = keys.Prepare(first, h.Identity, stray, 1, 1, nil)
	require.NoError(t, err)
	restarts(20, first, second, stray)
	refuses(foreign)
	done, err := authority.Rotate(t.Context(), operator, authority.Publish, 1, next)
	require.NoError(t, err)
	require.Equal(t, "ok", done.Verdict)
	restarts(20, first, second)
	refuses(foreign, stray)
	verdict, _, err := authority.CutOff(t.Context(), operator, next.ClusterID, 2)
	require.NoError(t, err)
	require.Equal(t, "ok", verdict)
	b, err := keys.Open(second, h.Identity)
	require.NoError(t, err)
	_, err = h.Authority.Hold(t.Context(), b)
	require.NoError(t, err)
	restarts(10, second)
	refuses(first, foreign, stray)
	assert.EqualValues(t, 1, h.Count(`SELECT count(*) FROM nw.key_generations WHERE ended_at IS NULL`))
	assert.EqualValues(t, 2, h.Count(`SELECT count(*) FROM nw.key_generations`))
}
