package main

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/console"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/login"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/internal/server"
	"github.com/nightwarrant/nightwarrant/internal/session"
)

// maxIDToken is how old an ID token may be that begins a session: it was made for that.
const maxIDToken = 10 * time.Minute

// entrance is how people reach the pages, with everything checked that needs no database.
type entrance struct {
	envelopes *principal.Envelopes // of whoever comes with a browser
	header    principal.Header     // where a proxy brings them
	provider  *login.Provider      // or where people sign in; nil behind a proxy
}

// trustBrowsers makes what decides who comes with a browser. Its errors are misconfigurations.
func (r *replica) trustBrowsers() (err error) {
	c := &r.config.Console
	if !c.Is() {
		return nil
	}
	if !c.Login.Is() {
		if r.entrance.header, err = principal.HeaderNamed(c.EnvelopeHeader); err != nil {
			return config.Wrong("console.envelope_header", "cannot be used: %s", err)
		}
		r.entrance.envelopes, err = r.envelopesFor(r.config.Envelope.Audience, r.config.Envelope.MaxAge.Std(), r.entrance.header.Unique)
		return err
	}
	if r.entrance.envelopes, err = r.envelopesFor(c.Login.ClientID, maxIDToken, "nonce"); err != nil {
		return config.Wrong("console.login", "cannot be used: %s", err)
	}
	roots, err := rootsOf(r.config.Envelope.Issuer.RootsFile)
	if err != nil {
		return config.Wrong("envelope.issuer", "has a roots_file that cannot be used: %s", err)
	}
	l := login.Config{Issuer: r.config.Envelope.Issuer.URL, ClientID: c.Login.ClientID, Origin: c.Origin, Roots: roots, Envelopes: r.entrance.envelopes, Log: r.log}
	if c.Login.ClientSecret != "" {
		l.Secret = c.Login.ClientSecret
	}
	if r.entrance.provider, err = login.New(l); err != nil {
		return config.Wrong("console.login", "cannot be used: %s", err)
	}
	return nil
}

// envelopesFor judges envelopes of the one issuer for one audience.
func (r *replica) envelopesFor(audience string, maxAge time.Duration, unique string) (*principal.Envelopes, error) {
	c := r.config
	return principal.New(principal.Config{Keys: r.people, Issuer: c.Envelope.Issuer.URL, Audience: audience, Own: c.Issuer, MaxAge: maxAge, Unique: unique,
		Operators: refsOf(c.Envelope.Operators), Auditors: refsOf(c.Envelope.Auditors)})
}

func refsOf(people []config.Operator) []principal.OperatorRef {
	refs := make([]principal.OperatorRef, len(people))
	for i, o := range people {
		refs[i] = principal.OperatorRef{Issuer: o.Issuer, Subject: o.Subject}
	}
	return refs
}

// public is what the public listener answers: the API and, where there are pages,
// those. loop runs beside them.
func (r *replica) public(a *authority.Authority, s *server.Server) (h http.Handler, loop func(context.Context), err error) {
	loop = func(context.Context) {}
	if !r.config.Console.Is() {
		return s.Handler(), loop, nil
	}
	var pages *console.Console
	refuse := func(w http.ResponseWriter, q *http.Request, err error) { pages.Refuse(w, q, err) }
	var door console.Door = &session.Proxied{Actors: a, Envelopes: r.entrance.envelopes, Header: r.entrance.header, Refuse: refuse}
	if r.entrance.provider != nil {
		l := r.config.Console.Login
		kept, err := session.NewKept(session.Config{Actors: a, Envelopes: r.entrance.envelopes, Provider: r.entrance.provider, Members: r.members, Pool: r.pool, Marks: a.Marks(),
			Idle: l.Idle.Std(), Life: l.Life.Std(), Refuse: refuse, Log: r.log})
		if err != nil {
			return nil, nil, config.Wrong("console.login", "cannot be used: %s", err)
		}
		door, loop = kept, kept.Run
	}
	if pages, err = console.New(console.Config{Authority: a, Door: door, Origin: r.config.Console.Origin, Log: r.log}); err != nil {
		return nil, nil, config.Wrong("console", "cannot be used: %s", err)
	}
	return beside(s, pages.Handler()), loop, nil
}

// beside answers the API's paths with the API and all others with pages.
func beside(s *server.Server, pages http.Handler) http.Handler {
	roots := map[string]bool{}
	for _, route := range s.Routes() {
		roots[rootOf(route.Path)] = true
	}
	calls := s.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if roots[rootOf(r.URL.Path)] || !server.Plain(r.URL.Path) {
			calls.ServeHTTP(w, r)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

// rootOf is the first part of a path.
func rootOf(path string) string {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return root
}
