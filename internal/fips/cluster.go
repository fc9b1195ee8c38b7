package fips

import "errors"

// testPrefix begins the identifier of every test cluster.
const testPrefix = "nwtest--"

// ErrCluster says that a binary of the synthetic profile was to serve a cluster
// that is none for tests.
var ErrCluster = errors.New("this binary has the synthetic profile, which takes a software token for a real one, and serves only clusters whose id begins with the bytes " + testPrefix)

// Cluster refuses the cluster that this binary must not serve.
func Cluster(id [16]byte) error { return cluster(id, Synthetic) }

func cluster(id [16]byte, synthetic bool) error {
	if synthetic && string(id[:len(testPrefix)]) != testPrefix {
		return ErrCluster
	}
	return nil
}

// Mark makes a new cluster's random identifier one that this binary serves.
func Mark(id *[16]byte) {
	if Synthetic {
		copy(id[:], testPrefix)
	}
}
