// Package workloads proves workloads of platforms that people already run, from their examples in docs/examples to the
// authority's answer: tokens of the shapes that those platforms issue, good ones and their neighbours.
package workloads
