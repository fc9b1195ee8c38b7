package exec

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/worker"
)

// bare is a job without a command: whoever connects is its peer.
func bare(t testing.TB, h Hold, change ...func(*process)) (j *job, path string) {
	t.Helper()
	r, err := New(Config{Command: []string{"none"}, SocketDir: "/tmp", OutputDir: "/tmp"})
	require.NoError(t, err)
	j = &job{runner: r, log: r.log, reference: h.Reference(), changed: make(chan struct{}), started: make(chan struct{})}
	session, err := unix.Getsid(0)
	require.NoError(t, err)
	j.process = &process{pid: session, uid: uint32(os.Geteuid())}
	for _, f := range change {
		f(j.process)
	}
	close(j.started)
	j.socket, err = openSocket("/tmp", nil)
	require.NoError(t, err)
	j.socket.serve(j)
	j.attach(h)
	t.Cleanup(func() { assert.NoError(t, j.socket.close()) })
	return j, j.socket.path
}

func client(t testing.TB, path string) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: within}
}

func post(t testing.TB, c *http.Client, path, body string) (status int, a Answer) {
	t.Helper()
	r, err := c.Post("http://run"+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close()
	_ = json.NewDecoder(r.Body).Decode(&a)
	return r.StatusCode, a
}

func TestOnlyItsAccountMayEnter(t *testing.T) {
	_, path := bare(t, newHold())
	for name, mode := range map[string]os.FileMode{path: 0o600 | os.ModeSocket, filepath.Dir(path): 0o700 | os.ModeDir} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode())
	}
}

func TestAStrangerGetsNoAnswer(t *testing.T) {
	for name, change := range map[string]func(*process){
		"another session": func(p *process) { p.pid = 1 },
		"another account": func(p *process) { p.uid++ },
	} {
		h := newHold()
		_, path := bare(t, h, change)
		_, err := client(t, path).Post("http://run/effects", "application/json", strings.NewReader(`{"key":"a"}`))
		assert.Error(t, err, name)
		assert.Empty(t, h.keys(), name)
	}
}

// A process of the machine that is none of the command's knows the path, and gets nothing; nor does one that has left the session.
func TestAStrangersProcess(t *testing.T) {
	s := newStage(t, `echo $NIGHTWARRANT_SOCKET > DIR/path; setsid ASK left > DIR/left 2>&1; echo $? > DIR/status; while :; do sleep 0.01; done`)
	h := newHold()
	lose, ended := s.begins(h)
	assert.Equal(t, "99", s.written("status"))
	binary, err := os.Executable()
	require.NoError(t, err)
	cmd := osexec.CommandContext(t.Context(), binary, "ask", "stranger")
	cmd.Env = []string{Variable + "=" + s.written("path")}
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	assert.Equal(t, "the socket of the run does not answer\n", string(out))
	assert.Empty(t, h.keys())
	assert.Equal(t, 1, strings.Count(s.log.String(), "a stranger"))
	lose(worker.ErrDeadline)
	require.ErrorIs(t, s.ends(ended), worker.ErrDeadline)
}

func TestRequestsThatAreNone(t *testing.T) {
	h := newHold()
	_, path := bare(t, h)
	c := client(t, path)
	for _, body := range []string{"", "{", "[]", `"a"`, `{"key":"a"} {}`, `{"key":"a","capability":"b"}`, `{"amount":1.5}`, `{"key":"` + strings.Repeat("a", maxBody) + `"}`} {
		status, a := post(t, c, "/effects", body)
		assert.Equal(t, http.StatusBadRequest, status, "%.30s", body)
		assert.Equal(t, Invalid, a.Outcome)
	}
	status, _ := post(t, c, "/progress", `{"secret":1}`)
	assert.Equal(t, http.StatusBadRequest, status)
	for method, want := range map[string]int{"/effects": http.StatusMethodNotAllowed, "/": http.StatusNotFound, "/v1/token": http.StatusNotFound} {
		r, err := c.Get("http://run" + method)
		require.NoError(t, err)
		_ = r.Body.Close()
		assert.Equal(t, want, r.StatusCode)
	}
	assert.Empty(t, h.keys(), "nothing was asked for")
}

func TestWhatACommandIsTold(t *testing.T) {
	for code, want := range map[api.Code]string{api.LimitReached: "limit", api.ApprovalDenied: "denied", api.NotGranted: "not_granted", api.FenceStale: "ended", api.EffectRepeated: "repeated",
		api.EffectKeyConflict: "conflict", api.EffectAmbiguous: "ambiguous", api.InvalidRequest: Unavailable} {
		h := newHold()
		h.becomes = func(worker.Effect) (worker.Result, error) {
			return worker.Result{}, typedAs(code)
		}
		_, path := bare(t, h)
		_, a := post(t, client(t, path), "/effects", `{"key":"a"}`)
		assert.Equal(t, want, a.Outcome, code)
		assert.Equal(t, string(code), a.Refusal)
	}
}

// typedAs is a refusal as a run tells it.
func typedAs(code api.Code) error {
	kinds := map[api.Code]error{api.LimitReached: worker.ErrLimit, api.ApprovalDenied: worker.ErrDenied, api.NotGranted: worker.ErrNotGranted, api.FenceStale: worker.ErrFenceLost,
		api.EffectRepeated: worker.ErrRepeated, api.EffectKeyConflict: worker.ErrConflict, api.EffectAmbiguous: worker.ErrAmbiguous}
	if kind := kinds[code]; kind != nil {
		return &joined{kind, api.Refuse(code)}
	}
	return api.Refuse(code)
}

type joined struct{ kind, refusal error }

func (j *joined) Error() string   { return "a text that holds sesame" }
func (j *joined) Unwrap() []error { return []error{j.kind, j.refusal} }

func TestTextsOfErrorsStayInside(t *testing.T) {
	h := newHold()
	h.becomes = func(worker.Effect) (worker.Result, error) { return worker.Result{}, typedAs(api.LimitReached) }
	_, path := bare(t, h)
	r, err := client(t, path).Post("http://run/effects", "application/json", strings.NewReader(`{"key":"a"}`))
	require.NoError(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "sesame")
}

// Whoever floods the socket is told so, and the hold on the run is asked for no more than a few at once.
func TestAFlood(t *testing.T) {
	h := newHold()
	release := make(chan struct{})
	h.becomes = func(worker.Effect) (worker.Result, error) {
		<-release
		return worker.Result{Outcome: api.Committed}, nil
	}
	j, path := bare(t, h)
	c := client(t, path)
	outcomes := make(chan string, 100)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			_, a := post(t, c, "/effects", `{"key":"a"}`)
			outcomes <- a.Outcome
		})
	}
	for range 20 - maxAsked {
		assert.Equal(t, Busy, <-outcomes)
	}
	require.Eventually(t, func() bool { return len(h.keys()) == maxAsked }, within, time.Millisecond)
	for range 10_000 { // of itself it says so seldom that nothing fills
		j.note(Progress{Note: strings.Repeat("é", 1000)})
	}
	close(release)
	all.Wait()
	for range maxAsked {
		assert.Equal(t, Committed, <-outcomes)
	}
}

// Who holds every connection open and says nothing is cut off, and others are answered then.
func TestConnectionsThatSayNothing(t *testing.T) {
	_, path := bare(t, newHold())
	var held []net.Conn
	for range maxConnections {
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		held = append(held, c)
	}
	began := time.Now()
	status, _ := post(t, client(t, path), "/progress", `{}`)
	assert.Equal(t, http.StatusOK, status)
	assert.Greater(t, time.Since(began), time.Second, "they were in the way")
	for _, c := range held {
		_ = c.Close()
	}
}

func TestProgressTellsWhatIsLeft(t *testing.T) {
	h := newHold()
	_, path := bare(t, h)
	var left Left
	require.NoError(t, Ask(t.Context(), path, "/progress", Progress{Done: 1}, &left))
	assert.Equal(t, Left{LeftMS: time.Hour.Milliseconds(), Effects: 3, WrapUp: api.WrapUpNo}, left)
}
