package planted

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// admittedWhileClosed prepares a call of each gated verb, closes, and makes them. It returns the verbs that are admitted and those that are not.
func admittedWhileClosed(t *testing.T, bugs ...bug) (admitted, refused []string) {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	plantIn(t, w, bugs)
	calls := w.Gated(t)
	w.CloseGate(t)
	for _, c := range calls {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		verdict, err := c.Call.Verdict(ctx, w.DB.Pool(t, c.Role))
		require.NoError(t, err)
		if verdict == "ok" {
			admitted = append(admitted, c.Verb)
		} else {
			refused = append(refused, c.Verb)
		}
	}
	return admitted, refused
}

// Each gated verb once without the gate: it reads the decision as everybody does, and does not look whether it is open.
func TestPlantedWithoutTheGate(t *testing.T) {
	t.Parallel()
	gate := func(verb string) bug {
		return bug{verb, "d := nw.admitting();", "SELECT * INTO d FROM nw.readiness_decision;"}
	}
	verbs := map[string][]bug{
		"claim": nil, "renew": nil, "plan": nil, "rezone": nil, "take_outbox": nil, "give_consent": nil, "narrow": nil, "offer_task": nil, "apply": nil, "approve": nil,
		// Epochs and the time to apply would have caught these too.
		"mint":  {{"mint", "WHEN d.epoch <> p_readiness OR d.epoch <> r.readiness_epoch THEN 'readiness_changed'", ""}},
		"admit": {{"admit", "WHEN d.epoch <> p_readiness OR d.epoch <> e.readiness_epoch THEN 'readiness_changed'", ""}, {"admit", "r.deadline, d.valid_until)", "r.deadline)"}},
	}
	admitted, refused := admittedWhileClosed(t)
	require.Empty(t, admitted, "the sound database is found guilty")
	require.ElementsMatch(t, slices.Collect(maps.Keys(verbs)), refused, "each gated verb has its bug")
	for verb, more := range verbs {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			admitted, _ := admittedWhileClosed(t, append(more, gate(verb))...)
			require.Equal(t, []string{verb}, admitted, "the planted bug was not caught")
		})
	}
}
