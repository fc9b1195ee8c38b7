package planted

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// admittedWhileClosed prepares a call of one gated verb, closes, and makes it.
func admittedWhileClosed(t *testing.T, verb string, bugs []bug) string {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	plantIn(t, w, bugs)
	calls := w.Gated(t)
	w.CloseGate(t)
	for _, c := range calls {
		if c.Verb != verb {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		verdict, err := c.Call.Verdict(ctx, w.DB.Pool(t, c.Role))
		require.NoError(t, err)
		return wrong(verdict == "ok", verb+" is admitted while closed")
	}
	t.Fatal("nobody knows how to call", verb)
	return ""
}

// Each gated verb once without the gate: it reads the decision as everybody does, and does not look whether it is open.
func TestPlantedWithoutTheGate(t *testing.T) {
	t.Parallel()
	gate := func(verb string) bug {
		return bug{verb, "d := nw.admitting();", "SELECT * INTO d FROM nw.readiness_decision;"}
	}
	for verb, more := range map[string][]bug{
		"claim": nil, "renew": nil, "plan": nil, "rezone": nil, "take_outbox": nil, "give_consent": nil, "apply": nil,
		// Epochs and the time to apply would have caught these too.
		"mint":  {{"mint", "WHEN d.epoch <> p_readiness OR d.epoch <> r.readiness_epoch THEN 'readiness_changed'", ""}},
		"admit": {{"admit", "WHEN d.epoch <> p_readiness OR d.epoch <> e.readiness_epoch THEN 'readiness_changed'", ""}, {"admit", "r.deadline, d.valid_until)", "r.deadline)"}},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			require.Empty(t, admittedWhileClosed(t, verb, nil), "the sound database is found guilty")
			require.NotEmpty(t, admittedWhileClosed(t, verb, append(more, gate(verb))), "the planted bug was not caught")
		})
	}
}
