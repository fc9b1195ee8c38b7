package client_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/readiness/client"
)

// questions counts those that were begun. When the next one begins, the answer to the last has been dealt with.
type questions struct {
	http.Transport
	begun atomic.Int64
}

func (q *questions) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == api.PathReadiness {
		q.begun.Add(1)
	}
	return q.Transport.RoundTrip(r)
}

// next waits until a question that begins from now on has been answered.
func (q *questions) next(t *testing.T) {
	t.Helper()
	now := q.begun.Load()
	require.Eventually(t, func() bool { return q.begun.Load() >= now+2 }, 20*time.Second, time.Millisecond)
}

// An explicit close is seen with the first question after the authority knows it, and a reopening likewise.
func TestAgainstTheAuthority(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	q := &questions{}
	product, err := client.New(client.Config{Issuer: h.URL, Every: 100 * time.Millisecond, HTTP: &http.Client{Transport: q}})
	require.NoError(t, err)
	require.False(t, product.State().Open())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		product.Run(ctx)
	}()
	defer func() {
		stop()
		<-done
		assert.Equal(t, "stopped", product.State().Why())
	}()

	q.next(t)
	before := product.State()
	require.True(t, before.Open(), before.Why())

	h.Close()
	h.See()
	q.next(t)
	closed := product.State()
	assert.False(t, closed.Open())
	assert.Equal(t, "queue: unhealthy", closed.Why())
	assert.Equal(t, before.Epoch()+1, closed.Epoch())

	h.Open()
	q.next(t)
	after := product.State()
	assert.True(t, after.Open(), after.Why())
	assert.Equal(t, before.Epoch()+2, after.Epoch())

	h.Pool.Close() // the authority is cut off from its database: its copy grows old, and what is known here too
	require.Eventually(t, func() bool { return !product.State().Open() }, 20*time.Second, time.Millisecond)
	q.next(t)
	assert.False(t, product.State().Open())
}

// The families that a client demands are those that the database never leaves out.
func TestFamiliesAreTheDatabases(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	var always []string
	require.NoError(t, h.Owner.QueryRow(t.Context(), `SELECT nw.always() || 'guards'::text`).Scan(&always))
	assert.ElementsMatch(t, always, client.Always)
}
