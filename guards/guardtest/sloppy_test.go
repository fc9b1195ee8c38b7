package guardtest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/issuerkeys"
)

// sloppy is a guard that shares no code with package guards, for a resource that counts. It is a process: this test's own
// binary, started once more. With one of the bugs planted it must not pass.
type sloppy struct {
	setting  Environment
	resource string // URL of the shelf
	bug      string
	http     *http.Client
	keys     *issuerkeys.Set
	key      *capability.Key

	mu     sync.Mutex
	token  capability.Token
	nonce  atomic.Value // the authority's, a string
	number int64        // of reports

	seen      sync.Mutex
	fence     int64 // highest
	admission int64 // highest of admissions
	worker    string
	alive     map[string]bool // attempts
}

// errLost says that an answer is lost, or none.
var errLost = errors.New("no answer")

// runSloppy is the process.
func runSloppy(setting Environment, resource, bug string) error {
	key, err := capability.GenerateKey()
	if err != nil {
		return err
	}
	g := &sloppy{setting: setting, resource: resource, bug: bug, key: key, alive: map[string]bool{}, http: &http.Client{Timeout: applyWithin}}
	if bug != "follows redirects" {
		g.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	g.keys = issuerkeys.New(setting.Authority+api.PathJWKS, g.http, time.Now)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", setting.Listen)
	if err != nil {
		return err
	}
	go g.background()
	handler := http.Handler(g)
	if bug == "tidies paths" {
		mux := http.NewServeMux()
		mux.Handle("/", g)
		handler = mux
	}
	return http.Serve(listener, handler)
}

// background fetches a nonce, reports and sweeps, one after the other: who is healthy can challenge.
func (g *sloppy) background() {
	for {
		var nonces api.Nonces
		if g.ask(http.MethodPost, api.PathNonces, api.NoncesRequest{Count: 1}, &nonces) == nil && len(nonces.Nonces) > 0 {
			g.seen.Lock()
			g.worker = nonces.Nonces[0]
			g.seen.Unlock()
		}
		g.number++
		r := api.Report{Sequence: g.number, Healthy: true, Protocol: 1}
		if g.bug != "forgets what it has seen" {
			r.MaxFence, r.MaxAdmission = g.highest()
		}
		_ = g.ask(http.MethodPut, api.PathReports+"guards", r, nil)
		if g.bug != "never sweeps" {
			g.sweep()
		}
		time.Sleep(300 * time.Millisecond)
	}
}

func (g *sloppy) highest() (fence, number int64) {
	var answer shelfAnswer
	_ = g.shelf("/seen", shelfQuestion{}, &answer)
	g.seen.Lock()
	defer g.seen.Unlock()
	return max(g.fence, answer.Fence), max(g.admission, answer.Number)
}

func (g *sloppy) sweep() {
	var list api.Unsettled
	if g.ask(http.MethodGet, api.PathUnsettled, nil, &list) != nil {
		return
	}
	for _, u := range list.Effects {
		g.seen.Lock()
		alive := g.alive[u.Attempt]
		g.seen.Unlock()
		if u.ApplyLeftMS > 0 && g.bug != "sweeps too early" || alive && g.bug != "sweeps the living" {
			continue
		}
		g.settleOrphan(u)
	}
}

func (g *sloppy) settleOrphan(u api.UnsettledEffect) {
	var answer shelfAnswer
	switch {
	case g.bug == "says not applied without proof":
		answer.Outcome = api.NotApplied
	case g.bug == "says committed without proof":
		answer.Outcome = api.Committed
	case g.shelf("/prove", shelfQuestion{Effect: u.Effect, Attempt: u.Attempt, NoTombstone: g.bug == "has no tombstone"}, &answer) != nil:
		return
	}
	_ = g.ask(http.MethodPost, api.PathSettle, api.SettleEffectRequest{Effect: u.Effect, Attempt: u.Attempt, Outcome: answer.Outcome}, nil)
}

func (g *sloppy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := g.serve(r)
	g.seen.Lock()
	worker := g.worker
	g.seen.Unlock()
	w.Header().Set(api.HeaderNonce, worker)
	w.Header().Set("Cache-Control", "no-store")
	if err == nil {
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	refusal, ok := errors.AsType[*api.Refusal](err)
	if !ok {
		refusal = api.Refuse(api.InvalidRequest)
	}
	status := refusal.Code.Status()
	if refusal.Code == api.UseDPoPNonce || refusal.Code == api.InvalidDPoPProof {
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", `DPoP error="`+refusal.Code.OAuthError()+`", algs="ES256"`)
		if g.bug == "offers Bearer too" {
			w.Header().Add("WWW-Authenticate", `Bearer realm="guard"`)
		}
	}
	if refusal.Wait() > 0 {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(refusal.Problem(status))
}

const countPath = "/ledger/operations/count.up"

// countParams are all that the resource acts on.
type countParams struct {
	Number int64 `json:"number"`
}

func (g *sloppy) serve(r *http.Request) (any, error) {
	if r.URL.EscapedPath() != countPath {
		return nil, api.Refuse(api.NotFound)
	}
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || r.URL.RawQuery != "" || r.Header.Get("Content-Encoding") != "" {
		return nil, api.Refuse(api.InvalidRequest)
	}
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	if g.bug == "logs what it gets" {
		fmt.Fprintln(os.Stderr, "got", token.Reveal())
	}
	proof, err := capability.HeaderProof(r.Header)
	if err != nil {
		return nil, api.Refuse(api.InvalidDPoPProof)
	}
	claims, err := g.verify(r, token, proof)
	if err != nil {
		return nil, err
	}
	effect, n, err := g.effect(r, claims)
	if err != nil {
		return nil, err
	}
	return g.operate(claims, effect, n, api.AdmitRequest{Attempt: authoritytest.Ref(), Capability: token.Reveal(), Proof: proof, Method: r.Method, Path: countPath})
}

func (g *sloppy) verify(r *http.Request, token capability.Token, proof string) (*capability.EffectClaims, error) {
	e := capability.Expectation{Issuer: g.setting.Authority, Audience: g.setting.URI, Now: time.Now()}
	if g.bug == "accepts any audience" {
		_, payload, _ := strings.Cut(token.Reveal(), ".")
		payload, _, _ = strings.Cut(payload, ".")
		decoded, _ := base64.RawURLEncoding.DecodeString(payload)
		var claims capability.EffectClaims
		_ = json.Unmarshal(decoded, &claims)
		e.Audience = claims.Audience
	}
	claims, err := capability.VerifyEffect(token, keySet{g.keys}, e)
	if err != nil {
		return nil, api.Refuse(api.InvalidToken)
	}
	origin := "https://guard.example"
	if g.bug == "believes the Host header" {
		origin = "https://" + r.Host
	}
	_, err = capability.CheckProof(proof, capability.Expect{Method: r.Method, URL: origin + countPath, AccessToken: token, Holder: claims.Confirmation.JKT, Now: time.Now(),
		Nonce: func(nonce string) error {
			if nonce == "" {
				return api.Refuse(api.UseDPoPNonce)
			}
			return nil
		}})
	if _, ok := errors.AsType[*api.Refusal](err); err != nil && !ok {
		return nil, api.Refuse(api.InvalidDPoPProof)
	}
	return claims, err
}

type keySet struct{ set *issuerkeys.Set }

func (k keySet) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	key, ok, err := k.set.Key(context.Background(), kid)
	if err != nil || !ok {
		return nil, 0, false
	}
	return key.Public, key.Generation, true
}

// effect is what the request asks for, compared with the capability.
func (g *sloppy) effect(r *http.Request, claims *capability.EffectClaims) (e capability.Effect, n int64, err error) {
	text, err := io.ReadAll(io.LimitReader(r.Body, canonical.MaxSize+1))
	if err == nil && len(text) > canonical.MaxSize {
		err = api.Refuse(api.PayloadTooLarge)
		if g.bug == "reads on" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
	}
	if err != nil {
		return e, 0, err
	}
	var body authoritytest.Body
	var params countParams
	if g.bug == "guesses at junk" {
		_ = json.NewDecoder(bytes.NewReader(text)).Decode(&body)
	} else if canonical.Decode(text, &body) != nil {
		return e, 0, api.Refuse(api.InvalidRequest)
	}
	if canonical.Decode(body.Parameters, &params) != nil || body.Resource != "counter" {
		return e, 0, api.Refuse(api.InvalidRequest)
	}
	named, err := claims.Effect()
	if err != nil {
		return e, 0, api.Refuse(api.InvalidToken)
	}
	if g.bug == "believes the capability" {
		return named, params.Number, nil
	}
	e = capability.Effect{Guard: g.setting.URI, Action: "count.up", Resource: body.Resource, Amount: body.Amount, Currency: body.Currency}
	if e.ParamsDigest, _, err = capability.ParamsDigest(body.Parameters); err != nil || !e.Equal(named) && g.bug != "accepts any audience" {
		return e, 0, api.Refuse(api.EffectMismatch)
	}
	return e, params.Number, nil
}

func (g *sloppy) operate(claims *capability.EffectClaims, e capability.Effect, n int64, q api.AdmitRequest) (any, error) {
	d := capability.DetailOf(e)
	q.Effect = api.Detail{Type: d.Type, Actions: d.Actions, Locations: d.Locations, Identifier: d.Identifier, ParamsSHA256: d.ParamsSHA256, Amount: d.Amount, Currency: d.Currency}
	g.live(q.Attempt, true)
	defer g.live(q.Attempt, false)
	began := time.Now()
	var goAhead api.Admission
	err := g.ask(http.MethodPost, api.PathAdmit, q, &goAhead)
	if errors.Is(err, errLost) {
		if g.bug == "asks again as another attempt" {
			q.Attempt = authoritytest.Ref()
		}
		err = g.ask(http.MethodPost, api.PathAdmit, q, &goAhead)
	}
	switch {
	case errors.Is(err, errLost) && g.bug == "applies without a go-ahead":
		goAhead = api.Admission{Effect: claims.EffectRef, Lane: claims.Lane, Fence: claims.Fence, ApplyWithinMS: 10_000}
	case errors.Is(err, errLost):
		return nil, api.Refuse(api.OutcomeUnknown)
	case err != nil:
		return nil, workers(err)
	}
	if goAhead.Effect != claims.EffectRef && g.bug != "takes any go-ahead" || goAhead.Fence < 1 {
		return nil, api.Refuse(api.OutcomeUnknown)
	}
	if g.bug == "counts from the answer" {
		began = time.Now()
	}
	return g.apply(q, goAhead, n, began.Add(time.Duration(goAhead.ApplyWithinMS)*time.Millisecond), claims.EffectRef)
}

func (g *sloppy) live(attempt string, is bool) {
	g.seen.Lock()
	defer g.seen.Unlock()
	g.alive[attempt] = is
}

// workers turns the authority's refusal into the worker's.
func workers(err error) error {
	refusal, _ := errors.AsType[*api.Refusal](err)
	switch refusal.Code {
	case api.WorkerNonce:
		return api.Refuse(api.UseDPoPNonce)
	case api.WorkerProof, api.ProofReplayed:
		return api.Refuse(api.InvalidDPoPProof)
	case api.InvalidToken, api.BootSuperseded:
		return api.Refuse(api.Unavailable)
	}
	return refusal
}

func (g *sloppy) apply(q api.AdmitRequest, goAhead api.Admission, n int64, until time.Time, ref string) (any, error) {
	question := shelfQuestion{Number: n, Effect: ref, Attempt: q.Attempt, Lane: goAhead.Lane, Fence: goAhead.Fence, Admission: goAhead.Number, UntilMS: until.UnixMilli()}
	switch g.bug {
	case "applies twice":
		_ = g.shelf("/apply", shelfQuestion{Number: n, Unkeyed: true}, nil)
	case "ignores the fence":
		question.Fence = 1 << 50
	case "applies after its time":
		question.UntilMS = time.Now().Add(time.Hour).UnixMilli()
	case "keeps no ledger":
		question.Unkeyed = true
	}
	g.seen.Lock()
	g.fence, g.admission = max(g.fence, goAhead.Fence), max(g.admission, goAhead.Number)
	g.seen.Unlock()
	var answer shelfAnswer
	if err := g.shelf("/apply", question, &answer); err != nil {
		return nil, api.Refuse(api.OutcomeUnknown)
	}
	if g.bug == "says not applied of what it has applied" {
		answer.Outcome = api.NotApplied
	}
	_ = g.ask(http.MethodPost, api.PathSettle, api.SettleEffectRequest{Effect: ref, Attempt: q.Attempt, Outcome: answer.Outcome}, nil)
	return map[string]string{"effect": ref, "outcome": answer.Outcome}, nil
}

// ask calls the authority as this component.
func (g *sloppy) ask(method, path string, in, out any) error {
	body, _ := json.Marshal(in)
	for range 3 {
		token, err := g.component()
		if err != nil {
			return err
		}
		err = g.call(method, path, "application/json", token, body, out)
		refusal, ok := errors.AsType[*api.Refusal](err)
		if !ok || refusal.Code != api.InvalidToken || g.bug == "keeps a stale capability" {
			return err
		}
		g.mu.Lock()
		g.token = ""
		g.mu.Unlock()
	}
	return errLost
}

// component is the guard's own capability.
func (g *sloppy) component() (capability.Token, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.token.IsZero() {
		return g.token, nil
	}
	form := url.Values{"grant_type": {api.GrantClientCredentials}, "client_id": {g.setting.Name}, "client_assertion_type": {api.AssertionJWTBearer},
		"client_assertion": {authoritytest.Assertion}}
	var answer api.TokenResponse
	err := g.call(http.MethodPost, api.PathToken, "application/x-www-form-urlencoded", "", []byte(form.Encode()), &answer)
	g.token = capability.Token(answer.AccessToken)
	return g.token, err
}

func (g *sloppy) call(method, path, mediaType string, token capability.Token, body []byte, out any) error {
	for range 2 {
		nonce, _ := g.nonce.Load().(string)
		proof, err := capability.NewProof(g.key, capability.ProofParams{Method: method, URL: g.setting.Authority + path, Nonce: nonce, AccessToken: token, Now: time.Now()})
		if err != nil {
			return err
		}
		r, _ := http.NewRequest(method, g.setting.Authority+path, bytes.NewReader(body))
		r.Header.Set("Content-Type", mediaType)
		r.Header.Set(api.HeaderProof, proof)
		if !token.IsZero() {
			r.Header.Set("Authorization", "DPoP "+token.Reveal())
		}
		err = g.exchange(r, out)
		if refusal, ok := errors.AsType[*api.Refusal](err); !ok || refusal.Code != api.UseDPoPNonce {
			return err
		}
	}
	return errLost
}

func (g *sloppy) exchange(r *http.Request, out any) error {
	response, err := g.http.Do(r)
	if err != nil {
		return errLost
	}
	defer response.Body.Close()
	if nonce := response.Header.Get(api.HeaderNonce); nonce != "" {
		g.nonce.Store(nonce)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return errLost
	}
	if response.StatusCode == http.StatusOK {
		if out != nil && json.Unmarshal(text, out) != nil {
			return errLost
		}
		return nil
	}
	var problem api.Problem
	if json.Unmarshal(text, &problem) != nil || problem.Code.Status() != response.StatusCode && response.StatusCode != http.StatusUnauthorized {
		return errLost
	}
	return api.Refuse(problem.Code)
}

func (g *sloppy) shelf(path string, q shelfQuestion, out *shelfAnswer) error {
	body, _ := json.Marshal(q)
	client := &http.Client{Timeout: time.Minute}
	response, err := client.Post(g.resource+path, "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(out)
}
