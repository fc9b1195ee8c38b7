// Package catalogue holds the action catalogues that are compiled into the
// product (mission B6). Only an action that stands here may count as less than
// high risk; whatever an operator writes, and whatever is unknown, is high.
// Nothing here can be configured.
package catalogue

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Postgres is the kind of the guard that stands before a PostgreSQL database.
const Postgres = "postgres"

// Action is one thing that a guard of a kind can do.
type Action struct {
	Kind  string
	Name  string // such as row.append
	Risk  Risk   // never None
	Title string // verb and object in plain words, for the consent page
	form  string // version of the parameters' schema; part of the digest
	check func(params json.RawMessage) (resource string, err error)
}

// Validate checks parameters against the action's schema. Unknown, missing and
// repeated members are refused, and so is whatever exceeds a bound.
func (a Action) Validate(params json.RawMessage) error {
	_, err := ResourceOf(a, params)
	return err
}

// ResourceOf validates the parameters and returns the resource that they name,
// such as "table:orders". A grant covers the parameters only when its resource
// equals this string, compared whole.
func ResourceOf(a Action, params json.RawMessage) (string, error) {
	if a.check == nil {
		return "", errors.New("catalogue: this action is in no catalogue")
	}
	resource, err := a.check(params)
	if err != nil {
		return "", fmt.Errorf("catalogue: %s: %w", a.Name, err)
	}
	return resource, nil
}

// Lookup returns the action of that kind and name.
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
	if kind == Postgres && !tableForm.MatchString(resource) {
		return fmt.Errorf(`catalogue: a resource of a postgres guard is "table:" and the table's name in lower case, not %.80q`, resource)
	}
	if !resourceForm.MatchString(resource) {
		return fmt.Errorf("catalogue: a resource is a word, a colon and one exact name, not %.80q", resource)
	}
	return nil
}

// Digest returns the compatibility digest of all catalogues. Two builds with
// the same digest give every action the same risk and the same schema.
func Digest() [32]byte {
	lines := make([][]byte, 0, len(compiled))
	for _, a := range compiled {
		lines = append(lines, []byte(strings.Join([]string{a.Kind, a.Name, a.Risk.String(), a.form}, " ")))
	}
	return canonical.Digest(digestDomain, lines...)
}

const digestDomain = "nightwarrant/catalogue/v1"
