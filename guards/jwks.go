package guards

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const leeway = 5 * time.Second // for the authority's clock; it decides itself

// verify checks an effect capability with jwx, an implementation that is not the authority's (design.md §4), and holds
// its claims against this guard. Every refusal of the capability is an *api.Refusal.
func (g *Guard) verify(ctx context.Context, t capability.Token) (*capability.EffectClaims, error) {
	kid, err := tokenHeader(t)
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	key, ok, err := g.keys.Key(context.WithoutCancel(ctx), kid) // whoever hangs up must not use up the one refresh
	if err != nil {
		return nil, api.Refuse(api.Unavailable)
	}
	if !ok {
		return nil, api.Refuse(api.InvalidToken)
	}
	payload, err := jws.Verify([]byte(t.Reveal()), jws.WithKey(jwa.ES256, key.Public), jws.WithCompact())
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	claims := new(capability.EffectClaims)
	if canonical.Decode(payload, claims) != nil || claims.Generation != key.Generation || !g.isForThisGuard(claims) {
		return nil, api.Refuse(api.InvalidToken)
	}
	return claims, nil
}

// tokenHeader demands typ, alg and kid and nothing else: crit, jwk and their like have no place in the authority's
// tokens. All segments must be in their one spelling and the signature 64 bytes, about which jwx is lenient.
func tokenHeader(t capability.Token) (kid string, err error) {
	segments := strings.Split(t.Reveal(), ".") // bounded, and of the token alphabet: see capability.HeaderToken
	if len(segments) != 3 {
		return "", errHeader
	}
	var decoded [3][]byte
	for i, segment := range segments {
		if decoded[i], err = base64.RawURLEncoding.Strict().DecodeString(segment); err != nil {
			return "", errHeader
		}
	}
	if len(decoded[2]) != 64 {
		return "", errHeader
	}
	return readHeader(decoded[0])
}

func readHeader(header []byte) (kid string, err error) {
	var typ, alg bool
	err = canonical.Members(header, func(name []byte, v canonical.Value) error {
		text, _ := v.Text()
		switch string(name) {
		case "typ":
			typ = strings.TrimPrefix(strings.ToLower(text), "application/") == "at+jwt"
		case "alg":
			alg = text == "ES256"
		case "kid":
			kid = text
		default:
			return errHeader
		}
		return nil
	})
	if err != nil || !typ || !alg || kid == "" {
		return "", errHeader
	}
	return kid, nil
}

var errHeader = errors.New("guards: not the header of a capability")

// isForThisGuard: an effect capability of our issuer, for exactly this guard, alive. That it names a key is for the proof to
// show.
func (g *Guard) isForThisGuard(c *capability.EffectClaims) bool {
	now := g.config.Now()
	switch {
	case c.Kind != "effect", c.Issuer != g.config.Issuer, c.Audience != g.config.URI:
		return false
	case c.IssuedAt > now.Add(leeway).Unix(), c.Expires <= now.Add(-leeway).Unix(), c.Expires > c.Deadline:
		return false
	case c.Expires-c.IssuedAt > int64(capability.MaxEffectLifetime/time.Second):
		return false
	}
	return true
}
