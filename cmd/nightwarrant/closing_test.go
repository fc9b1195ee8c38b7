package main

import "testing"

// What cannot be measured is refused before anything is started.
func TestBenchClosingRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--kinds", "nats_killed,nats_tickled"}, {"--kinds", ""}, {"--injections", "0"}, {"--explicit", "0"}, {"--stacks", "0"}, {"--stacks", "9"},
		{"--rate", "9"}, {"--rate", "2001"}, {"--clean", "10ms"}} {
		env{}.run(t, append([]string{"bench", "closing"}, args...)...).bad(t, exitMisconfigured, "")
	}
	env{}.run(t, "bench", "closing", "--kinds", "nats_tickled").bad(t, exitMisconfigured, "postgres_killed")
	env{}.run(t, "bench", "closing", "now").bad(t, exitFailed, "unknown command")
}
