// Package upstream makes one HTTP exchange with one destination: to addresses
// that were checked, over a connection of its own, once, bounded in time and
// bytes. It follows nothing, repeats nothing, remembers nothing, and says of
// what went wrong only which kind it was: a destination's words may hold a
// credential.
//
// Connecting and exchanging are two steps, so that whoever fails in the first
// knows that nothing was sent.
package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Category is a kind of failure.
type Category string

// The categories. With the first two nothing was sent.
const (
	Forbidden   Category = "forbidden"   // the destination's address may not be reached
	Unreachable Category = "unreachable" // no connection
	Timeout     Category = "timeout"
	Broken      Category = "connection" // it ended before the answer did
	Malformed   Category = "malformed"  // an answer that cannot be read, is compressed or is too large
)

// Error is a failure. It holds no text from outside.
type Error struct {
	Category Category
	Detail   string
}

func (e *Error) Error() string { return "upstream: " + string(e.Category) + ": " + e.Detail }

func fail(c Category, format string, args ...any) error {
	return &Error{c, fmt.Sprintf(format, args...)}
}

const (
	maxHeader    = 32 << 10 // bytes of an answer
	maxAddresses = 4        // of one name that are tried
	dialTimeout  = 5 * time.Second
	longest      = 5 * time.Minute // of an exchange, where its context has no end
)

// Config says what may be reached. The zero Config reaches public addresses with
// the system's roots.
type Config struct {
	Private   Private
	Roots     *x509.CertPool // optional, the system's
	MaxAnswer int64          // bytes of a body; optional, 1 MiB
}

type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Client makes exchanges. It is safe for concurrent use.
type Client struct {
	config   Config
	resolver resolver
}

// New makes a client.
func New(c Config) *Client {
	if c.MaxAnswer <= 0 {
		c.MaxAnswer = 1 << 20
	}
	return &Client{config: c, resolver: net.DefaultResolver}
}

// Conn is a connection for one exchange. Close it.
type Conn struct {
	scheme string
	host   string // with its port
	net    net.Conn
	most   int64
	once   sync.Once
	end    func()
}

// Connect resolves, checks and dials the destination of a URL, and finishes the
// handshake of TLS. Whatever it returns, no request was sent.
func (c *Client) Connect(ctx context.Context, u *url.URL) (*Conn, error) {
	host, port, err := destination(u)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addresses, err := c.resolve(ctx, u.Scheme, host, port)
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, addresses)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "https" {
		secured := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: c.config.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, fail(Unreachable, "TLS with %.255q failed", host)
		}
		conn = secured
	}
	return &Conn{scheme: u.Scheme, host: u.Host, net: conn, most: c.config.MaxAnswer, end: func() {}}, nil
}

func destination(u *url.URL) (host, port string, err error) {
	host, port = u.Hostname(), u.Port()
	if host == "" || u.User != nil || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' || r == '%' }) {
		return "", "", fail(Forbidden, "this is no destination")
	}
	switch {
	case u.Scheme == "https" && port == "":
		port = "443"
	case u.Scheme == "http" && port == "":
		port = "80"
	case u.Scheme != "https" && u.Scheme != "http":
		return "", "", fail(Forbidden, "this is no destination")
	}
	return strings.ToLower(host), port, nil
}

// resolve returns the addresses of a host, all of which were checked: with one that is forbidden none is trusted. A
// credential goes over plain HTTP to listed addresses only.
func (c *Client) resolve(ctx context.Context, scheme, host, port string) ([]string, error) {
	found, err := c.lookup(ctx, host)
	if err != nil || len(found) == 0 {
		return nil, fail(Unreachable, "%.255q does not resolve", host)
	}
	var all []string
	for _, ip := range found {
		listed, ok := c.config.Private.allows(ip, host, port)
		switch {
		case !ok:
			return nil, fail(Forbidden, "%.255q is at an address that is not public and not listed", host)
		case scheme == "http" && !listed:
			return nil, fail(Forbidden, "%.255q is reached over plain HTTP and is not listed", host)
		}
		all = append(all, net.JoinHostPort(ip.String(), port))
	}
	return all[:min(len(all), maxAddresses)], nil
}

// lookup takes an address in its one spelling as it is; everything else is a name.
func (c *Client) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	found, err := c.resolver.LookupNetIP(ctx, "ip", host)
	for i := range found {
		if found[i].Is4In6() && found[i].Zone() == "" {
			found[i] = found[i].Unmap() // as some resolvers give IPv4
		}
	}
	return found, err
}

// dial tries addresses one after the other. None is resolved again.
func dial(ctx context.Context, addresses []string) (conn net.Conn, err error) {
	dialer := net.Dialer{KeepAlive: -1, FallbackDelay: -1}
	for _, address := range addresses {
		if conn, err = dialer.DialContext(ctx, "tcp", address); err == nil {
			return conn, nil
		}
	}
	return nil, fail(Unreachable, "no address can be reached")
}

// Close ends the connection. That it had ended before is no error.
func (c *Conn) Close() error {
	c.end()
	if err := c.net.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Request is what is sent. Host, Content-Length, Accept-Encoding and Connection
// are not its to choose.
type Request struct {
	Method string
	URL    *url.URL // at the destination that was connected to
	Header http.Header
	Body   []byte
}

// Answer is what came back. Its Body fails with an *Error; Close of the Conn
// ends it.
type Answer struct {
	Status int
	Header http.Header
	Body   io.Reader
}

var errUsed = errors.New("upstream: a connection is for one exchange")

// Exchange sends a request and reads the head of its answer. Whatever error it
// returns, the request may have been carried out.
func (c *Conn) Exchange(ctx context.Context, r Request) (*Answer, error) {
	if r.URL.Scheme != c.scheme || r.URL.Host != c.host {
		return nil, errors.New("upstream: the request is for another destination")
	}
	ctx, cancel := context.WithTimeout(ctx, longest)
	transport := c.transport()
	c.end = func() { cancel(); transport.CloseIdleConnections() }
	request, err := newRequest(ctx, r)
	if err != nil {
		return nil, errors.New("upstream: the request cannot be spelled")
	}
	response, err := transport.RoundTrip(request) //nolint:bodyclose // Close of the Conn ends it
	if err != nil {
		return nil, classify(ctx, err)
	}
	return c.answer(ctx, response)
}

func newRequest(ctx context.Context, r Request) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, r.Method, r.URL.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if len(r.Body) > 0 {
		request.Body, request.ContentLength = io.NopCloser(strings.NewReader(string(r.Body))), int64(len(r.Body)) // without GetBody: nothing can send it again
	}
	request.Header = r.Header.Clone()
	if request.Header == nil {
		request.Header = http.Header{}
	}
	request.Header.Set("Accept-Encoding", "identity")
	if request.Header.Get("User-Agent") == "" {
		request.Header.Set("User-Agent", "nightwarrant-guard")
	}
	return request, nil
}

// transport has this connection, once, and can get no other.
func (c *Conn) transport() *http.Transport {
	only := func(context.Context, string, string) (conn net.Conn, err error) {
		err = errUsed
		c.once.Do(func() { conn, err = c.net, nil })
		return conn, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{DialContext: only, DialTLSContext: only, Protocols: protocols, DisableKeepAlives: true, DisableCompression: true,
		MaxResponseHeaderBytes: maxHeader}
}

func (c *Conn) answer(ctx context.Context, r *http.Response) (*Answer, error) {
	encoding := strings.ToLower(r.Header.Get("Content-Encoding"))
	switch {
	case r.StatusCode < 200 || r.StatusCode > 599:
		return nil, fail(Malformed, "the status is none of an end")
	case encoding != "" && encoding != "identity", len(r.Header.Values("Content-Encoding")) > 1:
		return nil, fail(Malformed, "the body is compressed")
	case r.ContentLength > c.most:
		return nil, fail(Malformed, "the body is too large")
	}
	return &Answer{Status: r.StatusCode, Header: r.Header, Body: &body{ctx: ctx, from: r.Body, left: c.most}}, nil
}

// body is bounded, and its errors are ours.
type body struct {
	ctx  context.Context
	from io.Reader
	left int64
}

func (b *body) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1] // one more shows that there is more
	}
	n, err := b.from.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fail(Malformed, "the body is too large")
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = classify(b.ctx, err)
	}
	return n, err
}

// classify names what went wrong after something may have been sent.
func classify(ctx context.Context, err error) error {
	var network net.Error
	var operation *net.OpError
	switch {
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return fail(Timeout, "no answer in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &operation), isTLS(err):
		return fail(Broken, "the connection ended before the answer did")
	}
	return fail(Malformed, "the answer cannot be read")
}

func isTLS(err error) bool {
	var alert tls.AlertError
	var record tls.RecordHeaderError
	return errors.As(err, &alert) || errors.As(err, &record)
}
