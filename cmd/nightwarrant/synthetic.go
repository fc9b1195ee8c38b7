//go:build nightwarrant_synthetic

package main

import "github.com/nightwarrant/nightwarrant/keys/provenance/synthetic"

// A binary of the synthetic profile takes SoftHSM for a module, and serves test
// clusters only (package fips). No release is built so: see `make release`.
func init() { profiles = append(profiles, synthetic.Profile()) }
