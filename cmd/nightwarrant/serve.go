package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/audit/sequencer"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/directory"
	"github.com/nightwarrant/nightwarrant/internal/disk"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/server"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/migrations"
	"github.com/nightwarrant/nightwarrant/readiness"
)

const startTimeout = 20 * time.Second

func (p program) serve() *cobra.Command {
	c := &config.Authority{}
	return p.process("serve", "Run a replica of the authority", c, func(ctx context.Context) error {
		return serve(ctx, c, p.log())
	})
}

// replica is one process of the authority, with everything checked and nothing running.
type replica struct {
	config     *config.Authority
	log        *slog.Logger
	pool       *pgxpool.Pool
	watching   *pgxpool.Pool // of readiness alone: evaluating must not queue behind what it judges
	schema     int64         // that this binary was built for
	disk       disk.Watch
	keys       *keys.Bundle                              // as it was at the start
	inForce    func() *keys.Bundle                       // as it is now
	hold       func(context.Context, *keys.Bundle) error // uses what was opened, if it is ours
	workloads  *jwks.Cache
	people     *jwks.Cache
	assertions *attestation.Verifier
	envelopes  *principal.Envelopes
	entrance   entrance
	members    *directory.SCIM
	sequencer  *sequencer.Sequencer
	vouching   *vouching // nil where no record of provenance is configured
}

// serve runs until ctx ends. What is wrong with files is found before the
// database is asked, and nothing is ever repaired (B13).
func serve(ctx context.Context, c *config.Authority, log *slog.Logger) (err error) {
	r := &replica{config: c, log: log}
	if c.FIPSRequired() {
		if err := keys.InFIPS(c.Keys.Dir, c.Keys.IdentityFile); err != nil {
			return err
		}
	}
	if r.keys, err = openKeys(c.Keys); err != nil {
		return err
	}
	if r.vouching, err = vouchingOf(c.Keys, instanceOf("authority", c.Instance)); err != nil {
		return err
	}
	if err := r.trust(); err != nil {
		return err
	}
	if r.disk, err = watchOf(c.Disk); err != nil {
		return err
	}
	if r.pool, r.schema, err = openDatabase(ctx, c.DatabaseURL, "nightwarrant-authority"); err != nil {
		return err
	}
	defer r.pool.Close()
	if r.watching, err = pg.Open(ctx, pg.Config{URL: c.DatabaseURL.Reveal(), MaxConns: 4, Name: "nightwarrant-readiness"}); err != nil {
		return err
	}
	defer r.watching.Close()
	return r.run(ctx)
}

// openDatabase opens the pool of a process, refuses another schema than this
// binary's, and returns that.
func openDatabase(ctx context.Context, url config.Secret, name string) (*pgxpool.Pool, int64, error) {
	pool, err := pg.Open(ctx, pg.Config{URL: url.Reveal(), Name: name})
	if err != nil {
		return nil, 0, err
	}
	schema, err := checkSchema(ctx, url)
	if err != nil {
		pool.Close()
		return nil, 0, err
	}
	return pool, schema, nil
}

func checkSchema(ctx context.Context, url config.Secret) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	current, newest, err := migrations.Version(ctx, url.Reveal())
	switch {
	case err != nil:
		return 0, fmt.Errorf("the database's schema version cannot be read (has `nightwarrant migrate` been run?): %w", err)
	case current < newest:
		return 0, &config.Error{Sentence: fmt.Sprintf("the database has schema version %d and this program needs %d: run `nightwarrant migrate`", current, newest)}
	case current > newest:
		return 0, &config.Error{Sentence: fmt.Sprintf("the database has schema version %d and this program is older, made for %d", current, newest)}
	}
	return newest, nil
}

// watchOf is what an operator wants to stay free. A path about which nothing
// can be learned is a mistake now, and a full disk later.
func watchOf(c config.Disk) (disk.Watch, error) {
	w := disk.Watch{Paths: c.Paths}
	if err := w.Check(); err != nil {
		return w, config.Wrong("disk.paths", "cannot be watched: %s", err)
	}
	w.Free, w.Percent = uint64(c.MinFreeMB)<<20, uint64(c.MinFreePercent)
	return w, nil
}

// trust makes what decides whose word counts. Its errors are misconfigurations.
func (r *replica) trust() (err error) {
	c := r.config
	if r.workloads, err = cacheOf(c.Issuer, "assertion.issuers", c.Assertion.Freshness, tokenIssuers(c.Assertion.Issuers)...); err != nil {
		return err
	}
	if r.people, err = cacheOf(c.Issuer, "envelope.issuer", c.Envelope.Freshness, c.Envelope.Issuer); err != nil {
		return err
	}
	reviews, err := reviewsOf(c.Assertion.Issuers)
	if err != nil {
		return err
	}
	r.assertions, err = attestation.New(attestation.Config{Keys: r.workloads, Audience: c.Issuer, MaxLifetime: c.Assertion.MaxLifetime.Std(), Reviews: reviews})
	if err != nil {
		return config.Wrong("assertion", "cannot be used: %s", err)
	}
	if r.envelopes, err = r.envelopesFor(c.Envelope.Audience, c.Envelope.MaxAge.Std(), ""); err != nil {
		return config.Wrong("envelope", "cannot be used: %s", err)
	}
	if err := r.trustBrowsers(); err != nil {
		return err
	}
	r.members, err = membersOf(c.Directory, c.Envelope.Issuer.URL)
	return err
}

func cacheOf(own, key string, f config.Freshness, issuers ...config.Issuer) (*jwks.Cache, error) {
	list := make([]jwks.Issuer, len(issuers))
	for n, i := range issuers {
		roots, err := rootsOf(i.RootsFile)
		if err != nil {
			return nil, config.Wrong(key, "has a roots_file that cannot be used: %s", err)
		}
		list[n] = jwks.Issuer{URL: i.URL, JWKSURL: i.JWKSURL, File: i.JWKSFile, Algorithms: i.Algorithms, Roots: roots}
	}
	cache, err := jwks.New(jwks.Config{Own: own, Issuers: list, Refresh: f.Refresh.Std(), MaxStale: f.MaxStale.Std()})
	if err != nil {
		return nil, config.Wrong(key, "cannot be used: %s", err)
	}
	return cache, nil
}

// membersOf asks the directory about people of the envelopes' issuer.
func membersOf(d config.Directory, issuer string) (*directory.SCIM, error) {
	roots, err := rootsOf(d.RootsFile)
	if err != nil {
		return nil, config.Wrong("directory.roots_file", "cannot be used: %s", err)
	}
	token := func() (directory.Secret, error) { return config.ReadSecret(d.TokenFile) }
	if _, err := token(); err != nil {
		return nil, config.Wrong("directory.token_file", "%s", err)
	}
	members, err := directory.NewSCIM(directory.Config{URL: d.URL, Issuer: issuer, Timeout: d.Timeout.Std(), Roots: roots, Token: token})
	if err != nil {
		return nil, config.Wrong("directory", "cannot be used: %s", err)
	}
	return members, nil
}

// rootsOf reads the certificates that alone are trusted; nil means the system's.
func rootsOf(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New("it holds no PEM certificate")
	}
	return roots, nil
}

// run serves and reports until ctx ends or one part fails; every goroutine has ended then.
func (r *replica) run(ctx context.Context) error {
	sequence, err := r.sequence()
	if err != nil {
		return err
	}
	gate := readiness.NewGate(r.watching, r.log)
	a, err := authority.New(ctx, authority.Config{Pool: r.pool, Bundle: r.keys, Assertions: r.assertions, Envelopes: r.envelopes, Gate: gate, Directory: r.members,
		Issuer: r.config.Issuer, Lease: r.config.Lease.Std(), Pages: r.config.Console.Origin, Log: r.log})
	if err != nil {
		return err
	}
	if err := r.startVouched(ctx, a.Keys()); err != nil {
		return err
	}
	s := server.New(a, gate, r.log)
	calls, sessions, err := r.public(a, s)
	if err != nil {
		return err
	}
	r.sequencer = sequencer.New(sequence)
	public, admin, err := listenTLS(ctx, r.config.Listen, r.config.AdminListen, r.config.TLS, r.log)
	if err != nil {
		return err
	}
	reporter, err := readiness.Register(ctx, r.watching, r.log, "authority", instanceOf("authority", r.config.Instance), thisProcess(r.log))
	if err != nil {
		return errors.Join(err, closeAll(public, admin))
	}
	r.follow(a, reporter)
	r.log.LogAttrs(ctx, slog.LevelInfo, "serving", slog.String("issuer", r.config.Issuer), addressOf("listen", public), addressOf("admin_listen", admin))
	tasks, ctx := errgroup.WithContext(ctx)
	serveOn(ctx, tasks, public, calls, r.log)
	serveOn(ctx, tasks, admin, s.Admin(), r.log)
	for _, loop := range []func(context.Context){r.workloads.Run, r.people.Run, a.Run, gate.Run, r.sequencer.Run, sessions,
		func(ctx context.Context) { r.vouching.run(ctx, r.log, a.Keys) },
		func(ctx context.Context) { reporter.Run(ctx, r.probes(a.Issuers)...) }} {
		tasks.Go(func() error {
			loop(ctx)
			return nil
		})
	}
	err = tasks.Wait()
	r.log.Info("stopped")
	return err
}

// instanceOf names a replica to the database.
func instanceOf(kind, name string) [32]byte {
	return canonical.Digest(canonical.DomainReference, []byte(kind), []byte(name))
}

// listen opens the public listener and, where it has an address, the operators'.
func listen(ctx context.Context, public, admin string) (p, a net.Listener, err error) {
	var c net.ListenConfig
	if p, err = c.Listen(ctx, "tcp", public); err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	if admin != "" {
		if a, err = c.Listen(ctx, "tcp", admin); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("admin_listen: %w", err), p.Close())
		}
	}
	return p, a, nil
}

// addressOf is where a listener is bound, for the log; empty when there is none.
func addressOf(key string, l net.Listener) slog.Attr {
	if l == nil {
		return slog.String(key, "")
	}
	return slog.String(key, l.Addr().String())
}

func closeAll(all ...net.Listener) (err error) {
	for _, l := range all {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

func serveOn(ctx context.Context, tasks *errgroup.Group, l net.Listener, h http.Handler, log *slog.Logger) {
	if l != nil {
		tasks.Go(func() error { return server.Serve(ctx, l, h, log) })
	}
}
