package journal

import (
	"errors"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

// Once calls send for an admitted effect, at most once whatever happens, with
// what is known written before and after. An error says that the end is not known
// yet, as of guards.Ledger.Apply.
func (j *Journal) Once(a guards.Admitted, send func() guards.Ending) (guards.Ending, error) {
	if err := j.StartSending(a, j.options.Now()); err != nil {
		return j.unsent(a, err)
	}
	ending := guards.Ending{Outcome: guards.NotApplied, Reason: api.TooLate}
	if a.Left() > 0 {
		ending = send()
	}
	if err := j.End(a.Effect, ending); err != nil {
		if errors.Is(err, errOutcome) {
			return guards.Ending{}, err
		}
		j.options.Logger.Error("an end that is known is not in the journal", "effect", a.Effect, "outcome", ending.Outcome, "error", err)
	}
	return ending, nil
}

// unsent is the end of an effect for which send was not called in this attempt (P14). What could not be written may be there all the
// same.
func (j *Journal) unsent(a guards.Admitted, why error) (guards.Ending, error) {
	if _, refused := errors.AsType[*api.Refusal](why); !refused {
		ending := guards.Ending{Outcome: guards.NotApplied, Reason: api.Unavailable}
		if err := j.End(a.Effect, ending); err == nil {
			return ending, nil
		}
	}
	ending, err := j.CallOff(a, why)
	if err != nil {
		return guards.Ending{}, errors.Join(why, err)
	}
	return ending, nil
}

// CallOff ends an effect of which this attempt has sent nothing, and never will
// (P14). Where why is a refusal and no reason stands yet, its code is the reason.
func (j *Journal) CallOff(a guards.Admitted, why error) (guards.Ending, error) {
	ending, err := j.Prove(a.Effect, a.ID)
	if refusal, ok := errors.AsType[*api.Refusal](why); ok && err == nil && ending.Outcome == guards.NotApplied && ending.Reason == "" {
		ending.Reason = refusal.Code
	}
	return ending, err
}
