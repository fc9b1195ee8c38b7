package authoritytest

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"slices"
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
	defer a.tell()
	if r.URL.Path == api.PathJWKS {
		_, _ = w.Write(a.JWKS())
		return
	}
	if r.URL.Path == api.PathMetadata {
		_ = json.NewEncoder(w).Encode(a.metadata())
		return
	}
	answer, code := a.serve(r)
	w.Header().Set(api.HeaderNonce, a.nonce(a.Issuer))
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
	boot, code := a.component(r)
	if code != "" {
		return nil, code
	}
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxBody))
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
		return a.report(boot, body)
	}
	return nil, api.NotFound
}

const maxBody = 256 << 10

// metadata is the authority's (RFC 8414 §2), as far as a guard needs it.
func (a *Authority) metadata() map[string]any {
	return map[string]any{"issuer": a.Issuer, "token_endpoint": a.Issuer + api.PathToken, "jwks_uri": a.Issuer + api.PathJWKS,
		"grant_types_supported": []string{api.GrantClientCredentials}, "dpop_signing_alg_values_supported": []string{"ES256"}}
}

// spend checks a proof, its nonce and that it is new.
func (a *Authority) spend(r *http.Request, e capability.Expect) (*capability.Proof, api.Code) {
	header, err := capability.HeaderProof(r.Header)
	if err != nil {
		return nil, api.InvalidDPoPProof
	}
	e.Method, e.URL, e.Now = r.Method, a.Issuer+r.URL.EscapedPath(), time.Now()
	proof, err := capability.CheckProof(header, e)
	if err != nil {
		return nil, api.InvalidDPoPProof
	}
	if !a.isFresh(proof.Nonce, a.Issuer) {
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
		a.boots[proof.Key] = a.Latest
	}
	now, id := time.Now().Unix(), Ref()
	a.issued[id] = true
	token, err := capability.SignComponent(a.Key, capability.ComponentClaims{
		Header: capability.Header{Issuer: a.Issuer, Audience: a.Issuer, Subject: GuardName, ClientID: GuardName, IssuedAt: now, Expires: now + 300, ID: id,
			Confirmation: capability.Confirmation{JKT: proof.Key}, Generation: generation},
		Component: GuardName, ComponentKind: "guard", Boot: a.boots[proof.Key], Families: []string{"guards"},
	})
	if err != nil {
		return nil, api.Internal
	}
	return api.TokenResponse{AccessToken: token.Reveal(), TokenType: "DPoP", ExpiresIn: 300, Boot: a.boots[proof.Key]}, ""
}

// component checks who calls, and returns the boot.
func (a *Authority) component(r *http.Request) (int64, api.Code) {
	token, err := capability.HeaderToken(r.Header)
	if err != nil {
		return 0, api.InvalidToken
	}
	claims, err := capability.VerifyComponent(token, ownKey{a}, capability.Expectation{Issuer: a.Issuer, Now: time.Now()})
	if err != nil {
		return 0, api.InvalidToken
	}
	if _, code := a.spend(r, capability.Expect{AccessToken: token, Holder: claims.Confirmation.JKT}); code != "" {
		return 0, code
	}
	if a.revoked[claims.ID] {
		return 0, api.InvalidToken
	}
	if claims.Boot != a.Latest && !a.Replicas {
		return 0, api.BootSuperseded
	}
	return claims.Boot, ""
}

// admit is nw.admit in small.
func (a *Authority) admit(body []byte) (any, api.Code) {
	var q api.AdmitRequest
	if json.Unmarshal(body, &q) != nil || !isRef(q.Attempt) || q.Method != http.MethodPost || !strings.HasPrefix(q.Path, "/ledger/") {
		a.Wrong = append(a.Wrong, "a question that is not one of the protocol")
		return nil, api.InvalidRequest
	}
	token := capability.Token(q.Capability)
	claims, err := capability.VerifyEffect(token, ownKey{a}, capability.Expectation{Issuer: a.Issuer, Audience: GuardURI, Now: time.Now()})
	if err != nil {
		return nil, api.WorkerProof
	}
	proof, err := capability.CheckProof(q.Proof, capability.Expect{Method: q.Method, URL: "https://guard.example" + q.Path, AccessToken: token,
		Holder: claims.Confirmation.JKT, Now: time.Now()})
	if err != nil {
		return nil, api.WorkerProof
	}
	e, digest := a.Effects[claims.EffectRef], digestOf(q.Effect)
	if e == nil {
		return nil, api.WrongGuard
	}
	if !slices.Contains(e.Asked, q.Attempt) {
		e.Asked = append(e.Asked, q.Attempt)
	}
	switch {
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

// isRef is 16 bytes in base64url.
func isRef(s string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == 16
}

// settle is nw.settle_effect in small.
func (a *Authority) settle(body []byte) (any, api.Code) {
	var q api.SettleEffectRequest
	if json.Unmarshal(body, &q) != nil || !isSettlement(q) {
		a.Wrong = append(a.Wrong, "a settlement that is not one of the protocol")
		return nil, api.InvalidRequest
	}
	a.expire()
	e := a.Effects[q.Effect]
	switch {
	case e == nil:
		return nil, api.WrongGuard
	case e.Attempt != q.Attempt:
		a.Wrong = append(a.Wrong, "a settlement by an attempt that was not admitted")
		return nil, api.AttemptMismatch
	case e.State == "admitted":
		e.State, e.Spent, e.Evidence = q.Outcome, q.Spent, q.Evidence
	case e.State == api.Ambiguous && q.Outcome != api.Ambiguous:
		e.Late = q.Outcome
	case e.State != q.Outcome:
		a.Wrong = append(a.Wrong, "a settlement as "+q.Outcome+" of an effect that is "+e.State)
		return nil, api.EffectSettled
	}
	return api.EffectOutcome{Effect: q.Effect, State: e.State, Late: e.Late != ""}, ""
}

// isSettlement: one of the three ends, an amount that is none of less than nothing, and evidence of what is ambiguous only.
func isSettlement(q api.SettleEffectRequest) bool {
	switch {
	case q.Outcome != api.Committed && q.Outcome != api.NotApplied && q.Outcome != api.Ambiguous:
		return false
	case q.Spent != nil && *q.Spent < 0, q.Evidence != nil && (q.Outcome != api.Ambiguous || !slices.Contains(answered, q.Evidence.Answered)):
		return false
	}
	return true
}

var answered = []string{api.AnsweredNothing, api.AnsweredTimeout, api.AnsweredConnection, api.AnsweredStatus, api.AnsweredMalformed, api.AnsweredUnknown}

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

func (a *Authority) report(boot int64, body []byte) (any, api.Code) {
	var q api.Report
	if json.Unmarshal(body, &q) != nil || q.AgeMS < 0 || q.AgeMS > 3000 {
		return nil, api.InvalidRequest
	}
	if q.Sequence <= a.reports[boot] {
		return nil, api.ReportStale
	}
	a.reports[boot], a.Healthy[boot] = q.Sequence, q.Healthy
	a.Reports = append(a.Reports, q)
	return struct{}{}, ""
}
