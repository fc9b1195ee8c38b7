// Package spiffe takes the workload assertion of a worker, a guard or a reporter from a SPIFFE Workload API (its
// agent's socket) instead of a file. It stands by itself because it brings gRPC, which who reads a file must not inherit.
package spiffe

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	timeout  = 5 * time.Second // of one question to the agent, which is on this machine
	maxToken = 16 << 10        // bytes, as the authority takes it
)

// ErrNoSVID says that the agent gave no JWT-SVID that could be used. Compare with errors.Is.
var ErrNoSVID = errors.New("the Workload API gave no JWT-SVID")

// Config of a Source.
type Config struct {
	Socket   string // absolute path of the agent's Unix socket
	Audience string // the authority's issuer URL, which must be the SVID's only audience
	ID       string // SPIFFE id to ask for; optional, but a workload that has several must say which
}

// Source asks a Workload API for JWT-SVIDs. It is safe for concurrent use.
type Source struct {
	client *workloadapi.Client
	params jwtsvid.Params
}

// Open checks the configuration and contacts nobody: the agent may start later. Close the source when nobody asks any more.
func Open(ctx context.Context, c Config) (*Source, error) {
	if !filepath.IsAbs(c.Socket) || c.Audience == "" {
		return nil, errors.New("spiffe: the absolute path of a socket and an audience are needed")
	}
	s := &Source{params: jwtsvid.Params{Audience: c.Audience}}
	var err error
	if c.ID != "" {
		if s.params.Subject, err = spiffeid.FromString(c.ID); err != nil {
			return nil, fmt.Errorf("spiffe: the id: %w", err)
		}
	}
	if s.client, err = workloadapi.New(ctx, workloadapi.WithAddr("unix://"+c.Socket)); err != nil {
		return nil, fmt.Errorf("spiffe: the socket: %w", err)
	}
	return s, nil
}

// Close ends the connection to the agent.
func (s *Source) Close() error { return s.client.Close() }

// Assertion is the present JWT-SVID, asked for anew each time: the agent keeps it and replaces it when half of its life
// is over. It fits worker.Config and guards.Config.
func (s *Source) Assertion(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	svid, err := s.client.FetchJWTSVID(ctx, s.params)
	if err != nil {
		return "", refusal(err)
	}
	token := svid.Marshal()
	switch {
	case len(token) > maxToken:
		return "", fmt.Errorf("%w: it is too large", ErrNoSVID)
	case len(svid.Audience) != 1:
		return "", fmt.Errorf("%w: it is addressed to others, too", ErrNoSVID)
	case !s.params.Subject.IsZero() && svid.ID != s.params.Subject:
		return "", fmt.Errorf("%w: it names another workload", ErrNoSVID)
	}
	return token, nil
}

// refusal keeps the class of an agent's answer and none of its text.
func refusal(err error) error {
	s, ok := status.FromError(err)
	switch {
	case !ok:
		return fmt.Errorf("%w: what it gave is none", ErrNoSVID)
	case s.Code() == codes.PermissionDenied:
		return fmt.Errorf("%w: this process has no registered identity", ErrNoSVID)
	}
	return fmt.Errorf("%w: %s", ErrNoSVID, s.Code())
}
