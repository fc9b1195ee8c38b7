package notify

import (
	"encoding/json"
	"fmt"
	"time"
)

// Message is the body of a webhook: opaque references, a kind, times and a link.
// Nothing in it was written by a member, a workload or a model, and nothing in it
// grants anything.
type Message struct {
	Type      string    `json:"type"`      // Type… below
	Timestamp time.Time `json:"timestamp"` // when it arose
	Data      Data      `json:"data"`      // empty in a probe
}

// Data is what a message is about. References are base64url without padding.
type Data struct {
	Member    string     `json:"member,omitempty"` // for whom it is: SHA-256 over "nightwarrant/member/v1", issuer and subject with a zero byte before each
	Task      string     `json:"task,omitempty"`
	Run       string     `json:"run,omitempty"`
	Decision  string     `json:"decision,omitempty"`
	Effect    string     `json:"effect,omitempty"`
	Consent   string     `json:"consent,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // of a decision or consent
	Link      string     `json:"link,omitempty"`       // to a page that asks who is looking
}

// The types of messages.
const (
	TypeProbe           = "probe" // answer it with 2xx and do nothing
	TypeAsked           = "decision.asked"
	TypeReminder        = "decision.reminder"
	TypeDecided         = "decision.decided"
	TypeRunEnded        = "run.ended" // otherwise than succeeded
	TypeAmbiguous       = "effect.ambiguous"
	TypeTaskPaused      = "task.paused"
	TypeConsentExpiring = "consent.expiring"
)

// kind is one of the database: the type of its message, what is said of it, the
// page that it points to, and where the reference of its matter stands, unless
// that is the task's.
type kind struct {
	of, says, page string
	matter         func(*Data) *string
}

var kinds = map[string]kind{
	"asked":            {TypeAsked, "A task of yours waits for your decision.", "/decisions/", func(d *Data) *string { return &d.Decision }},
	"reminder":         {TypeReminder, "A task of yours still waits for your decision.", "/decisions/", func(d *Data) *string { return &d.Decision }},
	"decided":          {TypeDecided, "A decision was recorded in your name.", "/decisions/", func(d *Data) *string { return &d.Decision }},
	"run_ended":        {TypeRunEnded, "A run of a task of yours ended and did not succeed.", "/runs/", func(d *Data) *string { return &d.Run }},
	"ambiguous":        {TypeAmbiguous, "Nobody knows whether an effect of a task of yours happened.", "/ambiguous#", func(d *Data) *string { return &d.Effect }},
	"task_paused":      {TypeTaskPaused, "A task of yours was cut off, and what it was doing has ended.", "/tasks/", nil},
	"consent_expiring": {TypeConsentExpiring, "A consent of yours is about to end.", "/receipts/", func(d *Data) *string { return &d.Consent }},
}

// known is the kind of a notice.
func (one Notice) known() (kind, error) {
	k, ok := kinds[one.Kind]
	if !ok {
		return kind{}, fmt.Errorf("a notice of kind %.20q is not known here", one.Kind)
	}
	return k, nil
}

// link is to the page about a notice, for whoever may see it.
func (one Notice) link(base string) string {
	if k := kinds[one.Kind]; k.matter != nil {
		return base + k.page + encode(one.Matter)
	}
	return base + kinds[one.Kind].page + encode(one.Task)
}

// message is the body of a notice, the same at each attempt.
func (n *Notifier) message(one Notice) ([]byte, error) {
	k, err := one.known()
	if err != nil {
		return nil, err
	}
	m := Message{k.of, one.Due.UTC(), Data{Member: encode(one.Member), Task: encode(one.Task), Run: encode(one.Run)}}
	if k.matter != nil {
		*k.matter(&m.Data) = encode(one.Matter)
	}
	if one.Expires != nil {
		at := one.Expires.UTC()
		m.Data.ExpiresAt = &at
	}
	m.Data.Link = one.link(n.Link)
	return json.Marshal(m)
}
