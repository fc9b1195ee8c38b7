// Package mail hands plain messages to one SMTP server (RFC 5321): over TLS, or
// over STARTTLS (RFC 3207) and nothing less, but for a loopback address.
package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/smtp"
	"net/textproto"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"
)

// Config of a Client. URL and From are required.
type Config struct {
	URL      string         // smtp://HOST[:587], which turns to TLS by STARTTLS, or smtps://HOST[:465]
	User     string         // empty: nobody logs in
	Password func() string  // of User
	From     string         // address of the sender
	Roots    *x509.CertPool // that vouch for the server; nil means the system's
}

// Client sends. It is safe for concurrent use.
type Client struct {
	server, host string
	implicit     bool
	tls          *tls.Config
	auth         func() smtp.Auth // nil: nobody logs in
	from         string
	now          func() time.Time

	mu   sync.Mutex
	kept *session // that Ready looks at
}

// Refused says that the server is there and would not have a message, or would
// not let its sender in (RFC 5321, section 4.2.1: a permanent answer).
type Refused struct{ Code int }

func (r *Refused) Error() string {
	return fmt.Sprintf("the mail server has refused it with code %d", r.Code)
}

const (
	maxRead   = 64 << 10 // of what a server says in a session
	maxProbes = 30       // of one connection: some servers count what sends nothing
	standsFor = 30 * time.Second
)

// New checks the configuration. It connects to nothing.
func New(c Config) (*Client, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "smtp" && u.Scheme != "smtps" {
		return nil, errors.New("a mail server has the URL smtp://HOST or smtps://HOST")
	}
	if (c.User == "") != (c.Password == nil) {
		return nil, errors.New("a user and a password come together")
	}
	if !IsAddress(c.From) {
		return nil, errors.New("the sender's address is none")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"smtp": "587", "smtps": "465"}[u.Scheme]
	}
	m := &Client{server: net.JoinHostPort(u.Hostname(), port), host: u.Hostname(), implicit: u.Scheme == "smtps", from: c.From, now: time.Now,
		tls: &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12, RootCAs: c.Roots}}
	if c.User != "" {
		m.auth = func() smtp.Auth { return smtp.PlainAuth("", c.User, c.Password(), m.host) }
	}
	return m, nil
}

// dotAtom is an address that can stand in a header and in a command as it is.
var dotAtom = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$")

// IsAddress says whether text is an address to which this package would send:
// ASCII, without a name, quotes or comments, and not too long.
func IsAddress(text string) bool {
	local, _, _ := strings.Cut(text, "@")
	return len(text) <= 254 && len(local) <= 64 && dotAtom.MatchString(text)
}

// Send hands over one message. An error that is no *[Refused] says that the
// server is away, or that nobody knows whether it has the message; the same
// message may be sent again, under the same ID.
func (c *Client) Send(ctx context.Context, m Message) error {
	text, err := m.text(c.from, c.now())
	if err != nil {
		return err
	}
	s, err := c.connect(ctx)
	if err != nil {
		return away(err)
	}
	defer s.end()
	return s.send(c.from, m.To, text)
}

// Ready says whether the server takes what this client would send: it answers,
// in TLS, and lets the user in. A connection is kept for a few looks.
func (c *Client) Ready(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.kept; s != nil {
		c.kept = nil
		if s.looks < maxProbes && c.now().Sub(s.began) < standsFor && s.look(ctx) == nil {
			c.keep(s)
			return nil
		}
		s.end()
	}
	s, err := c.connect(ctx)
	if err != nil {
		return err
	}
	c.keep(s)
	return nil
}

// keep lets a connection outlive the context in which it was made.
func (c *Client) keep(s *session) {
	s.stop()
	c.kept = s
}

// Close ends the connection that Ready keeps.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept != nil {
		c.kept.end()
		c.kept = nil
	}
}

// session is one connection, in which the sender has been let in.
type session struct {
	conn  *bounded
	smtp  *smtp.Client
	stop  func() bool // watching the context
	began time.Time
	looks int
}

// connect begins a session that ends with ctx, if it is not kept.
func (c *Client) connect(ctx context.Context) (_ *session, err error) {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.server)
	if err != nil {
		return nil, fmt.Errorf("the mail server cannot be reached: %w", err)
	}
	s := &session{conn: &bounded{raw, maxRead}, began: c.now()}
	s.watch(ctx)
	defer func() {
		if err != nil {
			s.stop()
			_ = raw.Close() // it has failed already
			err = judged(err)
		}
	}()
	var conn net.Conn = s.conn
	if c.implicit {
		conn = tls.Client(s.conn, c.tls)
	}
	if s.smtp, err = smtp.NewClient(conn, c.host); err != nil {
		return nil, err
	}
	return s, c.enter(s, raw.RemoteAddr())
}

// enter greets, turns to TLS and logs in.
func (c *Client) enter(s *session, peer net.Addr) error {
	if err := s.smtp.Hello(domain(c.from)); err != nil {
		return err
	}
	if !c.implicit {
		if offered, _ := s.smtp.Extension("STARTTLS"); offered {
			if err := s.smtp.StartTLS(c.tls); err != nil {
				return err
			}
		} else if !loopback(peer) {
			return errors.New("the mail server offers no TLS")
		}
	}
	if c.auth == nil {
		return nil
	}
	return s.smtp.Auth(c.auth())
}

func loopback(peer net.Addr) bool {
	at, err := netip.ParseAddrPort(peer.String())
	return err == nil && at.Addr().Unmap().IsLoopback()
}

func domain(address string) string { return address[strings.LastIndexByte(address, '@')+1:] }

// watch breaks the connection off when ctx ends.
func (s *session) watch(ctx context.Context) {
	if at, ok := ctx.Deadline(); ok {
		_ = s.conn.SetDeadline(at) // a connection that is closed already says so at its next use
	} else {
		_ = s.conn.SetDeadline(time.Time{})
	}
	s.stop = context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
}

func (s *session) look(ctx context.Context) error {
	s.stop()
	s.watch(ctx)
	s.looks++
	return s.smtp.Noop()
}

func (s *session) send(from, to string, text []byte) error {
	if err := s.smtp.Mail(from); err != nil {
		return judged(err)
	}
	if err := s.smtp.Rcpt(to); err != nil {
		return judged(err)
	}
	w, err := s.smtp.Data()
	if err != nil {
		return judged(err)
	}
	if _, err := w.Write(text); err != nil {
		return judged(err)
	}
	return judged(w.Close())
}

// end says goodbye, if that can be said at once.
func (s *session) end() {
	s.stop()
	_ = s.conn.SetDeadline(time.Now().Add(time.Second))
	_ = s.smtp.Quit() // the message is with the server, or it is not
	_ = s.smtp.Close()
}

// judged tells a permanent answer from everything else.
func judged(err error) error {
	if err == nil {
		return nil
	}
	if said, ok := errors.AsType[*textproto.Error](err); ok {
		if said.Code >= 500 && said.Code < 600 {
			return &Refused{said.Code}
		}
		return fmt.Errorf("the mail server is away: code %d", said.Code) // what it said is not ours to repeat
	}
	return fmt.Errorf("the mail server is away: %w", err)
}

// away makes a refusal of the sender what it is to a message: no answer to it.
func away(err error) error {
	if r, ok := errors.AsType[*Refused](err); ok {
		return fmt.Errorf("the mail server lets nobody in: code %d", r.Code)
	}
	return err
}

// bounded is a connection that has said enough at some point.
type bounded struct {
	net.Conn
	left int
}

var errEndless = errors.New("the mail server says too much")

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errEndless
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
