package server

import (
	"encoding/json"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// What the description shows. They are values of the wire's own types, so that
// none can be of another shape than what is answered.
const (
	aReference = "AAECAwQFBgcICQoLDA0ODw"
	aDigest    = "n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg"
	aNonce     = "AQAAAABqYh2AAAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIj"
	aToken     = "eyJ0eXAiOiJhdCtqd3QiLCJhbGciOiJFUzI1NiJ9.e30.c2lnbmF0dXJl"

	someDocuments = "kind: Client\nname: books\ntitle: The books\n"
)

var (
	aDay      = time.Date(2026, 12, 1, 3, 0, 0, 0, time.UTC)
	aDocument = json.RawMessage(`{"kind":"consent","title":"Close the day"}`)

	anOffer   = api.Offer{Offer: aReference, Task: aReference, Digest: aDigest, State: "open", ExpiresAt: aDay, Document: aDocument, NextFires: []time.Time{aDay}}
	anAnswer  = api.Answer{Digest: aDigest}
	aConsent  = api.Consent{Consent: aReference, Task: aReference, Digest: aDigest, ActivationEpoch: 3, GivenAt: aDay, ExpiresAt: aDay.AddDate(0, 3, 0)}
	aTask     = api.Task{Task: aReference, Revision: 2, ActivationEpoch: 3, Consented: true, NextAt: &aDay, Document: json.RawMessage(`{"kind":"Task","title":"Close the day"}`)}
	anEpoch   = api.Epoch{Task: aReference, ActivationEpoch: 4}
	aRun      = api.Run{Run: aReference, Task: aReference, NominalAt: aDay, State: "succeeded", Fence: 1099511627777, EndedAt: &aDay, Committed: 2, Steps: 3, Spent: 1250, Currency: "EUR"}
	aDecision = api.OwnerDecision{Decision: aReference, Task: aReference, Run: aReference, Title: "Close the day", Digest: aDigest, State: "pending", Risk: "high", Silence: "stop", AskedAt: aDay,
		ExpiresAt: aDay.Add(time.Hour), Effect: json.RawMessage(`{"action":"row.delete","guard":"https://guards.example/ledger","parameters":{"key":{"id":7},"table":"entries"},"resource":"table:entries"}`)}
	anAmbiguousEffect = api.AmbiguousEffect{Effect: aReference, Run: aReference, Task: aReference, Guard: "https://guards.example/payments", Action: "refund.create",
		Resource: "https://api.payments.example/refunds", AdmittedAt: aDay, SentAt: &aDay, Answered: api.AnsweredTimeout}
	aFinding         = api.Finding{Effect: aReference, Finding: "did_not"}
	anApplied        = api.Applied{Documents: []api.AppliedDocument{{Kind: "Client", Name: "books", Revision: 1, Result: "entered"}}}
	aRetireRequest   = api.RetireRequest{Kind: "WorkloadRole", Name: "bookkeeper", Revision: 2}
	aWithdrawRequest = api.WithdrawRequest{Task: aReference, Guard: "payments", Action: "refund.create", Resource: "https://api.payments.example/refunds", Key: json.RawMessage(`{"payment":"p1"}`)}

	aTokenRequest = TokenRequest{GrantType: api.GrantTokenExchange, SubjectToken: aReference, SubjectTokenType: api.TokenTypeRunReference,
		ClientAssertionType: api.AssertionJWTBearer, ClientAssertion: aToken}
	aTokenResponse = api.TokenResponse{AccessToken: aToken, TokenType: "DPoP", ExpiresIn: 300, IssuedTokenType: api.TokenTypeAccess, Run: &api.RunState{Fence: 1099511627777,
		DeadlineUnixMS: 1796094000000, LeaseMS: 30000, RemainingMS: 3600000, ReadinessEpoch: 12, ActivationEpoch: 3, Left: api.Left{Effects: 10, Steps: 100, WrapUp: api.WrapUpNo}}}
	aReceipt    = api.Receipt{Run: aReference, State: "succeeded", Fence: 1099511627777, Committed: 2, Steps: 3, AuditSHA256: aDigest}
	anOutcome   = api.EffectOutcome{Effect: aReference, State: api.Committed, Digest: aDigest}
	anEffect    = api.Detail{Type: api.DetailTypeEffect, Actions: []string{"row.append"}, Locations: []string{"https://guards.example/ledger"}, Identifier: "table:entries", ParamsSHA256: aDigest}
	anAdmission = api.Admission{Effect: aReference, Run: aReference, Lane: aReference, Fence: 1099511627777, ApplyWithinMS: 5000, Number: 42, WorkerNonce: aNonce}

	anAdmitRequest     = api.AdmitRequest{Attempt: aReference, Capability: aToken, Proof: aToken, Method: "POST", Path: "/ledger/operations/row.append", Effect: anEffect}
	aSettleRequest     = api.SettleEffectRequest{Effect: aReference, Attempt: aReference, Outcome: api.Committed}
	someUnsettled      = api.Unsettled{Effects: []api.UnsettledEffect{{Effect: aReference, Attempt: aReference, Lane: aReference, Fence: 1099511627777, ApplyLeftMS: -1000, SettleLeftMS: 24000}}}
	aReadinessDecision = api.Decision{Epoch: 12, Sequence: 90, Incarnation: 1, Requirement: 2, SinceUnixMS: 1796094000000, InputsSHA256: aDigest, Challenge: "c2F5IGl0IGFnYWlu", Reasons: []string{"stale"},
		Families: []api.FamilyState{{Family: "guards", Reason: "stale", Required: 1, AgeMS: 4100}}}
	aReport = api.Report{Sequence: 7, Healthy: true, AgeMS: 20, Protocol: api.GuardProtocol, Catalogue: aDigest}
)
