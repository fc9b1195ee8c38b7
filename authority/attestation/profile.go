package attestation

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Binding says how an assertion is tied to the key that presents it (mission A3).
type Binding string

// The bindings. Whatever a profile says, a token that names a key is good for
// that key only.
const (
	FirstKey Binding = "first_key" // the first key that uses it owns it until it expires
	CNF      Binding = "cnf"       // the token must name the key (cnf.jkt)
	Waived   Binding = "none"      // not tied: for SPIFFE, whose agents share cached tokens; shown in the compliance report
)

// ServiceAccount is a Kubernetes service account. Its tokens count only while
// they are bound to a pod, as projected ones are; Pod and Node name which, and
// are optional.
type ServiceAccount struct{ Namespace, Name, Pod, Node string }

// Profile is one exact way to prove a workload. Exactly one of Subject and
// ServiceAccount is set. Nothing in it is a prefix or a pattern.
type Profile struct {
	Name           string
	Issuer         string // exact
	Audience       string // exact; empty means the verifier's, which is checked anyway
	Subject        string // exact
	ServiceAccount *ServiceAccount
	// RequiredClaims maps a JSON pointer (RFC 6901), for instance
	// "/kubernetes.io/namespace", to the exact string, boolean or integer there.
	RequiredClaims map[string]any
	Binding        Binding
	MaxLifetime    time.Duration // of exp − iat; zero means the verifier's bound
}

// Validate says what is wrong with a profile, in words for its author.
func (p Profile) Validate() error {
	switch {
	case p.Name == "" || p.Issuer == "":
		return errors.New("a profile needs a name and an issuer")
	case (p.Subject == "") == (p.ServiceAccount == nil):
		return errors.New("a profile needs a subject or a service account, and not both")
	case p.ServiceAccount != nil && !p.ServiceAccount.valid():
		return errors.New("a service account needs a namespace and a name, without colons and slashes")
	case p.MaxLifetime < 0 || p.MaxLifetime > DefaultMaxLifetime:
		return errors.New("a profile's lifetime bound is between 0 and 24 h")
	case p.Binding != FirstKey && p.Binding != CNF && p.Binding != Waived:
		return errors.New(`a profile's binding is "first_key", "cnf" or "none"`)
	}
	return p.validateClaims()
}

func (p Profile) validateClaims() error {
	for pointer, want := range p.RequiredClaims {
		if _, ok := scalar(want); !ok || !strings.HasPrefix(pointer, "/") {
			return errors.New("a required claim is a JSON pointer and a string, boolean or integer")
		}
		if _, implied := p.ServiceAccount.claims()[pointer]; implied {
			return errors.New("a required claim repeats what the service account already says")
		}
	}
	return nil
}

func (s ServiceAccount) valid() bool {
	return s.Namespace != "" && s.Name != "" && !strings.ContainsAny(s.Namespace+s.Name+s.Pod+s.Node, ":/*? \t\n")
}

// claims is what a projected token says of its service account beside sub.
func (s *ServiceAccount) claims() map[string]any {
	if s == nil {
		return nil
	}
	said := map[string]any{"/kubernetes.io/namespace": s.Namespace, "/kubernetes.io/serviceaccount/name": s.Name}
	if s.Pod != "" {
		said["/kubernetes.io/pod/name"] = s.Pod
	}
	if s.Node != "" {
		said["/kubernetes.io/node/name"] = s.Node
	}
	return said
}

// Pod is the unique name of the pod that a projected token is bound to, or "".
func (a Assertion) Pod() string {
	uid, _ := lookup(a.Claims, "/kubernetes.io/pod/uid").(string)
	return uid
}

// Matches returns nil when the assertion is exactly what the profile describes,
// and a *Refusal otherwise. A profile that is not valid matches nothing.
func (p Profile) Matches(a Assertion) error {
	switch {
	case p.Validate() != nil, p.Issuer != a.Issuer, p.Audience != "" && p.Audience != a.Audience, p.subject() != a.Subject:
		return unmatched()
	case p.MaxLifetime > 0 && a.Expires.Sub(a.IssuedAt) > p.MaxLifetime:
		return unmatched()
	case p.Binding == CNF && a.JKT == nil:
		return unmatched()
	case p.ServiceAccount != nil && a.Pod() == "":
		return unmatched()
	}
	if !a.says(p.ServiceAccount.claims()) || !a.says(p.RequiredClaims) {
		return unmatched()
	}
	return nil
}

func (a Assertion) says(required map[string]any) bool {
	for pointer, want := range required {
		if !sameScalar(lookup(a.Claims, pointer), want) {
			return false
		}
	}
	return true
}

func (p Profile) subject() string {
	if s := p.ServiceAccount; s != nil {
		return "system:serviceaccount:" + s.Namespace + ":" + s.Name
	}
	return p.Subject
}

// Match returns the profiles that an assertion matches, in their order, or a
// *Refusal when there is none. It ranks nothing.
func Match(profiles []Profile, a Assertion) ([]Profile, error) {
	out := slices.DeleteFunc(slices.Clone(profiles), func(p Profile) bool { return p.Matches(a) != nil })
	if len(out) == 0 {
		return nil, unmatched()
	}
	return out, nil
}

// BoundTo refuses a key that the assertion does not name where it names one.
func (a Assertion) BoundTo(key capability.Thumbprint) error {
	if a.JKT == nil || *a.JKT == key {
		return nil
	}
	return &Refusal{Reason: WrongKey, Sentence: "The workload assertion names another key than the proof's."}
}

func unmatched() *Refusal {
	return &Refusal{Reason: Unmatched, Sentence: "The workload assertion matches no registered profile."}
}

// lookup follows a JSON pointer through objects. Arrays are not entered: a
// position in a list is not a name.
func lookup(claims map[string]any, pointer string) any {
	var at any = claims
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		object, _ := at.(map[string]any)
		at = object[strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")]
	}
	return at
}

func sameScalar(have, want any) bool {
	h, okHave := scalar(have)
	w, okWant := scalar(want)
	return okHave && okWant && h == w
}

// scalar gives strings, booleans and integers one comparable form each.
func scalar(v any) (any, bool) {
	switch v := v.(type) {
	case string, bool, int64:
		return v, true
	case int:
		return int64(v), true
	case uint64:
		return int64(v), v <= 1<<53
	case float64:
		return int64(v), v == float64(int64(v)) && v >= -(1<<53) && v <= 1<<53
	case json.Number:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		return n, err == nil
	}
	return nil, false
}
