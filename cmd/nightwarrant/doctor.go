package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/doctor"
	"github.com/nightwarrant/nightwarrant/scheduler/queue"
)

// doctor looks at what the processes' own files say.
func (p program) doctor() *cobra.Command {
	var files patient
	var asJSON bool
	c := &cobra.Command{Use: "doctor", Short: "Look at an installation before its users do, and say what to mend; it changes nothing", Args: cobra.NoArgs,
		Long: "Look at an installation as its processes would: give it their files, on a machine that reaches what they reach. It asks the database, the queue, the issuers, the directory and, " +
			"through whatever stands in front of them, the authority and the guards. It exits with 1 when anything is bad.\n\nThe database URL is the one of each file, and never that of $" + config.EnvDatabaseURL + "."}
	c.Flags().StringVar(&files.authority, "authority-config", "", "`FILE` of a replica of the authority")
	c.Flags().StringVar(&files.scheduler, "scheduler-config", "", "`FILE` of a scheduler")
	c.Flags().StringArrayVar(&files.guards, "guard-config", nil, "`FILE` of a guard; may be given again")
	c.Flags().StringVar(&files.roots, "roots", "", "PEM `FILE` of the only roots of the public origins' certificates; else the system's")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.MarkFlagsOneRequired("authority-config", "scheduler-config", "guard-config")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		roots, err := rootsOf(files.roots)
		if err != nil {
			return config.Wrong("--roots", "cannot be used: %s", err)
		}
		found := doctor.Run(cmd.Context(), files.checks(roots))
		err = p.print(asJSON, found, func(b *strings.Builder) { writeFindings(b, found) })
		if err == nil && doctor.Failed(found) {
			err = errors.New("something is bad: see the lines above")
		}
		return err
	}
	return c
}

func writeFindings(b *strings.Builder, found []doctor.Finding) {
	count := map[doctor.Verdict]int{}
	for _, f := range found {
		count[f.Verdict]++
		fmt.Fprintf(b, "%-7s  %s: %s\n", f.Verdict, f.Check, oneLine(f.What, maxLine))
		if f.Remedy != "" {
			fmt.Fprintf(b, "         → %s\n", oneLine(f.Remedy, maxLine))
		}
	}
	fmt.Fprintf(b, "\n%d ok, %d to look after, %d bad, %d not known.\n", count[doctor.OK], count[doctor.Warn], count[doctor.Bad], count[doctor.Unknown])
}

// patient is the files of an installation.
type patient struct {
	authority, scheduler, roots string
	guards                      []string
}

// noEnv keeps one process's environment out of another's file.
func noEnv(string) string { return "" }

func (f patient) checks(roots *x509.CertPool) (all []doctor.Check) {
	if f.authority != "" {
		c := &config.Authority{}
		all = append(all, ofFile("authority", config.Load(f.authority, c, noEnv), func() []doctor.Check { return ofAuthority(c, roots) })...)
	}
	if f.scheduler != "" {
		c := &config.Scheduler{}
		all = append(all, ofFile("scheduler", config.Load(f.scheduler, c, noEnv), func() []doctor.Check { return ofScheduler(c) })...)
	}
	for i, file := range f.guards {
		name := "guard"
		if len(f.guards) > 1 {
			name = fmt.Sprintf("guard[%d]", i)
		}
		c, err := config.LoadGuard(file, noEnv)
		all = append(all, ofFile(name, err, func() []doctor.Check { return ofGuard(name, c, roots) })...)
	}
	return all
}

// ofFile checks what a file names, where it can be read.
func ofFile(name string, err error, of func() []doctor.Check) []doctor.Check {
	self := doctor.Asked(name+".file", "the file is understood", "Mend the file: the process would exit with 78.", func(context.Context) error { return err })
	if err != nil {
		return []doctor.Check{self}
	}
	return append([]doctor.Check{self}, of()...)
}

func ofAuthority(c *config.Authority, roots *x509.CertPool) []doctor.Check {
	r := &replica{config: c, log: slog.New(slog.DiscardHandler)}
	trusts := r.trust()
	all := []doctor.Check{
		{Name: "authority", Look: doctor.Origin{Issuer: c.Issuer, HTTP: outsider(roots), Bound: c.ClockBound.Std()}.Look},
		{Name: "authority.database", Look: doctor.Database{URL: c.DatabaseURL.Reveal(), Role: "nw_authority", Bound: c.ClockBound.Std()}.Look},
		doctor.Asked("authority.bundle", "the key bundle is the registered one", "Roll the registered bundle out to this replica, or run `nightwarrant keys register` once; see docs/how-to/operate.md.",
			func(ctx context.Context) error { return proveKeys(ctx, c) }),
		doctor.Asked("authority.trust", "issuers and directory can be used", "Mend the file: the process would exit with 78.", func(context.Context) error { return trusts }),
		doctor.Asked("authority.disk", "the disks that are watched can be", "Name paths that exist.", func(context.Context) error { _, err := watchOf(c.Disk); return err }),
		{Name: "authority.certificate", Look: certificate(c.Issuer, roots)},
	}
	if c.Console.Is() {
		all = append(all, doctor.Check{Name: "authority.console", Look: doctor.Pages{Origin: c.Console.Origin, HTTP: outsider(roots)}.Look},
			doctor.Check{Name: "authority.console.certificate", Look: certificate(c.Console.Origin, roots)})
	}
	if trusts != nil {
		return all
	}
	return append(all, r.outside()...)
}

// outside checks whom the authority asks.
func (r *replica) outside() (all []doctor.Check) {
	const remedy = "Look at the issuer's URL, jwks_url and roots_file, and at the way there."
	for _, i := range r.workloads.Issuers() {
		all = append(all, doctor.Asked("authority.assertion", "the keys of "+i+" can be had", remedy, func(ctx context.Context) error { return r.workloads.Refresh(ctx, i) }))
	}
	for _, i := range r.people.Issuers() {
		all = append(all, doctor.Asked("authority.envelope", "the keys of "+i+" can be had", remedy, func(ctx context.Context) error { return r.people.Refresh(ctx, i) }))
	}
	all = append(all, doctor.Asked("authority.directory", "the directory says of somebody unknown that there is nobody", "Look at directory.url, its token and its filter on externalId.",
		func(ctx context.Context) error { _, err := r.lookAtDirectory(ctx); return err }))
	for _, i := range append(tokenIssuers(r.config.Assertion.Issuers), r.config.Envelope.Issuer) {
		for _, url := range slices.Compact([]string{i.URL, i.JWKSURL}) {
			all = append(all, certificateFile("authority.issuer.certificate", url, i.RootsFile))
		}
	}
	return append(all, certificateFile("authority.directory.certificate", r.config.Directory.URL, r.config.Directory.RootsFile))
}

// proveKeys holds the bundle against what is registered, as a replica does when it starts.
func proveKeys(ctx context.Context, c *config.Authority) error {
	bundle, err := openKeys(c.Keys)
	if err != nil {
		return err
	}
	return withPool(ctx, c.DatabaseURL, func(pool *pgxpool.Pool) error {
		registered, found, err := authority.ReadIdentity(ctx, pool)
		switch {
		case err != nil:
			return fmt.Errorf("the database does not say: %w", err)
		case !found:
			return errors.New("no bundle is registered")
		}
		return bundle.Prove(registered)
	})
}

func ofScheduler(c *config.Scheduler) []doctor.Check {
	all := []doctor.Check{
		{Name: "scheduler.database", Look: doctor.Database{URL: c.DatabaseURL.Reveal(), Role: "nw_scheduler", Bound: 2 * time.Second}.Look},
		{Name: "scheduler.queue", Look: func(ctx context.Context) []doctor.Finding { return lookAtQueue(ctx, c) }},
	}
	for url := range strings.SplitSeq(c.NATS.MonitorURL, ",") {
		all = append(all, certificateFile("scheduler.queue.certificate", url, ""))
	}
	if !c.Approvals.Webhook.IsZero() {
		all = append(all, certificateFile("scheduler.webhook.certificate", c.Approvals.Webhook.URL, ""))
	}
	if !c.Approvals.Mail.IsZero() {
		all = append(all, certificateFile("scheduler.mail.certificate", c.Approvals.Mail.URL, c.Approvals.Mail.RootsFile))
	}
	return all
}

// lookAtQueue sends a message through the stream and takes it out again, as each scheduler does all the time.
func lookAtQueue(ctx context.Context, c *config.Scheduler) []doctor.Finding {
	options, err := queueOptions(c.NATS.URL, "nats.roots_file", c.NATS.RootsFile, c.FIPSRequired())
	if err != nil {
		return []doctor.Finding{{Check: "connection", Verdict: doctor.Bad, What: err.Error(), Remedy: "Set right what it names."}}
	}
	conn, err := connectNATS(&c.NATS, slog.New(slog.NewTextHandler(io.Discard, nil)), options, nil)
	if err != nil {
		return []doctor.Finding{{Check: "connection", Verdict: doctor.Bad, What: err.Error(), Remedy: "Start NATS, and look at nats.url, the user and the password."}}
	}
	defer conn.close()
	link := doctor.Finding{Check: "connection", Verdict: doctor.OK, What: "NATS " + conn.ConnectedServerVersion() + " answers"}
	if _, err := conn.TLSConnectionState(); err != nil && !config.Loopback(strings.Split(conn.ConnectedAddr(), ":")[0]) {
		link = doctor.Finding{Check: "connection", Verdict: doctor.Bad, What: "NATS is reached over a network without TLS: passwords and references cross it in clear", Remedy: "Turn TLS on at the server, and use tls:// in nats.url."}
	}
	q, err := queue.New(queue.Config{Conn: conn.Conn, Settings: queue.Settings{Replicas: int(c.NATS.Replicas)}, Monitors: c.NATS.Monitors(), Instance: instanceOf("doctor", c.Instance)})
	if err != nil {
		return []doctor.Finding{link, {Check: "stream", Verdict: doctor.Bad, What: err.Error(), Remedy: "Mend the file."}}
	}
	if health := q.Canary(ctx); !health.OK() {
		return []doctor.Finding{link, {Check: "stream", Verdict: doctor.Bad, What: fmt.Sprintf("%s: %v", health.Reason, health.Err), Remedy: queueRemedies[health.Reason]}}
	}
	return []doctor.Finding{link, {Check: "stream", Verdict: doctor.OK, What: "the servers sync what they acknowledge, the stream and its limits are as they must be, and a message comes back"}}
}

var queueRemedies = map[queue.Reason]string{
	queue.Unreachable: "Look at nats.url and nats.monitor_url: /varz of each server is read.",
	queue.Wrong:       "Set what is named (jetstream { sync_interval: always } at the server), or make the stream with `nightwarrant admin nats-config --apply`.",
	queue.Full:        "Make room, or raise the limit that is named.",
	queue.Silent:      "Look at the scheduler's permissions: `nightwarrant admin nats-config` prints them.",
}

func ofGuard(name string, c config.GuardDocument, roots *x509.CertPool) []doctor.Check {
	g := c.Common()
	all := []doctor.Check{
		{Name: name, Look: doctor.Guard{URI: g.URI, Authority: g.Authority, HTTP: outsider(roots)}.Look},
		{Name: name + ".certificate", Look: certificate(g.URI, roots)},
		{Name: name + ".authority.certificate", Look: certificate(g.Authority, roots)},
	}
	if p, is := c.(*config.PostgresGuard); is {
		all = append(all, doctor.Check{Name: name + ".database", Look: doctor.Database{URL: p.DatabaseURL.Reveal(), Bound: 2 * time.Second}.Look})
	}
	return all
}

// outsider keeps no connection and follows what the environment says of proxies, as workers' clients do.
func outsider(roots *x509.CertPool) *http.Client {
	t := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	return &http.Client{Transport: t, Timeout: 10 * time.Second}
}

func certificate(url string, roots *x509.CertPool) func(context.Context) []doctor.Finding {
	return doctor.Certificate{URL: url, Roots: roots}.Look
}

// certificateFile leaves a file that cannot be read to who uses it.
func certificateFile(name, url, file string) doctor.Check {
	roots, err := rootsOf(file)
	if err != nil {
		return doctor.Asked(name, "the roots can be read", "Mend the file that is named.", func(context.Context) error { return err })
	}
	return doctor.Check{Name: name, Look: certificate(url, roots)}
}
