package model

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
)

func TestCallIsChargedForWhatItUsed(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ask{"chat": chat(5, ""), "response": response(5, "")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			got := s.do(t, a)
			require.Equal(t, http.StatusOK, got.StatusCode, got.text)
			require.Contains(t, got.text, "The answer of a little")
			require.Equal(t, "committed", got.Header.Get(guards.HeaderOutcome))
			require.Equal(t, "false", got.Header.Get("X-Should-Retry"))
			s.requireSpent(t, got, 6) // five words, and the input, which is rounded up
			require.Equal(t, int64(5), s.provider.Calls()[0].Output)
			require.Empty(t, s.authority.Wrong)
		})
	}
}

func TestStreamIsPassedOnAndChargedForWhatItUsed(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]ask{"chat": chat(5, streamed), "response": response(5, `,"stream":true`)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			got := s.do(t, a)
			require.Equal(t, http.StatusOK, got.StatusCode, got.text)
			require.Equal(t, "text/event-stream", got.Header.Get("Content-Type"))
			require.Equal(t, got.ref, got.Header.Get(guards.HeaderEffect))
			require.Equal(t, "committed", got.Trailer.Get(guards.HeaderOutcome))
			for _, word := range []string{`"The `, `"answer `, `"of `, `"a `, `"little"`} {
				require.Contains(t, got.text, word)
			}
			require.NotContains(t, got.text, "error\":{")
			s.requireSpent(t, got, 6)
		})
	}
}

func TestRequestThatIsShownStandsInTheParameters(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := chat(5, "")
	a.form = "text"
	got := s.do(t, a)
	require.Equal(t, http.StatusOK, got.StatusCode, got.text)
	s.requireSpent(t, got, 6)
}

func TestWhatACallMayCostMustBeReserved(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	a := chat(20, "")
	a.cost = "20 EUR"
	got := s.do(t, a)
	s.requireRefused(t, got, http.StatusBadRequest, api.InvalidRequest)
	require.Contains(t, got.text, "may cost up to 21 in minor units of EUR")
	a.cost = "21 EUR"
	require.Equal(t, http.StatusOK, s.do(t, a).StatusCode)
}

func TestCallIsRefusedBeforeAnythingIsConsumed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*ask)
		says   string
	}{
		"another currency": {func(a *ask) { a.cost = "50 USD" }, "paid in EUR"},
		"another model":    {func(a *ask) { a.body = strings.Replace(a.body, "little", "large", 1) }, "does not serve that model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			a := chat(5, "")
			c.change(&a)
			got := s.do(t, a)
			s.requireRefused(t, got, http.StatusBadRequest, api.InvalidRequest)
			require.Contains(t, got.text, c.says)
		})
	}
}

// TestBodyIsTheOneThatWasMinted: another body has another digest, however little it differs.
func TestBodyIsTheOneThatWasMinted(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	for _, form := range []string{"text", "digest"} {
		a := chat(5, "")
		a.form = form
		token, ref := s.mint(t, a)
		a.body = strings.Replace(a.body, "0.7", "0.70", 1)
		s.requireRefused(t, s.send(t, s.request(t, a, token), ref), http.StatusForbidden, api.EffectMismatch)
	}
}

// TestOperationsAnswerToo: the guards' own spelling, where the request stands in the parameters.
func TestOperationsAnswerToo(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	own := func(a ask) authoritytest.Answer {
		params, err := parameters(s.config.BaseURL, dialects[a.action()], a.header(), []byte(a.body))
		require.NoError(t, err)
		a.params = params
		token, _ := s.mint(t, a)
		return s.worker.Do(s.guard, s.worker.Request(a.action(), token, authoritytest.Body{Resource: URL(s.config.BaseURL, little),
			Parameters: params, Amount: 50, Currency: "EUR"}))
	}
	shown := chat(5, "")
	shown.form = "text"
	answer := own(shown)
	require.Equal(t, "committed", answer.Outcome, answer.Text)
	require.Contains(t, string(answer.Result), "The answer of a little")
	require.Equal(t, api.InvalidRequest, own(chat(5, "")).Problem.Code, "there is no body beside a digest")
	shown = chat(5, streamed)
	shown.form = "text"
	require.Contains(t, own(shown).Problem.ErrorDescription, "A stream is asked for at /v1/chat/completions")
	require.Equal(t, 1, s.provider.Asked())
}

func TestCredentialThatIsNoneIsRefusedHere(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"blank": " \n", "empty": "", "expired": `{"value":"` + key + `","expires_at":"2020-01-01T00:00:00Z"}`, "two lines": key + "\n" + key, "short": "sk-1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, func(c *Config) { c.Credential = fileWith(t, text) })
			got := s.do(t, chat(5, ""))
			s.requireRefused(t, got, http.StatusServiceUnavailable, api.CredentialUnavailable)
			require.NotEmpty(t, got.Header.Get("Retry-After"))
			s.requireQuiet(t, got)
		})
	}
	s := newStand(t, func(c *Config) { c.Credential = CredentialEnv("NIGHTWARRANT_TEST_NO_SUCH_KEY") })
	s.requireRefused(t, s.do(t, chat(5, "")), http.StatusServiceUnavailable, api.CredentialUnavailable)
}

// TestProviderErrorIsNormalised: what a provider says of an error stays with it, and what it proves is settled (P14).
func TestProviderErrorIsNormalised(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault    modelserver.Fault
		status   int
		code     api.Code
		outcome  string
		answered string
	}{
		"401":                       {modelserver.Unauthorized, 503, api.CredentialUnavailable, api.NotApplied, ""},
		"429":                       {modelserver.Limited, 429, api.TooManyRequests, api.NotApplied, ""},
		"500":                       {modelserver.Failing, 409, api.EffectAmbiguous, api.Ambiguous, api.AnsweredStatus},
		"503":                       {modelserver.Overloaded, 409, api.EffectAmbiguous, api.Ambiguous, api.AnsweredStatus},
		"307":                       {modelserver.Moved, 409, api.EffectAmbiguous, api.Ambiguous, api.AnsweredStatus},
		"a compressed bomb":         {modelserver.Bomb, 409, api.EffectAmbiguous, api.Ambiguous, api.AnsweredMalformed},
		"a connection that ends":    {modelserver.HangUp, 409, api.EffectAmbiguous, api.Ambiguous, api.AnsweredConnection},
		"no JSON":                   {modelserver.Garbage, 409, api.EffectSettled, api.Committed, ""},
		"an answer without its end": {modelserver.Broken, 409, api.EffectSettled, api.Committed, ""},
		"an answer without end":     {modelserver.Endless, 409, api.EffectSettled, api.Committed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, func(c *Config) { c.MaxAnswer = 64 << 10 })
			s.provider.Set(c.fault)
			got := s.do(t, chat(5, ""))
			require.Equal(t, c.status, got.StatusCode, got.text)
			require.Equal(t, string(c.code), got.code())
			e := s.effect(got.ref)
			require.Equal(t, c.outcome, e.State)
			if c.answered != "" {
				require.Equal(t, c.answered, e.Evidence.Answered)
				require.NotZero(t, e.Evidence.SentUnixMS)
				require.Contains(t, string(e.Evidence.Parameters), "request_sha256")
			}
			if c.outcome == api.Committed {
				require.Nil(t, e.Spent, "all that was reserved")
			}
			s.requireQuiet(t, got)
			require.Equal(t, 1, s.provider.Asked())
			require.Empty(t, s.authority.Wrong)
		})
	}
}

// TestRefusedByWordOfItsOperator: a provider whose 503 says that nothing was done.
func TestRefusedByWordOfItsOperator(t *testing.T) {
	t.Parallel()
	s := newStand(t, func(c *Config) { c.Refused = []int{503} })
	s.provider.Set(modelserver.Overloaded)
	got := s.do(t, chat(5, ""))
	require.Equal(t, string(api.Unavailable), got.code())
	require.Equal(t, api.NotApplied, s.effect(got.ref).State)
}

func TestProviderThatIsNotThereIsNotAsked(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"closed":     func(c *Config) { c.BaseURL = "http://127.0.0.1:1/v1" },
		"not listed": func(c *Config) { c.Private = nil },
		"metadata":   func(c *Config) { c.BaseURL, c.Private = "http://169.254.169.254/v1", []string{"169.254.0.0/16"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t, change)
			got := s.do(t, chat(5, ""))
			require.Equal(t, string(api.Unavailable), got.code(), got.text)
			require.Equal(t, api.NotApplied, s.effect(got.ref).State)
			require.Zero(t, s.provider.Asked())
		})
	}
}

func TestUsageThatCannotBeTrueChargesAllThatWasReserved(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]modelserver.Fault{
		"none": modelserver.NoUsage, "nothing": modelserver.ZeroUsage, "less than nothing": modelserver.NegativeUsage, "absurd": modelserver.AbsurdUsage,
	} {
		for _, a := range []ask{chat(5, ""), chat(5, streamed), response(5, ""), response(5, `,"stream":true`)} {
			t.Run(name+a.path, func(t *testing.T) {
				t.Parallel()
				s := newStand(t)
				s.provider.Set(fault)
				got := s.do(t, a)
				require.Equal(t, http.StatusOK, got.StatusCode, got.text)
				s.requireSpent(t, got, -1)
			})
		}
	}
}

func TestOverrunIsChargedAsItIs(t *testing.T) {
	t.Parallel()
	for _, a := range []ask{chat(5, ""), chat(5, streamed), response(5, `,"stream":true`)} {
		s := newStand(t)
		s.provider.Set(modelserver.Overrun)
		got := s.do(t, a)
		require.Equal(t, http.StatusOK, got.StatusCode, got.text)
		s.requireSpent(t, got, 501)
		require.Contains(t, s.log.String(), "cost more than was reserved")
	}
}
