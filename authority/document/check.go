package document

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxTitle = 120 // runes
	maxExact = 256 // bytes of an issuer's or a subject's exact string
	maxURL   = 512 // bytes
	maxList  = 64  // elements of any list
)

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9.-]{0,62}[a-z0-9])?$`)
	actionForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}(?:\.[a-z0-9_]{1,31}){0,3}$`)
	pathForm   = regexp.MustCompile(`^(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127})*$`)
	hostForm   = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?$`)
)

func name(field, v string) error {
	if !nameForm.MatchString(v) {
		return wrong(field, "must be 1 to 64 lower-case letters, digits, dots and hyphens, beginning and ending with a letter or digit")
	}
	return nil
}

// names checks a list of at least min different names.
func names(field string, list []string, min int) error {
	if len(list) < min || len(list) > maxList {
		return wrong(field, "must list between %d and %d names", min, maxList)
	}
	for i, v := range list {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := name(at, v); err != nil {
			return err
		}
		if slices.Contains(list[:i], v) {
			return wrong(at, "repeats %q", v)
		}
	}
	return nil
}

func action(field, v string) error {
	if !actionForm.MatchString(v) {
		return wrong(field, "must be one exact action such as row.append, without wildcards")
	}
	return nil
}

// title checks text that a person reads.
func title(field, v string) error {
	switch {
	case !utf8.ValidString(v):
		return wrong(field, "must be valid UTF-8")
	case strings.TrimSpace(v) != v || !strings.ContainsFunc(v, isWordRune):
		return wrong(field, "must be text with a letter or digit, without spaces around it")
	case utf8.RuneCountInString(v) > maxTitle:
		return wrong(field, "must have at most %d characters", maxTitle)
	}
	for _, r := range v {
		if !visible(r) && r != '\u200c' && r != '\u200d' { // joiners, which some scripts need
			return wrong(field, "must not contain the control or invisible character %U", r)
		}
	}
	return nil
}

func isWordRune(r rune) bool { return visible(r) && (unicode.IsLetter(r) || unicode.IsNumber(r)) }

// visible reports whether a reader sees r where it stands: no control, no
// change of direction, no letter or sign without a shape.
func visible(r rune) bool {
	return unicode.IsPrint(r) && !unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) && r != '\u2800'
}

// exact checks a string that is compared whole with a foreign one.
func exact(field, v string) error {
	if v == "" || len(v) > maxExact || !utf8.ValidString(v) || strings.TrimSpace(v) != v {
		return wrong(field, "must be between 1 and %d bytes of UTF-8, without spaces around it", maxExact)
	}
	for _, r := range v {
		if r == '*' || !visible(r) {
			return wrong(field, "must be exact and must not contain %U", r)
		}
	}
	return nil
}

func between(field string, v, low, high int64) error {
	if v < low || v > high {
		return wrong(field, "must be between %d and %d", low, high)
	}
	return nil
}

func oneOf(field, v string, allowed ...string) error {
	if !slices.Contains(allowed, v) {
		return wrong(field, "must be one of %s", strings.Join(allowed, ", "))
	}
	return nil
}

// absolute checks an https URL, or an http URL of the loopback, in its only
// spelling: no user, query or fragment, the host in lower case, no default
// port.
func absolute(field, v string) (*url.URL, error) {
	u, err := url.Parse(v)
	if err != nil || len(v) > maxURL || u.Host == "" || u.String() != v || u.RawPath != "" {
		return nil, wrong(field, "must be an absolute URL in plain form")
	}
	if u.User != nil || u.ForceQuery || u.RawQuery != "" || u.Fragment != "" {
		return nil, wrong(field, "must have no user, query or fragment")
	}
	host := u.Hostname()
	ip := net.ParseIP(host)
	loopback := host == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return nil, wrong(field, "must be https, or http on the loopback")
	}
	if ip == nil && !hostForm.MatchString(host) {
		return nil, wrong(field, "must have a host in lower case")
	}
	if port := u.Port(); strings.HasSuffix(u.Host, ":") || port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
		return nil, wrong(field, "must leave the default port out")
	}
	return u, nil
}

// guardURI checks an origin and a path without empty or dotted segments.
func guardURI(field, v string) error {
	u, err := absolute(field, v)
	if err != nil {
		return err
	}
	if !pathForm.MatchString(u.Path) {
		return wrong(field, "must have a plain path that does not end with a slash")
	}
	return nil
}

func issuer(field, v string) error {
	_, err := absolute(field, v)
	return err
}

// reference checks an opaque reference: 16 bytes as base64url.
func reference(field, v string) error {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(v)
	if err != nil || len(raw) != 16 || len(v) != 22 {
		return wrong(field, "must be an opaque reference, 22 characters of base64url")
	}
	return nil
}
