package server_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// Whatever a run asks for and its guard reports, in any order: what may be minted is what a plain sum of it allows, and the ledgers are that sum.
func TestLedgersAreSums(t *testing.T) {
	t.Parallel()
	const spend, spendDay, memberDay, effects, steps = 100, 150, 180, 6, 12
	h := spending(t, fmt.Sprintf("member_spend_day: %d", memberDay))
	g := h.PaymentsGuard()
	var member int64
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		if round++; round > 15 { // each is a hundred requests
			return
		}
		task := h.Consent(h.RefundTask(fmt.Sprintf("task-%d", round), fmt.Sprintf("effects: %d, steps: %d, spend: %d, spend_day: %d", effects, steps, spend, spendDay)))
		newMonth(h)
		member = 0
		var today int64
		for range rapid.IntRange(1, 3).Draw(rt, "runs") {
			w := h.Claim(h.Plan(task))
			left, leftEffects, leftSteps := int64(spend), int64(effects), int64(steps)
			open := false
			for n := range rapid.IntRange(1, 8).Draw(rt, "mints") {
				amount := rapid.SampledFrom([]int64{0, 1, 7, 30, 60, 101}).Draw(rt, "amount")
				a := w.Refund(fmt.Sprintf("k%d", n), amount)
				want := ""
				switch {
				case leftSteps < 1:
					want = "steps"
				case leftEffects < 1:
					want = "effects"
				case amount > 0 && amount > left:
					want = "spend"
				case amount > 0 && today+amount > spendDay:
					want = "spend_day"
				case amount > 0 && member+amount > memberDay:
					want = "member_spend_day"
				}
				require.Equal(t, want, a.Problem().Ceiling, string(a.Body))
				if want != "" {
					continue
				}
				var minted api.TokenResponse
				h.Into(a, &minted)
				leftSteps, leftEffects, left, today, member = leftSteps-1, leftEffects-1, left-amount, today+amount, member+amount
				assert.Equal(t, []int64{leftEffects, leftSteps, max(0, min(left, spendDay-today, memberDay-member))}, []int64{minted.Left.Effects, minted.Left.Steps, minted.Left.Spend})
				outcome := rapid.SampledFrom([]string{api.Committed, api.NotApplied, "nothing"}).Draw(rt, "outcome")
				if outcome == "nothing" {
					open = true
					continue
				}
				spent := rapid.Int64Range(0, 2*amount).Draw(rt, "spent")
				h.Into(g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: g.Take(w, minted), Outcome: outcome, Spent: &spent}), nil)
				if outcome == api.NotApplied {
					spent = 0
				}
				left, today, member = left+amount-spent, today+spent-amount, member+spent-amount
			}
			h.Into(w.Settle("succeeded"), nil)
			var back int64
			if open {
				back = h.Count(`SELECT sum(amount) FROM nw.effects WHERE state = 'lapsed' AND reserved_on > '2001-01-01'`)
				h.Exec(`SELECT nw.release_reservations(100)`)
			}
			today, member = today-back, member-back
			require.Equal(t, member, h.Count(`SELECT today FROM nw.ledgers WHERE octet_length(holder) = 32`))
		}
		h.Person(authoritytest.MemberName).JSON("POST", api.PathTasks+"/"+task+"/revoke", nil, nil) //nolint:errcheck // the next round has its own
	})
}

// What was used in a day is used, whatever is agreed afterwards: another revision or another consent begins with the same ledgers.
func TestANewConsentKeepsTheLedgers(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 30")
	yaml := h.RefundTask("refunds", "effects: 10, spend: 100, effects_day: 2, spend_day: 20")
	w, g := h.Claim(h.Plan(h.Consent(yaml))), h.PaymentsGuard()
	g.Done(w, w.Refunded("a", 15), 15)
	for revision := 2; revision <= 3; revision++ {
		w = h.Claim(h.Plan(h.Consent(strings.Replace(yaml, "\nrevision: 1\n", fmt.Sprintf("\nrevision: %d\n", revision), 1))))
		assert.Equal(t, []int64{1, 5}, []int64{w.State.Left.Effects, w.State.Left.Spend})
		stopped(t, h, "spend_day", func() authoritytest.Answer { return w.Refund("b", 6) })
	}
	w = refunder(h, "another", "effects: 10, spend: 100")
	stopped(t, h, "member_spend_day", func() authoritytest.Answer { return w.Refund("a", 16) })
}

// Everything that touches a ledger at once, in lanes of one member: minting, settling for less and for more and for nobody knows what, lost leases, and what
// ended runs give back. At the end every ledger is the sum of its effects; House.Sound holds that.
func TestLedgersUnderRaces(t *testing.T) {
	t.Parallel()
	h := spending(t, "member_spend_day: 400")
	g := h.PaymentsGuard()
	var tasks []string
	for lane := range 3 {
		tasks = append(tasks, h.Consent(h.RefundTask(fmt.Sprintf("lane-%d", lane), "effects: 50, spend: 200, spend_day: 300, effects_day: 100")))
	}
	var lanes sync.WaitGroup
	for _, task := range tasks {
		lanes.Go(func() {
			for range 3 {
				unruly(t, h, task, g)
			}
		})
	}
	lanes.Wait()
	h.Exec(`SELECT nw.release_reservations(1000)`)
	assert.Zero(t, h.Count(`SELECT count(*) FROM nw.effects WHERE state = 'lapsed' AND reserved_on IS NOT NULL`))
	assert.Equal(t, h.Count(`SELECT coalesce(sum(spent), 0) FROM nw.effects`), h.Count(`SELECT today FROM nw.ledgers WHERE octet_length(holder) = 32`))
	assert.Positive(t, h.Count(`SELECT count(*) FROM nw.effects WHERE state = 'committed'`))
}

// unruly is a run of which several workers' steps are under way at once, and which may lose its lease on the way.
func unruly(t *testing.T, h *authoritytest.House, task string, g *authoritytest.Guard) {
	t.Helper()
	run := h.Plan(task)
	w, claimed := h.TryClaim(run)
	for !claimed { // nothing happened
		w, claimed = h.TryClaim(run)
	}
	var steps sync.WaitGroup
	for n := range 3 {
		steps.Go(func() {
			for step := range 3 {
				a := w.Refund(fmt.Sprintf("k%dx%d", n, step), rand.Int64N(40))
				if a.Status != http.StatusOK { // a ceiling, a lost lease, an end: all the same here
					continue
				}
				var minted api.TokenResponse
				h.Into(a, &minted)
				switch rand.IntN(10) {
				case 0: // never comes to a guard
				case 1: // and the hold is over
					h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE ref = $1 AND state = 'claimed'`, authoritytest.Raw(run))
				case 2: // the scheduler comes by
					h.Exec(`SELECT nw.reap(r.run) FROM nw.reapable(10) r`)
					h.Exec(`SELECT nw.release_reservations(3)`)
				default:
					attempt, taken := g.TryTake(w, minted)
					if !taken {
						continue
					}
					spent := rand.Int64N(60)
					settlement := api.SettleEffectRequest{Effect: minted.Effect, Attempt: attempt, Outcome: []string{api.Committed, api.Committed, api.NotApplied, api.Ambiguous}[rand.IntN(4)]}
					if minted.Details[0].Amount > 0 && rand.IntN(2) == 0 {
						settlement.Spent = &spent
					}
					for g.Report(settlement).Status == http.StatusServiceUnavailable {
						continue // the same again: it is settled once
					}
				}
			}
		})
	}
	steps.Wait()
	for h.Count(`SELECT count(*) FROM nw.runs WHERE ref = $1 AND live`, authoritytest.Raw(run)) > 0 {
		h.Exec(`UPDATE nw.runs SET lease_until = clock_timestamp() WHERE ref = $1 AND state = 'claimed'`, authoritytest.Raw(run))
		if w, claimed := h.TryClaim(run); claimed {
			w.Settle("succeeded")
		}
	}
	for _, e := range waiting(t, h, authoritytest.MemberName) {
		if e.Finding == "" && e.Task == task {
			assert.NoError(t, find(h, authoritytest.MemberName, e.Effect, "unknown"))
		}
	}
}
