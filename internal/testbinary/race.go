//go:build race

package testbinary

// race is what the tests are compiled with.
var race = []string{"-race"}
