package guardtest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// authorityCases are about what may become of the authority's answers.
var authorityCases = []named{
	{"closed gate", closedGate, calm},
	{"refusals", refusals, calm},
	{"redirect", redirect, alone},
	{"answers that are none", badAnswers, alone},
	{"lost question", lostQuestion, calm},
	{"lost admit answer", lostAdmitAnswer, calm},
	{"admit answers that stay lost", lostForGood, calm},
	{"lost settle", lostSettle, calm},
	{"settle that stays lost", lostSettleForLong, alone},
	{"authority away", authorityAway, alone},
	{"stale component capability", staleComponent, alone},
	{"superseded", superseded, alone},
}

// closedGate: nothing is applied while the gate is closed, nothing is consumed, and the worker is told when to come again.
func closedGate(w *world) {
	p := w.start()
	e := w.next()
	w.verdict(api.PathAdmit, api.AdmissionClosed)
	a := w.present(p, e)
	w.requireUntouched(e, a)
	require.Equal(w, http.StatusServiceUnavailable, a.status, "%s", a)
	require.NotEmpty(w, a.header.Get("Retry-After"), "when to come again")
	w.verdict(api.PathAdmit, "")
	w.requireCommitted(e, w.present(p, e))
}

func (w *world) verdict(path string, code api.Code) {
	w.authority.Do(func(a *authoritytest.Authority) { a.Verdicts[path] = code })
}

// refusals: every no is a no.
func refusals(w *world) {
	p := w.start()
	for _, code := range []api.Code{api.WorkerProof, api.ProofReplayed, api.EffectMismatch, api.EffectAlreadyAdmitted, api.EffectSettled, api.FenceStale,
		api.WrongGuard, api.Unavailable, api.TooManyRequests, api.InvalidRequest} {
		e := w.next()
		w.verdict(api.PathAdmit, code)
		w.requireUntouched(e, w.present(p, e))
	}
	w.verdict(api.PathAdmit, "")
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
}

// redirect: nobody is followed with a capability, a proof or an assertion.
func redirect(w *world) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		stolen.Add(1)
		w.authority.ServeHTTP(rw, r) // what he does not know he asks the authority
	}))
	w.Cleanup(thief.Close)
	for _, path := range []string{api.PathAdmit, api.PathToken, api.PathJWKS} {
		w.authority.Rule(path, authoritytest.Redirect(thief.URL+path))
		if path == api.PathAdmit {
			p := w.start()
			e := w.next()
			w.requireUntouched(e, w.present(p, e))
			w.kill(p)
		} else {
			w.startUnready()
		}
		require.Zero(w, stolen.Load(), "times that the guard followed a redirect of %s", path)
		w.authority.Rule(path, nil)
	}
	w.authority.Rule(api.PathSettle, authoritytest.Redirect(thief.URL+api.PathSettle))
	p := w.start()
	e := w.next()
	w.present(p, e)
	require.Zero(w, stolen.Load(), "times that the guard followed a redirect of %s", api.PathSettle)
	w.authority.Rule(api.PathSettle, nil)
	w.overdue(e)
	require.Equal(w, api.Committed, w.endOf(e))
}

// startUnready starts a process that cannot get ready, presents an effect to it and kills it.
func (w *world) startUnready() {
	w.Helper()
	setting := w.setting
	setting.Listen = freeAddress(w)
	started, err := w.guard.Start(setting)
	require.NoError(w, err)
	p := &process{Process: started, w: w, address: setting.Listen}
	w.running = append(w.running, p)
	_ = p.dial().Close()
	e := w.next()
	w.requireUntouched(e, w.present(p, e))
	w.kill(p)
}

// badAnswers: what cannot be read, or is about something else, is no go-ahead.
func badAnswers(w *world) {
	p := w.start()
	w.mistrusts = true
	other := w.next()
	goAhead := func(change func(a *api.Admission)) string {
		a := api.Admission{Effect: other.ref, Run: authoritytest.Ref(), Lane: w.lane, Fence: 1, ApplyWithinMS: 10_000, Number: 1, WorkerNonce: "n"}
		change(&a)
		text, _ := json.Marshal(a)
		return string(text)
	}
	for name, rule := range map[string]authoritytest.Rule{
		"nothing":                        authoritytest.Say(http.StatusOK, ""),
		"no JSON":                        authoritytest.Say(http.StatusOK, "<html>ok</html>"),
		"an empty object":                authoritytest.Say(http.StatusOK, "{}"),
		"half a go-ahead":                authoritytest.Say(http.StatusOK, goAhead(func(*api.Admission) {})[:80]),
		"the go-ahead for another":       authoritytest.Say(http.StatusOK, goAhead(func(*api.Admission) {})),
		"a refusal with status 200":      authoritytest.Say(http.StatusOK, `{"code":"admission_closed","status":503}`),
		"a go-ahead with status 500":     authoritytest.Say(http.StatusInternalServerError, goAhead(func(*api.Admission) {})),
		"a refusal that nobody knows":    authoritytest.Say(http.StatusTeapot, `{"code":"teapot"}`),
		"a login page":                   authoritytest.Say(http.StatusForbidden, "<html>log in</html>"),
		"an answer of unheard-of length": authoritytest.Say(http.StatusOK, `{"effect":"`+string(padded([]byte(`"}`), 4<<20))),
	} {
		e := w.next()
		w.authority.Rule(api.PathAdmit, rule)
		a := w.present(p, e)
		require.True(w, a.refused(), "%s: it was answered with %d %s", name, a.status, a)
		require.Zero(w, w.applied(e), "%s: times that it happened", name)
	}
	w.authority.Rule(api.PathAdmit, nil)
	require.Zero(w, w.applied(other))
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
}

// lostQuestion: it never arrived. The guard may ask again; if it does not, the worker can.
func lostQuestion(w *world) {
	p := w.start()
	e := w.next()
	held := w.authority.Catch(api.PathAdmit, e.ref)
	done := w.begin(p, e)
	w.arrive("the question", held.Arrived())
	held.Lose()
	if a := <-done; a.status != http.StatusOK {
		require.Equal(w, "minted", w.state(e))
		w.requireCommitted(e, w.present(p, e))
	}
	require.Equal(w, 1, w.applied(e))
}

// lostAdmitAnswer: the effect is consumed and the guard does not know. It asks again as the same attempt, or applies
// nothing and finds out later; never as another attempt.
func lostAdmitAnswer(w *world) {
	p := w.start()
	e := w.next()
	held := w.authority.Catch(api.PathAdmit, e.ref)
	done := w.begin(p, e)
	w.arrive("the question", held.Arrived())
	held.Act()
	held.Lose()
	a := <-done
	require.Len(w, w.authority.Effect(e.ref).Asked, 1, "attempts of one presentation")
	if a.status == http.StatusOK {
		w.endOf(e)
		return
	}
	w.overdue(e)
	require.NotEqual(w, api.Committed, w.endOf(e), "the worker was told %s", a)
}

// lostForGood: without a go-ahead nothing is applied, and the sweep finds the admission that nobody owns (P15).
func lostForGood(w *world) {
	p := w.start()
	e := w.next()
	w.authority.Rule(api.PathAdmit, authoritytest.LoseAnswer)
	a := w.present(p, e)
	w.authority.Rule(api.PathAdmit, nil)
	require.NotEqual(w, http.StatusOK, a.status, "%s", a)
	require.Zero(w, w.applied(e), "times that it happened without a go-ahead")
	require.Len(w, w.authority.Effect(e.ref).Asked, 1, "attempts of one presentation")
	w.overdue(e)
	require.NotEqual(w, api.Committed, w.endOf(e))
	again := w.present(p, e)
	require.True(w, again.refused(), "it was presented again and answered with %d %s", again.status, again)
	require.Zero(w, w.applied(e))
}

// lostSettle: the outcome is said again until it is heard (P16), and it is the same one.
func lostSettle(w *world) {
	p := w.start()
	for _, acts := range []bool{false, true} {
		e := w.next()
		held := w.authority.Catch(api.PathSettle, e.ref)
		done := w.begin(p, e)
		w.arrive("the settlement", held.Arrived())
		if acts {
			held.Act()
		}
		held.Lose()
		<-done
		w.overdue(e)
		require.Equal(w, api.Committed, w.endOf(e))
		require.Equal(w, 1, w.applied(e))
	}
}

func lostSettleForLong(w *world) {
	p := w.start()
	e := w.next()
	w.authority.Rule(api.PathSettle, authoritytest.Break)
	w.present(p, e)
	require.Equal(w, 1, w.applied(e))
	w.overdue(e)
	w.sweeps(2)
	require.Equal(w, "admitted", w.state(e))
	w.kill(p)
	w.authority.Rule(api.PathSettle, nil)
	w.start()
	require.NotEqual(w, api.NotApplied, w.endOf(e), "of an effect that has happened")
}

// authorityAway: nothing happens without it, and nobody has to restart the guard when it is back.
func authorityAway(w *world) {
	p := w.start()
	e := w.next()
	for _, path := range []string{api.PathAdmit, api.PathToken, api.PathUnsettled, api.PathNonces, api.PathReports + "guards"} {
		w.authority.Rule(path, authoritytest.Break)
	}
	w.requireUntouched(e, w.present(p, e))
	for _, path := range []string{api.PathAdmit, api.PathToken, api.PathUnsettled, api.PathNonces, api.PathReports + "guards"} {
		w.authority.Rule(path, nil)
	}
	w.requireCommitted(e, w.present(p, e))
}

// staleComponent: the authority no longer takes the guard's own capability, or its nonce. The guard gets others by itself.
func staleComponent(w *world) {
	p := w.start()
	for _, spoil := range []func(){w.authority.Revoke, w.authority.Forget} {
		e := w.next()
		spoil()
		if a := w.present(p, e); a.status != http.StatusOK {
			w.requireUntouched(e, a)
			a = w.present(p, e)
			require.Equal(w, http.StatusOK, a.status, "the guard does not get another capability: %s", a)
		}
		require.Equal(w, api.Committed, w.state(e))
		require.Equal(w, 1, w.applied(e))
	}
}

// superseded: a later boot of the instance has registered; what is left of the earlier one does nothing more.
func superseded(w *world) {
	p := w.start()
	w.authority.Do(func(a *authoritytest.Authority) { a.Latest++ })
	e := w.next()
	a := w.present(p, e)
	require.NotEqual(w, http.StatusOK, a.status, "%s", a)
	require.Zero(w, w.applied(e), "times that it happened")
	require.Equal(w, "minted", w.state(e))
	w.kill(p)
	w.requireCommitted(e, w.present(w.start(), e))
}
