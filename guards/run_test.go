package guards

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// run starts the guard's background work and returns what stops it. Call it in a synctest bubble.
func (s *stand) run(t *testing.T) (stop func()) { return run(t, s.guard) }

func run(t *testing.T, g *Guard) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return func() {
		cancel()
		assert.NoError(t, <-done)
	}
}

func TestConfigurationThatIsNotComplete(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for name, spoil := range map[string]func(*Config){
		"no URI":                   func(c *Config) { c.URI = "" },
		"a relative URI":           func(c *Config) { c.URI = "/ledger" },
		"a URI with a query":       func(c *Config) { c.URI += "?x" },
		"a URI with a fragment":    func(c *Config) { c.URI += "#x" },
		"a URI with a slash":       func(c *Config) { c.URI += "/" },
		"a URI with a user":        func(c *Config) { c.URI = "https://me@guard.example/ledger" },
		"another scheme":           func(c *Config) { c.URI = "ftp://guard.example/ledger" },
		"the authority's origin":   func(c *Config) { c.URI = c.Issuer + "/ledger" },
		"no issuer":                func(c *Config) { c.Issuer = "" },
		"no name":                  func(c *Config) { c.Name = "" },
		"no assertion":             func(c *Config) { c.Assertion = nil },
		"no ledger":                func(c *Config) { c.Ledger = nil },
		"no operations":            func(c *Config) { c.Operations = nil },
		"an operation that is nil": func(c *Config) { c.Operations = map[string]Operation{"x": nil} },
		"a name with a slash":      func(c *Config) { c.Operations = map[string]Operation{"a/b": transfer} },
	} {
		c := s.config(t)
		spoil(&c)
		_, err := New(c)
		require.Error(t, err, name)
	}
	_, err := Catalogued("postgres", "row.truncate")
	require.Error(t, err)
}

func TestReportsRiseAndSayWhatTheLedgerSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.ledger.seen = Seen{Fence: 7, Admission: 41}
		defer s.run(t)()
		time.Sleep(2500 * time.Millisecond)
		s.ledger.set(func(m *memory) { m.refuse = errors.New("gone") })
		time.Sleep(time.Second)
		s.ledger.set(func(m *memory) { m.refuse = fmt.Errorf("%w: fsync is off", ErrSettings) })
		time.Sleep(time.Second)
		s.authority.Lock()
		defer s.authority.Unlock()
		reports := s.authority.Reports
		require.Len(t, reports, 5)
		for i, r := range reports {
			require.Equal(t, int64(i+1), r.Sequence)
			require.Equal(t, Protocol, r.Protocol)
			require.Less(t, r.AgeMS, int64(1000))
			require.Equal(t, int64(7), r.MaxFence)
			require.Equal(t, int64(41), r.MaxAdmission)
			require.Equal(t, i < 3, r.Healthy)
		}
		require.Equal(t, "unreachable", reports[3].Reason)
		require.Equal(t, "settings", reports[4].Reason)
	})
}

// slowLedger answers its probe after a while.
type slowLedger struct {
	*memory
	takes time.Duration
}

func (l slowLedger) Probe(ctx context.Context) (Seen, error) {
	if !sleep(ctx, l.takes) {
		return Seen{}, ctx.Err()
	}
	return l.memory.Probe(ctx)
}

func TestAgeCountsFromTheStartOfTheProbe(t *testing.T) {
	t.Parallel()
	for takes, healthy := range map[time.Duration]bool{700 * time.Millisecond: true, time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			s := newStand(t)
			s.guard = s.newGuard(t, func(c *Config) { c.Ledger = slowLedger{s.ledger, takes} })
			defer run(t, s.guard)()
			time.Sleep(950 * time.Millisecond)
			s.authority.Lock()
			defer s.authority.Unlock()
			require.Len(t, s.authority.Reports, 1)
			require.Equal(t, healthy, s.authority.Reports[0].Healthy)
			require.Equal(t, min(takes, probeTimeout).Milliseconds(), s.authority.Reports[0].AgeMS)
		})
	}
}

func TestWhatWasSeenNeverFalls(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	require.Equal(t, Seen{3, 9}, s.guard.saw(Seen{3, 9}))
	require.Equal(t, Seen{4, 9}, s.guard.saw(Seen{4, 2}))
	require.Equal(t, Seen{4, 9}, s.guard.saw(Seen{}))
}

func TestLaterBootEndsTheEarlierOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		first := make(chan error, 1)
		go func() { first <- s.guard.Run(t.Context()) }()
		synctest.Wait()
		second := s.newGuard(t)
		defer run(t, second)()
		require.ErrorIs(t, <-first, ErrSuperseded)

		r, ref := s.minted()
		answer := s.do(r)
		require.Equal(t, api.Unavailable, answer.Problem.Code, "the earlier one serves no more")
		s.requireUntouched(t, ref)
		require.Equal(t, int64(2), s.authority.Latest, "and does not come back")
		s.requireCommitted(t, s.worker.Do(second, s.worker.Request("row.append", mustToken(r), order("1"))), ref)
	})
}

func TestRunRidesOutAnAbsentAuthority(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.Verdicts[api.PathToken] = api.Unavailable
		defer s.run(t)()
		time.Sleep(time.Minute)
		require.Less(t, s.authority.Count(api.PathToken), 400, "it does not hammer")
		s.authority.Do(func(a *authoritytest.Authority) { clear(a.Verdicts) })
		time.Sleep(2 * backoffMost)
		r, ref := s.minted()
		s.requireCommitted(t, s.do(r), ref)
	})
}

// TestSweepLeavesLivingAttemptsAlone: an attempt of this process that takes longer than its time is not settled behind its back.
func TestSweepLeavesLivingAttemptsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.ApplyWithin = 2 * time.Second
		defer s.run(t)()
		s.ledger.end = func(a Admitted) (Ending, error, bool) {
			time.Sleep(6 * time.Second)
			s.ledger.set(func(m *memory) { m.ends[a.Effect] = Committed })
			return Ending{Outcome: Committed}, nil, true
		}
		r, ref := s.minted()
		s.requireCommitted(t, s.do(r), ref)
		time.Sleep(10 * time.Second)
		require.Equal(t, "committed", s.authority.Effect(ref).State)
	})
}

// TestSweepTakesOverWhatACrashLeft: another process, which knows nothing of the attempt.
func TestSweepTakesOverWhatACrashLeft(t *testing.T) {
	t.Parallel()
	for end, want := range map[Outcome]string{Committed: "committed", NotApplied: "not_applied", "": "not_applied"} {
		synctest.Test(t, func(t *testing.T) {
			s := newStand(t)
			s.authority.ApplyWithin = 2 * time.Second
			crash := make(chan struct{})
			s.ledger.end = func(a Admitted) (Ending, error, bool) {
				s.ledger.set(func(m *memory) { m.ends[a.Effect] = end })
				<-crash
				return Ending{}, context.Canceled, true
			}
			r, ref := s.minted()
			gone := make(chan struct{})
			go func() { defer close(gone); s.do(r) }()
			synctest.Wait()
			defer run(t, s.newGuard(t))()
			time.Sleep(time.Second)
			require.Equal(t, "admitted", s.authority.Effect(ref).State, "its time has not passed")
			time.Sleep(3 * time.Second)
			require.Equal(t, want, s.authority.Effect(ref).State)
			close(crash)
			<-gone
		})
	}
}

// TestProofThatComesLateIsEvidence: the ledger was away for longer than the window.
func TestProofThatComesLateIsEvidence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.ApplyWithin = 2 * time.Second
		defer s.run(t)()
		s.ledger.end = func(a Admitted) (Ending, error, bool) {
			s.ledger.set(func(m *memory) { m.ends[a.Effect], m.refuse = Committed, errors.New("away") })
			return Ending{}, errors.New("lost"), true
		}
		r, ref := s.minted()
		require.Equal(t, api.OutcomeUnknown, s.do(r).Problem.Code)
		time.Sleep(time.Minute)
		require.Equal(t, "ambiguous", s.authority.Effect(ref).State)
		s.ledger.set(func(m *memory) { m.refuse = nil })
		time.Sleep(2 * backoffMost)
		require.Equal(t, "ambiguous", s.authority.Effect(ref).State, "terminal")
		require.Equal(t, "committed", s.authority.Effect(ref).Late)
		require.Empty(t, s.guard.orphans())
	})
}

func TestDisagreementIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, verdict := range []api.Code{api.AttemptMismatch, api.EffectSettled, api.WrongGuard} {
		s := newStand(t)
		s.authority.Verdicts[api.PathSettle] = verdict
		s.guard.owe(NewRef(), NewRef())
		require.NoError(t, s.guard.sweep(t.Context()))
		require.Empty(t, s.guard.orphans())
	}
}

func TestPanicOfALedgerDoesNotEndTheSweep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		panics := &panicky{Ledger: s.ledger}
		panics.on.Store(true)
		s.guard = s.newGuard(t, func(c *Config) { c.Ledger = panics })
		defer s.run(t)()
		s.ledger.end = func(Admitted) (Ending, error, bool) { return Ending{}, errors.New("lost"), true }
		r, ref := s.minted()
		s.do(r)
		time.Sleep(5 * time.Second)
		require.Equal(t, "admitted", s.authority.Effect(ref).State)
		panics.on.Store(false)
		time.Sleep(5 * time.Second)
		require.Equal(t, "not_applied", s.authority.Effect(ref).State)
	})
}

// panicky has a bug in what the background work calls.
type panicky struct {
	Ledger
	on atomic.Bool
}

func (p *panicky) Prove(ctx context.Context, effect, attempt Ref) (Ending, error) {
	if p.on.Load() {
		panic("a bug")
	}
	return p.Ledger.Prove(ctx, effect, attempt)
}

func TestNoncesAreKeptFresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		stop := s.run(t)
		synctest.Wait()
		first := s.guard.nonces.get()
		require.NotEmpty(t, first)
		time.Sleep(nonceEvery + time.Second)
		require.NotEqual(t, first, s.guard.nonces.get())
		stop()
		time.Sleep(nonceLife + time.Second)
		require.Empty(t, s.guard.nonces.get(), "an old one is of no use")
	})
}

func TestNonceThatIsNoneStaysOutOfHeaders(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "a b", "a\r\nSet-Cookie: x", `a"b`, `a\b`, "é", string(make([]byte, 600))} {
		require.False(t, isNonce(bad), "%q", bad)
	}
	require.True(t, isNonce("!#[]~aZ09-_."))
}

func mustToken(r *http.Request) capability.Token {
	return capability.Token(r.Header.Get("Authorization")[len("DPoP "):])
}
