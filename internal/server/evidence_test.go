package server_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// inFlight is a refund of five that its guard has the go-ahead for.
type inFlight struct {
	*authoritytest.House
	task    string
	worker  *authoritytest.Holder
	guard   *authoritytest.Guard
	minted  api.TokenResponse
	attempt string
}

func newInFlight(t *testing.T) inFlight {
	t.Helper()
	h := spending(t, "")
	task := h.Consent(h.RefundTask("refunds", "effects: 10, spend: 100"))
	f := inFlight{House: h, task: task, worker: h.Claim(h.Plan(task)), guard: h.PaymentsGuard()}
	f.minted = f.worker.Refunded("p1", 5)
	f.attempt = f.guard.Take(f.worker, f.minted)
	return f
}

// told is what the guard says when nobody knows: a gateway answered, and that is all.
func told(change ...func(e *api.Evidence)) *api.Evidence {
	e := api.Evidence{Action: "refund.create", Resource: authoritytest.Refunds, Amount: 5, Currency: "EUR", Parameters: json.RawMessage(`{"amount":5,"payment":"p1"}`),
		SentUnixMS: time.Now().Add(-time.Second).UnixMilli(), Answered: api.AnsweredStatus, Status: 502, State: json.RawMessage(`{"refunds": ["p1"]}`)}
	for _, c := range change {
		c(&e)
	}
	return &e
}

func (f inFlight) settle(outcome string, e *api.Evidence) authoritytest.Answer {
	f.T.Helper()
	return f.guard.Report(api.SettleEffectRequest{Effect: f.minted.Effect, Attempt: f.attempt, Outcome: outcome, Evidence: e})
}

// waiting lists what somebody must find out about.
func waiting(t *testing.T, h *authoritytest.House, who string) []api.AmbiguousEffect {
	t.Helper()
	var page api.Page[api.AmbiguousEffect]
	require.NoError(t, h.Person(who).JSON("GET", api.PathFindings, nil, &page))
	return page.Items
}

func find(h *authoritytest.House, who, effect, finding string) error {
	return h.Person(who).JSON("POST", api.PathFindings, api.Finding{Effect: effect, Finding: finding}, nil)
}

// overdue lets the time to settle be over, and the scheduler notice it.
func (f inFlight) overdue() {
	f.T.Helper()
	f.Exec(`ALTER TABLE nw.effects DISABLE TRIGGER effects_consumed`)
	f.Exec(`UPDATE nw.effects SET settle_until = clock_timestamp() WHERE state = 'admitted'`)
	f.Exec(`ALTER TABLE nw.effects ENABLE TRIGGER effects_consumed`)
	require.EqualValues(f.T, 1, f.Count(`SELECT expired FROM nw.expire_effects(10)`))
}

// What a guard says it knows is checked, and what it shows as the arguments must be those of the effect.
func TestEvidenceRefused(t *testing.T) {
	t.Parallel()
	f := newInFlight(t)
	for name, c := range map[string]struct {
		code   api.Code
		change func(e *api.Evidence)
	}{
		"no word":                            {api.InvalidRequest, func(e *api.Evidence) { e.Answered = "" }},
		"an unknown word":                    {api.InvalidRequest, func(e *api.Evidence) { e.Answered = "perhaps" }},
		"a word with more":                   {api.InvalidRequest, func(e *api.Evidence) { e.Answered = "status 502" }},
		"a status without a number":          {api.InvalidRequest, func(e *api.Evidence) { e.Status = 0 }},
		"a status that is none":              {api.InvalidRequest, func(e *api.Evidence) { e.Status = 99 }},
		"a status beyond":                    {api.InvalidRequest, func(e *api.Evidence) { e.Status = 600 }},
		"a negative status":                  {api.InvalidRequest, func(e *api.Evidence) { e.Status = -502 }},
		"a number without a status":          {api.InvalidRequest, func(e *api.Evidence) { e.Answered = api.AnsweredTimeout }},
		"a bad number without a status":      {api.InvalidRequest, func(e *api.Evidence) { e.Answered, e.Status = api.AnsweredTimeout, 99 }},
		"sent before there was time":         {api.InvalidRequest, func(e *api.Evidence) { e.SentUnixMS = -1 }},
		"sent when nobody will be":           {api.InvalidRequest, func(e *api.Evidence) { e.SentUnixMS = 1 << 50 }},
		"other parameters":                   {api.EffectMismatch, func(e *api.Evidence) { e.Parameters = json.RawMessage(`{"amount":5,"payment":"p2"}`) }},
		"more parameters":                    {api.EffectMismatch, func(e *api.Evidence) { e.Parameters = json.RawMessage(`{"amount":5,"payment":"p1","note":""}`) }},
		"another action":                     {api.EffectMismatch, func(e *api.Evidence) { e.Action = "payment.cancel" }},
		"another resource":                   {api.EffectMismatch, func(e *api.Evidence) { e.Resource += "/p1" }},
		"another amount":                     {api.EffectMismatch, func(e *api.Evidence) { e.Amount = 6 }},
		"another currency":                   {api.EffectMismatch, func(e *api.Evidence) { e.Currency = "USD" }},
		"no action":                          {api.InvalidRequest, func(e *api.Evidence) { e.Action = "" }},
		"a state that is no object":          {api.InvalidRequest, func(e *api.Evidence) { e.State = json.RawMessage(`["p1"]`) }},
		"a state that is too large":          {api.InvalidRequest, func(e *api.Evidence) { e.State = json.RawMessage(`{"a":"` + strings.Repeat("x", 16<<10) + `"}`) }},
		"no currency":                        {api.InvalidRequest, func(e *api.Evidence) { e.Currency = "" }},
		"parameters that are none":           {api.InvalidRequest, func(e *api.Evidence) { e.Parameters = json.RawMessage(`["p1"]`) }},
		"parameters that nobody can compare": {api.InvalidRequest, func(e *api.Evidence) { e.Parameters = json.RawMessage(`{"amount":5.5,"payment":"p1"}`) }},
	} {
		t.Run(name, func(t *testing.T) {
			refusedWith(t, f.House, c.code, func() authoritytest.Answer { return f.settle(api.Ambiguous, told(c.change)) })
		})
	}
	refusedWith(t, f.House, api.AttemptMismatch, func() authoritytest.Answer {
		return f.guard.Report(api.SettleEffectRequest{Effect: f.minted.Effect, Attempt: authoritytest.NewAttempt(), Outcome: api.Ambiguous, Evidence: told()})
	})
	other := f.Guard() // of another resource
	refusedWith(t, f.House, api.WrongGuard, func() authoritytest.Answer {
		return other.Report(api.SettleEffectRequest{Effect: f.minted.Effect, Attempt: f.attempt, Outcome: api.Ambiguous, Evidence: told()})
	})
	assert.Empty(t, waiting(t, f.House, authoritytest.MemberName))
	f.Into(f.settle(api.Ambiguous, told()), nil)
}

// A10: an owner sees what was sent, when, and what answered, in the very spelling of the effect; and nobody else sees any of it.
func TestEvidenceIsItsOwners(t *testing.T) {
	t.Parallel()
	f := newInFlight(t)
	e := told()
	f.Into(f.settle(api.Ambiguous, e), nil)
	seen := waiting(t, f.House, authoritytest.MemberName)
	require.Len(t, seen, 1)
	assert.Equal(t, []any{f.minted.Effect, f.worker.Run, f.task, "payments", "refund.create", authoritytest.Refunds, "", api.AnsweredStatus, 502},
		[]any{seen[0].Effect, seen[0].Run, seen[0].Task, seen[0].Guard, seen[0].Action, seen[0].Resource, seen[0].Finding, seen[0].Answered, seen[0].Status})
	assert.Equal(t, e.SentUnixMS, seen[0].SentAt.UnixMilli())
	assert.Equal(t, `{"action":"refund.create","amount":5,"currency":"EUR","guard":"`+authoritytest.PaymentsURI+`","parameters":{"amount":5,"payment":"p1"},"resource":"`+authoritytest.Refunds+`"}`, string(seen[0].Sent))
	assert.Equal(t, `{"refunds":["p1"]}`, string(seen[0].State), "what the destination showed afterwards")
	for _, who := range []string{"member-2", authoritytest.OperatorName} {
		assert.Empty(t, waiting(t, f.House, who))
		before := f.Consumed()
		assert.Equal(t, api.NotFound, codeOf(find(f.House, who, f.minted.Effect, "happened")), "a foreign effect looks like none")
		assert.Equal(t, before, f.Consumed())
	}

	// It is told once. What it says later changes nothing of what was shown.
	f.Into(f.settle(api.Ambiguous, told(func(e *api.Evidence) { e.Answered, e.Status, e.SentUnixMS = api.AnsweredTimeout, 0, 0 })), nil)
	f.Into(f.settle(api.Ambiguous, nil), nil)
	assert.Equal(t, seen, waiting(t, f.House, authoritytest.MemberName))
	assert.EqualValues(t, 1, f.Count(`SELECT count(*) FROM nw.evidence`))
	assert.EqualValues(t, 1, f.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'evidence'`))
}

// A guard that knows little says little, and evidence of what is known is none.
func TestWhatIsNotKnownIsNotShown(t *testing.T) {
	t.Parallel()
	t.Run("nothing was said", func(t *testing.T) {
		t.Parallel()
		f := newInFlight(t)
		f.Into(f.settle(api.Ambiguous, nil), nil)
		seen := waiting(t, f.House, authoritytest.MemberName)
		require.Len(t, seen, 1)
		assert.Equal(t, []any{"", 0, (*time.Time)(nil), 0}, []any{seen[0].Answered, seen[0].Status, seen[0].SentAt, len(seen[0].Sent)})
	})
	t.Run("only that nothing answered", func(t *testing.T) {
		t.Parallel()
		f := newInFlight(t)
		f.Into(f.settle(api.Ambiguous, &api.Evidence{Answered: api.AnsweredNothing}), nil)
		seen := waiting(t, f.House, authoritytest.MemberName)
		require.Len(t, seen, 1)
		assert.Equal(t, []any{api.AnsweredNothing, 0, (*time.Time)(nil), 0}, []any{seen[0].Answered, seen[0].Status, seen[0].SentAt, len(seen[0].Sent)})
	})
	for _, outcome := range []string{api.Committed, api.NotApplied} {
		t.Run("it is "+outcome, func(t *testing.T) {
			t.Parallel()
			f := newInFlight(t)
			f.Into(f.settle(outcome, told()), nil)
			assert.Empty(t, waiting(t, f.House, authoritytest.MemberName))
			assert.Zero(t, f.Count(`SELECT count(*) FROM nw.evidence`)+f.Count(`SELECT count(*) FROM nw.arguments`))
			refusedWith(t, f.House, api.EffectSettled, func() authoritytest.Answer { return f.settle(api.Ambiguous, told()) })
		})
	}
}

// P16, P17: after the window an effect is ambiguous and all of it is charged. What its guard still has to show is kept, once, also while closed; what it
// proves is late evidence. A person's finding frees the lane, and nothing changes how its run ended.
func TestEvidenceAfterTheWindow(t *testing.T) {
	t.Parallel()
	f := newInFlight(t)
	f.overdue()
	assert.EqualValues(t, 5, f.Count(`SELECT sum(spent) FROM nw.effects`))
	assert.EqualValues(t, 5, f.Count(`SELECT min(today) FROM nw.ledgers WHERE octet_length(unit) = 32`))
	f.Close()
	f.See()
	refusedWith(t, f.House, api.EffectMismatch, func() authoritytest.Answer {
		return f.settle(api.Ambiguous, told(func(e *api.Evidence) { e.Parameters = json.RawMessage(`{"amount":5,"payment":"p2"}`) }))
	})
	f.Into(f.settle(api.Ambiguous, told()), nil)
	f.Into(f.settle(api.Ambiguous, told(func(e *api.Evidence) { e.Status = 200 })), nil)
	var late api.EffectOutcome
	f.Into(f.settle(api.Committed, nil), &late)
	assert.Equal(t, []any{api.Ambiguous, true}, []any{late.State, late.Late})
	f.Into(f.settle(api.NotApplied, nil), &late) // and then it says something else: the first is kept
	f.Open()
	seen := waiting(t, f.House, authoritytest.MemberName)
	require.Len(t, seen, 1)
	assert.Equal(t, []any{502, api.Committed}, []any{seen[0].Status, seen[0].Late})

	next := f.Plan(f.task)
	claim := func() authoritytest.Answer {
		return f.Send(f.Form(f.Key(), authoritytest.ClaimForm(next, f.Assertion(authoritytest.WorkerClaim))))
	}
	refusedWith(t, f.House, api.LaneUncertain, claim)
	for _, word := range []string{"", "perhaps", "Happened", "committed"} {
		before := f.Consumed()
		assert.Equal(t, api.InvalidRequest, codeOf(find(f.House, authoritytest.MemberName, f.minted.Effect, word)))
		assert.Equal(t, before, f.Consumed())
	}
	assert.Equal(t, api.NotFound, codeOf(find(f.House, authoritytest.MemberName, authoritytest.NewAttempt(), "happened")))
	refusedWith(t, f.House, api.LaneUncertain, claim)

	require.NoError(t, find(f.House, authoritytest.MemberName, f.minted.Effect, "unknown"))
	assert.Equal(t, "ambiguous", stateOf(t, f.House, f.worker.Run).State)
	w := f.Claim(next)
	w.Refunded("p2", 5)
	require.NoError(t, find(f.House, authoritytest.MemberName, f.minted.Effect, "happened")) // a new entry, and the first is still there
	assert.EqualValues(t, 2, f.Count(`SELECT count(*) FROM nw.findings`))
	assert.EqualValues(t, 2, f.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'finding' AND verdict = 'ok'`))
	assert.Equal(t, "happened", waiting(t, f.House, authoritytest.MemberName)[0].Finding)
	assert.Equal(t, "ambiguous", stateOf(t, f.House, f.worker.Run).State, "a finding is no outcome")
	assert.EqualValues(t, 5, f.Count(`SELECT sum(spent) FROM nw.effects`), "and gives nothing back")
}

// A10: nothing is replayed. After a finding the lane may ask for the same change again, as another effect that is minted and admitted by itself.
func TestAFindingReplaysNothing(t *testing.T) {
	t.Parallel()
	for _, finding := range []string{"happened", "did_not", "unknown"} {
		t.Run(finding, func(t *testing.T) {
			t.Parallel()
			f := newInFlight(t)
			f.Into(f.settle(api.Ambiguous, told()), nil)
			before := f.Consumed()
			refusedWith(t, f.House, api.RunEnded, func() authoritytest.Answer { return f.worker.Refund("p2", 5) })
			require.NoError(t, find(f.House, authoritytest.MemberName, f.minted.Effect, finding))
			assert.NotEqual(t, before, f.Consumed())
			assert.EqualValues(t, 1, f.Count(`SELECT count(*) FROM nw.effects`))
			assert.Zero(t, f.Count(`SELECT count(*) FROM nw.outbox`), "and nothing is queued")
			var status api.EffectOutcome
			f.Into(f.settle(api.Ambiguous, told()), &status)
			assert.Equal(t, api.Ambiguous, status.State)

			w := f.Claim(f.Plan(f.task))
			again := w.Refunded("p1", 5)
			assert.NotEqual(t, f.minted.Effect, again.Effect)
			f.guard.Done(w, again, 5)
			assert.Equal(t, "succeeded", settled(t, f.House, w, "succeeded").State)
			assert.Equal(t, "ambiguous", stateOf(t, f.House, f.worker.Run).State)
			assert.EqualValues(t, 10, f.Count(`SELECT sum(spent) FROM nw.effects`))
		})
	}
}

// Arguments are as long as they are, whatever signs they have: text of angle brackets is no longer than other text.
func TestArgumentsAreNotBlownUp(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	w := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	long := strings.Repeat("<&>", 4096/3)
	parameters := `{"table":"entries","key":` + fmt.Sprintf(`{"a":%q,"b":%q,"c":%q,"d":%q}`, long, long, long, long) + `}`
	form := w.MintDetail("step", deletion("entries", "{}"))
	form.Set("authorization_details", `[{"type":"`+api.DetailTypeEffect+`","actions":["row.delete"],"locations":["`+authoritytest.GuardURI+`"],"identifier":"table:entries","parameters":`+parameters+`}]`)
	p := h.Send(h.Form(w.Key, form)).Problem()
	require.Equal(t, api.ApprovalRequired, p.Code)
	var shown struct{ Parameters json.RawMessage }
	require.NoError(t, json.Unmarshal(card(t, h, p.Decision).Effect, &shown))
	assert.JSONEq(t, parameters, string(shown.Parameters))
}
