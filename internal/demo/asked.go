package demo

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/guards/model"
	"github.com/nightwarrant/nightwarrant/internal/modelserver"
	"github.com/nightwarrant/nightwarrant/scheduler/notify"
	"github.com/nightwarrant/nightwarrant/worker"
)

// Approvals is what came of asking the owner.
type Approvals struct {
	Asked     int64 `json:"asked"`
	Approved  int64 `json:"approved"` // and used, once
	Denied    int64 `json:"denied"`
	Notified  int64 `json:"notified"`        // webhooks about cards that arrived
	Coalesced int64 `json:"coalesced_fires"` // while the first card was open
	Workers   int64 `json:"held_workers"`    // meanwhile
	Applied   int64 `json:"applied"`         // changes at the resource
}

// Spend is what the model cost, in minor units.
type Spend struct {
	Currency string `json:"currency"`
	Reserved int64  `json:"reserved"`
	Spent    int64  `json:"spent"`
	Ledger   int64  `json:"member_ledger"` // of the month
	Calls    int64  `json:"calls"`         // that the provider answered
}

// The model of the demo, and what the assistant's task may spend on it.
const (
	modelID      = "small-1"
	modelVersion = "2026-11"
	modelKey     = "model-key" // file of the provider's credential
	currency     = "EUR"
	mostPerCall  = 50
)

func (s *Stack) modelBase() string { return local(s.ports.Models) + "/v1" }
func (s *Stack) mindURI() string   { return local(s.ports.Mind) + "/model" }

// startModels starts the provider in this process.
func (s *Stack) startModels(ctx context.Context) error {
	if !s.mind {
		return nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.ports.Models))
	if err != nil {
		return err
	}
	s.provider = modelserver.New(modelserver.Config{Key: s.passwords[modelKey], Models: []string{modelID}})
	s.providing = &http.Server{Handler: s.provider, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.providing.Serve(l) }()
	return nil
}

// startMind starts the guard in front of it, with its journal of before, or a new one.
func (s *Stack) startMind(ctx context.Context) error {
	if !s.mind {
		return nil
	}
	if _, err := os.Stat(s.path("mind")); errors.Is(err, os.ErrNotExist) {
		if _, err := s.run(ctx, "guard", "init", "--config", s.path("config", "mind.yaml")); err != nil {
			return err
		}
	}
	_, err := s.start("mind", "guard", "--config", s.path("config", "mind.yaml"))
	return err
}

// mindConfig is the file of the guard in front of the model.
func (s *Stack) mindConfig() string {
	return s.whenFIPS(fipsRequired) + `kind: model
uri: ` + s.mindURI() + `
listen: 127.0.0.1:` + port(s.ports.Mind) + `
name: mind
authority: ` + s.Origin() + `
assertion_file: ` + s.path("tokens", "mind") + `
ledger_dir: ` + s.path("mind") + `
base_url: ` + s.modelBase() + `
currency: ` + currency + `
models: [{id: ` + modelID + `, version: "` + modelVersion + `", input_price: 50000, output_price: 150000}]
credential: {header: Authorization, prefix: "Bearer ", file: ` + s.path("config", modelKey) + `}
allow_private: ["127.0.0.1:` + port(s.ports.Models) + `"]
`
}

// mindRegistry is what the operator registers for it.
func (s *Stack) mindRegistry() string {
	if !s.mind {
		return ""
	}
	return strings.NewReplacer("WORKLOADS", local(s.ports.Workloads), "MIND", s.mindURI(), "CURRENCY", currency).Replace(`---
kind: AttestationProfile
name: assistant
issuer: WORKLOADS
subject: system:serviceaccount:jobs:assistant
binding: first_key
max_lifetime_s: 3600
---
kind: AttestationProfile
name: mind-guard
issuer: WORKLOADS
subject: system:serviceaccount:guards:mind
binding: first_key
max_lifetime_s: 3600
---
kind: Guard
name: mind
title: The language model
catalogue: model
uri: MIND
profile: mind-guard
provable: false
max_call_ms: 60000
settle_within_ms: 60000
---
kind: WorkloadRole
name: assistant
client: books
revision: 1
profiles: [assistant]
actions: [{guard: mind, action: chat.complete}, {guard: ledger, action: row.update}]
limits: {max_runtime_s: 3600, max_effects: 10, max_spend: 1000, currency: CURRENCY}
---
kind: Policy
name: spending
revision: 1
dial_max: low
limits: {max_runtime_s: 3600, max_effects: 10, max_consent_days: 30, max_spend: 1000, currency: CURRENCY, member_spend_month: 10000}
`)
}

// mindRequirement names the one model that may be served.
func (s *Stack) mindRequirement() string {
	if !s.mind {
		return ""
	}
	return "models: [" + document.Digest(model.Digest(s.modelBase(), modelID, modelVersion)).String() + "]\n"
}

// tidy is a task above its dial: it asks a model, and then its owner.
func (s *Stack) tidy() string {
	return strings.NewReplacer("PEOPLE", local(s.ports.People), "MEMBER", member, "MODEL", model.URL(s.modelBase(), modelID), "CURRENCY", currency,
		"MOST", fmt.Sprint(mostPerCall)).Replace(`kind: Task
name: tidy
client: books
role: assistant
role_revision: 1
policy: spending
policy_revision: 1
revision: 1
owner: {issuer: PEOPLE, subject: MEMBER}
title: Close dormant accounts
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: Europe/Berlin}
dial: low
grants:
  - {guard: mind, action: chat.complete, resource: "MODEL", max_amount: MOST, currency: CURRENCY}
  - {guard: ledger, action: row.update, resource: "table:accounts"}
limits: {runtime_s: 600, effects: 4, spend: 200, currency: CURRENCY, spend_day: 1000}
when_more_is_needed: wait
consent: {days: 7}
`)
}

// assist is the assistant's task: a model is asked which account is dormant, and its owner whether that one may be closed.
func (c WorkerConfig) assist(ctx context.Context, run *worker.Run) error {
	_, err := run.CallModel(ctx, worker.ModelCall{Key: "think", Guard: c.Mind, Model: c.Model, MaxCost: mostPerCall, Currency: currency, Shown: true,
		Request: map[string]any{"model": modelID, "max_tokens": 32, "temperature": 0.2,
			"messages": []any{map[string]any{"role": "user", "content": "Which account is dormant?"}}}})
	if err != nil {
		return fmt.Errorf("think: %w", err)
	}
	_, err = run.Do(ctx, worker.Effect{Key: "close", Guard: c.Guard, Action: "row.update", Resource: "table:accounts",
		Parameters: map[string]any{"table": "accounts", "key": map[string]any{"name": "dormant"}, "values": map[string]any{"closed": true}}})
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// asked tells of a task that needs more than its dial allows: it waits without a worker, its owner is told, says yes once and then no.
func (t teller) asked(ctx context.Context) error {
	if err := t.pace(ctx, 0); err != nil {
		return err
	}
	task, err := t.Consent(ctx, "tidy.yaml")
	if err != nil {
		return err
	}
	if _, err := t.start("assistant-1", "demo-worker", "--config", t.path("config", "assistant-1.json")); err != nil {
		return err
	}
	t.say("The member also said yes to an assistant: it may ask a model for at most EUR 0.50 a call, and must ask its owner before it changes an account.")
	yes, err := t.card(ctx, 3)
	if err != nil {
		return err
	}
	if err := t.decide(ctx, "approve", yes); err != nil {
		return err
	}
	t.say("The assistant asked. Its run waits without a worker (%d fires went into it), the owner was told by a signed webhook, read the exact change, and said yes to it, once.", t.approvals.Coalesced)
	if err := t.ended(ctx, yes.Run, "succeeded"); err != nil {
		return err
	}
	no, err := t.card(ctx, 0)
	if err != nil {
		return err
	}
	if err := t.decide(ctx, "deny", no); err != nil {
		return err
	}
	if err := t.ended(ctx, no.Run, "failed"); err != nil {
		return err
	}
	t.say("The next run asked for the same again: a yes is for one effect. The owner said no, and that run does not count as a success.")
	if _, err := t.as(ctx, "member", "task", "revoke", task); err != nil {
		return err
	}
	t.children["assistant-1"].stop()
	return t.countAsked(ctx)
}

// card waits for an open card of which its owner was told, and whose run has taken in so many fires.
func (t teller) card(ctx context.Context, fires int64) (d api.OwnerDecision, err error) {
	err = until(ctx, 60*time.Second, "a card", func() (bool, error) {
		text, err := t.as(ctx, "member", "decision", "list", "--json")
		if err != nil {
			return false, err
		}
		var page api.Page[api.OwnerDecision]
		if err := json.Unmarshal([]byte(text), &page); err != nil {
			return false, err
		}
		for _, d = range page.Items {
			if d.State == "pending" {
				return t.waits(ctx, d, fires)
			}
		}
		return false, nil
	})
	return d, err
}

func (t teller) waits(ctx context.Context, d api.OwnerDecision, fires int64) (bool, error) {
	var coalesced, held int64
	err := t.one(ctx, `SELECT count(*) FILTER (WHERE s.outcome = 'coalesced'), max((r.holder IS NOT NULL)::int) FROM nw.runs r JOIN nw.slots s ON s.run_id = r.id
		JOIN nw.decisions d ON d.run_id = r.id WHERE encode(d.ref, 'hex') = $1`, []any{hexRef(d.Decision)}, &coalesced, &held)
	told := slices.ContainsFunc(t.Heard(), func(m notify.Message) bool { return m.Data.Decision == d.Decision })
	if err != nil || coalesced < fires || !told {
		return false, err
	}
	t.approvals.Coalesced, t.approvals.Workers = max(t.approvals.Coalesced, coalesced), max(t.approvals.Workers, held)
	return true, nil
}

func (t teller) decide(ctx context.Context, answer string, d api.OwnerDecision) error {
	_, err := t.as(ctx, "member", "decision", answer, d.Decision, "--digest", d.Digest)
	return err
}

func (t teller) ended(ctx context.Context, run, want string) error {
	return until(ctx, 45*time.Second, "the end of a run that had asked", func() (bool, error) {
		var state string
		err := t.one(ctx, `SELECT state FROM nw.runs WHERE encode(ref, 'hex') = $1`, []any{hexRef(run)}, &state)
		return state == want, err
	})
}

func (t teller) countAsked(ctx context.Context) error {
	a, s := t.approvals, t.spend
	err := t.one(ctx, `SELECT count(*), count(*) FILTER (WHERE state = 'used'), count(*) FILTER (WHERE state = 'denied') FROM nw.decisions`, nil, &a.Asked, &a.Approved, &a.Denied)
	if err != nil {
		return err
	}
	for _, m := range t.Heard() {
		if m.Data.Decision != "" {
			a.Notified++
		}
	}
	err = t.execute(ctx, t.resource(), func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT sum(changes) FROM public.accounts`).Scan(&a.Applied)
	})
	if err != nil {
		return err
	}
	s.Currency, s.Calls = currency, int64(len(t.provider.Calls()))
	err = t.one(ctx, `SELECT sum(amount), sum(spent), (SELECT monthly FROM nw.ledgers WHERE octet_length(holder) = 32 AND unit <> '') FROM nw.effects WHERE amount > 0 AND state = 'committed'`,
		nil, &s.Reserved, &s.Spent, &s.Ledger)
	t.say("Asked %d times: %d yes, %d no, %d change made. %d model calls cost %d of %d cents that were reserved.", a.Asked, a.Approved, a.Denied, a.Applied, s.Calls, s.Spent, s.Reserved)
	return err
}

func (a *Approvals) sound() bool {
	return a.Approved == 1 && a.Denied == 1 && a.Applied == 1 && a.Asked >= 2 && a.Notified >= 2 && a.Coalesced >= 3 && a.Workers == 0
}

func (s *Spend) sound() bool {
	return s.Calls >= 2 && s.Spent > 0 && s.Spent <= s.Reserved && s.Ledger == s.Spent
}

// hexRef is an opaque reference as the database prints it.
func hexRef(ref string) string {
	b, err := base64.RawURLEncoding.DecodeString(ref)
	if err != nil {
		return ""
	}
	return hex.EncodeToString(b)
}
