package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// spending is a house whose guard moves money, with more limits in the policy of those tasks.
func spending(t *testing.T, windows string) *authoritytest.House {
	t.Helper()
	h := authoritytest.New(t)
	h.Payments(windows)
	return h
}

// refunder is a worker that has claimed a run of a new task with these limits.
func refunder(h *authoritytest.House, name, limits string) *authoritytest.Holder {
	return h.Claim(h.Plan(h.Consent(h.RefundTask(name, limits))))
}

var shortfall = regexp.MustCompile(`"shortfall":(null|"[a-z]+")`)

// stopped sends a mint that a ceiling must refuse. All that it may leave is that its run fell short.
func stopped(t *testing.T, h *authoritytest.House, ceiling string, send func() authoritytest.Answer) {
	t.Helper()
	consumed := func() string { return shortfall.ReplaceAllString(h.Consumed(), "") }
	before := consumed()
	a := send()
	want := api.LimitReached
	if ceiling == "repeats" {
		want = api.LoopDetected
	}
	assert.Equal(t, want, a.Problem().Code, string(a.Body))
	assert.Equal(t, ceiling, a.Problem().Ceiling)
	assert.Equal(t, http.StatusForbidden, a.Status)
	assert.Equal(t, before, consumed(), "a refused mint has consumed something")
}

// newMonth lets all that was reserved so far be of long ago.
func newMonth(h *authoritytest.House) {
	h.T.Helper()
	h.Exec(`ALTER TABLE nw.ledgers DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.ledgers SET day = '-infinity', month = '-infinity', today = 0, monthly = 0`)
	h.Exec(`ALTER TABLE nw.ledgers ENABLE TRIGGER USER`)
	h.Exec(`ALTER TABLE nw.effects DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.effects SET reserved_on = '2001-01-01' WHERE reserved_on IS NOT NULL`)
	h.Exec(`ALTER TABLE nw.effects ENABLE TRIGGER USER`)
}

// name makes a task's name of what a case is called.
func name(words ...string) string {
	return strings.NewReplacer("_", "-", " ", "-", ",", "").Replace(strings.Join(words, "-"))
}

// windowed are houses, each made once, by the windows of their policy. Cases in one follow each other.
func windowed[C any](t *testing.T, cases map[string]C, windows func(c C) string, run func(t *testing.T, h *authoritytest.House, name string, c C)) {
	t.Helper()
	groups := map[string][]string{}
	for name, c := range cases {
		groups[windows(c)] = append(groups[windows(c)], name)
	}
	for of, names := range groups {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			h := spending(t, of)
			for _, name := range names {
				t.Run(name, func(t *testing.T) {
					newMonth(h)
					run(t, h, name, cases[name])
				})
			}
		})
	}
}

func settled(t *testing.T, h *authoritytest.House, w *authoritytest.Holder, result string) (r api.Receipt) {
	t.Helper()
	h.Into(w.Settle(result), &r)
	return r
}

// B7, B9: each ceiling refuses by its name, consumes nothing, and the run ends as stopped by a limit whatever its worker says.
func TestCeilings(t *testing.T) {
	t.Parallel()
	type ceiling struct {
		limits, windows string
		used            func(w *authoritytest.Holder) // up to it
		more            func(w *authoritytest.Holder) authoritytest.Answer
	}
	windowed(t, map[string]ceiling{
		"steps": {limits: "effects: 10, steps: 3, spend: 100",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 1); w.Refunded("a", 1); w.Refunded("b", 1) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("a", 1) }},
		"repeats": {limits: "effects: 10, repeats: 2, spend: 100",
			used: func(w *authoritytest.Holder) {
				for _, key := range []string{"a", "b"} {
					require.Equal(t, http.StatusOK, w.Ask(key, authoritytest.Refund("p1", 1)).Status)
				}
			},
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Ask("c", authoritytest.Refund("p1", 1)) }},
		"effects": {limits: "effects: 2, spend: 100",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 0); w.Refunded("b", 0) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("c", 0) }},
		"spend": {limits: "effects: 10, spend: 100",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 60) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("b", 41) }},
		"effects_day": {limits: "effects: 10, spend: 100, effects_day: 2, effects_month: 9",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 1); w.Refunded("b", 1) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("c", 0) }},
		"effects_month": {limits: "effects: 10, spend: 100, effects_month: 2",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 1); w.Refunded("b", 1) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("c", 0) }},
		"spend_day": {limits: "effects: 10, spend: 100, spend_day: 50, spend_month: 100",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 50) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("b", 1) }},
		"spend_month": {limits: "effects: 10, spend: 100, spend_month: 50",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 49) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("b", 2) }},
		"member_spend_day": {limits: "effects: 10, spend: 100, spend_day: 99", windows: "member_spend_day: 50, member_spend_month: 100",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 30) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("b", 21) }},
		"member_spend_month": {limits: "effects: 10, spend: 100", windows: "member_spend_month: 50",
			used: func(w *authoritytest.Holder) { w.Refunded("a", 30) },
			more: func(w *authoritytest.Holder) authoritytest.Answer { return w.Refund("b", 21) }},
	}, func(c ceiling) string { return c.windows }, func(t *testing.T, h *authoritytest.House, of string, c ceiling) {
		for _, says := range []string{"succeeded", "failed"} {
			w := refunder(h, name(of, says), c.limits)
			c.used(w)
			stopped(t, h, of, func() authoritytest.Answer { return c.more(w) })
			stopped(t, h, of, func() authoritytest.Answer { return c.more(w) }) // and again
			assert.Equal(t, "stopped_by_limit", settled(t, h, w, says).State, "whatever its worker says")
			h.Exec(`SELECT nw.release_reservations(10)`)
		}
	})
}

// What is known has its share: minting it again needs no more of any ledger, and the outcome of a settled key is told to a run that has nothing left.
func TestAKnownEffectHasItsShare(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 10")
	w, g := refunder(h, "refunds", "effects: 1, steps: 3, repeats: 1, spend: 10, effects_day: 1, spend_day: 10"), h.PaymentsGuard()
	w.Refunded("a", 10)
	ledgers := h.Count(`SELECT sum(today + 1000 * monthly) FROM nw.ledgers`)
	again := w.Refunded("a", 10)
	assert.Equal(t, ledgers, h.Count(`SELECT sum(today + 1000 * monthly) FROM nw.ledgers`))
	assert.Equal(t, api.Left{Steps: 1, Used: 100, WrapUp: api.WrapUpStop}, *again.Left)
	g.Done(w, again, 10)
	w.Refunded("a", 10) // costs no step
	assert.EqualValues(t, 1, h.Count(`SELECT steps_left FROM nw.runs`))
	stopped(t, h, "effects", func() authoritytest.Answer { return w.Refund("b", 0) })
}

// Amounts that are no amounts are refused before anything is looked at, and so is money of another country.
func TestAmountsRefused(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w := refunder(h, "refunds", "effects: 10, spend: 1000000000000")
	refund := func(change func(d *api.Detail)) func() authoritytest.Answer {
		d := authoritytest.Refund("p1", 5)
		change(&d)
		return func() authoritytest.Answer { return w.Ask("a", d) }
	}
	amount := func(text string, n int64) func(d *api.Detail) {
		return func(d *api.Detail) {
			d.Parameters, d.Amount = json.RawMessage(`{"payment":"p1","amount":`+text+`}`), n
		}
	}
	for name, change := range map[string]func(d *api.Detail){
		"negative":                   amount("-5", -5),
		"fractional":                 amount("5.5", 5),
		"fractional, but whole":      amount("5.0", 5),
		"in powers":                  amount("5e0", 5),
		"as text":                    amount(`"5"`, 5),
		"too large":                  amount("1000000000001", 1000000000001),
		"beyond what JSON can count": amount("9007199254740993", 9007199254740993),
		"beyond 64 bits":             amount("18446744073709551621", 5),
		"absent":                     func(d *api.Detail) { d.Parameters = json.RawMessage(`{"payment":"p1"}`) },
		"null":                       amount("null", 5),
		"other than what it says":    func(d *api.Detail) { d.Amount = 4 },
		"nothing at all, it says":    func(d *api.Detail) { d.Amount, d.Currency = 0, "" },
		"without currency":           func(d *api.Detail) { d.Currency = "" },
		"in another currency":        func(d *api.Detail) { d.Currency = "USD" },
		"in no currency":             func(d *api.Detail) { d.Currency = "eur" },
		"nothing, in a currency":     func(d *api.Detail) { *d = authoritytest.Refund("p1", 0); d.Currency = "EUR" },
	} {
		t.Run(name, func(t *testing.T) { refusedWith(t, h, api.InvalidAuthorizationDetails, refund(change)) })
	}
	w.Refunded("most", 1000000000000)
}

// A run spends in the one currency of its limits: a grant in another one is no grant.
func TestOtherCurrencies(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	abroad := strings.Replace(h.RefundTask("abroad", "effects: 10, spend: 100"), "grants:", `grants:
  - {guard: payments, action: refund.abroad, resource: "`+authoritytest.Refunds+`/usd", max_amount: 50, currency: CURRENCY}`, 1)
	apply := func(yaml string) error {
		return h.Person(authoritytest.OperatorName).Do("POST", api.PathRegistry, "application/yaml", []byte(yaml), nil)
	}
	assert.Equal(t, api.InvalidDocument, codeOf(apply(strings.Replace(abroad, "CURRENCY", "USD", 1))))
	assert.Equal(t, api.InvalidDocument, codeOf(apply(h.RefundTask("dollars", "effects: 10, currency: USD, spend: 100"))))
	w := h.Claim(h.Plan(h.Consent(strings.Replace(abroad, "CURRENCY", "EUR", 1)))) // the grant says one thing, the operation another
	refusedWith(t, h, api.NotGranted, func() authoritytest.Answer {
		return w.Ask("a", api.Detail{Type: api.DetailTypeEffect, Actions: []string{"refund.abroad"}, Locations: []string{authoritytest.PaymentsURI}, Identifier: authoritytest.Refunds + "/usd",
			Parameters: json.RawMessage(`{"payment":"p1","amount":5}`), Amount: 5, Currency: "USD"})
	})
}

// A grant bounds one effect, a limit the run: both hold, and a run without spend pays nothing.
func TestAGrantBoundsOneEffect(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w := h.Claim(h.Plan(h.Consent(strings.Replace(h.RefundTask("refunds", "effects: 10, spend: 100"), "max_amount: 1000000000000", "max_amount: 30", 1))))
	refusedWith(t, h, api.NotGranted, func() authoritytest.Answer { return w.Refund("a", 31) })
	w.Refunded("a", 30)
	assert.Equal(t, "succeeded", settled(t, h, w, "succeeded").State, "what was never granted is no limit that was reached")
	unpaid := strings.NewReplacer(", max_amount: 1000000000000, currency: EUR", "", "currency: EUR, ", "").Replace(h.RefundTask("unpaid", "effects: 10"))
	w = h.Claim(h.Plan(h.Consent(unpaid)))
	refusedWith(t, h, api.NotGranted, func() authoritytest.Answer { return w.Refund("a", 1) })
	assert.Zero(t, w.Refunded("a", 0).Left.Spend)
}

// burst is a number of mints at once, each with a key of its own, and says how many were minted. Every other must be refused by that ceiling.
func burst(t *testing.T, n int, ceiling string, mint func(n int) authoritytest.Answer) int64 {
	t.Helper()
	var minted atomic.Int64
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		all.Go(func() {
			<-start
			a := mint(i)
			for a.Status == http.StatusServiceUnavailable { // on a busy machine a lock may take longer than the role waits, or a replica's copy grows old: nothing happened, ask again
				a = mint(i)
			}
			switch {
			case a.Status == http.StatusOK:
				minted.Add(1)
			default:
				assert.Equal(t, api.LimitReached, a.Problem().Code, string(a.Body))
				assert.Equal(t, ceiling, a.Problem().Ceiling)
			}
		})
	}
	close(start)
	all.Wait()
	return minted.Load()
}

// B9: 64 parallel mints against a budget of ten give exactly ten, whichever budget it is.
func TestParallelMints(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	for ceiling, limits := range map[string]string{
		"effects":       "effects: 10, spend: 1000",
		"spend":         "effects: 100, spend: 10",
		"steps":         "effects: 100, steps: 10, spend: 1000",
		"effects_day":   "effects: 100, effects_day: 10, spend: 1000",
		"effects_month": "effects: 100, effects_month: 10, spend: 1000",
		"spend_day":     "effects: 100, spend: 1000, spend_day: 10",
		"spend_month":   "effects: 100, spend: 1000, spend_month: 10",
	} {
		t.Run(ceiling, func(t *testing.T) {
			newMonth(h)
			w := refunder(h, name(ceiling), limits)
			got := burst(t, 64, ceiling, func(n int) authoritytest.Answer { return w.Refund(fmt.Sprintf("k%d", n), 1) })
			assert.EqualValues(t, 10, got)
			assert.EqualValues(t, 10, h.Count(`SELECT count(*) FROM nw.effects WHERE run_id = (SELECT id FROM nw.runs WHERE live)`))
			assert.EqualValues(t, 30, h.Count(`SELECT sum(today) FROM nw.ledgers`), "ten in each of the three ledgers")
			assert.Equal(t, "stopped_by_limit", settled(t, h, w, "succeeded").State)
		})
	}
}

// A member's window is one ledger of all the member's tasks: two runs in two lanes share it, at two replicas.
func TestAMembersWindowIsShared(t *testing.T) {
	t.Parallel()
	for _, ceiling := range []string{"member_spend_day", "member_spend_month"} {
		t.Run(ceiling, func(t *testing.T) {
			t.Parallel()
			h := spending(t, ceiling+": 10")
			runs := []*authoritytest.Holder{refunder(h, "first", "effects: 100, spend: 1000"), refunder(h, "second", "effects: 100, spend: 1000")}
			got := burst(t, 64, ceiling, func(n int) authoritytest.Answer { return runs[n%2].Refund(fmt.Sprintf("k%d", n), 1) })
			assert.EqualValues(t, 10, got)
			assert.EqualValues(t, 10, h.Count(`SELECT max(today) FROM nw.ledgers WHERE octet_length(holder) = 32`))
			assert.EqualValues(t, 20, h.Count(`SELECT sum(today) FROM nw.ledgers WHERE octet_length(unit) = 32`))
			for _, w := range runs {
				assert.Zero(t, w.Refunded(fmt.Sprintf("free%d", len(w.Run)), 0).Left.Spend, "what costs nothing goes on")
			}
		})
	}
}

// B9: a mint is in the task's and in the member's ledger, or in none: whichever refuses, the other keeps what it had.
func TestBothLedgersOrNone(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 50")
	poor, rich := refunder(h, "poor", "effects: 10, spend: 100, spend_day: 20"), refunder(h, "rich", "effects: 10, spend: 100, spend_day: 90")
	poor.Refunded("a", 15)
	stopped(t, h, "spend_day", func() authoritytest.Answer { return poor.Refund("b", 6) }) // the member's would have taken it
	rich.Refunded("a", 35)
	stopped(t, h, "member_spend_day", func() authoritytest.Answer { return rich.Refund("b", 1) }) // the task's would have taken it
	stopped(t, h, "member_spend_day", func() authoritytest.Answer { return poor.Refund("b", 5) })
}

// A ledger that is missing has no money in it.
func TestNoLedgerNoMoney(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w := refunder(h, "refunds", "effects: 10, spend: 100")
	h.Exec(`ALTER TABLE nw.ledgers DISABLE TRIGGER USER; DELETE FROM nw.ledgers WHERE octet_length(holder) = 32; ALTER TABLE nw.ledgers ENABLE TRIGGER USER`)
	stopped(t, h, "spend", func() authoritytest.Answer { return w.Refund("a", 1) })
}

// What was really spent is charged: less is given back, more is charged and stops the next one, of nothing known all that was reserved.
func TestWhatWasSpentIsCharged(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	type cost struct {
		outcome string
		spent   *int64
		left    int64 // of 100, after 40 were reserved
	}
	windowed(t, map[string]cost{
		"all, when nothing is said":          {api.Committed, nil, 60},
		"less":                               {api.Committed, n(25), 75},
		"nothing":                            {api.Committed, n(0), 100},
		"more":                               {api.Committed, n(90), 10},
		"nothing of what was not applied":    {api.NotApplied, nil, 100},
		"whatever it says, of not applied":   {api.NotApplied, n(7), 100},
		"all of what nobody knows":           {api.Ambiguous, nil, 60},
		"all, though less is said":           {api.Ambiguous, n(5), 60},
		"more, though nobody knows":          {api.Ambiguous, n(90), 10},
		"more than there was, which it owes": {api.Committed, n(130), 0},
	}, func(cost) string { return "member_spend_day: 100, member_spend_month: 100" }, func(t *testing.T, h *authoritytest.House, of string, c cost) {
		w, g := refunder(h, name(of), "effects: 10, spend: 100, spend_day: 100, spend_month: 100"), h.PaymentsGuard()
		minted := w.Refunded("a", 40)
		assert.EqualValues(t, 60, minted.Left.Spend)
		h.Into(g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: g.Take(w, minted), Outcome: c.outcome, Spent: c.spent}), nil)
		if c.outcome == api.Ambiguous { // its run has ended; the member's other tasks go on
			w = refunder(h, name(of, "other"), "effects: 10, spend: 100")
		}
		if c.left < 100 {
			stopped(t, h, map[bool]string{true: "member_spend_day", false: "spend"}[c.outcome == api.Ambiguous], func() authoritytest.Answer { return w.Refund("b", c.left+1) })
		}
		assert.Equal(t, c.left, w.Refunded("free", 0).Left.Spend)
		if c.left > 0 {
			assert.Zero(t, w.Refunded("b", c.left).Left.Spend)
		}
	})
}

// What a guard says of the cost is checked: no negative sum, none beyond bounds, none of an effect that costs nothing.
func TestSpentRefused(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w, g := refunder(h, "refunds", "effects: 10, spend: 100"), h.PaymentsGuard()
	for n, c := range []struct{ amount, spent int64 }{{40, -1}, {40, -1 << 62}, {40, 1000000000001}, {0, 1}, {0, -1}} {
		minted := w.Refunded(fmt.Sprintf("k%d", n), c.amount)
		attempt := g.Take(w, minted)
		refusedWith(t, h, api.InvalidRequest, func() authoritytest.Answer {
			return g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: attempt, Outcome: api.Committed, Spent: &c.spent})
		})
		for _, text := range []string{"1.5", `"1"`, "1e2", "null"} {
			refusedWith(t, h, api.InvalidRequest, func() authoritytest.Answer {
				r := h.Request("POST", api.PathSettle, "application/json", []byte(`{"effect":"`+minted.Effect+`","attempt":"`+attempt+`","outcome":"committed","spent":`+text+`}`))
				r.Header = h.Bearing(g.Key, g.Token, "POST", api.PathSettle, struct{}{}).Header
				return h.Send(r)
			})
		}
		h.Into(g.Settle(minted.Effect, attempt, api.NotApplied), nil)
	}
	assert.EqualValues(t, 100, h.Count(`SELECT spend_left FROM nw.runs`))
}

// A settlement is told once: another sum for the same outcome changes nothing, and neither does a late one.
func TestSpentIsToldOnce(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w, g := refunder(h, "refunds", "effects: 10, spend: 100"), h.PaymentsGuard()
	minted := w.Refunded("a", 40)
	attempt := g.Take(w, minted)
	for _, spent := range []int64{30, 5, 90} {
		h.Into(g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: attempt, Outcome: api.Committed, Spent: &spent}), nil)
	}
	assert.EqualValues(t, 30, h.Count(`SELECT sum(spent) FROM nw.effects`))
	assert.EqualValues(t, 30, h.Count(`SELECT min(today) FROM nw.ledgers WHERE octet_length(unit) = 32`))
	assert.EqualValues(t, 70, w.Refunded("free", 0).Left.Spend)
}

// What was reserved and never came to a guard is given back when its run has ended, and not before; once.
func TestReservationsAreReleased(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 100")
	task := h.Consent(h.RefundTask("refunds", "effects: 10, spend: 100, effects_day: 3, spend_day: 100"))
	w, g := h.Claim(h.Plan(task)), h.PaymentsGuard()
	g.Done(w, w.Refunded("done", 10), 10)
	w.Refunded("never", 50)
	w.Refunded("neither", 40)
	release := func() (n int64) {
		require.NoError(t, h.DB.Pool(t, "nw_scheduler").QueryRow(t.Context(), `SELECT released FROM nw.release_reservations(10)`).Scan(&n))
		return n
	}
	assert.Zero(t, release(), "they may still be used")
	assert.Equal(t, "succeeded", settled(t, h, w, "succeeded").State)
	next := h.Claim(h.Plan(task))
	stopped(t, h, "effects_day", func() authoritytest.Answer { return next.Refund("b", 0) })
	h.Close() // giving back needs no open gate
	assert.EqualValues(t, 2, release())
	assert.Zero(t, release())
	h.Open()
	require.Equal(t, http.StatusOK, next.Renew().Status)
	assert.EqualValues(t, 90, next.State.Left.Spend)
	next.Refunded("b", 90)
	stopped(t, h, "spend", func() authoritytest.Answer { return next.Refund("c", 11) })
	stopped(t, h, "spend_day", func() authoritytest.Answer { return next.Refund("c", 1) })
	next.Refunded("c", 0)
	stopped(t, h, "effects_day", func() authoritytest.Answer { return next.Refund("d", 0) })
}

// A lost lease keeps what its run has reserved: whoever comes next goes on with it.
func TestALostLeaseKeepsItsReservations(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w, g := refunder(h, "refunds", "effects: 2, spend: 100"), h.PaymentsGuard()
	w.Refunded("a", 60)
	h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE state = 'claimed'`)
	next := h.Claim(w.Run)
	assert.Equal(t, api.Left{Effects: 1, Steps: 999, Spend: 40, Used: 60, WrapUp: api.WrapUpNow}, next.State.Left)
	stopped(t, h, "spend", func() authoritytest.Answer { return next.Refund("b", 41) })
	g.Done(next, next.Refunded("a", 60), 60) // has its share
	assert.EqualValues(t, 60, h.Count(`SELECT min(today) FROM nw.ledgers WHERE octet_length(unit) = 32`))
}

// Days and months are UTC's: what was used in an earlier one does not count, and is not taken out of the present one when it is given back.
func TestDaysAndMonthsRollOver(t *testing.T) {
	t.Parallel()
	type window struct {
		limits, windows, ago string // what fills it, and when
	}
	windowed(t, map[string]window{
		"effects_day":        {"effects_day: 2", "", "1 day"},
		"spend_day":          {"spend_day: 20", "", "1 day"},
		"member_spend_day":   {"effects_month: 90", "member_spend_day: 20", "1 day"},
		"effects_month":      {"effects_month: 2", "", "32 days"},
		"spend_month":        {"spend_month: 20", "", "32 days"},
		"member_spend_month": {"effects_month: 90", "member_spend_month: 20", "32 days"},
	}, func(c window) string { return c.windows }, func(t *testing.T, h *authoritytest.House, of string, c window) {
		w, g := refunder(h, name(of), "effects: 10, spend: 100, "+c.limits), h.PaymentsGuard()
		old := w.Refunded("a", 10)
		attempt := g.Take(w, old)
		w.Refunded("b", 10)
		stopped(t, h, of, func() authoritytest.Answer { return w.Refund("c", 1) })
		earlier(h, c.ago)
		w.Refunded("c", 5)
		spent := int64(3)
		h.Into(g.Report(api.SettleEffectRequest{Effect: old.Effect, Attempt: attempt, Outcome: api.Committed, Spent: &spent}), nil)
		assert.EqualValues(t, 5, h.Count(`SELECT today FROM nw.ledgers WHERE octet_length(holder) = 32`), "it is a day's own that is given back to it")
		w.Refunded("d", 15)
		stopped(t, h, of, func() authoritytest.Answer { return w.Refund("e", 1) })
	})
}

// earlier moves all that was reserved so far, in ledgers and effects alike.
func earlier(h *authoritytest.House, ago string) {
	h.T.Helper()
	h.Exec(`ALTER TABLE nw.ledgers DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.ledgers SET day = (day - $1::interval)::date, month = date_trunc('month', day - $1::interval)::date WHERE day > '-infinity'`, ago)
	h.Exec(`UPDATE nw.ledgers y SET monthly = (SELECT CASE WHEN y.unit = '' THEN count(*) ELSE sum(coalesce(spent, amount)) END FROM nw.effects WHERE reserved_on > '2001-01-01') WHERE day > '-infinity'`)
	h.Exec(`ALTER TABLE nw.ledgers ENABLE TRIGGER USER`)
	h.Exec(`ALTER TABLE nw.effects DISABLE TRIGGER USER`)
	h.Exec(`UPDATE nw.effects SET reserved_on = (reserved_on - $1::interval)::date WHERE reserved_on > '2001-01-01'`, ago)
	h.Exec(`ALTER TABLE nw.effects ENABLE TRIGGER USER`)
}

// B4: what a worker says of itself can only stop it earlier.
func TestProgressOnlyLowers(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w, g := refunder(h, "refunds", "effects: 10, steps: 20, spend: 5000000000"), h.PaymentsGuard()
	n := func(v int64) *int64 { return &v }
	renew := func(r api.RenewRequest) authoritytest.Answer {
		a := h.Send(h.Bearing(w.Key, w.Token, "POST", api.PathRenew, r))
		if out := (api.TokenResponse{}); a.Status == http.StatusOK {
			h.Into(a, &out)
			w.Token, w.State = capability.Token(out.AccessToken), *out.Run
		}
		return a
	}
	for _, r := range []api.RenewRequest{{EffectsLeft: n(-1)}, {StepsLeft: n(-1)}, {SpendLeft: n(-1)}, {EffectsLeft: n(1 << 40)}, {StepsLeft: n(1 << 40)}, {SpendLeft: n(1000000000001)}} {
		refusedWith(t, h, api.InvalidRequest, func() authoritytest.Answer { return renew(r) })
	}
	g.Done(w, w.Refunded("a", 100), 100)
	require.Equal(t, http.StatusOK, renew(api.RenewRequest{EffectsLeft: n(10), StepsLeft: n(20), SpendLeft: n(5000000000)}).Status)
	assert.Equal(t, api.Left{Effects: 9, Steps: 19, Spend: 4999999900, Used: 10, WrapUp: api.WrapUpNo}, w.State.Left, "it cannot rise")
	require.Equal(t, http.StatusOK, renew(api.RenewRequest{EffectsLeft: n(3), StepsLeft: n(5), SpendLeft: n(4000000000)}).Status)
	assert.Equal(t, []int64{3, 5, 4000000000}, []int64{w.State.Left.Effects, w.State.Left.Steps, w.State.Left.Spend})
	require.Equal(t, http.StatusOK, w.Renew().Status)
	assert.Equal(t, []int64{3, 5, 4000000000}, []int64{w.State.Left.Effects, w.State.Left.Steps, w.State.Left.Spend}, "and nothing said changes nothing")
	stopped(t, h, "spend", func() authoritytest.Answer { return w.Refund("b", 4000000001) })
	require.Equal(t, http.StatusOK, renew(api.RenewRequest{StepsLeft: n(0)}).Status)
	assert.Equal(t, api.WrapUpStop, w.State.Left.WrapUp)
	stopped(t, h, "steps", func() authoritytest.Answer { return w.Refund("b", 1) })
	r := settled(t, h, w, "succeeded")
	assert.Equal(t, []any{"stopped_by_limit", int64(1), int64(100)}, []any{r.State, r.Steps, r.Spent}, "a receipt says what was done, not what was given up")
}

// B7: the hint rises as a ceiling comes near, whichever it is, and the answer to each mint says what is left.
func TestWrapUpRises(t *testing.T) {
	t.Parallel()
	rising := append(slices.Repeat([]string{api.WrapUpNo}, 7), api.WrapUpSoon, api.WrapUpNow, api.WrapUpStop)
	for windows, tasks := range map[string]map[string]string{
		"": {
			"effects": "effects: 10, spend: 1000", "spend": "effects: 100, spend: 10", "steps": "effects: 100, steps: 10, spend: 1000",
			"effects_day": "effects: 100, spend: 1000, effects_day: 10", "effects_month": "effects: 100, spend: 1000, effects_month: 10",
			"spend_day": "effects: 100, spend: 1000, spend_day: 10", "spend_month": "effects: 100, spend: 1000, spend_month: 10",
		},
		"member_spend_day: 10":   {"member_spend_day": "effects: 100, spend: 1000"},
		"member_spend_month: 10": {"member_spend_month": "effects: 100, spend: 1000"},
	} {
		t.Run(windows, func(t *testing.T) {
			t.Parallel()
			h := spending(t, windows)
			for ceiling, limits := range tasks {
				w := refunder(h, strings.ReplaceAll(ceiling, "_", "-"), limits)
				assert.Equal(t, api.WrapUpNo, w.State.Left.WrapUp)
				var said []string
				for n := range 10 {
					left := w.Refunded(fmt.Sprintf("k%d", n), 1).Left
					assert.Equal(t, 10*(n+1), left.Used, ceiling)
					said = append(said, left.WrapUp)
				}
				assert.Equal(t, rising, said, ceiling)
				require.Equal(t, http.StatusOK, w.Renew().Status)
				assert.Equal(t, api.WrapUpStop, w.State.Left.WrapUp, "and renewing says the same of %s", ceiling)
			}
		})
	}
}

// Receipts and the owner's list say what a run has used: steps, and money with its currency.
func TestReceiptsSayWhatWasUsed(t *testing.T) {
	t.Parallel()
	h := spending(t, "")
	w, g := refunder(h, "refunds", "effects: 10, spend: 100"), h.PaymentsGuard()
	g.Done(w, w.Refunded("a", 40), 25)
	w.Refunded("a", 40) // settled: no step
	w.Refunded("b", 10)
	w.Refunded("b", 10)
	r := settled(t, h, w, "succeeded")
	assert.Equal(t, []any{"succeeded", int64(1), int64(3), int64(25), "EUR"}, []any{r.State, r.Committed, r.Steps, r.Spent, r.Currency})
	var runs api.Page[api.Run]
	require.NoError(t, h.Person(authoritytest.MemberName).JSON("GET", api.PathRuns, nil, &runs))
	require.Len(t, runs.Items, 1)
	assert.Equal(t, []any{"succeeded", int64(3), int64(25), "EUR"}, []any{runs.Items[0].State, runs.Items[0].Steps, runs.Items[0].Spent, runs.Items[0].Currency})
	free := h.Claim(h.Plan(h.Consent(h.Task("close-the-day"))))
	free.Minted("book", "rent")
	r = settled(t, h, free, "succeeded")
	assert.Equal(t, []any{int64(1), int64(0), ""}, []any{r.Steps, r.Spent, r.Currency})
}
