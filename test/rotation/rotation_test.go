package rotation

import (
	"context"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
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
	s := newStage(t)
	l := newLoad(s)
	w := newWatch(s.replicas[0].url, s.replicas[1].url, s.replicas[2].url)
	w.stepped(t)
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); w.run(ctx) }()
	began := time.Now()
	end := l.begin(t, perSecond, 8)
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
