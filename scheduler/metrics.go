package scheduler

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are counters without a label that names a task or a member.
type metrics struct {
	planned, published, unpublished, expired, consents, silences, recycled prometheus.Counter
	skipped, reaped, failures, panics                                      *prometheus.CounterVec
	queueGood, approvalsGood                                               prometheus.Gauge
}

const namespace = "nightwarrant_scheduler_"

// newMetrics registers with r, unless it is nil.
func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		planned:       counter("slots_planned_total", "Slots that became a run, were skipped or were coalesced."),
		published:     counter("published_total", "References that the queue has acknowledged."),
		unpublished:   counter("publish_failures_total", "References that were not acknowledged; each comes again."),
		expired:       counter("effects_expired_total", "Effects that became ambiguous because nobody settled them in time."),
		silences:      counter("decisions_expired_total", "Questions that no owner has answered in time."),
		consents:      counter("consents_expired_total", "Consents whose time was over."),
		recycled:      counter("partitions_recycled_total", "Partitions of replay and assertion rows that were emptied."),
		skipped:       vector("slots_skipped_total", "Slots that were skipped.", "reason"),
		reaped:        vector("runs_reaped_total", "Runs whose lease or deadline had passed, by the state after.", "state"),
		failures:      vector("step_failures_total", "Steps of a loop that failed.", "loop"),
		panics:        vector("step_panics_total", "Steps of a loop that panicked.", "loop"),
		queueGood:     gauge("queue_good", "1 while this process reports the queue as good."),
		approvalsGood: gauge("approvals_good", "1 while this process reports that owners are told."),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.planned, m.published, m.unpublished, m.expired, m.consents, m.silences, m.recycled, m.skipped, m.reaped, m.failures, m.panics, m.queueGood, m.approvalsGood} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: namespace + name, Help: help})
}

func vector(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + name, Help: help}, []string{label})
}
