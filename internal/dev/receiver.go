package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nightwarrant/nightwarrant/internal/webhook"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// Receiver takes what owners must hear, as a platform's own receiver does: only
// what is signed, and each message once. It shows it to nobody who is not at this
// machine.
type Receiver struct {
	secret webhook.Secret
	hear   func(notify.Message)

	mu     sync.Mutex
	seen   map[string]bool
	heard  []notify.Message
	server *http.Server
}

// NewReceiver returns a receiver that is not there yet. hear gets each message
// but probes, one at a time; it may be nil.
func NewReceiver(secret webhook.Secret, hear func(notify.Message)) *Receiver {
	return &Receiver{secret: secret, hear: hear, seen: map[string]bool{}}
}

// Start listens on a loopback address, until Stop.
func (r *Receiver) Start(ctx context.Context, address string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = &http.Server{Handler: webhook.Handler(r.secret, time.Now, r.take), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: 5 * time.Second, MaxHeaderBytes: 16 << 10}
	server := r.server
	go func() { _ = server.Serve(l) }() // until Stop
	return nil
}

// Stop is away until the next Start, and remembers what it has seen.
func (r *Receiver) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.server != nil {
		_ = r.server.Close() // whoever was answered comes again
	}
}

// Heard is every message so far but probes.
func (r *Receiver) Heard() []notify.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]notify.Message(nil), r.heard...)
}

func (r *Receiver) take(id string, body []byte) error {
	var m notify.Message
	if err := json.Unmarshal(body, &m); err != nil || m.Type == notify.TypeProbe {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[id] {
		return nil
	}
	r.seen[id], r.heard = true, append(r.heard, m)
	if r.hear != nil {
		r.hear(m)
	}
	return nil
}
