package client

import (
	"time"

	"github.com/nightwarrant/nightwarrant/internal/elapsed"
)

// State is open or closed. It is a value that ends by itself: one that was kept
// is closed when its time is over. Only a [Client] makes one that is open; the
// zero value is closed, and so is one that was marshalled and read again.
type State struct {
	open  bool
	why   string
	epoch int64
	asked elapsed.Watch // before the question was sent
	valid time.Duration
}

// Open tells whether unattended work may be accepted now.
func (s State) Open() bool { return s.open && s.asked.Elapsed() < s.valid }

// Why is why it is closed, in at most a few words for people: what the authority
// said, or what was wrong with its answer. It is empty when open.
func (s State) Why() string {
	switch {
	case s.Open():
		return ""
	case s.open:
		return "expired"
	case s.why == "":
		return "start"
	}
	return s.why
}

// Epoch is the readiness epoch of the last decision that was accepted, zero
// before the first. It rises with every close and every open: what was begun
// under a lower one was begun before a close.
func (s State) Epoch() int64 { return s.epoch }

// String is "open", or "closed" and why.
func (s State) String() string {
	if why := s.Why(); why != "" {
		return "closed: " + why
	}
	return "open"
}
