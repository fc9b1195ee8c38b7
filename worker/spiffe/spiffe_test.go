package spiffe

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nightwarrant/nightwarrant/worker/spiffe/spiffetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const authority = "https://authority.example"

func open(t *testing.T, c Config) *Source {
	t.Helper()
	s, err := Open(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"nothing":       {},
		"no audience":   {Socket: "/run/agent.sock"},
		"no socket":     {Audience: authority},
		"relative":      {Socket: "agent.sock", Audience: authority},
		"id is none":    {Socket: "/run/agent.sock", Audience: authority, ID: "diary"},
		"id of nothing": {Socket: "/run/agent.sock", Audience: authority, ID: "spiffe://"},
	} {
		_, err := Open(t.Context(), c)
		require.ErrorContains(t, err, "spiffe: ", name)
	}
}

// Whatever the agent does, there is an SVID for this audience and id, or an error that repeats nothing of it.
func TestWhatTheAgentMustNotGive(t *testing.T) {
	t.Parallel()
	agent := spiffetest.New(t, "prod.example", "/diary")
	s := open(t, Config{Socket: agent.Socket, Audience: authority, ID: agent.Domain + "/diary"})
	for name, tc := range map[string]struct {
		token string
		err   error
		want  string
	}{
		"no identity":     {"", status.Error(codes.PermissionDenied, "hush"), "no registered identity"},
		"unavailable":     {"", status.Error(codes.Unavailable, "hush"), "Unavailable"},
		"nothing":         {"", nil, "is none"},
		"garbage":         {"a.b.c", nil, "is none"},
		"other audience":  {agent.SVID("one", agent.Domain+"/diary", authority+"/hush"), nil, "is none"},
		"more audiences":  {agent.SVID("one", agent.Domain+"/diary", authority, "https://hush.example"), nil, "addressed to others"},
		"other workload":  {agent.SVID("one", agent.Domain+"/hush", authority), nil, "another workload"},
		"too large":       {agent.SVID("one", agent.Domain+"/"+strings.Repeat("hush", maxToken), authority), nil, ""},
		"no trust domain": {agent.SVID("one", "hush", authority), nil, "is none"},
	} {
		agent.Answer(func() (string, error) { return tc.token, tc.err })
		_, err := s.Assertion(t.Context())
		require.ErrorIs(t, err, ErrNoSVID, name)
		require.ErrorContains(t, err, tc.want, name)
		require.NotContains(t, err.Error(), "hush", name)
	}
	agent.Answer(nil)
	_, err := s.Assertion(t.Context())
	require.NoError(t, err)
}

func TestAnAgentThatIsNotThereOrDoesNotAnswer(t *testing.T) {
	t.Parallel()
	nowhere := open(t, Config{Socket: filepath.Join(t.TempDir(), "agent.sock"), Audience: authority})
	_, err := nowhere.Assertion(t.Context())
	require.ErrorIs(t, err, ErrNoSVID)

	agent := spiffetest.New(t, "prod.example", "/diary")
	asked, release := make(chan struct{}), make(chan struct{})
	agent.Answer(func() (string, error) {
		close(asked)
		<-release
		return "", nil
	})
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err = open(t, Config{Socket: agent.Socket, Audience: authority}).Assertion(ctx)
	require.ErrorIs(t, err, ErrNoSVID)
}

func TestAssertion(t *testing.T) {
	t.Parallel()
	agent := spiffetest.New(t, "prod.example", "/first", "/diary")
	first := open(t, Config{Socket: agent.Socket, Audience: authority})
	diary := open(t, Config{Socket: agent.Socket, Audience: authority, ID: agent.Domain + "/diary"})
	stranger := open(t, Config{Socket: agent.Socket, Audience: authority, ID: agent.Domain + "/stranger"})
	a, err := first.Assertion(t.Context())
	require.NoError(t, err)
	b, err := diary.Assertion(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, a, b)
	again, err := diary.Assertion(t.Context())
	require.NoError(t, err)
	require.Equal(t, b, again, "agents keep what they gave")
	agent.Rotate()
	rotated, err := diary.Assertion(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, b, rotated)
	_, err = stranger.Assertion(t.Context())
	require.ErrorIs(t, err, ErrNoSVID)
	require.Equal(t, 5, agent.Asked())
}
