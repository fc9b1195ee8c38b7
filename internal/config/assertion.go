package config

import (
	"path/filepath"
	"regexp"
)

// Identity says where a worker or a guard has its assertion from: a file, or a SPIFFE Workload API.
type Identity struct {
	AssertionFile string     `yaml:"assertion_file"` // the projected token, read anew each time
	Assertion     FromSPIFFE `yaml:"assertion"`
}

// FromSPIFFE is the other place than a file.
type FromSPIFFE struct {
	SPIFFE WorkloadAPI `yaml:"spiffe"`
}

// WorkloadAPI is the agent that gives JWT-SVIDs.
type WorkloadAPI struct {
	Socket string `yaml:"socket"` // absolute path of its Unix socket
	ID     string `yaml:"id"`     // to ask for; the agent's first when empty
}

var spiffeForm = regexp.MustCompile(`^spiffe://[a-z0-9._-]{1,255}(?:/[A-Za-z0-9._-]+)+$`)

func (i *Identity) check() error {
	api := i.Assertion.SPIFFE
	switch {
	case i.AssertionFile == "" && api == WorkloadAPI{}:
		return Wrong("assertion_file", "is missing, and so is assertion.spiffe.socket")
	case i.AssertionFile != "" && api != WorkloadAPI{}:
		return Wrong("assertion", "must not stand beside assertion_file: an assertion comes from one place")
	case i.AssertionFile != "":
		return nil
	case !filepath.IsAbs(api.Socket):
		return Wrong("assertion.spiffe.socket", "must be an absolute path")
	case api.ID != "" && !spiffeForm.MatchString(api.ID):
		return Wrong("assertion.spiffe.id", "must be a SPIFFE id with a path")
	}
	return nil
}
