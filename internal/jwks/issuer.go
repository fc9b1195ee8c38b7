// Package jwks verifies JWTs of configured issuers: it fetches and caches their
// signing keys (RFC 7517) and holds tokens against a strict reading of RFC 7515
// and RFC 7519. Workload assertions and platform envelopes share it; neither
// gets a key, an address or an algorithm from the token.
package jwks

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// Issuer is one configured token issuer.
type Issuer struct {
	// URL is compared byte for byte with the token's iss. "spiffe://trust-domain"
	// configures a trust domain instead: its tokens may lack iss, and their sub
	// must be an id of that domain.
	URL string
	// JWKSURL is where the keys are. Empty means OpenID Connect discovery below
	// URL, which then must name the same issuer and a key address on the same origin.
	JWKSURL string
	// File holds the keys instead, for instance a SPIFFE bundle that its trust
	// domain hands over; it is read anew at each refresh.
	File string
	// Algorithms is a non-empty subset of RS256 and ES256.
	Algorithms []string
	// Roots verifies the server; nil means the system's roots.
	Roots *x509.CertPool
}

func (i Issuer) spiffe() bool { return strings.HasPrefix(i.URL, "spiffe://") }

func (i Issuer) validate() error {
	if len(i.Algorithms) == 0 {
		return errors.New("no algorithm is configured")
	}
	for _, a := range i.Algorithms {
		if a != RS256 && a != ES256 {
			return errors.New("algorithms may be RS256 and ES256 only")
		}
	}
	switch {
	case i.JWKSURL != "" && i.File != "":
		return errors.New("keys are at an address or in a file, not both")
	case i.File != "" && !filepath.IsAbs(i.File):
		return errors.New("the path of the file of keys must be absolute")
	case i.JWKSURL != "":
		if err := checkURL(i.JWKSURL); err != nil {
			return fmt.Errorf("key address: %w", err)
		}
	}
	if i.spiffe() {
		return i.validateTrustDomain()
	}
	return checkURL(i.URL)
}

func (i Issuer) validateTrustDomain() error {
	domain := strings.TrimPrefix(i.URL, "spiffe://")
	if i.JWKSURL == "" && i.File == "" {
		return errors.New("a trust domain needs an explicit key address, or a file")
	}
	if domain == "" || strings.Trim(domain, "abcdefghijklmnopqrstuvwxyz0123456789.-_") != "" {
		return errors.New("a trust domain is lower-case letters, digits, dots, dashes and underscores")
	}
	return nil
}

// checkURL accepts absolute https addresses, and http to this machine itself.
func checkURL(raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.ContainsAny(raw, "?#") {
		return errors.New("it must be an absolute URL without user, query and fragment")
	}
	if u.Scheme == "https" || u.Scheme == "http" && loopback(u.Hostname()) {
		return nil
	}
	return errors.New("it must be https (http only for loopback addresses)")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func sameOrigin(a, b string) bool {
	ua, errA := url.Parse(a)
	ub, errB := url.Parse(b)
	return errA == nil && errB == nil && ua.Scheme == ub.Scheme && ua.Host == ub.Host
}

func validateIssuers(issuers []Issuer, own string) error {
	if len(issuers) == 0 {
		return errors.New("no issuer is configured")
	}
	seen := map[string]bool{}
	for n, i := range issuers {
		if err := i.validate(); err != nil {
			return fmt.Errorf("issuer %d: %w", n+1, err)
		}
		if seen[i.URL] {
			return fmt.Errorf("issuer %d: it is configured twice", n+1)
		}
		seen[i.URL] = true
	}
	if slices.ContainsFunc(issuers, func(i Issuer) bool { return sameIssuer(i.URL, own) }) {
		return errors.New("our own issuer cannot be a configured issuer")
	}
	return nil
}

// sameIssuer is deliberately wider than equality: an issuer that differs from
// ours by letter case or a closing slash only is meant to be mistaken for it.
func sameIssuer(a, b string) bool {
	return strings.EqualFold(strings.TrimRight(a, "/"), strings.TrimRight(b, "/"))
}
