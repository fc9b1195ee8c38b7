package config

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
)

// Scheduler is the file of `nightwarrant scheduler`.
type Scheduler struct {
	Database
	FIPS
	Instance    string    `yaml:"instance"`     // different on each replica; the host's name when empty
	AdminListen string    `yaml:"admin_listen"` // metrics and probes; none when empty, never public
	NATS        NATS      `yaml:"nats"`
	Disk        Disk      `yaml:"disk"`
	Approvals   Approvals `yaml:"approvals"`
	Directory   Directory `yaml:"directory"`  // where to send mail; none without approvals.mail
	StartRate   int64     `yaml:"start_rate"` // runs that may begin in one second, in the whole cluster
	Republish   Duration  `yaml:"republish"`  // a reference that nobody has claimed is published again
}

// Approvals is how owners hear of what waits for them: by one of the two or by
// both. There is no default and no way around it: a question that nobody hears of
// is a silent no.
type Approvals struct {
	Webhook Webhook `yaml:"webhook"`
	Mail    Mail    `yaml:"mail"`
	Link    string  `yaml:"link"` // base URL of the pages that messages point to
}

// Webhook is the receiver of messages. After Check, Secret is set.
type Webhook struct {
	URL        string `yaml:"url"`
	SecretFile string `yaml:"secret_file"` // whsec_ and base64
	Secret     webhook.Secret
}

// IsZero says that there is none.
func (w *Webhook) IsZero() bool { return w.URL == "" && w.SecretFile == "" }

func (w *Webhook) check() error {
	if _, err := webURL("approvals.webhook.url", w.URL); err != nil {
		return err
	}
	if err := required("approvals.webhook.secret_file", w.SecretFile); err != nil {
		return err
	}
	text, err := ReadSecret(w.SecretFile)
	if err == nil {
		w.Secret, err = webhook.ParseSecret(text.Reveal())
	}
	if err != nil {
		return Wrong("approvals.webhook.secret_file", "%s", err)
	}
	return nil
}

func (a *Approvals) check() error {
	if !a.Webhook.IsZero() || a.Mail.IsZero() {
		if err := a.Webhook.check(); err != nil {
			return err
		}
	}
	if !a.Mail.IsZero() {
		if err := a.Mail.check(); err != nil {
			return err
		}
	}
	if u, err := webURL("approvals.link", a.Link); err != nil {
		return err
	} else if strings.HasSuffix(u.Path, "/") {
		return Wrong("approvals.link", "must not end with a slash")
	}
	return nil
}

// NATS is the queue. After Check, Password is set where PasswordFile names one.
type NATS struct {
	URL          string `yaml:"url"` // several joined by commas
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"`
	Password     Secret
	MonitorURL   string `yaml:"monitor_url"` // of each server, joined by commas; /varz and /jsz are read
	Replicas     int64  `yaml:"replicas"`    // of the stream: 1, 3 or 5
	RootsFile    string `yaml:"roots_file"`  // PEM, for both URLs; the system's roots when empty
}

// Check implements Document.
func (s *Scheduler) Check(env func(string) string) error {
	if s.StartRate == 0 {
		s.StartRate = 10
	}
	if s.StartRate < 1 || s.StartRate > 1000 {
		return Wrong("start_rate", "must be between 1 and 1000 runs in one second")
	}
	return first(
		s.FIPS.check(),
		s.resolve(env),
		s.Database.inFIPS(s.FIPS),
		instance(&s.Instance),
		optionalAddress("admin_listen", s.AdminListen),
		within("republish", &s.Republish, 30*time.Second, 5*time.Second, 5*time.Minute),
		s.NATS.check(),
		s.Disk.check(),
		s.Approvals.check(),
		s.addresses(),
	)
}

// addresses checks the directory, which only mail asks.
func (s *Scheduler) addresses() error {
	switch {
	case !s.Approvals.Mail.IsZero():
		return s.Directory.check()
	case s.Directory != Directory{}:
		return Wrong("directory.url", "is asked for addresses only, and approvals.mail is not given")
	}
	return nil
}

// CheckServer is Check for somebody who reads no monitoring page.
func (n *NATS) CheckServer() (err error) {
	if n.Replicas == 0 {
		n.Replicas = 1
	}
	if (n.User == "") != (n.PasswordFile == "") {
		return Wrong("nats.user", "and nats.password_file must be given both or neither")
	}
	if n.PasswordFile != "" {
		if n.Password, err = ReadSecret(n.PasswordFile); err != nil {
			return Wrong("nats.password_file", "%s", err)
		}
	}
	return eachURL("nats.url", n.URL, "nats", "tls")
}

func (n *NATS) check() error {
	return first(n.CheckServer(), eachURL("nats.monitor_url", n.MonitorURL, "http", "https"))
}

// Monitors are the monitoring URLs, one for each server.
func (n *NATS) Monitors() []string { return strings.Split(n.MonitorURL, ",") }

// eachURL checks URLs that are joined by commas. None may hold a credential:
// it would stand in plain configuration.
func eachURL(key, list string, schemes ...string) error {
	if err := required(key, list); err != nil {
		return err
	}
	for one := range strings.SplitSeq(list, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Host == "" || !slices.Contains(schemes, u.Scheme) || u.RawQuery != "" || u.Fragment != "" {
			return Wrong(key, "must be %s:// URLs, joined by commas without spaces", strings.Join(schemes, ":// or "))
		}
		if u.User != nil {
			return Wrong(key, "must not hold a user or a password; nats.user and nats.password_file do")
		}
	}
	return nil
}
