package guards

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// loseAnswers lets the authority act and loses its answers on one path, n times; -1 is always.
func (s *stand) loseAnswers(path string, n int) {
	s.authority.Do(func(a *authoritytest.Authority) {
		a.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
			response := answer()
			if called != path || n == 0 {
				return response, nil
			}
			n--
			return nil, io.ErrUnexpectedEOF
		}
	})
}

func TestProofWithoutNonceIsChallengedByTheGuardAlone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	s.worker.Nonce = ""
	answer := s.do(s.worker.Request("row.append", token, order("1")))
	require.Equal(t, http.StatusUnauthorized, answer.Status)
	require.Equal(t, api.UseDPoPNonce, answer.Problem.Code)
	require.Equal(t, api.WithNonce, answer.Problem.Retry)
	require.Len(t, answer.Challenge, 1)
	require.True(t, strings.HasPrefix(answer.Challenge[0], `DPoP error="use_dpop_nonce", `), answer.Challenge[0])
	require.Len(t, answer.Header.Values(api.HeaderNonce), 1)
	require.Zero(t, s.authority.Count(api.PathAdmit))
	s.requireUntouched(t, ref)

	s.requireCommitted(t, s.do(s.worker.Request("row.append", token, order("1"))), ref)
}

func TestNonceThatTheAuthorityRefusesIsChallengedWithAnother(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *stand){
		"stale":           func(s *stand) { s.authority.Forget() },
		"the authority's": func(s *stand) { s.worker.Nonce = s.authority.Nonce(authoritytest.Issuer) },
		"garbled":         func(s *stand) { s.worker.Nonce += "x" },
		"in the pool too": func(s *stand) { s.guard.nonces.put(s.worker.Nonce); s.authority.Forget() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			token, ref := s.mint("row.append", order("1"))
			spoil(s)
			sent := s.worker.Nonce
			answer := s.do(s.worker.Request("row.append", token, order("1")))
			require.Equal(t, http.StatusUnauthorized, answer.Status, answer.Text)
			require.Equal(t, api.UseDPoPNonce, answer.Problem.Code)
			require.NotEqual(t, sent, answer.Header.Get(api.HeaderNonce))
			s.requireUntouched(t, ref)

			s.requireCommitted(t, s.do(s.worker.Request("row.append", token, order("1"))), ref)
		})
	}
}

func TestChallengeWithoutANonceIsNone(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	s.authority.Verdicts[api.PathNonces] = api.Unavailable
	s.worker.Nonce = ""
	answer := s.do(s.worker.Request("row.append", token, order("1")))
	require.Equal(t, http.StatusServiceUnavailable, answer.Status)
	require.Equal(t, api.Unavailable, answer.Problem.Code)
	require.NotEmpty(t, answer.Header.Get("Retry-After"))
	s.requireUntouched(t, ref)
}

// TestAnswerIsGivenOnce: whoever repeats a whole request learns that it happened, and nothing of what it answered (P19).
func TestAnswerIsGivenOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	r := s.worker.Request("row.append", token, order("1"))
	proof := r.Header.Get("DPoP")
	s.requireCommitted(t, s.do(r), ref)

	replay := s.worker.Request("row.append", token, order("1"))
	replay.Header.Set("DPoP", proof)
	for _, again := range []*http.Request{replay, s.worker.Request("row.append", token, order("1"))} {
		answer := s.do(again)
		require.Equal(t, api.EffectSettled, answer.Problem.Code, answer.Text)
		require.Equal(t, http.StatusConflict, answer.Status)
		require.NotContains(t, answer.Text, "rows")
	}
	require.Equal(t, 1, s.ledger.count())
}

func TestProofOfAnotherEffectIsAReplay(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.authority.Verdicts[api.PathAdmit] = api.ProofReplayed
	r, ref := s.minted()
	answer := s.do(r)
	require.Equal(t, http.StatusUnauthorized, answer.Status)
	require.Equal(t, api.ProofReplayed, answer.Problem.Code)
	require.Contains(t, answer.Challenge[0], `DPoP error="invalid_dpop_proof", `)
	s.requireUntouched(t, ref)
}

// TestOnePresentationAtManyHandlersAppliesOnce: two replicas, one ledger, one capability and one proof.
func TestOnePresentationAtManyHandlersAppliesOnce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	proof := s.worker.Proof("row.append", token)
	body, err := json.Marshal(order("1"))
	require.NoError(t, err)
	var group sync.WaitGroup
	answers := make(chan int, 40)
	for range 20 {
		group.Go(func() {
			r := httptest.NewRequest(http.MethodPost, "/ledger/operations/row.append", strings.NewReader(string(body)))
			r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"DPoP " + token.Reveal()}, "Dpop": {proof}}
			recorder := httptest.NewRecorder()
			s.guard.ServeHTTP(recorder, r)
			answers <- recorder.Code
		})
	}
	group.Wait()
	close(answers)
	count := map[int]int{}
	for status := range answers {
		count[status]++
	}
	require.Equal(t, 1, count[http.StatusOK], "%v", count)
	require.Equal(t, 19, count[http.StatusConflict], "%v", count)
	require.Equal(t, 1, s.ledger.count())
	require.Equal(t, "committed", s.authority.Effect(ref).State)
}

// TestSecondAttemptIsRefusedWhileTheFirstWorks: each presentation is an attempt of its own (P13).
func TestSecondAttemptIsRefusedWhileTheFirstWorks(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	working, finish := make(chan struct{}), make(chan struct{})
	s.ledger.beforeIt = func(Admitted) { close(working); <-finish }
	token, ref := s.mint("row.append", order("1"))
	first := s.worker.Request("row.append", token, order("1"))
	second := s.worker.Request("row.append", token, order("1"))
	done := make(chan authoritytest.Answer)
	go func() { done <- new(authoritytest.Worker).Do(s.guard, first) }()
	<-working
	answer := s.do(second)
	require.Equal(t, api.EffectAlreadyAdmitted, answer.Problem.Code, answer.Text)
	close(finish)
	s.requireCommitted(t, <-done, ref)
	require.Len(t, s.ledger.intents, 2)
	require.NotEqual(t, s.ledger.intents[0].ID, s.ledger.intents[1].ID)
}

func TestRedirectOfTheAuthorityIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, path := range []string{api.PathAdmit, api.PathJWKS, api.PathToken} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			elsewhere := false
			s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
				elsewhere = elsewhere || called == "/elsewhere"
				if called != path {
					return answer(), nil
				}
				return &http.Response{StatusCode: http.StatusTemporaryRedirect, Body: http.NoBody,
					Header: http.Header{"Location": {"https://evil.example/elsewhere"}}}, nil
			}
			r, ref := s.minted()
			answer := s.do(r)
			require.Equal(t, http.StatusServiceUnavailable, answer.Status, answer.Text)
			require.False(t, elsewhere)
			s.requireUntouched(t, ref)
		})
	}
}

func TestVerdictOfTheAuthorityReachesTheWorker(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[api.Code]struct {
		status int
		code   api.Code
	}{
		api.AdmissionClosed: {503, api.AdmissionClosed}, api.FenceStale: {409, api.FenceStale}, api.EffectLapsed: {410, api.EffectLapsed},
		api.ReadinessChanged: {409, api.ReadinessChanged}, api.AuthorityChanged: {409, api.AuthorityChanged}, api.ConsentEnded: {410, api.ConsentEnded},
		api.EffectAlreadyAdmitted: {409, api.EffectAlreadyAdmitted}, api.LaneUncertain: {409, api.LaneUncertain}, api.WorkerProof: {401, api.InvalidDPoPProof},
		// what is wrong with the guard itself is not the worker's
		api.InvalidToken: {503, api.Unavailable}, api.InvalidClient: {503, api.Unavailable}, api.InvalidRequest: {503, api.Unavailable},
		api.UseDPoPNonce: {503, api.Unavailable}, api.BootSuperseded: {503, api.Unavailable}, api.NotFound: {503, api.Unavailable},
		// what may have happened is not denied
		api.OutcomeUnknown: {503, api.OutcomeUnknown}, api.Internal: {503, api.OutcomeUnknown},
	} {
		t.Run(string(verdict), func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			s.authority.Verdicts[api.PathAdmit] = verdict
			r, ref := s.minted()
			answer := s.do(r)
			require.Equal(t, want.code, answer.Problem.Code, answer.Text)
			require.Equal(t, want.status, answer.Status)
			require.Equal(t, want.code.Retry() == api.After && want.code != api.ReadinessChanged, answer.Header.Get("Retry-After") != "")
			s.requireUntouched(t, ref)
		})
	}
}

func TestResourceThatCannotBeReachedConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.ledger.refuse = errors.New("connection refused to db.internal")
	token, ref := s.mint("row.append", order("1"))
	answer := s.do(s.worker.Request("row.append", token, order("1")))
	require.Equal(t, api.Unavailable, answer.Problem.Code)
	require.NotContains(t, answer.Text, "db.internal")
	require.Zero(t, s.authority.Count(api.PathAdmit))

	s.ledger.refuse = nil
	s.requireCommitted(t, s.do(s.worker.Request("row.append", token, order("1"))), ref)
}

func TestAuthorityThatCannotBeReachedConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.authority.Verdicts[api.PathToken] = api.Unavailable
	r, ref := s.minted()
	answer := s.do(r)
	require.Equal(t, api.Unavailable, answer.Problem.Code, answer.Text)
	s.requireUntouched(t, ref)
}

// TestLostAdmissionIsAskedForAgain: the same attempt gets the same go-ahead (P13).
func TestLostAdmissionIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.loseAnswers(api.PathAdmit, 2)
	r, ref := s.minted()
	s.requireCommitted(t, s.do(r), ref)
	require.Equal(t, 1, s.ledger.count())
	require.Equal(t, s.ledger.intents[0].ID.String(), s.authority.Effect(ref).Attempt)
}

func TestAdmissionThatStaysLostAppliesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.ApplyWithin = 2 * time.Second
		defer s.run(t)()
		s.loseAnswers(api.PathAdmit, -1)
		r, ref := s.minted()
		answer := s.do(r)
		require.Equal(t, api.OutcomeUnknown, answer.Problem.Code, answer.Text)
		require.Equal(t, http.StatusServiceUnavailable, answer.Status)
		require.Equal(t, "admitted", s.authority.Effect(ref).State)
		require.Zero(t, s.ledger.count())

		time.Sleep(4 * time.Second)
		require.Equal(t, "not_applied", s.authority.Effect(ref).State, "the sweep has found it")
		require.Zero(t, s.ledger.count())
	})
}

// TestLateGoAheadIsNotApplied: the time counts from before the question was sent (P18).
func TestLateGoAheadIsNotApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
			response := answer()
			if called == api.PathAdmit {
				time.Sleep(1900 * time.Millisecond)
			}
			return response, nil
		}
		s.authority.ApplyWithin = 1900 * time.Millisecond
		s.ledger.beforeIt = func(Admitted) { t.Error("the ledger is not even asked") }
		r, ref := s.minted()
		answer := s.do(r)
		require.Equal(t, http.StatusOK, answer.Status, answer.Text)
		require.Equal(t, "not_applied", answer.Outcome)
		require.Equal(t, api.TooLate, answer.Reason)
		require.Zero(t, s.ledger.count())
		effect, err := ParseRef(ref)
		require.NoError(t, err)
		require.Equal(t, NotApplied, s.ledger.ends[effect], "the ledger has its tombstone")
		require.Equal(t, "not_applied", s.authority.Effect(ref).State)
	})
}

// TestSuspendedGuardIsTooLate: the wall clock jumps while the monotonic clock stands still.
func TestSuspendedGuardIsTooLate(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	var suspended time.Duration
	s.guard = s.newGuard(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Round(0).Add(suspended) } })
	s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
		response := answer()
		if called == api.PathAdmit {
			suspended = 10 * time.Minute
		}
		return response, nil
	}
	r, _ := s.minted()
	answer := s.do(r)
	require.Equal(t, "not_applied", answer.Outcome, answer.Text)
	require.Equal(t, api.TooLate, answer.Reason)
	require.Zero(t, s.ledger.count())
}

func TestGoAheadThatIsNotOursIsNone(t *testing.T) {
	t.Parallel()
	good := api.Admission{Run: authoritytest.Ref(), Lane: authoritytest.Ref(), Fence: 1, ApplyWithinMS: 2000, Number: 1}
	for name, spoil := range map[string]func(*api.Admission){
		"another effect": func(a *api.Admission) { a.Effect = authoritytest.Ref() },
		"no lane":        func(a *api.Admission) { a.Lane = "" },
		"no fence":       func(a *api.Admission) { a.Fence = 0 },
		"no run":         func(a *api.Admission) { a.Run = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			r, ref := s.minted()
			goAhead := good
			goAhead.Effect = ref
			spoil(&goAhead)
			s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
				if called != api.PathAdmit {
					return answer(), nil
				}
				body, _ := json.Marshal(goAhead)
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(string(body)))}, nil
			}
			answer := s.do(r)
			require.Equal(t, api.OutcomeUnknown, answer.Problem.Code, answer.Text)
			require.Zero(t, s.ledger.count())
		})
	}
}

func TestLowerFenceIsNotApplied(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	lane, err := ParseRef(s.lane)
	require.NoError(t, err)
	s.ledger.fences[lane] = 2
	r, ref := s.minted()
	answer := s.do(r)
	require.Equal(t, "not_applied", answer.Outcome, answer.Text)
	require.Equal(t, api.FenceStale, answer.Reason)
	require.Equal(t, "not_applied", s.authority.Effect(ref).State)
	require.Zero(t, s.ledger.count())
}

func TestWorkerThatHangsUpChangesNothingAfterAdmission(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, hangUp := context.WithCancel(t.Context())
	s.ledger.beforeIt = func(Admitted) { hangUp() }
	r, ref := s.minted()
	s.requireCommitted(t, s.do(r.WithContext(ctx)), ref)
}

func TestWorkerThatHangsUpWhileTheAuthorityIsAskedChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, hangUp := context.WithCancel(t.Context())
	s.authority.Intercept = func(ctx context.Context, called string, answer func() *http.Response) (*http.Response, error) {
		if called == api.PathAdmit {
			hangUp()
		}
		return answer(), ctx.Err()
	}
	r, ref := s.minted()
	s.requireCommitted(t, s.do(r.WithContext(ctx)), ref)
	require.Equal(t, 1, s.authority.Count(api.PathAdmit))
}

// TestTooManyAtOnceAreToldToComeAgain before anything of theirs is consumed.
func TestTooManyAtOnceAreToldToComeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.guard = s.newGuard(t, func(c *Config) { c.AtOnce = 1 })
		finish := make(chan struct{})
		s.ledger.beforeIt = func(Admitted) { <-finish }
		r, ref := s.minted()
		done := make(chan authoritytest.Answer)
		go func() { done <- new(authoritytest.Worker).Do(s.guard, r) }()
		synctest.Wait()
		other, otherRef := s.minted()
		answer := s.do(other)
		require.Equal(t, http.StatusTooManyRequests, answer.Status, answer.Text)
		require.NotEmpty(t, answer.Header.Get("Retry-After"))
		require.Equal(t, "minted", s.authority.Effect(otherRef).State)
		close(finish)
		s.requireCommitted(t, <-done, ref)
	})
}

func TestWorkerThatHangsUpBeforeAdmissionConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	r, ref := s.minted()
	s.do(r.WithContext(ctx))
	s.requireUntouched(t, ref)
}

func TestOperationWhoseCheckPanicsConsumesNothing(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	s.guard.config.Operations["row.append"] = func(json.RawMessage) (Target, error) { panic("a bug with details") }
	answer := s.do(s.worker.Request("row.append", token, order("1")))
	require.Equal(t, api.Internal, answer.Problem.Code)
	require.NotContains(t, answer.Text, "details")
	s.requireUntouched(t, ref)
}

func TestLedgerThatSaysNothingHasNotSaidNotApplied(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.ledger.end = func(Admitted) (Ending, error, bool) { return Ending{}, nil, true }
	r, ref := s.minted()
	require.Equal(t, api.OutcomeUnknown, s.do(r).Problem.Code)
	require.Equal(t, "admitted", s.authority.Effect(ref).State)
}

// TestUnknownEndIsNotDenied: the answer says so, and the sweep finds out what became of it.
func TestUnknownEndIsNotDenied(t *testing.T) {
	t.Parallel()
	for name, apply := range map[string]func(s *stand, a Admitted){
		"an error after it was applied": func(s *stand, a Admitted) { s.ledger.set(func(m *memory) { m.ends[a.Effect] = Committed }) },
		"an error before":               func(*stand, Admitted) {},
	} {
		for _, panics := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := newStand(t)
					defer s.run(t)()
					s.ledger.end = func(a Admitted) (Ending, error, bool) {
						apply(s, a)
						if panics {
							panic("in the middle")
						}
						return Ending{}, io.ErrUnexpectedEOF, true
					}
					r, ref := s.minted()
					answer := s.do(r)
					require.Equal(t, api.OutcomeUnknown, answer.Problem.Code, answer.Text)
					synctest.Wait()
					effect, err := ParseRef(ref)
					require.NoError(t, err)
					require.Equal(t, string(s.ledger.ends[effect]), s.authority.Effect(ref).State, "at once")
				})
			})
		}
	}
}

func TestSettlementThatIsLostIsMadeUpFor(t *testing.T) {
	t.Parallel()
	for _, acted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newStand(t)
			lose := true
			s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
				if called != api.PathSettle || !lose {
					return answer(), nil
				}
				if acted {
					answer()
				}
				return nil, io.ErrUnexpectedEOF
			}
			r, ref := s.minted()
			answer := s.do(r)
			require.Equal(t, "committed", answer.Outcome, answer.Text)
			require.JSONEq(t, `{"rows":1}`, string(answer.Result))

			lose = false
			defer s.run(t)()
			synctest.Wait()
			require.Equal(t, "committed", s.authority.Effect(ref).State)
			require.Empty(t, s.guard.orphans())
		})
	}
}

func TestSettlingGoesOnWhileClosed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.ledger.beforeIt = func(Admitted) {
		s.authority.Do(func(a *authoritytest.Authority) { a.Verdicts[api.PathAdmit] = api.AdmissionClosed })
	}
	r, ref := s.minted()
	s.requireCommitted(t, s.do(r), ref)
}

// TestWhatStandsIsAnswered: after its window the authority has called it ambiguous, and that is what the worker hears.
func TestWhatStandsIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		s.authority.ApplyWithin, s.authority.SettleWithin = 2*time.Second, time.Second
		s.ledger.end = func(a Admitted) (Ending, error, bool) {
			time.Sleep(4 * time.Second)
			return Ending{Outcome: Committed, Result: json.RawMessage(`{"rows":1}`)}, nil, true
		}
		r, ref := s.minted()
		answer := s.do(r)
		require.Equal(t, "ambiguous", answer.Outcome, answer.Text)
		require.Empty(t, answer.Result)
		require.Equal(t, "committed", s.authority.Effect(ref).Late)
	})
}

func TestAnswersBringTheNextNonce(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r, _ := s.minted()
	first := s.worker.Nonce
	require.Equal(t, http.StatusOK, s.do(r).Status)
	require.NotEqual(t, first, s.worker.Nonce)
	r, ref := s.minted()
	s.requireCommitted(t, s.do(r), ref)

	metadata := httptest.NewRequest(http.MethodGet, "/.well-known/oauth-protected-resource/ledger", nil)
	require.NotEmpty(t, s.do(metadata).Header.Get(api.HeaderNonce))
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	answer := s.do(httptest.NewRequest(http.MethodGet, "/.well-known/oauth-protected-resource/ledger", nil))
	require.Equal(t, http.StatusOK, answer.Status)
	require.JSONEq(t, `{"resource":"https://guard.example/ledger","authorization_servers":["https://authority.example"],
		"dpop_signing_alg_values_supported":["ES256"],"dpop_bound_access_tokens_required":true,
		"authorization_details_types_supported":["urn:nightwarrant:effect"]}`, answer.Text)
	answer = s.do(httptest.NewRequest(http.MethodPost, "/.well-known/oauth-protected-resource/ledger", nil))
	require.Equal(t, http.StatusMethodNotAllowed, answer.Status)
	answer = s.do(httptest.NewRequest(http.MethodGet, "/.well-known/oauth-protected-resource", nil))
	require.Equal(t, http.StatusNotFound, answer.Status)
}

func TestGuardSpellsTheEffectItself(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	spaced := []byte(` { "parameters" : {"values":{"paid":true,"id":"\u0031"},"table":"orders"} , "resource":"table:orders"} `)
	s.requireCommitted(t, s.do(s.worker.Request("row.append", token, spaced)), ref)
	require.Equal(t, `{"table":"orders","values":{"id":"1","paid":true}}`, string(s.ledger.applied[0].Params), "canonical, whatever was sent")
	require.Equal(t, "row.append", s.ledger.intents[0].Action)
	require.Equal(t, s.authority.Effect(ref).Digest, s.ledger.intents[0].Digest)
}

// TestOverTCP: deadlines, a real server and a worker's plain client.
func TestOverTCP(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	server := httptest.NewServer(s.guard)
	defer server.Close()
	r, ref := s.minted()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+r.URL.Path, r.Body)
	require.NoError(t, err)
	request.Header = r.Header
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, response.StatusCode, string(body))
	require.Equal(t, "committed", s.authority.Effect(ref).State)
}

func TestCapabilityIsNotReadForTheEffect(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	e := authoritytest.EffectOf("row.append", order("1"))
	e.ParamsDigest = [32]byte{9}
	token, ref := s.authority.Mint(s.worker.Key.Thumbprint(), e, s.lane, 1)
	answer := s.do(s.worker.Request("row.append", token, order("1")))
	require.Equal(t, api.EffectMismatch, answer.Problem.Code)
	s.requireUntouched(t, ref)
}
