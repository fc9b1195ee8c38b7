package document

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// RequirementName is the name of the one requirement of a cluster.
const RequirementName = "readiness"

// Families that are required in code (mission A17), those that are to come,
// which nobody can report yet, and none else: any other name is an operator's
// own family.
var (
	BuiltFamilies  = []string{"store", "signing", "nonces", "queue", "clock", "audit", "attestation", "directory", "approvals", "guards"}
	ComingFamilies = []string{"brokering", "models"}
)

// Requirement says what must be good before anything is admitted, beyond what
// is required in code: it can only add. Generations count from 2, because the
// first is the code's own. Protocols, models and datasets are exact sets: a
// guard that speaks or serves anything else closes everything. The profiles,
// where any are listed, are exactly those that must be registered.
type Requirement struct {
	Header
	Generation  int64            `json:"generation"`
	Families    []RequiredFamily `json:"families,omitempty"`
	Protocols   []int64          `json:"protocols"`
	Models      []Digest         `json:"models,omitempty"`
	Datasets    []Digest         `json:"datasets,omitempty"`
	Profiles    []string         `json:"profiles,omitempty"`
	ClosedMS    int64            `json:"closed_ms"`     // the least time that it stays closed
	ClosedMaxMS int64            `json:"closed_max_ms"` // which doubles up to this when it flaps
	Rounds      int64            `json:"rounds"`        // of good evaluations before it opens
}

// RequiredFamily is a family with the number of instances that must report it
// good; for guards, of each guard.
type RequiredFamily struct {
	Family  string `json:"family"`
	Minimum int64  `json:"minimum"`
}

// Validate checks the requirement by itself. That somebody reports its families
// is for the caller, who knows the registry.
func (r *Requirement) Validate() error {
	if r.Name != RequirementName {
		return wrong("name", "must be %s: a cluster has one requirement", RequirementName)
	}
	return first(
		r.check(KindRequirement),
		between("generation", r.Generation, 2, maxRevision),
		r.checkFamilies(),
		r.checkProtocols(),
		digests("models", r.Models),
		digests("datasets", r.Datasets),
		names("profiles", r.Profiles, 0),
		between("closed_ms", r.ClosedMS, 1000, 60_000),
		between("closed_max_ms", r.ClosedMaxMS, r.ClosedMS, 60_000),
		between("rounds", r.Rounds, 3, 100),
	)
}

func (r *Requirement) checkFamilies() error {
	if len(r.Families) > maxList {
		return wrong("families", "must list at most %d families", maxList)
	}
	for i, f := range r.Families {
		at := fmt.Sprintf("families[%d]", i)
		if err := first(name(at+".family", f.Family), between(at+".minimum", f.Minimum, 1, 100)); err != nil {
			return err
		}
		if slices.ContainsFunc(r.Families[:i], func(o RequiredFamily) bool { return o.Family == f.Family }) {
			return wrong(at+".family", "repeats %q", f.Family)
		}
	}
	return nil
}

func (r *Requirement) checkProtocols() error {
	if len(r.Protocols) < 1 || len(r.Protocols) > 16 {
		return wrong("protocols", "must list between 1 and 16 versions of the guard protocol")
	}
	for i, p := range r.Protocols {
		at := fmt.Sprintf("protocols[%d]", i)
		if err := between(at, p, 1, 32_767); err != nil {
			return err
		}
		if slices.Contains(r.Protocols[:i], p) {
			return wrong(at, "repeats %d", p)
		}
	}
	return nil
}

func digests(field string, list []Digest) error {
	if len(list) > maxList {
		return wrong(field, "must list at most %d digests", maxList)
	}
	for i, d := range list {
		if slices.Contains(list[:i], d) {
			return wrong(fmt.Sprintf("%s[%d]", field, i), "repeats a digest")
		}
	}
	return nil
}

// OwnFamily says that a family is an operator's own.
func OwnFamily(name string) bool {
	return !slices.Contains(BuiltFamilies, name) && !slices.Contains(ComingFamilies, name)
}

// FamilyCode is the word under which a family stands outside documents: its
// name, or for an operator's own one, x_ and the digest of its name.
func FamilyCode(name string) string {
	if !OwnFamily(name) {
		return name
	}
	d := canonical.Digest(canonical.DomainName, []byte(name))
	return "x_" + hex.EncodeToString(d[:])
}

// ownFamilies checks the families that a component may report: never one that
// this system judges itself.
func ownFamilies(field string, list []string, min int) error {
	if err := names(field, list, min); err != nil {
		return err
	}
	for i, f := range list {
		if !OwnFamily(f) {
			return wrong(fmt.Sprintf("%s[%d]", field, i), "must be a family of your own: nobody else reports %q", f)
		}
	}
	return nil
}
