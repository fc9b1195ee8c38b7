package server

import (
	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/openapi"
)

// TokenRequest is the form of the token endpoint: the parameters of its three
// grants. It is read by readForm; this describes it.
type TokenRequest struct {
	GrantType           string `json:"grant_type" enum:"client_credentials,urn:ietf:params:oauth:grant-type:token-exchange"`
	ClientID            string `json:"client_id,omitempty" doc:"Of a component: its registered name. Of a claim: the client's name."`
	ClientAssertionType string `json:"client_assertion_type,omitempty"`
	ClientAssertion     string `json:"client_assertion,omitempty" doc:"Component and claim: the projected token."`
	SubjectToken        string `json:"subject_token,omitempty" doc:"Claim: the run's reference. Mint: the run capability."`
	SubjectTokenType    string `json:"subject_token_type,omitempty" enum:"urn:nightwarrant:token-type:run-reference,urn:ietf:params:oauth:token-type:access_token"`
	RequestedTokenType  string `json:"requested_token_type,omitempty"`
	Resource            string `json:"resource,omitempty" doc:"Mint: the guard's URI."`
	Audience            string `json:"audience,omitempty" doc:"Mint: the same as resource, where a library sends it."`
	Details             string `json:"authorization_details,omitempty" doc:"Mint: JSON of one effect (RFC 9396)."`
	EffectKey           string `json:"effect_key,omitempty" doc:"Mint: your own name of this step."`
	RepeatOf            string `json:"repeat_of,omitempty" doc:"Mint: the committed effect that is repeated on purpose."`
}

func workload(method, path, id, summary string, access openapi.Access, in, out any, refusals ...api.Code) openapi.Operation {
	op := openapi.Operation{Method: method, Path: path, ID: id, Summary: summary, Tag: "runs", Access: access, In: in, Out: out, Refusals: refusals}
	if access == openapi.Component {
		op.Tag = "effects"
	}
	return op
}

// Codes that end a hold, wherever a run capability or an effect of it is shown.
var (
	heldCodes   = []api.Code{api.UnknownRun, api.RunEnded, api.LeaseLost, api.FenceStale, api.DeadlinePassed, api.AuthorityChanged, api.ReadinessChanged, api.ConsentEnded, api.Retired}
	clientCodes = []api.Code{api.InvalidClient, api.AssertionBound, api.UnsupportedGrantType, api.InvalidGrant, api.InvalidTarget, api.InvalidAuthorizationDetails, api.InvalidToken, api.Held, api.LaneUncertain}
	mintCodes   = []api.Code{api.NotGranted, api.ApprovalUnavailable, api.ApprovalRequired, api.ApprovalDenied, api.LimitReached, api.LoopDetected, api.EffectAmbiguous, api.EffectInFlight,
		api.EffectKeyConflict, api.EffectRepeated, api.EffectLapsed, api.EffectsInFlight, api.BootSuperseded}
	memberCodes = []api.Code{api.DirectoryUnavailable, api.NotAMember} // of whoever the run acts as
	guardCodes  = []api.Code{api.BootSuperseded, api.WrongGuard, api.AttemptMismatch, api.EffectSettled}
)

func codes(sets ...[]api.Code) (all []api.Code) {
	for _, s := range sets {
		all = append(all, s...)
	}
	return all
}

func (s *Server) workloads() {
	s.issuer()
	token := gated(workload("POST", api.PathToken, "token", "Component, claim and mint", openapi.Workload, aTokenRequest, aTokenResponse, codes(clientCodes, heldCodes, mintCodes, memberCodes)...))
	token.Media = "application/x-www-form-urlencoded"
	token.Text = "RFC 6749 §3.2 with RFC 8693 and RFC 9449. Component capabilities are given while admission is closed, too: a guard must report before the gate can open."
	openapi.Hand(s.api, token, s.token)
	openapi.Hand(s.api, gated(workload("POST", api.PathRenew, "renewRun", "Keep a run, and lower what is left of it", openapi.Holder, api.RenewRequest{}, aTokenResponse, codes(heldCodes, memberCodes, []api.Code{api.LaneUncertain})...)), body(s, s.authority.Renew))
	openapi.Hand(s.api, workload("POST", api.PathSettleRun, "settleRun", "End a run; the authority computes its state", openapi.Holder, api.SettleRunRequest{Result: "succeeded"}, aReceipt, codes(heldCodes, []api.Code{api.EffectsInFlight})...), body(s, s.authority.SettleRun))
	openapi.Hand(s.api, workload("GET", api.PathEffects+"{reference}", "getEffect", "The recorded state of one effect of your run", openapi.Holder, nil, anOutcome, codes(heldCodes, guardCodes)...), s.effect)

	openapi.Hand(s.api, workload("POST", api.PathNonces, "makeNonces", "Nonces for this guard's audience", openapi.Component, api.NoncesRequest{Count: 2}, api.Nonces{Nonces: []string{aNonce, aNonce}}, guardCodes...), body(s, s.nonces))
	openapi.Hand(s.api, gated(workload("POST", api.PathAdmit, "admitEffect", "Consume an effect, once, and get the go-ahead", openapi.Component, anAdmitRequest, anAdmission,
		codes(heldCodes, guardCodes, memberCodes, []api.Code{api.WorkerNonce, api.WorkerProof, api.EffectMismatch, api.EffectLapsed, api.EffectAlreadyAdmitted, api.EffectAmbiguous, api.LaneUncertain, api.TooLate, api.NotGranted})...)), body(s, s.authority.Admit))
	openapi.Hand(s.api, workload("POST", api.PathSettle, "settleEffect", "Record what happened to an admitted effect", openapi.Component, aSettleRequest, anOutcome, codes(guardCodes, []api.Code{api.EffectMismatch})...), body(s, s.authority.SettleEffect))
	openapi.Hand(s.api, workload("GET", api.PathUnsettled, "listUnsettledEffects", "Effects that this guard must prove or tombstone, oldest first", openapi.Component, nil, someUnsettled, guardCodes...), s.unsettled)
	s.readinessRoutes()
}

func (s *Server) issuer() {
	open := func(path, id, summary, tag string, out any) openapi.Operation {
		return openapi.Operation{Method: "GET", Path: path, ID: id, Summary: summary, Tag: tag, Access: openapi.Anybody, Out: out}
	}
	openapi.Hand(s.api, open(api.PathMetadata, "getMetadata", "The issuer's metadata (RFC 8414)", "issuer", metadataOf("https://authority.example")), s.metadata)
	jwks := open(api.PathJWKS, "getKeys", "The keys that sign capabilities and decisions (RFC 7517)", "issuer", KeySet{Keys: []map[string]any{{"kty": "EC", "crv": "P-256", "kid": aDigest, "alg": "ES256", "use": "sig"}}})
	jwks.Answer, jwks.Refusals = "application/jwk-set+json", []api.Code{api.Unavailable}
	openapi.Hand(s.api, jwks, s.jwks)
	openapi.Hand(s.api, open(api.PathOpenAPI, "getDescription", "This document", "issuer", map[string]any{"openapi": "3.1.0"}), s.described)
	openapi.Hand(s.api, open("/healthz", "getLiveness", "Whether the process is alive", "process", map[string]string{"process": "alive"}), s.healthz)
	ready := open("/readyz", "getRoute", "Whether to route to this replica", "process", map[string]string{"route": "here"})
	ready.Refusals = []api.Code{api.Unavailable}
	openapi.Hand(s.api, ready, s.readyz)
}

func (s *Server) readinessRoutes() {
	ask := openapi.Operation{Method: "GET", Path: api.PathReadiness, ID: "getReadiness", Summary: "The complete readiness decision, signed over your challenge", Tag: "readiness", Access: openapi.Anybody,
		Out: aReadinessDecision, Refusals: []api.Code{api.TooManyRequests}, Query: []openapi.Parameter{{Name: "challenge", Text: "At most 128 visible ASCII characters, echoed in the signed decision."}}}
	openapi.Hand(s.api, ask, s.readiness)
	report := workload("PUT", api.PathReports+"{family}", "reportReadiness", "Report on one family", openapi.Component, aReport, nil, api.BootSuperseded, api.ReportStale, api.UnknownFamily)
	report.Tag, report.Status = "readiness", 204
	openapi.Hand(s.api, report, s.report)
}
