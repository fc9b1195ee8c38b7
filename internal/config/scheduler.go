package config

import (
	"net/url"
	"slices"
	"strings"
	"time"
)

// Scheduler is the file of `nightwarrant scheduler`.
type Scheduler struct {
	Database
	Instance    string   `yaml:"instance"`     // different on each replica; the host's name when empty
	AdminListen string   `yaml:"admin_listen"` // metrics and probes; none when empty, never public
	NATS        NATS     `yaml:"nats"`
	Disk        Disk     `yaml:"disk"`
	StartRate   int64    `yaml:"start_rate"` // runs that may begin in one second, in the whole cluster
	Republish   Duration `yaml:"republish"`  // a reference that nobody has claimed is published again
}

// NATS is the queue. After Check, Password is set where PasswordFile names one.
type NATS struct {
	URL          string `yaml:"url"` // several joined by commas
	User         string `yaml:"user"`
	PasswordFile string `yaml:"password_file"`
	Password     Secret
	MonitorURL   string `yaml:"monitor_url"` // of each server, joined by commas; /varz and /jsz are read
	Replicas     int64  `yaml:"replicas"`    // of the stream: 1, 3 or 5
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
		s.resolve(env),
		instance(&s.Instance),
		optionalAddress("admin_listen", s.AdminListen),
		within("republish", &s.Republish, 30*time.Second, 5*time.Second, 5*time.Minute),
		s.NATS.check(),
		s.Disk.check(),
	)
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
