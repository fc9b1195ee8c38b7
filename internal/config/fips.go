package config

import (
	"net/url"

	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// FIPS says whether a process must compute in a validated module alone.
type FIPS struct {
	Mode string `yaml:"fips"` // required, or absent
}

const fipsRequired = "required"

// FIPSRequired tells whether it must.
func (f *FIPS) FIPSRequired() bool { return f.Mode == fipsRequired }

func (f *FIPS) check() error {
	if f.Mode != "" && f.Mode != fipsRequired {
		return Wrong("fips", "must be required, or not be there")
	}
	return nil
}

// forbidden reports what a FIPS deployment refuses of one key, with its code.
func forbidden(key, code, sentence string) error {
	return Wrong(key, "%s, and fips is required: %s", sentence, code)
}

// inFIPS holds the way to the database to what the module has: pgx refuses a
// server that asks for md5 before it computes one.
func (d *Database) inFIPS(f FIPS) error {
	if !f.FIPSRequired() {
		return nil
	}
	u, err := url.Parse(d.DatabaseURL.Reveal())
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return Wrong("database_url", "must be a postgres:// URL where fips is required")
	}
	asked := u.Query()
	if method := asked.Get("require_auth"); method != "" && method != approvedAuth {
		return forbidden("database_url", fips.NonApproved, "asks for another require_auth than "+approvedAuth)
	}
	asked.Set("require_auth", approvedAuth)
	u.RawQuery = asked.Encode()
	d.DatabaseURL = Secret(u.String())
	return nil
}

const approvedAuth = "scram-sha-256"

// inFIPS refuses keys that this process would hold itself, and keys of which
// nobody has signed where they come from.
func (k *Keys) inFIPS(f FIPS) error {
	switch {
	case !f.FIPSRequired():
		return nil
	case k.Host.Socket == "":
		return forbidden("keys.host.socket", fips.LocalKey, "is missing")
	case !k.Provenance.Configured():
		return forbidden(provenance, fips.NoProvenance, "is missing")
	}
	return nil
}

// TLS is what a listener ends TLS with; whatever stands in front of it does when
// neither is given.
type TLS struct {
	CertificateFile string `yaml:"certificate_file"` // PEM, the leaf first; read anew when it changes
	KeyFile         string `yaml:"key_file"`         // PEM, mode 0600
}

// Is tells whether the listener ends TLS.
func (t *TLS) Is() bool { return *t != TLS{} }

func (t *TLS) check() error {
	if (t.CertificateFile == "") != (t.KeyFile == "") {
		return Wrong("tls", "needs both certificate_file and key_file")
	}
	return nil
}
