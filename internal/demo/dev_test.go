package demo

import (
	"context"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/localstack"
)

// What keeps a stack from coming up is said at once, in one sentence, and before anything has started.
func TestDevIsKeptFromStarting(t *testing.T) {
	t.Parallel()
	dev := func(t *testing.T, dir string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // what ends by itself within some seconds is waited for
		defer cancel()
		return Dev(ctx, Options{Binary: "/nonexistent", Dir: dir, Env: func(string) string { return "" }}, io.Discard)
	}

	t.Run("by another stack in the same directory", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		lock, err := localstack.Lock(dir)
		require.NoError(t, err)
		err = dev(t, dir)
		require.ErrorIs(t, err, localstack.ErrInUse)
		assert.ErrorContains(t, err, "name another directory with --dir")
		assert.NoFileExists(t, dir+"/ports.json")
		require.NoError(t, lock.Close())
		lock, err = localstack.Lock(dir)
		require.NoError(t, err, "it is free again")
		require.NoError(t, lock.Close())
	})

	t.Run("by a program at one of its ports", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		s, err := New(Options{Dir: dir})
		require.NoError(t, err)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.ports.Hook))) //nolint:noctx // it is closed below
		require.NoError(t, err)
		assert.EqualError(t, dev(t, dir), "port "+strconv.Itoa(s.ports.Hook)+" of 127.0.0.1, which this stack keeps, is taken by another program: end that one, or name another directory with --dir")
		assert.NoDirExists(t, dir+"/postgres")
		require.NoError(t, l.Close())
	})
}

// A server that the environment names is looked at before anything is made there.
func TestWhatTheEnvironmentNamesIsLookedAt(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	for name, c := range map[string]struct {
		env  map[string]string
		says string
	}{
		"no URL":           {map[string]string{EnvDatabase: "nonsense"}, "must be a postgres:// URL"},
		"another protocol": {map[string]string{EnvDatabase: "http://admin@" + nobody}, "must be a postgres:// URL"},
		"nobody's name":    {map[string]string{EnvDatabase: "postgres://" + nobody}, "with the name of a role"},
		"nobody there":     {map[string]string{EnvDatabase: "postgres://admin:sesame@" + nobody + "/postgres"}, "what " + EnvDatabase + " names cannot be used"},
		"NATS, half of it": {map[string]string{EnvNATS: "nats://127.0.0.1:4222"}, EnvNATS + " needs " + EnvMonitor},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			s, err := New(Options{Dir: t.TempDir(), Env: func(name string) string { return c.env[name] }})
			require.NoError(t, err)
			err = s.Start(ctx)
			require.ErrorContains(t, err, c.says)
			assert.NotContains(t, err.Error(), "sesame")
			assert.NoError(t, s.leave(), "there is nothing to take back")
		})
	}
}

// The files of the scheduler and the workers take an address without a user in it.
func TestAUserInTheAddressOfNATSIsKeptApart(t *testing.T) {
	t.Parallel()
	for given, c := range map[string]struct{ at, user, password string }{
		"nats://127.0.0.1:4222":              {at: "nats://127.0.0.1:4222"},
		"nats://ada@127.0.0.1:4222":          {"nats://127.0.0.1:4222", "ada", ""},
		"nats://ada:open%20ses@queue.x:4222": {"nats://queue.x:4222", "ada", "open ses"},
	} {
		s, err := New(Options{Dir: t.TempDir(), Env: func(name string) string { return map[string]string{EnvNATS: given}[name] }})
		require.NoError(t, err)
		at, user, password := s.existingQueue()
		assert.Equal(t, c, struct{ at, user, password string }{at, user, password}, given)
		worker := s.workerConfig("worker-1", "bookkeeper", at, "q")
		assert.Equal(t, []string{c.at, c.user, c.password}, []string{worker.NATS, worker.User, worker.Password}, given)
		assert.NoError(t, s.leave())
	}
}
