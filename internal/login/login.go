// Package login signs people in at an OpenID provider: authorization code with
// PKCE (RFC 7636, S256), as OpenID Connect Core 1.0 §3.1 and RFC 9700 want it.
// What comes of it is a principal that FromEnvelope has made of the ID token,
// which is then dropped, as is everything else that the provider sends.
//
// Nothing is kept here between the two halves: a cookie that only this browser
// has is the attempt, and state, nonce and verifier are digests of it.
package login

import (
	"context"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

// PathCallback is where the provider sends people back to, on our origin.
const PathCallback = session.PathLogin + "/callback"

const (
	attemptLife = 10 * time.Minute
	discovery   = time.Hour // for which what the provider says of itself is used
	pause       = 2 * time.Second
	maxQuery    = 8 << 10
	maxCodes    = 16 // are redeemed at the same time: anybody can send one
)

// Secret is a client secret that does not print.
type Secret interface{ Reveal() string }

// Config is what signing in is made of. All but Secret, Roots, Log and Now are required.
type Config struct {
	Issuer    string
	ClientID  string
	Secret    Secret // nil: a public client, which has PKCE alone
	Origin    string // of the console; the redirect URI is exactly Origin + PathCallback
	Roots     *x509.CertPool
	Envelopes *principal.Envelopes // with the client as audience, and unlike by nonce
	Log       *slog.Logger
	Now       func() time.Time // dates attempts; what has ended is judged again by the database
}

// Provider is an OpenID provider at which people sign in.
type Provider struct {
	Config
	client *http.Client
	codes  chan struct{} // a place for each code that is being redeemed

	mu     sync.Mutex
	met    *met
	till   time.Time // when it is asked again
	failed error     // the last time
}

// met is what the provider has said of itself.
type met struct {
	oauth    oauth2.Config
	verifier *oidc.IDTokenVerifier
}

// New checks the configuration; any error is a misconfiguration. The provider is
// not asked before somebody signs in.
func New(c Config) (*Provider, error) {
	switch {
	case !secure(c.Issuer) || !secure(c.Origin):
		return nil, errors.New("login: the provider and the console must be https, or on a loopback address")
	case strings.TrimSpace(c.ClientID) == "" || c.Envelopes == nil:
		return nil, errors.New("login: a client and what judges its tokens are needed")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Provider{Config: c, client: newClient(c.Roots), codes: make(chan struct{}, maxCodes)}, nil
}

// Begin implements session.Provider.
func (p *Provider) Begin(w http.ResponseWriter, r *http.Request, to string) error {
	m, err := p.meet(r.Context())
	if err != nil {
		return err
	}
	a := newAttempt(p.Now(), session.Local(to))
	a.remember(w)
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, m.oauth.AuthCodeURL(a.state(), oidc.Nonce(a.nonce()), oauth2.S256ChallengeOption(a.verifier())), http.StatusSeeOther)
	return nil
}

// Finish implements session.Provider. Whatever comes of it, the attempt is over.
func (p *Provider) Finish(w http.ResponseWriter, r *http.Request) (session.Arrival, error) {
	var nobody session.Arrival
	a, ok := attemptOf(r, p.Now())
	forget(w)
	q, err := one(r.URL.RawQuery, "state", "code", "error", "iss")
	switch {
	case err != nil:
		return nobody, err
	case !ok || subtle.ConstantTimeCompare([]byte(q["state"]), []byte(a.state())) != 1:
		return nobody, api.Refusef(api.InvalidEnvelope, "This is not the answer to a sign-in that this browser began in the last ten minutes; sign in again.")
	case q["iss"] != "" && q["iss"] != p.Issuer: // RFC 9207
		return nobody, api.Refusef(api.InvalidEnvelope, "The answer comes from another provider than the one that was asked; sign in again.")
	case q["error"] == "access_denied":
		return nobody, api.Refusef(api.InvalidEnvelope, "The provider says that signing in was refused.")
	case q["error"] != "" || q["code"] == "":
		return nobody, unconfirmed()
	}
	who, err := p.redeem(r.Context(), a, q["code"])
	if err != nil {
		return nobody, err
	}
	return session.Arrival{Who: who, Attempt: a.digest(), Until: a.began.Add(attemptLife), To: a.to}, nil
}

// redeem gets the ID token for a code. Two implementations must agree on it.
func (p *Provider) redeem(ctx context.Context, a attempt, code string) (principal.Principal, error) {
	var nobody principal.Principal
	select {
	case p.codes <- struct{}{}:
		defer func() { <-p.codes }()
	default:
		return nobody, api.Refuse(api.TooManyRequests)
	}
	m, err := p.meet(ctx)
	if err != nil {
		return nobody, err
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), timeout)
	defer cancel()
	tokens, err := m.oauth.Exchange(ctx, code, oauth2.VerifierOption(a.verifier()))
	if err != nil {
		return nobody, p.refused(ctx, err)
	}
	compact, _ := tokens.Extra("id_token").(string)
	token, err := m.verifier.Verify(ctx, compact)
	if err != nil {
		return p.judge(ctx, compact, unconfirmed())
	}
	if subtle.ConstantTimeCompare([]byte(token.Nonce), []byte(a.nonce())) != 1 {
		return nobody, unconfirmed()
	}
	return p.judge(ctx, compact, nil)
}

// judge is the one constructor's word. When the other implementation has refused
// the token already, ours at most says why.
func (p *Provider) judge(ctx context.Context, compact string, refused error) (principal.Principal, error) {
	who, err := p.Envelopes.FromEnvelope(ctx, compact)
	if err != nil {
		return principal.Principal{}, err
	}
	if refused != nil {
		return principal.Principal{}, refused
	}
	return who, nil
}

func unconfirmed() error {
	return api.Refusef(api.InvalidEnvelope, "The provider did not confirm who you are; sign in again.")
}

// refused tells trouble on the way from a provider that refuses. What the provider
// wrote goes nowhere but, in its one bounded word, into our log.
func (p *Provider) refused(ctx context.Context, err error) error {
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		p.Log.LogAttrs(ctx, slog.LevelWarn, "the identity provider cannot be asked", slog.String("error", bounded(err.Error())))
		return api.Refuse(api.Unavailable)
	}
	p.Log.LogAttrs(ctx, slog.LevelWarn, "the identity provider refuses a code", slog.String("error", bounded(answer.ErrorCode)))
	return unconfirmed()
}

// meet asks the provider what it says of itself, at most once an hour, and when
// that has failed at most once in two seconds.
func (p *Provider) meet(ctx context.Context) (*met, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Now().Before(p.till) {
		return p.met, p.failed
	}
	p.met, p.failed = p.ask(ctx)
	p.till = p.Now().Add(discovery)
	if p.failed != nil {
		p.till = p.Now().Add(pause)
	}
	return p.met, p.failed
}

func (p *Provider) ask(ctx context.Context) (*met, error) {
	ctx, cancel := context.WithTimeout(oidc.ClientContext(context.WithoutCancel(ctx), p.client), timeout)
	defer cancel()
	found, err := oidc.NewProvider(ctx, p.Issuer)
	if err != nil {
		return nil, p.refused(ctx, err)
	}
	var more struct {
		Methods []string `json:"token_endpoint_auth_methods_supported"`
	}
	at := found.Endpoint()
	if err := found.Claims(&more); err != nil || !secure(at.AuthURL) || !secure(at.TokenURL) {
		return nil, p.refused(ctx, errors.New("what it says of itself cannot be used"))
	}
	m := &met{verifier: found.Verifier(&oidc.Config{ClientID: p.ClientID, SupportedSigningAlgs: []string{oidc.RS256, oidc.ES256}, Now: p.Now})}
	m.oauth = oauth2.Config{ClientID: p.ClientID, RedirectURL: p.Origin + PathCallback, Scopes: []string{oidc.ScopeOpenID, "email"},
		Endpoint: oauth2.Endpoint{AuthURL: at.AuthURL, TokenURL: at.TokenURL, AuthStyle: oauth2.AuthStyleInParams}}
	if p.Secret != nil {
		m.oauth.ClientSecret = p.Secret.Reveal()
		if len(more.Methods) == 0 || slices.Contains(more.Methods, "client_secret_basic") { // OpenID Connect Discovery 1.0 §3: the default
			m.oauth.Endpoint.AuthStyle = oauth2.AuthStyleInHeader
		}
	}
	return m, nil
}

// one reads parameters that may come once each. Others are ignored.
func one(query string, names ...string) (map[string]string, error) {
	bad := api.Refusef(api.InvalidRequest, "This is not an answer of the identity provider.")
	if len(query) > maxQuery {
		return nil, bad
	}
	all, err := url.ParseQuery(query)
	if err != nil {
		return nil, bad
	}
	out := map[string]string{}
	for _, name := range names {
		if len(all[name]) > 1 {
			return nil, bad
		}
		out[name] = all.Get(name)
	}
	return out, nil
}
