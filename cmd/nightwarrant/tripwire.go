package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/tripwire"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// tripwire audits a live deployment from outside. It exits with 1 when something did not hold.
func (p program) tripwire() *cobra.Command {
	var file string
	var logs []string
	var asJSON, closing bool
	c := &cobra.Command{Use: "tripwire", Short: "Attack a live deployment with a scratch task, and say what held", Args: cobra.NoArgs}
	c.Flags().StringVar(&file, "config", "", "the audit's YAML `FILE`")
	c.Flags().BoolVar(&closing, "close-gate", false, "close admission twice for some seconds, to see that nothing passes")
	c.Flags().StringArrayVar(&logs, "logs", nil, "search this `DIRECTORY` of logs for secrets, too")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = c.MarkFlagRequired("config") // the flag is defined above
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		var f config.Tripwire
		if err := config.Load(file, &f, p.env); err != nil {
			return err
		}
		f.Logs = append(f.Logs, logs...)
		audit, err := p.audited(f, closing)
		if err != nil {
			return err
		}
		if !asJSON {
			audit.Say = func(l tripwire.Line) {
				_ = p.say("%-14s  %-6s  %s\n                        %s\n", strings.ReplaceAll(string(l.Verdict), "_", " "), l.ID, l.Title, oneLine(l.Evidence, 400)) // the exit code counts
			}
		}
		return p.report(cmd.Context(), audit, asJSON)
	}
	return c
}

func (p program) report(ctx context.Context, audit tripwire.Config, asJSON bool) error {
	report, err := tripwire.Run(ctx, audit)
	if err != nil {
		return err
	}
	if asJSON {
		if err := p.print(true, report, nil); err != nil {
			return err
		}
	}
	var failed []string
	for _, l := range report.Lines {
		if l.Verdict == tripwire.Fail {
			failed = append(failed, l.ID)
		}
	}
	if report.Failed() {
		return fmt.Errorf("did not hold: %s", strings.Join(failed, ", "))
	}
	return nil
}

// audited turns the file into what the audit needs.
func (p program) audited(f config.Tripwire, closing bool) (c tripwire.Config, err error) {
	c = tripwire.Config{Authority: f.Authority, Replicas: f.Replicas, Admin: f.Admin, Profile: f.Profile, Logs: f.Logs, As: asPerson(f.Authority), Now: time.Now,
		Guard: tripwire.Guard{Name: f.Guard.Name, URI: f.Guard.URI, Granted: tried(f.Guard.Granted), Denied: tried(f.Guard.Denied)}}
	if c.Running, err = builds.Running(); err != nil {
		return c, err
	}
	build := thisBuild()
	c.Build, c.FIPS = build.Version+" "+build.revision(), f.FIPSRequired()
	for _, h := range []struct {
		from config.Holder
		to   *tripwire.Holder
	}{{f.Operator, &c.Operator}, {f.Member, &c.Member}, {f.Workload, &c.Workload}, {f.Second, &c.Second}, {f.Stranger, &c.Stranger}, {f.Guard.Pod, &c.Guard.Pod}} {
		if *h.to, err = holder(h.from); err != nil {
			return c, err
		}
	}
	for _, h := range f.Hosts {
		host := tripwire.Host{Name: h.Host, From: int(h.From), To: int(h.To)}
		for _, port := range h.Ports {
			host.Ports = append(host.Ports, int(port))
		}
		c.Hosts = append(c.Hosts, host)
	}
	if closing {
		if f.Gate.DatabaseURLFile == "" {
			return c, config.Wrong("gate.database_url_file", "is needed to close admission")
		}
		c.Gate = operatorsGate{&databaseFlags{file: f.Gate.DatabaseURLFile, env: p.env}}
	}
	return c, nil
}

func tried(t config.Tried) tripwire.Effect {
	return tripwire.Effect{Action: t.Action, Resource: t.Resource, Parameters: json.RawMessage(t.Parameters)}
}

func holder(h config.Holder) (out tripwire.Holder, err error) {
	if h.TokenFile == "" {
		return out, nil
	}
	out.Token = func() (string, error) {
		token, err := config.ReadSecret(h.TokenFile)
		return token.Reveal(), err
	}
	if _, err := out.Token(); err != nil {
		return out, &config.Error{Sentence: err.Error()}
	}
	out.Key, err = ownKey(h.KeyFile)
	return out, err
}

// operatorsGate closes and releases as nw_operator.
type operatorsGate struct{ *databaseFlags }

func (g operatorsGate) Close(ctx context.Context) error {
	return g.with(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := readiness.Close(ctx, pool, "drill")
		return err
	})
}

func (g operatorsGate) Release(ctx context.Context) error {
	return g.with(ctx, func(ctx context.Context, pool *pgxpool.Pool) error {
		_, err := readiness.Release(ctx, pool)
		return err
	})
}

// caller is a person whose refusals are those of the wire.
type caller struct{ *person }

func asPerson(origin string) func(string, *capability.Key, *http.Client) tripwire.Person {
	return func(envelope string, key *capability.Key, by *http.Client) tripwire.Person {
		return caller{&person{origin: origin, envelope: capability.Token(envelope), key: key, http: by, shown: whatever}}
	}
}

func (c caller) Call(ctx context.Context, method, path, kind string, body []byte, out any) error {
	err := c.call(ctx, method, path, kind, body, out)
	if r, ok := errors.AsType[*refused](err); ok {
		return api.Refuse(r.code)
	}
	return err
}
