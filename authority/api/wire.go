package api

import "encoding/json"

// Grant and token types of the token endpoint.
const (
	GrantClientCredentials = "client_credentials"
	GrantTokenExchange     = "urn:ietf:params:oauth:grant-type:token-exchange" // RFC 8693 §2.1
	TokenTypeAccess        = "urn:ietf:params:oauth:token-type:access_token"   // RFC 8693 §3
	TokenTypeRunReference  = "urn:nightwarrant:token-type:run-reference"       // #nosec G101 -- a name
	AssertionJWTBearer     = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
	AssertionJWTSPIFFE     = "urn:ietf:params:oauth:client-assertion-type:jwt-spiffe"
	DetailTypeEffect       = "urn:nightwarrant:effect" // RFC 9396 §2 type
)

// Paths of the authority.
const (
	PathMetadata   = "/.well-known/oauth-authorization-server" // RFC 8414 §3
	PathJWKS       = "/v1/jwks"
	PathToken      = "/v1/token"
	PathNonces     = "/v1/nonces"
	PathRenew      = "/v1/runs/renew"
	PathSettleRun  = "/v1/runs/settle"
	PathAdmit      = "/v1/effects/admit"
	PathSettle     = "/v1/effects/settle"
	PathUnsettled  = "/v1/effects/unsettled"
	PathEffects    = "/v1/effects/" // + reference
	PathReadiness  = "/v1/readiness"
	PathOpenAPI    = "/v1/openapi.json"
	PathReports    = "/v1/readiness/reports/"                // + family
	PathResource   = "/.well-known/oauth-protected-resource" // RFC 9728 §3, at guards
	HeaderProof    = "DPoP"
	HeaderNonce    = "DPoP-Nonce"
	HeaderEnvelope = "Nightwarrant-Envelope"
)

// TokenResponse answers the token endpoint and renew (RFC 6749 §5.1).
type TokenResponse struct {
	AccessToken     string         `json:"access_token"`
	TokenType       string         `json:"token_type"` // always "DPoP"
	ExpiresIn       int64          `json:"expires_in"` // seconds
	IssuedTokenType string         `json:"issued_token_type,omitempty"`
	Details         []Detail       `json:"authorization_details,omitempty"`
	Run             *RunState      `json:"run,omitempty"`         // claim and renew
	Effect          string         `json:"effect,omitempty"`      // mint: the effect's reference
	GuardNonce      string         `json:"guard_nonce,omitempty"` // mint: a first nonce for that guard
	Boot            int64          `json:"boot,omitempty"`        // component
	Outcome         *EffectOutcome `json:"outcome,omitempty"`     // mint of a settled key: no token, its outcome
	Left            *Left          `json:"left,omitempty"`        // mint
}

// RunState is what the holder of a run knows about it.
type RunState struct {
	Fence           int64        `json:"fence"`
	DeadlineUnixMS  int64        `json:"deadline_unix_ms"`
	LeaseMS         int64        `json:"lease_ms"`     // from now; counted by the database
	RemainingMS     int64        `json:"remaining_ms"` // to the authority deadline
	ReadinessEpoch  int64        `json:"readiness_epoch"`
	ActivationEpoch int64        `json:"activation_epoch"`
	Left            Left         `json:"left"`
	Effects         []EffectLine `json:"effects,omitempty"`
}

// Left is what a run may still use, with the windows of its task and its
// member. It is a hint: each mint decides.
type Left struct {
	Effects int64  `json:"effects"`
	Steps   int64  `json:"steps"`
	Spend   int64  `json:"spend"`        // minor units of the consent's currency
	Used    int    `json:"used_percent"` // of the ceiling that is nearest, the deadline included
	WrapUp  string `json:"wrap_up"`      // no, soon, now or stop: it rises as a ceiling comes near
}

// How much a run should hurry to come to an end.
const (
	WrapUpNo   = "no"
	WrapUpSoon = "soon" // three quarters of a ceiling are used
	WrapUpNow  = "now"  // nine tenths, or one effect is left
	WrapUpStop = "stop" // nothing is left
)

// EffectLine is one effect of a run, as its holder sees it.
type EffectLine struct {
	Effect    string `json:"effect"`     // reference
	KeySHA256 string `json:"key_sha256"` // capability.EffectKeyDigest of the key, base64url
	Digest    string `json:"digest"`     // of the effect, base64url
	State     string `json:"state"`
}

// Detail is the one authorization_details object of an effect (RFC 9396 §2).
// A mint request carries Parameters; a capability carries ParamsSHA256.
type Detail struct {
	Type         string          `json:"type"`
	Actions      []string        `json:"actions"`
	Locations    []string        `json:"locations"`
	Identifier   string          `json:"identifier"`
	Parameters   json.RawMessage `json:"parameters,omitempty"`
	ParamsSHA256 string          `json:"params_sha256,omitempty"`
	Amount       int64           `json:"amount,omitempty"` // minor units of Currency
	Currency     string          `json:"currency,omitempty"`
}

// RenewRequest may only lower what is left of a run.
type RenewRequest struct {
	EffectsLeft *int64 `json:"effects_left,omitempty"`
	StepsLeft   *int64 `json:"steps_left,omitempty"`
	SpendLeft   *int64 `json:"spend_left,omitempty"`
}

// AdmitRequest is what a guard sends before it applies an effect. Capability
// and Proof are passed on unchanged, as the worker sent them.
type AdmitRequest struct {
	Attempt    string `json:"attempt"` // 128 random bits made by the guard, base64url
	Capability string `json:"capability"`
	Proof      string `json:"proof"`
	Method     string `json:"method"` // of the worker's request at the guard
	Path       string `json:"path"`   // of that request, escaped and whole; it lies under the path of the guard's URI
	Effect     Detail `json:"effect"` // built by the guard from the request, never from the capability
}

// Admission is the go-ahead: apply within the given time, counted from before
// the question was sent, or not at all.
type Admission struct {
	Effect        string `json:"effect"`
	Run           string `json:"run"`
	Lane          string `json:"lane"`
	Fence         int64  `json:"fence"`
	ApplyWithinMS int64  `json:"apply_within_ms"`
	Number        int64  `json:"admission"` // cluster-wide, rising
	WorkerNonce   string `json:"worker_nonce"`
}

// Outcomes of an effect. All are terminal.
const (
	Committed  = "committed"
	NotApplied = "not_applied"
	Ambiguous  = "ambiguous"
)

// SettleEffectRequest records what happened to an admitted effect.
type SettleEffectRequest struct {
	Effect   string    `json:"effect"`
	Attempt  string    `json:"attempt"`
	Outcome  string    `json:"outcome"`
	Spent    *int64    `json:"spent,omitempty"`    // minor units that were really spent; absent: all that was reserved
	Evidence *Evidence `json:"evidence,omitempty"` // of an ambiguous effect
}

// Evidence is what a guard knows about an effect that nobody can prove: what it
// sent, when, and what answered. Its owner sees it.
type Evidence struct {
	Action     string          `json:"action,omitempty"` // with what follows: the effect, as the guard spelled it
	Resource   string          `json:"resource,omitempty"`
	Amount     int64           `json:"amount,omitempty"`
	Currency   string          `json:"currency,omitempty"`
	Parameters json.RawMessage `json:"parameters,omitempty"`   // canonical, as sent; absent: only what follows is known
	SentUnixMS int64           `json:"sent_unix_ms,omitempty"` // by the guard's clock; 0: nothing is known to have been sent
	Answered   string          `json:"answered"`               // one of the Answered words
	Status     int             `json:"status,omitempty"`       // HTTP status, when answered is status
	State      json.RawMessage `json:"state,omitempty"`        // one JSON object of at most 16 KiB: what a read-only look at the destination shows afterwards
}

// What answered a guard that could not prove an effect.
const (
	AnsweredNothing    = "nothing"    // the guard stopped before an answer came
	AnsweredTimeout    = "timeout"    // no answer in time
	AnsweredConnection = "connection" // the connection broke
	AnsweredStatus     = "status"     // an answer that says neither yes nor no
	AnsweredMalformed  = "malformed"  // an answer that cannot be read
	AnsweredUnknown    = "unknown"
)

// EffectOutcome is the recorded state of an effect.
type EffectOutcome struct {
	Effect  string `json:"effect"`
	State   string `json:"state"` // minted, lapsed, admitted, committed, not_applied, ambiguous
	Digest  string `json:"digest"`
	Late    bool   `json:"late_evidence,omitempty"` // recorded after the window; changed nothing
	Attempt string `json:"attempt,omitempty"`       // told to the effect's own guard only
}

// UnsettledEffect is an admitted effect that its guard must prove or tombstone.
type UnsettledEffect struct {
	Effect       string `json:"effect"`
	Attempt      string `json:"attempt"`
	Lane         string `json:"lane"`
	Fence        int64  `json:"fence"`
	ApplyLeftMS  int64  `json:"apply_left_ms"`  // zero or less: its time to apply has passed
	SettleLeftMS int64  `json:"settle_left_ms"` // zero or less: it will be recorded as ambiguous
}

// Unsettled lists a guard's unsettled effects, oldest first, at most 100.
type Unsettled struct {
	Effects []UnsettledEffect `json:"effects"`
}

// SettleRunRequest asks to end a run. The authority computes the state itself.
type SettleRunRequest struct {
	Result string `json:"result"` // "succeeded" or "failed"
}

// Receipt tells how a run ended.
type Receipt struct {
	Run         string `json:"run"`
	State       string `json:"state"`
	Fence       int64  `json:"fence"`
	Committed   int64  `json:"committed"`
	NotApplied  int64  `json:"not_applied"`
	Ambiguous   int64  `json:"ambiguous"`
	Steps       int64  `json:"steps"`
	Spent       int64  `json:"spent"` // minor units
	Currency    string `json:"currency,omitempty"`
	AuditSHA256 string `json:"audit_sha256"` // of the audit row that ended it
}

// NoncesRequest asks for nonces for the calling guard's audience.
type NoncesRequest struct {
	Count int `json:"count"` // 1 to 64
}

// Nonces are for workers that call the guard which asked for them.
type Nonces struct {
	Nonces []string `json:"nonces"`
}

// GuardProtocol is the version of what guards and the authority say to each other.
const GuardProtocol = 1

// Report is one readiness report of a component about one family.
type Report struct {
	Sequence     int64    `json:"sequence"`
	Healthy      bool     `json:"healthy"`
	Reason       string   `json:"reason,omitempty"`        // a registered reason code when not healthy
	AgeMS        int64    `json:"age_ms"`                  // since the probe began
	Protocol     int      `json:"protocol,omitempty"`      // of guards: protocol version
	Models       []string `json:"models,omitempty"`        // of guards: SHA-256 digests of the models that it serves, base64url
	Datasets     []string `json:"datasets,omitempty"`      // of guards: and of the datasets
	Catalogue    string   `json:"catalogue,omitempty"`     // of guards: SHA-256 digest of the actions that it serves, base64url
	MaxFence     int64    `json:"max_fence,omitempty"`     // of guards: the highest that it has seen
	MaxAdmission int64    `json:"max_admission,omitempty"` // of guards: and of admission numbers
	Build        *Build   `json:"build,omitempty"`         // of guards: what the process runs
}

// Build is what a process says that it runs: evidence, on which nothing depends.
type Build struct {
	BinarySHA256 string `json:"binary_sha256"`    // of its executable, base64url
	Go           string `json:"go,omitempty"`     // such as go1.26.3; empty when it is no release
	Module       string `json:"module,omitempty"` // GOFIPS140 of the build, to the snapshot's digest; empty when it was built with none
	FIPS         bool   `json:"fips"`             // the cryptographic module says that it is enabled
}

// Decision is the complete readiness decision, as products and workers see it.
type Decision struct {
	Open         bool          `json:"open"`
	Held         bool          `json:"held"` // closed by an operator's hand
	Epoch        int64         `json:"epoch"`
	Sequence     int64         `json:"sequence"`
	Incarnation  int64         `json:"incarnation"`
	Requirement  int64         `json:"requirement"` // generation of what is required
	ValidMS      int64         `json:"valid_ms"`    // from when the question was sent; zero when closed
	SinceUnixMS  int64         `json:"since_unix_ms"`
	InputsSHA256 string        `json:"inputs_sha256"` // of the reports that it was derived from, base64url
	Challenge    string        `json:"challenge,omitempty"`
	Reasons      []string      `json:"reasons,omitempty"` // why it is closed
	Families     []FamilyState `json:"families"`
	Signed       string        `json:"signed,omitempty"` // the same decision as a JWS; what a product applies
}

// FamilyState is one required family as the decision judged it.
type FamilyState struct {
	Family    string `json:"family"` // an operator's own one: x_ and the digest of its name
	Good      bool   `json:"good"`
	Reason    string `json:"reason,omitempty"`
	Instances int    `json:"instances"` // that report good
	Required  int    `json:"required"`
	AgeMS     int64  `json:"age_ms"` // of the oldest good report that counts
}
