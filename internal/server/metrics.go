package server

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// metrics carry routes, statuses and codes: finite sets, and nothing of any
// member, task or digest.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "nightwarrant_requests_total", Help: "Requests by route, status and refusal code."},
			[]string{"route", "status", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "nightwarrant_request_seconds", Help: "Time to answer, in seconds, by route.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5}}, []string{"route"}),
	}
	r.MustRegister(m.requests, m.seconds, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m metrics) observe(route string, status int, code api.Code, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status), string(code)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
