package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// ownRevoke is a task's owner who takes the consent back.
func ownRevoke(w *fixture.World, t testing.TB, k fixture.Task) fixture.Call {
	t.Helper()
	c := w.Revoke(k)
	c.Args[0] = fixture.Value[[]byte](t, w, `SELECT owner FROM nw.tasks WHERE id = $1`, k.ID)
	return c
}

// Whoever cuts a task off, its owner is told: once for each time, under a name of its own, with the task's page.
func TestAPauseIsTold(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	task := h.Task(t, fixture.TaskOptions{})
	h.CutOff(task).OK(t, h.Owner)
	got := h.tell(t)
	require.Equal(t, []string{notify.TypeTaskPaused}, types(got))
	assert.Equal(t, notify.Data{Member: got[0].Data.Member, Task: encode(task.Ref[:]), Link: testLink + "/tasks/" + encode(task.Ref[:])}, got[0].Data)
	h.CutOff(task).OK(t, h.Owner)
	require.Equal(t, []string{notify.TypeTaskPaused}, types(h.tell(t)))
	assert.NotEqual(t, h.box.ids[0], h.box.ids[1], "another pause is another matter")
	h.Revoke(task).OK(t, h.Owner)
	assert.Equal(t, []string{notify.TypeTaskPaused}, types(h.tell(t)), "an operator revoked it")
	h.CutOff(task).OK(t, h.Owner)
	assert.Empty(t, h.tell(t), "it was paused already")
}

// Nobody is told what they did themselves, nor that a consent ended of which they were told before.
func TestPausesThatAreNoNews(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	task := h.Task(t, fixture.TaskOptions{})
	ownRevoke(h.World, t, task).OK(t, h.Owner)
	assert.Empty(t, h.tell(t))
	for _, end := range []string{"superseded", "expired"} {
		k := h.Task(t, fixture.TaskOptions{})
		h.Exec(t, `SELECT nw.end_consent($1, $2)`, k.ID, end)
		assert.Empty(t, h.tell(t), end)
	}
	k := h.Task(t, fixture.TaskOptions{})
	h.CutOff(k).OK(t, h.Owner)
	ownRevoke(h.World, t, k).OK(t, h.Owner)
	assert.Equal(t, []string{notify.TypeTaskPaused}, types(h.tell(t)), "what somebody else did before is news")
}

// What is for a channel that the cluster does not have is dropped when it has been due for an hour, and no earlier.
func TestChannelsThatNobodyTakes(t *testing.T) {
	t.Parallel()
	h := newHall(t)
	h.CutOff(h.Task(t, fixture.TaskOptions{})).OK(t, h.Owner)
	require.Len(t, h.tell(t), 1)
	count := func() int64 {
		return fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.notices WHERE kind = 'task_paused'`)
	}
	require.EqualValues(t, 1, count(), "for a scheduler with mail")
	list, err := ListUntold(within(t), h.DB.Pool(t, "nw_operator"))
	require.NoError(t, err)
	assert.Empty(t, list, "nobody is waiting for it")
	h.later(t, 59*time.Minute)
	h.tell(t)
	require.EqualValues(t, 1, count())
	h.later(t, 2*time.Minute)
	h.tell(t)
	assert.Zero(t, count())
	assert.EqualValues(t, 1, fixture.Value[int64](t, h.World, `SELECT count(*) FROM nw.notices WHERE kind = 'consent_expiring' AND channel = 'mail'`), "what is not due stays")
}
