package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/pg"
	"github.com/nightwarrant/nightwarrant/keys"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
	"github.com/nightwarrant/nightwarrant/migrations"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// databaseFlags are how a command is told its database. The flag shows in the
// list of processes, so that the other two are there.
type databaseFlags struct {
	url, file string
	env       func(string) string
}

func (p program) databaseFlags(c *cobra.Command, role string) *databaseFlags {
	d := &databaseFlags{env: p.env}
	c.Flags().StringVar(&d.url, "database-url", "", "postgres:// `URL` of role "+role+"; else $"+config.EnvDatabaseURL)
	c.Flags().StringVar(&d.file, "database-url-file", "", "`FILE` of mode 0600 that holds the URL")
	c.MarkFlagsMutuallyExclusive("database-url", "database-url-file")
	return d
}

func (d *databaseFlags) secret() (config.Secret, error) {
	switch {
	case d.url != "":
		return config.Secret(d.url), nil
	case d.file != "":
		s, err := config.ReadSecret(d.file)
		if err != nil {
			return "", config.Wrong("--database-url-file", "%s", err)
		}
		return s, nil
	case d.env(config.EnvDatabaseURL) != "":
		return config.Secret(d.env(config.EnvDatabaseURL)), nil
	}
	return "", &config.Error{Sentence: "name the database with --database-url, --database-url-file or $" + config.EnvDatabaseURL}
}

// with opens the database for one short command.
func (d *databaseFlags) with(ctx context.Context, act func(context.Context, *pgxpool.Pool) error) error {
	return d.within(ctx, startTimeout, act)
}

// within opens the database for a command that may last.
func (d *databaseFlags) within(ctx context.Context, limit time.Duration, act func(context.Context, *pgxpool.Pool) error) error {
	url, err := d.secret()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return withPool(ctx, url, func(pool *pgxpool.Pool) error { return act(ctx, pool) })
}

// withPool opens the database for one caller.
func withPool(ctx context.Context, url config.Secret, act func(*pgxpool.Pool) error) error {
	pool, err := pg.Open(ctx, pg.Config{URL: url.Reveal(), MaxConns: 1, Name: "nightwarrant-cli"})
	if err != nil {
		return err
	}
	defer pool.Close()
	return act(pool)
}

func (p program) migrate() *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Bring the authority's database to this version, as its owner", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "the owner")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		url, err := d.secret()
		if err != nil {
			return err
		}
		if _, err := pgxpool.ParseConfig(url.Reveal()); err != nil { // its text may quote the password
			return &config.Error{Sentence: "the database's URL cannot be read"}
		}
		if err := migrations.Up(cmd.Context(), url.Reveal()); err != nil {
			return fmt.Errorf("the migration did not end: %w", err)
		}
		_, newest, err := migrations.Version(cmd.Context(), url.Reveal())
		if err != nil {
			return err
		}
		return p.say("The database has schema version %d.\n", newest)
	}
	return c
}

func (p program) gate() *cobra.Command {
	var why string
	closing := p.gateCommand("close", "Hold admission closed, at once", func(ctx context.Context, pool *pgxpool.Pool) (string, error) {
		if !slices.Contains(readiness.Why, why) {
			return "", config.Wrong("--why", "must be one of %s", strings.Join(readiness.Why, ", "))
		}
		epoch, err := readiness.Close(ctx, pool, why)
		return fmt.Sprintf("Admission is closed and held; readiness epoch %d. Nothing is admitted until `nightwarrant gate release`.", epoch), err
	})
	closing.Flags().StringVar(&why, "why", "other", "what the audit log keeps as the `REASON`: "+strings.Join(readiness.Why, ", "))
	return group("gate", "Hold admission closed by hand, and end that hold", closing,
		p.gateCommand("release", "End the hold; this opens nothing by itself", func(ctx context.Context, pool *pgxpool.Pool) (string, error) {
			released, err := readiness.Release(ctx, pool)
			if !released {
				return "There was no hold.", err
			}
			return "The hold has ended. Admission opens when every required family is good.", err
		}),
		p.gateCommand("standby", "Record, before a fail-over, that a synchronous standby may be promoted", func(ctx context.Context, pool *pgxpool.Pool) (string, error) {
			recorded, err := readiness.RecordStandby(ctx, pool)
			if err == nil && !recorded {
				err = errors.New("this server does not wait for a synchronous standby (synchronous_standby_names, synchronous_commit), so that a promoted one may lack what was answered: nothing was recorded")
			}
			return "Recorded for a day: when a synchronous standby of this server is promoted, runs go on. Any other fail-over ends them as ambiguous.", err
		}))
}

func (p program) gateCommand(use, short string, act func(context.Context, *pgxpool.Pool) (string, error)) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs}
	d := p.databaseFlags(c, "nw_operator")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			said, err := act(ctx, pool)
			if err == nil {
				err = p.say("%s\n", said)
			}
			return err
		})
	}
	return c
}

func (p program) keys() *cobra.Command {
	return group("keys", "Make the cluster's keys, register them, change them, cut them off", p.keysInit(), p.keysRegister(), p.keysShow(), p.keysRotate(), p.keysCutOff(), p.keysProvenance(), p.keysSnapshot())
}

// bundleFlags say where a key bundle is, and who has what it does not seal.
func bundleFlags(c *cobra.Command) *config.Keys {
	k := &config.Keys{}
	c.Flags().StringVar(&k.Dir, "dir", "", "the bundle's `DIRECTORY`, projected to every replica")
	c.Flags().StringVar(&k.IdentityFile, "identity-file", "", "age identity `FILE` of mode 0600 that opens the seal, outside the bundle")
	c.Flags().StringVar(&k.Host.Socket, "keyhost", "", "`SOCKET` of nightwarrant-keyhost, when the signing key and the nonce key lie in a token")
	c.Flags().StringVar(&k.Host.User, "keyhost-user", "", "`USER` as whom the key host runs; the same as this command when not given")
	_, _ = c.MarkFlagRequired("dir"), c.MarkFlagRequired("identity-file") // both are defined above
	return k
}

// hostOf reaches the key host that is configured; nil when none is.
func hostOf(h config.Host) (keys.Host, error) {
	if h.Socket == "" {
		return nil, nil
	}
	return clientOf(h)
}

// clientOf asks the key host as the user as whom it must run.
func clientOf(h config.Host) (*keyhost.Client, error) {
	uid := os.Getuid()
	if h.User != "" {
		var err error
		if uid, err = config.UserID("keys.host.user", h.User); err != nil {
			return nil, err
		}
	}
	return keyhost.NewClient(h.Socket, uid), nil
}

func openKeys(k config.Keys) (*keys.Bundle, error) {
	host, err := hostOf(k.Host)
	if err != nil {
		return nil, err
	}
	return keys.OpenWith(k.Dir, k.IdentityFile, host)
}

// newSeal makes the identity of a new bundle. One whose keys lie in a token is for
// FIPS deployments too, so that its seal is one that the FIPS module can open.
func newSeal(host keys.Host) func(string) error {
	if host != nil {
		return keys.NewSealKey
	}
	return keys.NewIdentity
}

func (p program) keysInit() *cobra.Command {
	c := &cobra.Command{Use: "init", Short: "Make a cluster's first key bundle, once; never over another", Args: cobra.NoArgs}
	k := bundleFlags(c)
	record := provenanceFlag(c)
	c.RunE = func(*cobra.Command, []string) error {
		host, err := hostOf(k.Host)
		if err == nil {
			host, err = recordedBy(host, *record)
		}
		if err != nil {
			return err
		}
		if _, err := os.Lstat(k.IdentityFile); errors.Is(err, fs.ErrNotExist) {
			if err := newSeal(host)(k.IdentityFile); err != nil {
				return err
			}
		}
		made := func() (keys.Identity, error) { return keys.Init(k.Dir, k.IdentityFile) }
		if host != nil {
			made = func() (keys.Identity, error) { return keys.InitWith(k.Dir, k.IdentityFile, host) }
		}
		id, err := made()
		if err == nil {
			err = p.sayIdentity("Made the key bundle of a new cluster.", id)
		}
		return err
	}
	return c
}

func (p program) keysRegister() *cobra.Command {
	c := &cobra.Command{Use: "register", Short: "Enter the bundle's public identity into the database, once", Args: cobra.NoArgs}
	k := bundleFlags(c)
	d := p.databaseFlags(c, "nw_operator")
	w := authority.DefaultWaits
	c.Flags().DurationVar(&w.Cache, "cache", w.Cache, "for how long the published keys may be kept, 1s to 5m: each rotation waits for it, and for the margin, before it signs")
	c.Flags().DurationVar(&w.Margin, "margin", w.Margin, "what each rotation waits longer, 1s to 1h")
	c.Flags().DurationVar(&w.Lifetime, "lifetime", w.Lifetime, "the longest lifetime of anything that is signed, 1s to 5m: each rotation waits for it, and for the margin, before it ends a generation")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkWaits(w); err != nil {
			return err
		}
		bundle, err := openKeys(*k)
		if err != nil {
			return err
		}
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			err := authority.RegisterIdentity(ctx, pool, bundle.Identity(), w)
			if err == nil {
				err = p.sayIdentity("The database holds this identity.", bundle.Identity())
			}
			return err
		})
	}
	return c
}

// checkWaits says what the database would refuse.
func checkWaits(w authority.Waits) error {
	for flag, of := range map[string]struct{ is, most time.Duration }{
		"--cache": {w.Cache, 5 * time.Minute}, "--margin": {w.Margin, time.Hour}, "--lifetime": {w.Lifetime, authority.DefaultWaits.Lifetime}} {
		if of.is < time.Second || of.is > of.most {
			return config.Wrong(flag, "must be 1s to %s", of.most)
		}
	}
	return nil
}

func (p program) sayIdentity(first string, id keys.Identity) error {
	return p.say("%s\ncluster     %s\ngeneration  %d\nkid         %s\n", first, hex.EncodeToString(id.ClusterID[:]), id.Generation, id.KID)
}
