package jwks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Config configures a Cache. Zero durations mean the defaults.
type Config struct {
	Issuers  []Issuer
	Own      string        // this authority's issuer: never a configured one; required
	Refresh  time.Duration // keys younger than this are used without asking; default 5 min, at least 1 s
	MaxStale time.Duration // keys older than this are refused; default 1 h, at least Refresh
	Pause    time.Duration // least time between two requests' refreshes of one issuer; default 10 s, at least 1 s
	Timeout  time.Duration // of one refresh; default 5 s
	Leeway   time.Duration // for iat and nbf ahead of this clock; default 10 s, at most 60 s
	Now      func() time.Time
}

// Cache holds the keys of the configured issuers and the tokens that verified
// under them. It starts empty and has no goroutine of its own: keys are
// refreshed by the caller that needs them, or ahead of need by Run.
type Cache struct {
	cfg     Config
	sources map[string]*source
	tokens  memo
}

// New validates the configuration; any error is a misconfiguration.
func New(cfg Config) (*Cache, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, sources: map[string]*source{}, tokens: newMemo()}
	for _, i := range cfg.Issuers {
		c.sources[i.URL] = &source{issuer: i, cfg: cfg, client: newClient(i)}
	}
	return c, nil
}

func (cfg Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&cfg.Refresh, 5 * time.Minute},
		{&cfg.MaxStale, time.Hour},
		{&cfg.Pause, 10 * time.Second},
		{&cfg.Timeout, 5 * time.Second},
		{&cfg.Leeway, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return cfg
}

func (cfg Config) validate() error {
	switch {
	case cfg.Own == "":
		return errors.New("our own issuer is not configured")
	case cfg.Refresh < time.Second || cfg.Pause < time.Second:
		return errors.New("refresh and pause must be at least 1 s")
	case cfg.MaxStale < cfg.Refresh:
		return errors.New("keys may not become too old before they are refreshed")
	case cfg.Timeout < 0 || cfg.Timeout > time.Minute:
		return errors.New("the timeout must be at most 1 min")
	case cfg.Leeway < 0 || cfg.Leeway > time.Minute:
		return errors.New("the leeway must be at most 60 s")
	}
	return validateIssuers(cfg.Issuers, cfg.Own)
}

// Issuers lists the configured issuers.
func (c *Cache) Issuers() []string {
	out := make([]string, 0, len(c.cfg.Issuers))
	for _, i := range c.cfg.Issuers {
		out = append(out, i.URL)
	}
	return out
}

// RefreshedAt says when an issuer's keys were last fetched; zero means never.
func (c *Cache) RefreshedAt(issuer string) time.Time {
	s, ok := c.sources[issuer]
	if !ok {
		return time.Time{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetched
}

// Fresh tells whether an issuer's keys may be used: fetched, and not too old.
func (c *Cache) Fresh(issuer string) bool {
	s, ok := c.sources[issuer]
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.age() < s.cfg.MaxStale
}

// Failure says why an issuer's last refresh failed. It is nil when that
// succeeded, and when there was none.
func (c *Cache) Failure(issuer string) error {
	s, ok := c.sources[issuer]
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Refresh asks an issuer for its keys now, and returns why there are none to use.
func (c *Cache) Refresh(ctx context.Context, issuer string) error {
	s, ok := c.sources[issuer]
	if !ok {
		return UntrustedIssuer
	}
	s.refreshNow(ctx)
	if err := c.Failure(issuer); err != nil || c.Fresh(issuer) {
		return err
	}
	return unavailable(nil)
}

// Run refreshes every issuer before its keys are due, until ctx ends. It is
// optional: without it the first caller after the due time waits.
func (c *Cache) Run(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range c.sources {
		all.Go(func() { s.run(ctx) })
	}
	all.Wait()
}

// source is one issuer's keys.
type source struct {
	issuer Issuer
	cfg    Config
	client *http.Client

	mu        sync.Mutex
	set       map[string]key // replaced whole, never merged: a removed key is gone
	fetched   time.Time      // when set was fetched; zero means never
	attempted time.Time      // when a refresh last began
	failure   error          // of the last refresh
	flight    chan struct{}  // closed when the refresh under way ends; nil when there is none
}

func (s *source) run(ctx context.Context) {
	for {
		s.refreshNow(ctx)
		timer := time.NewTimer(s.rest())
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// rest is how long run waits: until half of the keys' time is over, and after a
// failure no longer than somebody who asks would have to.
func (s *source) rest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return min(s.cfg.Pause, s.cfg.Refresh/2)
	}
	return s.cfg.Refresh / 2
}

// refreshNow refreshes regardless of the pause, unless a refresh is under way.
func (s *source) refreshNow(ctx context.Context) {
	s.mu.Lock()
	flight, lead := s.join(0)
	s.mu.Unlock()
	if lead {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		s.fly(ctx, flight)
	}
}

// key returns the current key of that name, after at most one refresh.
func (s *source) key(ctx context.Context, kid string) (key, error) {
	if ctx.Err() != nil {
		return key{}, unavailable(ctx.Err())
	}
	s.mu.Lock()
	k, known := s.set[kid]
	age := s.age()
	if known && age < s.cfg.Refresh {
		s.mu.Unlock()
		return k, nil
	}
	flight, lead := s.join(s.cfg.Pause)
	s.mu.Unlock()

	switch {
	case lead:
		ctx, cancel := deadlineOnly(ctx, s.cfg.Timeout)
		defer cancel()
		s.fly(ctx, flight)
	case known && age < s.cfg.MaxStale:
		return k, nil // somebody else refreshes, or just did; this key may still be used
	case flight != nil:
		select {
		case <-flight:
		case <-ctx.Done():
			return key{}, unavailable(ctx.Err())
		}
	}
	return s.settled(kid)
}

// settled answers from what is there, refreshed or not.
func (s *source) settled(kid string) (key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, known := s.set[kid]
	switch {
	case s.age() >= s.cfg.MaxStale:
		return key{}, unavailable(s.failure)
	case known:
		return k, nil
	case s.failure != nil: // the key may be one that we could not learn of
		return key{}, unavailable(s.failure)
	}
	return key{}, UnknownKey
}

func unavailable(cause error) error {
	if cause == nil {
		return Unavailable
	}
	return fmt.Errorf("%w: %w", Unavailable, cause)
}

// age is how old the set is; mu is held. What was never fetched is too old, and
// so is what a clock that stepped back makes look younger than nothing.
func (s *source) age() time.Duration {
	age := s.cfg.Now().Sub(s.fetched)
	if s.fetched.IsZero() || age < 0 {
		return s.cfg.MaxStale
	}
	return age
}

// join returns the refresh under way, or begins one and makes the caller its
// leader, or neither when the last one began less than pause ago; mu is held.
func (s *source) join(pause time.Duration) (flight chan struct{}, lead bool) {
	if s.flight != nil {
		return s.flight, false
	}
	now := s.cfg.Now()
	if since := now.Sub(s.attempted); !s.attempted.IsZero() && since >= 0 && since < pause {
		return nil, false
	}
	s.attempted = now
	s.flight = make(chan struct{})
	return s.flight, true
}

// fly does one refresh and wakes who waits for it. The set's age counts from
// before it was asked for.
func (s *source) fly(ctx context.Context, flight chan struct{}) {
	asked := s.cfg.Now()
	set, err := fetchSet(ctx, s.client, s.issuer)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure = err; err == nil {
		s.set, s.fetched = set, asked
	}
	s.flight = nil
	close(flight)
}
