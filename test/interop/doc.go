// Package interop lets clients that we did not write work for a house: libraries
// from npm, unmodified, a client on nothing but Debian's Python, and Go's own
// OAuth client. They run against a stack of real processes, started for them.
package interop
