package api

import (
	"encoding/json"
	"time"
)

// Paths for members and operators. Identity comes from the envelope only.
const (
	PathOffers    = "/v1/offers"
	PathTasks     = "/v1/tasks"
	PathRuns      = "/v1/runs"
	PathFindings  = "/v1/findings"
	PathDecisions = "/v1/decisions" // + /reference, and /approve or /deny with an Answer
	PathRegistry  = "/v1/registry"
	PathRetire    = "/v1/registry/retire"
	PathWithdraw  = "/v1/consents/withdraw"
)

// Offer is what a member may say yes to, exactly. The document holds no optional grant; those are in most.
type Offer struct {
	Offer     string          `json:"offer"`
	Task      string          `json:"task"`
	Digest    string          `json:"digest"` // the yes carries it
	State     string          `json:"state"`  // open, accepted, declined, replaced, expired
	ExpiresAt time.Time       `json:"expires_at"`
	Document  json.RawMessage `json:"document"`       // the canonical consent document
	Most      json.RawMessage `json:"most,omitempty"` // the widest that can be chosen, where that is more: with every optional grant
	Chosen    *Chosen         `json:"chosen,omitempty"`
	Product   string          `json:"product,omitempty"`   // that asks, by its registered name; none: an operator does
	ReturnTo  string          `json:"return_to,omitempty"` // the link back to it, once the offer is answered
	NextFires []time.Time     `json:"next_fires,omitempty"`
}

// Chosen is what the member has chosen last of an offer. A yes to it carries its digest.
type Chosen struct {
	Digest   string          `json:"digest"`
	Document json.RawMessage `json:"document"`
}

// Choice is what a member allows of an offer. What is absent stays as offered, but for the optional grants: those not ticked are left out.
// Grants are named by their index in the offer's widest document. Nothing can be widened.
type Choice struct {
	Ticked           []int     `json:"ticked,omitempty"` // optional grants that are wanted
	Amounts          []Amount  `json:"amounts,omitempty"`
	Limits           Limits    `json:"limits,omitzero"`
	Dial             string    `json:"dial,omitempty"` // none, read, low, high
	ExpiresAt        time.Time `json:"expires_at,omitzero"`
	WhenMoreIsNeeded string    `json:"when_more_is_needed,omitempty"` // wait or stop
}

// Amount is the most of one effect of a grant, in minor units of its currency.
type Amount struct {
	Grant int   `json:"grant"`
	Most  int64 `json:"most"`
}

// Limits are the limits of a task that a member can lower; 0 is as offered.
type Limits struct {
	RuntimeS     int64 `json:"runtime_s,omitempty"`
	Effects      int64 `json:"effects,omitempty"`
	Steps        int64 `json:"steps,omitempty"`
	Repeats      int64 `json:"repeats,omitempty"`
	Spend        int64 `json:"spend,omitempty"`
	EffectsDay   int64 `json:"effects_day,omitempty"`
	EffectsMonth int64 `json:"effects_month,omitempty"`
	SpendDay     int64 `json:"spend_day,omitempty"`
	SpendMonth   int64 `json:"spend_month,omitempty"`
}

// Answer is a member's yes or no to the offer that was shown.
type Answer struct {
	Digest string `json:"digest"`
}

// Consent is the receipt of a yes.
type Consent struct {
	Consent         string    `json:"consent"`
	Task            string    `json:"task"`
	Digest          string    `json:"digest"`
	ActivationEpoch int64     `json:"activation_epoch"`
	GivenAt         time.Time `json:"given_at"`
	ExpiresAt       time.Time `json:"expires_at"`
	ReturnTo        string    `json:"return_to,omitempty"` // the link back to the product that asked
}

// Task is one of a member's tasks.
type Task struct {
	Task            string          `json:"task"`
	Revision        int64           `json:"revision"`
	ActivationEpoch int64           `json:"activation_epoch"`
	Consented       bool            `json:"consented"`
	NextAt          *time.Time      `json:"next_at,omitempty"`
	Title           string          `json:"title"`                   // as an operator wrote it
	Consent         string          `json:"consent,omitempty"`       // that stands
	ConsentUntil    *time.Time      `json:"consent_until,omitempty"` // it stands
	Offer           string          `json:"offer,omitempty"`         // that is open
	LastRun         *LastRun        `json:"last_run,omitempty"`
	Document        json.RawMessage `json:"document"`
}

// Run is one run of a member's task.
type Run struct {
	Run        string     `json:"run"`
	Task       string     `json:"task"`
	NominalAt  time.Time  `json:"nominal_at"`
	State      string     `json:"state"`
	Fence      int64      `json:"fence"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	Committed  int64      `json:"committed"`
	NotApplied int64      `json:"not_applied"`
	Ambiguous  int64      `json:"ambiguous"`
	Steps      int64      `json:"steps"`
	Spent      int64      `json:"spent"` // minor units
	Currency   string     `json:"currency,omitempty"`

	MoreEffects bool `json:"more_effects,omitempty"` // only the first thousand are counted
}

// Page is a list with the opaque cursor of what follows.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// AmbiguousEffect waits for its owner to record what was found.
type AmbiguousEffect struct {
	Effect     string    `json:"effect"`
	Run        string    `json:"run"`
	Task       string    `json:"task"`
	Guard      string    `json:"guard"`
	Action     string    `json:"action"`
	Resource   string    `json:"resource"`
	AdmittedAt time.Time `json:"admitted_at"`
	Finding    string    `json:"finding,omitempty"`
	Late       string    `json:"late_evidence,omitempty"`

	SentAt   *time.Time      `json:"sent_at,omitempty"`  // by the guard's clock
	Answered string          `json:"answered,omitempty"` // an Answered word; none: the guard has told nothing
	Status   int             `json:"status,omitempty"`   // HTTP status that answered
	Sent     json.RawMessage `json:"sent,omitempty"`     // the exact arguments, written by the workload
	State    json.RawMessage `json:"state,omitempty"`    // what a look at the destination showed afterwards, written by the destination
}

// OwnerDecision is one card: a task asks its owner about one exact effect, once.
type OwnerDecision struct {
	Decision  string          `json:"decision"`
	Task      string          `json:"task"`
	Run       string          `json:"run"`
	Title     string          `json:"title"`  // of the task, as an operator wrote it
	Digest    string          `json:"digest"` // of the effect; the answer carries it
	State     string          `json:"state"`  // pending, approved, denied, expired, used
	Risk      string          `json:"risk"`
	Silence   string          `json:"silence"` // what happens without an answer, as chosen at consent: wait or stop
	AskedAt   time.Time       `json:"asked_at"`
	ExpiresAt time.Time       `json:"expires_at"` // an answer after this is refused
	DecidedAt *time.Time      `json:"decided_at,omitempty"`
	Effect    json.RawMessage `json:"effect"` // the exact arguments, of which all execute; written by the workload
}

// Finding records what a person found out: a new entry, never a replay.
type Finding struct {
	Effect  string `json:"effect"`
	Finding string `json:"finding"` // happened, did_not, unknown
}

// Epoch answers a revocation or cut-off, after it is committed.
type Epoch struct {
	Task            string `json:"task"`
	ActivationEpoch int64  `json:"activation_epoch"`
}

// Applied answers a set of documents, one line each.
type Applied struct {
	Documents []AppliedDocument `json:"documents"`
}

// AppliedDocument is one document of an applied set.
type AppliedDocument struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	Result   string `json:"result"` // entered or unchanged
	Offer    string `json:"offer,omitempty"`
}

// RetireRequest ends a registered revision and what rests on it.
type RetireRequest struct {
	Kind     string `json:"kind"`
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
}

// WithdrawRequest takes a pre-approved key out of a task's consent.
type WithdrawRequest struct {
	Task     string          `json:"task"`
	Guard    string          `json:"guard"` // name
	Action   string          `json:"action"`
	Resource string          `json:"resource"`
	Key      json.RawMessage `json:"key"`
}

// Retirement tells how many tasks lost authority.
type Retirement struct {
	Tasks int64 `json:"tasks"`
}
