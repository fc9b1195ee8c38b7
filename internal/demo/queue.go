package demo

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/guards/model"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

// The files of our own NATS server: as it must be, and as readiness must not let it be.
const (
	queueConfig     = "nats.yaml"
	lazyQueueConfig = "nats-lazy.yaml"
)

const schedulerUser = "nw_scheduler"

// queueRoles are the workload roles with a queue, and their workers.
var queueRoles = map[string][]string{"bookkeeper": {"worker-1", "worker-2"}, "probe": {"probe"}}

// roles are those of them that are registered.
func (s *Stack) roles() map[string][]string {
	if !s.mind {
		return queueRoles
	}
	all := maps.Clone(queueRoles)
	all["assistant"] = []string{"assistant-1"}
	return all
}

// ownQueue tells whether NATS is a process of this stack, or a server that was there before.
func (s *Stack) ownQueue() bool { return s.env(EnvNATS) == "" }

// existingQueue is where the server that was there before is, and its user and password, which no file of ours has in an address.
func (s *Stack) existingQueue() (at, user, password string) {
	u, err := url.Parse(s.env(EnvNATS))
	if err != nil || u.User == nil {
		return s.env(EnvNATS), "", ""
	}
	user = u.User.Username()
	password, _ = u.User.Password()
	u.User = nil
	return u.String(), user, password
}

// startNATS starts our NATS server by one of its files, on the ports and the files of its last life.
func (s *Stack) startNATS(ctx context.Context, file string) error {
	if !s.ownQueue() {
		return nil
	}
	c, err := s.start("nats", "dev-nats", "--config", s.path("config", file))
	if err != nil {
		return err
	}
	return until(ctx, 20*time.Second, "NATS", func() (bool, error) {
		select {
		case <-c.done:
			return false, fmt.Errorf("NATS has ended: %w; see %s", c.err, s.path("logs", "nats.log"))
		default:
		}
		return answers(ctx, local(s.ports.Monitor)+"/healthz")
	})
}

// writeQueueConfig writes what is known only when the registry is: the files of NATS, the scheduler and the workers.
func (s *Stack) writeQueueConfig(ctx context.Context) error {
	at, user, password := s.existingQueue()
	monitor, credentials := s.env(EnvMonitor), ""
	switch {
	case s.ownQueue():
		at, monitor = fmt.Sprintf("nats://127.0.0.1:%d", s.ports.NATS), local(s.ports.Monitor)
		credentials = "  user: " + schedulerUser + "\n  password_file: " + s.path("config", "nats-scheduler") + "\n"
	case user != "":
		file := s.path("config", "nats-existing")
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			return err
		}
		credentials = fmt.Sprintf("  user: %q\n  password_file: %s\n", user, file)
	}
	files := map[string]string{"scheduler.yaml": s.whenFIPS(fipsRequired) + `instance: scheduler-1
database_url_file: ` + s.path("config", "scheduler.url") + `
nats:
  url: ` + at + `
  monitor_url: ` + monitor + `
` + credentials + `start_rate: 10
republish: 5s
` + s.approvals()}
	scheduler := queue.SchedulerPermissions()
	users := s.broken.user(s.passwords["nats-breaker"]) + natsUser(schedulerUser, s.passwords["nats-scheduler"], scheduler.Publish, scheduler.Subscribe)
	for role, workers := range s.roles() {
		q, err := s.queueOf(ctx, role)
		if err != nil {
			return err
		}
		publish, subscribe := natsqueue.Subjects(q)
		users += natsUser(role, s.passwords["nats-"+role], publish, subscribe)
		for _, w := range workers {
			if err := s.workerConfig(w, role, at, q).write(s.path("config", w+".json")); err != nil {
				return err
			}
		}
	}
	files[queueConfig] = fmt.Sprintf("port: %d\nmonitor_port: %d\ndir: %s\nusers:\n%s", s.ports.NATS, s.ports.Monitor, s.path("nats"), users)
	files[lazyQueueConfig] = "lazy: true\n" + files[queueConfig]
	for name, text := range files {
		if err := os.WriteFile(s.path("config", name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) workerConfig(worker, role, at, q string) WorkerConfig {
	c := WorkerConfig{Authority: s.Origin(), Client: "books", AssertionFile: s.path("tokens", worker), Guard: s.GuardURI(), NATS: at, Queue: q}
	if role == "assistant" {
		c.Mind, c.Model = s.mindURI(), model.URL(s.modelBase(), modelID)
	}
	if _, c.User, c.Password = s.existingQueue(); s.ownQueue() {
		c.User, c.Password = role, s.passwords["nats-"+role]
	}
	return c
}

// natsUser is a line of the NATS file.
func natsUser(name, password string, publish, subscribe []string) string {
	list := func(subjects []string) string {
		quoted := make([]string, len(subjects))
		for i, s := range subjects {
			quoted[i] = fmt.Sprintf("%q", s)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	return fmt.Sprintf("  - {name: %s, password: %s, publish: %s, subscribe: %s}\n", name, password, list(publish), list(subscribe))
}
