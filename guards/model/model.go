// Package model is a guard before a language model whose API is spelled as
// OpenAI's (chat completions and responses): a call is reserved before it
// happens, for the most that it may cost, and settled once for what it used
// (mission B9). The worker never sees the credential, nor a word of the
// provider's errors (B8, B11).
//
// A provider cannot be asked later whether a call happened. What is proven by
// its own answer is settled as that; a call that was sent and has no answer is
// ambiguous (protocol P14, P17).
package model

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/guards"
	"github.com/nightwarrant/nightwarrant/guards/internal/credential"
	"github.com/nightwarrant/nightwarrant/guards/internal/journal"
	"github.com/nightwarrant/nightwarrant/guards/internal/secret"
	"github.com/nightwarrant/nightwarrant/guards/internal/upstream"
)

// Actions of the catalogue.
const (
	ChatComplete   = "chat.complete"
	ResponseCreate = "response.create"
)

// Provider knows where the credential is.
type Provider = credential.Provider

// CredentialFile provides what a file of mode 0600 or 0640 holds, read anew for each call.
func CredentialFile(path string) Provider { return credential.File(path) }

// CredentialEnv provides what a variable of the environment holds.
func CredentialEnv(name string) Provider { return credential.Env(name) }

// Config says which models stand behind the guard. What is not marked optional
// is mandatory.
type Config struct {
	BaseURL    string           // such as https://api.example.com/v1, without a slash at its end; the only destination
	Currency   string           // of all prices, ISO 4217
	Models     map[string]Model // by the id that requests name
	Credential Provider
	Header     string           // that carries it; optional, Authorization
	Prefix     string           // before it; optional where Header is empty, then "Bearer "
	Dir        string           // of the journal, see [Init]
	Private    []string         // addresses that may be reached although they are not public: 10.0.0.0/8 or host:port; optional
	Roots      *x509.CertPool   // optional, the system's
	Refused    []int            // statuses beyond the protocol's by which this provider says that it did nothing; optional
	MaxRequest int              // bytes; optional, 1 MiB, at most 16 MiB
	MaxAnswer  int64            // bytes; optional, 8 MiB
	Timeout    time.Duration    // of a call, at most the max_call_ms that is registered; optional, 60 s
	Logger     *slog.Logger     // optional
	Now        func() time.Time // optional, time.Now
}

// Model is one model and what it costs.
type Model struct {
	Version  string // or digest, as its operator pins it: a part of what readiness requires
	Price    Price
	Answers  []string // other names under which it may answer, such as a dated one; optional
	Overhead int64    // tokens that the provider adds to each request; optional, 512
}

const defaultOverhead = 512

// Ledger is a guards.Ledger. Close it.
type Ledger struct {
	config  Config
	base    *url.URL
	models  map[string]*served // by the model's URL
	client  *upstream.Client
	journal *journal.Journal
	source  *secret.Source
	log     *slog.Logger
	now     func() time.Time

	substituted atomic.Bool // the provider answered as a model that nobody asked for
}

// served is a model as it is used.
type served struct {
	Model
	id  string
	url string
}

var _ guards.Ledger = (*Ledger)(nil)

// Init makes the journal of a new guard in a directory that its owner alone may
// reach. Where there is one, it looks whether that is good.
func Init(dir string) error { return journal.Init(dir) }

// New opens the journal, which it holds until [Ledger.Close], and contacts
// nobody.
func New(c Config) (*Ledger, error) {
	l, err := c.ledger()
	if err != nil {
		return nil, err
	}
	l.journal, err = journal.Open(c.Dir, journal.Options{Now: c.Now, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Check tells whether a guard can be made of c, and opens nothing.
func (c Config) Check() error {
	_, err := c.ledger()
	return err
}

// ledger is without its journal.
func (c Config) ledger() (*Ledger, error) {
	c = c.withDefaults()
	l := &Ledger{config: c, models: map[string]*served{}, source: secret.New(c.Credential, c.Now), log: c.Logger, now: c.Now}
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("guards/model: %w", err)
	}
	private, err := upstream.ParsePrivate(c.Private)
	if err != nil {
		return nil, fmt.Errorf("guards/model: %w", err)
	}
	l.client = upstream.New(upstream.Config{Private: private, Roots: c.Roots, MaxAnswer: c.MaxAnswer})
	return l, nil
}

func (c Config) withDefaults() Config {
	if c.Header == "" {
		c.Header, c.Prefix = "Authorization", cmp.Or(c.Prefix, "Bearer ")
	}
	c.MaxRequest = cmp.Or(c.MaxRequest, 1<<20)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, 8<<20)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func (l *Ledger) check() (err error) {
	c := l.config
	l.base, err = url.Parse(c.BaseURL)
	switch {
	case err != nil || strings.HasSuffix(c.BaseURL, "/"):
		return errors.New("the base URL cannot be used: it has no slash at its end")
	case c.Credential == nil || c.Dir == "":
		return errors.New("credential and the directory of the journal must be set")
	case len(c.Models) == 0:
		return errors.New("at least one model must be served")
	case len(c.Currency) != 3 || strings.ToUpper(c.Currency) != c.Currency:
		return errors.New("the currency is three capital letters")
	case c.MaxRequest < 1 || c.MaxRequest > MaxRequest || c.MaxAnswer < 1 || c.Timeout < time.Second || c.Timeout > 10*time.Minute:
		return errors.New("a request has at most 16 MiB, an answer at least one byte, and a call between 1 s and 10 min")
	}
	for _, status := range c.Refused {
		if status < 400 || status > 599 {
			return fmt.Errorf("%d is not the status of a refusal", status)
		}
	}
	for id, m := range c.Models {
		if err := l.serve(id, m); err != nil {
			return err
		}
	}
	return nil
}

func (l *Ledger) serve(id string, m Model) error {
	at := URL(l.config.BaseURL, id)
	if err := catalogue.CheckResource(catalogue.Model, at); err != nil || id == "" {
		return fmt.Errorf("the model %.80q has no URL at this base URL", id)
	}
	if m.Version == "" {
		return fmt.Errorf("the version of the model %.80q is missing", id)
	}
	if m.Overhead < 0 || m.Overhead > maxOverhead {
		return fmt.Errorf("the overhead of the model %.80q must be between 0 and 1,000,000 tokens", id)
	}
	if err := m.Price.check(); err != nil {
		return fmt.Errorf("the model %.80q: %w", id, err)
	}
	m.Overhead = cmp.Or(m.Overhead, defaultOverhead)
	l.models[at] = &served{Model: m, id: id, url: at}
	return nil
}

// Close ends the journal.
func (l *Ledger) Close() error { return l.journal.Close() }

// URL names a model as the resource of an effect.
func URL(baseURL, id string) string { return baseURL + "/models/" + url.PathEscape(id) }

const digestDomain = "nightwarrant/model/v1"

// Digest names a model as readiness requires it: SHA-256 over the base URL, the
// id and the version, with a domain (authority/canonical).
func Digest(baseURL, id, version string) [32]byte {
	return canonical.Digest(digestDomain, []byte(baseURL), []byte(id), []byte(version))
}

// Guard fills in what a guard of these models is, beside what the caller says of itself.
func (l *Ledger) Guard(c guards.Config) guards.Config {
	c.Ledger, c.Routes, c.Longest = l, l.routes(), l.config.Timeout+grace
	c.Operations = map[string]guards.Operation{}
	actions := catalogue.Actions(catalogue.Model)
	for _, a := range actions {
		c.Operations[a.Name] = a.Target
	}
	c.Catalogue, c.Models = catalogue.DigestOf(actions...), l.Digests()
	return c
}

const grace = 5 * time.Second // beyond a call, to write down what came of it

// Digests are those of the models that are served.
func (l *Ledger) Digests() (all [][32]byte) {
	for _, m := range l.models {
		all = append(all, Digest(l.config.BaseURL, m.id, m.Version))
	}
	slices.SortFunc(all, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	return all
}

// Probe implements guards.Ledger. A provider that answers as another model than it was asked for serves what nobody
// required: that closes admission, until a person has set it right and started the guard anew (mission A14).
func (l *Ledger) Probe(context.Context) (guards.Seen, error) {
	seen, err := l.journal.Probe()
	if err == nil && l.substituted.Load() {
		err = fmt.Errorf("%w: the provider answers as another model than is configured", guards.ErrSettings)
	}
	return seen, err
}

// Prove implements guards.Ledger.
func (l *Ledger) Prove(_ context.Context, effect, attempt guards.Ref) (guards.Ending, error) {
	return l.journal.Prove(effect, attempt)
}

func (l *Ledger) header(value string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	h.Set(l.config.Header, l.config.Prefix+value)
	return h
}
