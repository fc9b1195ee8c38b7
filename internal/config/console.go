package config

import (
	"time"
)

// Console says where people have pages, and who says who they are: a proxy in
// front of us, or the envelope's issuer, at which they sign in. There are no
// pages without it.
type Console struct {
	Origin         string `yaml:"origin"`          // of the pages, as browsers see it
	EnvelopeHeader string `yaml:"envelope_header"` // in which a proxy brings the envelope
	Login          Login  `yaml:"login"`           // or: people sign in with a browser
}

// Login is a client of the envelope's issuer (OpenID Connect Core 1.0 §3.1).
// Its redirect URI is the console's origin and /login/callback.
type Login struct {
	ClientID         string   `yaml:"client_id"`
	ClientSecret     Secret   `yaml:"client_secret"`      // or client_secret_file; neither for a public client
	ClientSecretFile string   `yaml:"client_secret_file"` // 0600
	Idle             Duration `yaml:"idle"`               // a session ends when nothing was done for so long
	Life             Duration `yaml:"life"`               // and when it is so old
}

// Is tells whether there are pages.
func (c *Console) Is() bool { return *c != Console{} }

// Is tells whether people sign in here.
func (l *Login) Is() bool { return *l != Login{} }

func (c *Console) check() error {
	switch {
	case !c.Is():
		return nil
	case c.Login.Is() == (c.EnvelopeHeader != ""):
		return Wrong("console", "needs either login or envelope_header, and not both: exactly one place says who people are")
	}
	return first(Origin("console.origin", c.Origin), c.Login.check())
}

func (l *Login) check() (err error) {
	if !l.Is() {
		return nil
	}
	if l.ClientSecret != "" || l.ClientSecretFile != "" {
		err = secret(&l.ClientSecret, l.ClientSecretFile, "console.login.client_secret")
	}
	err = first(err,
		required("console.login.client_id", l.ClientID),
		within("console.login.idle", &l.Idle, 30*time.Minute, time.Minute, 12*time.Hour),
		within("console.login.life", &l.Life, 12*time.Hour, time.Minute, 12*time.Hour),
	)
	if err == nil && l.Life < l.Idle {
		err = Wrong("console.login.life", "must not be less than console.login.idle, which is %s", l.Idle)
	}
	return err
}
