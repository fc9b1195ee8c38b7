// Package notify tells the owners of tasks what they must hear: that a card
// waits for their decision, that it will soon be over, that a run or an effect of
// theirs ended otherwise than it should.
//
// The database keeps each notice until it is delivered or given up, and names it;
// this package takes what is due, posts it as a signed webhook and says what
// became of it. A crash in between repeats a message, under the same id. It works
// while admission is closed. That it works is the readiness family approvals: a
// card that nobody hears of would be a silent no.
package notify

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// Notice is one thing that the owner of a task must be told.
type Notice struct {
	Matter  []byte // reference of the card, run, effect, task or consent
	Kind    string // a key of kinds
	Member  []byte // who owns the task
	Task    []byte // its reference
	Run     []byte // of the run, where there is one
	Due     time.Time
	Expires *time.Time // of a card or consent
	Attempt int        // counts from 1
}

// Waiting is what has not been told.
type Waiting struct {
	Due, Dead int64         // notices; dead ones were given up and are kept
	Untold    time.Duration // of the card that has been due for longest
}

// Store keeps the notices.
type Store interface {
	// Take hands out notices that are due, and lets each come again after a while.
	Take(ctx context.Context, limit int, again time.Duration) ([]Notice, error)
	// Settle says that a notice was delivered, or that the receiver would not
	// have it, and returns whether it is given up now.
	Settle(ctx context.Context, n Notice, delivered bool) (dead bool, err error)
	Waiting(ctx context.Context) (Waiting, error)
}

// Poster delivers one message; *Webhook is one. An error that is no *[Refused]
// says that the receiver is away.
type Poster interface {
	Post(ctx context.Context, id string, body []byte) error
}

// Refused says that the receiver is there and would not have a message.
type Refused struct{ Status int }

func (r *Refused) Error() string {
	return fmt.Sprintf("the receiver has refused it with status %d", r.Status)
}

// Config of a Notifier. Store, Poster and Link are required.
type Config struct {
	Store      Store
	Poster     Poster
	Link       string                // base URL of the pages that messages point to
	Untold     time.Duration         // that the owner of a card may be untold before the family is bad; 0 means 1 minute
	Registerer prometheus.Registerer // nil counts for nobody
	Logger     *slog.Logger          // nil discards
	Now        func() time.Time      // of probes; nil means time.Now
}

const (
	batch      = 8 // delivered at once
	again      = 10 * time.Second
	postWithin = 5 * time.Second // and so all of a batch before any of it comes again
	lookWithin = 1500 * time.Millisecond
	untold     = time.Minute
)

// The reasons that Look gives, of the readiness reports' vocabulary.
const (
	Good        = "good"
	Unreachable = "unreachable" // no answer in time, or one of 5xx
	Unwanted    = "canary"      // the probe was refused
	Late        = "stale"       // the owner of a card is untold for too long
)

// Notifier tells. It is safe for concurrent use.
type Notifier struct {
	Config
	metrics *metrics
}

// New checks the configuration.
func New(c Config) (*Notifier, error) {
	if c.Store == nil || c.Poster == nil || c.Link == "" {
		return nil, errors.New("a notifier needs notices, a webhook and a link")
	}
	if c.Untold == 0 {
		c.Untold = untold
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	m, err := newMetrics(c.Registerer)
	return &Notifier{c, m}, err
}

// Once delivers what is due, a few at once, and returns whether there may be
// more. One that the receiver refuses holds up no other; when the receiver is
// away, the others would wait for the same.
func (n *Notifier) Once(ctx context.Context) (more bool, err error) {
	taken, err := n.Store.Take(ctx, batch, again)
	if err != nil {
		return false, err
	}
	failed := make([]error, len(taken))
	var group sync.WaitGroup
	for i, one := range taken {
		group.Go(func() { failed[i] = n.deliver(ctx, one) })
	}
	group.Wait()
	err = errors.Join(failed...)
	return len(taken) == batch && err == nil, err
}

func (n *Notifier) deliver(ctx context.Context, one Notice) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a notice of kind %s: panic: %v", one.Kind, v)
		}
	}()
	body, err := n.message(one)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, postWithin)
	defer cancel()
	err = n.Poster.Post(limited, id(one), body)
	refused, is := errors.AsType[*Refused](err)
	if err != nil && !is {
		n.metrics.failed.Inc()
		return fmt.Errorf("a notice of kind %s could not be delivered: %w", one.Kind, err)
	}
	// Whoever is told to end notes first what it has done.
	dead, err := n.Store.Settle(context.WithoutCancel(ctx), one, !is)
	switch {
	case err != nil:
		return err
	case !is:
		n.metrics.delivered.Inc()
	case dead:
		n.metrics.refused.Inc()
		n.Logger.Error("a notice was given up; its owner does not know", "kind", one.Kind, "id", id(one), "attempt", one.Attempt, "status", refused.Status)
	default:
		n.metrics.refused.Inc()
		n.Logger.Warn("the receiver would not have a notice", "kind", one.Kind, "id", id(one), "attempt", one.Attempt, "status", refused.Status)
	}
	return nil
}

// Look judges the family approvals: the receiver takes a signed probe, and no
// owner of a card is untold for too long.
func (n *Notifier) Look(ctx context.Context) (reason string, why error) {
	if reason, why = n.probe(ctx); reason != Good {
		return reason, why
	}
	w, err := n.Store.Waiting(ctx)
	if err != nil {
		return Unreachable, err
	}
	n.metrics.due.Set(float64(w.Due))
	n.metrics.dead.Set(float64(w.Dead))
	if w.Untold > n.Untold {
		return Late, fmt.Errorf("the owner of a card has not been told for %s", w.Untold.Round(time.Second))
	}
	return Good, nil
}

func (n *Notifier) probe(ctx context.Context) (reason string, why error) {
	body, err := json.Marshal(Message{Type: TypeProbe, Timestamp: n.Now().UTC()})
	if err != nil {
		return Unwanted, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err = n.Poster.Post(ctx, "probe_"+rand.Text(), body)
	if _, is := errors.AsType[*Refused](err); is {
		return Unwanted, err
	}
	if err != nil {
		return Unreachable, err
	}
	return Good, nil
}

// id names a notice, in every attempt and every incarnation of the database the same.
func id(n Notice) string {
	digest := canonical.Digest(canonical.DomainReference, []byte("notice"), []byte(n.Kind), n.Matter)
	return encode(digest[:16])
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
