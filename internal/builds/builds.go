// Package builds is what a process says that it runs: its executable, the Go
// release and the cryptographic module. It is evidence for whoever looks, and
// decides nothing.
package builds

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/nightwarrant/nightwarrant/internal/fips"
)

// Build is what a process says that it runs. The zero value says nothing.
type Build struct {
	Binary [32]byte // SHA-256 of the executable
	Go     string   // such as go1.26.3
	Module string   // GOFIPS140 of the build, to the snapshot's digest; empty when it was built with none
	FIPS   bool     // the module says that it is enabled
}

// Of is the build of a process whose module this is.
func Of(m fips.Module) Build {
	return Build{Binary: m.BinarySHA256, Go: m.Go, Module: m.Build, FIPS: m.Enabled}
}

// Running is the build of this process. It reads the executable, so call it once.
func Running() (Build, error) {
	m, err := fips.Running()
	if err != nil {
		return Build{}, fmt.Errorf("say what is running: %w", err)
	}
	return Of(m), nil
}

var (
	release  = regexp.MustCompile(`^go1\.(\d{1,2})(?:\.(\d{1,2}))?$`)
	snapshot = regexp.MustCompile(`^v\d{1,3}\.\d{1,3}\.\d{1,3}(-[0-9a-f]{8})?$`)
)

// Columns are the values of nw.builds in their order: binary, go, module and
// fips. The database keeps no text from outside (mission A8), so what is written
// in no known way becomes null or unknown. All are null for the zero value.
func (b Build) Columns() []any {
	if b.Binary == [32]byte{} {
		return []any{nil, nil, nil, nil}
	}
	module := b.Module
	switch {
	case module == "":
		module = "off"
	case module != "off" && module != "latest" && !snapshot.MatchString(module):
		module = "unknown"
	}
	return []any{b.Binary[:], goNumber(b.Go), module, b.FIPS}
}

// goNumber is 12603 for go1.26.3, and nil for what is not a release of Go.
func goNumber(text string) any {
	m := release.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	minor, _ := strconv.Atoi(m[1]) // one or two digits
	patch, _ := strconv.Atoi(m[2]) // or none, which is 0
	return int32(10000 + minor*100 + patch)
}

// GoRelease is the release that a number of the database stands for.
func GoRelease(number int32) string {
	return fmt.Sprintf("go%d.%d.%d", number/10000, number/100%100, number%100)
}
