package http

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/credential"
	"github.com/nightwarrant/nightwarrant/guards/internal/scrub"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// secret is a credential that is good now, and what keeps it out of answers.
type secret struct {
	value credential.Secret
	set   *scrub.Set
}

func (s *secret) scrub(text []byte) (clean []byte, found bool) { return s.set.Bytes(text) }

// sender knows the credential.
type sender struct {
	header, prefix string
	provider       credential.Provider
	now            func() time.Time
	log            *slog.Logger

	mu   sync.Mutex
	last *secret // scrubbing one value takes tables, which are kept until it changes
}

func newSender(c *Credential, now func() time.Time, log *slog.Logger) (*sender, error) {
	if c == nil {
		return &sender{now: now, log: log, last: &secret{set: &scrub.Set{}}}, nil
	}
	if c.Provider == nil || !isHeader(c.Header) || strings.ContainsFunc(c.Prefix, notVisible) {
		return nil, errors.New("the credential needs a provider and a header of its own")
	}
	return &sender{header: textproto.CanonicalMIMEHeaderKey(c.Header), prefix: c.Prefix, provider: c.Provider, now: now, log: log}, nil
}

// credential gets one that is good now. An error says that there is none.
func (s *sender) credential(ctx context.Context) (*secret, error) {
	if s.provider == nil {
		return s.last, nil
	}
	c, err := credential.Get(ctx, s.provider, s.now())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || s.last.value != c.Value {
		set, err := scrub.New([]byte(c.Value.Reveal()))
		if err != nil {
			return nil, err // it could not be kept out of answers
		}
		s.last = &secret{c.Value, set}
	}
	return s.last, nil
}

const idempotencyDomain = "nightwarrant/idempotency/v1"

// sign adds what the worker does not choose: the credential, and for APIs that take one a key that is the same for the same
// effect only.
func (s *sender) sign(r *upstream.Request, c *secret, effect guards.Ref, idempotency string) {
	if s.header != "" {
		r.Header.Set(s.header, s.prefix+c.value.Reveal())
	}
	if idempotency != "" {
		key := canonical.Digest(idempotencyDomain, effect[:])
		r.Header.Set(idempotency, base64.RawURLEncoding.EncodeToString(key[:]))
	}
}
