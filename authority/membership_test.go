package authority

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/directory/directorytest"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

var (
	asker = document.Owner{Issuer: "https://idp.example", Subject: "m-1"}
	other = document.Owner{Issuer: "https://idp.example", Subject: "m-2"}
	some  = time.Date(2026, 3, 1, 2, 0, 0, 0, time.UTC)
)

// stopped is a watch whose clock the test moves.
func stopped(now *time.Time) elapsed.Watch {
	return elapsed.StartOn(func() time.Time { return *now }, func() time.Duration { return 0 })
}

// What is brought along is about the lane's member, or while nobody has said whose the lane is, about some; never old, and never for nobody.
func TestWhatIsBroughtAlong(t *testing.T) {
	t.Parallel()
	m, now := newMembers(&directorytest.People{}), some
	one, two := memberOf(asker), memberOf(other)
	assert.Empty(t, m.known("lane"))
	m.remember(one, answer{directory.Present, some, stopped(&now)})
	assert.Equal(t, brought{[][]byte{one[:]}, []time.Time{some}}, m.known("lane"), "whose it is, the verb knows")
	m.belongs("lane", two)
	assert.Empty(t, m.known("lane"), "an answer about somebody else")
	m.belongs("lane", one)
	assert.Equal(t, brought{[][]byte{one[:]}, []time.Time{some}}, m.known("lane"))
	now = some.Add(answerFor)
	assert.Empty(t, m.known("lane"), "too old")
	assert.Empty(t, m.known("another"), "too old")
	assert.Empty(t, m.said, "and forgotten")
	now = some
	m.remember(one, answer{directory.Present, some, stopped(&now)})
	for _, a := range []directory.Answer{directory.Absent, directory.Unknown} {
		m.remember(one, answer{directory.Present, some, stopped(&now)})
		m.remember(one, answer{a, some, stopped(&now)})
		assert.Empty(t, m.known("lane"), a)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	m, now := newMembers(&directorytest.People{}), some
	for i := range 3 * mostMembers {
		m.remember([32]byte{byte(i), byte(i >> 8)}, answer{directory.Present, some, stopped(&now)})
	}
	assert.LessOrEqual(t, len(m.said), mostMembers)
	b := m.known("lane")
	assert.Len(t, b.members, mostAnswers)
	assert.Len(t, b.at, mostAnswers)
	for i := range 2*mostLanes + 1 {
		m.belongs(encode([]byte{byte(i), byte(i >> 8), byte(i >> 16)}), [32]byte{})
	}
	assert.LessOrEqual(t, len(m.lanes), mostLanes)
}

// Many ask at once, and the directory is asked once. One who gives up takes nothing from the others.
func TestOneQuestionForAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		people := &directorytest.People{}
		release := make(chan struct{})
		people.Wait(func(context.Context) { <-release })
		m := newMembers(people)
		impatient, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var present atomic.Int64
		all.Go(func() {
			_, err := m.ask(impatient, asker, some)
			assert.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		for range 20 {
			all.Go(func() {
				told, err := m.ask(t.Context(), asker, some.Add(time.Second))
				assert.NoError(t, err)
				assert.Equal(t, some, told.at, "when it was asked, not when somebody joined")
				if told.Answer == directory.Present {
					present.Add(1)
				}
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(release)
		all.Wait()
		assert.EqualValues(t, 20, present.Load())
		assert.Equal(t, 1, people.Asked())
	})
}

// A directory that hangs, breaks or does not mean it does not know.
func TestNoAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]directory.Directory{
		"hangs":  asks(func(ctx context.Context) (directory.Answer, error) { <-ctx.Done(); return directory.Unknown, ctx.Err() }),
		"breaks": asks(func(context.Context) (directory.Answer, error) { panic("broken") }),
		"present": asks(func(ctx context.Context) (directory.Answer, error) {
			return directory.Present, context.DeadlineExceeded
		}),
	} {
		synctest.Test(t, func(t *testing.T) {
			m := newMembers(d)
			began := time.Now()
			told, err := m.ask(t.Context(), asker, some)
			require.Error(t, err, name)
			assert.Equal(t, directory.Unknown, told.Answer, name)
			assert.LessOrEqual(t, time.Since(began), askWithin, name)
			assert.Empty(t, m.known("lane"), name)
		})
	}
}

type asks func(ctx context.Context) (directory.Answer, error)

func (f asks) Member(ctx context.Context, _, _ string) (directory.Answer, error) { return f(ctx) }

// A verb asks about somebody who can be known, or it is an error of ours.
func TestQuestions(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `null`, `{}`, `{"issuer":"i"}`, `{"issuer":"i","subject":""}`, `{"issuer":"i","subject":"s","subject":"t"}`, `{"issuer":"i","Subject":"s"}`, `{"issuer":1,"subject":"s"}`, `[]`} {
		_, err := (&question{about: &text}).owner()
		require.Error(t, err, text)
	}
	_, err := (&question{}).owner()
	require.Error(t, err)
	text := `{"subject": "s", "issuer": "i"}`
	who, err := (&question{about: &text}).owner()
	require.NoError(t, err)
	assert.Equal(t, document.Owner{Issuer: "i", Subject: "s"}, who)
}
