package authoritytest

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// ServeHTTP answers what a guard may ask.
func (a *Authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.Lock()
	defer a.Unlock()
	a.Calls[r.URL.Path]++
	if r.URL.Path == api.PathJWKS {
		_, _ = w.Write(a.JWKS())
		return
	}
	answer, code := a.serve(r)
	w.Header().Set(api.HeaderNonce, a.nonce(Issuer))
	if code == "" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	status := code.Status()
	if code == api.UseDPoPNonce && r.URL.Path != api.PathToken {
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", `DPoP error="use_dpop_nonce", algs="ES256"`)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(api.Refuse(code).Problem(status))
}

func (a *Authority) serve(r *http.Request) (any, api.Code) {
	if code := a.Verdicts[r.URL.Path]; code != "" {
		return nil, code
	}
	if r.URL.Path == api.PathToken {
		return a.token(r)
	}
	if code := a.component(r); code != "" {
		return nil, code
	}
	body, _ := io.ReadAll(r.Body)
	switch r.Method + " " + r.URL.Path {
	case "POST " + api.PathNonces:
		return api.Nonces{Nonces: []string{a.nonce(GuardURI)}}, ""
	case "POST " + api.PathAdmit:
		return a.admit(body)
	case "POST " + api.PathSettle:
		return a.settle(body)
	case "GET " + api.PathUnsettled:
		return a.unsettled(), ""
	case "PUT " + api.PathReports + "guards":
		return a.report(body)
	}
	return nil, api.NotFound
}

// spend checks a proof, its nonce and that it is new.
func (a *Authority) spend(r *http.Request, e capability.Expect) (*capability.Proof, api.Code) {
	header, err := capability.HeaderProof(r.Header)
	if err != nil {
		return nil, api.InvalidDPoPProof
	}
	e.Method, e.URL, e.Now = r.Method, Issuer+r.URL.EscapedPath(), time.Now()
	proof, err := capability.CheckProof(header, e)
	if err != nil {
		return nil, api.InvalidDPoPProof
	}
	if !a.isFresh(proof.Nonce, Issuer) {
		return nil, api.UseDPoPNonce
	}
	return proof, a.once(proof)
}

func (a *Authority) once(p *capability.Proof) api.Code {
	if a.proofs[p.Digest()] {
		return api.ProofReplayed
	}
	a.proofs[p.Digest()] = true
	return ""
}

// token is the client credentials grant; a new key is a new boot.
func (a *Authority) token(r *http.Request) (any, api.Code) {
	if r.ParseForm() != nil || r.PostForm.Get("grant_type") != api.GrantClientCredentials || r.PostForm.Get("client_id") != GuardName ||
		r.PostForm.Get("client_assertion_type") != api.AssertionJWTBearer {
		return nil, api.InvalidRequest
	}
	proof, code := a.spend(r, capability.Expect{})
	if code != "" {
		return nil, code
	}
	if r.PostForm.Get("client_assertion") != Assertion {
		return nil, api.InvalidClient
	}
	if a.boots[proof.Key] == 0 {
		a.Latest++
		a.reports = 0
		a.boots[proof.Key] = a.Latest
	}
	now := time.Now().Unix()
	token, err := capability.SignComponent(a.Key, capability.ComponentClaims{
		Header: capability.Header{Issuer: Issuer, Audience: Issuer, Subject: GuardName, ClientID: GuardName, IssuedAt: now, Expires: now + 300, ID: Ref(),
			Confirmation: capability.Confirmation{JKT: proof.Key}, Generation: generation},
		Component: GuardName, ComponentKind: "guard", Boot: a.boots[proof.Key], Families: []string{"guards"},
	})
	if err != nil {
		return nil, api.Internal
	}
	return api.TokenResponse{AccessToken: token.Reveal(), TokenType: "DPoP", ExpiresIn: 300, Boot: a.boots[proof.Key]}, ""
}

// component checks who calls.
func (a *Authority) component(r *http.Request) api.Code {
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return api.InvalidToken
	}
	claims, err := capability.VerifyComponent(token, ownKey{a}, capability.Expectation{Issuer: Issuer, Now: time.Now()})
	if err != nil {
		return api.InvalidToken
	}
	if _, code := a.spend(r, capability.Expect{AccessToken: token, Holder: claims.Confirmation.JKT}); code != "" {
		return code
	}
	if claims.Boot != a.Latest && !a.Replicas {
		return api.BootSuperseded
	}
	return ""
}

// admit is nw.admit in small.
func (a *Authority) admit(body []byte) (any, api.Code) {
	var q api.AdmitRequest
	if json.Unmarshal(body, &q) != nil || len(q.Attempt) != 22 || q.Method != http.MethodPost || !strings.HasPrefix(q.Path, "/ledger/operations/") {
		return nil, api.InvalidRequest
	}
	token := capability.Token(q.Capability)
	claims, err := capability.VerifyEffect(token, ownKey{a}, capability.Expectation{Issuer: Issuer, Audience: GuardURI, Now: time.Now()})
	if err != nil {
		return nil, api.WorkerProof
	}
	proof, err := capability.CheckProof(q.Proof, capability.Expect{Method: q.Method, URL: "https://guard.example" + q.Path, AccessToken: token,
		Holder: claims.Confirmation.JKT, Now: time.Now()})
	if err != nil {
		return nil, api.WorkerProof
	}
	e, digest := a.Effects[claims.EffectRef], digestOf(q.Effect)
	switch {
	case e == nil:
		return nil, api.WrongGuard
	case digest != e.Digest:
		return nil, api.EffectMismatch
	case e.State == "admitted" && e.Attempt == q.Attempt:
		return a.goAhead(claims.EffectRef, e), ""
	case e.State == "admitted":
		return nil, api.EffectAlreadyAdmitted
	case e.State != "minted":
		return nil, api.EffectSettled
	case claims.Digest() != e.Capability:
		return nil, api.FenceStale
	case !a.isFresh(proof.Nonce, GuardURI):
		return nil, api.WorkerNonce
	}
	if code := a.once(proof); code != "" {
		return nil, code
	}
	a.numbers++
	e.State, e.Attempt, e.Number, e.ApplyUntil = "admitted", q.Attempt, a.numbers, time.Now().Add(a.ApplyWithin)
	return a.goAhead(claims.EffectRef, e), ""
}

func (a *Authority) goAhead(ref string, e *Effect) api.Admission {
	return api.Admission{Effect: ref, Run: e.Run, Lane: e.Lane, Fence: e.Fence, Number: e.Number, WorkerNonce: a.nonce(GuardURI),
		ApplyWithinMS: max(0, time.Until(e.ApplyUntil).Milliseconds())}
}

// digestOf is of the effect as the guard spelled it; a guard that sends more or less gets another digest.
func digestOf(d api.Detail) [32]byte {
	if d.Type != api.DetailTypeEffect || len(d.Actions) != 1 || len(d.Locations) != 1 || d.Parameters != nil {
		return [32]byte{}
	}
	params, err := base64.RawURLEncoding.DecodeString(d.ParamsSHA256)
	if err != nil || len(params) != 32 {
		return [32]byte{}
	}
	e := capability.Effect{Guard: d.Locations[0], Action: d.Actions[0], Resource: d.Identifier, ParamsDigest: [32]byte(params), Amount: d.Amount, Currency: d.Currency}
	digest, err := e.Digest()
	if err != nil {
		return [32]byte{}
	}
	return digest
}

// settle is nw.settle_effect in small.
func (a *Authority) settle(body []byte) (any, api.Code) {
	var q api.SettleEffectRequest
	if json.Unmarshal(body, &q) != nil {
		return nil, api.InvalidRequest
	}
	a.expire()
	e := a.Effects[q.Effect]
	switch {
	case e == nil:
		return nil, api.WrongGuard
	case e.Attempt != q.Attempt:
		return nil, api.AttemptMismatch
	case e.State == "admitted":
		e.State = q.Outcome
	case e.State == api.Ambiguous && q.Outcome != api.Ambiguous:
		e.Late = q.Outcome
	case e.State != q.Outcome:
		return nil, api.EffectSettled
	}
	return api.EffectOutcome{Effect: q.Effect, State: e.State, Late: e.Late != ""}, ""
}

// expire makes ambiguous what was not settled in time.
func (a *Authority) expire() {
	for _, e := range a.Effects {
		if e.State == "admitted" && time.Now().After(e.ApplyUntil.Add(a.SettleWithin)) {
			e.State = api.Ambiguous
		}
	}
}

func (a *Authority) unsettled() api.Unsettled {
	a.expire()
	list := api.Unsettled{Effects: []api.UnsettledEffect{}}
	for ref, e := range a.Effects {
		if e.State == "admitted" {
			list.Effects = append(list.Effects, api.UnsettledEffect{Effect: ref, Attempt: e.Attempt, Lane: e.Lane, Fence: e.Fence,
				ApplyLeftMS: time.Until(e.ApplyUntil).Milliseconds(), SettleLeftMS: time.Until(e.ApplyUntil.Add(a.SettleWithin)).Milliseconds()})
		}
	}
	return list
}

func (a *Authority) report(body []byte) (any, api.Code) {
	var q api.Report
	if json.Unmarshal(body, &q) != nil || q.AgeMS < 0 || q.AgeMS > 3000 {
		return nil, api.InvalidRequest
	}
	if q.Sequence <= a.reports {
		return nil, api.ReportStale
	}
	a.reports = q.Sequence
	a.Reports = append(a.Reports, q)
	return struct{}{}, ""
}
