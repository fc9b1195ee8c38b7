package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
	"github.com/nightwarrant/nightwarrant/worker/natsqueue"
)

const schedulerUser = "nw_scheduler" // no role's name: those have no underscore

// roleQueue is a workload role and its opaque queue.
type roleQueue struct {
	role  string
	queue queue.Ref
}

// variable names the password of the role's user in the server's environment.
func (r roleQueue) variable() string {
	return "NW_ROLE_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(r.role)) + "_PASSWORD"
}

func (p program) adminNATSConfig() *cobra.Command {
	c := &cobra.Command{Use: "nats-config", Short: "Print the NATS server's configuration: a user for each workload role; with --apply, make the stream and its consumers", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	apply := c.Flags().Bool("apply", false, "make what is absent on the server instead of printing, and check the rest")
	n := &config.NATS{}
	c.Flags().StringVar(&n.URL, "nats-url", "", "with --apply: nats:// `URL` of the server")
	c.Flags().StringVar(&n.User, "nats-user", schedulerUser, "with --apply: `USER` of the schedulers")
	c.Flags().StringVar(&n.PasswordFile, "nats-password-file", "", "with --apply: `FILE` of mode 0600 with that user's password")
	c.Flags().Int64Var(&n.Replicas, "replicas", 1, "with --apply: replicas of the stream: 1, 3 or 5")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var roles []roleQueue
		err := d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) (err error) {
			roles, err = readQueues(ctx, pool)
			return err
		})
		switch {
		case err != nil:
			return err
		case *apply:
			return p.applyQueues(cmd.Context(), n, roles)
		}
		return printNATS(p.out, roles)
	}
	return c
}

// readQueues lists the queue of each workload role that has an active revision.
func readQueues(ctx context.Context, pool *pgxpool.Pool) ([]roleQueue, error) {
	rows, err := pool.Query(ctx, `SELECT DISTINCT ON (queue) body, queue FROM nw.entries() WHERE kind = 'workload_role' AND state = 'active' AND queue IS NOT NULL`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r roleQueue, err error) {
		var body, ref []byte
		if err := row.Scan(&body, &ref); err != nil {
			return r, err
		}
		d, err := document.ParseJSON(body)
		if err != nil || len(ref) != len(r.queue) {
			return r, fmt.Errorf("a registered workload role cannot be read: %w", err)
		}
		return roleQueue{d.Head().Name, queue.Ref(ref)}, nil
	})
}

const natsHead = `# Configuration of a NATS server for nightwarrant, as its registry is now: print
# it again after a workload role was added. Passwords are never in here; the
# server reads them from its environment, where each value stands in double
# quotes: NW_SCHEDULER_PASSWORD='"…"'. Listeners, TLS, clustering and limits are
# yours to add.

http: "127.0.0.1:8222"  # the schedulers read /varz and /jsz

jetstream {
  store_dir: $NW_NATS_STORE_DIR
  sync_interval: always  # a message that was acknowledged is on disk
}

authorization {
  users: [
`

func printNATS(w io.Writer, roles []roleQueue) error {
	if err := distinctVariables(roles); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(natsHead)
	s := queue.SchedulerPermissions()
	natsUser(&b, "the schedulers", schedulerUser, "NW_SCHEDULER_PASSWORD", s.Publish, s.Subscribe)
	for _, r := range roles {
		publish, subscribe := natsqueue.Subjects(r.queue.String())
		natsUser(&b, "workers of role "+r.role+"; their queue is "+r.queue.String(), r.role, r.variable(), publish, subscribe)
	}
	b.WriteString("  ]\n}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// distinctVariables refuses two roles that would share a password.
func distinctVariables(roles []roleQueue) error {
	by := map[string]string{}
	for _, r := range roles {
		if other, taken := by[r.variable()]; taken {
			return fmt.Errorf("roles %s and %s would both have $%s: register one of them under another name", other, r.role, r.variable())
		}
		by[r.variable()] = r.role
	}
	return nil
}

func natsUser(b *strings.Builder, remark, user, variable string, publish, subscribe []string) {
	fmt.Fprintf(b, "    # %s\n    { user: %q, password: $%s, permissions: {\n        publish: { allow: %s }\n        subscribe: { allow: %s }\n    } }\n",
		remark, user, variable, subjects(publish), subjects(subscribe))
}

func subjects(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = fmt.Sprintf("%q", s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// applyQueues makes the stream and each role's consumer where they are absent.
func (p program) applyQueues(ctx context.Context, n *config.NATS, roles []roleQueue) error {
	if n.PasswordFile == "" {
		n.User = ""
	}
	if err := n.CheckServer(); err != nil {
		return err
	}
	conn, err := connectNATS(n, p.log(), nil, nil)
	if err != nil {
		return err
	}
	defer conn.close()
	js, err := jetstream.New(conn.Conn)
	if err != nil {
		return err
	}
	refs := make([]queue.Ref, len(roles))
	for i, r := range roles {
		refs[i] = r.queue
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := queue.Ensure(ctx, js, queue.Settings{Replicas: int(n.Replicas)}, refs); err != nil {
		return err
	}
	return p.say("The stream and %d consumers are as they must be.\n", len(refs))
}

// natsConn is a connection whose goroutines are waited for.
type natsConn struct {
	*nats.Conn
	closed chan struct{}
}

func (c *natsConn) close() {
	c.Close()
	<-c.closed
}

// connectNATS connects as a scheduler. lost is called when the connection is.
func connectNATS(n *config.NATS, log *slog.Logger, more []nats.Option, lost func()) (*natsConn, error) {
	c := &natsConn{closed: make(chan struct{})}
	options := append(more,
		nats.Name("nightwarrant scheduler"), nats.CustomInboxPrefix(queue.SchedulerPermissions().Inbox),
		nats.Timeout(5*time.Second), nats.MaxReconnects(-1), nats.ReconnectWait(time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("lost the connection to the queue")
			}
			if lost != nil {
				lost()
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("connected to the queue again") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Error("the queue reports an error", "error", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }))
	if n.User != "" {
		options = append(options, nats.UserInfo(n.User, n.Password.Reveal()))
	}
	var err error
	if c.Conn, err = nats.Connect(n.URL, options...); err != nil {
		return nil, fmt.Errorf("the queue cannot be reached: %w", err)
	}
	return c, nil
}
