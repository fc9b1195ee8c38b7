package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

func (p program) guard() *cobra.Command {
	var file string
	cmd := &cobra.Command{Use: "guard", Short: "Run a guard in front of a database, an API or a model", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		c, err := config.LoadGuard(file, p.env)
		if err != nil {
			return err
		}
		return runGuard(cmd.Context(), c, p.log())
	}}
	configFlag(cmd, &file)
	cmd.AddCommand(p.guardMigrate(), p.guardInit(), p.guardInspect(), p.guardImport(), p.guardModels(), p.guardDataset())
	return cmd
}

// configFlag is the one that every process needs.
func configFlag(c *cobra.Command, file *string) {
	c.Flags().StringVar(file, "config", "", "the process's YAML `FILE`")
	_ = c.MarkFlagRequired("config") // the flag is defined above
}

// openGuard opens what a kind of guard works with, to be closed after the guard has ended.
func openGuard(ctx context.Context, document config.GuardDocument, log *slog.Logger) (of guards.Config, end func(), err error) {
	switch c := document.(type) {
	case *config.PostgresGuard:
		return openPostgresGuard(ctx, c, log)
	case *config.HTTPGuard:
		return openHTTPGuard(c, log)
	case *config.ModelGuard:
		return openModelGuard(c, log)
	}
	return guards.Config{}, nil, config.Wrong("kind", "is none that this program has")
}

// runGuard runs until ctx ends or a later boot has taken over.
func runGuard(ctx context.Context, document config.GuardDocument, log *slog.Logger) error {
	if err := inModule(document); err != nil {
		return err
	}
	of, end, err := openGuard(ctx, document, log)
	if err != nil {
		return err
	}
	defer end()
	c := document.Common()
	if of.HTTPClient, err = clientWith("authority_roots_file", c.AuthorityRootsFile); err != nil {
		return err
	}
	from, err := assertionOf(ctx, c.Identity, c.Authority)
	if err != nil {
		return err
	}
	defer from.close()
	of.URI, of.Name, of.Issuer, of.Assertion, of.AssertionType, of.Build, of.Logger = c.URI, c.Name, c.Authority, from.read, from.kind, told(thisProcess(log)), log
	g, err := guards.New(of)
	if err != nil {
		return &config.Error{Sentence: err.Error()}
	}
	listener, _, err := listenTLS(ctx, c.Listen, "", c.TLS, log)
	if err != nil {
		return err
	}
	// Requests end before what they need does.
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks, ctx := errgroup.WithContext(ctx)
	if err := serveAdmin(ctx, tasks, c.AdminListen, newMetrics(), log); err != nil {
		return errors.Join(err, listener.Close())
	}
	log.LogAttrs(ctx, slog.LevelInfo, "guarding", slog.String("uri", c.URI), slog.String("listen", listener.Addr().String()))
	tasks.Go(func() error {
		defer stop()
		return server.Serve(ctx, listener, g, log)
	})
	tasks.Go(func() error { return g.Run(background) })
	err = tasks.Wait()
	log.Info("stopped")
	return err
}
