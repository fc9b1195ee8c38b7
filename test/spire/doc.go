// Package spire runs the story of a JWT-SVID with a SPIRE server and agent that are built from their public module: make
// spire. Its tests have the build tag spire, because the servers are large; test/workloads runs the same story against a
// Workload API of our own.
package spire
