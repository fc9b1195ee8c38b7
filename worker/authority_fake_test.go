package worker

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Verbs that tests count and interfere with.
const (
	vClaim  = "claim"
	vMint   = "mint"
	vRenew  = "renew"
	vSettle = "settle"
	vStatus = "status"
	vGuard  = "guard"
)

func reference() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// twist stands between a request and its handler; once for each time that it was put there.
type twist func(next http.Handler) http.Handler

// world is an authority with one guard, both as strict as the real ones, in memory. Requests reach them without sockets
// (as an http.RoundTripper) or through httptest.
type world struct {
	t         testing.TB
	issuer    string
	guardURI  string
	signer    *capability.Key
	lifetime  time.Duration // of run capabilities
	lease     time.Duration
	remaining time.Duration // to the deadline, of a new run

	mu       sync.Mutex
	open     bool
	epoch    int64
	runs     map[string]*fakeRun
	owners   map[string]capability.Thumbprint // assertion → key
	nonces   map[string]map[string]bool       // audience → live nonces
	proofs   map[[32]byte]bool
	calls    map[string]int // also those that a twist swallowed
	twists   map[string][]twist
	always   map[string]twist
	keys     map[capability.Thumbprint]bool // that claimed
	lastMint url.Values
	violated []string
}

type fakeRun struct {
	ref, lane   string
	state       string // queued, claimed, or how it ended
	fence       int64
	activation  int64
	epoch       int64
	holder      capability.Thumbprint
	capability  string
	leaseUntil  time.Time
	deadline    time.Time
	effectsLeft int64
	wrapUp      bool
	effects     map[string]*fakeEffect // by key
	settles     int
}

type fakeEffect struct {
	ref, state string
	digest     [32]byte
	capability string // jti of the live one
	expires    time.Time
	holder     capability.Thumbprint
	admitted   int
	applied    int
}

func newWorld(t testing.TB) *world {
	key, err := capability.GenerateKey()
	require.NoError(t, err)
	w := &world{t: t, issuer: "https://authority.example", guardURI: "https://ledger.example/ledger", signer: key,
		lifetime: 5 * time.Minute, lease: 30 * time.Second, remaining: time.Hour, open: true, epoch: 7,
		runs: map[string]*fakeRun{}, owners: map[string]capability.Thumbprint{}, nonces: map[string]map[string]bool{},
		proofs: map[[32]byte]bool{}, calls: map[string]int{}, twists: map[string][]twist{}, always: map[string]twist{},
		keys: map[capability.Thumbprint]bool{}}
	t.Cleanup(func() { assert.Empty(t, w.violated, "the worker broke a rule of the wire") })
	return w
}

// addRun puts one run into the queue.
func (w *world) addRun() *fakeRun {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &fakeRun{ref: reference(), lane: reference(), state: "queued", activation: 3, deadline: time.Now().Add(w.remaining), effectsLeft: 10,
		effects: map[string]*fakeEffect{}}
	w.runs[r.ref] = r
	return r
}

// with runs f while nothing else happens.
func (w *world) with(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) count(verb string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calls[verb]
}

// once puts twists before the next requests of a verb, one each.
func (w *world) once(verb string, t ...twist) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.twists[verb] = append(w.twists[verb], t...)
}

// forever puts a twist before every request of a verb that has no other; nil ends it.
func (w *world) forever(verb string, t twist) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.always[verb] = t
}

func (w *world) setOpen(open bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = open
	w.epoch++
}

// forgetNonces makes every nonce stale, as time does.
func (w *world) forgetNonces() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.nonces = map[string]map[string]bool{}
}

// broke notes what a correct client never does.
func (w *world) broke(format string, args ...any) {
	w.violated = append(w.violated, fmt.Sprintf(format, args...))
}

// Key is the capability.KeySet of authority and guard.
func (w *world) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	return w.signer.Public(), 1, kid == w.signer.KeyID()
}

// refuses answers a refusal and changes nothing.
func refuses(code api.Code, after time.Duration) twist {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			writeRefusal(rw, &api.Refusal{Code: code, RetryAfter: after}, code.Status())
		})
	}
}

// loses drops the answer after the request has taken effect.
func loses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
}

// drops cuts the connection before anything happened.
func drops(http.Handler) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
}

// hangs does not answer until the caller gives up.
func hangs(http.Handler) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
}

// answers sends some other body with status 200.
func answers(body string) twist {
	return func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(rw, body)
		})
	}
}

// first does something before the request is served.
func first(f func()) twist {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			f()
			next.ServeHTTP(rw, r)
		})
	}
}

// RoundTrip serves a request without a socket.
func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	in := r.Clone(r.Context())
	in.Body = io.NopCloser(bytes.NewReader(body))
	served := make(chan *http.Response, 1)
	go func() {
		defer close(served)
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler {
				panic(v)
			}
		}()
		rec := httptest.NewRecorder()
		w.ServeHTTP(rec, in)
		served <- rec.Result()
	}()
	select {
	case resp, ok := <-served:
		if !ok {
			return nil, io.ErrUnexpectedEOF
		}
		return resp, nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

// ServeHTTP is both servers: the guard lives under its own origin.
func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	verb, handle := w.route(r)
	w.mu.Lock()
	w.calls[verb]++
	t := w.always[verb]
	if len(w.twists[verb]) > 0 {
		t, w.twists[verb] = w.twists[verb][0], w.twists[verb][1:]
	}
	w.mu.Unlock()
	var h http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		handle(rw, r)
	})
	if t != nil {
		h = t(h)
	}
	h.ServeHTTP(rw, r)
}

func (w *world) route(r *http.Request) (string, http.HandlerFunc) {
	path := r.URL.EscapedPath()
	guard, _ := url.Parse(w.guardURI)
	switch {
	case strings.HasPrefix(path, guard.Path+"/operations/") && (r.URL.Host == "" || r.URL.Host == guard.Host):
		return vGuard, w.operate
	case path == api.PathToken:
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		form, _ := url.ParseQuery(string(body))
		if form.Get("subject_token_type") == api.TokenTypeRunReference {
			return vClaim, func(rw http.ResponseWriter, r *http.Request) { w.claim(rw, r, form) }
		}
		return vMint, func(rw http.ResponseWriter, r *http.Request) { w.mint(rw, r, form) }
	case path == api.PathRenew:
		return vRenew, w.renew
	case path == api.PathSettleRun:
		return vSettle, w.settle
	case strings.HasPrefix(path, api.PathEffects):
		return vStatus, w.status
	}
	return "unknown", func(rw http.ResponseWriter, _ *http.Request) {
		w.broke("unknown path %s", path)
		writeRefusal(rw, api.Refuse(api.NotFound), 404)
	}
}

func writeRefusal(rw http.ResponseWriter, refusal *api.Refusal, status int) {
	rw.Header().Set("Content-Type", "application/problem+json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(refusal.Problem(status))
}

func writeJSON(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v)
}

// fresh puts a fresh nonce into an answer. Earlier ones stay good until they are forgotten.
func (w *world) fresh(audience string) string {
	if w.nonces[audience] == nil {
		w.nonces[audience] = map[string]bool{}
	}
	n := reference()
	w.nonces[audience][n] = true
	return n
}

func (w *world) refuse(rw http.ResponseWriter, audience string, resource bool, err error) {
	rw.Header().Set(api.HeaderNonce, w.fresh(audience))
	refusal, ok := Refused(err)
	if pe, is := errors.AsType[*capability.ProofError](err); is && !ok {
		w.broke("%s at %s", pe, audience)
		refusal, ok = api.Refuse(api.Code(pe.Code)), true
	}
	require.True(w.t, ok, "%v", err)
	status := refusal.Code.Status()
	if resource && refusal.Code == api.UseDPoPNonce {
		status = 401
		rw.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce"`)
	}
	writeRefusal(rw, refusal, status)
}

// prove checks a proof as authority and guard do; each proof is good once.
func (w *world) prove(r *http.Request, base, audience string, token capability.Token, holder capability.Thumbprint) (*capability.Proof, error) {
	header, err := capability.HeaderProof(r.Header)
	if err != nil {
		return nil, err
	}
	origin, _ := url.Parse(base)
	p, err := capability.CheckProof(header, capability.Expect{Method: r.Method, URL: origin.Scheme + "://" + origin.Host + r.URL.EscapedPath(),
		AccessToken: token, Holder: holder, Now: time.Now(), Nonce: func(n string) error {
			if !w.nonces[audience][n] {
				return api.Refuse(api.UseDPoPNonce)
			}
			return nil
		}})
	if err != nil {
		return nil, err
	}
	if w.proofs[p.Digest()] {
		return nil, &capability.ProofError{Code: string(api.ProofReplayed), Reason: "used before"}
	}
	w.proofs[p.Digest()] = true
	return p, nil
}

func (w *world) claim(rw http.ResponseWriter, r *http.Request, form url.Values) {
	err := w.tryClaim(rw, r, form)
	if err != nil {
		w.refuse(rw, w.issuer, false, err)
	}
}

func (w *world) checkForm(r *http.Request, form url.Values, fields ...string) {
	for name, values := range form {
		if !slices.Contains(fields, name) || len(values) != 1 {
			w.broke("form field %s", name)
		}
	}
	if r.Header.Get("Authorization") != "" || r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" || r.Method != http.MethodPost {
		w.broke("the token request is not a form that is authenticated by its content")
	}
	if form.Get("grant_type") != api.GrantTokenExchange || form.Get("client_id") != "diary" {
		w.broke("grant %q of client %q", form.Get("grant_type"), form.Get("client_id"))
	}
}

func (w *world) tryClaim(rw http.ResponseWriter, r *http.Request, form url.Values) error {
	w.checkForm(r, form, "grant_type", "subject_token", "subject_token_type", "client_id", "client_assertion", "client_assertion_type")
	p, err := w.prove(r, w.issuer, w.issuer, "", capability.Thumbprint{})
	if err != nil {
		return err
	}
	assertion := form.Get("client_assertion")
	if !strings.HasPrefix(assertion, "workload-") || form.Get("client_assertion_type") != api.AssertionJWTBearer {
		return api.Refuse(api.InvalidClient)
	}
	run, now := w.runs[form.Get("subject_token")], time.Now()
	again := run != nil && run.state == "claimed" && run.holder == p.Key && run.leaseUntil.After(now)
	switch {
	case run == nil:
		return api.Refuse(api.UnknownRun)
	case !w.open:
		return api.Refuse(api.AdmissionClosed)
	case run.state != "queued" && run.state != "claimed":
		return api.Refuse(api.RunEnded)
	case !run.deadline.After(now):
		return api.Refuse(api.DeadlinePassed)
	case run.state == "claimed" && !again && run.leaseUntil.After(now):
		return &api.Refusal{Code: api.Held, RetryAfter: run.leaseUntil.Sub(now)}
	}
	if owner, owned := w.owners[assertion]; owned && owner != p.Key {
		return api.Refuse(api.AssertionBound)
	}
	w.owners[assertion] = p.Key
	w.keys[p.Key] = true
	if !again {
		run.fence++
		run.leaseUntil = now.Add(w.lease)
	}
	run.state, run.holder, run.epoch = "claimed", p.Key, w.epoch
	answer := w.runToken(run, now)
	for key, e := range run.effects {
		digest := capability.EffectKeyDigest(key)
		answer.Run.Effects = append(answer.Run.Effects, api.EffectLine{Effect: e.ref, State: e.state,
			KeySHA256: base64.RawURLEncoding.EncodeToString(digest[:]), Digest: base64.RawURLEncoding.EncodeToString(e.digest[:])})
	}
	rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
	writeJSON(rw, answer)
	return nil
}

var hint = map[bool]string{false: api.WrapUpNo, true: api.WrapUpSoon}

func (w *world) runToken(run *fakeRun, now time.Time) api.TokenResponse {
	run.capability = reference()
	if run.leaseUntil.After(run.deadline) {
		run.leaseUntil = run.deadline
	}
	expires := now.Add(min(w.lifetime, run.deadline.Sub(now))).Unix()
	token, err := capability.SignRun(w.signer, capability.RunClaims{
		Header:  w.header(w.issuer, run, run.capability, now, max(expires, now.Unix()+1)),
		Binding: w.binding(run, expires)})
	require.NoError(w.t, err)
	return api.TokenResponse{AccessToken: token.Reveal(), TokenType: "DPoP", ExpiresIn: expires - now.Unix(), Run: &api.RunState{
		Fence: run.fence, LeaseMS: (run.leaseUntil.Sub(now) + time.Millisecond - 1).Milliseconds(), RemainingMS: run.deadline.Sub(now).Milliseconds(),
		ReadinessEpoch: run.epoch, ActivationEpoch: run.activation, Left: api.Left{Effects: run.effectsLeft, WrapUp: hint[run.wrapUp]},
	}}
}

func (w *world) header(audience string, run *fakeRun, id string, now time.Time, expires int64) capability.Header {
	return capability.Header{Issuer: w.issuer, Audience: audience, Subject: run.lane, ClientID: "diary", IssuedAt: now.Unix(), Expires: expires,
		ID: id, Confirmation: capability.Confirmation{JKT: run.holder}, Generation: 1}
}

func (w *world) binding(run *fakeRun, expires int64) capability.Binding {
	return capability.Binding{Run: run.ref, Lane: run.lane, Fence: run.fence, Deadline: max(run.deadline.Unix(), expires+1),
		ActivationEpoch: run.activation, ReadinessEpoch: run.epoch, Incarnation: 1}
}

// holder is what every call with a run capability goes through.
func (w *world) holder(r *http.Request) (*fakeRun, *capability.RunClaims, error) {
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return nil, nil, err
	}
	c, err := capability.VerifyRun(token, w, capability.Expectation{Issuer: w.issuer, Now: time.Now()})
	if err != nil {
		return nil, nil, api.Refuse(api.InvalidToken)
	}
	if _, err := w.prove(r, w.issuer, w.issuer, token, c.Confirmation.JKT); err != nil {
		return nil, nil, err
	}
	return w.runs[c.Run], c, nil
}

// hold says what holder_verdict of the authority says.
func (w *world) hold(run *fakeRun, c *capability.RunClaims) error {
	switch now := time.Now(); {
	case run.state != "queued" && run.state != "claimed":
		return api.Refuse(api.RunEnded)
	case !run.deadline.After(now):
		return api.Refuse(api.DeadlinePassed)
	case c.ActivationEpoch != run.activation:
		return api.Refuse(api.AuthorityChanged)
	case c.Fence != run.fence:
		return api.Refuse(api.FenceStale)
	case run.state != "claimed" || !run.leaseUntil.After(now):
		return api.Refuse(api.LeaseLost)
	}
	return nil
}

func decodeBody(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil || r.Header.Get("Content-Type") != "application/json" {
		return api.Refuse(api.InvalidRequest)
	}
	return nil
}

func (w *world) renew(rw http.ResponseWriter, r *http.Request) {
	run, c, err := w.holder(r)
	if err == nil {
		err = decodeBody(r, new(api.RenewRequest))
	}
	if err == nil {
		err = w.hold(run, c)
	}
	if err == nil && !w.open {
		err = api.Refuse(api.AdmissionClosed)
	}
	if err != nil {
		w.refuse(rw, w.issuer, true, err)
		return
	}
	now := time.Now()
	run.leaseUntil, run.epoch = now.Add(w.lease), w.epoch
	answer := w.runToken(run, now)
	rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
	writeJSON(rw, answer)
}

func (w *world) settle(rw http.ResponseWriter, r *http.Request) {
	run, c, err := w.holder(r)
	var in api.SettleRunRequest
	if err == nil {
		err = decodeBody(r, &in)
	}
	if err == nil && (run.state != "succeeded" && run.state != "failed" || run.capability != c.ID) {
		if err = w.hold(run, c); err == nil {
			for _, e := range run.effects {
				if e.state == "admitted" {
					err = api.Refuse(api.EffectsInFlight)
				}
			}
		}
		if err == nil {
			run.state = in.Result
			run.settles++
		}
	}
	if err != nil {
		w.refuse(rw, w.issuer, true, err)
		return
	}
	rw.Header().Set(api.HeaderNonce, w.fresh(w.issuer))
	writeJSON(rw, api.Receipt{Run: run.ref, State: run.state, Fence: run.fence})
}

// queue is a Source with what is pushed into it; nak'd messages come back after their delay.
type queue struct {
	messages chan *fakeMessage
	told     chan string // what was told about each message: "ack", or "nak" with its delay
	err      error       // of Pull once messages is closed
}

func newQueue() *queue {
	return &queue{messages: make(chan *fakeMessage, 100), told: make(chan string, 100)}
}

func (q *queue) push(reference string) { q.messages <- &fakeMessage{q: q, reference: reference} }

func (q *queue) Pull(ctx context.Context) (Message, error) {
	select {
	case m, ok := <-q.messages:
		if !ok {
			return nil, q.err
		}
		return m, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type fakeMessage struct {
	q         *queue
	reference string
	lost      bool // acknowledgements fail
}

func (m *fakeMessage) Reference() string { return m.reference }

func (m *fakeMessage) Ack() error {
	m.q.told <- "ack"
	if m.lost {
		return errors.New("lost")
	}
	return nil
}

func (m *fakeMessage) Nak(delay time.Duration) error {
	m.q.told <- "nak " + delay.String()
	time.AfterFunc(delay, func() { m.q.messages <- m })
	return nil
}
