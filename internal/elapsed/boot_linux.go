package elapsed

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot counts suspended time too (clock_gettime(2), CLOCK_BOOTTIME).
func sinceBoot() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
