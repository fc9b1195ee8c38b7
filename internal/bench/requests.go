package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/dev"
)

const (
	assertionLife = 10 * time.Minute
	perNonce      = 1000 // requests; a nonce may serve many proofs while it is fresh
)

// target is the replica, and who claims there.
type target struct {
	origin  *url.URL
	replica string // base URL
	address string // of the same
	issuer  *dev.Issuer
	claims  map[string]any // of the workload's assertions
}

func newTarget(origin, replica string, issuer *dev.Issuer) (t target, err error) {
	t = target{replica: replica, issuer: issuer, claims: map[string]any{
		"sub": "system:serviceaccount:jobs:bookkeeper", "aud": []string{origin},
		"kubernetes.io": map[string]any{"namespace": "jobs", "serviceaccount": map[string]any{"name": "bookkeeper"}, "pod": map[string]any{"name": "bookkeeper-1"}}}}
	if t.origin, err = url.Parse(origin); err != nil {
		return t, err
	}
	at, err := url.Parse(replica)
	if err != nil {
		return t, err
	}
	t.address = at.Host
	return t, nil
}

// requests makes a claim of each run, ready to be written: a key, a proof and an
// assertion of its own, so that nothing of it can be remembered by the server.
func (t target) requests(ctx context.Context, runs []string) ([][]byte, error) {
	out := make([][]byte, len(runs))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.NumCPU())
	for from := 0; from < len(runs); from += perNonce {
		to := min(from+perNonce, len(runs))
		g.Go(func() error {
			nonce, err := t.nonce(ctx)
			for i := from; i < to && err == nil; i++ {
				out[i], err = t.request(runs[i], nonce, time.Now())
			}
			return err
		})
	}
	return out, g.Wait()
}

// nonce is what every answer carries.
func (t target) nonce(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, t.replica+api.PathReadiness, nil)
	if err != nil {
		return "", err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	_ = a.Body.Close() // only a header counts
	if nonce := a.Header.Get(api.HeaderNonce); nonce != "" {
		return nonce, nil
	}
	return "", errors.New("the replica gave no nonce")
}

func (t target) request(reference, nonce string, now time.Time) ([]byte, error) {
	key, err := capability.GenerateKey()
	if err != nil {
		return nil, err
	}
	proof, err := capability.NewProof(key, capability.ProofParams{Method: http.MethodPost, URL: t.origin.String() + api.PathToken, Nonce: nonce, Now: now})
	if err != nil {
		return nil, err
	}
	assertion, err := t.issuer.Token(t.claims, now, assertionLife)
	if err != nil {
		return nil, err
	}
	form := url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {reference}, "subject_token_type": {api.TokenTypeRunReference},
		"client_id": {"books"}, "client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}}.Encode()
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n%s: %s\r\n\r\n%s",
		api.PathToken, t.origin.Host, len(form), api.HeaderProof, proof, form), nil
}
