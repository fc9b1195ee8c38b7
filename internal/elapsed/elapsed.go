// Package elapsed measures how much time has passed on the clock that says most.
//
// Go's monotonic clock stands still while a machine is suspended and the wall clock may be set back; the time since boot
// does neither, where the system has it. Authority that ran out on any of them has run out (protocol P18).
package elapsed

import "time"

// Watch runs from Start on.
type Watch struct {
	now   func() time.Time
	boot  func() time.Duration
	start time.Time
	up    time.Duration
}

// Start starts a watch. A nil now is time.Now.
func Start(now func() time.Time) Watch {
	if now == nil {
		now = time.Now
	}
	return StartOn(now, sinceBoot)
}

// StartOn starts a watch on a wall and a boot clock of the caller's, for tests of what depends on them.
func StartOn(now func() time.Time, boot func() time.Duration) Watch {
	return Watch{now: now, boot: boot, start: now(), up: boot()}
}

// Elapsed is the largest of what has passed on the monotonic, the wall and the boot clock; never negative.
func (w Watch) Elapsed() time.Duration {
	now := w.now()
	monotonic := now.Sub(w.start)
	wall := now.Round(0).Sub(w.start.Round(0)) // Round strips the monotonic reading
	return max(0, monotonic, wall, w.boot()-w.up)
}
