package authority

import (
	lru "container/list"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// The quota of one payer at one replica: 600 refusals at once, and ten a second
// from then on.
//
// Who works by the book is refused too, and must not feel it: a close is known
// here half a second late, at a thousand claims a second; after a long one there
// are messages of runs that are over; and an effect in flight is asked for once a
// second by each step that waits for it. A flood gets no more than that: ten rows
// a second of a log that takes thousands.
const (
	quotaBurst  = 600
	quotaRefill = 100 * time.Millisecond // of one refusal
	quotaPayers = 4096                   // remembered at once, some 200 bytes each
)

// payer is who pays for refusals: a digest of what was proved. It is the
// workload, never its key, where an assertion can be used with any number of
// keys; the component; the member; and the key that holds a run. At admit it is
// that key at that guard, so that neither a worker's refusals are its guard's and
// every other worker's, nor the guard's are theirs.
type payer [32]byte

const domainPayer = "nightwarrant/payer/v1"

func payerOf(kind string, parts ...[]byte) payer {
	return canonical.Digest(domainPayer, append([][]byte{[]byte(kind)}, parts...)...)
}

// quota remembers until when each payer is in debt. A payer without refusals is
// not in it, and of the others only those that were refused last: who is
// forgotten has no debt.
type quota struct {
	now    func() time.Time
	burst  int
	refill time.Duration
	most   int

	lock  sync.Mutex
	debts map[payer]*lru.Element // of debt
	order lru.List               // the least recently refused first
}

type debt struct {
	of   payer
	paid time.Time // when all of it will be
}

func newQuota(now func() time.Time) *quota {
	return &quota{now: now, burst: quotaBurst, refill: quotaRefill, most: quotaPayers, debts: map[payer]*lru.Element{}}
}

// wait is how long it takes until one more refusal of p may have a row; zero when it may.
func (q *quota) wait(p payer) time.Duration {
	q.lock.Lock()
	defer q.lock.Unlock()
	e, ok := q.debts[p]
	if !ok {
		return 0
	}
	allowed := time.Duration(q.burst-1) * q.refill
	return max(0, e.Value.(debt).paid.Sub(q.now())-allowed)
}

// charge lets p pay for a refusal that has a row. Calls that were under way at
// the same time may take a payer beyond the burst; that is paid off as well.
func (q *quota) charge(p payer) {
	q.lock.Lock()
	defer q.lock.Unlock()
	paid := q.now()
	if e, ok := q.debts[p]; ok {
		if owed := q.order.Remove(e).(debt); owed.paid.After(paid) {
			paid = owed.paid
		}
	} else if len(q.debts) >= q.most {
		delete(q.debts, q.order.Remove(q.order.Front()).(debt).of)
	}
	q.debts[p] = q.order.PushBack(debt{p, paid.Add(q.refill)})
}

// standing says how a call may be made: with a row if it is refused; quietly,
// without one; or not at all. Settling (P16), reporting, and what stops something
// is never refused for a quota: it is made quietly, and can be, because the verbs
// of these change nothing but the audit log when they refuse.
func (a *Authority) standing(by spent) (quiet bool, err error) {
	wait := a.quota.wait(by.payer)
	if wait > 0 && !by.exempt {
		return false, &api.Refusal{Code: api.TooManyRequests, RetryAfter: max(wait, time.Second)}
	}
	return wait > 0, nil
}

// regardless marks a call that no quota refuses.
func (s spent) regardless() spent {
	s.exempt = true
	return s
}
