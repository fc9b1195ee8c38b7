package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/audit"
)

// Authority is the file of `nightwarrant serve`.
type Authority struct {
	Database
	FIPS
	Issuer      string    `yaml:"issuer"`       // our public origin
	Listen      string    `yaml:"listen"`       // requests
	TLS         TLS       `yaml:"tls"`          // of listen
	AdminListen string    `yaml:"admin_listen"` // metrics and probes; none when empty, never public
	Instance    string    `yaml:"instance"`     // different on each replica; the host's name when empty
	Lease       Duration  `yaml:"lease"`        // a worker's hold on a run
	ClockBound  Duration  `yaml:"clock_bound"`  // how far our clock may be from the database's
	Keys        Keys      `yaml:"keys"`
	Disk        Disk      `yaml:"disk"`
	Assertion   Assertion `yaml:"assertion"`
	Envelope    Envelope  `yaml:"envelope"`
	Console     Console   `yaml:"console"`
	Directory   Directory `yaml:"directory"`
	Audit       Audit     `yaml:"audit"`
}

// Keys says where the key bundle is.
type Keys struct {
	Dir          string     `yaml:"dir"`
	IdentityFile string     `yaml:"identity_file"` // opens the seal; outside Dir
	Host         Host       `yaml:"host"`          // none when the bundle seals its keys itself
	Provenance   Provenance `yaml:"provenance"`    // none when the bundle names no record
}

// Host says who has the keys that lie in a token.
type Host struct {
	Socket string `yaml:"socket"` // of nightwarrant-keyhost
	User   string `yaml:"user"`   // as whom it runs; the same as we when empty
}

func (h *Host) check() error {
	switch {
	case h.Socket == "" && h.User != "":
		return Wrong("keys.host.socket", "is missing")
	case h.Socket != "" && !filepath.IsAbs(h.Socket):
		return Wrong("keys.host.socket", "must be an absolute path")
	}
	return nil
}

// Audit says where the audit log's checkpoints are kept besides the database.
type Audit struct {
	Anchors   []string  `yaml:"anchors"`   // files that only grow, where the database's owner cannot write
	Witnesses []Witness `yaml:"witnesses"` // who sign checkpoints, each of which must
}

// Witness is somebody who signs the audit log's checkpoints (C2SP tlog-witness).
type Witness struct {
	URL string `yaml:"url"` // its submission prefix
	Key string `yaml:"key"` // its vkey, of type 0x04
}

func (a *Audit) check() error {
	for i, file := range a.Anchors {
		if !filepath.IsAbs(file) {
			return Wrong(fmt.Sprintf("audit.anchors[%d]", i), "must be the absolute path of a file")
		}
	}
	for i, w := range a.Witnesses {
		key := fmt.Sprintf("audit.witnesses[%d]", i)
		if _, err := webURL(key+".url", w.URL); err != nil {
			return err
		}
		if _, err := audit.NewWitness(w.Key); err != nil {
			return Wrong(key+".key", "is not the key of a witness")
		}
	}
	return nil
}

// Issuer is a token issuer that is trusted for one purpose.
type Issuer struct {
	URL        string   `yaml:"url"`        // compared byte for byte with the tokens' iss
	JWKSURL    string   `yaml:"jwks_url"`   // empty means OpenID Connect discovery
	JWKSFile   string   `yaml:"jwks_file"`  // instead: a file of its keys, such as a SPIFFE bundle
	Algorithms []string `yaml:"algorithms"` // RS256 and ES256 when empty
	RootsFile  string   `yaml:"roots_file"` // PEM; the system's roots when empty
}

// Assertion says which workload assertions are looked at.
type Assertion struct {
	Issuers     []Workloads `yaml:"issuers"`
	MaxLifetime Duration    `yaml:"max_lifetime"`
	Freshness
}

// Freshness says how old an issuer's keys may be.
type Freshness struct {
	Refresh  Duration `yaml:"refresh"`   // they are asked for again before they are so old
	MaxStale Duration `yaml:"max_stale"` // and not used any more when they are so old
}

// Envelope says whose platform envelopes are taken, and who operates.
type Envelope struct {
	Issuer    Issuer     `yaml:"issuer"`
	Audience  string     `yaml:"audience"`
	MaxAge    Duration   `yaml:"max_age"`
	Operators []Operator `yaml:"operators"`
	Auditors  []Operator `yaml:"auditors"` // see what operators see, and change nothing
	Freshness
}

// Operator names a person as the envelope's issuer does.
type Operator struct {
	Issuer  string `yaml:"issuer"`
	Subject string `yaml:"subject"`
}

// Check implements Document.
func (a *Authority) Check(env func(string) string) error {
	return first(
		a.FIPS.check(),
		a.resolve(env),
		a.Database.inFIPS(a.FIPS),
		Origin("issuer", a.Issuer),
		address("listen", a.Listen),
		a.TLS.check(),
		optionalAddress("admin_listen", a.AdminListen),
		instance(&a.Instance),
		within("lease", &a.Lease, 30*time.Second, 2*time.Second, time.Minute),
		within("clock_bound", &a.ClockBound, 2*time.Second, 100*time.Millisecond, 30*time.Second),
		required("keys.dir", a.Keys.Dir),
		required("keys.identity_file", a.Keys.IdentityFile),
		a.Keys.Host.check(),
		a.Keys.checkProvenance(),
		a.Keys.inFIPS(a.FIPS),
		a.Disk.check(),
		a.Assertion.check(),
		a.Envelope.check(),
		a.Console.check(),
		a.Directory.check(),
		a.Audit.check(),
	)
}

func instance(name *string) (err error) {
	if *name == "" {
		if *name, err = os.Hostname(); err != nil {
			return Wrong("instance", "is missing, and the host has no name")
		}
	}
	return nil
}

func (a *Assertion) check() error {
	if len(a.Issuers) == 0 {
		return Wrong("assertion.issuers", "is missing")
	}
	for i := range a.Issuers {
		if err := a.Issuers[i].check(fmt.Sprintf("assertion.issuers[%d]", i)); err != nil {
			return err
		}
	}
	return first(
		within("assertion.max_lifetime", &a.MaxLifetime, 24*time.Hour, time.Minute, 24*time.Hour),
		a.Freshness.check("assertion"),
	)
}

func (f *Freshness) check(of string) error {
	err := first(
		within(of+".refresh", &f.Refresh, 5*time.Minute, time.Second, time.Hour),
		within(of+".max_stale", &f.MaxStale, time.Hour, time.Second, 24*time.Hour),
	)
	if err == nil && f.MaxStale < f.Refresh {
		err = Wrong(of+".max_stale", "must not be less than %s.refresh, which is %s", of, f.Refresh)
	}
	return err
}

func (e *Envelope) check() error {
	err := first(
		e.Issuer.check("envelope.issuer"),
		required("envelope.audience", e.Audience),
		within("envelope.max_age", &e.MaxAge, time.Hour, time.Minute, 12*time.Hour),
		e.Freshness.check("envelope"),
	)
	return first(err, named("envelope.operators", e.Operators), named("envelope.auditors", e.Auditors))
}

func named(key string, people []Operator) error {
	for _, o := range people {
		if o.Issuer == "" || o.Subject == "" {
			return Wrong(key, "must each have an issuer and a subject")
		}
	}
	return nil
}

// check looks at what the package that uses an issuer does not: it checks the addresses.
func (i *Issuer) check(key string) error {
	if err := required(key+".url", i.URL); err != nil {
		return err
	}
	if len(i.Algorithms) == 0 {
		i.Algorithms = []string{"RS256", "ES256"}
	}
	for _, a := range i.Algorithms {
		if !slices.Contains([]string{"RS256", "ES256"}, a) {
			return Wrong(key+".algorithms", "may be RS256 and ES256 only")
		}
	}
	return nil
}
