package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A reference may begin with a hyphen; it is still a reference.
func TestReferencesAreNoFlags(t *testing.T) {
	t.Parallel()
	const ref, other = "-c0SKpFfvl2KnVXtfTLEjA", "bq61p0JRpLA1ZEM7KSRv7w"
	for _, c := range []struct{ args, want []string }{
		{[]string{"task", "revoke", ref}, []string{"task", "revoke", "--", ref}},
		{[]string{"task", "revoke", ref, "--json"}, []string{"task", "revoke", "--json", "--", ref}},
		{[]string{"task", "revoke", other, "--json"}, []string{"task", "revoke", other, "--json"}},
		{[]string{"run", "list", "--task", ref}, []string{"run", "list", "--task", ref}},
		{[]string{"offer", "accept", ref, "--digest", "-HA88Fb__TSfqQIi76QgqztEH8TPfgRCJyltG2Xu45Y"}, []string{"offer", "accept", "--digest", "-HA88Fb__TSfqQIi76QgqztEH8TPfgRCJyltG2Xu45Y", "--", ref}},
		{[]string{"admin", "apply", "-f", "x"}, []string{"admin", "apply", "-f", "x"}},
	} {
		assert.Equal(t, c.want, referencesLast(c.args))
	}
}
