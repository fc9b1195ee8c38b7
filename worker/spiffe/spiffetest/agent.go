// Package spiffetest is a SPIFFE Workload API for tests: an agent's Unix socket that speaks go-spiffe's public protocol,
// and the signing keys of its trust domain.
package spiffetest

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

// Agent is a running agent. It is safe for concurrent use.
type Agent struct {
	Socket string
	Domain string           // spiffe:// and the trust domain, as an issuer is configured
	Keys   *jwkstest.Issuer // of the trust domain; its JWKSURL is a bundle endpoint (https_web)

	workload.UnimplementedSpiffeWorkloadAPIServer
	mu     sync.Mutex
	ids    []string // of the workloads behind the socket, the first by default
	cached map[string]string
	answer func() (string, error) // instead
	asked  int
}

// New starts an agent of a trust domain that knows workloads with these paths, such as "/diary".
func New(t testing.TB, domain string, paths ...string) *Agent {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "nw-spiffe-") // a socket's path is short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	a := &Agent{Socket: filepath.Join(dir, "agent.sock"), Domain: "spiffe://" + domain, Keys: jwkstest.New(t), cached: map[string]string{}}
	a.Keys.Publish("one", "use", "jwt-svid")
	for _, p := range paths {
		a.ids = append(a.ids, a.Domain+p)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", a.Socket)
	require.NoError(t, err)
	s := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(s, a)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener) // until it is stopped
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	return a
}

// FetchJWTSVID gives the cached SVID of a workload and audience, as agents do.
func (a *Agent) FetchJWTSVID(ctx context.Context, r *workload.JWTSVIDRequest) (*workload.JWTSVIDResponse, error) {
	if header, _ := metadata.FromIncomingContext(ctx); len(header.Get("workload.spiffe.io")) != 1 {
		return nil, status.Error(codes.InvalidArgument, "security header missing")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	if a.answer != nil {
		token, err := a.answer()
		return &workload.JWTSVIDResponse{Svids: []*workload.JWTSVID{{SpiffeId: a.ids[0], Svid: token}}}, err
	}
	for _, id := range a.ids {
		if r.GetSpiffeId() == "" || r.GetSpiffeId() == id {
			return &workload.JWTSVIDResponse{Svids: []*workload.JWTSVID{{SpiffeId: id, Svid: a.cache(id, r.GetAudience())}}}, nil
		}
	}
	return nil, status.Error(codes.PermissionDenied, "no identity issued")
}

func (a *Agent) cache(id string, audience []string) string {
	name := id + " " + audience[0]
	if a.cached[name] == "" {
		a.cached[name] = a.SVID("one", id, audience...)
	}
	return a.cached[name]
}

// SVID signs a JWT-SVID that lives five minutes, as SPIRE spells it, with the key of that name.
func (a *Agent) SVID(kid, id string, audience ...string) string {
	now := time.Now()
	return a.Keys.TokenBy(kid, map[string]any{"iss": nil, "sub": id, "aud": audience, "iat": now.Unix(), "exp": now.Add(5 * time.Minute).Unix(), "jti": rand.Text()})
}

// Rotate forgets the cached SVIDs: the next question gets a new one.
func (a *Agent) Rotate() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.cached)
}

// Answer makes the agent answer every question so; nil ends it.
func (a *Agent) Answer(with func() (string, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = with
}

// Asked counts the questions.
func (a *Agent) Asked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}
