package guards

import (
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const (
	maxJWKS     = 64 << 10
	keysFresh   = time.Minute      // then the keys are read again
	keysStale   = 5 * time.Minute  // then they are used no more
	keysAtMost  = 10 * time.Second // between two refreshes (protocol P27)
	keysTimeout = 2 * time.Second
	leeway      = 5 * time.Second // for the authority's clock; it decides itself
)

// issuerKey is a verification key of the authority and the generation that it belongs to (P25).
type issuerKey struct {
	public     *ecdsa.PublicKey
	generation int64
}

// keySet caches the authority's keys. A refresh replaces them all, so that a key that was withdrawn is gone.
type keySet struct {
	url  string
	http *http.Client
	now  func() time.Time

	mu    sync.Mutex
	keys  map[string]issuerKey
	read  time.Time // of keys
	tried time.Time
}

var errNoKeys = errors.New("guards: the authority's keys cannot be read")

// key returns the key of that kid. ok is false for a kid that is unknown after at most one refresh in 10 s; the error
// says that there are no keys to look in.
func (s *keySet) key(ctx context.Context, kid string) (k issuerKey, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if k, ok = s.keys[kid]; !ok || now.Sub(s.read) > keysFresh {
		s.refresh(ctx, now)
		k, ok = s.keys[kid]
	}
	if s.keys == nil || now.Sub(s.read) > keysStale {
		return issuerKey{}, false, errNoKeys
	}
	return k, ok, nil
}

func (s *keySet) refresh(ctx context.Context, now time.Time) {
	if !s.tried.IsZero() && now.Sub(s.tried) < keysAtMost {
		return
	}
	s.tried = now
	if keys, err := s.fetch(context.WithoutCancel(ctx)); err == nil { // whoever hangs up must not use up the one refresh
		s.keys, s.read = keys, now
	}
}

func (s *keySet) fetch(ctx context.Context) (map[string]issuerKey, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err != nil || resp.StatusCode != http.StatusOK || len(body) > maxJWKS {
		return nil, errNoKeys
	}
	return parseKeys(body)
}

// parseKeys takes ES256 signature keys with a kid and a generation, and refuses the whole set when one is not, or when a
// kid is there twice: a set that is not understood is not the authority's.
func parseKeys(body []byte) (map[string]issuerKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil || len(set.Keys) == 0 || len(set.Keys) > 16 {
		return nil, errNoKeys
	}
	keys := map[string]issuerKey{}
	for _, raw := range set.Keys {
		kid, k, err := parseKey(raw)
		if _, twice := keys[kid]; err != nil || twice {
			return nil, errNoKeys
		}
		keys[kid] = k
	}
	return keys, nil
}

func parseKey(raw []byte) (kid string, k issuerKey, err error) {
	parsed, err := jwk.ParseKey(raw)
	if err != nil {
		return "", k, err
	}
	public, ok := parsed.(jwk.ECDSAPublicKey)
	if !ok || public.Crv() != jwa.P256 || public.KeyUsage() != "sig" || public.Algorithm() != jwa.ES256 || public.KeyID() == "" {
		return "", k, errNoKeys
	}
	generation, _ := public.Get("generation")
	number, _ := generation.(float64)
	k.generation = int64(number)
	k.public = new(ecdsa.PublicKey)
	if err := public.Raw(k.public); err != nil || k.generation < 1 || float64(k.generation) != number {
		return "", k, errNoKeys
	}
	if _, err := k.public.ECDH(); err != nil { // on the curve
		return "", k, err
	}
	return public.KeyID(), k, nil
}

// verify checks an effect capability with jwx, an implementation that is not the authority's (design.md §4), and holds
// its claims against this guard. Every refusal of the capability is an *api.Refusal.
func (g *Guard) verify(ctx context.Context, t capability.Token) (*capability.EffectClaims, error) {
	kid, err := tokenHeader(t)
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	key, ok, err := g.keys.key(ctx, kid)
	if err != nil {
		return nil, api.Refuse(api.Unavailable)
	}
	if !ok {
		return nil, api.Refuse(api.InvalidToken)
	}
	payload, err := jws.Verify([]byte(t.Reveal()), jws.WithKey(jwa.ES256, key.public), jws.WithCompact())
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	claims := new(capability.EffectClaims)
	if canonical.Decode(payload, claims) != nil || claims.Generation != key.generation || !g.isForThisGuard(claims) {
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
