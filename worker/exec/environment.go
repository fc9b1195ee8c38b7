package exec

import (
	"fmt"
	"slices"
	"strings"
)

// Environment says which variables of the worker a command gets. Without a name none but [Usual] pass.
type Environment struct {
	Pass    []string // names beside the usual ones
	Secrets []string // names that pass although they read like a secret's
}

// Usual are the variables that every command gets where the worker has them.
var Usual = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"}

// words of a name that reads like a secret's.
var words = []string{"API", "KEY", "SECRET", "TOKEN", "PASSWORD", "CREDENTIAL", "AUTH"}

// never pass, whatever a file says: ways to agents that hold keys, and what is the worker's own.
var (
	neverPrefixes = []string{"SSH_", "NIGHTWARRANT_"}
	neverWords    = []string{"AGENT", "SOCK"}
	neverNames    = []string{"DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "KRB5CCNAME", "GNUPGHOME"}
)

func never(name string) bool {
	name = strings.ToUpper(name)
	return slices.Contains(neverNames, name) ||
		slices.ContainsFunc(neverPrefixes, func(p string) bool { return strings.HasPrefix(name, p) }) ||
		slices.ContainsFunc(neverWords, func(w string) bool { return strings.Contains(name, w) })
}

func readsSecret(name string) bool {
	name = strings.ToUpper(name)
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
}

// Check refuses a name that may not pass, or that needs an exception.
func (e Environment) Check() error {
	for _, name := range slices.Concat(e.Pass, e.Secrets) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("%.64q is no name of a variable", name)
		case never(name):
			return fmt.Errorf("%.64s never passes to a command", name)
		}
	}
	for _, name := range e.Pass {
		if readsSecret(name) {
			return fmt.Errorf("%.64s reads like a secret; it passes only as an exception", name)
		}
	}
	return nil
}

// Of is what passes of an environment in the form of os.Environ.
func (e Environment) Of(environ []string) (passed []string) {
	for _, v := range environ {
		name, _, ok := strings.Cut(v, "=")
		if ok && e.passes(name) {
			passed = append(passed, v)
		}
	}
	return passed
}

func (e Environment) passes(name string) bool {
	switch {
	case never(name):
		return false
	case readsSecret(name):
		return slices.Contains(e.Secrets, name)
	}
	return slices.Contains(Usual, name) || slices.Contains(e.Pass, name) || slices.Contains(e.Secrets, name)
}
