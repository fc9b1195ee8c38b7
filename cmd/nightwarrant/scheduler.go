package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/internal/mail"
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
	options, err := queueOptions(c.NATS.URL, "nats.roots_file", c.NATS.RootsFile, c.FIPSRequired())
	if err != nil {
		return err
	}
	conn, err := connectNATS(&c.NATS, log, options, func() {
		if s := running.Load(); s != nil {
			s.Nudge() // so that the loss is reported at once
		}
	})
	if err != nil {
		return err
	}
	defer conn.close()
	instance := instanceOf("scheduler", c.Instance)
	q, err := openQueue(ctx, c, conn.Conn, instance, watched)
	if err != nil {
		return err
	}
	metrics := newMetrics()
	sc := scheduler.Config{Pool: pool, Queue: q, Link: c.Approvals.Link, Instance: instance, Build: thisProcess(log), StartRate: int(c.StartRate), Republish: c.Republish.Std(), Registerer: metrics, Logger: log}
	done, err := tellBy(&sc, c)
	if err != nil {
		return err
	}
	defer done()
	s, err := scheduler.New(sc)
	if err != nil {
		return config.Wrong("scheduler", "cannot be made: %s", err)
	}
	running.Store(s)
	return runBeside(ctx, c.AdminListen, metrics, log, s.Run)
}

func openQueue(ctx context.Context, c *config.Scheduler, conn *nats.Conn, instance [32]byte, watched disk.Watch) (*queue.Queue, error) {
	roots, err := rootsOf(c.NATS.RootsFile)
	if err != nil {
		return nil, config.Wrong("nats.roots_file", "cannot be used: %s", err)
	}
	q, err := queue.New(queue.Config{Conn: conn, Settings: queue.Settings{Replicas: int(c.NATS.Replicas)}, Monitors: c.NATS.Monitors(), Instance: instance,
		Disk: watched, Roots: roots, Approved: c.FIPSRequired()})
	if err != nil {
		return nil, config.Wrong("nats", "cannot be used: %s", err)
	}
	if c.FIPSRequired() {
		if err := q.Approved(ctx); err != nil {
			return nil, refusedInFIPS(fips.NonApproved, err.Error())
		}
	}
	return q, nil
}

// tellBy gives a scheduler its ways to owners; done gives up their connections.
func tellBy(sc *scheduler.Config, c *config.Scheduler) (done func(), err error) {
	if !c.Approvals.Webhook.IsZero() {
		if sc.Webhook, err = notify.NewWebhook(c.Approvals.Webhook.URL, c.Approvals.Webhook.Secret); err != nil {
			return nil, config.Wrong("approvals.webhook", "cannot be used: %s", err)
		}
	}
	if c.Approvals.Mail.IsZero() {
		return func() {}, nil
	}
	return mailBy(sc, c.Approvals.Mail, c.Directory)
}

func mailBy(sc *scheduler.Config, c config.Mail, d config.Directory) (done func(), err error) {
	roots, err := rootsOf(c.RootsFile)
	if err != nil {
		return nil, config.Wrong("approvals.mail.roots_file", "cannot be used: %s", err)
	}
	mc := mail.Config{URL: c.URL, User: c.User, From: c.From, Roots: roots}
	if c.User != "" {
		mc.Password = func() string {
			text, _ := config.ReadSecret(c.PasswordFile) // an empty one logs nobody in
			return text.Reveal()
		}
	}
	server, err := mail.New(mc)
	if err != nil {
		return nil, config.Wrong("approvals.mail", "cannot be used: %s", err)
	}
	members, err := membersOf(d, c.Issuer)
	if err != nil {
		return nil, err
	}
	if sc.Mail, err = notify.NewMail(server, members, c.Operators); err != nil {
		return nil, config.Wrong("approvals.mail", "cannot be used: %s", err)
	}
	return func() { server.Close(); members.Close() }, nil
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
