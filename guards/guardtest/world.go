package guardtest

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/freeport"
)

const (
	applyWithin = 10 * time.Second // where time is not what a case is about
	uri         = authoritytest.GuardURI
)

// stage is an authority and the processes of the guard, with what belongs to them.
type stage struct {
	authority *authoritytest.Server
	client    *http.Client
	setting   Environment
	log       *safeBuffer
	running   []*process

	mu      sync.Mutex
	secrets []string // that were sent to the guard
}

// world is a stage and a worker, for one case.
type world struct {
	tb
	*stage
	guard     *Guard
	suite     *suite
	worker    *authoritytest.Worker
	lane      string
	asked     int // times that the authority had been asked for a go-ahead before
	effects   []*effect
	mistrusts bool // the case lets the authority lie, so that the guard and it may disagree in what they say to each other
}

// effect is one that the authority has minted, and its capability.
type effect struct {
	Effect
	n     int
	ref   string
	token capability.Token
}

func (s *suite) newStage(t tb) *stage {
	t.Helper()
	authority, err := authoritytest.Listen()
	require.NoError(t, err)
	st := &stage{authority: authority, log: new(safeBuffer)}
	st.client = &http.Client{Timeout: s.patience(), Transport: &http.Transport{MaxIdleConnsPerHost: 16},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	dir := t.TempDir()
	st.setting = Environment{URI: uri, Name: authoritytest.GuardName, Authority: authority.Issuer, Log: st.log,
		AssertionFile: filepath.Join(dir, "assertion"), Dir: filepath.Join(dir, "state")}
	require.NoError(t, os.Mkdir(st.setting.Dir, 0o700))
	require.NoError(t, os.WriteFile(st.setting.AssertionFile, []byte(authoritytest.Assertion+"\n"), 0o600))
	return st
}

// stageOf a calm case is the one that calm cases share. Nothing of it is left when another case begins: a ledger that lies
// elsewhere may bear one process only.
func (s *suite) stageOf(t tb, c temper) *stage {
	t.Helper()
	if c == alone || s.whole == nil {
		s.leave(t)
		return s.newStage(t)
	}
	if s.calm == nil {
		s.calm = s.newStage(s.whole)
		s.whole.Cleanup(func() { s.leave(s.whole) })
	}
	return s.calm
}

// leave ends what calm cases shared.
func (s *suite) leave(t tb) {
	if shared := s.calm; shared != nil {
		s.calm = nil
		(&world{tb: t, stage: shared, guard: &s.guard, suite: s}).end()
	}
}

func (s *suite) newWorld(t tb, c temper) *world {
	t.Helper()
	st := s.stageOf(t, c)
	w := &world{tb: t, stage: st, guard: &s.guard, suite: s, worker: authoritytest.NewWorker(st.authority.Authority), lane: authoritytest.Ref()}
	w.asked = w.authority.Count(api.PathAdmit)
	w.authority.Do(func(a *authoritytest.Authority) { a.ApplyWithin = applyWithin })
	for _, p := range w.running {
		p.w = w
	}
	t.Cleanup(w.end)
	return w
}

// end leaves no process, no connection and no call behind, but for the next calm case where this one was good.
func (w *world) end() {
	if w.Failed() && w.suite.calm == w.stage {
		w.suite.calm = nil
	}
	if w.suite.calm != w.stage {
		for _, p := range w.running {
			require.NoError(w, p.Kill())
		}
		w.authority.Close()
		w.client.CloseIdleConnections()
	}
	w.checkLog()
	if w.Failed() {
		w.Logf("what the guard said:\n%s", w.log.bytes())
	}
}

// process is one that runs and has reported itself healthy.
type process struct {
	Process
	w       *world
	address string
}

// start starts a process and waits until it is ready. A calm case has the one that runs.
func (w *world) start() *process {
	w.Helper()
	if w.suite.calm == w.stage && len(w.running) > 0 {
		return w.running[0]
	}
	setting, before := w.setting, int64(0)
	w.authority.Do(func(a *authoritytest.Authority) { before = a.Latest })
	setting.Listen = freeAddress(w)
	started, err := w.guard.Start(setting)
	require.NoError(w, err)
	p := &process{Process: started, w: w, address: setting.Listen}
	w.running = append(w.running, p)
	w.await("the guard reports itself healthy", func(a *authoritytest.Authority) bool {
		for boot, healthy := range a.Healthy {
			if boot > before && healthy {
				return true
			}
		}
		return false
	})
	_ = p.dial().Close()
	return p
}

// kill ends a process as a power cut would.
func (w *world) kill(p *process) {
	w.Helper()
	require.NoError(w, p.Kill())
	for i, other := range w.running {
		if other == p {
			w.running = append(w.running[:i], w.running[i+1:]...)
			return
		}
	}
}

func freeAddress(t tb) string {
	address, err := freeport.Address()
	require.NoError(t, err)
	return address
}

// dial waits until the process takes connections.
func (p *process) dial() net.Conn {
	p.w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), p.w.suite.patience())
	defer cancel()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.address)
		if err == nil {
			return conn
		}
		require.NoError(p.w, ctx.Err(), "the guard does not listen at %s", p.address)
		pause(5 * time.Millisecond)
	}
}

func pause(d time.Duration) { <-time.After(d) }

// await fails the case when what is asked for does not come true.
func (w *world) await(what string, isTrue func(a *authoritytest.Authority) bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), w.suite.patience())
	defer cancel()
	err := w.authority.Await(ctx, func() bool { return isTrue(w.authority.Authority) })
	require.NoError(w, err, "waited in vain: %s", what)
}

// arrive waits for a call that is to be caught.
func (w *world) arrive(what string, arrived <-chan struct{}) {
	w.Helper()
	select {
	case <-arrived:
	case <-time.After(w.suite.patience()):
		require.Fail(w, "waited in vain: "+what)
	}
}

// next is an effect that was not asked for before, in the world's lane, under fence 1.
func (w *world) next() *effect { return w.mint(w.fresh(), w.lane, 1) }

// fresh is an effect without a capability.
func (w *world) fresh() *effect {
	n := int(w.suite.last.Add(1))
	return &effect{Effect: w.guard.Effect(n), n: n}
}

func (w *world) mint(e *effect, lane string, fence int64) *effect {
	w.Helper()
	digest, _, err := capability.ParamsDigest(e.Parameters)
	require.NoError(w, err, "the parameters of effect %d are not I-JSON", e.n)
	e.token, e.ref = w.authority.Mint(w.worker.Key.Thumbprint(), capability.Effect{Guard: uri, Action: e.Action, Resource: e.Resource,
		ParamsDigest: digest, Amount: e.Amount, Currency: e.Currency}, lane, fence)
	w.effects = append(w.effects, e)
	return e
}

func (e *effect) path() string {
	if e.Path != "" {
		return e.Path
	}
	return "/operations/" + e.Action
}

func (e *effect) body() []byte {
	if e.Body != nil {
		return e.Body
	}
	body, err := json.Marshal(authoritytest.Body{Resource: e.Resource, Parameters: e.Parameters, Amount: e.Amount, Currency: e.Currency})
	if err != nil {
		panic(err) // the parameters have been minted
	}
	return body
}

// proof is by the worker's key, with a nonce that is fresh.
func (w *world) proof(e *effect, changes ...func(*capability.ProofParams)) string {
	w.Helper()
	p := capability.ProofParams{Method: http.MethodPost, URL: uri + e.path(), Nonce: w.authority.Nonce(uri), AccessToken: e.token, Now: time.Now()}
	for _, change := range changes {
		change(&p)
	}
	proof, err := capability.NewProof(w.worker.Key, p)
	require.NoError(w, err)
	return proof
}

// request asks for an effect; each change may spoil it.
func (w *world) request(e *effect, changes ...func(*http.Request)) *http.Request {
	w.Helper()
	r, err := http.NewRequest(http.MethodPost, uri+e.path(), bytes.NewReader(e.body())) //nolint:noctx // the client has a deadline
	require.NoError(w, err)
	r.Header.Set("Content-Type", "application/json")
	for name, values := range e.Header {
		r.Header[name] = values
	}
	r.Header.Set("Authorization", "DPoP "+e.token.Reveal())
	r.Header.Set(api.HeaderProof, w.proof(e))
	for _, change := range changes {
		change(r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets = append(w.secrets, e.token.Reveal(), r.Header.Get(api.HeaderProof))
	return r
}

// present asks for an effect as an honest worker does, once.
func (w *world) present(p *process, e *effect) answer {
	w.Helper()
	return p.send(w.request(e))
}

// begin presents an effect without waiting for the answer.
func (w *world) begin(p *process, e *effect) <-chan answer {
	w.Helper()
	r, done := w.request(e), make(chan answer, 1)
	go func() { done <- p.send(r) }()
	return done
}

// safeBuffer takes what processes say.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) bytes() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.b.Bytes())
}
