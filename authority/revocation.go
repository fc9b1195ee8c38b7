package authority

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// lag is how long a revocation takes. It begins with the call and ends when the
// new epoch is committed: after that nothing is admitted under an older one, so
// the last admitted effect is no later. What it was, the task's page says.
type lag struct{ seconds *prometheus.HistogramVec }

func newLag() lag {
	return lag{prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nightwarrant_authority_revocation_seconds",
		Help:    "Time from the call that ends authority until the new activation epoch is committed, in seconds, by verb.",
		Buckets: []float64{.002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5}}, []string{"verb"})}
}

// ends calls a verb that advances epochs, and measures it.
func (a *Authority) ends(ctx context.Context, verb string, by spent, sql string, args []any, dest ...any) error {
	began := a.Now()
	err := a.call(ctx, verb, by, sql, args, nil, dest...)
	if err == nil {
		a.lag.observe(verb, a.Now().Sub(began))
	}
	return err
}

func (l lag) observe(verb string, took time.Duration) {
	l.seconds.WithLabelValues(verb).Observe(max(0, took).Seconds())
}

// Collectors are what this authority measures itself; one that is only described measures nothing.
func (a *Authority) Collectors() []prometheus.Collector {
	if a.lag.seconds == nil {
		return nil
	}
	return []prometheus.Collector{a.lag.seconds}
}
