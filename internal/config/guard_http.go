package config

import (
	"fmt"
	"path/filepath"
	"time"
)

// HTTPGuard is the file of a guard in front of an HTTP API.
type HTTPGuard struct {
	Guard
	LedgerDir    string          `yaml:"ledger_dir"` // of its journal, 0700 on a local disk
	Operations   []HTTPOperation `yaml:"operations"`
	Credential   Credential      `yaml:"credential"`
	AllowPrivate []string        `yaml:"allow_private"` // ranges, or hosts with their port
	RootsFile    string          `yaml:"roots_file"`    // PEM; the system's roots when empty
	MaxAnswer    int64           `yaml:"max_answer"`    // bytes
}

// HTTPOperation is one operation: as registered in the guard's document, and
// what it sends and takes back.
type HTTPOperation struct {
	Action     string   `yaml:"action"`
	Title      string   `yaml:"title"`
	Parameters Tree     `yaml:"parameters"` // JSON Schema
	Resource   string   `yaml:"resource"`   // URL of the destination
	Key        []string `yaml:"key"`
	Amount     string   `yaml:"amount"`
	Currency   string   `yaml:"currency"`

	Request HTTPRequest `yaml:"request"`
	Answer  HTTPAnswer  `yaml:"answer"`
	Inspect HTTPInspect `yaml:"inspect"`
	Timeout Duration    `yaml:"timeout"`
}

// HTTPRequest is the template of a request.
type HTTPRequest struct {
	Method            string            `yaml:"method"`
	URL               string            `yaml:"url"`
	Query             map[string]string `yaml:"query"`
	Headers           map[string]string `yaml:"headers"`
	Body              Tree              `yaml:"body"`
	Form              map[string]string `yaml:"form"`
	IdempotencyHeader string            `yaml:"idempotency_header"`
}

// HTTPAnswer says what an answer means and what of it comes back.
type HTTPAnswer struct {
	Success []int64  `yaml:"success"`
	Refused []int64  `yaml:"refused"`
	Fields  []string `yaml:"fields"`
}

// HTTPInspect is the template of a GET that shows the present state; none
// without fields.
type HTTPInspect struct {
	URL     string            `yaml:"url"`
	Query   map[string]string `yaml:"query"`
	Headers map[string]string `yaml:"headers"`
	Fields  []string          `yaml:"fields"`
}

// Credential says where the secret for a destination is: in exactly one place,
// or that there is none.
type Credential struct {
	Header string `yaml:"header"`
	Prefix string `yaml:"prefix"`
	File   string `yaml:"file"`
	Env    string `yaml:"env"`
	None   bool   `yaml:"none"`
}

// Check implements Document.
func (g *HTTPGuard) Check(func(string) string) error {
	return first(
		g.check(),
		absolute("ledger_dir", g.LedgerDir),
		g.checkOperations(),
		g.Credential.check(),
		between("max_answer", &g.MaxAnswer, 256<<10, 1<<10, 16<<20),
	)
}

// Journal is the directory of the guard's ledger.
func (g *HTTPGuard) Journal() string { return g.LedgerDir }

func (g *HTTPGuard) checkOperations() error {
	if len(g.Operations) == 0 {
		return Wrong("operations", "is missing: a guard that may send nothing has nothing to do")
	}
	for i := range g.Operations {
		o, at := &g.Operations[i], fmt.Sprintf("operations[%d]", i)
		err := first(
			required(at+".action", o.Action),
			required(at+".title", o.Title),
			required(at+".resource", o.Resource),
			required(at+".parameters", string(o.Parameters)),
			within(at+".timeout", &o.Timeout, 4*time.Second, 100*time.Millisecond, time.Minute),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func absolute(key, path string) error {
	if err := required(key, path); err != nil {
		return err
	}
	if !filepath.IsAbs(path) {
		return Wrong(key, "must be an absolute path")
	}
	return nil
}

func (c *Credential) check() error {
	places := 0
	for _, given := range []bool{c.File != "", c.Env != "", c.None} {
		if given {
			places++
		}
	}
	if places != 1 {
		return Wrong("credential", "must have exactly one of file, env and none")
	}
	if c.None && (c.Header != "" || c.Prefix != "") {
		return Wrong("credential.none", "leaves no header to send")
	}
	if c.Header == "" && !c.None {
		c.Header = "Authorization"
		if c.Prefix == "" {
			c.Prefix = "Bearer "
		}
	}
	return nil
}
