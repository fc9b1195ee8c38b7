package config

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// Guard is what the file of `nightwarrant guard` says whatever its kind.
type Guard struct {
	FIPS
	Kind               string `yaml:"kind"`   // of what the guard stands in front of; decides which other keys there are
	URI                string `yaml:"uri"`    // as registered: an origin of its own, and a path
	Listen             string `yaml:"listen"` // requests
	TLS                TLS    `yaml:"tls"`    // of listen
	AdminListen        string `yaml:"admin_listen"`
	Name               string `yaml:"name"`                 // of the registered component
	Authority          string `yaml:"authority"`            // its issuer
	AuthorityRootsFile string `yaml:"authority_roots_file"` // PEM; the system's roots when empty
	Identity
}

// GuardDocument is the configuration of a guard of one kind.
type GuardDocument interface {
	Document
	Common() *Guard
}

// guards are the kinds.
var guards = map[string]func() GuardDocument{
	"postgres": func() GuardDocument { return &PostgresGuard{} },
	"http":     func() GuardDocument { return &HTTPGuard{} },
	"model":    func() GuardDocument { return &ModelGuard{} },
}

// Guards is an empty configuration of each kind of guard.
func Guards() map[string]GuardDocument {
	all := make(map[string]GuardDocument, len(guards))
	for kind, document := range guards {
		all[kind] = document()
	}
	return all
}

// LoadGuard is Load for a guard, of the kind that its file names.
func LoadGuard(path string, env func(string) string) (GuardDocument, error) {
	text, err := readBounded(path, maxFile, anyMode)
	if err != nil {
		return nil, &Error{File: path, Sentence: err.Error()}
	}
	return ParseGuard(path, text, env)
}

// ParseGuard is LoadGuard for text that was read already.
func ParseGuard(name string, text []byte, env func(string) string) (GuardDocument, error) {
	var k kind
	if err := Parse(name, text, &k, env); err != nil {
		return nil, err
	}
	into := guards[k.name]()
	if err := Parse(name, text, into, env); err != nil {
		return nil, err
	}
	return into, nil
}

// kind is a document of which one key counts.
type kind struct {
	name string
	line int
}

// Check implements Document.
func (k *kind) Check(func(string) string) error {
	if guards[k.name] == nil {
		return &Error{Line: k.line, Key: "kind", Sentence: "must be one of " + strings.Join(slices.Sorted(maps.Keys(guards)), ", ")}
	}
	return nil
}

func (k *kind) read(body ast.Node) {
	m, ok := body.(ast.MapNode)
	if !ok {
		return
	}
	for entries := m.MapRange(); entries.Next(); {
		if key, _ := textOf(entries.Key()); key == "kind" {
			k.name, _ = textOf(entries.Value())
			k.line = entries.Key().GetToken().Position.Line
			return
		}
	}
}

// Common is what all kinds have.
func (g *Guard) Common() *Guard { return g }

func (g *Guard) check() error {
	return first(
		g.FIPS.check(),
		g.TLS.check(),
		guardURI(g.URI, g.Authority),
		address("listen", g.Listen),
		optionalAddress("admin_listen", g.AdminListen),
		required("name", g.Name),
		g.Identity.check(),
	)
}

func guardURI(value, authority string) error {
	if err := Origin("authority", authority); err != nil {
		return err
	}
	u, err := webURL("uri", value)
	if err != nil {
		return err
	}
	if ours, err := url.Parse(authority); err == nil && ours.Scheme == u.Scheme && ours.Host == u.Host {
		return Wrong("uri", "must be on an origin of its own, not the authority's")
	}
	return nil
}

// PostgresGuard is the file of a guard in front of a PostgreSQL database.
type PostgresGuard struct {
	Guard
	Database                       // of the resource
	LedgerSchema  string           `yaml:"ledger_schema"`  // of this guard's ledger; nightwarrant_guard when empty
	ReportDataset bool             `yaml:"report_dataset"` // a requirement lists it then, or everything closes
	Tables        map[string]Table `yaml:"tables"`
}

// Table is what the row actions may touch of one table.
type Table struct {
	Schema  string   `yaml:"schema"`  // public when empty
	Columns []string `yaml:"columns"` // that may be read and written
	Key     []string `yaml:"key"`     // select rows, all of them together; none allows row.append only
}

// Check implements Document.
func (g *PostgresGuard) Check(env func(string) string) error {
	return first(g.resolve(env), g.check(), g.Database.inFIPS(g.FIPS), ledgerSchema(g.LedgerSchema), g.checkTables())
}

var schemaForm = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

func ledgerSchema(s string) error {
	if s != "" && (!schemaForm.MatchString(s) || strings.HasPrefix(s, "pg_")) {
		return Wrong("ledger_schema", "must be a lower-case name")
	}
	return nil
}

func (g *PostgresGuard) checkTables() error {
	if len(g.Tables) == 0 {
		return Wrong("tables", "is missing: a guard that may touch nothing has nothing to do")
	}
	for name, t := range g.Tables {
		if len(t.Columns) == 0 {
			return Wrong("tables."+bounded(name), "must list its columns")
		}
	}
	return nil
}
