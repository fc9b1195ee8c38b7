package document

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

// How an assertion is tied to a key (mission A3).
const (
	BindFirstKey = "first_key" // the first key that uses it owns it
	BindCnf      = "cnf"       // its token names the key's thumbprint
	BindNone     = "none"      // waived; shows in the compliance report
)

const (
	defaultCallMS = 60_000
	maxCallMS     = 600_000
	dayS          = 24 * 3600
)

// AttestationProfile is one exact way to prove a workload. It names a subject or
// a Kubernetes service account, not both. Claims maps an RFC
// 6901 JSON pointer into the assertion to the string, integer or bool that must
// stand there. MaxLifetimeS bounds exp − iat of the assertion, in seconds.
type AttestationProfile struct {
	Header
	Issuer         string         `json:"issuer"`
	Subject        string         `json:"subject,omitempty"`
	ServiceAccount ServiceAccount `json:"service_account,omitzero"`
	Claims         map[string]any `json:"claims,omitempty"`
	Binding        string         `json:"binding"`
	MaxLifetimeS   int64          `json:"max_lifetime_s"`
}

// ServiceAccount is one of Kubernetes, whose tokens must be bound to a pod: to
// this one, and on this node, where they are named.
type ServiceAccount struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pod       string `json:"pod,omitempty"`
	Node      string `json:"node,omitempty"`
}

// Validate checks the profile by itself.
func (p *AttestationProfile) Validate() error {
	return first(
		p.check(KindProfile),
		p.checkWorkload(),
		claims(p.Claims),
		oneOf("binding", p.Binding, BindFirstKey, BindCnf, BindNone),
		between("max_lifetime_s", p.MaxLifetimeS, 1, dayS),
	)
}

var trustDomainForm = regexp.MustCompile(`^spiffe://[a-z0-9._-]{1,255}$`)

// checkWorkload checks whose workload it is: a URL's, or a trust domain's, whose workloads have ids of that domain.
func (p *AttestationProfile) checkWorkload() error {
	switch spiffe := strings.HasPrefix(p.Issuer, "spiffe:"); {
	case spiffe && !trustDomainForm.MatchString(p.Issuer):
		return wrong("issuer", "must be spiffe:// and a trust domain, without a path")
	case spiffe && (len(p.Subject) <= len(p.Issuer)+1 || !strings.HasPrefix(p.Subject, p.Issuer+"/")):
		return wrong("subject", "must be a SPIFFE id of the issuer's trust domain")
	case !spiffe:
		if err := issuer("issuer", p.Issuer); err != nil {
			return err
		}
	}
	if p.ServiceAccount == (ServiceAccount{}) {
		return exact("subject", p.Subject)
	}
	if p.Subject != "" {
		return wrong("subject", "must not stand beside service_account")
	}
	return p.ServiceAccount.check()
}

// accountForm is what Kubernetes calls a DNS subdomain.
var accountForm = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?$`)

func (s ServiceAccount) check() error {
	for _, f := range []struct {
		field, value string
		optional     bool
	}{{"namespace", s.Namespace, false}, {"name", s.Name, false}, {"pod", s.Pod, true}, {"node", s.Node, true}} {
		if (f.value != "" || !f.optional) && !accountForm.MatchString(f.value) {
			return wrong("service_account."+f.field, "must be 1 to 253 lower-case letters, digits, dots and hyphens")
		}
	}
	return nil
}

var pointerForm = regexp.MustCompile(`^(?:/(?:[!-)+-.0-}]|~[01])+)+$`)

func claims(wanted map[string]any) error {
	if len(wanted) > maxList {
		return wrong("claims", "must have at most %d members", maxList)
	}
	for pointer, value := range wanted {
		field := under("claims", pointer)
		if len(pointer) > maxExact || !pointerForm.MatchString(pointer) {
			return wrong(field, "must be named by a JSON pointer such as /kubernetes.io/namespace")
		}
		switch v := value.(type) {
		case bool:
		case string:
			if err := exact(field, v); err != nil {
				return err
			}
		case int64:
			if err := between(field, v, -canonical.MaxInt, canonical.MaxInt); err != nil {
				return err
			}
		default:
			return wrong(field, "must be a string, an integer or a bool")
		}
	}
	return nil
}

// Client is a registered product whose workloads run tasks.
type Client struct {
	Header
	Title string `json:"title"`
}

// Validate checks the client by itself.
func (c *Client) Validate() error {
	return first(c.check(KindClient), title("title", c.Title))
}

// Guard is the component in front of a resource. Catalogue is the kind of its
// action catalogue; URI its origin and path, which is the audience of its
// effect capabilities. Provable says that it has a ledger which proves whether
// an effect happened. MaxCallMS bounds one call to its destination. What is not
// settled SettleWithinMS after its time to apply is ambiguous: 5 s unless the
// document says otherwise, 30 s of a provable guard (protocol P16). Operations
// are what an operator wrote beside the actions that are compiled in.
type Guard struct {
	Header
	Title     string `json:"title"`
	Catalogue string `json:"catalogue"`
	URI       string `json:"uri"`
	Profile   string `json:"profile"`
	Provable  bool   `json:"provable"`
	MaxCallMS int64  `json:"max_call_ms"`

	SettleWithinMS int64 `json:"settle_within_ms,omitempty"`

	Operations []catalogue.Operation `json:"operations,omitempty"`
}

// Validate checks the guard by itself. That its origin is not the authority's
// is for the caller, who knows that one.
func (g *Guard) Validate() error {
	return first(
		g.check(KindGuard),
		title("title", g.Title),
		oneOf("catalogue", g.Catalogue, "postgres", "http", "model"),
		guardURI("uri", g.URI),
		name("profile", g.Profile),
		between("max_call_ms", g.MaxCallMS, 1, maxCallMS),
		between("settle_within_ms", g.SettleWindow(), 1000, maxCallMS),
		g.checkOperations(),
	)
}

// SettleWindow is how long an outcome is waited for after the time to apply, in
// milliseconds.
func (g *Guard) SettleWindow() int64 {
	switch {
	case g.SettleWithinMS != 0:
		return g.SettleWithinMS
	case g.Provable:
		return 30_000
	}
	return 5000
}

func (g *Guard) checkOperations() error {
	switch {
	case g.Catalogue == catalogue.Model && len(g.Operations) > 0:
		return wrong("operations", "cannot be written for a model: its actions are compiled in")
	case g.Catalogue == catalogue.HTTP && len(g.Operations) == 0:
		return wrong("operations", "must list what this guard can do")
	case len(g.Operations) > maxList:
		return wrong("operations", "must list at most %d operations", maxList)
	}
	seen := map[string]bool{}
	for i, o := range g.Operations {
		field := fmt.Sprintf("operations[%d]", i)
		if err := first(action(field+".action", o.Action), title(field+".title", o.Title)); err != nil {
			return err
		}
		if _, err := catalogue.Compile(g.Catalogue, o); err != nil {
			return wrong(field, "does not hold: %s", err)
		}
		if seen[o.Action] {
			return wrong(field+".action", "repeats %s", o.Action)
		}
		seen[o.Action] = true
	}
	return nil
}

// Actions validates the guard and returns all that it can do, by name: an action
// that is not there does not exist (mission B5).
func (g *Guard) Actions() (map[string]catalogue.Action, error) {
	if err := g.Validate(); err != nil {
		return nil, err
	}
	actions := map[string]catalogue.Action{}
	for _, a := range catalogue.Actions(g.Catalogue) {
		actions[a.Name] = a
	}
	for _, o := range g.Operations {
		a, err := catalogue.Compile(g.Catalogue, o)
		if err != nil {
			return nil, err
		}
		actions[a.Name] = a
	}
	return actions, nil
}

// Reporter is a component that reports the health of an operator's own
// capability families.
type Reporter struct {
	Header
	Title    string   `json:"title"`
	Profile  string   `json:"profile"`
	Families []string `json:"families"`
}

// Validate checks the reporter by itself.
func (r *Reporter) Validate() error {
	return first(
		r.check(KindReporter),
		title("title", r.Title),
		name("profile", r.Profile),
		ownFamilies("families", r.Families, 1),
	)
}
