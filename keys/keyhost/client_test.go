package keyhost

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A caller that finds every connection in use waits as long as it says, and is told that nothing is wrong.
func TestACallerTooManyIsBusy(t *testing.T) {
	t.Parallel()
	c := NewClient(filepath.Join(t.TempDir(), "none"), os.Getuid())
	for range maxAtOnce {
		c.places <- struct{}{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	e, ok := errors.AsType[*Error](c.Health(ctx))
	require.True(t, ok)
	assert.Equal(t, KeyBusy, e.Code)
	assert.False(t, e.Suspect())
	<-c.places
	e, ok = errors.AsType[*Error](c.Health(t.Context()))
	require.True(t, ok)
	assert.Equal(t, TokenUnavailable, e.Code, "nobody is there")
	assert.Len(t, c.places, maxAtOnce-1, "and the place is free again")
}

// A host that goes away while it is asked is asked once more, as whoever took its place.
func TestAHostThatGoesAwayIsAskedOnceMore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	asked := make(chan int, 1)
	go func() {
		n := 0
		defer func() { asked <- n }()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var q question
			if receive(conn, &q) == nil && n > 0 {
				_ = send(conn, answer{})
			}
			_ = conn.Close()
			n++
		}
	}()
	c := NewClient(path, os.Getuid())
	require.NoError(t, c.Health(t.Context()), "the first goes away, the second answers")
	for range 3 {
		dead, other := net.Pipe()
		require.NoError(t, other.Close())
		c.idle <- newLink(dead)
	}
	require.NoError(t, c.Health(t.Context()), "the kept ones have gone, the third answers")
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	assert.Equal(t, 3, <-asked)
	require.Error(t, c.Health(t.Context()))
}
