// Package secret is the credential that a guard adds to a request, together with
// what keeps it out of the answer.
package secret

import (
	"context"
	"crypto/subtle"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/guards/internal/credential"
	"github.com/nightwarrant/nightwarrant/guards/internal/scrub"
)

// Secret is a credential that is good now. The zero Secret is none, and cuts
// nothing.
type Secret struct {
	Value credential.Secret
	set   *scrub.Set
}

// Set finds the credential in answers.
func (s *Secret) Set() *scrub.Set {
	if s.set == nil {
		return &scrub.Set{}
	}
	return s.set
}

// Source gets it anew for each effect. It is safe for concurrent use.
type Source struct {
	provider credential.Provider
	now      func() time.Time

	mu   sync.Mutex
	last *Secret // scrubbing one value takes tables, which are kept until it changes
}

// New makes a source; a nil provider is for a destination that wants none.
func New(p credential.Provider, now func() time.Time) *Source { return &Source{provider: p, now: now} }

// Get returns one that is good now and can be kept out of answers. An error says
// that there is none, and nothing of its value.
func (s *Source) Get(ctx context.Context) (*Secret, error) {
	if s.provider == nil {
		return &Secret{}, nil
	}
	c, err := credential.Get(ctx, s.provider, s.now())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && subtle.ConstantTimeCompare([]byte(s.last.Value.Reveal()), []byte(c.Value.Reveal())) == 1 {
		return s.last, nil
	}
	set, err := scrub.New([]byte(c.Value.Reveal()))
	if err != nil {
		return nil, err
	}
	s.last = &Secret{c.Value, set}
	return s.last, nil
}
