package authority_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority"
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// rows counts the audit rows of single refusals, and of counted ones.
func rows(h *authoritytest.House) (single, counted int64) {
	return h.Count(`SELECT count(*) FROM nw.audit WHERE verdict <> 'ok' AND verb <> 'refusals'`), h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'refusals'`)
}

// counted is how many refusals of a code the summary rows say there were.
func counted(h *authoritytest.House, code api.Code) int64 {
	return h.Count(`SELECT coalesce(sum((convert_from(body, 'UTF8')::json->'more'->>'count')::bigint), 0) FROM nw.audit WHERE verb = 'refusals' AND verdict = $1`, string(code))
}

// stage is a house with a run that is held and a guard.
type stage struct {
	*authoritytest.House
	task   string
	worker *authoritytest.Holder
	guard  *authoritytest.Guard
}

func newStage(t *testing.T) stage {
	t.Helper()
	h := authoritytest.New(t)
	task := h.Consent(h.Task("close-the-day"))
	return stage{h, task, h.Claim(h.Plan(task)), h.Guard()}
}

func (s stage) report(g *authoritytest.Guard, sequence int64) *http.Request {
	return s.Bearing(g.Key, g.Token, "PUT", api.PathReports+"guards", api.Report{Sequence: sequence, Healthy: true, Protocol: 1, Catalogue: authoritytest.Catalogue()})
}

// admitted is an effect that the stage's guard has been given, and the attempt.
func (s stage) admitted(key string) (minted api.TokenResponse, ask api.AdmitRequest) {
	s.T.Helper()
	minted = s.worker.Minted(key, key)
	ask = s.guard.Ask(s.worker, minted, key, authoritytest.NewAttempt())
	s.Into(s.guard.Admit(ask), nil)
	return minted, ask
}

func (s stage) claim(run string) authoritytest.Answer {
	s.T.Helper()
	return s.Send(s.Form(s.Key(), authoritytest.ClaimForm(run, s.Assertion(authoritytest.WorkerClaim))))
}

func (s stage) retire(p *authoritytest.Person) authoritytest.Answer {
	s.T.Helper()
	return s.Send(p.Request("POST", api.PathRetire, "application/json", []byte(`{"kind":"Client","name":"nothing","revision":1}`)))
}

// flood is one kind of refusal that a caller can have again and again. What settles, reports or stops is asked for all the same.
type flood struct {
	name   string
	always bool
	begin  func(s stage) (send func() authoritytest.Answer)
}

var floods = []flood{
	{"a workload, with another key each time", false, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer { return s.claim(authoritytest.NewAttempt()) }
	}},
	{"a workload that says to be a guard", false, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			return s.Send(s.Form(s.Key(), authoritytest.ComponentForm(authoritytest.GuardName, s.Assertion(authoritytest.WorkerClaim))))
		}
	}},
	{"the holder of a run", false, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			form := authoritytest.MintDetails(s.worker.Token, "read", []api.Detail{{Type: api.DetailTypeEffect, Actions: []string{"row.read"}, Locations: []string{authoritytest.GuardURI},
				Identifier: "table:entries", Parameters: []byte(`{"table":"entries","key":{"id":1}}`)}})
			return s.Send(s.Form(s.worker.Key, form))
		}
	}},
	{"the holder of a run, at a guard", false, func(s stage) func() authoritytest.Answer {
		_, ask := s.admitted("at a guard")
		return func() authoritytest.Answer {
			ask.Attempt = authoritytest.NewAttempt()
			return s.guard.Admit(ask)
		}
	}},
	{"a component, with the key of another earlier boot each time", false, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			earlier := *s.guard
			*s.guard = *s.Guard()
			return s.Send(s.Bearing(earlier.Key, earlier.Token, "POST", api.PathNonces, api.NoncesRequest{Count: 1}))
		}
	}},
	{"a member", false, func(s stage) func() authoritytest.Answer {
		p := s.Person(authoritytest.MemberName)
		return func() authoritytest.Answer {
			return s.Send(p.Request("POST", api.PathOffers+"/"+authoritytest.NewAttempt()+"/decline", "application/json", []byte(`{"digest":"`+strings.Repeat("A", 43)+`"}`)))
		}
	}},
	{"a component, with one report over and over", true, func(s stage) func() authoritytest.Answer {
		s.Into(s.Send(s.report(s.guard, 100)), nil)
		return func() authoritytest.Answer { return s.Send(s.report(s.guard, 100)) }
	}},
	{"a component, with one proof over and over", true, func(s stage) func() authoritytest.Answer {
		proof := s.report(s.guard, 0).Header
		sequence := int64(200)
		send := func() authoritytest.Answer {
			sequence++
			r := s.report(s.guard, sequence)
			r.Header = proof
			return s.Send(r)
		}
		s.Into(send(), nil)
		return send
	}},
	{"a component, with reports that no verb sees", true, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			return s.Send(s.Bearing(s.guard.Key, s.guard.Token, "PUT", api.PathReports+"guards", api.Report{Sequence: 1, Models: []string{"short"}}))
		}
	}},
	{"a guard that settles what is not its own", true, func(s stage) func() authoritytest.Answer {
		return func() authoritytest.Answer {
			return s.guard.Settle(authoritytest.NewAttempt(), authoritytest.NewAttempt(), api.Committed)
		}
	}},
	{"the holder of a run that has an effect in flight", true, func(s stage) func() authoritytest.Answer {
		s.admitted("in flight")
		return func() authoritytest.Answer { return s.worker.Settle("succeeded") }
	}},
	{"a member who revokes what is not there", true, func(s stage) func() authoritytest.Answer {
		p := s.Person(authoritytest.MemberName)
		return func() authoritytest.Answer {
			return s.Send(p.Request("POST", api.PathTasks+"/"+authoritytest.NewAttempt()+"/revoke", "", nil))
		}
	}},
	{"an operator who retires what is not there", true, func(s stage) func() authoritytest.Answer {
		p := s.Person(authoritytest.OperatorName)
		return func() authoritytest.Answer { return s.retire(p) }
	}},
}

const (
	burst = 5
	flow  = 20 // refusals of a flood
)

// A flood has as many rows as its quota; what goes beyond it is told to come again, and counted in one row.
func TestFloodHasItsQuotaOfRows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			clock := authority.Pace(s.Authority, burst)
			send := f.begin(s)
			authority.Flush(s.Authority)
			singles, summaries := rows(s.House)
			code := send().Problem().Code
			require.NotEmpty(t, code)
			beyond := code
			if !f.always {
				beyond = api.TooManyRequests
			}
			before := counted(s.House, beyond)
			for n := 1; n < flow; n++ {
				a := send()
				if n < burst {
					assert.Equal(t, code, a.Problem().Code)
					continue
				}
				assert.Equal(t, beyond, a.Problem().Code)
				if !f.always {
					assert.Equal(t, http.StatusTooManyRequests, a.Status)
					assert.Equal(t, "1", a.Header.Get("Retry-After"))
					assert.EqualValues(t, 1000, a.Problem().RetryAfterMS)
				}
			}
			authority.Flush(s.Authority)
			single, summary := rows(s.House)
			assert.EqualValues(t, burst, single-singles)
			assert.EqualValues(t, 1, summary-summaries)
			assert.EqualValues(t, flow-burst, counted(s.House, beyond)-before)

			clock.Pass(time.Second)
			assert.Equal(t, code, send().Problem().Code, "time heals")
			single, _ = rows(s.House)
			assert.EqualValues(t, burst+1, single-singles)
		})
	}
}

// Each of the floods would have a row for every refusal if there were no quota.
func TestPlantedEndlessQuota(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, f := range floods {
		t.Run(f.name, func(t *testing.T) {
			authority.Pace(s.Authority, 1_000_000)
			send := f.begin(s)
			singles, _ := rows(s.House)
			for range burst + 2 {
				send()
			}
			single, _ := rows(s.House)
			assert.EqualValues(t, burst+2, single-singles, "the planted bug was not caught")
		})
	}
}

// exhaust sends a flood until its quota is spent.
func exhaust(t *testing.T, name string, s stage) {
	t.Helper()
	for _, f := range floods {
		if f.name == name {
			authority.Pace(s.Authority, burst)
			send := f.begin(s)
			for range flow {
				send()
			}
			return
		}
	}
	require.Fail(t, "there is no such flood", name)
}

const printing = `
kind: AttestationProfile
name: printing
issuer: WORKLOADS
subject: system:serviceaccount:print:probe
binding: first_key
max_lifetime_s: 3600
---
kind: Reporter
name: printing-probe
title: Looks at the printers
profile: printing
families: [printing]
`

// A flood is its own: whoever shares nothing with it is served, and so is the flooder when he settles, reports well or stops something.
func TestFloodIsNobodyElses(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Apply(strings.ReplaceAll(printing, "WORKLOADS", s.Workloads.URL))
	other := s.Claim(s.Plan(s.Consent(s.Task("open-the-day"))))

	t.Run("of a workload", func(t *testing.T) {
		exhaust(t, "a workload, with another key each time", s)
		run := s.Plan(s.task)
		assert.Equal(t, api.TooManyRequests, s.claim(run).Problem().Code)
		s.Guard()
		assert.Equal(t, http.StatusOK, s.worker.Renew().Status, "who holds a run is known by its key")
		*s.guard = *s.Guard()
	})
	t.Run("of a holder at a guard", func(t *testing.T) {
		exhaust(t, "the holder of a run, at a guard", s)
		minted := s.worker.Minted("later", "later")
		assert.Equal(t, api.TooManyRequests, s.guard.Admit(s.guard.Ask(s.worker, minted, "later", authoritytest.NewAttempt())).Problem().Code)
		theirs := other.Minted("book", "book")
		ask := s.guard.Ask(other, theirs, "book", authoritytest.NewAttempt())
		s.Into(s.guard.Admit(ask), nil)
		s.Into(s.guard.Settle(theirs.Effect, ask.Attempt, api.Committed), nil)
		assert.Equal(t, http.StatusOK, s.worker.Renew().Status)
	})
	t.Run("of a component", func(t *testing.T) {
		authority.Pace(s.Authority, burst)
		minted, ask := s.admitted("of a component")
		exhaust(t, "a component, with one report over and over", s)
		assert.Equal(t, api.TooManyRequests, s.Send(s.Bearing(s.guard.Key, s.guard.Token, "POST", api.PathNonces, api.NoncesRequest{Count: 1})).Problem().Code)
		s.Into(s.Send(s.report(s.guard, 101)), nil)
		assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.readiness_reports WHERE sequence = 101`))
		var unsettled api.Unsettled
		s.Into(s.Send(s.Bearing(s.guard.Key, s.guard.Token, "GET", api.PathUnsettled, nil)), &unsettled)
		assert.NotEmpty(t, unsettled.Effects)
		s.Into(s.guard.Settle(minted.Effect, ask.Attempt, api.Committed), nil)
		assert.EqualValues(t, 1, s.Count(`SELECT count(*) FROM nw.effects WHERE ref = $1 AND state = 'committed'`, authoritytest.Raw(minted.Effect)))

		var token api.TokenResponse
		key := s.Key()
		s.Into(s.Send(s.Form(key, authoritytest.ComponentForm("printing-probe", s.Assertion("system:serviceaccount:print:probe")))), &token)
	})
	t.Run("of a member", func(t *testing.T) {
		exhaust(t, "a member", s)
		p := s.Person(authoritytest.MemberName)
		for _, path := range []string{api.PathOffers, api.PathTasks} {
			assert.Equal(t, http.StatusTooManyRequests, s.Send(p.Request("GET", path, "", nil)).Status, "another key and envelope are no other member")
		}
		assert.Equal(t, http.StatusOK, s.Send(s.Person("member-2").Request("GET", api.PathTasks, "", nil)).Status)
		assert.Equal(t, http.StatusOK, s.Send(p.Request("POST", api.PathTasks+"/"+s.task+"/revoke", "", nil)).Status)
	})
}

// Whoever asks at the same time gets no more rows beyond the quota than there are connections, however many wait for one.
func TestFloodAtOnceHasItsQuotaOfRows(t *testing.T) {
	t.Parallel()
	const free, waiting = 2, 8
	s := newStage(t)
	ask := func() *http.Request {
		return s.Form(s.Key(), authoritytest.ComponentForm(authoritytest.GuardName, s.Assertion(authoritytest.WorkerClaim)))
	}
	clock := authority.Pace(s.Authority, burst)
	for range burst - 1 {
		s.Send(ask())
	}
	requests := make([]*http.Request, waiting)
	for n := range requests {
		requests[n] = ask()
	}
	singles, _ := rows(s.House)
	taken := make([]*pgxpool.Conn, s.Pool.Config().MaxConns)
	for n := range taken {
		var err error
		taken[n], err = s.Pool.Acquire(context.Background())
		require.NoError(t, err)
		defer taken[n].Release()
	}
	before := clock.Asked()
	var all sync.WaitGroup
	for _, r := range requests {
		all.Go(func() { s.Send(r) })
	}
	assert.Eventually(t, func() bool { return clock.Asked() >= before+waiting }, 20*time.Second, time.Millisecond, "not all of them wait")
	for _, c := range taken[:free] {
		c.Release()
	}
	all.Wait()
	single, _ := rows(s.House)
	assert.Positive(t, single-singles)
	assert.LessOrEqual(t, single-singles, int64(free))
	assert.Equal(t, api.TooManyRequests, s.Send(ask()).Problem().Code)
}

// Before a key or an identity is proved nothing has a row of its own, at any route: it is counted, in one row a second for a code.
func TestFloodBeforeAnythingIsProved(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	singles, _ := rows(h)
	ctx, stop := context.WithCancel(context.Background())
	began, ran := time.Now(), make(chan struct{})
	go func() {
		defer close(ran)
		h.Authority.Run(ctx)
	}()
	want := map[api.Code]int64{}
	for range 3 {
		for _, r := range h.Server.Routes() {
			for _, send := range []func() *http.Request{
				func() *http.Request { return stranger(h, r.Method, r.Path, "") },
				func() *http.Request { return stranger(h, r.Method, r.Path, "x.y.z") },
				func() *http.Request { return stranger(h, "PATCH", r.Path, "") },
				func() *http.Request { // proves a key, of which there are as many as one likes
					s := stranger(h, r.Method, r.Path, "x.y.z")
					s.Header.Set(api.HeaderProof, h.Proof(h.Key(), r.Method, s.URL.Path, "x.y.z"))
					return s
				},
				func() *http.Request {
					return h.Form(h.Key(), authoritytest.ClaimForm(authoritytest.NewAttempt(), h.Assertion("system:serviceaccount:jobs:stranger")))
				},
				func() *http.Request { // has not been given a nonce yet
					s := h.Form(h.Key(), authoritytest.ClaimForm(authoritytest.NewAttempt(), "x.y.z"))
					proof, err := capability.NewProof(h.Key(), capability.ProofParams{Method: "POST", URL: h.URL + api.PathToken, Now: time.Now()})
					require.NoError(t, err)
					s.Header.Set(api.HeaderProof, proof)
					return s
				},
			} {
				if a := h.Send(send()); a.Status >= http.StatusBadRequest {
					want[a.Problem().Code]++
				}
			}
		}
	}
	stop()
	<-ran
	authority.Flush(h.Authority)
	seconds := int64(time.Since(began)/time.Second) + 1
	single, _ := rows(h)
	assert.Equal(t, singles, single)
	assert.Greater(t, len(want), 4)
	assert.Contains(t, want, api.InvalidClient)
	assert.Contains(t, want, api.UseDPoPNonce)
	for code, n := range want {
		if code == api.UseDPoPNonce {
			n = 0 // a challenge is no refusal
		}
		assert.Equal(t, n, counted(h, code), code)
		assert.LessOrEqual(t, h.Count(`SELECT count(*) FROM nw.audit WHERE verb = 'refusals' AND verdict = $1`, string(code)), seconds, code)
	}
}

// stranger is a request that proves nothing, with a credential that is none.
func stranger(h *authoritytest.House, method, path, credential string) *http.Request {
	path = strings.NewReplacer("{reference}", authoritytest.NewAttempt(), "{family}", "guards", "{kind}", "Client", "{name}", "books").Replace(path)
	kind := "application/json"
	if path == api.PathToken {
		kind = "application/x-www-form-urlencoded"
	}
	r := h.Request(method, path, kind, nil)
	if credential != "" {
		r.Header.Set("Authorization", "DPoP "+credential)
		r.Header.Set(api.HeaderProof, credential)
		r.Header.Set(api.HeaderEnvelope, credential)
	}
	return r
}
