// Package guards puts a guard in front of a resource: it admits an exact effect
// once, applies it within the time that it was given or not at all, and settles
// what became of it (design.md §10).
//
// The local verification of capability and proof is a filter. The authority
// decides: nothing is applied without its go-ahead for this attempt. What
// happens at the resource is the business of a [Ledger]; guards/postgres is one.
package guards

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
)

// Target is what the parameters of an action aim at. The request's own resource
// and amount must equal it, so that everything acted on is in the parameters.
type Target = catalogue.Target

// Operation checks the canonical parameters of one action and names their
// target. It refuses whatever it does not know, as canonical.Decode into a
// struct does.
type Operation func(params json.RawMessage) (Target, error)

// Catalogued returns the operation of an action of a compiled-in catalogue.
func Catalogued(kind, action string) (Operation, error) {
	a, ok := catalogue.Lookup(kind, action)
	if !ok {
		return nil, fmt.Errorf("guards: %.64q is not an action of the catalogue %.32q", action, kind)
	}
	return a.Target, nil
}

// Config says which guard this is. What is not marked optional is mandatory.
type Config struct {
	URI       string                                // as registered: the public origin and the path, without a slash at the end
	Name      string                                // of the registered component
	Issuer    string                                // of the authority, exactly as in its metadata
	Authority string                                // base URL under which the authority is reached; optional, the issuer
	Assertion func(context.Context) (string, error) // reads the projected workload assertion, anew each time

	// AssertionType of it, such as api.AssertionJWTSPIFFE; optional, api.AssertionJWTBearer.
	AssertionType string

	Ledger     Ledger
	Operations map[string]Operation // by action
	Routes     map[string]Route     // by path below the URI, such as /v1/chat/completions; optional
	Catalogue  [32]byte             // catalogue.DigestOf the actions that it serves; another than is registered closes everything
	Models     [][32]byte           // SHA-256 digests of the models that it serves; optional. Each must be required by the authority's
	Datasets   [][32]byte           // requirement, or everything closes. And of the datasets
	HTTPClient *http.Client         // to the authority; optional. Redirects are never followed
	AtOnce     int                  // requests that are worked on at once; optional, 64. More are told to come again
	Longest    time.Duration        // that Apply may take beyond the time to begin; optional, 15 s
	Build      *api.Build           // what this process runs, for the report; optional
	Logger     *slog.Logger         // optional
	Now        func() time.Time     // optional, time.Now
}

// Guard is the http.Handler of one registered guard:
//
//	POST {path of URI}/operations/{action}
//	POST {path of URI}{path of a route}
//	GET  /.well-known/oauth-protected-resource{path of URI}   (RFC 9728 §3)
//
// It answers with refusals until [Guard.Run] has reached the authority.
type Guard struct {
	config    Config
	path      string // of the URI
	key       *capability.Key
	component *dpopclient.Component
	keys      *issuerkeys.Set
	nonces    *noncePool
	log       *slog.Logger
	slots     chan struct{} // of requests that are worked on
	sweepNow  chan struct{} // of size 1: something is owed

	mu       sync.Mutex
	alive    map[Ref]bool // attempts that a request of this process works on
	owed     map[Ref]Ref  // effects whose end is not settled yet, and their attempts
	seen     Seen
	sequence int64 // of readiness reports
}

var actionForm = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,63}$`)

// New makes a guard with a new key, which lives in memory only: to the authority
// every process is a new boot of its instance.
func New(c Config) (*Guard, error) {
	uri, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("guards: %w", err)
	}
	key, err := capability.GenerateKey()
	if err != nil {
		return nil, err
	}
	c.Authority = strings.TrimSuffix(cmp.Or(c.Authority, c.Issuer), "/")
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.HTTPClient == nil {
		c.HTTPClient = newHTTPClient()
	}
	if c.AtOnce <= 0 {
		c.AtOnce = 64
	}
	if c.Longest <= 0 {
		c.Longest = applyGrace
	}
	g := &Guard{config: c, path: uri.EscapedPath(), key: key, log: c.Logger, slots: make(chan struct{}, c.AtOnce), sweepNow: make(chan struct{}, 1),
		alive: map[Ref]bool{}, owed: map[Ref]Ref{}}
	client := &dpopclient.Client{Key: key, HTTP: c.HTTPClient, BaseURL: c.Authority, Timeout: callTimeout, Now: c.Now}
	g.component = &dpopclient.Component{Client: client, Name: c.Name, Assertion: c.Assertion, AssertionType: c.AssertionType}
	g.keys = issuerkeys.New(c.Authority+pathJWKS, noRedirects(c.HTTPClient), c.Now)
	g.nonces = &noncePool{fetch: g.fetchNonce, now: c.Now}
	return g, nil
}

func (c *Config) check() (*url.URL, error) {
	uri, err := url.Parse(c.URI)
	if err != nil {
		return nil, errors.New("the URI cannot be read")
	}
	_, err = capability.NormalizeHTU(c.URI)
	switch {
	case err != nil || uri.User != nil || strings.ContainsAny(c.URI, "?#") || strings.HasSuffix(c.URI, "/"):
		return nil, errors.New("the URI must be an absolute http or https URL without query, fragment or a slash at its end")
	case c.Issuer == "" || sameOrigin(c.URI, c.Issuer):
		return nil, errors.New("the issuer must be set, and the guard's origin must be another than the authority's")
	case c.Name == "" || c.Assertion == nil || c.Ledger == nil || len(c.Operations) == 0:
		return nil, errors.New("name, assertion, ledger and at least one operation must be set")
	}
	for action, operation := range c.Operations {
		if !actionForm.MatchString(action) || operation == nil {
			return nil, fmt.Errorf("%.64q is not an operation", action)
		}
	}
	return uri, c.checkRoutes()
}

func newHTTPClient() *http.Client {
	return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 2 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 2 * time.Second, ResponseHeaderTimeout: 5 * time.Second,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 60 * time.Second, ForceAttemptHTTP2: true,
	}}
}

func noRedirects(c *http.Client) *http.Client {
	plain := *c
	plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &plain
}

func sameOrigin(a, b string) bool {
	x, errX := url.Parse(a)
	y, errY := url.Parse(b)
	return errX != nil || errY != nil || strings.EqualFold(x.Scheme, y.Scheme) && strings.EqualFold(x.Host, y.Host)
}
