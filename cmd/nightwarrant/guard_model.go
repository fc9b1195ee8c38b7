package main

import (
	"encoding/base64"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/model"
	"github.com/nightwarrant/nightwarrant/internal/config"
)

func openModelGuard(c *config.ModelGuard, log *slog.Logger) (guards.Config, func(), error) {
	of, err := modelGuard(c, log)
	if err != nil {
		return guards.Config{}, nil, err
	}
	l, err := model.New(of)
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
	return l.Guard(guards.Config{}), end, nil
}

// modelGuard is what a file says, checked.
func modelGuard(c *config.ModelGuard, log *slog.Logger) (model.Config, error) {
	roots, err := rootsOf(c.RootsFile)
	if err != nil {
		return model.Config{}, config.Wrong("roots_file", "cannot be used: %s", err)
	}
	if c.Credential.None {
		return model.Config{}, config.Wrong("credential.none", "is not for models: without a credential anybody could call them")
	}
	of := model.Config{BaseURL: c.BaseURL, Currency: c.Currency, Models: map[string]model.Model{}, Header: c.Credential.Header, Prefix: c.Credential.Prefix,
		Credential: model.CredentialEnv(c.Credential.Env), Dir: c.LedgerDir, Private: c.AllowPrivate, Roots: roots, Refused: statuses(c.Refused),
		MaxRequest: int(c.MaxRequest), MaxAnswer: c.MaxAnswer, Timeout: c.Timeout.Std(), Logger: log}
	if c.Credential.File != "" {
		of.Credential = model.CredentialFile(c.Credential.File)
	}
	for _, m := range c.Models {
		of.Models[m.ID] = model.Model{Version: m.Version, Price: model.Price{Input: m.InputPrice, Output: m.OutputPrice}, Answers: m.Answers, Overhead: m.Overhead}
	}
	if err := of.Check(); err != nil {
		return model.Config{}, &config.Error{Sentence: err.Error()}
	}
	return of, nil
}

func (p program) guardModels() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "models", Short: "Print the digests of a guard's models, as a requirement lists them", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		document, err := config.LoadGuard(file, p.env)
		if err != nil {
			return err
		}
		c, ok := document.(*config.ModelGuard)
		if !ok {
			return config.Wrong("kind", "is one that has no models")
		}
		for _, m := range c.Models {
			digest := model.Digest(c.BaseURL, m.ID, m.Version)
			if err := p.say("%s  %s\n", base64.RawURLEncoding.EncodeToString(digest[:]), model.URL(c.BaseURL, m.ID)); err != nil {
				return err
			}
		}
		return nil
	}}
	configFlag(c, &file)
	return c
}
