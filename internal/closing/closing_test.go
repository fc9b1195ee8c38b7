package closing

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/guards"
)

// Every kind of the issue is there, once, can be brought about and healed.
func TestFaults(t *testing.T) {
	t.Parallel()
	assert.ElementsMatch(t, []string{"postgres_stopped", "postgres_killed", "postgres_read_only", "disk_full", "nats_killed", "stream_deleted", "consumer_deleted",
		"sync_always_off", "guard_killed", "guard_protocol", "guard_model", "guard_dataset", "attestation_keys_gone", "profile_removed", "signing_broken", "webhook_gone",
		"report_frozen", "evaluators_stopped", "clock_skew"}, Kinds())
	for _, f := range faults() {
		assert.NotNil(t, f.strike, f.kind)
		assert.NotNil(t, f.heal, f.kind)
		assert.Equal(t, f.family == "", f.down || f.silent, "%s: the decision says why, or nobody can write it", f.kind)
	}
}

// One admission after one close is enough.
func TestOneLateAdmissionIsNotSound(t *testing.T) {
	t.Parallel()
	sound := func() Result { return Result{Faults: map[string]Fault{"a": {N: 1}, "b": {N: 1}}, Fsck: "ok"} }
	assert.True(t, sound().sound())
	for name, spoil := range map[string]func(*Result){
		"a fault":         func(r *Result) { r.Faults["b"] = Fault{N: 1, Late: 1} },
		"a close by hand": func(r *Result) { r.Explicit.Late = 1 },
		"the account":     func(r *Result) { r.Fsck = "[]" },
	} {
		r := sound()
		spoil(&r)
		assert.False(t, r.sound(), name)
	}
	assert.Equal(t, 3, faultOf([]injection{{late: 1}, {}, {late: 2}}).Late)
	assert.Error(t, counted{}.sound(), "nothing was closed")
	assert.Error(t, counted{closes: 1, wrong: []string{"x"}}.sound())
	assert.NoError(t, counted{closes: 1, late: 7}.sound(), "what is late is told, not hidden in an error")
}

func TestFaultOf(t *testing.T) {
	t.Parallel()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	f := faultOf([]injection{{admitted: ms(30), applied: ms(3), reopened: ms(2000)}, {admitted: ms(10), applied: ms(1), reopened: ms(1000)}, {admitted: ms(20), applied: ms(2), reopened: ms(3000)}})
	assert.Equal(t, Fault{N: 3, P50: 20, Max: 30, AppliedP50: 2, AppliedMax: 3, ReopenP50: 2000}, f)
	text, err := json.Marshal(f)
	require.NoError(t, err)
	assert.JSONEq(t, `{"n":3,"p50_ms":20,"max_ms":30,"applied_p50_ms":2,"applied_max_ms":3,"admitted_after_close":0,"reopen_p50_ms":2000}`, string(text))
	began := time.Now()
	assert.Zero(t, sinceFault(began, began.Add(-time.Second)), "it was over before")
	assert.Equal(t, time.Second, sinceFault(began, began.Add(time.Second)))
}

// An open loop sends what is due, also late, but not what an outage of a minute has piled up.
func TestNextDue(t *testing.T) {
	t.Parallel()
	at := time.Now()
	const every = 100 * time.Millisecond
	assert.Equal(t, at.Add(every), nextDue(at, every, at))
	assert.Equal(t, at.Add(every), nextDue(at, every, at.Add(arrears)), "late is not too late")
	next := nextDue(at, every, at.Add(time.Minute))
	assert.WithinRange(t, next, at.Add(time.Minute-every), at.Add(time.Minute))
	assert.Zero(t, next.Sub(at)%every, "the rhythm stays")
}

func TestTheLastAdmissionBeforeAnEpoch(t *testing.T) {
	t.Parallel()
	l := &load{granted: map[int64]time.Time{}}
	at := time.Now()
	assert.True(t, l.last(9).IsZero())
	l.note(2, at)
	l.note(2, at.Add(-time.Second))
	l.note(4, at.Add(time.Minute))
	assert.Equal(t, at, l.last(4), "an answer that came later is of an earlier question")
	assert.Equal(t, at.Add(time.Minute), l.last(5))
	assert.True(t, l.last(2).IsZero())
	assert.Equal(t, 3, l.total())
}

// What is refused waits for the next opening.
func TestSaturationStopsWhileClosed(t *testing.T) {
	t.Parallel()
	l := &load{opened: make(chan struct{})}
	l.open()
	l.open()
	require.True(t, l.whileOpen(t.Context()))
	l.shut()
	l.shut()
	passed := make(chan bool, 1)
	go func() { passed <- l.whileOpen(t.Context()) }()
	select {
	case <-passed:
		t.Fatal("it did not wait")
	case <-time.After(20 * time.Millisecond):
	}
	l.open()
	require.True(t, <-passed)
}

// The documents are ones that the authority takes.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		registry("http://127.0.0.1:1", "http://127.0.0.1:2/meter", 1): 6,
		requirement(4):                      1,
		profile("http://127.0.0.1:1", 7):    1,
		taskDocuments("http://127.0.0.1:3"): tasks + holders,
	} {
		parsed, err := document.ParseYAML([]byte(text))
		require.NoError(t, err, text)
		assert.Len(t, parsed, want)
		for _, d := range parsed {
			require.NoError(t, d.Validate(), text)
		}
	}
}

type recorder struct{ got []string }

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	r.got = append(r.got, string(body))
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, err
}

// Only reports are altered, only while a lie is told, and the rest of them stays.
func TestLies(t *testing.T) {
	t.Parallel()
	const report, other = `{"sequence":7,"healthy":true,"age_ms":3,"protocol":1}`, `{"a": 1}`
	to := &recorder{}
	l := &liar{by: to}
	send := func(method, path, body string) string {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://a"+path, bytes.NewReader([]byte(body)))
		require.NoError(t, err)
		a, err := l.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		return to.got[len(to.got)-1]
	}
	assert.Equal(t, report, send(http.MethodPut, api.PathReports+"guards", report))
	l.tell(func(r *api.Report) { r.Protocol++ })
	assert.JSONEq(t, strings.Replace(report, `"protocol":1`, `"protocol":2`, 1), send(http.MethodPut, api.PathReports+"guards", report))
	assert.Equal(t, other, send(http.MethodPost, api.PathAdmit, other))
	l.tell(nil)
	assert.Equal(t, report, send(http.MethodPut, api.PathReports+"guards", report))
}

// The last effect that counts is that of the highest admission before the close.
func TestLatestApplication(t *testing.T) {
	t.Parallel()
	at := time.Now()
	c := &clocked{applied: []application{{5, at.Add(time.Second)}, {4, at}, {6, at.Add(time.Minute)}}}
	assert.Equal(t, at.Add(time.Second), c.latest(5))
	assert.Equal(t, at, c.latest(4))
	assert.True(t, c.latest(3).IsZero())
	c.forget(at.Add(time.Millisecond))
	assert.True(t, c.latest(4).IsZero())
	assert.Equal(t, at.Add(time.Second), c.latest(5))
	var _ guards.Ledger = c
}
