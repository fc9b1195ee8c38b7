// Package api holds the words that cross the wire: refusal codes, requests and
// answers. It depends on the standard library only, so that workers and guards
// may import it without inheriting anything else.
package api

import (
	"fmt"
	"net/http"
	"time"
)

// Retry says whether and when a refused caller may try again.
type Retry string

// The four answers to "shall I try again?".
const (
	Never     Retry = "never"      // the same request will be refused again
	WithNonce Retry = "with_nonce" // repeat once, with a new proof over the nonce of this answer
	After     Retry = "after"      // repeat after Retry-After, with a new proof
	NewClaim  Retry = "new_claim"  // this hold is over: claim again, or let another worker do so
)

// Code is a stable refusal code. Codes are part of the wire format: one is
// never renamed and never reused for something else.
type Code string

// The refusal codes, in the order in which a run meets them.
const (
	// What every entry may answer.
	InvalidRequest       Code = "invalid_request"
	PayloadTooLarge      Code = "payload_too_large"
	UnsupportedMediaType Code = "unsupported_media_type"
	MethodNotAllowed     Code = "method_not_allowed"
	NotFound             Code = "not_found"
	Forbidden            Code = "forbidden"
	TooManyRequests      Code = "too_many_requests"
	Unavailable          Code = "unavailable"
	OutcomeUnknown       Code = "outcome_unknown"
	Internal             Code = "internal"
	AdmissionClosed      Code = "admission_closed"
	DirectoryUnavailable Code = "directory_unavailable"
	PreconditionRequired Code = "precondition_required"
	Stale                Code = "stale"

	// Proofs, nonces and capabilities (RFC 9449 §5, §7, §8, §9).
	UseDPoPNonce     Code = "use_dpop_nonce"
	InvalidDPoPProof Code = "invalid_dpop_proof"
	ProofReplayed    Code = "proof_replayed"
	InvalidToken     Code = "invalid_token"
	WrongKey         Code = "wrong_key"

	// At admit, where two parties bring proofs: what is wrong is the worker's, which the guard must tell it.
	WorkerNonce Code = "worker_nonce"
	WorkerProof Code = "worker_proof"

	// Workload assertions and the platform envelope.
	InvalidClient   Code = "invalid_client"
	AssertionBound  Code = "assertion_bound"
	InvalidEnvelope Code = "invalid_envelope"
	UnknownMember   Code = "unknown_member"
	NotAMember      Code = "not_a_member"

	// The token endpoint (RFC 6749 §5.2, RFC 8693 §2.2.2, RFC 9396 §5).
	UnsupportedGrantType        Code = "unsupported_grant_type"
	InvalidGrant                Code = "invalid_grant"
	InvalidTarget               Code = "invalid_target"
	InvalidAuthorizationDetails Code = "invalid_authorization_details"

	// Runs.
	UnknownRun       Code = "unknown_run"
	RunEnded         Code = "run_ended"
	Held             Code = "held"
	LeaseLost        Code = "lease_lost"
	FenceStale       Code = "fence_stale"
	DeadlinePassed   Code = "deadline_passed"
	AuthorityChanged Code = "authority_changed"
	ReadinessChanged Code = "readiness_changed"
	ConsentEnded     Code = "consent_ended"
	LaneUncertain    Code = "lane_uncertain"
	EffectsInFlight  Code = "effects_in_flight"

	// Effects.
	NotGranted            Code = "not_granted"
	ApprovalUnavailable   Code = "approval_unavailable"
	ApprovalRequired      Code = "approval_required"
	ApprovalDenied        Code = "approval_denied"
	LimitReached          Code = "limit_reached"
	LoopDetected          Code = "loop_detected"
	EffectAmbiguous       Code = "effect_ambiguous"
	EffectInFlight        Code = "effect_in_flight"
	EffectKeyConflict     Code = "effect_key_conflict"
	EffectRepeated        Code = "effect_repeated"
	EffectLapsed          Code = "effect_lapsed"
	EffectMismatch        Code = "effect_mismatch"
	EffectAlreadyAdmitted Code = "effect_already_admitted"
	EffectSettled         Code = "effect_settled"
	AttemptMismatch       Code = "attempt_mismatch"
	WrongGuard            Code = "wrong_guard"
	TooLate               Code = "too_late"
	CredentialUnavailable Code = "credential_unavailable"

	// Components and readiness reports.
	BootSuperseded Code = "boot_superseded"
	ReportStale    Code = "report_stale"
	UnknownFamily  Code = "unknown_family"

	// Owner's decisions.
	DecisionChanged Code = "decision_changed"
	DecisionEnded   Code = "decision_ended"

	// Registry and consent.
	InvalidDocument   Code = "invalid_document"
	RevisionImmutable Code = "revision_immutable"
	RevisionStale     Code = "revision_stale"
	OfferChanged      Code = "offer_changed"
	OfferEnded        Code = "offer_ended"
	NotOffered        Code = "not_offered"
	TooManyOffers     Code = "too_many_offers"
	Retired           Code = "retired"

	// Run receipts.
	ReceiptPending  Code = "receipt_pending"
	ReceiptGone     Code = "receipt_gone"
	ReceiptTooLarge Code = "receipt_too_large"
)

type refusal struct {
	status int
	oauth  string // the `error` member that stock OAuth clients switch on
	retry  Retry
	after  time.Duration
	text   string
}

// refusals is the one table from code to answer. `docs/reference/refusals.md`
// is checked against it by a test.
var refusals = map[Code]refusal{
	InvalidRequest:       {400, "invalid_request", Never, 0, "The request is malformed; correct it before sending it again."},
	PayloadTooLarge:      {413, "invalid_request", Never, 0, "The request is larger than this entry accepts; send a smaller one."},
	UnsupportedMediaType: {415, "invalid_request", Never, 0, "The content type is not the one that this entry reads; see the API reference."},
	MethodNotAllowed:     {405, "invalid_request", Never, 0, "This path does not answer that method; see the API reference."},
	NotFound:             {404, "invalid_request", Never, 0, "There is nothing here that you may see."},
	Forbidden:            {403, "access_denied", Never, 0, "Your role does not allow this; ask an operator."},
	TooManyRequests:      {429, "temporarily_unavailable", After, time.Second, "Too many requests; wait as Retry-After says."},
	Unavailable:          {503, "temporarily_unavailable", After, time.Second, "Something that this answer depends on is not reachable; nothing happened, try again later."},
	OutcomeUnknown:       {503, "temporarily_unavailable", After, time.Second, "It is unknown whether this took effect; ask again with the same values and a new proof to learn it."},
	Internal:             {500, "server_error", Never, 0, "Something failed on our side; the operators see it in their log."},
	DirectoryUnavailable: {503, "temporarily_unavailable", After, time.Second, "The directory has not said in time that the member is one; nothing happened, try again later."},
	AdmissionClosed:      {503, "temporarily_unavailable", After, time.Second, "Admission is closed; nothing happened, try again later."},
	PreconditionRequired: {428, "invalid_request", Never, 0, "Say in If-Match what you were shown: its ETag, or * for whatever it is now."},
	Stale:                {412, "invalid_request", Never, 0, "This is no longer what you were shown; read it again and decide on that."},

	UseDPoPNonce:     {400, "use_dpop_nonce", WithNonce, 0, "Send a new proof that carries the nonce of this answer."},
	InvalidDPoPProof: {400, "invalid_dpop_proof", Never, 0, "The DPoP proof is missing, malformed or not for this request; make a new one."},
	ProofReplayed:    {400, "invalid_dpop_proof", Never, 0, "This DPoP proof was used before; make a new one for each request."},
	InvalidToken:     {401, "invalid_token", NewClaim, 0, "The capability is not valid here; get a new one."},
	WrongKey:         {401, "invalid_token", Never, 0, "The proof is signed by another key than the capability names."},

	WorkerNonce: {409, "use_dpop_nonce", WithNonce, 0, "The worker's proof carries a nonce that has passed; challenge it with a fresh one."},
	WorkerProof: {403, "invalid_dpop_proof", Never, 0, "The worker's proof or capability is not for this request; refuse it."},

	InvalidClient:   {401, "invalid_client", Never, 0, "The workload assertion does not prove a registered workload; send a current one from a registered issuer."},
	AssertionBound:  {401, "invalid_client", After, 60 * time.Second, "Another key owns this assertion; wait for a new assertion or use that key."},
	InvalidEnvelope: {401, "invalid_token", Never, 0, "The platform envelope is missing or not valid; sign in again."},
	UnknownMember:   {401, "invalid_token", Never, 0, "The platform envelope names no member with an email; sign in with a member's account."},
	NotAMember:      {403, "access_denied", Never, 0, "The directory knows no such active member; nothing can be agreed to in their name."},

	UnsupportedGrantType:        {400, "unsupported_grant_type", Never, 0, "This endpoint knows client_credentials and token exchange only."},
	InvalidGrant:                {400, "invalid_grant", Never, 0, "The subject token is not one that can be exchanged here."},
	InvalidTarget:               {400, "invalid_target", Never, 0, "The resource is not a guard that this consent names."},
	InvalidAuthorizationDetails: {400, "invalid_authorization_details", Never, 0, "Send exactly one authorization detail that describes one effect."},

	UnknownRun:       {404, "invalid_grant", Never, 0, "There is no such run for this workload."},
	RunEnded:         {410, "invalid_grant", Never, 0, "This run has ended; acknowledge its message and pull the next one."},
	Held:             {409, "invalid_grant", After, time.Second, "Another key holds this run; its lease must end first."},
	LeaseLost:        {409, "invalid_grant", NewClaim, 0, "The lease on this run has ended; claim it again."},
	FenceStale:       {409, "invalid_grant", NewClaim, 0, "A later claim has taken this run; stop working on it."},
	DeadlinePassed:   {410, "invalid_grant", Never, 0, "The authority deadline of this run has passed; nothing extends it."},
	AuthorityChanged: {409, "invalid_grant", Never, 0, "The authority of this task has changed since this was issued; stop working on it."},
	ReadinessChanged: {409, "invalid_grant", After, 0, "Admission was closed and reopened since this was issued; renew the run capability first."},
	ConsentEnded:     {410, "invalid_grant", Never, 0, "The consent behind this run has ended."},
	LaneUncertain:    {409, "invalid_grant", After, 5 * time.Second, "An earlier effect of this task is ambiguous; the lane is held until it is safe or its owner has recorded a finding."},
	EffectsInFlight:  {409, "invalid_grant", After, time.Second, "An effect of this run is still in flight; wait until it is settled."},

	NotGranted:            {403, "invalid_authorization_details", Never, 0, "The consent does not name this action on this resource at this guard."},
	ApprovalUnavailable:   {403, "access_denied", Never, 0, "This effect is above the task's approval dial, and nobody can be asked in time."},
	ApprovalRequired:      {403, "authorization_pending", NewClaim, 0, "This effect waits for its owner's decision and this hold is over; the run comes back to the queue."},
	ApprovalDenied:        {403, "access_denied", Never, 0, "The owner has said no to this effect; go on without it."},
	LimitReached:          {403, "access_denied", Never, 0, "This run has used what its consent allows; settle it."},
	LoopDetected:          {403, "access_denied", Never, 0, "The same effect was asked for as often as this run may; settle the run."},
	EffectAmbiguous:       {409, "invalid_grant", Never, 0, "The same effect is ambiguous in this lane; its owner must record what was found."},
	EffectInFlight:        {409, "invalid_grant", After, time.Second, "This effect has been admitted and is not settled yet; ask for its status."},
	EffectKeyConflict:     {409, "invalid_grant", Never, 0, "This effect key already names another effect in this run."},
	EffectRepeated:        {409, "invalid_grant", Never, 0, "The same effect is already committed in this run; name the effect it repeats, or stop."},
	EffectLapsed:          {410, "invalid_token", Never, 0, "This effect capability has lapsed; mint the effect again."},
	EffectMismatch:        {403, "invalid_token", Never, 0, "The request is not the effect that the capability names."},
	EffectAlreadyAdmitted: {409, "invalid_token", Never, 0, "Another attempt has been admitted for this effect; ask for its status."},
	EffectSettled:         {409, "invalid_token", Never, 0, "This effect already has its outcome; ask for its status."},
	AttemptMismatch:       {409, "invalid_grant", Never, 0, "Only the attempt that was admitted may settle this effect."},
	WrongGuard:            {403, "invalid_token", Never, 0, "This effect belongs to another guard."},
	CredentialUnavailable: {503, "temporarily_unavailable", After, 5 * time.Second, "The guard has no valid credential for its destination; nothing happened, its operator must provide one."},
	TooLate:               {409, "invalid_grant", Never, 0, "The time to apply this effect has passed; nothing was applied."},

	BootSuperseded: {409, "invalid_token", NewClaim, 0, "A later boot of this instance has registered; get a new component capability."},
	ReportStale:    {409, "invalid_request", Never, 0, "A later report of this instance has been recorded; send only rising sequence numbers."},
	UnknownFamily:  {404, "invalid_request", Never, 0, "This component does not report on that family."},

	DecisionChanged: {409, "invalid_request", Never, 0, "The decision is not about the effect that was shown; read it again and decide on that."},
	DecisionEnded:   {410, "invalid_request", Never, 0, "This decision has been made, or its time is over."},

	InvalidDocument:   {422, "invalid_request", Never, 0, "The document is not valid."},
	RevisionImmutable: {409, "invalid_request", Never, 0, "This revision exists with other content; revisions never change, apply a new one."},
	RevisionStale:     {409, "invalid_request", Never, 0, "A later revision exists; read it and decide again."},
	OfferChanged:      {409, "invalid_request", Never, 0, "The offer is not the one that was shown; read it again and decide on that."},
	OfferEnded:        {410, "invalid_request", Never, 0, "This offer has been answered, replaced or has expired."},
	TooManyOffers:     {429, "temporarily_unavailable", After, time.Minute, "This product asks as many people, or this one as often, as it may; wait for answers or withdraw an offer."},
	NotOffered:        {409, "invalid_request", Never, 0, "This is not what was offered, or less; nothing was changed, choose again."},
	Retired:           {409, "invalid_request", Never, 0, "Something that this names has been retired."},

	ReceiptPending:  {409, "temporarily_unavailable", After, time.Second, "The run has not ended, or the audit log is not signed past its end; ask again later."},
	ReceiptGone:     {410, "invalid_request", Never, 0, "Audit records of this run have gone by retention; an auditor may have them in an export."},
	ReceiptTooLarge: {422, "invalid_request", Never, 0, "This run has more audit records than a run receipt holds; ask an auditor for them."},
}

// Codes returns every refusal code.
func Codes() []Code {
	out := make([]Code, 0, len(refusals))
	for c := range refusals {
		out = append(out, c)
	}
	return out
}

// Status is the HTTP status of a code at the authority's token endpoint and,
// but for the codes that RFC 9449 §7 answers with a challenge, everywhere else.
func (c Code) Status() int { return c.row().status }

// OAuthError is the `error` member of the answer (RFC 6749 §5.2 and its registry).
func (c Code) OAuthError() string { return c.row().oauth }

// Retry says whether and when to try again.
func (c Code) Retry() Retry { return c.row().retry }

// Sentence is the one bounded sentence that says what to do.
func (c Code) Sentence() string { return c.row().text }

func (c Code) row() refusal {
	if r, ok := refusals[c]; ok {
		return r
	}
	return refusals[Internal]
}

// Refusal is an error that callers may see. The zero RetryAfter means the
// code's own.
type Refusal struct {
	Code       Code
	Sentence   string // replaces the code's sentence; never holds text from outside
	Ceiling    string // of limit_reached and loop_detected: which one; a word of the database
	Decision   string // of approval_required: the reference of the owner's decision that it waits for
	RetryAfter time.Duration
}

// Refuse returns the refusal of a code.
func Refuse(c Code) *Refusal { return &Refusal{Code: c} }

// Refusef returns a refusal with a sentence of its own. The format and its
// arguments must come from the program, never from a caller.
func Refusef(c Code, format string, args ...any) *Refusal {
	return &Refusal{Code: c, Sentence: fmt.Sprintf(format, args...)}
}

func (r *Refusal) Error() string { return string(r.Code) + ": " + r.Text() }

// Text is the sentence of this refusal.
func (r *Refusal) Text() string {
	if r.Sentence != "" {
		return r.Sentence
	}
	return r.Code.Sentence()
}

// Wait is how long to wait before trying again; zero when the code does not say.
func (r *Refusal) Wait() time.Duration {
	if r.RetryAfter > 0 {
		return r.RetryAfter
	}
	return r.Code.row().after
}

// Problem is the body of every refusal: application/problem+json (RFC 9457)
// with the members of an OAuth error (RFC 6749 §5.2) beside them.
type Problem struct {
	Type             string `json:"type"` // always "about:blank"
	Title            string `json:"title"`
	Status           int    `json:"status"`
	Error            string `json:"error"`
	ErrorDescription string `json:"error_description"`
	Code             Code   `json:"code"`
	Retry            Retry  `json:"retry"`
	RetryAfterMS     int64  `json:"retry_after_ms,omitempty"`
	Decision         string `json:"decision,omitempty"` // of approval_required
	Ceiling          string `json:"ceiling,omitempty"`  // of limit_reached and loop_detected
}

// Problem renders a refusal with the given HTTP status.
func (r *Refusal) Problem(status int) Problem {
	return Problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Error: r.Code.OAuthError(), ErrorDescription: r.Text(), Code: r.Code,
		Retry: r.Code.Retry(), RetryAfterMS: r.Wait().Milliseconds(), Decision: r.Decision, Ceiling: r.Ceiling,
	}
}
