package worker

import (
	"errors"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/dpopclient"
)

// Why something was not done; compare with errors.Is. Those that the authority or a guard answered carry their
// refusal, see Refused.
var (
	ErrAdmissionClosed     = errors.New("admission is closed")
	ErrHeld                = errors.New("another key holds this run")
	ErrEnded               = errors.New("this run has ended or is not one for this workload")
	ErrDeadline            = errors.New("the authority deadline of this run has passed")
	ErrLeaseLost           = errors.New("the lease on this run has ended")
	ErrFenceLost           = errors.New("a later claim has taken this run")
	ErrAuthorityChanged    = errors.New("the authority of this task has changed or ended")
	ErrNotGranted          = errors.New("the consent does not name this effect")
	ErrApprovalUnavailable = errors.New("this effect needs a decision that nobody can be asked for")
	ErrWaiting             = errors.New("this effect waits for its owner's decision, and this hold on the run is over")
	ErrDenied              = errors.New("the owner has said no to this effect")
	ErrLimit               = errors.New("this run has used what its consent allows")
	ErrConflict            = errors.New("this effect key names another effect in this run")
	ErrRepeated            = errors.New("the same effect is already committed in this run")
	ErrInvalid             = errors.New("this effect cannot be described")

	// Outcomes of an effect that are not committed. ErrUnknown is none: Do with the same key tells later.
	ErrNotApplied = errors.New("the effect was not applied")
	ErrAmbiguous  = errors.New("nobody can prove whether the effect happened")
	ErrUnknown    = errors.New("it is not known yet whether the effect happened")
)

var kinds = map[api.Code]error{
	api.AdmissionClosed: ErrAdmissionClosed, api.Held: ErrHeld, api.RunEnded: ErrEnded, api.UnknownRun: ErrEnded,
	api.DeadlinePassed: ErrDeadline, api.FenceStale: ErrFenceLost,
	api.LeaseLost: ErrLeaseLost, api.InvalidToken: ErrLeaseLost, api.WrongKey: ErrLeaseLost,
	api.AuthorityChanged: ErrAuthorityChanged, api.ConsentEnded: ErrAuthorityChanged,
	api.NotGranted: ErrNotGranted, api.InvalidTarget: ErrNotGranted,
	api.ApprovalUnavailable: ErrApprovalUnavailable, api.ApprovalRequired: ErrWaiting, api.ApprovalDenied: ErrDenied, api.LimitReached: ErrLimit, api.LoopDetected: ErrLimit,
	api.EffectKeyConflict: ErrConflict, api.EffectRepeated: ErrRepeated, api.EffectAmbiguous: ErrAmbiguous,
}

// Refused is the refusal that an error carries: its code says what it is and whether and when to try again.
func Refused(err error) (*api.Refusal, bool) {
	return errors.AsType[*api.Refusal](err)
}

// typed joins a refusal with its kind, so that both can be asked for.
func typed(err error) error {
	refusal, ok := Refused(err)
	if !ok || kinds[refusal.Code] == nil || errors.Is(err, kinds[refusal.Code]) {
		return err
	}
	return fmt.Errorf("%w: %w", kinds[refusal.Code], err)
}

// because joins a cause with what led to it, if anything did.
func because(cause, trouble error) error {
	if trouble == nil || errors.Is(trouble, cause) {
		return cause
	}
	return fmt.Errorf("%w: %w", cause, typed(trouble))
}

// passes tells an error that will pass by itself, so that the same question may be asked again.
func passes(err error) bool {
	return errors.Is(err, dpopclient.ErrNoAnswer) || dpopclient.Refused(err, api.AdmissionClosed, api.Unavailable,
		api.OutcomeUnknown, api.Internal, api.TooManyRequests, api.ReadinessChanged, api.EffectInFlight, api.EffectsInFlight)
}

// isOver tells a refusal after which this hold on a run is worth nothing.
func isOver(err error) bool {
	return dpopclient.Refused(err, api.DeadlinePassed, api.AuthorityChanged, api.ConsentEnded, api.RunEnded, api.UnknownRun,
		api.FenceStale, api.LeaseLost, api.InvalidToken, api.WrongKey, api.ApprovalRequired)
}

const (
	firstPause = 250 * time.Millisecond
	maxPause   = 5 * time.Second
)

// pauseAfter is how long to wait before asking again for the n-th time, counted from 0.
func pauseAfter(err error, n int) time.Duration {
	if refusal, ok := Refused(err); ok && refusal.Wait() > 0 {
		return refusal.Wait()
	}
	return min(firstPause<<min(n, 8), maxPause)
}
