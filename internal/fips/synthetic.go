//go:build nightwarrant_synthetic

package fips

// Synthetic says that this binary takes a software token and a test's root for
// real ones. It is for tests, and serves test clusters only.
const Synthetic = true

func init() { validated = append(validated, "v1.26.0") } // in process, so that what comes next is tried
