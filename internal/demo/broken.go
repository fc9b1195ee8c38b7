package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// Broken is what a stack has besides when it is there to be broken: whoever
// measures closing may stop, kill and alter each part of it, and reads the
// order of commits from PostgreSQL. A nil one is a stack like every other.
type Broken struct {
	Disk string // a directory whose file system must have room
}

func (b *Broken) settings() map[string]string {
	if b == nil {
		return nil
	}
	return map[string]string{"wal_level": "logical"}
}

// replica goes into the replicas' files, behind `assertion:`. An issuer that is
// gone is to be noticed within seconds.
func (b *Broken) replica() string {
	if b == nil {
		return ""
	}
	return "  refresh: 1s\n  max_stale: 2s\ndisk: {paths: [" + b.Disk + "], min_free_mb: 1, min_free_percent: 1}\n"
}

const breaker = "breaker"

// user may delete what nobody else may.
func (b *Broken) user(password string) string {
	if b == nil {
		return ""
	}
	return natsUser(breaker, password, []string{"$JS.API.>"}, []string{"_INBOX.>"})
}

// Member is the person who owns the stack's tasks.
const Member = member

// Issuers are the issuers of workloads and of people.
func (s *Stack) Issuers() (workloads, people string) {
	return local(s.ports.Workloads), local(s.ports.People)
}

// Path names a file of this stack.
func (s *Stack) Path(parts ...string) string { return s.path(parts...) }

// Postgres is the private cluster; nil with a server that was there before.
func (s *Stack) Postgres() *localstack.Postgres { return s.postgres }

// RoleURL is the URL of a process role, authority, scheduler or operator, for the authority's database.
func (s *Stack) RoleURL(role string) string { return s.roleURL(role, s.database()) }

// ResourceURL is the guard's URL for the resource's database.
func (s *Stack) ResourceURL() string { return s.roleURL("guard", s.resource()) }

// BreakerURL is NATS for somebody who may delete its stream.
func (s *Stack) BreakerURL() string {
	return fmt.Sprintf("nats://%s:%s@127.0.0.1:%d", breaker, s.passwords["nats-breaker"], s.ports.NATS)
}

// Consumer is the durable consumer of a registered role's queue.
func (s *Stack) Consumer(ctx context.Context, role string) (string, error) {
	q, err := s.queueOf(ctx, role)
	return "q_" + q, err
}

// Signal sends a process of the stack a signal.
func (s *Stack) Signal(name string, signal syscall.Signal) error {
	return s.children[name].command.Process.Signal(signal)
}

// Kill ends a process without notice.
func (s *Stack) Kill(name string) { s.children[name].kill() }

// StartGuard starts the guard again, as a pod with a token of its own.
func (s *Stack) StartGuard() error {
	if err := s.RenewToken(s.pod("guard")); err != nil {
		return err
	}
	_, err := s.start("guard", "guard", "--config", s.path("config", "guard.yaml"))
	return err
}

// RenewToken writes a fresh token of a workload into its file.
func (s *Stack) RenewToken(a dev.Account) error {
	issuer, err := s.workloads()
	if err != nil {
		return err
	}
	return issuer.Renew(a, s.Origin(), tokenLife)
}

// StartIssuer starts the workload issuer again.
func (s *Stack) StartIssuer() error {
	_, err := s.start("issuer", "dev-issuer", "--config", s.path("config", "issuer.yaml"))
	return err
}

// StartQueue starts NATS again; lazy is one that acknowledges before it syncs.
func (s *Stack) StartQueue(ctx context.Context, lazy bool) error {
	file := queueConfig
	if lazy {
		file = lazyQueueConfig
	}
	return s.startNATS(ctx, file)
}

// StartWorker starts a worker whose effects go to a guard.
func (s *Stack) StartWorker(name, guard string) error {
	file := s.path("config", name+".json")
	c, err := ReadWorker(file)
	if err != nil {
		return err
	}
	c.Guard = guard
	if err := c.write(file); err != nil {
		return err
	}
	_, err = s.start(name, "demo-worker", "--config", file)
	return err
}

// RepairQueue makes the stream and the consumers that are absent, as an operator does.
func (s *Stack) RepairQueue(ctx context.Context) error {
	_, err := s.run(ctx, "admin", "nats-config", "--apply", "--database-url", s.RoleURL("operator"), "--nats-url", fmt.Sprintf("nats://127.0.0.1:%d", s.ports.NATS),
		"--nats-user", schedulerUser, "--nats-password-file", s.path("config", "nats-scheduler"))
	return err
}

// Apply applies documents as the operator; Retire retires what KIND/NAME names.
func (s *Stack) Apply(ctx context.Context, name, documents string) error {
	if err := os.WriteFile(s.path("config", name), []byte(documents), 0o600); err != nil {
		return err
	}
	return s.apply(ctx, name)
}

// Retire retires a document as the operator.
func (s *Stack) Retire(ctx context.Context, what string) error {
	_, err := s.as(ctx, "operator", "admin", "retire", what)
	return err
}

// ConsentToAll gives the member's consent to each offer that is open.
func (s *Stack) ConsentToAll(ctx context.Context) error {
	text, err := s.as(ctx, "member", "offer", "list", "--json")
	if err != nil {
		return err
	}
	var page api.Page[api.Offer]
	if err := json.Unmarshal([]byte(text), &page); err != nil {
		return err
	}
	for _, o := range page.Items {
		if o.State != "open" {
			continue
		}
		if _, err := s.as(ctx, "member", "offer", "accept", o.Offer, "--digest", o.Digest); err != nil {
			return err
		}
	}
	return nil
}

// Measured is what a benchmark must reach on a running stack that nobody else may.
type Measured struct {
	Issuer  *dev.Issuer // signs as the stack's workload issuer does
	Replica string      // the first replica's own address, past the proxy
	PID     int         // of that replica
	Server  string      // the administrator's URL of the server's database `postgres`
	Store   string      // and of the authority's database
}

// Measured opens the stack to a benchmark. The stack must have been started.
func (s *Stack) Measured() (m Measured, err error) {
	m = Measured{Replica: local(s.ports.ReplicaA), PID: s.children["replica-a"].command.Process.Pid,
		Server: s.adminURL("postgres"), Store: s.adminURL(s.database())}
	m.Issuer, err = s.workloads()
	return m, err
}

// workloads signs as the stack's workload issuer does, with the key that it keeps.
func (s *Stack) workloads() (*dev.Issuer, error) {
	return dev.NewIssuer(local(s.ports.Workloads), "ES256", s.path("issuer"))
}
