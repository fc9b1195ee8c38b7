//go:build !nightwarrant_synthetic

package fips

// Synthetic says that this binary takes a software token and a test's root for
// real ones: this one does not.
const Synthetic = false
