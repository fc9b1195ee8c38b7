package model

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
)

// goAhead is an attempt at a call, as a guard makes it.
func (s *stand) goAhead(t *testing.T, fence int64) guards.Admitted {
	t.Helper()
	a := chat(5, "")
	params, err := parameters(s.config.BaseURL, dialects[ChatComplete], a.header(), []byte(a.body))
	require.NoError(t, err)
	return guards.Admitted{
		Attempt: guards.Attempt{Effect: guards.NewRef(), ID: guards.NewRef(), Action: ChatComplete, Params: params, Body: []byte(a.body),
			Target: guards.Target{Resource: URL(s.config.BaseURL, little), Amount: 50, Currency: "EUR"}},
		Lane: guards.NewRef(), Run: guards.NewRef(), Fence: fence, Number: fence, Left: func() time.Duration { return time.Minute },
	}
}

func (s *stand) requireNotApplied(t *testing.T, a guards.Admitted, reason api.Code) {
	t.Helper()
	ending, err := s.ledger.Apply(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, ending.Outcome)
	require.Equal(t, reason, ending.Reason)
	require.Zero(t, s.provider.Asked())
	proven, err := s.ledger.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
}

func TestLateGoAheadIsNotSent(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := s.goAhead(t, 1)
	require.NoError(t, s.ledger.Intend(t.Context(), a.Attempt))
	a.Left = func() time.Duration { return 0 }
	s.requireNotApplied(t, a, api.TooLate)
}

// TestGoAheadThatEndsWhileConnectingIsNotSent: the time is judged again after everything was written.
func TestGoAheadThatEndsWhileConnectingIsNotSent(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := s.goAhead(t, 1)
	require.NoError(t, s.ledger.Intend(t.Context(), a.Attempt))
	asked := 0
	a.Left = func() time.Duration { asked++; return time.Duration(3-asked) * time.Second }
	s.requireNotApplied(t, a, api.TooLate)
}

func TestLowerFenceIsNotSent(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	first := s.goAhead(t, 7)
	require.NoError(t, s.ledger.Intend(t.Context(), first.Attempt))
	s.provider.Set(modelserver.Limited)
	_, err := s.ledger.Apply(t.Context(), first)
	require.NoError(t, err)
	seen, err := s.ledger.Probe(t.Context())
	require.NoError(t, err)
	require.Equal(t, guards.Seen{Fence: 7, Admission: 7}, seen)

	lower := s.goAhead(t, 6)
	lower.Lane = first.Lane
	require.NoError(t, s.ledger.Intend(t.Context(), lower.Attempt))
	ending, err := s.ledger.Apply(t.Context(), lower)
	require.NoError(t, err)
	require.Equal(t, api.FenceStale, ending.Reason)
	require.Equal(t, 1, s.provider.Asked())
}

// TestTombstoneKeepsALateApplyOut: what was proven not to have happened never does (P14).
func TestTombstoneKeepsALateApplyOut(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := s.goAhead(t, 1)
	require.NoError(t, s.ledger.Intend(t.Context(), a.Attempt))
	proven, err := s.ledger.Prove(t.Context(), a.Effect, a.ID)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
	s.requireNotApplied(t, a, api.EffectSettled)
	require.ErrorIs(t, s.ledger.Intend(t.Context(), a.Attempt), guards.ErrSettled)
}

// TestSuccessorKnowsWhatWasSent: a process that was killed in the middle of a call leaves it ambiguous, and one that was killed
// before leaves proof that nothing was sent.
func TestSuccessorKnowsWhatWasSent(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	sent, unsent := s.goAhead(t, 1), s.goAhead(t, 1)
	require.NoError(t, s.ledger.Intend(t.Context(), sent.Attempt))
	require.NoError(t, s.ledger.Intend(t.Context(), unsent.Attempt))
	require.NoError(t, s.ledger.journal.StartSending(sent, time.Now()))
	require.NoError(t, s.ledger.Close())

	successor, err := New(s.config)
	require.NoError(t, err)
	defer successor.Close()
	proven, err := successor.Prove(t.Context(), sent.Effect, sent.ID)
	require.NoError(t, err)
	require.Equal(t, guards.Ambiguous, proven.Outcome)
	require.Equal(t, api.AnsweredNothing, proven.Evidence.Answered)
	require.JSONEq(t, string(sent.Params), string(proven.Evidence.Parameters))
	proven, err = successor.Prove(t.Context(), unsent.Effect, unsent.ID)
	require.NoError(t, err)
	require.Equal(t, guards.NotApplied, proven.Outcome)
}

// TestCredentialThatIsTakenAwayAfterAdmission: nothing was sent, and that is proven.
func TestCredentialThatIsTakenAwayAfterAdmission(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte(key), 0o600))
	s := newStand(t, func(c *Config) { c.Credential = CredentialFile(path) })
	s.authority.Intercept = func(_ context.Context, called string, answer func() *http.Response) (*http.Response, error) {
		if called == api.PathAdmit {
			require.NoError(t, os.Remove(path))
		}
		return answer(), nil
	}
	got := s.do(t, chat(5, ""))
	require.Equal(t, string(api.CredentialUnavailable), got.code())
	require.Equal(t, "not_applied", got.Header.Get(guards.HeaderOutcome))
	require.Equal(t, api.NotApplied, s.effect(got.ref).State)
	require.Zero(t, s.provider.Asked())
}

// TestCredentialIsReadAnew: a key that is replaced needs no restart, and the old one is kept out of answers no longer than it
// is used.
func TestCredentialIsReadAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(path, []byte("sk-of-yesterday-1234"), 0o600))
	s := newStand(t, func(c *Config) { c.Credential = CredentialFile(path) })
	got := s.do(t, chat(5, ""))
	require.Equal(t, string(api.CredentialUnavailable), got.code(), "the provider does not know it")
	s.requireQuiet(t, got)
	require.NoError(t, os.WriteFile(path, []byte(key), 0o600))
	require.Equal(t, http.StatusOK, s.do(t, chat(5, "")).StatusCode)
}

func TestReportsNameTheModels(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.guard.Run(ctx) }()
	waiting, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	require.NoError(t, s.authority.Await(waiting, func() bool { return len(s.authority.Reports) > 0 }))
	cancel()
	require.NoError(t, <-done)
	digest := Digest(s.config.BaseURL, little, version)
	require.Equal(t, []string{encode(digest)}, s.authority.Reports[0].Models)
	require.True(t, s.authority.Reports[0].Healthy)
	require.NotEqual(t, encode([32]byte{}), s.authority.Reports[0].Catalogue)
}

// TestParametersAndRequestSayTheSame: the parameters are what was consented to and paid for, whoever spelled them.
func TestParametersAndRequestSayTheSame(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *Config) { c.Models["other"] = Model{Version: version, Price: price} })
	honest := s.goAhead(t, 1).Attempt
	_, err := s.ledger.read(honest)
	require.NoError(t, err)
	shown, err := parameters(s.config.BaseURL, dialects[ChatComplete], ask{cost: "50 EUR", form: "text"}.header(), honest.Body)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		params              string
		before, after, says string
	}{
		"another model":        {string(shown), "/models/little", "/models/other", "another model"},
		"another bound":        {string(shown), `"max_output_tokens":5`, `"max_output_tokens":4`, "another bound"},
		"another bound, too":   {string(honest.Params), `"max_output_tokens":5`, `"max_output_tokens":6`, "another bound"},
		"another length":       {string(honest.Params), `"request_bytes":1`, `"request_bytes":2`, "by its digest"},
		"another digest":       {string(honest.Params), `"request_sha256":"`, `"request_sha256":"A`, "by its digest"},
		"a model of elsewhere": {string(honest.Params), "/v1/models/", "/v2/models/", "does not serve"},
	} {
		require.Contains(t, c.params, c.before, name)
		a := honest
		a.Params = json.RawMessage(strings.Replace(c.params, c.before, c.after, 1))
		_, err := s.ledger.read(a)
		require.ErrorContains(t, err, c.says, name)
		require.ErrorContains(t, s.ledger.Intend(t.Context(), a), c.says, name)
	}
	stolen := honest
	stolen.Body = append([]byte(" "), honest.Body...)
	_, err = s.ledger.read(stolen)
	require.ErrorContains(t, err, "by its digest")
	require.Zero(t, s.provider.Asked())
}
