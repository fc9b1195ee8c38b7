package demo

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// What an owner is told is printed with the command that shows it, one line at a time.
func TestHear(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	out := &oneAtATime{to: &b}
	for _, m := range []notify.Message{{Type: notify.TypeAsked, Data: notify.Data{Decision: "D"}}, {Type: notify.TypeReminder, Data: notify.Data{Decision: "D"}},
		{Type: notify.TypeRunEnded, Data: notify.Data{Run: "R"}}, {Type: notify.TypeAmbiguous, Data: notify.Data{Effect: "E"}}, {Type: "new", Data: notify.Data{Link: "L"}}} {
		hear(out, m)
	}
	assert.Equal(t, "A decision waits: nightwarrant decision show D\nA decision waits: nightwarrant decision show D\nA run did not succeed: R (nightwarrant run list)\n"+
		"Nobody knows whether an effect happened: E (nightwarrant finding list)\nNews: L\n", b.String())
	var group sync.WaitGroup
	for range 20 {
		group.Go(func() { hear(out, notify.Message{Type: "new"}) })
	}
	group.Wait()
}

func TestHookSecrets(t *testing.T) {
	t.Parallel()
	one, two := newHookSecret(), newHookSecret()
	assert.NotEqual(t, one, two)
	_, err := webhook.ParseSecret(one)
	require.NoError(t, err)
}
