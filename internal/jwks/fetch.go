package jwks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

const maxBody = 256 << 10

// newClient follows no redirect, asks no proxy, keeps no connection and no
// cookie, and sends no credential.
func newClient(i Issuer) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy:                  nil,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: 32 << 10,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: i.Roots},
		},
	}
}

// fetchSet asks the issuer for its keys. ctx carries the deadline.
func fetchSet(ctx context.Context, client *http.Client, i Issuer) (map[string]key, error) {
	if i.File != "" {
		body, err := readFile(i.File)
		if err != nil {
			return nil, err
		}
		return parseSet(body, i)
	}
	address := i.JWKSURL
	if address == "" {
		var err error
		if address, err = discover(ctx, client, i); err != nil {
			return nil, err
		}
	}
	body, err := get(ctx, client, address)
	if err != nil {
		return nil, err
	}
	return parseSet(body, i)
}

// discover reads OpenID Connect Discovery 1.0 §4. The document must name the
// issuer byte for byte and keys on its own origin: other places are contacted
// only when an operator has written them down.
func discover(ctx context.Context, client *http.Client, i Issuer) (string, error) {
	body, err := get(ctx, client, strings.TrimSuffix(i.URL, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return "", err
	}
	doc, err := decodeObject(body)
	if err != nil {
		return "", fmt.Errorf("discovery: %w", err)
	}
	if doc["issuer"] != i.URL {
		return "", errors.New("discovery: the document names another issuer")
	}
	address, _ := doc["jwks_uri"].(string)
	if checkURL(address) != nil || !sameOrigin(address, i.URL) {
		return "", errors.New("discovery: the key address is not on the issuer's origin; configure it explicitly")
	}
	return address, nil
}

// readFile reads a small regular file; anything else could make a refresh wait for ever.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errors.New("file: it cannot be opened")
	}
	defer f.Close() //nolint:errcheck // it was only read
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.New("file: it is not a regular file")
	}
	body, err := io.ReadAll(io.LimitReader(f, maxBody+1))
	if err != nil {
		return nil, errors.New("file: it cannot be read")
	}
	if len(body) > maxBody {
		return nil, errors.New("file: it is too large")
	}
	return body, nil
}

func get(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("fetch: bad address")
	}
	req.Header.Set("Accept", "application/json, application/jwk-set+json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch: status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	if len(body) > maxBody {
		return nil, errors.New("fetch: the answer is too large")
	}
	return body, nil
}

// deadlineOnly keeps the caller's deadline but not its cancellation, and adds a
// bound of its own: a caller that goes away must not be able to spend the one
// refresh that everybody else is waiting for.
func deadlineOnly(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	until := time.Now().Add(bound)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	return context.WithDeadline(context.WithoutCancel(ctx), until)
}
