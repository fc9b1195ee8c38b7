package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/nightwarrant/nightwarrant/internal/dev"
	"github.com/nightwarrant/nightwarrant/internal/webhook"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
)

// hookSecret is the file of the secret that the schedulers share with whoever tells owners.
const hookSecret = "webhook"

func newHookSecret() string {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails (crypto/rand)
	return "whsec_" + base64.StdEncoding.EncodeToString(key[:])
}

// approvals goes into the scheduler's file.
func (s *Stack) approvals() string {
	return "approvals:\n  webhook: {url: " + local(s.ports.Hook) + "/hook, secret_file: " + s.path("config", hookSecret) + "}\n  link: " + s.Origin() + "\n"
}

// StartHook starts the receiver of what owners must hear, in this process, or starts it again.
func (s *Stack) StartHook(ctx context.Context) error {
	if s.hook == nil {
		secret, err := webhook.ParseSecret(s.passwords[hookSecret])
		if err != nil {
			return err
		}
		s.hook = dev.NewReceiver(secret, s.hear)
	}
	return s.hook.Start(ctx, fmt.Sprintf("127.0.0.1:%d", s.ports.Hook))
}

// StopHook is a receiver that is gone.
func (s *Stack) StopHook() {
	if s.hook != nil {
		s.hook.Stop()
	}
}

// Heard is what owners were told so far.
func (s *Stack) Heard() []notify.Message { return s.hook.Heard() }
