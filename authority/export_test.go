package authority

import "context"

// Pace lets an authority's quota begin anew, with another burst, one refusal a
// second and a time that passes only when it is told to.
func Pace(a *Authority, burst int) *Clock {
	q, c := smallQuota(burst, quotaPayers)
	a.quota.lock.Lock()
	defer a.quota.lock.Unlock()
	a.quota.now, a.quota.burst, a.quota.refill, a.quota.debts = q.now, q.burst, q.refill, q.debts
	a.quota.order.Init()
	return c
}

// Flush writes what was counted.
func Flush(a *Authority) { a.refusals.flush(context.Background(), a.Pool) }
