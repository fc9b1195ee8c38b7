package main

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/guards"
	ledger "github.com/nightwarrant/nightwarrant/guards/postgres"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

const datasetWithin = 10 * time.Second // of looking at the tables once

func openPostgresGuard(ctx context.Context, c *config.PostgresGuard, log *slog.Logger) (guards.Config, func(), error) {
	pool, err := ledger.Open(ctx, c.DatabaseURL.Reveal())
	if err != nil {
		return guards.Config{}, nil, err
	}
	of, err := postgresGuard(ctx, c, pool, log)
	if err != nil {
		pool.Close()
		return guards.Config{}, nil, err
	}
	return of, pool.Close, nil
}

func postgresGuard(ctx context.Context, c *config.PostgresGuard, pool *pgxpool.Pool, log *slog.Logger) (guards.Config, error) {
	l, err := postgresLedger(c, pool, log)
	if err != nil {
		return guards.Config{}, err
	}
	of := guards.Config{Ledger: l, Operations: l.Operations(), Catalogue: l.Catalogue()}
	if c.ReportDataset {
		digest, err := datasetOf(ctx, l)
		if err != nil {
			return guards.Config{}, err
		}
		of.Datasets = [][32]byte{digest}
	}
	return of, nil
}

func postgresLedger(c *config.PostgresGuard, pool *pgxpool.Pool, log *slog.Logger) (*ledger.Ledger, error) {
	tables := make(map[string]ledger.Table, len(c.Tables))
	for name, t := range c.Tables {
		tables[name] = ledger.Table{Schema: t.Schema, Columns: t.Columns, Key: t.Key}
	}
	l, err := ledger.New(ledger.Config{Pool: pool, Schema: c.LedgerSchema, Tables: tables, Logger: log})
	if err != nil {
		return nil, config.Wrong("tables", "cannot be used: %s", err)
	}
	return l, nil
}

// datasetOf is what this guard stands before. What only a person can set right is misconfiguration.
func datasetOf(ctx context.Context, l *ledger.Ledger) ([32]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, datasetWithin)
	defer cancel()
	d, err := l.Dataset(ctx)
	if errors.Is(err, guards.ErrSettings) {
		return [32]byte{}, &config.Error{Sentence: err.Error()}
	}
	return d.Digest(), err
}

func (p program) guardDataset() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "dataset", Short: "Print the digest of what a guard stands before, as a requirement lists it", Args: cobra.NoArgs}
	configFlag(c, &file)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		document, err := config.LoadGuard(file, p.env)
		if err != nil {
			return err
		}
		c, ok := document.(*config.PostgresGuard)
		if !ok {
			return config.Wrong("kind", "is one that has no dataset")
		}
		pool, err := ledger.Open(cmd.Context(), c.DatabaseURL.Reveal())
		if err != nil {
			return err
		}
		defer pool.Close()
		l, err := postgresLedger(c, pool, p.log())
		if err != nil {
			return err
		}
		digest, err := datasetOf(cmd.Context(), l)
		if err != nil {
			return err
		}
		return p.say("%s\n", base64.RawURLEncoding.EncodeToString(digest[:]))
	}
	return c
}

func (p program) guardMigrate() *cobra.Command {
	c := &cobra.Command{Use: "migrate", Short: "Make the guard's ledger in the resource's own database", Args: cobra.NoArgs}
	d := p.databaseFlags(c, "a role that may create schemas")
	role := c.Flags().String("role", "", "the guard's own database `ROLE`, which gets the right to call the ledger")
	schema := c.Flags().String("schema", "nightwarrant_guard", "the ledger's `SCHEMA`: another for each guard of the database")
	_ = c.MarkFlagRequired("role") // the flag is defined above
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return d.with(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
			err := ledger.MigrateSchema(ctx, pool, *schema, *role)
			if err == nil {
				err = p.say("The ledger is there, and the role may call it.\n")
			}
			return err
		})
	}
	return c
}
