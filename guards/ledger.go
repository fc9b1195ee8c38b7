package guards

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
)

// Ref is an opaque reference: 16 random bytes, 22 characters of base64url on the wire.
type Ref [16]byte

var errRef = errors.New("guards: a reference is 22 characters of base64url")

// ParseRef reads the wire form in its one spelling.
func ParseRef(s string) (r Ref, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(r) || base64.RawURLEncoding.EncodeToString(b) != s {
		return Ref{}, errRef
	}
	return Ref(b), nil
}

// NewRef makes a reference of 128 random bits.
func NewRef() (r Ref) {
	_, _ = rand.Read(r[:]) // never fails: it ends the process instead
	return r
}

func (r Ref) String() string { return base64.RawURLEncoding.EncodeToString(r[:]) }

// MarshalText gives the wire form.
func (r Ref) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Outcome is what became of an admitted effect. All three are terminal.
type Outcome string

// The outcomes. NotApplied needs proof (protocol P14).
const (
	Committed  Outcome = api.Committed
	NotApplied Outcome = api.NotApplied
	Ambiguous  Outcome = api.Ambiguous
)

func (o Outcome) known() bool { return o == Committed || o == NotApplied || o == Ambiguous }

// Attempt is one try of this guard to have one effect admitted (protocol P13).
type Attempt struct {
	Effect Ref
	ID     Ref // made by this guard
	Action string
	Digest [32]byte // of the effect
	Target Target
	Params json.RawMessage // canonical; nothing else of the request may be acted on (P19)

	Body  []byte // of a request on a route, as it was sent; the parameters fix it
	Reply Reply  // where such a request may be answered before the end; nil otherwise
}

// Admitted is the go-ahead for one attempt.
type Admitted struct {
	Attempt
	Run, Lane Ref
	Fence     int64
	Number    int64 // of the admission, cluster-wide and rising

	// Left is what is left of the time to apply, counted from before the question was sent, on the largest of three clocks (P18).
	Left func() time.Duration
}

// Ending is what an attempt came to.
type Ending struct {
	Outcome Outcome
	Result  json.RawMessage // one JSON object, when committed and when there is something to tell; on a route the whole answer
	Reason  api.Code        // why it was not applied, if there is a code for it

	Spent    *int64        // minor units of the target's currency that were really spent; nil is all that was reserved
	Evidence *api.Evidence // of an ambiguous end
}

// Seen is the highest that a ledger has seen; both rise over restarts (P24).
type Seen struct {
	Fence, Admission int64
}

// ErrSettled says that the effect already has its end in the ledger.
var ErrSettled = errors.New("guards: the effect has its end")

// ErrSettings says that the ledger answers but must not be used as it is set up.
var ErrSettings = errors.New("guards: the ledger's settings are not safe")

// Ledger applies effects at the resource and knows afterwards which it applied.
// It is shared by all replicas of a guard. Every call is bounded by its context.
type Ledger interface {
	// Intend writes an attempt ahead of its admission. It returns ErrSettled for an effect that has its end, or an
	// *api.Refusal, which the worker is told; after any error nothing is admitted.
	Intend(ctx context.Context, a Attempt) error

	// Apply changes the resource within a.Left() or not at all, once for each effect, never under a lower fence than it
	// saw in the lane. An error says that the end is not known yet: Prove finds it out later.
	Apply(ctx context.Context, a Admitted) (Ending, error)

	// Prove returns the end of an admitted attempt that nobody works on any more. NotApplied is returned only after
	// making sure that a late Apply of it fails (P14). An error says that the end is not known yet. The result is told
	// to nobody any more.
	Prove(ctx context.Context, effect, attempt Ref) (Ending, error)

	// Probe succeeds when the ledger could apply now. It wraps ErrSettings when only a person can help.
	Probe(ctx context.Context) (Seen, error)
}
