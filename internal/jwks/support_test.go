package jwks

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	own      = "https://authority.example"
	audience = own
)

var expect = Expect{Audience: audience, MaxLifetime: time.Hour}

// clock is a clock that a test moves.
type clock struct{ unixNano atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.unixNano.Store(time.Now().Truncate(time.Second).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.unixNano.Load()) }
func (c *clock) advance(d time.Duration) { c.unixNano.Add(int64(d)) }

// desk is a cache, its clock and its issuers.
type desk struct {
	*Cache
	clock *clock
}

func newDesk(t testing.TB, issuers ...*jwkstest.Issuer) desk {
	t.Helper()
	cfg := Config{Own: own}
	for _, i := range issuers {
		cfg.Issuers = append(cfg.Issuers, configured(i))
	}
	return newDeskOf(t, cfg)
}

func newDeskOf(t testing.TB, cfg Config) desk {
	t.Helper()
	d := desk{clock: newClock()}
	if cfg.Timeout == 0 {
		cfg.Timeout = 30 * time.Second // a loaded machine is not a hanging issuer
	}
	cfg.Now = d.clock.now
	var err error
	d.Cache, err = New(cfg)
	require.NoError(t, err)
	return d
}

func configured(i *jwkstest.Issuer) Issuer {
	return Issuer{URL: i.URL, Algorithms: []string{ES256, RS256}}
}

func (d desk) verify(t testing.TB, compact string) (Token, error) {
	t.Helper()
	return d.Verify(t.Context(), compact, expect)
}

// claims of a good token, changed by pairs of name and value; a nil value
// removes the claim.
func (d desk) claims(pairs ...any) map[string]any {
	now := d.clock.now().Unix()
	c := map[string]any{"sub": "worker", "aud": audience, "iat": now, "exp": now + 600}
	for n := 0; n < len(pairs); n += 2 {
		name := pairs[n].(string)
		if c[name] = pairs[n+1]; pairs[n+1] == nil {
			delete(c, name)
		}
	}
	return c
}

// within fails a test that waits for a signal longer than any machine needs.
func within(t testing.TB, signal <-chan struct{}, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-signal:
	case <-ctx.Done():
		require.Fail(t, fmt.Sprint("waited in vain: ", what))
	}
}
