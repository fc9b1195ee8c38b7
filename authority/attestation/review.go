package attestation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Reviewer asks an issuer whether an assertion that verified still stands. Its
// errors are *Refusal.
type Reviewer interface {
	Review(ctx context.Context, compact string, a Assertion) error
	// Reachable returns nil when reviews can be had.
	Reachable(ctx context.Context, audience string) error
}

const (
	reviewPath    = "/apis/authentication.k8s.io/v1/tokenreviews"
	reviewTimeout = 2 * time.Second
	reviewsAtOnce = 16
	maxReview     = 64 << 10
	maxReviewer   = 16 << 10
)

// TokenReviewConfig configures a TokenReview.
type TokenReviewConfig struct {
	URL       string         // of the API server, an origin; https, or http on a loopback address
	TokenFile string         // of a service account that may create tokenreviews; read anew each time
	Roots     *x509.CertPool // nil means the system's
}

// TokenReview asks a Kubernetes API server (authentication.k8s.io/v1): what a
// token is bound to may be gone before it expires. It is safe for concurrent use.
type TokenReview struct {
	url, tokenFile string
	client         *http.Client
	slots          chan struct{}
}

// NewTokenReview contacts nobody.
func NewTokenReview(c TokenReviewConfig) (*TokenReview, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(c.URL, "?#") {
		return nil, errors.New("attestation: the API server must be an origin")
	}
	if c.TokenFile == "" {
		return nil, errors.New("attestation: a token for the API server is needed")
	}
	return &TokenReview{url: c.URL + reviewPath, tokenFile: c.TokenFile, slots: make(chan struct{}, reviewsAtOnce), client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{Proxy: nil, MaxConnsPerHost: reviewsAtOnce, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 32 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots}},
	}}, nil
}

// Close ends its idle connections.
func (r *TokenReview) Close() { r.client.CloseIdleConnections() }

// tokenReview is what of authentication.k8s.io/v1 is asked and believed.
type tokenReview struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Spec       reviewSpec   `json:"spec"`
	Status     reviewStatus `json:"status,omitzero"`
}

type reviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type reviewStatus struct {
	Authenticated bool       `json:"authenticated"`
	Audiences     []string   `json:"audiences"`
	Error         string     `json:"error"`
	User          reviewUser `json:"user"`
}

type reviewUser struct {
	Username string              `json:"username"`
	Extra    map[string][]string `json:"extra"`
}

const (
	reviewVersion = "authentication.k8s.io/v1"
	reviewKind    = "TokenReview"
	extraPod      = "authentication.kubernetes.io/pod-uid"
)

// Review implements Reviewer. An API server that does not answer in time, or not
// as it should, is Unavailable; one that does not vouch for exactly this token,
// audience and pod refuses it.
func (r *TokenReview) Review(ctx context.Context, compact string, a Assertion) error {
	s, err := r.ask(ctx, compact, a.Audience)
	switch {
	case err != nil:
		return &Refusal{Reason: Unavailable, Sentence: "The workload assertion could not be reviewed by its cluster.", cause: err}
	case !s.Authenticated || s.Error != "":
		return withdrawn()
	case !slices.Contains(s.Audiences, a.Audience): // empty: the server ignored what was asked
		return withdrawn()
	case s.User.Username != a.Subject || a.Pod() != "" && !slices.Equal(s.User.Extra[extraPod], []string{a.Pod()}):
		return withdrawn()
	}
	return nil
}

func withdrawn() *Refusal {
	return &Refusal{Reason: Withdrawn, Sentence: "The workload assertion does not stand any more: its cluster does not vouch for it."}
}

// Reachable implements Reviewer. It asks about a token that nobody signed, and wants to hear that.
func (r *TokenReview) Reachable(ctx context.Context, audience string) error {
	s, err := r.ask(ctx, "canary", audience)
	if err == nil && s.Authenticated {
		err = errors.New("token review: the server vouches for anything")
	}
	return err
}

// ask does not wait for a free slot: whoever floods us must not flood the API
// server, nor keep others waiting for it.
func (r *TokenReview) ask(ctx context.Context, token, audience string) (reviewStatus, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	default:
		return reviewStatus{}, errors.New("token review: too many at once")
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	req, err := r.request(ctx, token, audience)
	if err != nil {
		return reviewStatus{}, err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return reviewStatus{}, fmt.Errorf("token review: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxReview+1))
	var answer tokenReview
	switch {
	case err != nil:
		return reviewStatus{}, fmt.Errorf("token review: %w", err)
	case resp.StatusCode != http.StatusCreated && resp.StatusCode != http.StatusOK:
		return reviewStatus{}, fmt.Errorf("token review: status %d", resp.StatusCode)
	case len(body) > maxReview || json.Unmarshal(body, &answer) != nil || answer.APIVersion != reviewVersion || answer.Kind != reviewKind:
		return reviewStatus{}, errors.New("token review: the answer is none")
	}
	return answer.Status, nil
}

func (r *TokenReview) request(ctx context.Context, token, audience string) (*http.Request, error) {
	bearer, err := readBearer(r.tokenFile)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(tokenReview{APIVersion: reviewVersion, Kind: reviewKind, Spec: reviewSpec{token, []string{audience}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("token review: bad address")
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	return req, nil
}

func readBearer(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", errors.New("token review: our own token cannot be read")
	}
	defer f.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(f, maxReviewer+1))
	token := strings.TrimSpace(string(text))
	if err != nil || token == "" || len(text) > maxReviewer || strings.ContainsAny(token, " \t\r\n") {
		return "", errors.New("token review: our own token cannot be read")
	}
	return token, nil
}
