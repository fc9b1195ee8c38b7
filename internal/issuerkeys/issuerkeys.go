// Package issuerkeys is what a relying party keeps of the authority's keys. It reads them with jwx, an implementation that
// is not the authority's (design.md §4), and refuses a set that it does not understand as a whole.
package issuerkeys

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jwk"
)

const (
	maxJWKS = 64 << 10
	fresh   = time.Minute      // then the keys are read again, or before, when their answer says so (RFC 9111 §5.2.2.1)
	soonest = time.Second      // whatever it says
	stale   = 5 * time.Minute  // then they are used no more
	atMost  = 10 * time.Second // between two refreshes (protocol P27)
	timeout = 2 * time.Second
)

// ErrNoKeys says that there are no keys to look in.
var ErrNoKeys = errors.New("the authority's keys cannot be read")

// Key is a verification key of the authority and the generation that it belongs to (P25).
type Key struct {
	Public     *ecdsa.PublicKey
	Generation int64
}

// Set caches the authority's keys. A refresh replaces them all, so that a key that was withdrawn is gone. It is safe for
// concurrent use.
type Set struct {
	url  string
	http *http.Client
	now  func() time.Time

	mu    sync.Mutex
	keys  map[string]Key
	read  time.Time     // of keys
	keep  time.Duration // from then on
	tried time.Time
}

// New returns a set that has read nothing yet. url is the authority's JWKS; client must follow no redirect.
func New(url string, client *http.Client, now func() time.Time) *Set {
	return &Set{url: url, http: client, now: now, keep: fresh}
}

// Key returns the key of that kid. ok is false for a kid that is unknown after at most one refresh in 10 s, or in the time
// for which the authority lets its keys be kept, if that is less; the error says that there are no keys to look in. A
// refresh that ctx cuts short is used up like any other.
func (s *Set) Key(ctx context.Context, kid string) (k Key, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if k, ok = s.keys[kid]; !ok || now.Sub(s.read) > s.keep {
		s.refresh(ctx, now)
		k, ok = s.keys[kid]
	}
	if s.keys == nil || now.Sub(s.read) > stale {
		return Key{}, false, ErrNoKeys
	}
	return k, ok, nil
}

func (s *Set) refresh(ctx context.Context, now time.Time) {
	if !s.tried.IsZero() && now.Sub(s.tried) < min(atMost, s.keep) {
		return
	}
	s.tried = now
	if keys, keep, err := s.fetch(ctx); err == nil {
		s.keys, s.keep, s.read = keys, keep, now
	}
}

func (s *Set) fetch(ctx context.Context) (map[string]Key, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxJWKS+1))
	if err != nil || resp.StatusCode != http.StatusOK || len(body) > maxJWKS {
		return nil, 0, ErrNoKeys
	}
	keys, err := Parse(body)
	return keys, keepOf(resp.Header.Get("Cache-Control")), err
}

// keepOf reads max-age, which the authority sets to the time that it waits before it signs with a new key.
func keepOf(control string) time.Duration {
	for directive := range strings.SplitSeq(control, ",") {
		age, is := strings.CutPrefix(strings.TrimSpace(directive), "max-age=")
		if seconds, err := strconv.ParseUint(age, 10, 31); is && err == nil {
			return max(soonest, min(fresh, time.Duration(seconds)*time.Second))
		}
	}
	return fresh
}

// Parse takes ES256 signature keys with a kid and a generation, and refuses the whole set when one is not, or when a
// kid is there twice: a set that is not understood is not the authority's.
func Parse(body []byte) (map[string]Key, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil || len(set.Keys) == 0 || len(set.Keys) > 16 {
		return nil, ErrNoKeys
	}
	keys := map[string]Key{}
	for _, raw := range set.Keys {
		kid, k, err := parseKey(raw)
		if _, twice := keys[kid]; err != nil || twice {
			return nil, ErrNoKeys
		}
		keys[kid] = k
	}
	return keys, nil
}

func parseKey(raw []byte) (kid string, k Key, err error) {
	parsed, err := jwk.ParseKey(raw)
	if err != nil {
		return "", k, err
	}
	public, ok := parsed.(jwk.ECDSAPublicKey)
	if !ok || public.Crv() != jwa.P256 || public.KeyUsage() != "sig" || public.Algorithm() != jwa.ES256 || public.KeyID() == "" {
		return "", k, ErrNoKeys
	}
	generation, _ := public.Get("generation")
	number, _ := generation.(float64)
	k.Generation = int64(number)
	k.Public = new(ecdsa.PublicKey)
	if err := public.Raw(k.Public); err != nil || k.Generation < 1 || float64(k.Generation) != number {
		return "", k, ErrNoKeys
	}
	if _, err := k.Public.ECDH(); err != nil { // on the curve
		return "", k, err
	}
	return public.KeyID(), k, nil
}
