package migrations_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/teststack/fixture"
)

// judging are the verbs that judge whether a member is one still (B12).
var judging = []string{"claim", "renew", "mint", "admit", "approve", "give_consent"}

const (
	arrays = "ARRAY[clock_timestamp()])" // how the fixture's calls of runs end
	single = ", clock_timestamp())"      // and those of people
)

// consumed is everything that a refused call must leave as it was, and the audit log, because a question is no refusal.
func consumed(t *testing.T, w *fixture.World) string {
	t.Helper()
	return fixture.Value[string](t, w, `SELECT concat_ws('|', (SELECT json_agg(r ORDER BY id) FROM nw.runs r), (SELECT json_agg(l ORDER BY task_id) FROM nw.lanes l),
		(SELECT json_agg(e ORDER BY id) FROM nw.effects e), (SELECT json_agg(o ORDER BY id) FROM nw.offers o), (SELECT json_agg(c ORDER BY id) FROM nw.consents c),
		(SELECT json_agg(d ORDER BY id) FROM nw.decisions d), (SELECT json_agg(y ORDER BY holder, unit) FROM nw.ledgers y), (SELECT count(*) FROM nw.replay),
		(SELECT count(*) FROM nw.assertion_owners), (SELECT count(*) FROM nw.outbox), (SELECT count(*) FROM nw.arguments), (SELECT count(*) FROM nw.audit), (SELECT count(*) FROM nw.departures))`)
}

// Each verb that admits something judges the answer about the member of this very run, and takes none that is too old, of a time to come, of
// somebody else, or absent. Asking consumes nothing, and the same call with an answer is admitted.
func TestNoAnswerNoAdmission(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	calls := map[string]fixture.Gated{}
	for _, c := range w.Gated(t) {
		calls[c.Verb] = c
	}
	other := "'\\x" + strings.Repeat("ab", 32) + "'::bytea"
	for _, verb := range judging {
		c, ok := calls[verb]
		require.True(t, ok, verb)
		pool := w.DB.Pool(t, c.Role)
		asks := func(what, from string) {
			t.Helper()
			require.NotEqual(t, c.Call.From, from, "%s: %s changes nothing", verb, what)
			before := consumed(t, w)
			verdict, err := fixture.Call{From: from, Args: c.Call.Args}.Verdict(t.Context(), pool)
			require.NoError(t, err, "%s: %s", verb, what)
			assert.Equal(t, "ask_directory", verdict, "%s: %s", verb, what)
			assert.Equal(t, before, consumed(t, w), "%s: %s has consumed something", verb, what)
		}
		with := func(old, text string) string { return strings.Replace(c.Call.From, old, text, 1) }
		if verb == "approve" || verb == "give_consent" {
			asks("no answer", with(single, ", NULL)"))
			asks("an old answer", with(single, ", clock_timestamp() - interval '2001 milliseconds')"))
			asks("an answer to come", with(single, ", clock_timestamp() + interval '1 second')"))
			asks("an answer for ever", with(single, ", 'infinity')"))
		} else {
			asks("no answer", with(arrays, "NULL)"))
			asks("an empty answer", with(arrays, "'{}')"))
			asks("an answer without a time", with(arrays, "ARRAY[NULL::timestamptz])"))
			asks("an old answer", with(arrays, "ARRAY[clock_timestamp() - interval '2001 milliseconds'])"))
			asks("an answer to come", with(arrays, "ARRAY[clock_timestamp() + interval '1 second'])"))
			asks("an answer for ever", with(arrays, "ARRAY['infinity'::timestamptz])"))
			text := with("::bytea], "+arrays, "::bytea, "+other+"], ARRAY['-infinity'::timestamptz, clock_timestamp()])")
			asks("somebody else's answer beside an old one", text)
			at := strings.LastIndex(c.Call.From, "ARRAY[$")
			asks("an answer about somebody else", c.Call.From[:at]+"CASE WHEN "+c.Call.From[at+len("ARRAY["):strings.LastIndex(c.Call.From, "], ")]+" IS NOT NULL THEN ARRAY["+other+"] END, "+arrays)
		}
		verdict, err := c.Call.Verdict(t.Context(), pool)
		require.NoError(t, err)
		assert.Equal(t, "ok", verdict, verb)
	}
}

// What a verb asks names the owner of the revision that was consented to, and tells its time.
func TestTheQuestionNamesTheMember(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	l := w.Lane(t, fixture.TaskOptions{})
	call := l.Claim(fixture.Random())
	call.From = strings.Replace(call.From, arrays, "NULL)", 1)
	var verdict, about string
	var young bool
	require.NoError(t, w.DB.Pool(t, "nw_authority").QueryRow(t.Context(), `SELECT verdict, about, asked_at > clock_timestamp() - interval '10 seconds' AND asked_at < clock_timestamp() FROM `+call.From, call.Args...).
		Scan(&verdict, &about, &young))
	assert.Equal(t, "ask_directory", verdict)
	assert.JSONEq(t, `{"issuer":"https://idp.example","subject":"member"}`, about)
	assert.True(t, young)
	require.NoError(t, w.DB.Pool(t, "nw_authority").QueryRow(t.Context(), `SELECT verdict, about IS NULL AND asked_at IS NULL FROM `+l.Claim(fixture.Random()).From, l.Claim(fixture.Random()).Args...).
		Scan(&verdict, &young))
	assert.Equal(t, "ok", verdict)
	assert.True(t, young, "whoever need not ask is told nobody's name")
}

// A departure ends all that a member has consented to, in steps, and only by an answer of this moment.
func TestDepart(t *testing.T) {
	t.Parallel()
	w := fixture.New(t)
	w.OpenGate(t)
	held, other := w.Held(t, fixture.TaskOptions{}), w.Held(t, fixture.TaskOptions{})
	queued := w.Lane(t, fixture.TaskOptions{Owner: held.Task.Owner})
	pool := w.DB.Pool(t, "nw_authority")
	depart := func(at string) (verdict string, ended int64) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT verdict, ended FROM nw.depart($1, `+at+`, 1)`, held.Task.Owner).Scan(&verdict, &ended))
		return verdict, ended
	}
	for _, at := range []string{"NULL", "clock_timestamp() - interval '2001 milliseconds'", "clock_timestamp() + interval '1 second'"} {
		before := consumed(t, w)
		verdict, ended := depart(at)
		assert.Equal(t, "ask_directory", verdict, at)
		assert.Zero(t, ended)
		assert.Equal(t, before, consumed(t, w), at)
	}
	w.CloseGate(t) // less is always possible
	for _, want := range []int64{1, 1, 0} {
		verdict, ended := depart("clock_timestamp()")
		assert.Equal(t, "ok", verdict)
		assert.Equal(t, want, ended)
	}
	for task, state := range map[int64]string{held.Task.ID: "revoked", queued.Task.ID: "revoked", other.Task.ID: "active"} {
		assert.Equal(t, state, fixture.Value[string](t, w, `SELECT state FROM nw.consents WHERE task_id = $1`, task))
		assert.Equal(t, state == "active", fixture.Value[bool](t, w, `SELECT activation_epoch = 1 AND consent_id IS NOT NULL FROM nw.lanes WHERE task_id = $1`, task))
		assert.Equal(t, state == "active", fixture.Value[bool](t, w, `SELECT EXISTS (SELECT FROM nw.schedules WHERE task_id = $1)`, task))
	}
	assert.Equal(t, "revoked", w.RunByID(t, held.Run.ID).State)
	assert.Equal(t, "revoked", w.RunByID(t, queued.Run.ID).State)
	assert.Equal(t, "claimed", w.RunByID(t, other.Run.ID).State)
	assert.Equal(t, int64(2), fixture.Value[int64](t, w, `SELECT count(*) FROM nw.departures x JOIN nw.lanes l USING (task_id) WHERE x.epoch = l.activation_epoch AND x.member = $1`, held.Task.Owner))
	assert.Equal(t, int64(2), fixture.Value[int64](t, w, `SELECT count(*) FROM nw.audit WHERE verb = 'depart' AND verdict = 'ok'`))
	assert.Equal(t, int64(2), fixture.Value[int64](t, w, `SELECT count(*) FROM nw.stranded(NULL, 10)`))
	assert.Equal(t, int64(1), fixture.Value[int64](t, w, `SELECT count(*) FROM nw.stranded((SELECT max(id) FROM nw.departures), 10)`))
	for _, change := range []string{`UPDATE nw.departures SET epoch = 9`, `DELETE FROM nw.departures`, `TRUNCATE nw.departures`} {
		_, err := w.Owner.Exec(t.Context(), change)
		require.ErrorContains(t, err, "rows are", change)
	}
}
