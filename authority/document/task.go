package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

const (
	maxRevision = 1_000_000_000
	maxRuntimeS = 7 * dayS
	maxEffects  = 10_000
	maxDays     = 366

	maxSteps        = 1_000_000
	maxRepeats      = 100
	defaultMaxSteps = 10_000
	defaultSteps    = 1000
	defaultRepeats  = 3
)

// Allowed is one action of one guard.
type Allowed struct {
	Guard  string `json:"guard"`
	Action string `json:"action"`
}

// RoleLimits are the most that a role lets a run have. Without MaxSpend it may
// spend nothing; that is minor units of Currency (ISO 4217).
type RoleLimits struct {
	MaxRuntimeS int64  `json:"max_runtime_s"`
	MaxEffects  int64  `json:"max_effects"`
	MaxSteps    int64  `json:"max_steps"`
	MaxSpend    int64  `json:"max_spend,omitempty"`
	Currency    string `json:"currency,omitempty"`
}

func (l RoleLimits) check(field string) error {
	return first(
		between(field+".max_runtime_s", l.MaxRuntimeS, 1, maxRuntimeS),
		between(field+".max_effects", l.MaxEffects, 1, maxEffects),
		between(field+".max_steps", l.MaxSteps, 1, maxSteps),
		money(field, "max_spend", l.MaxSpend, l.Currency),
	)
}

// money checks an amount that may be absent, together with its currency.
func money(field, what string, amount int64, currency string) error {
	if amount == 0 && currency == "" {
		return nil
	}
	if !currencyForm.MatchString(currency) {
		return wrong(field+".currency", "must be a currency's three capital letters, together with %s", what)
	}
	return between(field+"."+what, amount, 1, catalogue.MaxAmount)
}

// WorkloadRole is what a workload may be at most. A revision never changes.
// Profiles is the set of attestation profiles that it accepts; actions not
// listed do not exist (mission B5).
type WorkloadRole struct {
	Header
	Client   string     `json:"client"`
	Revision int64      `json:"revision"`
	Profiles []string   `json:"profiles"`
	Actions  []Allowed  `json:"actions"`
	Limits   RoleLimits `json:"limits"`
	Retired  bool       `json:"retired"`
}

// Validate checks the role by itself.
func (r *WorkloadRole) Validate() error {
	return first(
		r.check(KindRole),
		name("client", r.Client),
		between("revision", r.Revision, 1, maxRevision),
		names("profiles", r.Profiles, 1),
		allowed(r.Actions),
		r.Limits.check("limits"),
	)
}

func allowed(list []Allowed) error {
	if len(list) < 1 || len(list) > maxList {
		return wrong("actions", "must list between 1 and %d actions", maxList)
	}
	for i, a := range list {
		field := fmt.Sprintf("actions[%d]", i)
		if err := first(name(field+".guard", a.Guard), action(field+".action", a.Action)); err != nil {
			return err
		}
		if slices.Contains(list[:i], a) {
			return wrong(field, "repeats %s at %s", a.Action, a.Guard)
		}
	}
	return nil
}

// PolicyLimits are the ceilings of a policy. MemberSpendDay and MemberSpendMonth
// bound what all tasks of one member may spend in a calendar day and month of
// UTC; 0 is no such bound.
type PolicyLimits struct {
	MaxRuntimeS      int64  `json:"max_runtime_s"`
	MaxEffects       int64  `json:"max_effects"`
	MaxSteps         int64  `json:"max_steps"`
	MaxSpend         int64  `json:"max_spend,omitempty"`
	Currency         string `json:"currency,omitempty"`
	MemberSpendDay   int64  `json:"member_spend_day,omitempty"`
	MemberSpendMonth int64  `json:"member_spend_month,omitempty"`
	MaxConsentDays   int64  `json:"max_consent_days"`
}

func (l PolicyLimits) check(field string) error {
	return first(
		RoleLimits{l.MaxRuntimeS, l.MaxEffects, l.MaxSteps, l.MaxSpend, l.Currency}.check(field),
		window(field+".member_spend_day", l.MemberSpendDay, l.Currency),
		window(field+".member_spend_month", l.MemberSpendMonth, l.Currency),
		between(field+".max_consent_days", l.MaxConsentDays, 1, maxDays),
	)
}

func window(field string, spend int64, currency string) error {
	if spend != 0 && currency == "" {
		return wrong(field, "needs a currency")
	}
	return between(field, spend, 0, catalogue.MaxAmount)
}

// Policy bounds what members may consent to. A revision never changes.
type Policy struct {
	Header
	Revision int64          `json:"revision"`
	DialMax  catalogue.Risk `json:"dial_max"`
	Limits   PolicyLimits   `json:"limits"`
	Retired  bool           `json:"retired"`
}

// Validate checks the policy by itself.
func (p *Policy) Validate() error {
	return first(
		p.check(KindPolicy),
		between("revision", p.Revision, 1, maxRevision),
		dial("dial_max", p.DialMax),
		p.Limits.check("limits"),
	)
}

func dial(field string, r catalogue.Risk) error {
	if !r.Valid() {
		return wrong(field, "must be one of none, read, low, high")
	}
	return nil
}

// Owner is the member whose task it is, as the platform's identity provider
// names them. It stands in the registry only, never in a consent.
type Owner struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// Grant is one action on one exact resource. MaxAmount counts minor units of
// Currency (ISO 4217) per effect; both are given or neither. An optional grant
// holds only when the member ticks it. PreApproved are keys of the action, each
// compared whole: an effect above the dial that has one of them needs no
// decision of the owner.
type Grant struct {
	Guard       string            `json:"guard"`
	Action      string            `json:"action"`
	Resource    string            `json:"resource"`
	MaxAmount   int64             `json:"max_amount,omitempty"`
	Currency    string            `json:"currency,omitempty"`
	Optional    bool              `json:"optional"`
	PreApproved []json.RawMessage `json:"pre_approved,omitempty"`
}

// TaskLimits bound one run of a task, and the task in a calendar day and month
// of UTC; a window of 0 bounds no more than the run's own limits and the
// schedule do. A step is one effect that the run asks for, under a new or a
// known key. Repeats is how often the same effect may be asked for under
// different keys. Without Spend a run spends nothing.
type TaskLimits struct {
	RuntimeS     int64  `json:"runtime_s"`
	Effects      int64  `json:"effects"`
	Steps        int64  `json:"steps"`
	Repeats      int64  `json:"repeats"`
	Spend        int64  `json:"spend,omitempty"` // minor units of Currency
	Currency     string `json:"currency,omitempty"`
	EffectsDay   int64  `json:"effects_day,omitempty"`
	EffectsMonth int64  `json:"effects_month,omitempty"`
	SpendDay     int64  `json:"spend_day,omitempty"`
	SpendMonth   int64  `json:"spend_month,omitempty"`
}

// Term says how long a consent shall last: from NotBefore, or at once when it
// is absent, for Days times 24 hours.
type Term struct {
	NotBefore timetable.Instant `json:"not_before,omitempty"`
	Days      int64             `json:"days"`
}

// Task is one revision of the unattended work that a member is asked about.
// Dial is read unless the document says otherwise.
type Task struct {
	Header
	Client         string             `json:"client"`
	Role           string             `json:"role"`
	RoleRevision   int64              `json:"role_revision"`
	Policy         string             `json:"policy"`
	PolicyRevision int64              `json:"policy_revision"`
	Revision       int64              `json:"revision"`
	Owner          Owner              `json:"owner"`
	Title          string             `json:"title"`
	Schedule       timetable.Document `json:"schedule"`
	Dial           catalogue.Risk     `json:"dial"`
	Grants         []Grant            `json:"grants"`
	Limits         TaskLimits         `json:"limits"`
	Consent        Term               `json:"consent"`

	// What happens when the owner is asked about more than the dial allows and
	// does not answer: stop after the window, or wait until the deadline.
	WhenMoreIsNeeded string `json:"when_more_is_needed"`
	DecisionWindowS  int64  `json:"decision_window_s"`
}

func blankTask(h Header) *Task {
	return &Task{Header: h, Limits: TaskLimits{Steps: defaultSteps, Repeats: defaultRepeats}, WhenMoreIsNeeded: MoreStops, DecisionWindowS: 3600, Dial: catalogue.Read, Schedule: timetable.Document{Missed: timetable.Skip}}
}

// Validate checks the task by itself; see [CheckTask] for the rest.
func (t *Task) Validate() error {
	return first(
		t.check(KindTask),
		name("client", t.Client),
		name("role", t.Role),
		between("role_revision", t.RoleRevision, 1, maxRevision),
		name("policy", t.Policy),
		between("policy_revision", t.PolicyRevision, 1, maxRevision),
		between("revision", t.Revision, 1, maxRevision),
		issuer("owner.issuer", t.Owner.Issuer),
		exact("owner.subject", t.Owner.Subject),
		title("title", t.Title),
		schedule(t.Schedule),
		dial("dial", t.Dial),
		grants(t.Grants),
		t.Limits.check(),
		currencies(t.Grants, t.Limits),
		whenMore(t.WhenMoreIsNeeded, t.DecisionWindowS),
		between("consent.days", t.Consent.Days, 1, maxDays),
		between("consent.not_before", int64(t.Consent.NotBefore), 0, 253402300799),
	)
}

func (l TaskLimits) check() error {
	return first(
		between("limits.runtime_s", l.RuntimeS, 1, maxRuntimeS),
		between("limits.effects", l.Effects, 1, maxEffects),
		between("limits.steps", l.Steps, 1, maxSteps),
		between("limits.repeats", l.Repeats, 1, maxRepeats),
		money("limits", "spend", l.Spend, l.Currency),
		between("limits.effects_day", l.EffectsDay, 0, maxEffects*1000),
		between("limits.effects_month", l.EffectsMonth, 0, maxEffects*1000),
		window("limits.spend_day", l.SpendDay, l.Currency),
		window("limits.spend_month", l.SpendMonth, l.Currency),
	)
}

// currencies: a run spends in one currency, and nothing without a limit.
func currencies(list []Grant, l TaskLimits) error {
	for i, g := range list {
		if g.MaxAmount > 0 && g.Currency != l.Currency {
			return wrong(fmt.Sprintf("grants[%d].currency", i), "must be that of limits.spend")
		}
	}
	return nil
}

func whenMore(silence string, windowS int64) error {
	return first(
		oneOf("when_more_is_needed", silence, MoreStops, MoreWaits),
		between("decision_window_s", windowS, 60, maxRuntimeS),
	)
}

func schedule(d timetable.Document) error {
	if _, err := timetable.Parse(d); err != nil {
		return wrong("schedule", "does not hold: %s", err)
	}
	if d.Missed == "" {
		return wrong("schedule.missed", "must be written out")
	}
	return nil
}

func grants(list []Grant) error {
	if len(list) < 1 || len(list) > maxList {
		return wrong("grants", "must list between 1 and %d grants", maxList)
	}
	seen := map[[3]string]bool{}
	for i, g := range list {
		field := fmt.Sprintf("grants[%d]", i)
		if err := g.check(field); err != nil {
			return err
		}
		key := [3]string{g.Guard, g.Action, g.Resource}
		if seen[key] {
			return wrong(field, "repeats %s on %s at %s", g.Action, g.Resource, g.Guard)
		}
		seen[key] = true
	}
	return nil
}

func (g Grant) check(field string) error {
	return first(
		name(field+".guard", g.Guard),
		action(field+".action", g.Action),
		resource(field+".resource", "", g.Resource),
		amount(field, g.MaxAmount, g.Currency),
		preApproved(field, g.PreApproved),
	)
}

// preApproved checks that keys are different objects; what is in them is the
// action's to check.
func preApproved(field string, keys []json.RawMessage) error {
	if len(keys) > maxList {
		return wrong(field+".pre_approved", "must list at most %d keys", maxList)
	}
	seen := map[string]bool{}
	for i, key := range keys {
		text, err := canonical.Canonicalize(key)
		if err != nil || !bytes.HasPrefix(text, []byte("{")) {
			return wrong(fmt.Sprintf("%s.pre_approved[%d]", field, i), "must be the key of an effect, an object")
		}
		if seen[string(text)] {
			return wrong(fmt.Sprintf("%s.pre_approved[%d]", field, i), "stands twice")
		}
		seen[string(text)] = true
	}
	return nil
}

// resource checks one exact resource; without a kind, that it could be some
// guard's.
func resource(field, kind, v string) error {
	if kind == "" && strings.Contains(v, "://") {
		kind = catalogue.HTTP
	}
	if err := catalogue.CheckResource(kind, v); err != nil {
		return wrong(field, "does not hold: %s", err)
	}
	return nil
}

var currencyForm = regexp.MustCompile(`^[A-Z]{3}$`)

func amount(field string, most int64, currency string) error {
	if most == 0 && currency == "" {
		return nil
	}
	if !currencyForm.MatchString(currency) {
		return wrong(field+".currency", "must be a currency's three capital letters, together with max_amount")
	}
	return between(field+".max_amount", most, 1, catalogue.MaxAmount)
}

// CheckTask checks a task against the role and the policy that it names: the
// revisions are exactly those, neither is retired, every grant is one of the
// role's actions, and no limit or dial exceeds either.
func CheckTask(t *Task, r *WorkloadRole, p *Policy) error {
	if err := first(named(r.Header, r.Validate()), named(p.Header, p.Validate())); err != nil {
		return err
	}
	return named(t.Header, first(
		t.Validate(),
		checkRevisions(t, r, p),
		checkGrants(t, r),
		atMost("limits.runtime_s", t.Limits.RuntimeS, r.Limits.MaxRuntimeS, "role"),
		atMost("limits.effects", t.Limits.Effects, r.Limits.MaxEffects, "role"),
		atMost("limits.steps", t.Limits.Steps, r.Limits.MaxSteps, "role"),
		atMost("limits.steps", t.Limits.Steps, p.Limits.MaxSteps, "policy"),
		mostSpend(t.Limits, r.Limits.MaxSpend, r.Limits.Currency, "role"),
		mostSpend(t.Limits, p.Limits.MaxSpend, p.Limits.Currency, "policy"),
		atMost("limits.runtime_s", t.Limits.RuntimeS, p.Limits.MaxRuntimeS, "policy"),
		atMost("limits.effects", t.Limits.Effects, p.Limits.MaxEffects, "policy"),
		atMost("consent.days", t.Consent.Days, p.Limits.MaxConsentDays, "policy"),
		atMost("limits.runtime_s", t.Limits.RuntimeS, t.Consent.Days*dayS, "consent"),
		checkDial(t, p),
	))
}

func checkRevisions(t *Task, r *WorkloadRole, p *Policy) error {
	switch {
	case t.Client != r.Client:
		return wrong("client", "is not the client of role %s", r.Name)
	case t.Role != r.Name || t.RoleRevision != r.Revision:
		return wrong("role_revision", "names another revision than %s %d", r.Name, r.Revision)
	case t.Policy != p.Name || t.PolicyRevision != p.Revision:
		return wrong("policy_revision", "names another revision than %s %d", p.Name, p.Revision)
	case r.Retired:
		return wrong("role", "names a role revision that is retired")
	case p.Retired:
		return wrong("policy", "names a policy revision that is retired")
	}
	return nil
}

func checkGrants(t *Task, r *WorkloadRole) error {
	for i, g := range t.Grants {
		if !slices.Contains(r.Actions, Allowed{g.Guard, g.Action}) {
			return wrong(fmt.Sprintf("grants[%d].action", i), "is not an action of role %s: %s at %s", r.Name, g.Action, g.Guard)
		}
	}
	return nil
}

func atMost(field string, v, most int64, whose string) error {
	if v > most {
		return wrong(field, "exceeds the %s's ceiling of %d", whose, most)
	}
	return nil
}

func mostSpend(l TaskLimits, most int64, currency, whose string) error {
	if l.Spend > 0 && most > 0 && l.Currency != currency {
		return wrong("limits.currency", "is not the %s's: it lets a run spend at most %d minor units of %s", whose, most, currency)
	}
	return atMost("limits.spend", l.Spend, most, whose)
}

func checkDial(t *Task, p *Policy) error {
	if t.Dial > p.DialMax {
		return wrong("dial", "exceeds the policy's dial_max %s", p.DialMax)
	}
	return nil
}
