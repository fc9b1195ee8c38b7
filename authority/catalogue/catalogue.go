// Package catalogue holds the action catalogues that are compiled into the
// product (mission B6). Only an action that stands here may count as less than
// high risk; whatever an operator writes, and whatever is unknown, is high.
// Nothing here can be configured.
package catalogue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Kinds of guards.
const (
	Postgres = "postgres" // before a PostgreSQL database
	HTTP     = "http"     // before an HTTP API; all its operations are written by operators
	Model    = "model"    // before a language model
)

// Target is what parameters aim at. A grant covers them only when its resource
// equals this one, compared whole.
type Target struct {
	Resource string // such as "table:orders" or "https://api.example.com/orders/7"
	Amount   int64  // minor units of Currency; 0 for an effect without an amount
	Currency string // ISO 4217; empty exactly when Amount is 0
}

// Action is one thing that a guard of a kind can do.
type Action struct {
	Kind   string
	Name   string          // such as row.append
	Risk   Risk            // never None
	Title  string          // verb and object in plain words, for the consent page
	Schema json.RawMessage // of the parameters, all of which execute: JSON Schema 2020-12 of one closed object

	form   string // what the digest is over
	target func(params json.RawMessage) (Target, error)
	key    func(params json.RawMessage) (any, bool) // of parameters that hold; nil: it cannot be pre-approved
	isKey  func(key json.RawMessage) error
}

// Target validates parameters against the action's schema and says what they
// aim at. Unknown, missing and repeated members are refused, and so is whatever
// exceeds a bound.
func (a Action) Target(params json.RawMessage) (Target, error) {
	if a.target == nil {
		return Target{}, errors.New("catalogue: this action is in no catalogue")
	}
	t, err := a.target(params)
	if err != nil {
		return Target{}, fmt.Errorf("catalogue: %s: %w", a.Name, err)
	}
	return t, nil
}

// Key returns the canonical object that is compared, whole, with a pre-approved
// one of the consent (mission B5). It is false for parameters that do not hold
// and for an action that cannot be pre-approved.
func (a Action) Key(params json.RawMessage) (json.RawMessage, bool) {
	if _, err := a.Target(params); err != nil || a.key == nil {
		return nil, false
	}
	key, ok := a.key(params)
	if !ok {
		return nil, false
	}
	text, err := canonical.CanonicalizeValue(key)
	return text, err == nil
}

// Approvable tells whether the action can be pre-approved at all.
func (a Action) Approvable() bool { return a.key != nil }

// CheckKey checks a key that somebody wrote, and returns its canonical form.
// One that no parameters can have is refused.
func (a Action) CheckKey(key json.RawMessage) (json.RawMessage, error) {
	if a.key == nil {
		return nil, fmt.Errorf("catalogue: %s cannot be pre-approved", a.Name)
	}
	text, err := canonical.Canonicalize(key)
	if err == nil {
		err = a.isKey(text)
	}
	if err != nil {
		return nil, fmt.Errorf("catalogue: %s: key: %w", a.Name, err)
	}
	return text, nil
}

// Lookup returns the compiled-in action of that kind and name.
func Lookup(kind, action string) (Action, bool) {
	for _, a := range compiled {
		if a.Kind == kind && a.Name == action {
			return a, true
		}
	}
	return Action{}, false
}

// Actions returns the catalogue of a kind in a fixed order, or nothing.
func Actions(kind string) []Action {
	var found []Action
	for _, a := range compiled {
		if a.Kind == kind {
			found = append(found, a)
		}
	}
	return found
}

// RiskOf returns the risk of an action; one that stands in no catalogue is
// High.
func RiskOf(kind, action string) Risk {
	if a, ok := Lookup(kind, action); ok {
		return a.Risk
	}
	return High
}

var (
	resourceForm = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}:[A-Za-z0-9][A-Za-z0-9._~:/@+-]{0,191}$`)
	tableForm    = regexp.MustCompile(`^table:[a-z_][a-z0-9_]{0,62}$`)
)

// CheckResource checks the spelling of a resource: one word, a colon and an
// exact name without wildcards, and for a kind with a catalogue the form that
// its guard uses.
func CheckResource(kind, resource string) error {
	switch kind {
	case HTTP, Model:
		return checkURL(resource)
	case Postgres:
		if !tableForm.MatchString(resource) {
			return fmt.Errorf(`catalogue: a resource of a postgres guard is "table:" and the table's name in lower case, not %.80q`, resource)
		}
	}
	if !resourceForm.MatchString(resource) {
		return fmt.Errorf("catalogue: a resource is a word, a colon and one exact name, not %.80q", resource)
	}
	return nil
}

// DigestOf returns the compatibility digest of actions, in any order. Two guards
// with the same digest give every action the same risk and the same schema.
func DigestOf(actions ...Action) [32]byte {
	lines := make([][]byte, 0, len(actions))
	for _, a := range actions {
		lines = append(lines, []byte(strings.Join([]string{a.Kind, a.Name, a.Risk.String(), a.form}, " ")))
	}
	slices.SortFunc(lines, bytes.Compare)
	return canonical.Digest(digestDomain, lines...)
}

// Digest is that of all compiled-in actions.
func Digest() [32]byte { return DigestOf(compiled...) }

const digestDomain = "nightwarrant/catalogue/v1"
