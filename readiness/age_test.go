package readiness

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

// A copy is given for what is left of it: asking again renews nothing.
func TestACopyRunsOut(t *testing.T) {
	t.Parallel()
	var age time.Duration
	g := NewGate(nil, slog.New(slog.DiscardHandler))
	r := answered(opened, time.Now())
	r.Valid, r.age = 800*time.Millisecond, elapsed.StartOn(time.Now, func() time.Duration { return age })
	g.remember(r)
	age = 700 * time.Millisecond
	for range 3 {
		d := g.Known()
		assert.True(t, d.Open)
		assert.LessOrEqual(t, d.Valid, 100*time.Millisecond)
	}
	age = 800 * time.Millisecond
	assert.False(t, g.Known().Open)
}
