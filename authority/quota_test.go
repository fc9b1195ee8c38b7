package authority

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// Clock is a time that only a test moves.
type Clock struct {
	lock  sync.Mutex
	at    time.Time
	asked int
}

func (c *Clock) now() time.Time {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.asked++
	return c.at
}

// Asked is how often somebody has looked at the clock.
func (c *Clock) Asked() int {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.asked
}

// Pass lets time pass.
func (c *Clock) Pass(d time.Duration) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.at = c.at.Add(d)
}

func smallQuota(burst, most int) (*quota, *Clock) {
	c := &Clock{at: time.Unix(1_800_000_000, 0)}
	q := newQuota(c.now)
	q.burst, q.refill, q.most = burst, time.Second, most
	return q, c
}

func somebody(n int) payer { return payerOf("test", binary.BigEndian.AppendUint32(nil, uint32(n))) }

func TestQuotaIsSpentAndRefilled(t *testing.T) {
	t.Parallel()
	q, c := smallQuota(3, 10)
	for range 3 {
		assert.Zero(t, q.wait(somebody(1)))
		q.charge(somebody(1))
	}
	assert.Equal(t, time.Second, q.wait(somebody(1)))
	assert.Zero(t, q.wait(somebody(2)), "a neighbour")
	c.Pass(time.Second - 1)
	assert.EqualValues(t, 1, q.wait(somebody(1)))
	c.Pass(1)
	assert.Zero(t, q.wait(somebody(1)))
	q.charge(somebody(1))
	assert.Equal(t, time.Second, q.wait(somebody(1)))
	c.Pass(time.Hour)
	for range 3 {
		assert.Zero(t, q.wait(somebody(1)), "more than the burst is not saved up")
		q.charge(somebody(1))
	}
	assert.Positive(t, q.wait(somebody(1)))
}

// Calls that were under way together are paid for one by one.
func TestWhatIsBeyondTheBurstIsPaidOff(t *testing.T) {
	t.Parallel()
	q, c := smallQuota(3, 10)
	for range 10 {
		q.charge(somebody(1))
	}
	assert.Equal(t, 8*time.Second, q.wait(somebody(1)))
	c.Pass(8 * time.Second)
	assert.Zero(t, q.wait(somebody(1)))
}

func TestOnlyTheLastToBeRefusedAreRemembered(t *testing.T) {
	t.Parallel()
	q, _ := smallQuota(1, 3)
	for _, n := range []int{1, 2, 3, 1, 4} { // 2 was refused before all others
		q.charge(somebody(n))
	}
	for n, remembered := range map[int]bool{1: true, 2: false, 3: true, 4: true} {
		assert.Equal(t, remembered, q.wait(somebody(n)) > 0, "%d", n)
	}
	for n := range 1000 {
		q.charge(somebody(n))
		q.wait(somebody(n + 1))
	}
	assert.Len(t, q.debts, 3)
	assert.Equal(t, 3, q.order.Len())
}

// However a caller spreads his calls, his refusals in any stretch of time are at most the burst and what was refilled
// meanwhile; and who waits as long as he was told is heard.
func TestQuotaBoundsEveryStretchOfTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		burst := rapid.IntRange(1, 20).Draw(t, "burst")
		q, c := smallQuota(burst, 10)
		var refused []time.Time
		for range rapid.IntRange(1, 100).Draw(t, "calls") {
			c.Pass(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "pause")))
			wait := q.wait(somebody(1))
			if wait > 0 && rapid.Bool().Draw(t, "obeys") {
				c.Pass(wait)
				assert.Zero(t, q.wait(somebody(1)))
				wait = 0
			}
			if wait == 0 {
				q.charge(somebody(1))
				refused = append(refused, c.now())
			}
		}
		for from := range refused {
			for to := from; to < len(refused); to++ {
				if refilled := int(refused[to].Sub(refused[from]) / q.refill); to-from+1 > burst+refilled {
					t.Fatalf("%d refusals with a burst of %d and %d refilled", to-from+1, burst, refilled)
				}
			}
		}
	})
}

func TestQuotaIsSharedByManyCalls(t *testing.T) {
	t.Parallel()
	q, _ := smallQuota(5, 8)
	var all sync.WaitGroup
	for n := range 16 {
		all.Go(func() {
			for range 200 {
				q.wait(somebody(n % 4))
				q.charge(somebody(n % 4))
				q.charge(somebody(1000 + n))
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, len(q.debts), 8)
	assert.Equal(t, len(q.debts), q.order.Len())
}

// Who pays is told apart by everything that was proved.
func TestPayersAreToldApart(t *testing.T) {
	t.Parallel()
	seen := map[payer]string{}
	for _, parts := range [][]string{{"workload", "https://a", "b"}, {"workload", "https://a", "c"}, {"workload", "https://b", "b"}, {"member", "https://a", "b"}, {"component", "b"}, {"key", "b"}} {
		var rest [][]byte
		for _, p := range parts[1:] {
			rest = append(rest, []byte(p))
		}
		p, name := payerOf(parts[0], rest...), fmt.Sprint(parts)
		assert.Empty(t, seen[p], name)
		seen[p] = name
	}
}
