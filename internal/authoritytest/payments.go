package authoritytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

// Names that the payments' documents use.
const (
	PaymentsURI   = "http://127.0.0.7:9002/payments"
	PaymentsName  = "payments"
	PaymentsClaim = "system:serviceaccount:guards:payments"
	Refunds       = "https://api.payments.example/refunds"
)

// Payments enters, beside the standard registry, a guard before an API that
// moves money, with operations that an operator wrote. windows are more limits of
// its policy, such as "member_spend_day: 100".
func (h *House) Payments(windows string) {
	h.T.Helper()
	h.Apply(strings.NewReplacer("WORKLOADS", h.Workloads.URL, "WINDOWS", windows).Replace(payments))
	h.allGood()
}

const payments = `
kind: AttestationProfile
name: payments-guard
issuer: WORKLOADS
subject: ` + PaymentsClaim + `
binding: first_key
max_lifetime_s: 3600
---
kind: Guard
name: payments
title: The payment provider
catalogue: http
uri: ` + PaymentsURI + `
profile: payments-guard
provable: false
max_call_ms: 5000
operations:
  - action: refund.create
    title: Pay a customer back
    resource: ` + Refunds + `
    parameters: {type: object, additionalProperties: false, required: [payment, amount], properties: {payment: {type: string, pattern: "^[a-z0-9]{1,16}$"}, amount: {type: integer}, note: {type: string, maxLength: 64}}}
    key: [payment]
    amount: amount
    currency: EUR
  - action: refund.abroad
    title: Pay a customer back in dollars
    resource: ` + Refunds + `/usd
    parameters: {type: object, additionalProperties: false, required: [payment, amount], properties: {payment: {type: string}, amount: {type: integer}}}
    amount: amount
    currency: USD
  - action: payment.cancel
    title: Cancel a payment
    resource: https://api.payments.example/payments/{payment}
    parameters: {type: object, additionalProperties: false, required: [payment], properties: {payment: {type: string}}}
---
kind: WorkloadRole
name: refunder
client: books
revision: 1
profiles: [bookkeeper]
actions:
  - {guard: payments, action: refund.create}
  - {guard: payments, action: refund.abroad}
  - {guard: payments, action: payment.cancel}
limits: {max_runtime_s: 3600, max_effects: 1000, max_steps: 10000, max_spend: 1000000000000, currency: EUR}
---
kind: Policy
name: spending
revision: 1
dial_max: high
limits: {max_runtime_s: 3600, max_effects: 1000, max_steps: 10000, max_spend: 1000000000000, currency: EUR, max_consent_days: 90, WINDOWS}
`

// RefundTask is a task that pays back, by itself as far as its limits let it:
// they stand here as in its document. Keys are pre-approved.
func (h *House) RefundTask(name, limits string, keys ...string) string {
	return strings.NewReplacer("NAME", name, "PLATFORM", h.Platform.URL, "LIMITS", limits, "KEYS", strings.Join(keys, ", ")).Replace(`
kind: Task
name: NAME
client: books
role: refunder
role_revision: 1
policy: spending
policy_revision: 1
revision: 1
owner: {issuer: PLATFORM, subject: member-1}
title: Pay back what was returned
schedule: {every_s: 1, anchor: "2026-01-01T00:00:00Z", zone: UTC}
dial: high
grants:
  - {guard: payments, action: refund.create, resource: "` + Refunds + `", max_amount: 1000000000000, currency: EUR, pre_approved: [KEYS]}
  - {guard: payments, action: payment.cancel, resource: "https://api.payments.example/payments/p1"}
limits: {runtime_s: 600, currency: EUR, LIMITS}
consent: {days: 30}
`)
}

// Refund is the effect of paying an amount back.
func Refund(payment string, amount int64) api.Detail {
	d := api.Detail{Type: api.DetailTypeEffect, Actions: []string{"refund.create"}, Locations: []string{PaymentsURI}, Identifier: Refunds,
		Parameters: json.RawMessage(fmt.Sprintf(`{"amount":%d,"payment":%q}`, amount, payment)), Amount: amount}
	if amount > 0 {
		d.Currency = "EUR"
	}
	return d
}

// MintDetail is the form of a mint of one effect at whatever guard it names.
func (w *Holder) MintDetail(key string, d api.Detail) url.Values {
	form := MintDetails(w.Token, key, []api.Detail{d})
	form.Set("resource", d.Locations[0])
	return form
}

// Ask sends a mint of one effect.
func (w *Holder) Ask(key string, d api.Detail) Answer {
	w.h.T.Helper()
	return w.h.Send(w.h.Form(w.Key, w.MintDetail(key, d)))
}

// Refund mints a refund whose payment has the name of its key.
func (w *Holder) Refund(key string, amount int64) Answer {
	w.h.T.Helper()
	return w.Ask(key, Refund(key, amount))
}

// Refunded mints a refund and returns the answer.
func (w *Holder) Refunded(key string, amount int64) (out api.TokenResponse) {
	w.h.T.Helper()
	w.h.Into(w.Refund(key, amount), &out)
	return out
}

// PaymentsGuard boots the guard before the payments with a new key.
func (h *House) PaymentsGuard() *Guard {
	h.T.Helper()
	return h.component(PaymentsName, PaymentsClaim)
}

// Take admits a minted effect, which its own capability describes, for an
// attempt.
func (g *Guard) Take(w *Holder, minted api.TokenResponse) (attempt string) {
	g.h.T.Helper()
	attempt, taken := g.TryTake(w, minted)
	require.True(g.h.T, taken)
	return attempt
}

// TryTake is Take where it may be too late.
func (g *Guard) TryTake(w *Holder, minted api.TokenResponse) (attempt string, taken bool) {
	g.h.T.Helper()
	d := minted.Details[0]
	at, err := url.Parse(d.Locations[0] + "/operations/" + d.Actions[0])
	require.NoError(g.h.T, err)
	proof, err := capability.NewProof(w.Key, capability.ProofParams{Method: "POST", URL: at.String(), Nonce: minted.GuardNonce, AccessToken: capability.Token(minted.AccessToken), Now: time.Now()})
	require.NoError(g.h.T, err)
	ask := api.AdmitRequest{Attempt: NewAttempt(), Capability: minted.AccessToken, Proof: proof, Method: "POST", Path: at.Path, Effect: d}
	a := g.Admit(ask)
	for a.Status == http.StatusServiceUnavailable { // nothing happened
		a = g.Admit(ask)
	}
	return ask.Attempt, a.Status == http.StatusOK
}

// Report records an outcome with what else the guard says of it.
func (g *Guard) Report(r api.SettleEffectRequest) Answer {
	g.h.T.Helper()
	return g.h.Send(g.h.Bearing(g.Key, g.Token, "POST", api.PathSettle, r))
}

// Done admits an effect and settles it as committed for what it cost.
func (g *Guard) Done(w *Holder, minted api.TokenResponse, spent int64) {
	g.h.T.Helper()
	g.h.Into(g.Report(api.SettleEffectRequest{Effect: minted.Effect, Attempt: g.Take(w, minted), Outcome: api.Committed, Spent: &spent}), nil)
}
