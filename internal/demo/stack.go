// Package demo runs the whole product on one machine: PostgreSQL and NATS,
// issuers, two replicas of the authority behind one origin, a scheduler, a guard
// with its own database, and workers, each a process of its own. `demo` tells a
// story on it and attacks it; `dev` keeps it up.
package demo

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
	"github.com/nightwarrant/nightwarrant/internal/localstack"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// Environment variables that name existing servers instead of private ones.
const (
	EnvDatabase = "NIGHTWARRANT_DATABASE_URL" // of a role that may create databases and roles
	EnvNATS     = "NIGHTWARRANT_NATS_URL"
	EnvMonitor  = "NIGHTWARRANT_NATS_MONITOR_URL"
)

// Options of a stack.
type Options struct {
	Binary string // of nightwarrant
	Dir    string // everything lives here
	Env    func(string) string
	Lease  time.Duration
	Before func(*Stack)         // called when the story is told and everything still runs; may be nil
	Mind   bool                 // with a language model, a guard in front of it, and an assistant
	Broken *Broken              // when the stack is there to be broken
	Token  *Token               // the keys lie in it, and FIPS is required; nil: neither
	Hear   func(notify.Message) // gets what owners must hear; may be nil
}

// Stack is the running product.
type Stack struct {
	binary, dir string
	env         func(string) string
	lease       time.Duration
	broken      *Broken
	token       *Token
	hear        func(notify.Message)
	ports       ports
	passwords   map[string]string
	witness     string // its key
	postgres    *localstack.Postgres
	existing    *url.URL // of the administrator, on a server that was there before; nil with a private one
	proxy       *http.Server
	hook        *dev.Receiver // of what owners must hear
	mind        bool
	provider    *modelserver.Server
	providing   *http.Server
	next        atomic.Int64
	children    map[string]*child
	replicas    []string
}

// ports are kept, because issuers and origins are names that tokens carry.
type ports struct {
	Origin, ReplicaA, ReplicaB, AdminA, AdminB, Workloads, People, Directory, Guard, NATS, Monitor, Hook, Mind, Models, Witness int
	Name                                                                                                                        string // of this stack's databases and roles
	Block                                                                                                                       int    // of ports in which nothing else listens; 0 in older directories
}

func (p *ports) all() []*int {
	return []*int{&p.Origin, &p.ReplicaA, &p.ReplicaB, &p.AdminA, &p.AdminB, &p.Workloads, &p.People, &p.Directory, &p.Guard, &p.NATS, &p.Monitor, &p.Hook, &p.Mind, &p.Models, &p.Witness}
}

// Origin is the one public origin of the authority.
func (s *Stack) Origin() string { return local(s.ports.Origin) }

// GuardURI is the guard's registered URI.
func (s *Stack) GuardURI() string { return local(s.ports.Guard) + "/ledger" }

func local(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

func (s *Stack) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// New prepares a stack in a directory, or finds the one that is there.
func New(o Options) (*Stack, error) {
	s := &Stack{binary: o.Binary, dir: o.Dir, env: o.Env, lease: o.Lease, mind: o.Mind, broken: o.Broken, token: o.Token, hear: o.Hear, children: map[string]*child{}, passwords: map[string]string{}}
	for _, d := range []string{"logs", "tokens", "config", "people", "keys", "issuer", "idp"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			return nil, err
		}
	}
	if err := s.remember("ports.json", &s.ports, s.ports.choose); err != nil {
		return nil, err
	}
	return s, s.remember("passwords.json", &s.passwords, func() error {
		for _, of := range []string{"authority", "scheduler", "operator", "guard", "nats-scheduler", "nats-bookkeeper", "nats-probe", "nats-assistant", "nats-breaker", modelKey, directoryToken, tokenPIN} {
			s.passwords[of] = cmp.Or(s.passwords[of], rand.Text())
		}
		s.passwords[hookSecret] = cmp.Or(s.passwords[hookSecret], newHookSecret())
		return nil
	})
}

// remember reads a small file of this stack, lets choose fill in what it lacks, and keeps it.
func (s *Stack) remember(name string, into any, choose func() error) error {
	text, err := os.ReadFile(s.path(name))
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := choose(); err != nil {
		return err
	}
	if text, err = json.Marshal(into); err != nil {
		return err
	}
	return os.WriteFile(s.path(name), text, 0o600)
}

// choose takes free ports where there are none yet, and none twice.
func (p *ports) choose() error {
	p.Name = cmp.Or(p.Name, "nw_"+fmt.Sprintf("%x", time.Now().UnixNano()))
	if p.Block == 0 && p.Origin == 0 {
		from, err := freeport.Block()
		if err != nil {
			return err
		}
		p.Block = from
		for i, port := range p.all() {
			*port = from + i
		}
	}
	taken := map[int]bool{0: true}
	for _, port := range p.all() {
		for taken[*port] {
			free, err := freeport.Port()
			if err != nil {
				return err
			}
			*port = free
		}
		taken[*port] = true
	}
	return nil
}

// busy is a port at which somebody listens, or 0.
func (p *ports) busy() int {
	for _, port := range p.all() {
		if !freeport.Free(*port) {
			return *port
		}
	}
	return 0
}

// Start brings everything up but NATS, the scheduler and the guard, whose
// permissions and registration come from the registry: see Register and StartRest.
func (s *Stack) Start(ctx context.Context) error {
	for _, step := range []func(context.Context) error{s.checkNames, s.startPostgres, s.prepareDatabases, s.makeKeys, s.makeWitness, s.writeConfig, s.startIssuers, s.startReplicas, s.startProxy, s.StartHook, s.startModels} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checkNames refuses, in a sentence, what the environment names and is not enough.
func (s *Stack) checkNames(context.Context) error {
	if s.env(EnvNATS) != "" && s.env(EnvMonitor) == "" {
		return fmt.Errorf("%s needs %s beside it, such as http://127.0.0.1:8222: its settings are read there", EnvNATS, EnvMonitor)
	}
	return nil
}

func (s *Stack) startPostgres(ctx context.Context) (err error) {
	if existing := s.env(EnvDatabase); existing != "" {
		s.existing, err = reached(ctx, existing)
		return err
	}
	s.postgres, err = localstack.StartPostgres(ctx, localstack.PostgresOptions{Dir: s.path("postgres"), Settings: s.broken.settings()})
	return err
}

// reached is the URL of a server that lets its administrator in.
func reached(ctx context.Context, existing string) (*url.URL, error) {
	u, err := url.Parse(existing)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.User == nil {
		return nil, fmt.Errorf("%s must be a postgres:// URL with the name of a role", EnvDatabase)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, existing)
	if err != nil {
		return nil, fmt.Errorf("what %s names cannot be used: %w", EnvDatabase, err)
	}
	return u, c.Close(ctx)
}

// Databases are the administrator's URLs of the authority's and the resource's database.
func (s *Stack) Databases() []string {
	return []string{s.adminURL(s.database()), s.adminURL(s.resource())}
}

// Metrics is what the replicas' admin listeners tell.
func (s *Stack) Metrics(ctx context.Context) (all []byte) {
	for _, port := range []int{s.ports.AdminA, s.ports.AdminB} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, local(port)+"/metrics", nil)
		if err != nil {
			continue
		}
		if a, err := http.DefaultClient.Do(r); err == nil {
			text, _ := io.ReadAll(io.LimitReader(a.Body, 1<<20)) // what there is
			_ = a.Body.Close()                                   // read above
			all = append(all, text...)
		}
	}
	return all
}

// adminURL is the administrator's URL for a database; roleURL is a process's.
func (s *Stack) adminURL(database string) string {
	if s.postgres != nil {
		return s.postgres.AdminURL(database)
	}
	return s.at(database, s.existing.User)
}

func (s *Stack) roleURL(role, database string) string {
	user := s.ports.Name + "_" + role
	if s.postgres != nil {
		return s.postgres.URL(user, s.passwords[role], database)
	}
	return s.at(database, url.UserPassword(user, s.passwords[role]))
}

func (s *Stack) at(database string, who *url.Userinfo) string {
	u := *s.existing
	u.Path, u.User = "/"+database, who
	return u.String()
}

// leave takes this stack's databases and roles off a server that was there before.
func (s *Stack) leave() error {
	if s.existing == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.execute(ctx, "postgres", func(ctx context.Context, c *pgx.Conn) error {
		var all error
		for _, name := range []string{s.database(), s.resource()} {
			_, err := c.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
			all = errors.Join(all, err)
		}
		for _, role := range []string{"authority", "scheduler", "operator", "guard"} {
			_, err := c.Exec(ctx, "DROP ROLE IF EXISTS "+pgx.Identifier{s.ports.Name + "_" + role}.Sanitize())
			all = errors.Join(all, err)
		}
		return all
	})
}

func (s *Stack) database() string { return s.ports.Name }
func (s *Stack) resource() string { return s.ports.Name + "_ledger" }

// prepareDatabases makes the authority's database and the resource's, once, and
// a login for each process role with that role's settings.
func (s *Stack) prepareDatabases(ctx context.Context) error {
	if err := s.execute(ctx, "postgres", func(ctx context.Context, c *pgx.Conn) error {
		for _, name := range []string{s.database(), s.resource()} {
			var there bool
			if err := c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&there); err != nil || there {
				return err
			}
			if _, err := c.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	if _, err := s.run(ctx, "migrate", "--database-url", s.adminURL(s.database())); err != nil {
		return err
	}
	if err := s.execute(ctx, s.database(), s.makeLogins); err != nil {
		return err
	}
	if _, err := s.run(ctx, "guard", "migrate", "--database-url", s.adminURL(s.resource()), "--role", s.ports.Name+"_guard"); err != nil {
		return err
	}
	return s.execute(ctx, s.resource(), s.makeResource)
}

func (s *Stack) execute(ctx context.Context, database string, f func(context.Context, *pgx.Conn) error) error {
	c, err := pgx.Connect(ctx, s.adminURL(database))
	if err != nil {
		return err
	}
	defer c.Close(ctx) //nolint:errcheck // nothing is pending on it
	return f(ctx, c)
}

func (s *Stack) makeLogins(ctx context.Context, c *pgx.Conn) error {
	for _, role := range []string{"authority", "scheduler", "operator", "guard"} {
		name := pgx.Identifier{s.ports.Name + "_" + role}.Sanitize()
		var there bool
		if err := c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, s.ports.Name+"_"+role).Scan(&there); err != nil {
			return err
		}
		if there {
			continue
		}
		sql := []string{"CREATE ROLE " + name + " LOGIN PASSWORD '" + s.passwords[role] + "'"} // letters and digits
		if role != "guard" {
			sql = append(sql, "GRANT nw_"+role+" TO "+name)
			for _, setting := range []string{"default_transaction_isolation = 'read committed'", "lock_timeout = '500ms'", "statement_timeout = '1s'", "idle_in_transaction_session_timeout = '250ms'"} {
				sql = append(sql, "ALTER ROLE "+name+" SET "+setting)
			}
		}
		for _, one := range sql {
			if _, err := c.Exec(ctx, one); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeResource makes the table that the demo's tasks write to. Writing takes
// as long as nw_pace says, as it does with resources.
func (s *Stack) makeResource(ctx context.Context, c *pgx.Conn) error {
	name := pgx.Identifier{s.ports.Name + "_guard"}.Sanitize()
	for _, sql := range []string{
		`CREATE TABLE IF NOT EXISTS public.entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, memo text NOT NULL, cents bigint NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		`CREATE TABLE IF NOT EXISTS public.pace (seconds double precision NOT NULL)`,
		`INSERT INTO public.pace SELECT 0 WHERE NOT EXISTS (SELECT FROM public.pace)`,
		`CREATE OR REPLACE FUNCTION public.take_time() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN PERFORM pg_sleep(seconds) FROM public.pace WHERE seconds > 0; RETURN NEW; END $$`,
		`CREATE OR REPLACE TRIGGER slow BEFORE INSERT ON public.entries FOR EACH ROW EXECUTE FUNCTION public.take_time()`,
		`GRANT SELECT, INSERT ON public.entries TO ` + name,
		`CREATE TABLE IF NOT EXISTS public.accounts (name text PRIMARY KEY, closed boolean NOT NULL, changes bigint NOT NULL DEFAULT 0)`,
		`INSERT INTO public.accounts (name, closed) VALUES ('dormant', false), ('busy', false) ON CONFLICT DO NOTHING`,
		`CREATE OR REPLACE FUNCTION public.count_change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.changes := OLD.changes + 1; RETURN NEW; END $$`,
		`CREATE OR REPLACE TRIGGER counted BEFORE UPDATE ON public.accounts FOR EACH ROW EXECUTE FUNCTION public.count_change()`,
		`GRANT SELECT, UPDATE ON public.accounts TO ` + name,
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// pace makes the resource slow, or quick again.
func (s *Stack) pace(ctx context.Context, seconds float64) error {
	return s.execute(ctx, s.resource(), func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, `UPDATE public.pace SET seconds = $1`, seconds)
		return err
	})
}

// makeKeys makes the cluster's key bundle and registers it, once.
func (s *Stack) makeKeys(ctx context.Context) error {
	bundle, identity := s.path("keys", "bundle"), s.path("keys", "identity")
	var host, record []string
	if s.token != nil {
		if err := errors.Join(s.makeToken(ctx), s.vouch(ctx)); err != nil {
			return err
		}
		host = []string{"--keyhost", s.path("keyhost.sock")}
		record = append(host, "--provenance", s.path("keys", "record.json"))
	}
	if _, err := os.Stat(bundle); errors.Is(err, os.ErrNotExist) {
		if _, err := s.run(ctx, append([]string{"keys", "init", "--dir", bundle, "--identity-file", identity}, record...)...); err != nil {
			return err
		}
	}
	_, err := s.run(ctx, append([]string{"keys", "register", "--dir", bundle, "--identity-file", identity, "--database-url", s.roleURL("operator", s.database())}, host...)...)
	return err
}

func (s *Stack) startIssuers(ctx context.Context) error {
	if _, err := s.start("issuer", "dev-issuer", "--config", s.path("config", "issuer.yaml")); err != nil {
		return err
	}
	if _, err := s.start("idp", "dev-idp", "--config", s.path("config", "idp.yaml")); err != nil {
		return err
	}
	if _, err := s.start("directory", "dev-directory", "--config", s.path("config", directoryConfig)); err != nil {
		return err
	}
	return until(ctx, 15*time.Second, "the issuers' first tokens", func() (bool, error) {
		for _, f := range []string{"worker-1", "worker-2", "probe", "guard", "guard-2", "tripwire", "tripwire-2", "stranger"} {
			if _, err := os.Stat(s.path("tokens", f)); err != nil {
				return false, err
			}
		}
		_, err := os.Stat(s.path("people", "operator"))
		return err == nil, err
	})
}

func (s *Stack) startReplicas(ctx context.Context) error {
	for _, name := range []string{"replica-a", "replica-b"} {
		if err := s.startReplica(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stack) startReplica(ctx context.Context, name string) error {
	c, err := s.start(name, "serve", "--config", s.path("config", name+".yaml"))
	if err != nil {
		return err
	}
	port := map[string]int{"replica-a": s.ports.ReplicaA, "replica-b": s.ports.ReplicaB}[name]
	return until(ctx, 20*time.Second, name, func() (bool, error) {
		select {
		case <-c.done:
			return false, fmt.Errorf("%s has ended: %w; see %s", name, c.err, s.path("logs", name+".log"))
		default:
		}
		return answers(ctx, local(port)+"/readyz")
	})
}

func answers(ctx context.Context, at string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return false, err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return false, err
	}
	_ = a.Body.Close() // only the status counts
	return a.StatusCode == http.StatusOK, nil
}

// startProxy is the one origin in front of both replicas: each request goes to
// the next one, and to the other when that one cannot be reached.
func (s *Stack) startProxy(ctx context.Context) error {
	s.replicas = []string{local(s.ports.ReplicaA), local(s.ports.ReplicaB)}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.ports.Origin))
	if err != nil {
		return err
	}
	s.proxy = &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: &httputil.ReverseProxy{
		Rewrite:   func(*httputil.ProxyRequest) {},
		Transport: failover{s, http.DefaultTransport.(*http.Transport).Clone()},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { // no replica could be reached: nothing was sent
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusBadGateway)
		},
	}}
	go func() { _ = s.proxy.Serve(l) }()
	return nil
}

// maxForwarded is more than the authority reads.
const maxForwarded = 2 << 20

// failover picks a replica. It goes to the other one only when a connection was refused, so that nothing is sent twice.
type failover struct {
	s  *Stack
	by *http.Transport
}

func (f failover) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if r.Body != nil { // a transport closes it, whether or not it was sent
		if body, err = io.ReadAll(io.LimitReader(r.Body, maxForwarded)); err != nil {
			return nil, err
		}
	}
	n := f.s.next.Add(1)
	for i := range int64(len(f.s.replicas)) {
		target, parseErr := url.Parse(f.s.replicas[(n+i)%int64(len(f.s.replicas))])
		if parseErr != nil {
			return nil, parseErr
		}
		attempt := r.Clone(r.Context())
		attempt.Body = io.NopCloser(bytes.NewReader(body))
		attempt.URL.Scheme, attempt.URL.Host = target.Scheme, target.Host
		var answer *http.Response
		if answer, err = f.by.RoundTrip(attempt); err == nil {
			return answer, nil
		}
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" {
			return nil, err
		}
	}
	return nil, err
}

// StartRest starts NATS with a user for each role's own queue, the scheduler and the guard.
func (s *Stack) StartRest(ctx context.Context) error {
	if err := s.writeQueueConfig(ctx); err != nil {
		return err
	}
	if err := s.startNATS(ctx, queueConfig); err != nil {
		return err
	}
	if _, err := s.start("scheduler", "scheduler", "--config", s.path("config", "scheduler.yaml")); err != nil {
		return err
	}
	if err := s.startMind(ctx); err != nil {
		return err
	}
	_, err := s.start("guard", "guard", "--config", s.path("config", "guard.yaml"))
	return err
}

// queueOf is the opaque queue of a registered role.
func (s *Stack) queueOf(ctx context.Context, role string) (string, error) {
	var q []byte
	name := canonical.Digest(canonical.DomainName, []byte(role))
	err := s.execute(ctx, s.database(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT queue FROM nw.role_queues WHERE name = $1`, name[:]).Scan(&q)
	})
	return base64.RawURLEncoding.EncodeToString(q), err
}

// WaitOpen waits until the gate is open and every replica has seen it: requests
// go to them in turn, and each answers from a copy that may be half a second old.
func (s *Stack) WaitOpen(ctx context.Context, limit time.Duration) error {
	inARow := 0
	return until(ctx, limit, "an open gate", func() (bool, error) {
		d, err := s.decision(ctx)
		if inARow++; err != nil || !d.Open {
			inARow = 0
		}
		return inARow >= 2*len(s.replicas), err
	})
}

// Stop ends everything, the processes that need others first.
func (s *Stack) Stop() {
	for _, name := range []string{"worker-1", "worker-2", "assistant-1", "guard", "mind", "scheduler", "replica-a", "replica-b", "witness", "issuer", "idp", "directory", "nats", "keyhost"} {
		if c := s.children[name]; c != nil {
			c.stop()
		}
	}
	if s.proxy != nil {
		_ = s.proxy.Close() // nobody is left to answer
	}
	s.StopHook()
	if s.providing != nil {
		_ = s.providing.Close() // nobody is left to ask
	}
	if s.postgres != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = s.postgres.Stop(ctx) // killed when it does not end
	}
}
