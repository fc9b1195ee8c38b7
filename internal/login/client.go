package login

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	timeout   = 5 * time.Second
	maxAnswer = 256 << 10
	maxWord   = 80
)

// newClient follows no redirect, asks no proxy, and reads bounded answers.
func newClient(roots *x509.CertPool) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: bound{&http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots},
		}},
	}
}

// bound ends an answer that is too large with an error.
type bound struct{ next http.RoundTripper }

func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	a, err := b.next.RoundTrip(r)
	if err == nil {
		a.Body = &reader{Closer: a.Body, from: io.LimitReader(a.Body, maxAnswer+1)}
	}
	return a, err
}

type reader struct {
	io.Closer
	from io.Reader
	read int
}

var errLarge = errors.New("the answer is too large")

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if r.read += n; r.read > maxAnswer {
		return 0, errLarge
	}
	return n, err
}

// secure takes https, and plain http to a loopback address.
func secure(address string) bool {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return false
	}
	host := u.Hostname()
	ip := net.ParseIP(host)
	return u.Scheme == "https" || u.Scheme == "http" && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// bounded is a word of somebody else's as it may stand in a log.
func bounded(s string) string {
	clean := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
	return clean[:min(len(clean), maxWord)]
}
