package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

const (
	// ConsentVersion is the version of the consent document's form.
	ConsentVersion = 1
	// What happens to a run that needs more than its dial allows, when its owner
	// is asked and does not answer: it stops after the decision window, or it
	// waits until its deadline.
	MoreStops = "stop"
	MoreWaits = "wait"

	maxAhead = maxDays * dayS // how far in the future a consent may begin
)

// ConsentGrant is a grant with what the catalogue says of its action: its risk
// and, in plain words, what it does.
type ConsentGrant struct {
	Guard       string            `json:"guard"`
	Action      string            `json:"action"`
	Does        string            `json:"does"`
	Resource    string            `json:"resource"`
	Risk        catalogue.Risk    `json:"risk"`
	MaxAmount   int64             `json:"max_amount,omitempty"`
	Currency    string            `json:"currency,omitempty"`
	PreApproved []json.RawMessage `json:"pre_approved,omitempty"` // canonical keys of the action
	Optional    bool              `json:"optional,omitempty"`     // the member ticks it, or it is left out
}

// Consent is everything that a member's yes binds (mission A1). Its canonical
// bytes are shown as an offer, agreed to by their digest and stored; a run whose
// tuple differs in any part is refused. It names no member.
type Consent struct {
	Version          int64              `json:"version"`
	Client           string             `json:"client"`
	WorkloadRole     string             `json:"workload_role"`
	RoleRevision     int64              `json:"role_revision"`
	RoleDocument     Digest             `json:"role_document"`
	Task             string             `json:"task"`
	TaskRevision     int64              `json:"task_revision"`
	TaskDocument     Digest             `json:"task_document"`
	Title            string             `json:"title"`
	Schedule         timetable.Document `json:"schedule"`
	Grants           []ConsentGrant     `json:"grants"`
	Dial             catalogue.Risk     `json:"dial"`
	Limits           TaskLimits         `json:"limits"`
	Policy           string             `json:"policy"`
	PolicyRevision   int64              `json:"policy_revision"`
	PolicyDocument   Digest             `json:"policy_document"`
	NotBefore        timetable.Instant  `json:"not_before"`
	Expires          timetable.Instant  `json:"expires"`
	WhenMoreIsNeeded string             `json:"when_more_is_needed"`
	DecisionWindowS  int64              `json:"decision_window_s"`

	// What all the member's tasks may spend, by the policy, in minor units of the limits' currency; 0 is no such bound.
	MemberSpendDay   int64 `json:"member_spend_day,omitempty"`
	MemberSpendMonth int64 `json:"member_spend_month,omitempty"`
}

// Parts is what a consent is built from. TaskRef is the task's opaque
// reference. Guards holds at least the guards that the grants name. Ticked
// lists the indexes of the optional grants that the member wants; the others
// are left out. Now comes from the database's clock.
type Parts struct {
	TaskRef string
	Task    *Task
	Role    *WorkloadRole
	Policy  *Policy
	Guards  map[string]*Guard
	Ticked  []int
	Now     time.Time
}

// BuildConsent checks the parts against each other and returns the document
// that a member may agree to.
func BuildConsent(p Parts) (Consent, error) {
	if p.Task == nil || p.Role == nil || p.Policy == nil {
		return Consent{}, wrong("task", "needs its role and its policy")
	}
	if err := CheckTask(p.Task, p.Role, p.Policy); err != nil {
		return Consent{}, err
	}
	c := Consent{
		Version: ConsentVersion, Client: p.Task.Client, Task: p.TaskRef,
		WorkloadRole: p.Role.Name, RoleRevision: p.Role.Revision,
		TaskRevision: p.Task.Revision, Title: p.Task.Title, Schedule: p.Task.Schedule,
		Dial: p.Task.Dial, Limits: p.Task.Limits,
		Policy: p.Policy.Name, PolicyRevision: p.Policy.Revision,
		WhenMoreIsNeeded: p.Task.WhenMoreIsNeeded, DecisionWindowS: p.Task.DecisionWindowS,
	}
	if c.Limits.Spend > 0 {
		c.MemberSpendDay, c.MemberSpendMonth = p.Policy.Limits.MemberSpendDay, p.Policy.Limits.MemberSpendMonth
	}
	if err := first(c.addDigests(p), c.addGrants(p), c.addTerm(p)); err != nil {
		return Consent{}, err
	}
	if _, err := c.Canonical(); err != nil {
		return Consent{}, err
	}
	return c, nil
}

func (c *Consent) addDigests(p Parts) (err error) {
	if c.RoleDocument, err = DigestOf(p.Role); err != nil {
		return err
	}
	if c.PolicyDocument, err = DigestOf(p.Policy); err != nil {
		return err
	}
	c.TaskDocument, err = DigestOf(p.Task)
	return err
}

func (c *Consent) addGrants(p Parts) error {
	ticked := map[int]bool{}
	for _, i := range p.Ticked {
		if i < 0 || i >= len(p.Task.Grants) || !p.Task.Grants[i].Optional || ticked[i] {
			return wrong("grants", "have no optional grant %d to tick once", i)
		}
		ticked[i] = true
	}
	catalogues := map[string]map[string]catalogue.Action{}
	for i, g := range p.Task.Grants {
		if g.Optional && !ticked[i] {
			continue
		}
		field := fmt.Sprintf("grants[%d]", i)
		guard, ok := p.Guards[g.Guard]
		if !ok || guard == nil || guard.Name != g.Guard {
			return wrong(field+".guard", "names no registered guard: %s", g.Guard)
		}
		if catalogues[g.Guard] == nil {
			actions, err := guard.Actions()
			if err != nil {
				return err
			}
			catalogues[g.Guard] = actions
		}
		if err := resource(field+".resource", guard.Catalogue, g.Resource); err != nil {
			return err
		}
		granted, err := granting(field, g, catalogues[g.Guard])
		if err != nil {
			return err
		}
		c.Grants = append(c.Grants, granted)
	}
	return nil
}

// granting looks a grant's action up among all that its guard can do.
func granting(field string, g Grant, actions map[string]catalogue.Action) (ConsentGrant, error) {
	a, ok := actions[g.Action]
	if !ok {
		return ConsentGrant{}, wrong(field+".action", "is not an action of guard %s: %s", g.Guard, g.Action)
	}
	out := ConsentGrant{Guard: g.Guard, Action: g.Action, Does: a.Title, Resource: g.Resource, Risk: a.Risk, MaxAmount: g.MaxAmount, Currency: g.Currency, Optional: g.Optional}
	for i, key := range g.PreApproved {
		text, err := a.CheckKey(key)
		if err != nil {
			return ConsentGrant{}, wrong(fmt.Sprintf("%s.pre_approved[%d]", field, i), "does not hold: %s", err)
		}
		out.PreApproved = append(out.PreApproved, text)
	}
	return out, nil
}

func (c *Consent) addTerm(p Parts) error {
	now := timetable.InstantOf(p.Now)
	c.NotBefore = max(now, p.Task.Consent.NotBefore)
	if c.NotBefore-now > maxAhead {
		return wrong("consent.not_before", "lies more than %d days ahead", maxDays)
	}
	c.Expires = c.NotBefore + timetable.Instant(p.Task.Consent.Days*dayS)
	return nil
}

// Validate checks a consent by itself, whoever built it.
func (c *Consent) Validate() error {
	return first(
		between("version", c.Version, ConsentVersion, ConsentVersion),
		name("client", c.Client),
		name("workload_role", c.WorkloadRole),
		between("role_revision", c.RoleRevision, 1, maxRevision),
		reference("task", c.Task),
		between("task_revision", c.TaskRevision, 1, maxRevision),
		title("title", c.Title),
		schedule(c.Schedule),
		consentGrants(c.Grants, c.Limits),
		dial("dial", c.Dial),
		c.Limits.check(),
		window("member_spend_day", c.MemberSpendDay, c.Limits.Currency),
		window("member_spend_month", c.MemberSpendMonth, c.Limits.Currency),
		name("policy", c.Policy),
		between("policy_revision", c.PolicyRevision, 1, maxRevision),
		c.checkTerm(),
		whenMore(c.WhenMoreIsNeeded, c.DecisionWindowS),
	)
}

func consentGrants(list []ConsentGrant, l TaskLimits) error {
	plain := make([]Grant, len(list))
	for i, g := range list {
		if g.Risk < catalogue.Read || g.Risk > catalogue.High {
			return wrong(fmt.Sprintf("grants[%d].risk", i), "must be one of read, low, high")
		}
		if err := title(fmt.Sprintf("grants[%d].does", i), g.Does); err != nil {
			return err
		}
		plain[i] = Grant{Guard: g.Guard, Action: g.Action, Resource: g.Resource, MaxAmount: g.MaxAmount, Currency: g.Currency, PreApproved: g.PreApproved}
	}
	return first(grants(plain), currencies(plain, l))
}

// checkTerm refuses a consent without an end and one under which nothing can
// ever run.
func (c *Consent) checkTerm() error {
	if err := between("expires", int64(c.Expires-c.NotBefore), 1, maxDays*dayS); err != nil {
		return wrong("expires", "must lie at most %d days after not_before", maxDays)
	}
	if c.NotBefore <= 0 {
		return wrong("not_before", "is missing")
	}
	if err := atMost("limits.runtime_s", c.Limits.RuntimeS, int64(c.Expires-c.NotBefore), "consent"); err != nil {
		return err
	}
	s, err := timetable.Parse(c.Schedule)
	if err != nil {
		return wrong("schedule", "does not hold: %s", err)
	}
	slot, ok := s.Next(c.NotBefore.Time().Add(-time.Second))
	if !ok || !slot.Before(c.Expires.Time()) {
		return wrong("schedule", "never fires between %s and %s", c.NotBefore, c.Expires)
	}
	return nil
}

// Canonical validates the consent and returns its canonical bytes.
func (c *Consent) Canonical() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return written(c)
}

// Digest returns the digest that the offer shows and the yes carries.
func (c *Consent) Digest() (Digest, error) {
	text, err := c.Canonical()
	if err != nil {
		return Digest{}, err
	}
	return canonical.Digest(canonical.DomainOffer, text), nil
}

// ParseConsent reads canonical bytes; any other spelling of the same document
// is refused.
func ParseConsent(text []byte) (Consent, error) {
	tree, err := treeOfJSON(text)
	if err != nil {
		return Consent{}, err
	}
	var c Consent
	if _, err := bind(tree, &c); err != nil {
		return Consent{}, err
	}
	again, err := c.Canonical()
	if err != nil {
		return Consent{}, err
	}
	if !bytes.Equal(again, text) {
		return Consent{}, wrong("", "a consent must be in canonical form")
	}
	return c, nil
}
