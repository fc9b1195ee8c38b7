// Package http is the ledger of a guard in front of an HTTP API: operations that
// an operator wrote as templates, a credential that the worker never sees, a
// destination that the consent fixes, and answers of which only listed fields
// come back (design.md §10).
//
// Such an API cannot prove what it did. What may have been sent and was not
// answered clearly is ambiguous and never sent again (protocol P14, P17).
package http

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/credential"
	"github.com/nightwarrant/nightwarrant/guards/internal/journal"
	"github.com/nightwarrant/nightwarrant/guards/internal/secret"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

const (
	defaultTimeout = 4 * time.Second
	maxTimeout     = time.Minute
	defaultAnswer  = 256 << 10
	maxResult      = 64 << 10
)

// A credential comes from a [Provider], anew for each effect.
type (
	Provider        = credential.Provider
	CredentialValue = credential.Credential
	Secret          = credential.Secret
)

// FromFile provides the credential that a file holds, which may be replaced at
// any time; FromEnv one of the environment.
func FromFile(path string) Provider { return credential.File(path) }

// FromEnv provides the credential that a variable holds.
func FromEnv(name string) Provider { return credential.Env(name) }

// Operation is what one action sends and what comes back of the answer. All its
// parameters are sent, and nothing else of the worker's is.
type Operation struct {
	catalogue.Operation // as registered, byte for byte

	Request Request
	Answer  Answer
	Inspect *Inspect      // optional
	Timeout time.Duration // of the exchange; optional, 4 s. After 5 s the authority calls the effect ambiguous
}

// Request is a template. In its texts {name} is a parameter, {{ and }} are
// braces. An entry that is nothing but an optional parameter is left out without
// it. Everything else must be there.
type Request struct {
	Method  string            // GET, POST, PUT, PATCH or DELETE; optional, POST
	URL     string            // optional, the resource; or the resource and more segments, of which each may be a parameter
	Query   map[string]string // by name
	Headers map[string]string // by name
	Body    json.RawMessage   // of JSON, whose strings are templates; a string that is one parameter becomes its value, whatever type
	Form    map[string]string // instead of Body: application/x-www-form-urlencoded

	IdempotencyHeader string // where the API takes a key that makes it do the same only once; optional
}

// Answer says what statuses mean, and what of a body comes back.
type Answer struct {
	Success []int    // it was done; optional, 200, 201 and 204
	Refused []int    // it was certainly not done; optional, none. Any other status is ambiguous
	Fields  []string // such as id, owner.name and items[].id, all scalars; with any, a success without a JSON body is none
}

// Inspect is a GET that shows the present state to whoever asks what became of an
// effect. It changes nothing.
type Inspect struct {
	URL     string // as of a Request
	Query   map[string]string
	Headers map[string]string
	Fields  []string
}

// Credential is what is sent with each request, in one header.
type Credential struct {
	Header   string // such as Authorization
	Prefix   string // such as "Bearer "
	Provider Provider
}

// Config says what the guard may do. What is not marked optional is mandatory.
type Config struct {
	Dir        string // of the journal, see [Init]
	Operations []Operation
	Credential *Credential    // nil: the API wants none
	Private    []string       // ranges, or hosts with their port, that may be reached although they are not public; optional
	Roots      *x509.CertPool // optional, the system's
	MaxAnswer  int64          // bytes of an answer; optional, 256 KiB
	Logger     *slog.Logger   // optional
	Now        func() time.Time
}

// Ledger implements guards.Ledger. It is safe for concurrent use.
type Ledger struct {
	operations map[string]*operation
	digest     [32]byte
	longest    time.Duration
	journal    *journal.Journal
	client     *upstream.Client
	sender     *sender
	log        *slog.Logger
	now        func() time.Time
}

var _ guards.Ledger = (*Ledger)(nil)

// Init makes the journal of a new guard in a directory that its owner alone may
// reach. Where there is one, it looks whether that is good.
func Init(dir string) error { return journal.Init(dir) }

// New makes the ledger of one guard, and holds its journal until
// [Ledger.Close].
func New(c Config) (*Ledger, error) {
	l, err := c.ledger()
	if err != nil {
		return nil, fmt.Errorf("guards/http: %w", err)
	}
	if l.journal, err = journal.Open(c.Dir, journal.Options{Now: c.Now, Logger: c.Logger}); err != nil {
		return nil, err
	}
	return l, nil
}

// Check tells what is wrong with a configuration, but for its journal.
func (c Config) Check() error {
	if _, err := c.ledger(); err != nil {
		return fmt.Errorf("guards/http: %w", err)
	}
	return nil
}

// ledger is without its journal.
func (c Config) ledger() (*Ledger, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MaxAnswer <= 0 {
		c.MaxAnswer = defaultAnswer
	}
	private, err := upstream.ParsePrivate(c.Private)
	if err != nil {
		return nil, err
	}
	s, err := newSender(c.Credential, c.Now)
	if err != nil {
		return nil, err
	}
	l := &Ledger{operations: map[string]*operation{}, sender: s, log: c.Logger, now: c.Now,
		client: upstream.New(upstream.Config{Private: private, Roots: c.Roots, MaxAnswer: c.MaxAnswer})}
	return l, l.compile(c.Operations, s.header)
}

func (l *Ledger) compile(all []Operation, reserved string) error {
	if len(all) == 0 {
		return errors.New("there is no operation")
	}
	actions := make([]catalogue.Action, 0, len(all))
	for _, o := range all {
		if l.operations[o.Action] != nil {
			return fmt.Errorf("%s stands twice", o.Action)
		}
		compiled, err := compileOperation(o, reserved)
		if err != nil {
			return fmt.Errorf("%.64q: %w", o.Action, err)
		}
		l.operations[o.Action] = compiled
		l.longest = max(l.longest, compiled.timeout)
		actions = append(actions, compiled.action)
	}
	l.digest = catalogue.DigestOf(actions...)
	return nil
}

// Operations are the actions of this ledger, for guards.Config. Parameters that
// cannot be spelled as a request are refused before anything is consumed.
func (l *Ledger) Operations() map[string]guards.Operation {
	out := make(map[string]guards.Operation, len(l.operations))
	for action, o := range l.operations {
		out[action] = func(params json.RawMessage) (guards.Target, error) {
			target, _, err := o.spell(params)
			return target, err
		}
	}
	return out
}

// Catalogue is the digest of its actions, for guards.Config.
func (l *Ledger) Catalogue() [32]byte { return l.digest }

// Longest is how long Apply may take beyond the time to begin, for
// guards.Config.
func (l *Ledger) Longest() time.Duration { return l.longest + 10*time.Second }

// Close ends the journal.
func (l *Ledger) Close() error { return l.journal.Close() }

// Intend implements guards.Ledger. Without a good credential nothing is
// consumed.
func (l *Ledger) Intend(ctx context.Context, a guards.Attempt) error {
	if l.operations[a.Action] == nil {
		return api.Refuse(api.NotFound)
	}
	if _, err := l.sender.credential(ctx); err != nil {
		l.log.Error("there is no credential for the destination", "effect", a.Effect, "error", err)
		return api.Refuse(api.CredentialUnavailable)
	}
	return l.journal.Intend(a)
}

// Apply implements guards.Ledger.
func (l *Ledger) Apply(ctx context.Context, a guards.Admitted) (guards.Ending, error) {
	o := l.operations[a.Action]
	if o == nil {
		return l.journal.CallOff(a, api.Refuse(api.NotFound))
	}
	_, request, err := o.spell(a.Params)
	if err != nil {
		return l.journal.CallOff(a, api.Refuse(api.InvalidRequest))
	}
	s, err := l.sender.credential(ctx)
	if err != nil {
		l.log.Error("there is no credential for the destination", "effect", a.Effect, "error", err)
		return l.journal.CallOff(a, api.Refuse(api.CredentialUnavailable))
	}
	conn, err := l.connect(ctx, a, request)
	if err != nil {
		l.log.Warn("the destination cannot be reached", "effect", a.Effect, "error", err)
		return l.journal.CallOff(a, api.Refuse(api.Unavailable))
	}
	defer conn.Close() //nolint:errcheck // what it had to say was said
	l.sender.sign(request, s, a.Effect, o.idempotency)
	return l.journal.Once(a, func() guards.Ending { return l.send(ctx, a, o, conn, request, s) })
}

func (l *Ledger) connect(ctx context.Context, a guards.Admitted, r *upstream.Request) (*upstream.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, a.Left())
	defer cancel()
	return l.client.Connect(ctx, r.URL)
}

// send is the one exchange. It is called at most once for an effect, and its end is that of the effect.
func (l *Ledger) send(ctx context.Context, a guards.Admitted, o *operation, conn *upstream.Conn, r *upstream.Request, s *secret.Secret) guards.Ending {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	sent := l.now()
	found, err := exchange(ctx, conn, r, o.answer)
	if err == nil && found.verdict != unclear {
		return l.clear(a, found, s)
	}
	l.log.Warn("an effect is ambiguous", "effect", a.Effect, "status", found.status, "error", err)
	evidence := &api.Evidence{Parameters: a.Params, SentUnixMS: sent.UnixMilli(), Answered: answered(found, err), Status: found.status}
	l.look(evidence, a.Action)
	return guards.Ending{Outcome: guards.Ambiguous, Evidence: evidence}
}

func (l *Ledger) clear(a guards.Admitted, found finding, s *secret.Secret) guards.Ending {
	if found.verdict == refused {
		l.log.Info("the destination refused an effect", "effect", a.Effect, "status", found.status)
		return guards.Ending{Outcome: guards.NotApplied, Reason: reasonOf(found.status)}
	}
	return guards.Ending{Outcome: guards.Committed, Result: l.result(a.Effect, found.fields, s)}
}

// result is what the worker gets of an answer: listed fields without secrets, or nothing.
func (l *Ledger) result(effect guards.Ref, fields json.RawMessage, s *secret.Secret) json.RawMessage {
	if fields == nil {
		return nil
	}
	clean, echoed := s.Set().Bytes(fields)
	if echoed {
		l.log.Error("the destination's answer holds the credential", "effect", effect)
	}
	if len(clean) > maxResult || !json.Valid(clean) {
		l.log.Warn("an answer cannot be told", "effect", effect, "bytes", len(clean))
		return nil
	}
	return clean
}

// Prove implements guards.Ledger.
func (l *Ledger) Prove(_ context.Context, effect, attempt guards.Ref) (guards.Ending, error) {
	ending, err := l.journal.Prove(effect, attempt)
	if ending.Evidence != nil {
		l.look(ending.Evidence, ending.Evidence.Action)
	}
	return ending, err
}

// Probe implements guards.Ledger.
func (l *Ledger) Probe(context.Context) (guards.Seen, error) { return l.journal.Probe() }
