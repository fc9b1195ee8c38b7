package directory

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"strings"
	"time"
)

// Bounds of one question.
const (
	MaxTimeout = 500 * time.Millisecond

	maxBody    = 64 << 10
	maxSubject = 512
)

// Secret is a value that prints nowhere.
type Secret interface{ Reveal() string }

// Config says which SCIM 2.0 service provider answers, and for whom.
type Config struct {
	URL     string                 // base URL of its endpoints: https, or http on a loopback address
	Issuer  string                 // whose subjects its externalIds are
	Token   func() (Secret, error) // bearer token (RFC 6750), read anew for each question
	Timeout time.Duration          // of one question; at most MaxTimeout
	Roots   *x509.CertPool         // nil means the system's
}

// SCIM asks a SCIM 2.0 service provider (RFC 7643, RFC 7644). It is safe for
// concurrent use, and keeps nothing.
type SCIM struct {
	c      Config
	users  string
	client *http.Client
}

// NewSCIM checks the configuration; any error is a misconfiguration.
func NewSCIM(c Config) (*SCIM, error) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.String() != c.URL:
		return nil, errors.New("directory: the URL must be absolute and plain")
	case u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())):
		return nil, errors.New("directory: the URL must be https, or http on a loopback address")
	case c.Issuer == "" || c.Token == nil:
		return nil, errors.New("directory: the issuer and the token are needed")
	case c.Timeout <= 0 || c.Timeout > MaxTimeout:
		return nil, fmt.Errorf("directory: the timeout must be at most %s", MaxTimeout)
	}
	transport := &http.Transport{
		Proxy: nil, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10, MaxConnsPerHost: 32, MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second,
		DialContext: (&net.Dialer{Timeout: MaxTimeout}).DialContext, TLSHandshakeTimeout: MaxTimeout,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
	}
	return &SCIM{c: c, users: strings.TrimSuffix(c.URL, "/") + "/Users", client: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Close gives up connections that nobody uses.
func (s *SCIM) Close() { s.client.CloseIdleConnections() }

// Member implements Directory. Only an exact answer counts: one user of exactly
// that externalId with its `active`, or none at all. Everything else is Unknown.
func (s *SCIM) Member(ctx context.Context, issuer, subject string) (Answer, error) {
	found, err := s.look(ctx, issuer, subject, "externalId,active")
	switch {
	case err != nil:
		return Unknown, err
	case found == nil || !found.active:
		return Absent, nil
	}
	return Present, nil
}

// Address is where a member can be written to now. It is for whoever is about
// to send something, and is kept nowhere.
func (s *SCIM) Address(ctx context.Context, issuer, subject string) (mail.Address, error) {
	found, err := s.look(ctx, issuer, subject, "externalId,active,emails")
	switch {
	case err != nil:
		return mail.Address{}, err
	case found == nil || !found.active:
		return mail.Address{}, ErrNoMember
	case found.address == "":
		return mail.Address{}, ErrNoAddress
	}
	return mail.Address{Address: found.address}, nil
}

// What Address says of somebody to whom nothing can be sent.
var (
	ErrNoMember  = errors.New("directory: there is no such member")
	ErrNoAddress = errors.New("directory: the member has no address")
)

// look asks for the one user of an externalId; nil is nobody.
func (s *SCIM) look(ctx context.Context, issuer, subject, attributes string) (*user, error) {
	if issuer != s.c.Issuer {
		return nil, errors.New("directory: it knows nobody of that issuer")
	}
	if subject == "" || len(subject) > maxSubject {
		return nil, errors.New("directory: the subject has no form that it could know")
	}
	ctx, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	body, err := s.ask(ctx, url.Values{"filter": {filterOf(subject)}, "attributes": {attributes}, "count": {"2"}})
	if err != nil {
		return nil, err
	}
	return parse(body, subject)
}

// filterOf is the filter of RFC 7644 §3.4.2.2, whose strings are JSON's.
func filterOf(subject string) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(subject) // a string encodes
	return "externalId eq " + strings.TrimSuffix(text.String(), "\n")
}

func (s *SCIM) ask(ctx context.Context, query url.Values) ([]byte, error) {
	token, err := s.c.Token()
	if err != nil {
		return nil, fmt.Errorf("directory: the token: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.users+"?"+query.Encode(), nil)
	if err != nil {
		return nil, errors.New("directory: the address cannot be asked")
	}
	r.Header.Set("Authorization", "Bearer "+token.Reveal())
	r.Header.Set("Accept", "application/scim+json")
	answer, err := s.client.Do(r)
	if err != nil {
		return nil, unasked(err)
	}
	defer answer.Body.Close() //nolint:errcheck // read to its bound below
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("directory: it answered with status %d", answer.StatusCode)
	}
	if kind, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type")); err != nil || kind != "application/scim+json" && kind != "application/json" {
		return nil, errors.New("directory: the answer is not SCIM's")
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, unasked(err)
	case len(body) > maxBody:
		return nil, errors.New("directory: the answer is too large")
	}
	return body, nil
}

// unasked drops the URL of the error, which names a person.
func unasked(err error) error {
	if u := new(url.Error); errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("directory: it did not answer: %w", err)
}
