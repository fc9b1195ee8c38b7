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

	aCursor = "c2VhbGVkLXRvLXdoby1hc2tlZC1hbmQtd2hhdC1mb3I"

	someDocuments = "kind: Client\nname: books\ntitle: The books\n"
	someLines     = `{"number":1,"at":"2026-12-01T03:00:00Z","verb":"open","verdict":"ok","digest":"n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg","body":{}}` + "\n" + `{"end":true,"lines":1,"until":"2026-12-01T03:00:00Z"}` + "\n"
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
	aStart = api.StartOffer{For: api.Person{Subject: "a8f5f167"}, Details: []json.RawMessage{json.RawMessage(`{"type":"urn:nightwarrant:task","identifier":"close-the-day-4711"}`)},
		ReturnURI: "https://books.example/nightwarrant/back", State: "xyzzy"}
	aFinding         = api.Finding{Effect: aReference, Finding: "did_not"}
	anApplied        = api.Applied{Documents: []api.AppliedDocument{{Kind: "Client", Name: "books", Revision: 1, Result: "entered"}}}
	aRetireRequest   = api.RetireRequest{Kind: "WorkloadRole", Name: "bookkeeper", Revision: 2}
	aWithdrawRequest = api.WithdrawRequest{Task: aReference, Guard: "payments", Action: "refund.create", Resource: "https://api.payments.example/refunds", Key: json.RawMessage(`{"payment":"p1"}`)}

	aTokenRequest = TokenRequest{GrantType: api.GrantTokenExchange, SubjectToken: aReference, SubjectTokenType: api.TokenTypeRunReference,
		ClientAssertionType: api.AssertionJWTBearer, ClientAssertion: aToken}
	aTokenResponse = api.TokenResponse{AccessToken: aToken, TokenType: "DPoP", ExpiresIn: 300, IssuedTokenType: api.TokenTypeAccess, Run: &api.RunState{Fence: 1099511627777,
		DeadlineUnixMS: 1796094000000, LeaseMS: 30000, RemainingMS: 3600000, ReadinessEpoch: 12, ActivationEpoch: 3, Left: api.Left{Effects: 10, Steps: 100, WrapUp: api.WrapUpNo}}}
	aRunReceipt = api.RunReceipt{Run: aReference, Receipt: "eyJhbGciOiJFUzI1NiJ9.eyJydW4iOnt9fQ.c2lnbmF0dXJl"}
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

	anHour  = 7
	aChoice = api.Choice{Ticked: []int{1}, Limits: api.Limits{Effects: 2}, ExpiresAt: aDay.AddDate(0, 1, 0), WhenMoreIsNeeded: "stop"}
	aRecord = api.ConsentRecord{Consent: aReference, Task: aReference, TaskRevision: 2, Title: "Close the day", Digest: aDigest, State: "active", Client: "books", Role: "bookkeeper", RoleRevision: 1,
		Policy: "cautious", PolicyRevision: 1, GivenAt: aDay, NotBefore: aDay, ExpiresAt: aDay.AddDate(0, 3, 0), Document: aDocument}
	aTaskDetail = api.TaskDetail{Task: aTask, Revisions: []api.Revision{{Revision: 2, EnteredAt: aDay, Document: aTask.Document}}, Consents: []api.ConsentRecord{aRecord},
		Client: api.Named{Name: "books", Revision: 1, State: "active"}, Role: api.Named{Name: "bookkeeper", Revision: 1, State: "active"}, Policy: api.Named{Name: "cautious", Revision: 1, State: "active"},
		Profiles: []api.Named{{Name: "bookkeeper", Revision: 1, State: "active"}}, Zone: "Europe/Berlin", NextFires: []api.Fire{{At: aDay}}}
	aDryRun   = api.DryRun{At: aDay, NextAt: &aDay, Reasons: []string{"lane_busy"}}
	aScope    = api.RevocationScope{Task: aReference, Consent: aReference, ActivationEpoch: 3, Runs: []api.LastRun{{Run: aReference, State: "claimed", NominalAt: aDay}}, InFlight: 1, Minted: 2, NextAt: &aDay}
	aTimeline = api.Timeline{Run: aRun, Deadline: aDay.Add(time.Hour), Entries: []api.TimelineEntry{{At: aDay, Kind: "claim", Code: "ok", Fence: 1099511627777, Digest: aDigest}}}
	anEntry   = api.Entry{Kind: "Client", Name: "books", Revision: 1, State: "active", EnteredAt: aDay, Digest: aDigest, Document: json.RawMessage(`{"kind":"Client","name":"books"}`)}

	aCutOffScope  = api.CutOffScope{Client: "books", Tasks: 12, Runs: 3, InFlight: 1, Bound: 10000}
	aStrandedTask = api.StrandedTask{Task: aReference, Title: "Close the day", Member: aDigest, DepartedAt: aDay, Document: aTask.Document}
	aBoard        = api.Board{Epoch: 12, Incarnation: 1, Requirement: 2, Since: aDay, Reason: "stale", Family: "guards", At: aDay, Rows: []api.BoardRow{{Family: "guards", Reason: "stale", Required: 1, AgeMS: 4100, Tasks: 12}}}
	aDeployment   = api.Deployment{At: aDay, Identity: api.Identity{Cluster: aReference, AuditKey: aDigest,
		Generations: []api.Generation{{Generation: 1, State: "current", KeyID: aDigest, Provenance: aDigest, PublishedAt: aDay, ActivatedAt: &aDay, Replicas: 2}}},
		Replicas:  []api.Replica{{Kind: "authority", Instance: aDigest, Boot: 3, Since: aDay, Seen: aDay, Live: true, Build: &api.Build{BinarySHA256: aDigest, Go: "go1.26.3", Module: "v1.0.0-c2097c7c", FIPS: true}}},
		Uncertain: api.Uncertain{Effects: 1, Oldest: &aDay}}
	aRequirement = api.Requirement{Generation: 2, Since: aDay, InForce: true, ClosedMS: 5000, ReportTTLMS: 3000, Rounds: 3, ValidMS: 2000}
	anAuditEntry = api.AuditEntry{Number: 1, At: aDay, Verb: "open", Verdict: "ok", Digest: aDigest, Body: json.RawMessage(`{}`)}
)
