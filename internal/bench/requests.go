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

// target is the replica, and who asks there.
type target struct {
	origin  *url.URL
	replica string // base URL
	address string // of the same
	issuer  *dev.Issuer
}

func newTarget(origin, replica string, issuer *dev.Issuer) (t target, err error) {
	t = target{replica: replica, issuer: issuer}
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

// assertion is a fresh token of a workload of that name.
func (t target) assertion(namespace, account string, now time.Time) (string, error) {
	return t.issuer.Token(map[string]any{"sub": "system:serviceaccount:" + namespace + ":" + account, "aud": []string{t.origin.String()},
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]any{"name": account}, "pod": map[string]any{"name": account + "-bench"}}}, now, assertionLife)
}

// each makes n requests, ready to be written. f makes one of them, with a nonce of the replica.
func (t target) each(ctx context.Context, n int, f func(i int, nonce string, now time.Time) ([]byte, error)) ([][]byte, error) {
	out := make([][]byte, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.NumCPU())
	for from := 0; from < n; from += perNonce {
		to := min(from+perNonce, n)
		g.Go(func() error {
			nonce, err := t.nonce(ctx)
			for i := from; i < to && err == nil; i++ {
				out[i], err = f(i, nonce, time.Now())
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

// claims makes a claim of each run: a key, a proof and an assertion of its own, so
// that nothing of it can be remembered by the server. The keys come with them.
func (t target) claims(ctx context.Context, runs []string) ([][]byte, []*capability.Key, error) {
	keys := make([]*capability.Key, len(runs))
	out, err := t.each(ctx, len(runs), func(i int, nonce string, now time.Time) (raw []byte, err error) {
		if keys[i], err = capability.GenerateKey(); err != nil {
			return nil, err
		}
		return t.claim(runs[i], keys[i], nonce, now)
	})
	return out, keys, err
}

func (t target) claim(reference string, key *capability.Key, nonce string, now time.Time) ([]byte, error) {
	assertion, err := t.assertion("jobs", "bookkeeper", now)
	if err != nil {
		return nil, err
	}
	return t.form(key, nonce, now, url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {reference}, "subject_token_type": {api.TokenTypeRunReference},
		"client_id": {"books"}, "client_assertion_type": {api.AssertionJWTBearer}, "client_assertion": {assertion}})
}

// form is a request to the token endpoint.
func (t target) form(key *capability.Key, nonce string, now time.Time, values url.Values) ([]byte, error) {
	proof, err := capability.NewProof(key, capability.ProofParams{Method: http.MethodPost, URL: t.origin.String() + api.PathToken, Nonce: nonce, Now: now})
	return t.post(api.PathToken, "application/x-www-form-urlencoded", fmt.Sprintf("%s: %s\r\n", api.HeaderProof, proof), []byte(values.Encode())), err
}

// post spells a request; each header ends its own line.
func (t target) post(path, contentType, headers string, body []byte) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s", path, t.origin.Host, contentType, len(body), headers, body)
}
