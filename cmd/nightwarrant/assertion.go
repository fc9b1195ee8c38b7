package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/worker/spiffe"
)

// assertion is where a process has its workload assertion from.
type assertion struct {
	read  func(context.Context) (string, error)
	kind  string // of client assertion
	close func()
}

// assertionOf opens what the file names. authority is the audience that assertions must have.
func assertionOf(ctx context.Context, of config.Identity, authority string) (assertion, error) {
	if of.AssertionFile != "" {
		return assertion{assertionFrom(of.AssertionFile), api.AssertionJWTBearer, func() {}}, nil
	}
	c := of.Assertion.SPIFFE
	source, err := spiffe.Open(ctx, spiffe.Config{Socket: c.Socket, Audience: authority, ID: c.ID})
	if err != nil {
		return assertion{}, config.Wrong("assertion.spiffe", "cannot be used: %s", err)
	}
	return assertion{source.Assertion, api.AssertionJWTSPIFFE, func() { _ = source.Close() }}, nil // the process ends
}

const maxAssertion = 16 << 10

// assertionFrom reads a projected token, anew each time because it is replaced.
func assertionFrom(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close() //nolint:errcheck // it was only read
		text, err := io.ReadAll(io.LimitReader(f, maxAssertion+1))
		if err != nil {
			return "", err
		}
		token := strings.TrimSpace(string(text))
		if token == "" || len(text) > maxAssertion {
			return "", errors.New("the assertion file is empty or too large")
		}
		return token, nil
	}
}
