package worker

import (
	"context"
	"time"
)

// Message is one hint that a run may be claimed. It proves nothing: the authority decides.
type Message interface {
	Reference() string             // of the run
	Ack() error                    // the authority has answered; do not deliver this again
	Nak(delay time.Duration) error // deliver this again, not before delay has passed
}

// Source hands out messages, one at a time. Run ends with the error of a Pull that has none to give.
type Source interface {
	Pull(ctx context.Context) (Message, error)
}
