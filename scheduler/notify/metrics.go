package notify

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics have no label that names a task or a member.
type metrics struct {
	delivered, refused, failed prometheus.Counter
	due, dead                  prometheus.Gauge
}

const namespace = "nightwarrant_scheduler_notices_"

// newMetrics registers with r, unless it is nil.
func newMetrics(r prometheus.Registerer, channel string) (*metrics, error) {
	by := prometheus.Labels{"channel": channel}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help, ConstLabels: by})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: namespace + name, Help: help, ConstLabels: by})
	}
	m := &metrics{
		delivered: counter("delivered_total", "Notices that the receiver has taken."),
		refused:   counter("refused_total", "Attempts that the receiver has refused."),
		failed:    counter("failed_total", "Attempts while the receiver was away."),
		due:       gauge("due", "Notices that wait for their delivery, in the whole cluster."),
		dead:      gauge("dead", "Notices that were given up, in the whole cluster."),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.delivered, m.refused, m.failed, m.due, m.dead} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
