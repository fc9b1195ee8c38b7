//go:build !race

package testbinary

var race []string
