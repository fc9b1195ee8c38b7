package exec

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/nightwarrant/nightwarrant/worker"
)

// Request is what a command asks for at POST /effects: exactly one effect, as [worker.Effect] has it.
type Request struct {
	Guard      string          `json:"guard"`
	Action     string          `json:"action"`
	Resource   string          `json:"resource"`
	Key        string          `json:"key"`
	Parameters json.RawMessage `json:"parameters,omitempty"`
	Amount     int64           `json:"amount,omitempty"`
	Currency   string          `json:"currency,omitempty"`
	RepeatOf   string          `json:"repeat_of,omitempty"`
}

func (r Request) effect() worker.Effect {
	e := worker.Effect{Key: r.Key, Guard: r.Guard, Action: r.Action, Resource: r.Resource, Amount: r.Amount, Currency: r.Currency, RepeatOf: r.RepeatOf}
	if len(r.Parameters) > 0 {
		e.Parameters = r.Parameters
	}
	return e
}

// Answer says what became of it. Outcome is one of [Outcomes], and never renamed.
type Answer struct {
	Outcome string          `json:"outcome"`
	Message string          `json:"message"`
	Effect  string          `json:"effect,omitempty"`  // its reference
	Result  json.RawMessage `json:"result,omitempty"`  // from the guard
	Refusal string          `json:"refusal,omitempty"` // code of the authority or the guard
}

// Outcome is one way in which asking for an effect ends.
type Outcome struct {
	Code    string
	Exit    int // status of `nightwarrant effect`
	Status  int // of HTTP
	Message string
	kinds   []error
}

// Codes that this package decides on.
const (
	Committed   = "committed"
	Invalid     = "invalid"
	Busy        = "busy"
	Unavailable = "unavailable"
)

// Outcomes is every way, the first that fits an error first.
var Outcomes = []Outcome{
	{Committed, 0, http.StatusOK, "It happened, once.", nil},
	{"unknown", 19, http.StatusServiceUnavailable, "It is not known yet whether it happened; the same key tells later.", []error{worker.ErrUnknown}},
	{"not_applied", 10, http.StatusConflict, "It did not happen, and under this key it never will.", []error{worker.ErrNotApplied}},
	{"ambiguous", 11, http.StatusConflict, "Nobody can prove whether it happened; a person must look.", []error{worker.ErrAmbiguous}},
	{"waiting", 12, http.StatusConflict, "It waits for the owner's decision; end now, and you are started again.", []error{worker.ErrWaiting}},
	{"denied", 13, http.StatusForbidden, "The owner has said no.", []error{worker.ErrDenied}},
	{"limit", 14, http.StatusForbidden, "The run has used what its consent allows.", []error{worker.ErrLimit}},
	{"not_granted", 15, http.StatusForbidden, "The consent does not name it.", []error{worker.ErrNotGranted, worker.ErrApprovalUnavailable}},
	{"conflict", 16, http.StatusConflict, "The key names another effect in this run.", []error{worker.ErrConflict}},
	{"repeated", 17, http.StatusConflict, "The same effect is already committed under another key.", []error{worker.ErrRepeated}},
	{"ended", 18, http.StatusGone, "The hold on this run is over.", []error{worker.ErrEnded, worker.ErrDeadline, worker.ErrLeaseLost, worker.ErrFenceLost, worker.ErrAuthorityChanged}},
	{Invalid, 2, http.StatusBadRequest, "It cannot be described; nothing was asked for.", []error{worker.ErrInvalid}},
	{Busy, 20, http.StatusTooManyRequests, "Too many effects are asked for at once.", []error{errBusy}},
	{Unavailable, 1, http.StatusBadGateway, "It was refused; nothing happened.", nil},
}

var errBusy = errors.New("busy")

// outcomeOf is the first outcome that fits.
func outcomeOf(err error) Outcome {
	if err == nil {
		return Outcomes[0]
	}
	for _, o := range Outcomes {
		for _, kind := range o.kinds {
			if errors.Is(err, kind) {
				return o
			}
		}
	}
	return Outcomes[len(Outcomes)-1]
}

// Exit is the status of `nightwarrant effect` for a code; that of [Unavailable] for an unknown one.
func Exit(code string) int {
	for _, o := range Outcomes {
		if o.Code == code {
			return o.Exit
		}
	}
	return Outcomes[len(Outcomes)-1].Exit
}

// answer holds nothing but what a command may see: no text of an error, which could name what it must not reach.
func answer(result worker.Result, err error) (Answer, int) {
	o := outcomeOf(err)
	a := Answer{Outcome: o.Code, Message: o.Message, Effect: result.Effect, Result: result.Result}
	if refusal, ok := worker.Refused(err); ok {
		a.Refusal = string(refusal.Code)
	}
	return a, o.Status
}
