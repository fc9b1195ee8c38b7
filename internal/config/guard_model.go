package config

import (
	"fmt"
	"time"
)

// ModelGuard is the file of a guard in front of language models of one provider.
type ModelGuard struct {
	Guard
	LedgerDir    string     `yaml:"ledger_dir"` // of its journal, 0700 on a local disk
	BaseURL      string     `yaml:"base_url"`   // of the provider; the only destination
	Currency     string     `yaml:"currency"`   // of all prices
	Models       []Model    `yaml:"models"`
	Credential   Credential `yaml:"credential"`
	AllowPrivate []string   `yaml:"allow_private"` // ranges, or hosts with their port
	RootsFile    string     `yaml:"roots_file"`    // PEM; the system's roots when empty
	Refused      []int64    `yaml:"refused"`       // statuses by which this provider says that it did nothing
	MaxRequest   int64      `yaml:"max_request"`   // bytes
	MaxAnswer    int64      `yaml:"max_answer"`    // bytes
	Timeout      Duration   `yaml:"timeout"`       // of a call
}

// Model is one model that may be called, and what it costs.
type Model struct {
	ID          string   `yaml:"id"`           // that requests name
	Version     string   `yaml:"version"`      // or digest, as its operator pins it
	InputPrice  int64    `yaml:"input_price"`  // minor units of a million tokens
	OutputPrice int64    `yaml:"output_price"` // and of those that it makes
	Answers     []string `yaml:"answers"`      // other names under which it may answer
	Overhead    int64    `yaml:"overhead"`     // tokens that the provider adds to a request
}

// Check implements Document.
func (g *ModelGuard) Check(func(string) string) error {
	return first(
		g.check(),
		absolute("ledger_dir", g.LedgerDir),
		required("base_url", g.BaseURL),
		required("currency", g.Currency),
		g.checkModels(),
		g.Credential.check(),
		between("max_request", &g.MaxRequest, 1<<20, 1<<10, 16<<20),
		between("max_answer", &g.MaxAnswer, 8<<20, 1<<10, 64<<20),
		within("timeout", &g.Timeout, time.Minute, time.Second, 10*time.Minute),
	)
}

func (g *ModelGuard) checkModels() error {
	if len(g.Models) == 0 {
		return Wrong("models", "is missing: a guard that may call no model has nothing to do")
	}
	seen := map[string]bool{}
	for i, m := range g.Models {
		at := fmt.Sprintf("models[%d]", i)
		if err := first(required(at+".id", m.ID), required(at+".version", m.Version)); err != nil {
			return err
		}
		if seen[m.ID] {
			return Wrong(at+".id", "stands twice")
		}
		seen[m.ID] = true
	}
	return nil
}

// Journal is where the guard keeps what it must not forget.
func (g *ModelGuard) Journal() string { return g.LedgerDir }
