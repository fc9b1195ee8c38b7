package rotation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/keys"
)

// Without its waits a rotation refuses what is valid, and that is seen.
func TestARotationThatDoesNotWaitIsCaught(t *testing.T) {
	t.Parallel()
	long := authority.Waits{Cache: time.Minute, Margin: time.Second, Lifetime: time.Minute}
	for name, c := range map[string]struct{ old, with, seen string }{
		"retired too early":   {"CASE p_step WHEN 'activate' THEN n.usable_at WHEN 'retire' THEN p.needed_until END", "t", "invalid_token"},
		"activated too early": {"WHEN 'activate' THEN n.usable_at", "WHEN 'activate' THEN t", "a relying party"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, long)
			s.plant("rotate_keys", c.old, c.with)
			l := newLoad(s, 4)
			end := l.begin(t, 20)
			next := s.turn(func() {})
			if strings.HasPrefix(name, "retired") {
				s.step(authority.Retire, next.Generation, next)
			}
			require.Eventually(t, func() bool { return strings.Contains(strings.Join(l.refusals(), "\n"), c.seen) }, within, 50*time.Millisecond)
			end()
		})
	}
}

// A replica that published from its own memory would differ from the others until it hears of a step, and that is seen.
func TestAReplicaThatPublishesFromMemoryIsCaught(t *testing.T) {
	t.Parallel()
	s := newStage(t, waits)
	remembered := s.replicas[2].authority.Keys().JWKS()
	memory := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(remembered) }))
	defer memory.Close()
	w := newWatch(s.replicas[0].url, memory.URL)
	w.stepped(t)
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() { defer close(watched); w.run(ctx) }()
	found := func() []string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return differences(w.readings, w.order)
	}
	read := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.readings, func(r reading) bool { return r.replica == 1 })
	}
	require.Eventually(t, read, within, 10*time.Millisecond)
	assert.Empty(t, found(), "nothing has changed yet")
	next := s.prepare()
	// Not rolled out anywhere: it is published all the same, and the replica that has not heard of it is behind.
	s.step(authority.Publish, next.Generation-1, next)
	w.stepped(t)
	assert.Eventually(t, func() bool { return len(found()) > 0 }, within, 10*time.Millisecond)
	stop()
	<-watched
}

// A generation is activated only when every replica that reports has proved to hold it.
func TestNothingIsActivatedThatAReplicaLacks(t *testing.T) {
	t.Parallel()
	s := newStage(t, waits)
	next := s.prepare()
	for _, r := range s.replicas[:2] {
		s.project(r)
	}
	s.step(authority.Publish, 1, next)
	var last authority.Stepped
	require.Eventually(t, func() bool {
		var err error
		last, err = authority.Rotate(t.Context(), s.operator, authority.Activate, 1, next)
		require.NoError(t, err)
		require.NotEqual(t, "ok", last.Verdict)
		return last.Verdict == "lacking" && last.Lacking == 1
	}, within, 50*time.Millisecond, "%+v", &last)
	s.project(s.replicas[2])
	s.step(authority.Activate, 1, next)
	for _, r := range s.replicas {
		require.Eventually(t, func() bool { return r.authority.Keys().Identity().KID == next.KID }, within, 10*time.Millisecond)
	}
}

// Steps out of order, of others, or from what is not so any more change nothing.
func TestStepsAreCompareAndSet(t *testing.T) {
	t.Parallel()
	s := newStage(t, waits)
	first := s.Bundle.Identity()
	take := func(want string, step authority.Step, current int64, next keys.Identity) {
		t.Helper()
		done, err := authority.Rotate(t.Context(), s.operator, step, current, next)
		require.NoError(t, err)
		assert.Equal(t, want, done.Verdict)
	}
	next := s.prepare()
	take("stale", authority.Activate, 1, next)
	take("stale", authority.Withdraw, 1, next)
	take("again", authority.Retire, 1, first)
	foreign := next
	foreign.ClusterID[0] ^= 1
	take("foreign", authority.Publish, 1, foreign)
	foreign = next
	foreign.AuditKey[0] ^= 1
	take("foreign", authority.Publish, 1, foreign)
	reused := next
	reused.NonceCheck = first.NonceCheck
	take("foreign", authority.Publish, 1, reused)
	reused = first
	reused.Generation = 2
	take("foreign", authority.Publish, 1, reused)
	take("stale", authority.Publish, 2, next)
	take("ok", authority.Publish, 1, next)
	take("again", authority.Publish, 1, next)
	other := next
	other.ProvenanceDigest[0] ^= 1
	take("unfinished", authority.Publish, 1, other)
	take("too_early", authority.Activate, 1, next)
	take("ok", authority.Withdraw, 1, next)
	take("again", authority.Withdraw, 1, next)
	take("foreign", authority.Publish, 1, next)
	take("not_found", "undo", 1, next)

	s.bundle = s.KeysDir
	third := s.prepare()
	require.EqualValues(t, 3, third.Generation, "a number is never used twice")
	for _, r := range s.replicas {
		s.project(r)
	}
	s.step(authority.Publish, 1, third)
	s.step(authority.Activate, 1, third)
	take("again", authority.Activate, 1, third)
	take("too_early", authority.Retire, 3, third)
	fourth := third
	fourth.Generation++
	take("unfinished", authority.Publish, 3, fourth)
	s.step(authority.Retire, 3, third)
	state, err := authority.ReadKeys(t.Context(), s.operator, true)
	require.NoError(t, err)
	var states []keys.State
	for _, g := range state.Generations {
		states = append(states, g.State)
	}
	assert.Equal(t, []keys.State{keys.Current, keys.Withdrawn, keys.Retired}, states)
}
