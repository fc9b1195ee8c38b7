package closing

import (
	"slices"
	"time"
)

// rank is the smallest value of a sorted list that at least p of 100 do not exceed; 0 when there is none.
func rank(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

// spread is how long something took, in milliseconds.
type spread struct{ p50, p99, most float64 }

func spreadOf(took []time.Duration) spread {
	sorted := slices.Clone(took)
	slices.Sort(sorted)
	return spread{milli(rank(sorted, 50)), milli(rank(sorted, 99)), milli(rank(sorted, 100))}
}

// milli keeps a tenth of a millisecond: more would be noise.
func milli(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
