package guardtest

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// answer is what the guard said; status 0 is that it said nothing.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	outcome string // of the usual answer
}

const maxAnswer = 1 << 20

// send sends to this process, whatever the request's URL names.
func (p *process) send(r *http.Request) answer {
	r.URL.Scheme, r.URL.Host = "http", p.address // and r.Host stays
	response, err := p.w.client.Do(r)
	if err != nil {
		return answer{}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}
	}
	a := answer{status: response.StatusCode, header: response.Header, body: body}
	var read struct {
		Outcome string `json:"outcome"`
	}
	if json.Unmarshal(body, &read) == nil {
		a.outcome = read.Outcome
	}
	p.w.checkSecrets("an answer", body)
	return a
}

func (a answer) String() string { return http.StatusText(a.status) + " " + string(a.body) }

// refused is a definite no: the worker knows that nothing happened.
func (a answer) refused() bool { return a.status >= 400 && a.status <= 599 }

// state is what the authority has recorded.
func (w *world) state(e *effect) string { return w.authority.Effect(e.ref).State }

func (w *world) applied(e *effect) int {
	w.Helper()
	n, err := w.guard.Applied(e.n)
	require.NoError(w, err, "counting effect %d", e.n)
	return n
}

// requireCommitted: it was answered, recorded and done, once.
func (w *world) requireCommitted(e *effect, a answer) {
	w.Helper()
	require.Equal(w, http.StatusOK, a.status, "%s", a)
	require.Equal(w, api.Committed, w.state(e), "as the authority has it; the guard said %s", a)
	if a.outcome != "" {
		require.Equal(w, api.Committed, a.outcome)
	}
	require.Equal(w, 1, w.applied(e), "times that effect %d happened", e.n)
}

// requireUntouched: it was refused, nothing was consumed and nothing done.
func (w *world) requireUntouched(e *effect, a answer) {
	w.Helper()
	require.True(w, a.refused(), "it was not refused: %d %s", a.status, a)
	require.Equal(w, "minted", w.state(e), "as the authority has it")
	require.Zero(w, w.applied(e), "times that effect %d happened", e.n)
}

// requireNothingAsked: the guard refused by itself, before it asked the authority.
func (w *world) requireNothingAsked() {
	w.Helper()
	require.Zero(w, w.authority.Count(api.PathAdmit)-w.asked, "times that the authority was asked for a go-ahead")
}

// endOf waits until an effect has its end, and returns it.
func (w *world) endOf(e *effect) string {
	w.Helper()
	w.await("the effect is settled", func(a *authoritytest.Authority) bool { return isEnd(a.Effects[e.ref].State) })
	return w.state(e)
}

func isEnd(state string) bool {
	return state == api.Committed || state == api.NotApplied || state == api.Ambiguous
}

// overdue lets the time to apply pass at the authority.
func (w *world) overdue(effects ...*effect) {
	w.authority.Do(func(a *authoritytest.Authority) {
		for _, e := range effects {
			if known := a.Effects[e.ref]; known.State == "admitted" {
				known.ApplyUntil = known.ApplyUntil.Add(-a.ApplyWithin)
			}
		}
	})
}

// judge holds every effect of the case to its end.
func (w *world) judge() {
	w.Helper()
	if len(w.running) == 0 && w.owed() {
		w.start()
	}
	w.overdue(w.effects...)
	w.await("every admitted effect has its end", func(a *authoritytest.Authority) bool {
		for _, e := range w.effects {
			if a.Effects[e.ref].State == "admitted" {
				return false
			}
		}
		return true
	})
	for _, e := range w.effects {
		w.judgeOne(e)
	}
	w.authority.Do(func(a *authoritytest.Authority) {
		if !w.mistrusts {
			assert.Empty(w, a.Wrong, "the guard said what no guard must say")
		}
	})
}

func (w *world) owed() bool {
	for _, e := range w.effects {
		if w.state(e) == "admitted" {
			return true
		}
	}
	return false
}

// judgeOne compares what is recorded with what happened.
func (w *world) judgeOne(e *effect) {
	w.Helper()
	recorded, n := w.authority.Effect(e.ref), w.applied(e)
	switch recorded.State {
	case api.Committed:
		assert.Equal(w, 1, n, "effect %d is recorded as committed; times that it happened", e.n)
	case api.Ambiguous:
		assert.LessOrEqual(w, n, 1, "effect %d is recorded as ambiguous; times that it happened", e.n)
		assert.False(w, w.guard.Provable && !w.mistrusts, "effect %d is ambiguous, at a guard that can prove it", e.n)
		w.judgeEvidence(e, recorded.Evidence)
	default:
		assert.Zero(w, n, "effect %d is recorded as %s; times that it happened", e.n, recorded.State)
	}
}

// judgeEvidence: a guard need not know anything, but what it shows the owner is about this effect.
func (w *world) judgeEvidence(e *effect, shown *api.Evidence) {
	w.Helper()
	if shown == nil || shown.Parameters == nil {
		return
	}
	want, _, err := capability.ParamsDigest(e.Parameters)
	require.NoError(w, err)
	got, _, err := capability.ParamsDigest(shown.Parameters)
	assert.True(w, err == nil && got == want, "the evidence of effect %d is about other parameters", e.n)
}

// checkLog: whatever a process says, it never repeats what grants something.
func (w *world) checkLog() {
	said := w.log.bytes()
	for _, secret := range w.secrets {
		assert.False(w, secret != "" && bytes.Contains(said, []byte(secret)), "the guard wrote a capability or a proof into its log")
	}
	assert.False(w, bytes.Contains(said, []byte(authoritytest.Assertion)), "the guard wrote its assertion into its log")
	w.checkSecrets("its log", said)
}

func (w *world) checkSecrets(where string, text []byte) {
	for _, secret := range w.guard.Secrets {
		assert.False(w, bytes.Contains(text, []byte(secret)), "the guard wrote a secret of its own into %s", where)
	}
}
