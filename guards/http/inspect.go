package http

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/guards"
)

const (
	lookTimeout = 2 * time.Second
	maxState    = 16 << 10 // bytes of what is shown to the owner
)

// ErrNoInspection says that an operation has none.
var ErrNoInspection = errors.New("guards/http: the operation has no inspection")

// Inspector asks for the present state of what effects were about. It needs no
// journal and changes nothing.
type Inspector struct{ ledger *Ledger }

// NewInspector makes one of the configuration of a guard, which may be running.
func NewInspector(c Config) (*Inspector, error) {
	l, err := c.ledger()
	if err != nil {
		return nil, err
	}
	return &Inspector{l}, nil
}

// Inspect returns the listed fields of the present state, for the parameters of
// an effect.
func (i *Inspector) Inspect(ctx context.Context, action string, params json.RawMessage) (json.RawMessage, error) {
	return i.ledger.inspect(ctx, action, params)
}

// look adds to evidence what the destination shows now. Without an inspection, or without an answer to it, there is none.
func (l *Ledger) look(e *api.Evidence, action string) {
	if e == nil || e.Parameters == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout) // whatever became of the exchange's
	defer cancel()
	state, err := l.inspect(ctx, action, e.Parameters)
	switch {
	case err == nil && len(state) <= maxState:
		e.State = state
	case !errors.Is(err, ErrNoInspection):
		l.log.Warn("the present state of an ambiguous effect is not known", "action", action, "error", err)
	}
}

func (l *Ledger) inspect(ctx context.Context, action string, params json.RawMessage) (json.RawMessage, error) {
	o := l.operations[action]
	if o == nil || o.inspect == nil {
		return nil, ErrNoInspection
	}
	_, request, err := o.spellAs(o.inspect, params)
	if err != nil {
		return nil, err
	}
	s, err := l.sender.credential(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	conn, err := l.client.Connect(ctx, request.URL)
	if err != nil {
		return nil, err
	}
	defer conn.Close() //nolint:errcheck // what it had to say was said
	l.sender.sign(request, s, guards.Ref{}, "")
	found, err := exchange(ctx, conn, request, o.inspected)
	if err != nil {
		return nil, err
	}
	if found.verdict != done {
		return nil, errors.New("guards/http: the destination does not show it")
	}
	return l.result(guards.Ref{}, found.fields, s), nil
}
