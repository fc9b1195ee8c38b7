package http

import (
	"context"
	"encoding/base64"
	"errors"
	"net/textproto"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/secret"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// sender knows the credential.
type sender struct {
	header, prefix string
	source         *secret.Source
}

func newSender(c *Credential, now func() time.Time) (*sender, error) {
	if c == nil {
		return &sender{source: secret.New(nil, now)}, nil
	}
	if c.Provider == nil || !isHeader(c.Header) || strings.ContainsFunc(c.Prefix, notVisible) {
		return nil, errors.New("the credential needs a provider and a header of its own")
	}
	return &sender{header: textproto.CanonicalMIMEHeaderKey(c.Header), prefix: c.Prefix, source: secret.New(c.Provider, now)}, nil
}

// credential gets one that is good now. An error says that there is none.
func (s *sender) credential(ctx context.Context) (*secret.Secret, error) { return s.source.Get(ctx) }

const idempotencyDomain = "nightwarrant/idempotency/v1"

// sign adds what the worker does not choose: the credential, and for APIs that take one a key that is the same for the same
// effect only.
func (s *sender) sign(r *upstream.Request, c *secret.Secret, effect guards.Ref, idempotency string) {
	if s.header != "" {
		r.Header.Set(s.header, s.prefix+c.Value.Reveal())
	}
	if idempotency != "" {
		key := canonical.Digest(idempotencyDomain, effect[:])
		r.Header.Set(idempotency, base64.RawURLEncoding.EncodeToString(key[:]))
	}
}
