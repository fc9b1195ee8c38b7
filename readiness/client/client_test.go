package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
)

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"nothing":                   {},
		"no URL":                    {Issuer: "authority.example"},
		"another scheme":            {Issuer: "ftp://authority.example"},
		"plain http":                {Issuer: "http://authority.example"},
		"plain http, to be reached": {Issuer: issuer, Authority: "http://authority.internal:8080"},
		"a slash at the end":        {Issuer: issuer + "/"},
		"a query":                   {Issuer: issuer + "?a=b"},
		"a fragment":                {Issuer: issuer + "#"},
		"a user":                    {Issuer: "https://me@authority.example"},
		"seldom":                    {Issuer: issuer, Every: time.Second + 1},
		"too often":                 {Issuer: issuer, Every: 100*time.Millisecond - 1},
		"never":                     {Issuer: issuer, Every: -1},
	} {
		client, err := New(c)
		assert.Error(t, err, name)
		assert.Nil(t, client, name)
	}
	for _, u := range []string{"http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", issuer} {
		client, err := New(Config{Issuer: issuer, Authority: u})
		require.NoError(t, err, u)
		assert.False(t, client.State().Open())
	}
}

func TestClosedUntilItIsTold(t *testing.T) {
	t.Parallel()
	assert.False(t, State{}.Open())
	assert.Equal(t, "closed: start", State{}.String())
	s := newStand(t)
	assert.False(t, s.State().Open())
	assert.Equal(t, "start", s.State().Why())
	assert.Zero(t, s.State().Epoch())
	s.put(func(s *stand) { s.decision = open(1, 7, 40) })
	state := s.asks()
	assert.True(t, state.Open())
	assert.Equal(t, "open", state.String())
	assert.Empty(t, state.Why())
	assert.EqualValues(t, 7, state.Epoch())
	assert.False(t, s.newClient().State().Open(), "a restart is closed")
}

// A state says open for no longer than it was given, wherever it is kept; and nobody else makes one from parts.
func TestStateEndsByItself(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	kept := s.asks()
	s.pass(1799 * time.Millisecond)
	assert.True(t, kept.Open())
	s.pass(time.Millisecond)
	assert.False(t, kept.Open())
	assert.Equal(t, "expired", kept.Why())
	assert.False(t, s.State().Open())
	for _, f := range reflect.VisibleFields(reflect.TypeFor[State]()) {
		assert.False(t, f.IsExported(), f.Name)
	}
}

func TestExplicitClose(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.requireOpen()
	s.put(func(s *stand) { s.decision = closed(1, 2, 2, "queue: unreachable", "guards: stale") })
	state := s.asks()
	assert.False(t, state.Open())
	assert.Equal(t, "queue: unreachable; guards: stale", state.Why())
	assert.EqualValues(t, 2, state.Epoch())
	s.put(func(s *stand) { s.decision = open(1, 3, 3) })
	s.requireOpen()
}

// Whatever cannot be relied on never opens, and closes what was open: at once, and until a good answer comes.
func TestAnswersThatAreNotAccepted(t *testing.T) {
	t.Parallel()
	signed := func(change func(s *stand, c *capability.DecisionClaims)) func(*stand) {
		return func(s *stand) {
			s.spoil = func(a *api.Decision, challenge string) {
				c := open(1, 9, 99)
				c.Challenge = challenge
				change(s, &c)
				a.Signed = s.sign(c)
			}
		}
	}
	outer := func(change func(a *api.Decision, challenge string)) func(*stand) {
		return func(s *stand) { s.spoil = change }
	}
	text := func(change func(body string) string) func(*stand) {
		return func(s *stand) {
			s.roundTrip = func(r *http.Request, answer func() *http.Response) (*http.Response, error) {
				a := answer()
				if r.URL.Path == api.PathReadiness {
					body, err := io.ReadAll(a.Body)
					require.NoError(s.t, err)
					a.Body = io.NopCloser(strings.NewReader(change(string(body))))
				}
				return a, nil
			}
		}
	}
	without := func(family string) func(*stand, *capability.DecisionClaims) {
		return func(_ *stand, c *capability.DecisionClaims) {
			var left []capability.DecidedFamily
			for _, f := range c.Families {
				if f.Family != family {
					left = append(left, f)
				}
			}
			c.Families = left
		}
	}
	cases := map[string]func(*stand){
		"unsigned": outer(func(a *api.Decision, _ string) { a.Signed = "" }),
		"unsigned and closed": outer(func(a *api.Decision, _ string) {
			*a = api.Decision{Reasons: []string{"start"}, Families: []api.FamilyState{}}
		}),
		"signed by another": signed(func(s *stand, _ *capability.DecisionClaims) {
			s.key = newSigner(s.t, 1)
		}),
		"signed by another under a known kid": signed(func(s *stand, _ *capability.DecisionClaims) {
			s.key.Key = newSigner(s.t, 1).Key
		}),
		"a generation that is not the key's": signed(func(s *stand, _ *capability.DecisionClaims) { s.key.generation = 2 }),
		"another issuer":                     signed(func(_ *stand, c *capability.DecisionClaims) { c.Issuer = "https://other.example" }),
		"another challenge":                  signed(func(_ *stand, c *capability.DecisionClaims) { c.Challenge = "AAAAAAAAAAAAAAAAAAAAAAAAAA" }),
		"no challenge":                       signed(func(_ *stand, c *capability.DecisionClaims) { c.Challenge = "" }),
		"long over":                          signed(func(s *stand, c *capability.DecisionClaims) { c.IssuedAt, c.Expires = s.now.Unix()-60, s.now.Unix()-59 }),
		"of the future":                      signed(func(s *stand, c *capability.DecisionClaims) { c.IssuedAt, c.Expires = s.now.Unix()+60, s.now.Unix()+61 }),
		"a capability":                       outer(func(a *api.Decision, _ string) { a.Signed = strangeCapability(t) }),
		"not JSON":                           text(func(string) string { return "<html>open</html>" }),
		"nothing":                            text(func(string) string { return "" }),
		"an array":                           text(func(body string) string { return "[" + body + "]" }),
		"null":                               text(func(string) string { return "null" }),
		"an unknown field":                   text(func(body string) string { return strings.Replace(body, "{", `{"ready":true,`, 1) }),
		"a field twice":                      text(func(body string) string { return strings.Replace(body, "{", `{"open":true,`, 1) }),
		"a field in another case":            text(func(body string) string { return strings.Replace(body, `"signed"`, `"Signed"`, 1) }),
		"cut off":                            text(func(body string) string { return body[:len(body)-20] }),
		"something after it":                 text(func(body string) string { return body + "{}" }),
		"huge":                               text(func(body string) string { return body + strings.Repeat(" ", 64<<10) }),
	}
	for _, f := range always {
		cases["partial: without "+f] = signed(without(f))
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.put(spoil)
			key := s.key
			for range 2 { // from closed, and from open
				state := s.asks()
				require.False(t, state.Open())
				require.NotEmpty(t, state.Why())
				require.Less(t, len(state.Why()), 100)
				s.put(func(s *stand) { s.key, s.spoil, s.roundTrip = key, nil, nil })
				s.pass(10 * time.Second)
				s.requireOpen()
				s.put(spoil)
			}
		})
	}
}

// An unsigned answer says so: a replica that cannot use its key is told apart from one that is not ours.
func TestUnsignedAnswerSaysSo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, open := range []bool{true, false} {
		s.put(func(s *stand) { s.spoil = func(a *api.Decision, _ string) { a.Open, a.Signed = open, "" } })
		assert.Equal(t, "closed: the answer is not signed", s.asks().String())
	}
}

func strangeCapability(t *testing.T) string {
	key := newSigner(t, 1)
	now := time.Now().Unix()
	token, err := capability.SignComponent(key, capability.ComponentClaims{Component: "shop", ComponentKind: "product", Boot: 1, Header: capability.Header{
		Issuer: issuer, Audience: issuer, Subject: "s", ClientID: "c", IssuedAt: now, Expires: now + 60, ID: "i", Generation: 1,
		Confirmation: capability.Confirmation{JKT: key.Thumbprint()}}})
	require.NoError(t, err)
	return token.Reveal()
}

// An answer that was good once answers nobody again.
func TestReplayedAnswer(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	var good string
	s.put(func(s *stand) { s.spoil = func(a *api.Decision, _ string) { good = a.Signed } })
	s.requireOpen()
	s.put(func(s *stand) { s.spoil = func(a *api.Decision, _ string) { a.Signed = good } })
	state := s.asks()
	assert.False(t, state.Open())
	assert.Contains(t, state.Why(), "another challenge")
	seen := map[string]bool{}
	for range 100 {
		s.asks()
	}
	for _, c := range s.challenges {
		assert.GreaterOrEqual(t, len(c), 26, "128 bits")
		assert.False(t, seen[c])
		seen[c] = true
	}
}

// No answer is no reason to close early and none to stay open: what is known is over when its time is.
func TestSilence(t *testing.T) {
	t.Parallel()
	status := func(code int) func(*http.Request, func() *http.Response) (*http.Response, error) {
		return func(_ *http.Request, answer func() *http.Response) (*http.Response, error) {
			a := answer()
			a.StatusCode = code
			a.Header.Set("Location", issuer+api.PathReadiness)
			return a, nil
		}
	}
	for name, roundTrip := range map[string]func(*http.Request, func() *http.Response) (*http.Response, error){
		"500": status(500), "503": status(503), "429": status(429), "404": status(404), "201": status(201), "302": status(302), "307": status(307),
		"out of reach": func(*http.Request, func() *http.Response) (*http.Response, error) { return nil, errors.New("no route") },
		"a body that breaks off": func(_ *http.Request, answer func() *http.Response) (*http.Response, error) {
			a := answer()
			a.Body = io.NopCloser(io.MultiReader(io.LimitReader(a.Body, 100), failing{}))
			return a, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.put(func(s *stand) { s.roundTrip = roundTrip })
			require.False(t, s.asks().Open())
			require.Contains(t, s.State().Why(), "no answer")
			s.put(func(s *stand) { s.roundTrip = nil })
			s.requireOpen()
			s.put(func(s *stand) { s.roundTrip = roundTrip })
			s.pass(1799 * time.Millisecond)
			s.requireOpen()
			s.pass(time.Millisecond)
			require.Equal(t, "expired", s.State().Why())
			require.Contains(t, s.asks().Why(), "no answer")
			require.EqualValues(t, 1, s.State().Epoch())
		})
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("reset by peer") }

// A redirect is not followed, wherever it leads.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	asked := 0
	s := newStand(t)
	s.put(func(s *stand) {
		s.roundTrip = func(r *http.Request, answer func() *http.Response) (*http.Response, error) {
			if asked++; asked == 1 {
				a := answerWith(http.StatusTemporaryRedirect, "")
				a.Header.Set("Location", r.URL.String())
				return a, nil
			}
			return answer(), nil
		}
	})
	assert.False(t, s.asks().Open())
	assert.Equal(t, 1, asked)
}

// A replica that lags behind, or an older database, is not listened to: neither when it says open nor when it says closed.
func TestOlderDecisionsAreIgnored(t *testing.T) {
	t.Parallel()
	for name, older := range map[string]capability.DecisionClaims{
		"lower sequence":            open(2, 5, 49),
		"lower epoch":               open(2, 4, 99),
		"lower incarnation":         open(1, 9, 99),
		"lower sequence, closed":    closed(2, 5, 49, "held"),
		"lower epoch, closed":       closed(2, 4, 99, "held"),
		"lower incarnation, closed": closed(1, 9, 99, "held"),
	} {
		s := newStand(t)
		s.put(func(s *stand) { s.decision = open(2, 5, 50) })
		s.requireOpen()
		s.put(func(s *stand) { s.decision = older })
		s.pass(time.Second)
		s.requireOpen()
		assert.EqualValues(t, 5, s.State().Epoch(), name)
		s.pass(time.Second)
		assert.False(t, s.asks().Open(), "%s: no older decision gives more time", name)
		s.put(func(s *stand) { s.decision = closed(2, 6, 51, "held") })
		assert.False(t, s.asks().Open(), name)
		s.put(func(s *stand) { s.decision = open(2, 5, 50) })
		assert.False(t, s.asks().Open(), "%s: what was open before a close opens nothing", name)
		s.put(func(s *stand) { s.decision = open(3, 1, 1) })
		s.requireOpen()
	}
}

// Whatever is answered in whatever order, and however time passes: the state is that of the highest decision so far, for its time.
func TestStateIsThatOfTheHighestDecision(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		s := newStand(t)
		var highest [3]int64
		var until time.Time
		var isOpen bool
		for range rapid.IntRange(1, 20).Draw(r, "answers") {
			n := [3]int64{rapid.Int64Range(1, 2).Draw(r, "incarnation"), rapid.Int64Range(1, 3).Draw(r, "epoch"), rapid.Int64Range(1, 4).Draw(r, "sequence")}
			d := closed(n[0], n[1], n[2], "held")
			if rapid.Bool().Draw(r, "open") {
				d = open(n[0], n[1], n[2])
				d.ValidMS = rapid.Int64Range(1, 2000).Draw(r, "valid")
			}
			s.put(func(s *stand) { s.decision = d })
			state := s.asks()
			if n[0]*100+n[1]*10+n[2] >= highest[0]*100+highest[1]*10+highest[2] {
				highest, isOpen, until = n, d.Open, s.now.Add(time.Duration(d.ValidMS)*time.Millisecond)
			}
			require.Equal(r, isOpen && s.now.Before(until), state.Open())
			require.Equal(r, highest[1], state.Epoch())
			s.pass(time.Duration(rapid.IntRange(0, 1500).Draw(r, "ms")) * time.Millisecond)
			require.Equal(r, isOpen && s.now.Before(until), s.State().Open())
		}
	})
}

// Time counts from before the question was sent, and on the clock that says most.
func TestTimeOfTheAnswerCounts(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	slow := func(d time.Duration) {
		s.put(func(s *stand) {
			s.roundTrip = func(r *http.Request, answer func() *http.Response) (*http.Response, error) {
				a := answer()
				if r.URL.Path == api.PathReadiness {
					s.pass(d)
				}
				return a, nil
			}
		})
	}
	slow(1799 * time.Millisecond)
	s.requireOpen()
	slow(1800 * time.Millisecond)
	assert.False(t, s.asks().Open())
	slow(-time.Hour) // the clock is set back
	assert.False(t, s.asks().Open(), "the answer is of the future")
	s.put(func(s *stand) { s.roundTrip = nil })
	s.requireOpen()
	s.pass(-time.Hour)
	assert.True(t, s.State().Open(), "the other clocks have not moved")
	s.put(func(s *stand) { s.up += 10 * time.Minute })
	assert.False(t, s.State().Open(), "the machine was suspended")
	s.requireOpen()
	s.pass(2 * time.Hour)
	assert.False(t, s.State().Open())
}

// The clock of the machine that a product runs on may be off by the leeway, and no more.
func TestClockThatIsOff(t *testing.T) {
	t.Parallel()
	for off, opens := range map[time.Duration]bool{4 * time.Second: true, -4 * time.Second: true, 8 * time.Second: false, -8 * time.Second: false} {
		s := newStand(t)
		s.put(func(s *stand) {
			s.decision.IssuedAt = s.now.Add(off).Unix()
			s.decision.Expires = s.decision.IssuedAt + 1
		})
		assert.Equal(t, opens, s.asks().Open(), off)
	}
}

// A key that is published before it is used closes nothing (P27).
func TestRotationOfTheSigningKey(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.requireOpen()
	next := newSigner(t, 2)
	s.put(func(s *stand) { s.published = append(s.published, next) })
	s.pass(time.Minute + time.Second) // the keys are read again
	s.requireOpen()
	s.put(func(s *stand) { s.key = next })
	s.requireOpen()
	assert.Equal(t, 2, s.keysAsked)

	retired := s.published[0]
	s.put(func(s *stand) { s.published = s.published[1:] })
	s.pass(time.Minute + time.Second)
	s.requireOpen()
	s.put(func(s *stand) { s.key = retired })
	assert.False(t, s.asks().Open(), "a key that was withdrawn signs nothing any more")
}

// A key that nobody announced is looked up, at most once in ten seconds.
func TestUnknownKeyIsLookedUp(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.requireOpen()
	s.put(func(s *stand) { s.key, s.published = newSigner(t, 2), nil })
	for range 50 {
		assert.False(t, s.asks().Open())
	}
	assert.Equal(t, 1, s.keysAsked)
	s.put(func(s *stand) { s.published = []signer{s.key} })
	s.pass(10 * time.Second)
	s.requireOpen()
	assert.Equal(t, 2, s.keysAsked)
}

// A product may need more than everybody does.
func TestFamiliesOfAProduct(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *Config) { c.Families = []string{"directory", "tape-robot"} })
	assert.Contains(t, s.asks().Why(), "partial")
	own := document.FamilyCode("tape-robot")
	s.put(func(s *stand) {
		s.decision.Families = nil
		for _, f := range []string{"approvals", "attestation", "audit", "clock", "directory", "guards", "nonces", "queue", "signing", "store", own} {
			s.decision.Families = append(s.decision.Families, capability.DecidedFamily{Family: f, Good: true, Instances: 1, Required: 1})
		}
	})
	s.requireOpen()
}

// Run asks at each interval, survives an authority that hangs, ends with its context and leaves nothing open or running.
func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		client := s.newClient(func(c *Config) { c.Now = time.Now })
		s.put(func(s *stand) { s.now = time.Now() })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			client.Run(ctx)
		}()
		synctest.Wait()
		require.True(t, client.State().Open(), client.State())
		hangs := func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		for range 20 { // each answer is good for 1.8 s
			time.Sleep(500 * time.Millisecond)
			s.put(func(s *stand) { s.now = time.Now() })
		}
		synctest.Wait()
		require.True(t, client.State().Open(), client.State())
		require.InDelta(t, 21, len(s.challenges), 1)

		s.put(func(s *stand) { s.roundTrip = hangs })
		time.Sleep(1799 * time.Millisecond)
		require.True(t, client.State().Open())
		time.Sleep(501 * time.Millisecond)
		require.False(t, client.State().Open())
		s.put(func(s *stand) { s.roundTrip, s.now = nil, time.Now() })
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.True(t, client.State().Open(), client.State())
		kept := client.State()

		s.put(func(s *stand) { s.roundTrip = hangs })
		time.Sleep(time.Second)
		stop() // in the middle of a question
		<-done
		require.Equal(t, "stopped", client.State().Why())
		time.Sleep(2 * time.Second)
		require.False(t, kept.Open())
	})
}

// Two Runs do not ask at once.
func TestSecondRunWaits(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	asked := make(chan struct{}, 10)
	s.put(func(s *stand) {
		s.roundTrip = func(r *http.Request, _ func() *http.Response) (*http.Response, error) {
			asked <- struct{}{}
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
	})
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	stopSecond()
	done := make(chan string, 2)
	go func() { s.Run(first); done <- "first" }()
	<-asked
	go func() { s.Run(second); done <- "second" }()
	require.Empty(t, asked)
	stopFirst()
	require.ElementsMatch(t, []string{"first", "second"}, []string{<-done, <-done})
}
