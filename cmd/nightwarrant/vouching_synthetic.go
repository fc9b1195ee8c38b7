//go:build nightwarrant_synthetic

package main

import "github.com/nightwarrant/nightwarrant/keys/provenance/synthetic"

// A binary for tests takes a root whose key everybody knows for a manufacturer's,
// too; fips.Cluster keeps it to test clusters.
func init() {
	profiles = append(profiles, synthetic.Attesting())
	device, err := synthetic.NewDevice("Example Devices")
	if err != nil {
		panic(err) // nothing in it can fail
	}
	attestations[synthetic.Format] = device
}
