package api

import (
	"encoding/json"
	"time"
)

// Named is a registered thing that something rests on.
type Named struct {
	Name     string `json:"name"`
	Title    string `json:"title,omitempty"`
	Revision int64  `json:"revision"`
	State    string `json:"state"` // active or retired
}

// Fire is one coming nominal time, in the task's zone.
type Fire struct {
	At           time.Time `json:"at"`
	ClocksChange bool      `json:"clocks_change,omitempty"` // between the time before and this one
}

// LastRun is a task's newest run.
type LastRun struct {
	Run       string     `json:"run"`
	State     string     `json:"state"`
	NominalAt time.Time  `json:"nominal_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
}

// Revision is one immutable document of a task.
type Revision struct {
	Revision  int64           `json:"revision"`
	EnteredAt time.Time       `json:"entered_at"`
	Document  json.RawMessage `json:"document"`
}

// ConsentRecord is a consent as it stands: what the member agreed to, since when
// and until when. It is the receipt again.
type ConsentRecord struct {
	Consent        string          `json:"consent"`
	Task           string          `json:"task"`
	TaskRevision   int64           `json:"task_revision"`
	Title          string          `json:"title"` // of the task, as an operator wrote it
	Digest         string          `json:"digest"`
	State          string          `json:"state"` // active, superseded, revoked, expired
	Client         string          `json:"client"`
	Role           string          `json:"role"`
	RoleRevision   int64           `json:"role_revision"`
	Policy         string          `json:"policy"`
	PolicyRevision int64           `json:"policy_revision"`
	GivenAt        time.Time       `json:"given_at"`
	NotBefore      time.Time       `json:"not_before"`
	ExpiresAt      time.Time       `json:"expires_at"`
	EndedAt        *time.Time      `json:"ended_at,omitempty"`
	Document       json.RawMessage `json:"document"`
}

// TaskDetail is a task with all that it rests on.
type TaskDetail struct {
	Task
	Revisions []Revision      `json:"revisions"` // newest first
	Consents  []ConsentRecord `json:"consents"`  // newest first
	Client    Named           `json:"client"`
	Role      Named           `json:"role"`
	Policy    Named           `json:"policy"`
	Profiles  []Named         `json:"profiles"` // by which the role's workloads may prove themselves
	Zone      string          `json:"zone"`
	NextFires []Fire          `json:"next_fires,omitempty"`
	CutOff    *CutOffRecord   `json:"cut_off,omitempty"` // the last time that its epoch advanced
}

// CutOffRecord is an advance of a task's activation epoch, by the database's clock.
type CutOffRecord struct {
	ActivationEpoch int64      `json:"activation_epoch"`
	AskedAt         time.Time  `json:"asked_at"`                   // the database got the request
	AdvancedAt      time.Time  `json:"advanced_at"`                // nothing is admitted under an older epoch after it
	LastAdmittedAt  *time.Time `json:"last_admitted_at,omitempty"` // the last effect under an older epoch
	LagMS           int64      `json:"lag_ms"`                     // from asked_at to the last admitted effect; 0: nothing was admitted after it
}

// Timeline is what happened to a run, oldest first.
type Timeline struct {
	Run       Run             `json:"run"`
	Deadline  time.Time       `json:"deadline"`
	Shortfall string          `json:"shortfall,omitempty"` // approval or limit: it needed more and did not get it
	Coalesced []time.Time     `json:"coalesced,omitempty"` // nominal times that this run stands for too
	Entries   []TimelineEntry `json:"entries"`
	Next      string          `json:"next,omitempty"`
}

// TimelineEntry is one step of a run. Kind is the verb; Code is ok or why it was
// refused. Renewals that went well are left out.
type TimelineEntry struct {
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"` // plan, claim, renew, mint, ask, decide, admit, settle_effect, late_evidence, evidence, expire_effect, finding, requeue, settle_run, end_run, notice
	Code     string    `json:"code"`
	Step     string    `json:"step,omitempty"` // digest of the step's name, which the worker chose
	Effect   string    `json:"effect,omitempty"`
	Decision string    `json:"decision,omitempty"`
	Guard    string    `json:"guard,omitempty"`
	Action   string    `json:"action,omitempty"`
	Resource string    `json:"resource,omitempty"`
	Amount   int64     `json:"amount,omitempty"` // reserved, minor units
	Spent    int64     `json:"spent,omitempty"`  // charged
	Currency string    `json:"currency,omitempty"`
	Outcome  string    `json:"outcome,omitempty"` // of an effect, a card, a finding or the run
	Fence    int64     `json:"fence,omitempty"`
	Digest   string    `json:"digest"` // of the audit row
}

// RunReceipt is the signed document of a finished run: a JWS in compact form
// (typ nightwarrant-receipt+jwt), to be kept and checked without us.
type RunReceipt struct {
	Run     string `json:"run"`
	Receipt string `json:"receipt"`
}

// DryRun says what would happen if the task fired now. Reasons are codes, all of
// those that hold; WhyNot has the sentence of each.
type DryRun struct {
	WouldRun bool       `json:"would_run"`
	At       time.Time  `json:"at"`
	NextAt   *time.Time `json:"next_at,omitempty"`
	Reasons  []string   `json:"reasons,omitempty"`
	Ceiling  string     `json:"ceiling,omitempty"` // with limit_reached
}

// whyNot are the reasons of a dry run.
var whyNot = map[string]string{
	"admission_closed": "Admission is closed: nothing starts until it opens.",
	"no_consent":       "There is no consent that stands.",
	"consent_ended":    "The consent has ended.",
	"not_yet":          "The consent has not begun.",
	"never_again":      "The schedule has no further time within the consent.",
	"retired":          "The client, the role, the policy or every way to prove the workload is retired.",
	"lane_busy":        "A run of this task is still open; this time would count as part of it.",
	"lane_uncertain":   "An earlier effect may still land; nothing starts until that is settled or its owner has said what happened.",
	"limit_reached":    "A limit of its effects or money is used up.",
	"too_late":         "So little of the consent's time is left that a run would be over at once.",

	"directory_unavailable": "The directory does not answer whether its owner is still a member.",
	"not_a_member":          "The directory says that its owner is no member now.",
}

// WhyNot is the sentence of a dry run's reason.
func WhyNot(reason string) string { return whyNot[reason] }

// RevocationScope says what ends when a task's consent is revoked.
type RevocationScope struct {
	Task            string     `json:"task"`
	Consent         string     `json:"consent,omitempty"` // none: there is nothing to revoke
	ActivationEpoch int64      `json:"activation_epoch"`  // that would advance
	Runs            []LastRun  `json:"runs,omitempty"`    // that are open and end
	InFlight        int64      `json:"in_flight"`         // effects that were admitted: at most two seconds more, then they are settled as they are
	Minted          int64      `json:"minted"`            // effects that were granted and would never be admitted
	Cards           int64      `json:"cards"`             // that would close
	NextAt          *time.Time `json:"next_at,omitempty"` // that would not come
}

// CutOffScope says whom a cut-off of one client, or of everything, concerns. No
// number is above Bound; one that equals it means that many or more.
type CutOffScope struct {
	Client   string `json:"client,omitempty"` // none: all of them
	Tasks    int64  `json:"tasks"`
	Runs     int64  `json:"runs"` // open
	InFlight int64  `json:"in_flight"`
	Bound    int64  `json:"bound"`
}

// CutOffResult tells how many tasks' epochs were advanced, after the commit.
type CutOffResult struct {
	Tasks int64 `json:"tasks"`
	Runs  int64 `json:"runs"` // that were open
}

// Entry is one registered document.
type Entry struct {
	Kind      string          `json:"kind"`
	Name      string          `json:"name"`
	Revision  int64           `json:"revision"`
	State     string          `json:"state"`
	EnteredAt time.Time       `json:"entered_at"`
	Digest    string          `json:"digest"`
	Document  json.RawMessage `json:"document"`
}

// Board is the readiness decision with each family and component behind it.
type Board struct {
	Open        bool       `json:"open"`
	Held        bool       `json:"held"`
	Epoch       int64      `json:"epoch"`
	Incarnation int64      `json:"incarnation"`
	Requirement int64      `json:"requirement"`
	Since       time.Time  `json:"since"`
	Reason      string     `json:"reason"`
	Family      string     `json:"family,omitempty"`
	At          time.Time  `json:"at"`
	Rows        []BoardRow `json:"rows"`
}

// BoardRow is one family, or one component of it. AgeMS is -1 when nothing was reported.
type BoardRow struct {
	Family    string     `json:"family"`
	Component string     `json:"component,omitempty"`
	Good      bool       `json:"good"`
	Reason    string     `json:"reason,omitempty"`
	Instances int64      `json:"instances"`
	Required  int64      `json:"required"`
	AgeMS     int64      `json:"age_ms"`
	Since     *time.Time `json:"since,omitempty"`
	Tasks     int64      `json:"tasks"` // with a consent that it concerns
}

// Requirement is one generation of what must be good.
type Requirement struct {
	Generation  int64           `json:"generation"`
	Since       time.Time       `json:"since"`
	InForce     bool            `json:"in_force"`
	ClosedMS    int64           `json:"closed_ms"`
	ReportTTLMS int64           `json:"report_ttl_ms"`
	Rounds      int64           `json:"rounds"`
	ValidMS     int64           `json:"valid_ms"`
	Document    json.RawMessage `json:"document,omitempty"` // none: it is the one in code
}

// StrandedTask is a task whose owner is no member any more.
type StrandedTask struct {
	Task       string          `json:"task"`
	Title      string          `json:"title"`
	Member     string          `json:"member"` // reference of who has left
	DepartedAt time.Time       `json:"departed_at"`
	Document   json.RawMessage `json:"document"`
}

// AuditQuery narrows a search of the audit log. What is empty does not narrow.
type AuditQuery struct {
	Since   *time.Time `json:"since,omitempty"`
	Until   *time.Time `json:"until,omitempty"` // not included
	Verb    string     `json:"verb,omitempty"`
	Verdict string     `json:"verdict,omitempty"`
	Task    string     `json:"task,omitempty"`
	Run     string     `json:"run,omitempty"`
	Member  string     `json:"member,omitempty"` // reference
}

// AuditEntry is one row of the audit log. Body is what Digest is the SHA-256 of, byte for byte.
type AuditEntry struct {
	Number  int64           `json:"number"`
	At      time.Time       `json:"at"`
	Verb    string          `json:"verb"`
	Verdict string          `json:"verdict"`
	Task    string          `json:"task,omitempty"`
	Run     string          `json:"run,omitempty"`
	Effect  string          `json:"effect,omitempty"`
	Member  string          `json:"member,omitempty"` // whom Body commits to, as long as that is disclosed
	Digest  string          `json:"digest"`
	Body    json.RawMessage `json:"body"`
}

// AuditPage is a page of a search, newest first. A search looks at a bounded
// number of rows: a page may be short, even empty, and go on with Next all the same.
type AuditPage struct {
	Items []AuditEntry `json:"items"`
	Next  string       `json:"next,omitempty"`
}

// AuditEnd is the last line of an export. Without it the export is not whole.
type AuditEnd struct {
	End   bool      `json:"end"`
	Lines int64     `json:"lines"`
	Until time.Time `json:"until"`          // rows before this instant are in it
	Next  string    `json:"next,omitempty"` // there is more
}
