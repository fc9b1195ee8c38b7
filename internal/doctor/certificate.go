package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"time"
)

// Certificate looks at the certificate of a URL's server; one without TLS has none.
type Certificate struct {
	URL   string
	Roots *x509.CertPool // the system's when nil
	Now   func() time.Time
}

const (
	soon     = 21 * 24 * time.Hour
	verySoon = 3 * 24 * time.Hour
)

// Look connects, shakes hands and sends nothing.
func (c Certificate) Look(ctx context.Context) []Finding {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "tls" && u.Scheme != "smtps" {
		return nil
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "tls": "4222", "smtps": "465"}[u.Scheme]
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: c.Roots, ServerName: u.Hostname(), MinVersion: tls.VersionTLS12, Time: c.Now}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return []Finding{bad("", "Look at the server's certificate: its names, its dates, its chain, and the roots_file that goes with it.", "%s: no TLS connection: %s", u.Host, err)}
	}
	defer conn.Close() //nolint:errcheck // nothing was sent
	return []Finding{c.judge(u.Host, conn.(*tls.Conn).ConnectionState())}
}

func (c Certificate) judge(host string, s tls.ConnectionState) Finding {
	end := s.PeerCertificates[0].NotAfter
	for _, one := range s.VerifiedChains[0] {
		if one.NotAfter.Before(end) {
			end = one.NotAfter
		}
	}
	left := end.Sub(c.now())
	const remedy = "Renew it, and have that done by itself."
	switch days := int(left.Hours() / 24); {
	case left < verySoon:
		return bad("", remedy, "%s: its certificate ends in %d days, on %s", host, days, end.UTC().Format(time.DateOnly))
	case left < soon:
		return warn("", remedy, "%s: its certificate ends in %d days, on %s", host, days, end.UTC().Format(time.DateOnly))
	default:
		return ok("", "%s: its certificate is good for %d days", host, days)
	}
}

func (c Certificate) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}
