package journal

import (
	"bytes"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

// The stages of an effect; each is durable before the next begins.
const (
	intended = "intended" // written ahead of an admission
	started  = "started"  // admitted, under the lane's fence; nothing was sent
	sending  = "sending"  // something may have been sent
	ended    = "ended"
)

// effect is the row of one. What was sent is kept while it may be needed as evidence, the answer never.
type effect struct {
	Stage   string
	Action  string
	Digest  []byte
	Attempt []byte `json:",omitempty"` // that was started, or that was proven
	Params  []byte `json:",omitempty"` // the very bytes: their digest is the effect's
	Target  guards.Target
	Sent    int64 `json:",omitempty"` // Unix milliseconds of the guard's clock

	Outcome  guards.Outcome `json:",omitempty"`
	Reason   api.Code       `json:",omitempty"`
	Spent    *int64         `json:",omitempty"`
	Answered string         `json:",omitempty"`
	Status   int            `json:",omitempty"`
}

var (
	errStage   = errors.New("guards/journal: the effect is not at that stage")
	errOutcome = errors.New("guards/journal: that is no end")
)

func (j *Journal) change(do func(*txn) error) error {
	return j.do(&call{wait: j.options.Wait, do: do})
}

// Intend writes an attempt ahead of its admission. It returns guards.ErrSettled
// for an effect that has its end, or an *api.Refusal for one that was admitted
// already or is another.
func (j *Journal) Intend(a guards.Attempt) error {
	return j.change(func(t *txn) error {
		var e effect
		found := t.get(bucketEffects, a.Effect[:], &e)
		switch {
		case !found:
			e = effect{Stage: intended, Action: a.Action, Digest: a.Digest[:]}
		case e.Stage == ended:
			return guards.ErrSettled
		case e.Stage != intended:
			return api.Refuse(api.EffectAlreadyAdmitted)
		case !e.is(a):
			return api.Refuse(api.EffectMismatch)
		}
		t.put(bucketEffects, a.Effect[:], e)
		t.put(bucketAttempts, attemptKey(a.Effect, a.ID), struct{}{})
		return nil
	})
}

func (e *effect) is(a guards.Attempt) bool {
	return e.Action == a.Action && bytes.Equal(e.Digest, a.Digest[:])
}

func attemptKey(effect, attempt guards.Ref) []byte { return append(effect[:], attempt[:]...) }

func (t *txn) intended(effect, attempt guards.Ref) bool {
	return t.get(bucketAttempts, attemptKey(effect, attempt), new(struct{}))
}

// Start takes the lane under the fence of a go-ahead, for an attempt that was
// written ahead, once. It returns an *api.Refusal otherwise; under a lower fence
// than the lane has seen the effect then has its end. Nothing may be sent before
// [Journal.Sending].
func (j *Journal) Start(a guards.Admitted) error {
	return j.change(func(t *txn) error { return t.start(a) })
}

// Sending is written before the first byte is sent: from now on the effect is
// ambiguous unless [Journal.End] says otherwise. It succeeds once for each effect.
func (j *Journal) Sending(effect guards.Ref, at time.Time) error {
	return j.change(func(t *txn) error { return t.sending(effect, at) })
}

// StartSending is Start and Sending in one commit.
func (j *Journal) StartSending(a guards.Admitted, at time.Time) error {
	return j.change(func(t *txn) error {
		if err := t.start(a); err != nil {
			return err
		}
		return t.sending(a.Effect, at)
	})
}

func (t *txn) start(a guards.Admitted) error {
	var e effect
	found := t.get(bucketEffects, a.Effect[:], &e)
	switch {
	case !found || e.Stage == intended && !t.intended(a.Effect, a.ID):
		return api.Refuse(api.AttemptMismatch)
	case e.Stage == ended:
		return api.Refuse(api.EffectSettled)
	case e.Stage != intended:
		return api.Refuse(api.EffectAlreadyAdmitted)
	case !e.is(a.Attempt) || a.Fence < 1:
		return api.Refuse(api.EffectMismatch)
	}
	var l lane
	t.get(bucketLanes, a.Lane[:], &l)
	if a.Fence < l.Fence {
		t.end(a.Effect, e, a.ID, guards.Ending{Outcome: guards.NotApplied, Reason: api.FenceStale})
		return api.Refuse(api.FenceStale)
	}
	t.put(bucketLanes, a.Lane[:], lane{a.Fence})
	t.meta.Fence, t.meta.Admission = max(t.meta.Fence, a.Fence), max(t.meta.Admission, a.Number)
	e.Stage, e.Attempt, e.Params, e.Target = started, a.ID[:], a.Params, a.Target
	t.put(bucketEffects, a.Effect[:], e)
	return nil
}

func (t *txn) sending(id guards.Ref, at time.Time) error {
	var e effect
	if !t.get(bucketEffects, id[:], &e) || e.Stage != started {
		return errStage
	}
	e.Stage, e.Sent = sending, at.UnixMilli()
	t.put(bucketEffects, id[:], e)
	return nil
}

// End writes what became of an effect that was started. Once it has an end,
// guards.ErrSettled is returned. An error does not make an end unknown that the
// caller knows: only what a later process could prove.
func (j *Journal) End(id guards.Ref, ending guards.Ending) error {
	return j.change(func(t *txn) error {
		var e effect
		switch {
		case !t.get(bucketEffects, id[:], &e) || e.Stage == intended:
			return errStage
		case e.Stage == ended:
			return guards.ErrSettled
		case e.Stage == started && ending.Outcome != guards.NotApplied:
			return errStage
		}
		switch ending.Outcome {
		case guards.Committed, guards.NotApplied, guards.Ambiguous:
		default:
			return errOutcome
		}
		t.end(id, e, guards.Ref(e.Attempt), ending)
		return nil
	})
}

func (t *txn) end(id guards.Ref, e effect, attempt guards.Ref, ending guards.Ending) {
	e.Stage, e.Attempt, e.Outcome, e.Reason, e.Spent = ended, attempt[:], ending.Outcome, ending.Reason, ending.Spent
	if ending.Outcome != guards.Ambiguous {
		e.Params, e.Target = nil, guards.Target{} // a person has no question left
	} else if ending.Evidence != nil {
		e.Answered, e.Status = ending.Evidence.Answered, ending.Evidence.Status
	}
	t.put(bucketEffects, id[:], e)
}

// Prove returns the end of an admitted attempt that nobody works on any more.
// Whatever was not sent is ended as not applied, so that it never will be (P14);
// what may have been sent is ambiguous. So is an attempt that was never written
// ahead: then this journal is not the one that knew of it.
func (j *Journal) Prove(id, attempt guards.Ref) (guards.Ending, error) {
	var ending guards.Ending
	known := true
	err := j.change(func(t *txn) error {
		if ending, known = t.prove(id, attempt); !known {
			ending = guards.Ending{Outcome: guards.Ambiguous, Evidence: &api.Evidence{Answered: api.AnsweredUnknown}}
		}
		return nil
	})
	if err != nil {
		return guards.Ending{}, err // the writer may still write to the other
	}
	if !known {
		j.options.Logger.Error("the authority admitted an attempt that is not in this journal", "effect", id, "attempt", attempt)
	}
	return ending, nil
}

// prove is false for an attempt of which somebody else must know.
func (t *txn) prove(id, attempt guards.Ref) (guards.Ending, bool) {
	var e effect
	t.get(bucketEffects, id[:], &e)
	unsent := guards.Ending{Outcome: guards.NotApplied}
	switch {
	case e.Stage == "" || e.Stage == intended && !t.intended(id, attempt):
		t.end(id, e, attempt, guards.Ending{Outcome: guards.Ambiguous})
		return guards.Ending{}, false
	case e.Stage == intended || e.Stage == started && bytes.Equal(e.Attempt, attempt[:]):
		t.end(id, e, attempt, unsent)
		return unsent, true
	case bytes.Equal(e.Attempt, attempt[:]) || e.Outcome == guards.NotApplied:
		return e.ending(), true
	}
	return guards.Ending{}, false // both are wrong, and only a person can tell how
}

func (e *effect) ending() guards.Ending {
	ending := guards.Ending{Outcome: e.Outcome, Reason: e.Reason, Spent: e.Spent}
	if e.Stage == sending {
		ending.Outcome, e.Answered = guards.Ambiguous, api.AnsweredNothing
	}
	if ending.Outcome == guards.Ambiguous {
		ending.Evidence = &api.Evidence{SentUnixMS: e.Sent, Answered: e.Answered, Status: e.Status}
		if e.Params != nil {
			v := ending.Evidence
			v.Action, v.Resource, v.Amount, v.Currency, v.Parameters = e.Action, e.Target.Resource, e.Target.Amount, e.Target.Currency, e.Params
		}
		if e.Answered == "" {
			ending.Evidence.Answered = api.AnsweredUnknown
		}
	}
	return ending
}
