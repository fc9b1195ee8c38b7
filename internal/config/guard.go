package config

import "net/url"

// Guard is the file of `nightwarrant guard`.
type Guard struct {
	Database                       // of the resource
	URI           string           `yaml:"uri"`    // as registered: an origin of its own, and a path
	Listen        string           `yaml:"listen"` // requests; whatever ends TLS stands in front
	AdminListen   string           `yaml:"admin_listen"`
	Name          string           `yaml:"name"`           // of the registered component
	Authority     string           `yaml:"authority"`      // its issuer
	AssertionFile string           `yaml:"assertion_file"` // the projected token, read anew each time
	Tables        map[string]Table `yaml:"tables"`
}

// Table is what the row actions may touch of one table.
type Table struct {
	Schema  string   `yaml:"schema"`  // public when empty
	Columns []string `yaml:"columns"` // that may be read and written
	Key     []string `yaml:"key"`     // select rows, all of them together; none allows row.append only
}

// Check implements Document.
func (g *Guard) Check(env func(string) string) error {
	return first(
		g.resolve(env),
		guardURI(g.URI, g.Authority),
		address("listen", g.Listen),
		optionalAddress("admin_listen", g.AdminListen),
		required("name", g.Name),
		required("assertion_file", g.AssertionFile),
		g.checkTables(),
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

func (g *Guard) checkTables() error {
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
