// Package dpopclient is the one HTTP client of workers, guards and reporters: it
// proves possession of a key with every request (RFC 9449), keeps the nonces
// that servers hand out, and tells a refusal from an unknown outcome.
package dpopclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const (
	maxAnswer   = 1 << 20 // bytes of a body that is read
	callTimeout = 10 * time.Second
)

// ErrNoAnswer says that there is no answer that can be relied on: the request
// was perhaps not sent, perhaps answered and the answer lost. Whether it took
// effect is unknown. Compare with errors.Is.
var ErrNoAnswer = errors.New("there is no answer that can be relied on")

// Client calls one server. It is safe for concurrent use and must not be copied
// after its first call. One Client holds one nonce: make one for each origin,
// and for each guard.
type Client struct {
	Key     *capability.Key
	HTTP    *http.Client     // nil is http.DefaultClient; redirects are never followed
	BaseURL string           // such as https://authority.example or a guard's URI; paths are appended
	Timeout time.Duration    // of one call with its one retry; 0 is 10 s
	Now     func() time.Time // nil is time.Now

	mu    sync.Mutex
	nonce string
}

// SetNonce gives the nonce for the next proof, such as the one that came with an
// effect capability.
func (c *Client) SetNonce(nonce string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if nonce != "" {
		c.nonce = nonce
	}
}

// Nonce is the nonce that the server gave last.
func (c *Client) Nonce() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nonce
}

// PostForm posts a form with a proof that names no token, as token endpoints
// want it (RFC 9449 §5), and decodes the answer into out.
//
// The error of PostForm and JSON is nil exactly when out was filled from a 2xx
// answer. It is an *api.Refusal when the server refused, and wraps ErrNoAnswer
// otherwise; [Unknown] tells which errors leave the outcome open.
func (c *Client) PostForm(ctx context.Context, path string, form url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodPost, path: path, body: []byte(form.Encode()),
		contentType: "application/x-www-form-urlencoded"}, out)
}

// JSON sends in as JSON under the DPoP scheme (RFC 9449 §7.1) and decodes the
// answer into out. A nil in sends no body; a nil out reads none.
func (c *Client) JSON(ctx context.Context, method, path string, token capability.Token, in, out any) error {
	r := request{method: method, path: path, token: token}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("%w: the request cannot be encoded", ErrNoAnswer)
		}
		r.body, r.contentType = body, "application/json"
	}
	return c.call(ctx, r, out)
}

type request struct {
	method, path, contentType string
	token                     capability.Token
	body                      []byte
}

// call repeats once, and only on a nonce challenge, which says that nothing
// happened (RFC 9449 §8).
func (c *Client) call(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, callTimeout))
	defer cancel()
	challenged, err := c.once(ctx, r, out)
	if challenged {
		_, err = c.once(ctx, r, out)
	}
	return err
}

func (c *Client) once(ctx context.Context, r request, out any) (challenged bool, err error) {
	req, err := c.prepare(ctx, r)
	if err != nil {
		return false, err
	}
	resp, err := c.client().Do(req)
	if err != nil {
		return false, noAnswer(err)
	}
	defer resp.Body.Close()
	c.SetNonce(resp.Header.Get(api.HeaderNonce))
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return false, noAnswer(err)
	case len(body) > maxAnswer:
		return false, fmt.Errorf("%w: it is too large", ErrNoAnswer)
	case resp.StatusCode >= 200 && resp.StatusCode <= 299:
		return false, decode(body, out)
	}
	refusal := refusalOf(resp, body)
	return isChallenge(r, resp, refusal), refusal
}

func (c *Client) prepare(ctx context.Context, r request) (*http.Request, error) {
	target := strings.TrimSuffix(c.BaseURL, "/") + r.path
	proof, err := capability.NewProof(c.Key, capability.ProofParams{
		Method: r.method, URL: target, Nonce: c.Nonce(), AccessToken: r.token, Now: c.now()})
	if err != nil {
		return nil, fmt.Errorf("%w: no proof can be made: %w", ErrNoAnswer, err)
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%w: the URL cannot be read", ErrNoAnswer)
	}
	req.Header.Set(api.HeaderProof, proof)
	req.Header.Set("Accept", "application/json, application/problem+json")
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if !r.token.IsZero() {
		req.Header.Set("Authorization", "DPoP "+r.token.Reveal())
	}
	return req, nil
}

// client follows no redirect: it would carry a capability to wherever the answer points.
func (c *Client) client() *http.Client {
	plain := http.Client{}
	if c.HTTP != nil {
		plain = *c.HTTP
	}
	plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	plain.Jar = nil
	return &plain
}

func (c *Client) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func decode(body []byte, out any) error {
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%w: it is not the JSON that was expected", ErrNoAnswer)
	}
	return nil
}

// noAnswer keeps the cause but not the URL that *url.Error repeats.
func noAnswer(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}
