// Package notify tells the owners of tasks what they must hear: that a card
// waits for their decision, that it will soon be over, that a run or an effect of
// theirs ended otherwise than it should, that a task of theirs was cut off.
//
// The database keeps each notice until it is delivered or given up, and names it;
// this package takes what is due, posts it as a signed webhook or sends it as a
// mail, and says what became of it. A crash in between repeats a message, under
// the same id. It works while admission is closed. That it works is the readiness
// family approvals: a card that nobody hears of would be a silent no.
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
	Matter  []byte // reference of the card, run, effect or consent; of a pause, one that it alone has
	Kind    string // a key of kinds
	Member  []byte // who owns the task
	Owner   *Owner // where the channel needs to know
	Task    []byte // its reference
	Run     []byte // of the run, where there is one
	Due     time.Time
	Expires *time.Time // of a card or consent
	Attempt int        // counts from 1
}

// Owner is how the directory knows a member.
type Owner struct {
	Issuer  string `json:"issuer"`
	Subject string `json:"subject"`
}

// Waiting is what has not been told.
type Waiting struct {
	Due, Dead int64         // notices; dead ones were given up and are kept
	Untold    time.Duration // of the card that has been due for longest
}

// Store keeps the notices of one channel.
type Store interface {
	// Take hands out notices that are due, and lets each come again after a while.
	Take(ctx context.Context, limit int, again time.Duration) ([]Notice, error)
	// Digest hands out those of one member that go out together.
	Digest(ctx context.Context, limit int, again time.Duration) ([]Notice, error)
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

// Mailer delivers one message to the owner of notices; *Mail is one. Its errors
// are like those of a Poster.
type Mailer interface {
	Mail(ctx context.Context, id, link string, told []Notice) error
	Ready(ctx context.Context) error
}

// The channels.
const (
	ByWebhook = "webhook"
	ByMail    = "mail"
)

// Config of a Notifier. Store, Link and one of Poster and Mailer are required.
type Config struct {
	Store      Store
	Poster     Poster
	Mailer     Mailer
	Link       string                // base URL of the pages that messages point to
	Untold     time.Duration         // that the owner of a card may be untold before the family is bad; 0 means 1 minute
	Registerer prometheus.Registerer // nil counts for nobody; both channels of a process may have the same
	Logger     *slog.Logger          // nil discards
	Now        func() time.Time      // of probes; nil means time.Now
}

const (
	batch      = 8  // delivered at once
	together   = 50 // in one mail
	again      = 10 * time.Second
	postWithin = 5 * time.Second // and so all of a batch before any of it comes again
	mailWithin = 8 * time.Second // likewise
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
	if c.Store == nil || (c.Poster == nil) == (c.Mailer == nil) || c.Link == "" {
		return nil, errors.New("a notifier needs notices, a webhook or mail, and a link")
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
	n := &Notifier{Config: c}
	var err error
	n.metrics, err = newMetrics(c.Registerer, n.Channel())
	return n, err
}

// Channel is by which it tells.
func (n *Notifier) Channel() string {
	if n.Mailer != nil {
		return ByMail
	}
	return ByWebhook
}

// Once delivers what is due, a few at once, and returns whether there may be
// more. One that the receiver refuses holds up no other; when the receiver is
// away, the others would wait for the same.
func (n *Notifier) Once(ctx context.Context) (more bool, err error) {
	taken, err := n.Store.Take(ctx, batch, again)
	if err != nil {
		return false, err
	}
	messages := make([][]Notice, len(taken))
	for i, one := range taken {
		messages[i] = []Notice{one}
	}
	more = len(taken) == batch
	if n.Mailer != nil {
		daily, err := n.Store.Digest(ctx, together, again)
		if err != nil {
			return false, err
		}
		if len(daily) > 0 {
			messages, more = append(messages, daily), true // perhaps of another member
		}
	}
	failed := make([]error, len(messages))
	var group sync.WaitGroup
	for i, one := range messages {
		group.Go(func() { failed[i] = n.deliver(ctx, one) })
	}
	group.Wait()
	err = errors.Join(failed...)
	return more && err == nil, err
}

// deliver sends one message about some notices, and says what became of each.
func (n *Notifier) deliver(ctx context.Context, told []Notice) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("a notice of kind %s: panic: %v", told[0].Kind, v)
		}
	}()
	err = n.send(ctx, told)
	refused, is := errors.AsType[*Refused](err)
	if err != nil && !is {
		n.metrics.failed.Inc()
		return fmt.Errorf("a notice of kind %s could not be delivered: %w", told[0].Kind, err)
	}
	var failed []error
	for _, one := range told {
		failed = append(failed, n.settle(ctx, one, refused))
	}
	return errors.Join(failed...)
}

func (n *Notifier) send(ctx context.Context, told []Notice) error {
	within := postWithin
	if n.Mailer != nil {
		within = mailWithin
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if n.Mailer != nil {
		return n.Mailer.Mail(limited, id(told...), n.Link, told)
	}
	body, err := n.message(told[0])
	if err != nil {
		return err
	}
	return n.Poster.Post(limited, id(told...), body)
}

// settle notes first what was done, also for whoever is told to end.
func (n *Notifier) settle(ctx context.Context, one Notice, refused *Refused) error {
	dead, err := n.Store.Settle(context.WithoutCancel(ctx), one, refused == nil)
	switch {
	case err != nil:
		return err
	case refused == nil:
		n.metrics.delivered.Inc()
	case dead:
		n.metrics.refused.Inc()
		n.Logger.Error("a notice was given up; its owner does not know", "kind", one.Kind, "channel", n.Channel(), "id", id(one), "attempt", one.Attempt, "status", refused.Status)
	default:
		n.metrics.refused.Inc()
		n.Logger.Warn("the receiver would not have a notice", "kind", one.Kind, "channel", n.Channel(), "id", id(one), "attempt", one.Attempt, "status", refused.Status)
	}
	return nil
}

// Look judges the family approvals: the receiver takes a signed probe, or the
// mail server lets its sender in, and no owner of a card is untold for too long.
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
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := n.ready(ctx)
	if _, is := errors.AsType[*Refused](err); is {
		return Unwanted, err
	}
	if err != nil {
		return Unreachable, err
	}
	return Good, nil
}

func (n *Notifier) ready(ctx context.Context) error {
	if n.Mailer != nil {
		return n.Mailer.Ready(ctx)
	}
	body, err := json.Marshal(Message{Type: TypeProbe, Timestamp: n.Now().UTC()})
	if err != nil {
		return err
	}
	return n.Poster.Post(ctx, "probe_"+rand.Text(), body)
}

// id names a notice, or several together, in every attempt and every incarnation
// of the database the same.
func id(told ...Notice) string {
	parts := [][]byte{[]byte("notice")}
	for _, n := range told {
		parts = append(parts, []byte(n.Kind), n.Matter)
	}
	digest := canonical.Digest(canonical.DomainReference, parts...)
	return encode(digest[:16])
}

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
