package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/scheduler"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

func (p program) scheduler() *cobra.Command {
	c := &config.Scheduler{}
	return p.process("scheduler", "Run a replica of the scheduler", c, func(ctx context.Context) error {
		return schedule(ctx, c, p.log())
	})
}

// schedule runs until ctx ends.
func schedule(ctx context.Context, c *config.Scheduler, log *slog.Logger) error {
	watched, err := watchOf(c.Disk)
	if err != nil {
		return err
	}
	pool, _, err := openDatabase(ctx, c.DatabaseURL, "nightwarrant-scheduler")
	if err != nil {
		return err
	}
	defer pool.Close()
	var running atomic.Pointer[scheduler.Scheduler]
	conn, err := connectNATS(&c.NATS, log, func() {
		if s := running.Load(); s != nil {
			s.Nudge() // so that the loss is reported at once
		}
	})
	if err != nil {
		return err
	}
	defer conn.close()
	instance := instanceOf("scheduler", c.Instance)
	q, err := queue.New(queue.Config{Conn: conn.Conn, Settings: queue.Settings{Replicas: int(c.NATS.Replicas)}, Monitors: c.NATS.Monitors(), Instance: instance,
		Disk: watched})
	if err != nil {
		return config.Wrong("nats", "cannot be used: %s", err)
	}
	hook, err := notify.NewWebhook(c.Approvals.Webhook.URL, c.Approvals.Webhook.Secret)
	if err != nil {
		return config.Wrong("approvals.webhook", "cannot be used: %s", err)
	}
	metrics := newMetrics()
	s, err := scheduler.New(scheduler.Config{Pool: pool, Queue: q, Webhook: hook, Link: c.Approvals.Link, Instance: instance, StartRate: int(c.StartRate), Republish: c.Republish.Std(),
		Registerer: metrics, Logger: log})
	if err != nil {
		return config.Wrong("scheduler", "cannot be made: %s", err)
	}
	running.Store(s)
	return runBeside(ctx, c.AdminListen, metrics, log, s.Run)
}

func newMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// runBeside runs a process that calls out only, beside its operators' listener.
func runBeside(ctx context.Context, adminListen string, metrics *prometheus.Registry, log *slog.Logger, run func(context.Context) error) error {
	tasks, ctx := errgroup.WithContext(ctx)
	if err := serveAdmin(ctx, tasks, adminListen, metrics, log); err != nil {
		return err
	}
	log.LogAttrs(ctx, slog.LevelInfo, "running", slog.String("admin_listen", adminListen))
	tasks.Go(func() error {
		if err := run(ctx); err != nil {
			return err
		}
		return errEnded // ends the listener too
	})
	err := tasks.Wait()
	log.Info("stopped")
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

var errEnded = errors.New("ended")

// serveAdmin serves metrics and the liveness probe where there is an address.
func serveAdmin(ctx context.Context, tasks *errgroup.Group, address string, metrics *prometheus.Registry, log *slog.Logger) error {
	if address == "" {
		return nil
	}
	l, _, err := listen(ctx, address, "")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Timeout: 5 * time.Second}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"process":"alive"}`)) // the caller may be gone
	})
	serveOn(ctx, tasks, l, mux, log)
	return nil
}
