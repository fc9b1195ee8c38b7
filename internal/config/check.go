package config

import (
	"net"
	"net/url"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// EnvDatabaseURL overrides the database URL of every file, so that an
// orchestrator can inject it.
const EnvDatabaseURL = "NIGHTWARRANT_DATABASE_URL"

// Database is how a process reaches PostgreSQL. After Check, DatabaseURL is set.
type Database struct {
	DatabaseURL     Secret `yaml:"database_url"`
	DatabaseURLFile string `yaml:"database_url_file"`
}

func (d *Database) resolve(env func(string) string) error {
	if given := env(EnvDatabaseURL); given != "" {
		d.DatabaseURL = Secret(given)
		return nil
	}
	return secret(&d.DatabaseURL, d.DatabaseURLFile, "database_url")
}

// secret fills a secret that stands in the file, or in the file that key_file names.
func secret(into *Secret, file, key string) (err error) {
	switch {
	case (*into == "") == (file == ""):
		return Wrong(key, "must be given, here or as %s_file, and not in both places", key)
	case file == "":
		return nil
	}
	if *into, err = ReadSecret(file); err != nil {
		return Wrong(key+"_file", "%s", err)
	}
	return nil
}

func required(key, value string) error {
	if strings.TrimSpace(value) == "" {
		return Wrong(key, "is missing")
	}
	return nil
}

// within checks a duration, after giving it its default.
func within(key string, d *Duration, otherwise, low, high time.Duration) error {
	if *d == 0 {
		*d = Duration(otherwise)
	}
	if d.Std() < low || d.Std() > high {
		return Wrong(key, "must be between %s and %s", low, high)
	}
	return nil
}

// between checks a number, after giving it its default.
func between(key string, n *int64, otherwise, low, high int64) error {
	if *n == 0 {
		*n = otherwise
	}
	if *n < low || *n > high {
		return Wrong(key, "must be between %d and %d", low, high)
	}
	return nil
}

// webURL checks an absolute https URL, or an http URL of the loopback, without
// user, query and fragment, in its only spelling.
func webURL(key, value string) (*url.URL, error) {
	if err := required(key, value); err != nil {
		return nil, err
	}
	u, err := url.Parse(value)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.String() != value || strings.ToLower(u.Host) != u.Host:
		return nil, Wrong(key, "must be an absolute URL in plain form")
	case strings.ContainsAny(value, "?#"):
		return nil, Wrong(key, "must have no query and no fragment")
	case u.Scheme != "https" && (u.Scheme != "http" || !Loopback(u.Hostname())):
		return nil, Wrong(key, "must be https, or http on a loopback address")
	}
	return u, nil
}

// Origin checks a URL that is nothing but an origin: https, or http on a loopback address.
func Origin(key, value string) error {
	u, err := webURL(key, value)
	if err == nil && u.Path != "" {
		err = Wrong(key, "must be an origin: no path and no slash at its end")
	}
	return err
}

// Loopback tells whether a host is this machine and no other.
func Loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// address checks what a listener binds to: an IP address or none, and a port.
func address(key, value string) error {
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return Wrong(key, "must be an address and a port, such as 127.0.0.1:8443")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return Wrong(key, "must have a port between 0 and 65535")
	}
	if host != "" && host != "localhost" && net.ParseIP(host) == nil {
		return Wrong(key, "must name an IP address of this machine, or none for all of them")
	}
	return nil
}

func optionalAddress(key, value string) error {
	if value == "" {
		return nil
	}
	return address(key, value)
}

// UserID is the number of a user of this machine, whom a key names.
func UserID(key, name string) (int, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, Wrong(key, "names a user whom this machine does not know")
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return 0, Wrong(key, "names a user without a number")
	}
	return uid, nil
}
