package config

import (
	"net/url"

	"github.com/nightwarrant/nightwarrant/internal/mail"
)

// Mail is the server that takes messages, and what they say of themselves.
type Mail struct {
	URL          string `yaml:"url"` // smtp:// turns to TLS by STARTTLS, smtps:// begins with it
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"` // read anew for each login
	From         string `yaml:"from"`
	Operators    string `yaml:"operators"`  // what is for somebody whom the directory does not have goes there
	Issuer       string `yaml:"issuer"`     // of the envelopes, whose subjects the directory knows
	RootsFile    string `yaml:"roots_file"` // PEM; the system's roots when empty
}

func (m *Mail) check() error {
	u, err := url.Parse(m.URL)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Scheme != "smtp" && u.Scheme != "smtps" || u.Scheme+"://"+u.Host != m.URL {
		return Wrong("approvals.mail.url", "must be smtp://HOST or smtps://HOST, with a port where it is another one, and no user in it")
	}
	if (m.User == "") != (m.PasswordFile == "") {
		return Wrong("approvals.mail.user", "and approvals.mail.password_file must be given both or neither")
	}
	if m.PasswordFile != "" {
		if _, err := ReadSecret(m.PasswordFile); err != nil {
			return Wrong("approvals.mail.password_file", "%s", err)
		}
	}
	for key, value := range map[string]string{"approvals.mail.from": m.From, "approvals.mail.operators": m.Operators} {
		if !mail.IsAddress(value) {
			return Wrong(key, "must be an address, without a name")
		}
	}
	_, err = webURL("approvals.mail.issuer", m.Issuer)
	return err
}

// IsZero says that nobody is told by mail.
func (m *Mail) IsZero() bool { return *m == Mail{} }
