// Package fips says in which cryptographic module this process computes, and
// whether that is one that a FIPS deployment may use.
package fips

import (
	"crypto/fips140"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// Refusals of a module.
const (
	ModuleDisabled = "APP_MODULE_DISABLED" // not running, or switched off by GODEBUG
	ModuleUnpinned = "APP_MODULE_UNPINNED" // a build of no validated snapshot
)

// Module is the Go Cryptographic Module of a process. Neither Enabled nor
// Version is evidence alone: a build of no snapshot can be enabled, and a build
// of one has its version also where it was switched off.
type Module struct {
	Enabled      bool     `json:"enabled"`
	Version      string   `json:"version"` // as the module says
	Build        string   `json:"build"`   // GOFIPS140 of the build information, to the snapshot's digest; empty when there is none
	Enforced     bool     `json:"enforced"`
	Go           string   `json:"go"`
	BinarySHA256 [32]byte `json:"-"`       // of the running executable
	Godebug      string   `json:"godebug"` // what GODEBUG says of fips140; empty when nothing
}

// validated are the builds of snapshots that have a certificate: v1.0.0 is CMVP
// 5247. A version without the snapshot's digest names no snapshot.
var validated = []string{"v1.0.0-c2097c7c"}

// Running is the module of this process. It reads the executable, so call it once.
func Running() (Module, error) {
	m := Module{
		Enabled: fips140.Enabled(), Version: fips140.Version(), Enforced: fips140.Enforced(),
		Go: runtime.Version(), Godebug: setting(os.Getenv("GODEBUG")),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		m.Build = buildOf(info.Settings)
	}
	var err error
	m.BinarySHA256, err = executable()
	return m, err
}

// Refusal is why a FIPS deployment does not run in this module, or empty.
func (m Module) Refusal() string {
	switch {
	case !m.Enabled || m.Godebug == "off":
		return ModuleDisabled
	case !slices.Contains(validated, m.Build):
		return ModuleUnpinned
	}
	return ""
}

func buildOf(settings []debug.BuildSetting) string {
	for _, s := range settings {
		if s.Key == "GOFIPS140" {
			return s.Value
		}
	}
	return ""
}

// setting is what a list of Go's debug settings says of fips140; the last counts.
func setting(godebug string) (value string) {
	for one := range strings.SplitSeq(godebug, ",") {
		if v, is := strings.CutPrefix(strings.TrimSpace(one), "fips140="); is {
			value = v
		}
	}
	return value
}

func executable() (sum [32]byte, err error) {
	path, err := os.Executable()
	if err != nil {
		return sum, fmt.Errorf("fips: the running program cannot be found: %w", err)
	}
	f, err := os.Open(path) //nolint:gosec // it is this program
	if err != nil {
		return sum, fmt.Errorf("fips: the running program cannot be read: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return sum, fmt.Errorf("fips: the running program cannot be read: %w", err)
	}
	h.Sum(sum[:0])
	return sum, nil
}
