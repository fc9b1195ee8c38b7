package worker

import (
	"context"
	"crypto/sha256"
	"net/url"
	"sync"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// identity is a key, which never leaves memory, with the clients that prove it.
//
// A key lives as long as its assertion: the first key that uses an assertion owns it until it expires, so that a new
// key for each run would be refused as soon as one assertion serves two. A run keeps the identity that claimed it.
type identity struct {
	assertion [32]byte // SHA-256, to see that it was replaced
	authority *dpopclient.Client

	mu     sync.Mutex
	guards map[string]*dpopclient.Client
}

// identify reads the assertion, and makes a new identity when it is another one than last time.
func (w *Worker) identify(ctx context.Context) (*identity, url.Values, error) {
	assertion, err := w.config.Assertion(ctx)
	if err != nil {
		return nil, nil, err
	}
	form := url.Values{"client_assertion": {assertion}, "client_assertion_type": {w.config.AssertionType}}
	digest := sha256.Sum256([]byte(assertion))
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.identity != nil && w.identity.assertion == digest {
		return w.identity, form, nil
	}
	key, err := capability.GenerateKey()
	if err != nil {
		return nil, nil, err
	}
	next := &identity{assertion: digest, guards: map[string]*dpopclient.Client{},
		authority: &dpopclient.Client{Key: key, HTTP: w.config.HTTP, BaseURL: w.config.Authority, Now: w.config.Now}}
	if w.identity != nil {
		next.authority.SetNonce(w.identity.authority.Nonce())
	}
	w.identity = next
	return next, form, nil
}

// guard is the client of one guard. Each has a nonce of its own.
func (w *Worker) guard(id *identity, uri string) *dpopclient.Client {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.guards[uri] == nil {
		id.guards[uri] = &dpopclient.Client{Key: id.authority.Key, HTTP: w.config.HTTP, BaseURL: uri,
			Timeout: w.config.GuardTimeout, Now: w.config.Now}
	}
	return id.guards[uri]
}

// tokenExchange is what every exchange of a token says first (RFC 8693 §2.1).
func (w *Worker) tokenExchange(form url.Values, subject, subjectType string) url.Values {
	form.Set("grant_type", api.GrantTokenExchange)
	form.Set("subject_token", subject)
	form.Set("subject_token_type", subjectType)
	if w.config.Client != "" {
		form.Set("client_id", w.config.Client)
	}
	return form
}
