package localstack

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	loopback        = "127.0.0.1"
	natsReadyWithin = 10 * time.Second
	natsMaxMemory   = 64 << 20 // bytes
	natsMaxStore    = 1 << 30  // bytes
)

// NATSUser is one user and the subjects it may use. An empty list allows nothing.
type NATSUser struct {
	Name      string
	Password  string // drawn at random when empty
	Publish   []string
	Subscribe []string
}

// NATSOptions says where the streams live and who may use the server.
type NATSOptions struct {
	Dir     string // JetStream's files; used as it is when present
	Users   []NATSUser
	Port    int          // for clients; 0 is a free one
	Monitor int          // for the monitoring pages; 0 is a free one
	Lazy    bool         // acknowledges before it syncs, as NATS does unless told: what readiness must notice
	Logs    slog.Handler // nil discards
}

// NATS is one server inside this process, on 127.0.0.1 only.
type NATS struct {
	options server.Options
	users   map[string]string // name → password
	logs    *slog.Logger

	mu     sync.Mutex
	server *server.Server // nil while stopped
}

// StartNATS starts a server with JetStream on disk, every write synced before
// it is acknowledged unless Lazy says otherwise. ctx bounds the start only.
func StartNATS(ctx context.Context, o NATSOptions) (*NATS, error) {
	if o.Dir == "" || len(o.Users) == 0 {
		return nil, errors.New("NATS needs a directory and at least one user")
	}
	if o.Logs == nil {
		o.Logs = slog.DiscardHandler
	}
	n := &NATS{users: map[string]string{}, logs: slog.New(o.Logs)}
	n.options = server.Options{
		ServerName: "nightwarrant-local",
		Host:       loopback, Port: cmp.Or(o.Port, server.RANDOM_PORT),
		HTTPHost: loopback, HTTPPort: cmp.Or(o.Monitor, server.RANDOM_PORT),
		JetStream: true, StoreDir: o.Dir, SyncAlways: !o.Lazy,
		JetStreamMaxMemory: natsMaxMemory, JetStreamMaxStore: natsMaxStore,
		NoSigs: true,
	}
	for _, u := range o.Users {
		n.options.Users = append(n.options.Users, n.enrol(u))
	}
	if err := n.start(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *NATS) enrol(u NATSUser) *server.User {
	if u.Password == "" {
		u.Password = rand.Text()
	}
	n.users[u.Name] = u.Password
	return &server.User{Username: u.Name, Password: u.Password, Permissions: &server.Permissions{
		Publish:   only(u.Publish),
		Subscribe: only(u.Subscribe),
	}}
}

// only allows the subjects of a list; the server takes an empty list for all.
func only(subjects []string) *server.SubjectPermission {
	if len(subjects) == 0 {
		return &server.SubjectPermission{Deny: []string{">"}}
	}
	return &server.SubjectPermission{Allow: subjects}
}

func (n *NATS) start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := server.NewServer(n.options.Clone())
	if err != nil {
		return fmt.Errorf("NATS: %w", err)
	}
	log := &natsLog{to: n.logs, fatal: make(chan string, 1)}
	s.SetLogger(log, false, false)
	s.Start()
	if err := ready(s, log, within(ctx, natsReadyWithin)); err != nil {
		shutdown(s)
		return err
	}
	n.server = s
	n.options.Port, n.options.HTTPPort = tcpPort(s), s.MonitorAddr().Port
	return nil
}

// ready waits until the server takes connections, or has said why it never will.
func ready(s *server.Server, log *natsLog, limit time.Duration) error {
	const look = 100 * time.Millisecond
	for end := time.Now().Add(limit); time.Now().Before(end); {
		select {
		case why := <-log.fatal:
			return fmt.Errorf("NATS: %s", why)
		default:
		}
		if s.ReadyForConnections(look) {
			return nil
		}
	}
	return errors.New("NATS was not ready in time")
}

// within is the time that ctx leaves, at most limit.
func within(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(limit, time.Until(deadline))
	}
	return limit
}

func shutdown(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// Stop cuts every connection without notice and returns when the server and its
// goroutines are gone. The files are closed in order: a server inside this
// process cannot be killed.
func (n *NATS) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		shutdown(n.server)
		n.server = nil
	}
}

// Restart stops the server if it runs and starts it on the same ports and files.
func (n *NATS) Restart(ctx context.Context) error {
	n.Stop()
	return n.start(ctx)
}

// Dir is where JetStream keeps its files.
func (n *NATS) Dir() string { return n.options.StoreDir }

// URL is the client URL of a user; an unknown one gets a URL that is refused.
func (n *NATS) URL(user string) string {
	u := url.URL{Scheme: "nats", User: url.UserPassword(user, n.users[user]), Host: n.host(false)}
	return u.String()
}

// MonitorURL is the base of the HTTP monitoring pages (/varz, /jsz).
func (n *NATS) MonitorURL() string { return "http://" + n.host(true) }

func (n *NATS) host(monitor bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	number := n.options.Port
	if monitor {
		number = n.options.HTTPPort
	}
	return net.JoinHostPort(loopback, strconv.Itoa(number))
}

func tcpPort(s *server.Server) int { return s.Addr().(*net.TCPAddr).Port }

// natsLog hands the server's lines to slog. A server in its own process would
// end after the first that is fatal; here its owner must.
type natsLog struct {
	to    *slog.Logger
	fatal chan string // of size 1
}

func (l *natsLog) Noticef(format string, v ...any) { l.to.Info(fmt.Sprintf(format, v...)) }
func (l *natsLog) Warnf(format string, v ...any)   { l.to.Warn(fmt.Sprintf(format, v...)) }
func (l *natsLog) Errorf(format string, v ...any)  { l.to.Error(fmt.Sprintf(format, v...)) }
func (l *natsLog) Debugf(format string, v ...any)  { l.to.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLog) Tracef(format string, v ...any)  { l.to.Debug(fmt.Sprintf(format, v...)) }

func (l *natsLog) Fatalf(format string, v ...any) {
	why := fmt.Sprintf(format, v...)
	l.to.Error(why)
	select {
	case l.fatal <- why:
	default:
	}
}
