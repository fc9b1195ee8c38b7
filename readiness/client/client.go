// Package client tells a product whether the platform is ready for unattended
// work, so that it can apply the one decision to its own entries:
//
//	if !c.State().Open() {
//		// refuse
//	}
//
// Open means that the authority has signed, in answer to a random question of
// this process, that everything required is good, and that the time which it
// gave is not over on any clock of this machine. Everything else is closed: no
// answer, an unsigned, partial, foreign or old one, a client that was just
// started or has stopped. Nothing is kept on disk (protocol P33).
//
// Open grants nothing: the authority judges each admission itself, in the
// transaction that makes it. A product that refuses here spares its users work
// that would be refused there.
package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/elapsed"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
)

const (
	patience = time.Second     // with one question
	leeway   = 5 * time.Second // for the authority's clock, in iat and exp; how long a decision is valid is measured here
)

// always are the families without which a decision is not complete, whatever it
// says (nw.always and the guards).
var always = []string{"approvals", "attestation", "audit", "clock", "directory", "guards", "nonces", "queue", "signing", "store"}

// Config says whose decision to apply. Only the issuer is mandatory.
type Config struct {
	Issuer    string           // of the authority, exactly as in its metadata: https, or http on a loopback address
	Authority string           // base URL under which it is reached; the issuer
	Families  []string         // that this product needs besides those that are always required
	Every     time.Duration    // between two questions, 100 ms to 1 s; 500 ms
	HTTP      *http.Client     // redirects are never followed
	Now       func() time.Time // time.Now
}

// Client asks for the decision and keeps the last one that holds. It is safe for
// concurrent use.
type Client struct {
	config Config
	http   *http.Client
	keys   *issuerkeys.Set
	watch  func() elapsed.Watch
	state  atomic.Pointer[State]

	asking sync.Mutex                 // one Run at a time; guards newest
	newest *capability.DecisionClaims // that was accepted; an older one never is
}

// New returns a client that is closed until [Client.Run] has been answered.
func New(c Config) (*Client, error) {
	c.Authority = cmp.Or(c.Authority, c.Issuer)
	for _, u := range []string{c.Issuer, c.Authority} {
		if !isOurs(u) {
			return nil, errors.New("readiness client: issuer and authority must be plain URLs: https, or http on a loopback address")
		}
	}
	if c.Every = cmp.Or(c.Every, 500*time.Millisecond); c.Every < 100*time.Millisecond || c.Every > time.Second {
		return nil, errors.New("readiness client: ask every 100 ms to 1 s")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.HTTP == nil {
		c.HTTP = newHTTPClient()
	}
	plain := *c.HTTP
	plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client := &Client{config: c, http: &plain, keys: issuerkeys.New(c.Authority+api.PathJWKS, &plain, c.Now),
		watch: func() elapsed.Watch { return elapsed.Start(c.Now) }}
	client.shut("start")
	return client, nil
}

func isOurs(s string) bool {
	u, err := url.Parse(s)
	if _, bad := capability.NormalizeHTU(s); err != nil || bad != nil || u.User != nil || strings.ContainsAny(s, "?#") || strings.HasSuffix(s, "/") {
		return false
	}
	return u.Scheme == "https" || u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
}

func newHTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: patience, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: patience, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
	}}
}

// Run asks until ctx ends, and then closes. A second Run waits for the first.
func (c *Client) Run(ctx context.Context) {
	c.asking.Lock()
	defer c.asking.Unlock()
	defer c.http.CloseIdleConnections()
	defer c.shut("stopped")
	tick := time.NewTicker(c.config.Every)
	defer tick.Stop()
	for {
		c.ask(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// State is the state at this moment. It costs nothing: ask for it at each entry.
func (c *Client) State() State { return *c.state.Load() }

// ask sends one question. No answer changes nothing: what is known is over by
// itself. An answer that cannot be relied on closes at once; one that is older
// than what is known, as a replica that lags behind may give, is ignored.
func (c *Client) ask(ctx context.Context) {
	challenge, watch := rand.Text(), c.watch()
	body, err := c.get(ctx, challenge)
	if err != nil {
		if !c.State().Open() {
			c.shut(err.Error())
		}
		return
	}
	d, err := c.judge(ctx, body, challenge)
	switch {
	case err != nil:
		c.shut(err.Error())
	case c.newest != nil && d.Older(c.newest):
	default:
		c.newest = d
		c.state.Store(&State{open: d.Open, why: strings.Join(d.Reasons, "; "), epoch: d.Epoch, asked: watch, valid: time.Duration(d.ValidMS) * time.Millisecond})
	}
}

// shut closes until a decision opens.
func (c *Client) shut(why string) {
	s := State{why: why}
	if c.newest != nil {
		s.epoch = c.newest.Epoch
	}
	c.state.Store(&s)
}
