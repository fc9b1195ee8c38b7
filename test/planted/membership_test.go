package planted

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// answered sends each verb that judges membership with an answer of the directory, as the arrays or the time that a replica would bring, and
// returns the verbs that took it.
func answered(t *testing.T, run, person string, bugs ...bug) (took []string) {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	plantIn(t, w, bugs)
	for _, c := range w.Gated(t) {
		from := c.Call.From
		switch c.Verb {
		case "claim", "renew", "mint", "admit":
			at := strings.LastIndex(from, "ARRAY[$")
			member := from[at : strings.LastIndex(from, "], ")+1]
			c.Call.From = from[:at] + strings.ReplaceAll(run, "MEMBER", member) + ")"
		case "approve", "give_consent":
			c.Call.From = strings.TrimSuffix(from, "clock_timestamp())") + person + ")"
		default:
			continue
		}
		require.NotEqual(t, from, c.Call.From)
		verdict, err := c.Call.Verdict(t.Context(), w.DB.Pool(t, c.Role))
		require.NoError(t, err, c.Verb)
		if verdict == "ok" {
			took = append(took, c.Verb)
		} else {
			require.Equal(t, "ask_directory", verdict, c.Verb)
		}
	}
	return took
}

// B12: what the judgement of an answer must not take, each planted, and each verb without the judgement.
func TestPlantedMembership(t *testing.T) {
	t.Parallel()
	const (
		nothing = "NULL"
		stale   = "clock_timestamp() - interval '3 seconds'"
		ahead   = "clock_timestamp() + interval '1 second'"
		good    = "BETWEEN t - interval '2 seconds' AND t"
	)
	runs := []string{"claim", "renew", "mint", "admit"}
	all := append(runs, "approve", "give_consent")
	missing := func(verb, member string) bug {
		return bug{verb, "    WHEN NOT nw.said(" + member + ", t) THEN 'ask_directory'\n", ""}
	}
	const brought, asked = "p_members, p_asked, ", "ARRAY[p_member], ARRAY[p_asked], p_member"
	for name, c := range map[string]struct {
		run, person string
		bugs        []bug
		took        []string
	}{
		"a stale answer":            {"MEMBER, ARRAY[" + stale + "]", stale, []bug{{"said", good, "BETWEEN t - interval '1 hour' AND t"}}, all},
		"an answer to come":         {"MEMBER, ARRAY[" + ahead + "]", ahead, []bug{{"said", good, ">= t - interval '2 seconds'"}}, all},
		"an answer of another":      {"ARRAY[sha256('other')] || (MEMBER)[2:1], ARRAY[clock_timestamp()]", nothing, []bug{{"said", "p_asked[array_position(p_members, p_member)]", "p_asked[1]"}}, runs},
		"unknown taken for present": {"(MEMBER)[2:1], NULL", nothing, []bug{{"said", "AND t, false)", "AND t, true)"}}, all},
		"claim without it":          {"(MEMBER)[2:1], NULL", nothing, []bug{missing("claim", brought+"owner")}, []string{"claim"}},
		"renew without it":          {"(MEMBER)[2:1], NULL", nothing, []bug{missing("renew", brought+"c.member")}, []string{"renew"}},
		"mint without it":           {"(MEMBER)[2:1], NULL", nothing, []bug{missing("mint", brought+"c.member")}, []string{"mint"}},
		"admit without it":          {"(MEMBER)[2:1], NULL", nothing, []bug{missing("admit", brought+"c.member")}, []string{"admit"}},
		"approve without it":        {"(MEMBER)[2:1], NULL", nothing, []bug{missing("approve", asked)}, []string{"approve"}},
		"give_consent without it":   {"(MEMBER)[2:1], NULL", nothing, []bug{missing("give_consent", asked)}, []string{"give_consent"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !strings.HasSuffix(name, "without it") {
				require.Empty(t, answered(t, c.run, c.person), "the sound database is found guilty")
			}
			require.ElementsMatch(t, c.took, answered(t, c.run, c.person, c.bugs...), "the planted bug was not caught")
		})
	}
}

// departed lets a member of two tasks leave, and says what goes on.
func departed(t *testing.T, at string, bugs ...bug) string {
	t.Helper()
	w := fixture.New(t)
	w.OpenGate(t)
	plantIn(t, w, bugs)
	one := w.Held(t, fixture.TaskOptions{})
	two := w.Held(t, fixture.TaskOptions{Owner: one.Task.Owner})
	call := fixture.Call{From: `nw.depart($1, ` + at + `, 100)`, Args: []any{one.Task.Owner}}
	_, err := call.Verdict(t.Context(), w.DB.Pool(t, "nw_authority"))
	require.NoError(t, err)
	goes := ""
	for _, l := range []*fixture.Lane{one, two} {
		verdict, err := l.Mint(fixture.NewEffect()).Verdict(t.Context(), w.DB.Pool(t, "nw_authority"))
		require.NoError(t, err)
		goes += map[bool]string{true: "goes ", false: "ended "}[verdict == "ok"]
	}
	return goes
}

func TestPlantedDepartures(t *testing.T) {
	t.Parallel()
	const now, stale = "clock_timestamp()", "clock_timestamp() - interval '3 seconds'"
	require.Equal(t, "ended ended ", departed(t, now))
	require.Equal(t, "goes goes ", departed(t, stale))
	for name, c := range map[string]struct {
		at, sees string
		bug      bug
	}{
		"only one task":   {now, "ended goes ", bug{"depart", "ORDER BY l.task_id LIMIT p_limit", "ORDER BY l.task_id LIMIT 1"}},
		"only a note":     {now, "goes goes ", bug{"depart", "e := nw.end_consent(task, 'revoked');", "e := 1;"}},
		"a stale absence": {stale, "ended ended ", bug{"depart", "IF verdict <> 'ok' THEN RETURN; END IF;", ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.sees, departed(t, c.at, c.bug), "the planted bug was not caught")
		})
	}
}
