// nightwarrant-keyhost holds a PKCS#11 token for the authority: the only program
// here with cgo, because it loads a vendor's library. It answers over a Unix
// socket to processes of the users that it is told, and ends when the token is
// suspect; whoever supervises it starts it anew, which verifies everything again.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/config"
	"github.com/nightwarrant/nightwarrant/internal/fips"
	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// Exit codes: 78 is for a person to mend, 70 for a supervisor to start again.
const (
	exitOK            = 0
	exitUsage         = 64
	exitSuspect       = 70
	exitMisconfigured = 78
)

// Config is the file of the key host.
type Config struct {
	config.FIPS
	Module   string        `yaml:"module"` // the PKCS#11 library
	Serial   string        `yaml:"serial"` // of the token; slots and labels name nothing
	Keys     []Pair        `yaml:"keys"`   // that are served, and nothing else
	PINFile  string        `yaml:"pin_file"`
	PIN      config.Secret `yaml:"-"`
	Socket   string        `yaml:"socket"`
	Users    []string      `yaml:"users"` // whose processes may ask
	uids     []int
	Sessions int64 `yaml:"sessions"` // at most 16
}

// Pair names the keys of one generation. CKA_IDs are hexadecimal.
type Pair struct {
	Signing string `yaml:"signing"`
	Nonce   string `yaml:"nonce"`
}

// maxPairs leaves room for the previous generation, the current and the next.
const maxPairs = 4

// Check implements config.Document.
func (c *Config) Check(func(string) string) (err error) {
	for key, value := range map[string]string{"module": c.Module, "pin_file": c.PINFile, "socket": c.Socket} {
		if !filepath.IsAbs(value) {
			return config.Wrong(key, "must be an absolute path")
		}
	}
	if err := c.checkModule(); err != nil {
		return err
	}
	if err := c.checkKeys(); err != nil {
		return err
	}
	if c.Sessions == 0 {
		c.Sessions = 4
	}
	switch {
	case c.Serial == "":
		return config.Wrong("serial", "is missing: a token is bound by its serial number")
	case len(c.Users) == 0:
		return config.Wrong("users", "is missing: it lists the users whose processes may ask")
	case c.Sessions < 1 || c.Sessions > maxSessions:
		return config.Wrong("sessions", "must be between 1 and %d", maxSessions)
	}
	for _, name := range c.Users {
		uid, err := config.UserID("users", name)
		if err != nil {
			return err
		}
		c.uids = append(c.uids, uid)
	}
	if c.PIN, err = config.ReadSecret(c.PINFile); err != nil {
		return config.Wrong("pin_file", "%s", err)
	}
	return nil
}

// checkModule holds what verifies and hashes here to a validated snapshot of the Go module, where FIPS is required.
// The token is another module, which a record of provenance is about.
func (c *Config) checkModule() error {
	if !c.FIPSRequired() {
		if c.Mode != "" {
			return config.Wrong("fips", "must be required, or not be there")
		}
		return nil
	}
	m, err := fips.Running()
	if err != nil {
		return config.Wrong("fips", "is required, and this program cannot tell what it is: %s", err)
	}
	if refusal := m.Refusal(); refusal != "" {
		return config.Wrong("fips", "is required, and this program does not compute in a validated module: %s", refusal)
	}
	return nil
}

func (c *Config) checkKeys() error {
	if len(c.Keys) == 0 || len(c.Keys) > maxPairs {
		return config.Wrong("keys", "must list between 1 and %d pairs, each with signing and nonce", maxPairs)
	}
	seen := map[string]bool{}
	for i := range c.Keys {
		for _, id := range []*string{&c.Keys[i].Signing, &c.Keys[i].Nonce} {
			raw, err := hex.DecodeString(*id)
			if err != nil || len(raw) == 0 {
				return config.Wrong("keys", "must name each key by its CKA_ID in hexadecimal")
			}
			*id = hex.EncodeToString(raw)
		}
		if seen[c.Keys[i].Signing] {
			return config.Wrong("keys", "name the signing key %s twice", c.Keys[i].Signing)
		}
		seen[c.Keys[i].Signing] = true
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stderr io.Writer) int {
	if len(args) != 2 || args[0] != "--config" {
		_, _ = fmt.Fprintln(stderr, "nightwarrant-keyhost --config FILE: hold a PKCS#11 token for the authority")
		return exitUsage
	}
	c := &Config{}
	if err := config.Load(args[1], c, os.Getenv); err != nil {
		_, _ = fmt.Fprintln(stderr, "nightwarrant-keyhost:", err)
		return exitMisconfigured
	}
	err := serve(ctx, args[1], c, slog.New(slog.NewJSONHandler(stderr, nil)))
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, "nightwarrant-keyhost:", err)
	if e, ok := errors.AsType[*keyhost.Error](err); ok && (e.Code == keyhost.TokenUnavailable || e.Code == keyhost.KeyChallengeTimeout) {
		return exitSuspect
	}
	return exitMisconfigured // a wrong PIN, above all, is not tried again
}

// How long a token may take to be opened. A library whose call does not come back cannot be told to stop.
const opening = 30 * time.Second

// serve verifies the token and its keys, and only then listens.
func serve(ctx context.Context, file string, c *Config, log *slog.Logger) error {
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	var t *token
	err := inTime(opening, func() (err error) {
		t, err = open(c)
		return err
	})
	if err != nil {
		return err
	}
	s := &keyhost.Server{Keys: t, UIDs: c.uids, Log: log,
		Purposes: []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge}}
	ctx, stop := context.WithCancel(ctx)
	var reloading sync.WaitGroup
	reloading.Go(func() { reload(ctx, again, file, c, t, s) })
	served := make(chan error, 1)
	go func() {
		served <- s.Serve(ctx, func() (*net.UnixListener, error) {
			l, err := listen(c.Socket)
			if err == nil {
				log.LogAttrs(ctx, slog.LevelInfo, "serving", slog.String("socket", c.Socket), slog.String("token", c.Serial), slog.Int("pairs", len(c.Keys)))
			}
			return l, err
		})
	}()
	select {
	case err = <-served:
	case err = <-t.lost:
	}
	stop()
	if err != nil {
		return err // nothing waits for a library that may be stuck
	}
	return inTime(overrun, func() error {
		reloading.Wait()
		t.close()
		return nil
	})
}

// inTime ends the wait for a library, not the library.
func inTime(most time.Duration, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-time.After(most):
		return refuse(keyhost.KeyChallengeTimeout, "the token does not answer")
	}
}

// reload reads the file again at each SIGHUP and serves the keys that it lists then, once they are found to be as
// they must be and have signed. Anything else of the file needs a new start.
func reload(ctx context.Context, again <-chan os.Signal, file string, c *Config, t *token, s *keyhost.Server) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		before := t.served.Load()
		next := &Config{}
		err := config.Load(file, next, os.Getenv)
		if err == nil && (next.Module != c.Module || next.Serial != c.Serial || next.Socket != c.Socket || !slices.Equal(next.uids, c.uids)) {
			err = config.Wrong("keys", "are all that a running key host reads anew: start it again")
		}
		if err == nil {
			err = t.serve(ctx, next.Keys)
		}
		if err == nil {
			err = s.Challenge(ctx)
		}
		if err != nil {
			t.served.Store(before)
			if e, ok := errors.AsType[*keyhost.Error](err); ok && (e.Code == keyhost.TokenUnavailable || e.Code == keyhost.TokenIdentityMismatch) {
				t.lose(e)
			}
			s.Log.LogAttrs(ctx, slog.LevelError, "the keys are those of before", slog.String("why", err.Error()))
			continue
		}
		s.Log.LogAttrs(ctx, slog.LevelInfo, "serving", slog.String("token", c.Serial), slog.Int("pairs", len(next.Keys)))
	}
}

// listen takes the place of a socket that nobody answers any more.
func listen(path string) (*net.UnixListener, error) {
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil { //nolint:noctx // it answers or it does not
		return nil, errors.Join(errors.New("another key host has this socket"), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// The authority may be another user: who may ask is decided by whose process it is.
	if err := os.Chmod(path, 0o666); err != nil { //nolint:gosec // peer credentials decide
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
