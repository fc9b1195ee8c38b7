package readiness

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

func remembering(d Decision, asked time.Time) *Gate {
	g := NewGate(nil, slog.New(slog.DiscardHandler))
	g.remember(answered(d, asked))
	return g
}

func answered(d Decision, asked time.Time) *remembered {
	return &remembered{Decision: d, asked: asked, age: elapsed.Start(nil)}
}

// A copy ages with the clock that says most: what was open before a machine was suspended is closed after it.
func TestASuspendedMachineKnowsNothing(t *testing.T) {
	t.Parallel()
	var boot time.Duration
	g := NewGate(nil, slog.New(slog.DiscardHandler))
	r := answered(opened, time.Now())
	r.age = elapsed.StartOn(time.Now, func() time.Duration { return boot })
	g.remember(r)
	require.True(t, g.Known().Open && g.Fresh())
	boot = time.Minute
	assert.False(t, g.Known().Open)
	assert.False(t, g.Fresh())
}

var opened = Decision{Open: true, Epoch: 4, Sequence: 10, Incarnation: 1, Valid: time.Hour, Reason: Good}

// A database that is lost closes what is remembered, at once and whole; one that
// keeps others waiting does not.
func TestALostDatabaseCloses(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"55P03", "57014", "40P01"} {
		g := remembering(opened, time.Now())
		g.lose(fmt.Errorf("evaluate: %w", &pgconn.PgError{Severity: "ERROR", Code: code}))
		assert.True(t, g.Known().Open, code)
		assert.True(t, g.Fresh(), code)
	}
	for _, err := range []error{
		errors.New("unexpected EOF"),
		&pgconn.PgError{Severity: "ERROR", Code: "25006"}, // read only
		&pgconn.PgError{Severity: "FATAL", Code: "57P01"}, // it is shutting down
		&pgconn.PgError{Severity: "ERROR", Code: "53100"}, // its disk is full
		&pgconn.PgError{Severity: "ERROR", Code: "42501"}, // it is another's
	} {
		g := remembering(opened, time.Now())
		require.True(t, g.Known().Open)
		g.lose(err)
		d := g.Known()
		assert.False(t, d.Open, err)
		assert.Zero(t, d.Valid, err)
		assert.Equal(t, []any{"unreachable", "store", int64(4)}, []any{d.Reason, d.Family, d.Epoch}, err)
		assert.False(t, g.Fresh(), err)
	}
}

// What was asked before the loss was noticed says nothing any more, however late
// it is answered; what is asked afterwards does, also the same decision.
func TestAfterALoss(t *testing.T) {
	t.Parallel()
	before := time.Now()
	g := remembering(opened, before)
	g.lose(errors.New("gone"))
	late := opened
	late.Sequence++
	g.remember(answered(late, before))
	assert.False(t, g.Known().Open)
	g.remember(answered(opened, time.Now()))
	assert.True(t, g.Known().Open)
	assert.True(t, g.Fresh())

	older := opened
	older.Sequence--
	g.lose(errors.New("gone"))
	g.remember(answered(older, time.Now()))
	assert.False(t, g.Known().Open, "a loss lets no older decision in")
}

// There is nothing to lose before the first answer.
func TestNothingToLose(t *testing.T) {
	t.Parallel()
	g := NewGate(nil, slog.New(slog.DiscardHandler))
	g.lose(errors.New("gone"))
	assert.Equal(t, Decision{Reason: "start"}, g.Known())
}
