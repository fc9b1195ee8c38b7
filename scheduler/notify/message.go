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

// kinds are the kinds of the database: the type of their message, the page it
// points to, and where the matter stands in it.
var kinds = map[string]struct {
	of, page string
	matter   func(*Data) *string
}{
	"asked":            {TypeAsked, "decisions", func(d *Data) *string { return &d.Decision }},
	"reminder":         {TypeReminder, "decisions", func(d *Data) *string { return &d.Decision }},
	"decided":          {TypeDecided, "decisions", func(d *Data) *string { return &d.Decision }},
	"run_ended":        {TypeRunEnded, "runs", func(d *Data) *string { return &d.Run }},
	"ambiguous":        {TypeAmbiguous, "effects", func(d *Data) *string { return &d.Effect }},
	"task_paused":      {TypeTaskPaused, "tasks", func(d *Data) *string { return &d.Task }},
	"consent_expiring": {TypeConsentExpiring, "consents", func(d *Data) *string { return &d.Consent }},
}

// message is the body of a notice, the same at each attempt.
func (n *Notifier) message(one Notice) ([]byte, error) {
	kind, ok := kinds[one.Kind]
	if !ok {
		return nil, fmt.Errorf("a notice of kind %.20q is not known here", one.Kind)
	}
	m := Message{kind.of, one.Due.UTC(), Data{Member: encode(one.Member), Task: encode(one.Task), Run: encode(one.Run)}}
	*kind.matter(&m.Data) = encode(one.Matter)
	if one.Expires != nil {
		at := one.Expires.UTC()
		m.Data.ExpiresAt = &at
	}
	m.Data.Link = n.Link + "/" + kind.page + "/" + encode(one.Matter)
	return json.Marshal(m)
}
