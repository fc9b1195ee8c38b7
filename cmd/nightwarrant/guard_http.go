package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	guardhttp "github.com/nightwarrant/nightwarrant/guards/http"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

func openHTTPGuard(c *config.HTTPGuard, log *slog.Logger) (guards.Config, func(), error) {
	of, err := httpGuard(c, log)
	if err != nil {
		return guards.Config{}, nil, err
	}
	l, err := guardhttp.New(of)
	if errors.Is(err, guards.ErrSettings) {
		return guards.Config{}, nil, config.Wrong("ledger_dir", "cannot be used: %s", err)
	}
	if err != nil {
		return guards.Config{}, nil, err
	}
	end := func() {
		if err := l.Close(); err != nil {
			log.Error("the journal did not end well", "error", err)
		}
	}
	return guards.Config{Ledger: l, Operations: l.Operations(), Catalogue: l.Catalogue(), Longest: l.Longest()}, end, nil
}

// httpGuard is what a file says, checked.
func httpGuard(c *config.HTTPGuard, log *slog.Logger) (guardhttp.Config, error) {
	roots, err := rootsOf(c.RootsFile)
	if err != nil {
		return guardhttp.Config{}, config.Wrong("roots_file", "cannot be used: %s", err)
	}
	of := guardhttp.Config{Dir: c.LedgerDir, Credential: httpCredential(c.Credential), Private: c.AllowPrivate, Roots: roots, MaxAnswer: c.MaxAnswer, Logger: log}
	for _, o := range c.Operations {
		of.Operations = append(of.Operations, httpOperation(o))
	}
	if err := of.Check(); err != nil {
		return guardhttp.Config{}, config.Wrong("operations", "cannot be used: %s", err)
	}
	return of, nil
}

func httpCredential(c config.Credential) *guardhttp.Credential {
	if c.None {
		return nil
	}
	out := &guardhttp.Credential{Header: c.Header, Prefix: c.Prefix, Provider: guardhttp.FromEnv(c.Env)}
	if c.File != "" {
		out.Provider = guardhttp.FromFile(c.File)
	}
	return out
}

func httpOperation(o config.HTTPOperation) guardhttp.Operation {
	out := guardhttp.Operation{
		Operation: catalogue.Operation{Action: o.Action, Title: o.Title, Parameters: json.RawMessage(o.Parameters), Resource: o.Resource,
			Key: o.Key, Amount: o.Amount, Currency: o.Currency},
		Request: guardhttp.Request{Method: o.Request.Method, URL: o.Request.URL, Query: o.Request.Query, Headers: o.Request.Headers,
			Body: json.RawMessage(o.Request.Body), Form: o.Request.Form, IdempotencyHeader: o.Request.IdempotencyHeader},
		Answer:  guardhttp.Answer{Success: statuses(o.Answer.Success), Refused: statuses(o.Answer.Refused), Fields: o.Answer.Fields},
		Timeout: o.Timeout.Std(),
	}
	if len(o.Inspect.Fields) > 0 {
		out.Inspect = &guardhttp.Inspect{URL: o.Inspect.URL, Query: o.Inspect.Query, Headers: o.Inspect.Headers, Fields: o.Inspect.Fields}
	}
	return out
}

func statuses(from []int64) (out []int) {
	for _, status := range from {
		out = append(out, int(status))
	}
	return out
}

func (p program) guardInit() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "init", Short: "Make the journal of a guard that keeps one, once", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		document, err := config.LoadGuard(file, p.env)
		if err != nil {
			return err
		}
		c, ok := document.(interface{ Journal() string })
		if !ok {
			return config.Wrong("kind", "is one whose ledger is made by guard migrate")
		}
		if err := guardhttp.Init(c.Journal()); err != nil {
			return err
		}
		return p.say("The journal is there.\n")
	}}
	configFlag(c, &file)
	return c
}

func (p program) guardInspect() *cobra.Command {
	var file, params string
	c := &cobra.Command{Use: "inspect ACTION", Short: "Show the present state of what an effect was about, for its parameters", Args: cobra.ExactArgs(1)}
	configFlag(c, &file)
	c.Flags().StringVarP(&params, "file", "f", "-", "`FILE` with the effect's parameters as JSON; - is standard input")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		state, err := p.inspect(cmd.Context(), file, params, args[0])
		if err != nil {
			return err
		}
		return p.say("%s\n", state)
	}
	return c
}

func (p program) inspect(ctx context.Context, file, params, action string) (json.RawMessage, error) {
	document, err := config.LoadGuard(file, p.env)
	if err != nil {
		return nil, err
	}
	c, ok := document.(*config.HTTPGuard)
	if !ok {
		return nil, config.Wrong("kind", "is one that has no inspection")
	}
	of, err := httpGuard(c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	inspector, err := guardhttp.NewInspector(of)
	if err != nil {
		return nil, err
	}
	text, err := p.readFile(params)
	if err != nil {
		return nil, err
	}
	return inspector.Inspect(ctx, action, text)
}
