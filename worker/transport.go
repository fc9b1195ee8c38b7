package worker

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Key is a worker's key. It lives in memory only: it does not print, log, marshal or gob.
type Key = capability.Key

// NewKey makes a new P-256 key.
func NewKey() (*Key, error) { return capability.GenerateKey() }

// Why a Transport did not send a request; compare with errors.Is.
var (
	ErrBody       = errors.New("worker: the body can be read only once, so it cannot be sent again: set Request.GetBody")
	ErrRedirected = errors.New("worker: a proof follows no redirect")
	ErrNotDPoP    = errors.New("worker: a proof goes with no other authorization than DPoP")
)

const (
	maxOrigins   = 256
	maxNonce     = 512      // bytes of one that is kept
	maxChallenge = 64 << 10 // bytes of an answer that is looked into
	smallSkew    = 2 * time.Second
	largeSkew    = 12 * time.Hour
)

// Transport is an http.RoundTripper that proves a key with every request (RFC 9449), for clients that know OAuth and not
// us: with x/oauth2, say, or one's own http.Client. What it needs of a request: Authorization with the scheme DPoP or
// none, no proof yet, and a body that can be sent twice (GetBody, which http.NewRequest sets for bytes and strings).
//
// It keeps the nonce that each origin gave last, so that in steady state a request is sent once. A server that wants
// another nonce has done nothing: the same request is sent once more with a new proof, and never a third time. It sends
// nothing that follows a redirect, and does not change what it is given: neither the request nor Base.
//
// It is safe for concurrent use and must not be copied after its first request.
type Transport struct {
	Key  *Key
	Base http.RoundTripper // nil is http.DefaultTransport
	Now  func() time.Time  // nil is time.Now

	mu      sync.Mutex
	origins map[string]origin
}

// origin is what a server said last.
type origin struct {
	nonce string
	skew  time.Duration // by its Date: a hint for iat, and for nothing else
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close() //nolint:errcheck // what is sent is read anew
	}
	token, err := sendable(r)
	if err != nil {
		return nil, err
	}
	resp, nonce, err := t.once(r, token)
	if err != nil || !t.mayRetry(r, nonce) {
		return resp, err
	}
	wanted, err := wantsNonce(resp)
	if err != nil || !wanted {
		return resp, err
	}
	_ = resp.Body.Close() // nothing more of it is needed
	resp, _, err = t.once(r, token)
	return resp, err
}

// sendable says why a request is not sent, before anything is, and what its proof is bound to.
func sendable(r *http.Request) (capability.Token, error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case r.Response != nil: // of the server that redirected here
		return "", ErrRedirected
	case r.Body != nil && r.Body != http.NoBody && r.GetBody == nil:
		return "", ErrBody
	case len(r.Header.Values("Authorization")) > 1 || scheme != "" && (!strings.EqualFold(scheme, "DPoP") || token == "") || len(r.Header.Values(api.HeaderProof)) > 0:
		return "", ErrNotDPoP
	}
	return capability.Token(token), nil
}

// once sends a copy of the request with a new proof, and says which nonce that had.
func (t *Transport) once(r *http.Request, token capability.Token) (*http.Response, string, error) {
	at := r.URL.Scheme + "://" + r.URL.Host
	known := t.known(at)
	proof, err := capability.NewProof(t.Key, capability.ProofParams{Method: cmp.Or(r.Method, http.MethodGet), URL: r.URL.Scheme + "://" + r.URL.Host + r.URL.EscapedPath(),
		Nonce: known.nonce, AccessToken: token, Now: t.now().Add(known.skew)})
	if err != nil {
		return nil, "", fmt.Errorf("worker: no proof can be made: %w", err)
	}
	sent := r.Clone(r.Context())
	sent.Header.Set(api.HeaderProof, proof)
	if sent.Body != nil && sent.Body != http.NoBody {
		if sent.Body, err = r.GetBody(); err != nil {
			return nil, "", fmt.Errorf("worker: the body: %w", err)
		}
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	resp, err := base.RoundTrip(sent)
	if err != nil {
		return nil, "", err
	}
	t.learn(at, known, resp)
	return resp, known.nonce, nil
}

func (t *Transport) known(at string) origin {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.origins[at]
}

// learn keeps what an answer says for the next request to its origin.
func (t *Transport) learn(at string, known origin, resp *http.Response) {
	if n := resp.Header.Get(api.HeaderNonce); n != "" && len(n) <= maxNonce {
		known.nonce = n
	}
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		known.skew = date.Sub(t.now())
		if d := known.skew.Abs(); d < smallSkew || d > largeSkew {
			known.skew = 0
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.origins == nil || len(t.origins) >= maxOrigins && t.origins[at] == (origin{}) {
		t.origins = map[string]origin{}
	}
	t.origins[at] = known
}

// mayRetry tells whether the server gave another nonce than the one that was sent.
func (t *Transport) mayRetry(r *http.Request, sent string) bool {
	now := t.known(r.URL.Scheme + "://" + r.URL.Host).nonce
	return now != sent && r.Context().Err() == nil
}

func (t *Transport) now() time.Time {
	if t.Now == nil {
		return time.Now()
	}
	return t.Now()
}

// wantsNonce tells a challenge: 401 of the scheme DPoP at resources (RFC 9449 §9), 400 with its code at token endpoints
// (§8). The answer can be read afterwards as if nobody had.
func wantsNonce(resp *http.Response) (bool, error) {
	switch {
	case resp.Header.Get(api.HeaderNonce) == "":
		return false, nil
	case resp.StatusCode == http.StatusUnauthorized:
		return slices.ContainsFunc(resp.Header.Values("WWW-Authenticate"), isChallenge), nil
	case resp.StatusCode != http.StatusBadRequest:
		return false, nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxChallenge))
	if err != nil {
		return false, errors.Join(err, resp.Body.Close())
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	var body struct {
		Error string `json:"error"`
	}
	return json.Unmarshal(head, &body) == nil && body.Error == string(api.UseDPoPNonce), nil
}

func isChallenge(challenge string) bool {
	scheme, parameters, _ := strings.Cut(challenge, " ")
	return strings.EqualFold(scheme, "DPoP") && strings.Contains(parameters, `error="use_dpop_nonce"`)
}
