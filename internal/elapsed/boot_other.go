//go:build !linux

package elapsed

import "time"

// sinceBoot is unknown here: the two other clocks decide.
func sinceBoot() time.Duration { return 0 }
