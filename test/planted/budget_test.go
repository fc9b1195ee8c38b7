package planted

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// Bugs by which more could be spent or done than was agreed. What the checks leave in the sound database holds every invariant of fsck.
func TestPlantedBudgets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		check check
		slow  []bug
		bugs  []bug
	}{
		{"B9 a ledger that is read without its lock", windowSharedByTwo,
			[]bug{{"mint", "ceiling := nw.ceiling(r, c, task_ref, fresh, p_amount, t);", "ceiling := nw.ceiling(r, c, task_ref, fresh, p_amount, t);\n  IF p_amount > 1 THEN PERFORM pg_sleep(0.5); END IF;"}},
			[]bug{{"mint", "ORDER BY y.holder, y.unit FOR NO KEY UPDATE", "ORDER BY y.holder, y.unit"}}},
		{"B9 a ceiling that forgets the member's window", windowSharedInTurn, nil,
			[]bug{{"ceiling", "WHEN c.member_spend_day > 0 AND mu.today + p_amount > c.member_spend_day THEN 'member_spend_day'", ""}}},
		{"B9 a mint that reserves in the task's ledger only", windowSharedInTurn, nil,
			[]bug{{"mint", "PERFORM nw.charge(c.member, p_currency, today, p_amount);", ""}}},
		{"B9 a mint that reserves in the member's ledger only", windowOfTheTask, nil,
			[]bug{{"mint", "PERFORM nw.charge(task_ref, p_currency, today, p_amount);", ""}}},
		{"B9 an overrun that nobody is charged for", overrunIsFree, nil,
			[]bug{{"settle_effect", "coalesce(p_spent, e.amount) WHEN", "least(coalesce(p_spent, e.amount), e.amount) WHEN"}}},
		{"B9 an overrun that the ledgers are not charged for", overrunOfTheDayIsFree, nil,
			[]bug{{"settle_effect", "IF cost <> e.amount THEN", "IF cost < e.amount THEN"}}},
		{"B9 what nobody knows costs nothing", ambiguousIsFree, nil,
			[]bug{{"settle_effect", "ELSE greatest(e.amount, coalesce(p_spent, 0)) END", "ELSE 0 END"}}},
		{"B9 what was given back is given back again", releasedTwice, nil,
			[]bug{{"release_reservations", "UPDATE effects SET reserved_on = NULL WHERE id = ANY (these) AND state = 'lapsed';", ""}}},
		{"B9 what may still be used is given back", releasedTooEarly, nil,
			[]bug{{"release_reservations", "e.reserved_on IS NOT NULL AND r.ended_at IS NOT NULL", "e.reserved_on IS NOT NULL"}}},
		{"B7 a day that never ends", dayThatNeverEnds, nil,
			[]bug{{"used", "CASE WHEN x.day = p_today THEN x.today ELSE 0 END", "x.today"}}},
		{"B7 a loop that counts only what was committed", loopRuns, nil,
			[]bug{{"mint", "WHERE x.run_id = r.id AND x.digest = p_digest) >= c.max_repeats", "WHERE x.run_id = r.id AND x.digest = p_digest AND x.state = 'committed') >= c.max_repeats"}}},
		{"B7 a run that fell short and succeeded", limitedRunSucceeds, nil,
			[]bug{{"settle_run", "CASE WHEN r.shortfall = 'limit' THEN 'stopped_by_limit' WHEN NOT p_succeeded", "CASE WHEN NOT p_succeeded"}}},
		{"B4 progress that raises what is left", progressRaises, nil,
			[]bug{{"renew", "spend_left = least(runs.spend_left, coalesce(p_spend_left, runs.spend_left))", "spend_left = coalesce(p_spend_left, runs.spend_left)"}}},
		{"B5 a key that is compared by how it begins", anotherKeyPasses, nil,
			[]bug{{"mint", "AND y.key = p_approved AND", "AND substr(y.key, 1, 0) = substr(p_approved, 1, 0) AND"}}},
		{"B5 a key that is compared without its resource", keyOfAnotherResourcePasses, nil,
			[]bug{{"mint", "AND y.resource = p_resource AND y.key", "AND y.key"}}},
		{"B5 a key of any consent of the task", keyOfAnEarlierConsentPasses, nil,
			[]bug{{"mint", "y.consent_id = r.consent_id AND y.guard_id", "y.consent_id IN (SELECT n.id FROM consents n WHERE n.task_id = r.task_id) AND y.guard_id"}}},
		{"B5 a key that was withdrawn", withdrawnKeyPasses, nil,
			[]bug{{"mint", " AND y.withdrawn_at IS NULL", ""}}},
		{"B5 a withdrawal that leaves what was minted", withdrawnKeyIsStillAdmitted, nil,
			[]bug{{"withdraw", "epoch := nw.advance_epoch(k.id);", "epoch := l.activation_epoch;"}}},
		{"A10 arguments of another effect as evidence", evidenceOfAnother, nil,
			[]bug{{"settle_effect", "WHEN p_digest <> e.digest THEN 'effect_mismatch'", ""}}},
		{"B2 evidence that any member sees", evidenceForAll, nil,
			[]bug{{"show_ambiguous", "WHERE x.owner = p_member AND", "WHERE"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sound := patient(t)
			plant(t, sound, c.slow)
			require.Empty(t, c.check(t, sound), "the sound database is found guilty")
			sound.Sound()
			planted := patient(t)
			plant(t, planted, append(c.slow, c.bugs...))
			violation := c.check(t, planted)
			require.NotEmpty(t, violation, "the planted bug was not caught")
			t.Log("caught:", violation)
		})
	}
}

// refunding claims a run of a new task that pays back within these limits.
func refunding(h *authoritytest.House, name, limits string) *authoritytest.Holder {
	return h.Claim(h.Plan(h.Consent(h.RefundTask(name, limits))))
}

// both says whether two answers are good, and is what a check says then.
func both(first, second authoritytest.Answer, what string) string {
	if first.Status == http.StatusOK && second.Status == http.StatusOK {
		return what
	}
	return ""
}

const twelveOfTen = "twelve were reserved in a window of ten"

// windowSharedByTwo: two tasks of one member ask for six at the same time.
func windowSharedByTwo(t *testing.T, h *authoritytest.House) string {
	h.Payments("member_spend_day: 10")
	one, other := refunding(h, "one", "effects: 5, spend: 100"), refunding(h, "other", "effects: 5, spend: 100")
	first := async(func() authoritytest.Answer { return one.Refund("a", 6) })
	sleeping(t, h)
	second := other.Refund("a", 6)
	return both(<-first, second, twelveOfTen)
}

// windowSharedInTurn: one after the other.
func windowSharedInTurn(_ *testing.T, h *authoritytest.House) string {
	h.Payments("member_spend_day: 10")
	one, other := refunding(h, "one", "effects: 5, spend: 100"), refunding(h, "other", "effects: 5, spend: 100")
	return both(one.Refund("a", 6), other.Refund("a", 6), twelveOfTen)
}

func windowOfTheTask(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	w := refunding(h, "one", "effects: 5, spend: 100, spend_day: 10")
	return both(w.Refund("a", 6), w.Refund("b", 6), twelveOfTen)
}

// overspent settles six for nine and asks for two more of ten.
func overspent(h *authoritytest.House, w *authoritytest.Holder) string {
	h.PaymentsGuard().Done(w, w.Refunded("a", 6), 9)
	if w.Refund("b", 2).Status == http.StatusOK {
		return "eleven of ten are spent"
	}
	return ""
}

func overrunIsFree(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	return overspent(h, refunding(h, "one", "effects: 5, spend: 10"))
}

func overrunOfTheDayIsFree(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	return overspent(h, refunding(h, "one", "effects: 5, spend: 100, spend_day: 10"))
}

func ambiguousIsFree(_ *testing.T, h *authoritytest.House) string {
	h.Payments("member_spend_day: 10")
	w, g := refunding(h, "one", "effects: 5, spend: 100"), h.PaymentsGuard()
	minted := w.Refunded("a", 6)
	h.Into(g.Settle(minted.Effect, g.Take(w, minted), api.Ambiguous), nil)
	if refunding(h, "other", "effects: 5, spend: 100").Refund("a", 6).Status == http.StatusOK {
		return "six may have been spent, and six more are reserved of ten"
	}
	return ""
}

// abandoned is a task of which one run has spent five, and has ended with four reserved that never came to a guard.
func abandoned(h *authoritytest.House) (task string) {
	h.Payments("")
	task = h.Consent(h.RefundTask("one", "effects: 5, spend: 100, spend_day: 10"))
	w := h.Claim(h.Plan(task))
	h.PaymentsGuard().Done(w, w.Refunded("a", 5), 5)
	w.Refunded("b", 4)
	h.Into(w.Settle("succeeded"), nil)
	return task
}

func releasedTwice(_ *testing.T, h *authoritytest.House) string {
	task := abandoned(h)
	h.Exec(`SELECT nw.release_reservations(10)`)
	h.Exec(`SELECT nw.release_reservations(10)`)
	if h.Claim(h.Plan(task)).Refund("c", 6).Status == http.StatusOK {
		return "five are spent and six are reserved of ten"
	}
	return ""
}

// releasedTooEarly: the lease is lost and the effect has lapsed, but its run goes on and may mint it again.
func releasedTooEarly(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	w := refunding(h, "one", "effects: 5, spend: 10")
	w.Refunded("a", 6)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	h.Exec(`SELECT nw.reap(id) FROM nw.runs`)
	h.Exec(`SELECT nw.release_reservations(10)`)
	if a := h.Claim(w.Run).Refund("a", 6); a.Status != http.StatusOK {
		return "what was reserved once must be reserved again: " + a.Problem().Ceiling
	}
	return ""
}

func dayThatNeverEnds(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	task := h.Consent(h.RefundTask("one", "effects: 5, spend: 100, spend_day: 10"))
	h.Exec(`UPDATE nw.ledgers SET day = current_date - 40, month = date_trunc('month', current_date - 40), today = 10, monthly = 10 WHERE octet_length(unit) = 32`)
	if a := h.Claim(h.Plan(task)).Refund("a", 6); a.Status != http.StatusOK {
		return "a day of last month still counts: " + a.Problem().Ceiling
	}
	return ""
}

// loopRuns: the same effect under ever new keys, none of which comes to a guard.
func loopRuns(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	w := refunding(h, "one", "effects: 5, spend: 100, repeats: 2")
	for _, key := range []string{"a", "b"} {
		h.Into(w.Ask(key, authoritytest.Refund("p1", 1)), nil)
	}
	if w.Ask("c", authoritytest.Refund("p1", 1)).Status == http.StatusOK {
		return "a loop goes on"
	}
	return ""
}

func limitedRunSucceeds(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	w := refunding(h, "one", "effects: 5, spend: 10")
	w.Refund("a", 11)
	var r api.Receipt
	h.Into(w.Settle("succeeded"), &r)
	if r.State == "succeeded" {
		return "a run that was stopped by a limit says that it succeeded"
	}
	return ""
}

func progressRaises(_ *testing.T, h *authoritytest.House) string {
	h.Payments("")
	w := refunding(h, "one", "effects: 5, spend: 10")
	w.Refunded("a", 10)
	more := int64(10)
	var renewed api.TokenResponse
	h.Into(h.Send(h.Bearing(w.Key, w.Token, "POST", api.PathRenew, api.RenewRequest{SpendLeft: &more})), &renewed)
	if renewed.Run.Left.Spend > 0 {
		return "a worker gives itself money"
	}
	return ""
}

// keyed consents to a task below whose dial no refund is, with the key of the first payment.
func keyed(h *authoritytest.House) (task string) {
	h.Payments("")
	return h.Consent(lowDial(h.RefundTask("one", "effects: 5, spend: 100", `{payment: p1}`)))
}

func lowDial(yaml string) string { return strings.Replace(yaml, "dial: high", "dial: low", 1) }

// unasked mints what must be asked for.
func unasked(h *authoritytest.House, task string, d api.Detail, what string) string {
	if h.Claim(h.Plan(task)).Ask("step", d).Status == http.StatusOK {
		return what
	}
	return ""
}

func anotherKeyPasses(_ *testing.T, h *authoritytest.House) string {
	return unasked(h, keyed(h), authoritytest.Refund("p2", 5), "another payment passes")
}

func keyOfAnotherResourcePasses(_ *testing.T, h *authoritytest.House) string {
	task := h.Consent(strings.Replace(h.Task("one"), `  - {guard: ledger, action: row.delete, resource: "table:entries"}`, `  - {guard: ledger, action: row.delete, resource: "table:entries", pre_approved: [{key: {id: 7}}]}
  - {guard: ledger, action: row.delete, resource: "table:others"}`, 1))
	return unasked(h, task, api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.delete"}, Locations: []string{authoritytest.GuardURI}, Identifier: "table:others",
		Parameters: json.RawMessage(`{"table":"others","key":{"id":7}}`)}, "the key of one table passes at another")
}

func keyOfAnEarlierConsentPasses(_ *testing.T, h *authoritytest.House) string {
	h.Plan(keyed(h))
	task := h.Consent(strings.Replace(lowDial(h.RefundTask("one", "effects: 5, spend: 100")), "\nrevision: 1\n", "\nrevision: 2\n", 1))
	return unasked(h, task, authoritytest.Refund("p1", 5), "a key passes that is not in the consent any more")
}

func withdraw(h *authoritytest.House, task string) error {
	return h.Person(authoritytest.OperatorName).JSON("POST", api.PathWithdraw, api.WithdrawRequest{Task: task, Guard: authoritytest.PaymentsName, Action: "refund.create",
		Resource: authoritytest.Refunds, Key: json.RawMessage(`{"payment":"p1"}`)}, nil)
}

func withdrawnKeyPasses(t *testing.T, h *authoritytest.House) string {
	task := keyed(h)
	require.NoError(t, withdraw(h, task))
	return unasked(h, task, authoritytest.Refund("p1", 5), "a key passes that was withdrawn")
}

func withdrawnKeyIsStillAdmitted(t *testing.T, h *authoritytest.House) string {
	task := keyed(h)
	w := h.Claim(h.Plan(task))
	w.Refunded("p1", 5)
	require.NoError(t, withdraw(h, task))
	if w.Renew().Status == http.StatusOK {
		return "a run goes on with what it was given by a key that was withdrawn"
	}
	return ""
}

// ambiguousRefund settles a refund that nobody knows of, with these parameters as what was sent.
func ambiguousRefund(h *authoritytest.House, parameters string) authoritytest.Answer {
	h.Payments("")
	w, g := refunding(h, "one", "effects: 5, spend: 100"), h.PaymentsGuard()
	minted := w.Refunded("p1", 5)
	return g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: g.Take(w, minted), Outcome: api.Ambiguous, Evidence: &api.Evidence{Answered: api.AnsweredTimeout,
		Action: "refund.create", Resource: authoritytest.Refunds, Amount: 5, Currency: "EUR", Parameters: json.RawMessage(parameters)}})
}

func evidenceOfAnother(t *testing.T, h *authoritytest.House) string {
	ambiguousRefund(h, `{"amount":5,"payment":"p2"}`)
	if len(ambiguous(t, h, authoritytest.MemberName)) > 0 {
		return "an owner is shown what was never allowed as what was sent"
	}
	return ""
}

func evidenceForAll(t *testing.T, h *authoritytest.House) string {
	h.Into(ambiguousRefund(h, `{"amount":5,"payment":"p1"}`), nil)
	require.Len(t, ambiguous(t, h, authoritytest.MemberName), 1)
	if len(ambiguous(t, h, "member-2")) > 0 {
		return "a stranger is shown what was sent"
	}
	return ""
}

func ambiguous(t *testing.T, h *authoritytest.House, who string) []api.AmbiguousEffect {
	t.Helper()
	var page api.Page[api.AmbiguousEffect]
	require.NoError(t, h.Person(who).JSON("GET", api.PathFindings, nil, &page))
	return page.Items
}
