package authority

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/principal"
	"github.com/nightwarrant/nightwarrant/scheduler/timetable"
)

// Actor is who asks, with what proves that the call is theirs. Only FromCall and
// FromSession make one; the zero value is nobody and is refused by every verb.
type Actor struct {
	principal.Principal
	spent
}

// FromCall makes the actor of a call of the API: from its envelope, and from a
// proof of the key that owns the envelope. An envelope alone authorises nothing (A3).
func (a *Authority) FromCall(ctx context.Context, c Call, envelope capability.Token) (Actor, error) {
	who, err := a.Envelopes.FromEnvelope(ctx, envelope.Reveal())
	if err != nil {
		return Actor{}, refusalOf(err)
	}
	var holder capability.Thumbprint
	if named := who.JKT(); named != nil {
		holder = *named
	} else if p, err := capability.ParseProof(c.Proof); err == nil {
		holder = p.Key // the first key that uses an envelope owns it; the verb decides
	}
	p, err := a.prove(c, envelope, holder)
	ref := who.Member()
	p.payer = payerOf("member", ref[:])
	return Actor{who, p}, err
}

// FromSession makes the actor of a request that a browser sent in a session of
// the console. The session stands where a key stands elsewhere: the first one
// that presents an envelope owns it, so that an envelope without its session
// authorises nothing either. session is a digest of the browser's cookie.
func (a *Authority) FromSession(who principal.Principal, session [32]byte) Actor {
	p := spent{nonceAt: a.Now(), key: canonical.Digest(domainSession, session[:])}
	_, _ = rand.Read(p.digest[:]) // never fails (crypto/rand)
	ref := who.Member()
	p.payer = payerOf("member", ref[:])
	return Actor{who, p}
}

const domainSession = "nightwarrant/session/v1"

// operating refuses who is no operator.
func (m Actor) operating() error {
	if !m.Operator() {
		return api.Refuse(api.Forbidden)
	}
	return nil
}

// args are the first arguments of every verb that a member's envelope opens.
func (m Actor) args(more ...any) []any {
	ref, envelope := m.Member(), m.Principal.Digest()
	return append([]any{ref[:], envelope[:], m.Expires(), m.key[:], m.nonceAt, m.digest[:]}, more...)
}

// present spends the proof of a reading call.
func (a *Authority) present(ctx context.Context, m Actor) error {
	return a.call(ctx, "present", m.spent, `SELECT verdict FROM nw.present($1, $2, $3, $4, $5)`, m.args()[1:], nil)
}

// Offers lists a member's offers; one only when reference is given.
func (a *Authority) Offers(ctx context.Context, m Actor, reference string) ([]api.Offer, error) {
	var one []byte
	if reference != "" {
		var ok bool
		if one, ok = decode(reference, 16); !ok {
			return nil, api.Refuse(api.NotFound)
		}
	}
	if _, err := a.standing(m.spent); err != nil { // before anything is asked
		return nil, err
	}
	rows, err := a.offers(ctx, m.Member(), one)
	if err != nil {
		return nil, err
	}
	if one != nil && len(rows) == 0 {
		return nil, api.Refuse(api.NotFound)
	}
	if err := a.present(ctx, m); err != nil { // before anything is told
		return nil, err
	}
	out := make([]api.Offer, len(rows))
	for i, r := range rows {
		out[i] = r.view(a.Now())
	}
	return out, nil
}

func (r offerRow) view(now time.Time) api.Offer {
	o := api.Offer{Offer: encode(r.ref), Task: encode(r.task), Digest: encode(r.digest), State: r.state, ExpiresAt: r.expires.UTC(), Document: json.RawMessage(r.body)}
	consent, err := document.ParseConsent(r.body)
	if err != nil {
		return o
	}
	if s, err := timetable.Parse(consent.Schedule); err == nil {
		for at := later(now, consent.NotBefore.Time()); len(o.NextFires) < 3; {
			next, ok := s.Next(at)
			if !ok || next.After(consent.Expires.Time()) {
				break
			}
			o.NextFires = append(o.NextFires, next)
			at = next
		}
	}
	return o
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// terms are a consent document's lines as the database keeps them. They are
// derived from the very document whose digest the yes carries.
type terms struct {
	Dial       int16   `json:"dial"`
	RunLimitMS int64   `json:"run_limit_ms"`
	MaxEffects int64   `json:"max_effects"`
	MaxSteps   int64   `json:"max_steps"`
	MaxRepeats int64   `json:"max_repeats"`
	MaxSpend   int64   `json:"max_spend"`
	Currency   *string `json:"currency"` // hex, of its digest

	EffectsDay       int64 `json:"effects_day"`
	EffectsMonth     int64 `json:"effects_month"`
	SpendDay         int64 `json:"spend_day"`
	SpendMonth       int64 `json:"spend_month"`
	MemberSpendDay   int64 `json:"member_spend_day"`
	MemberSpendMonth int64 `json:"member_spend_month"`

	Silence   string      `json:"silence"`
	WindowMS  int64       `json:"window_ms"`
	NotBefore time.Time   `json:"not_before"`
	ExpiresAt time.Time   `json:"expires_at"`
	FirstAt   time.Time   `json:"first_at"`
	Zone      string      `json:"zone"`
	Grants    []grantLine `json:"grants"`
}

type grantLine struct {
	Guard     string  `json:"guard"` // hex, like the digests below
	Action    string  `json:"action"`
	Resource  string  `json:"resource"`
	Risk      int16   `json:"risk"`
	MaxAmount int64   `json:"max_amount"`
	Currency  *string `json:"currency"`

	Keys []string `json:"keys,omitempty"` // pre-approved
}

func termsOf(c document.Consent, now time.Time) (terms, error) {
	s, err := timetable.Parse(c.Schedule)
	if err != nil {
		return terms{}, fmt.Errorf("a stored schedule does not parse: %w", err)
	}
	first, ok := s.Next(later(now, c.NotBefore.Time()).Add(-time.Second))
	if !ok {
		return terms{}, api.Refusef(api.OfferEnded, "This schedule never fires again.")
	}
	zone := timetable.ZoneFingerprint(s.Zone(), first)
	t := terms{Dial: int16(c.Dial), RunLimitMS: c.Limits.RuntimeS * 1000, MaxEffects: c.Limits.Effects, MaxSteps: c.Limits.Steps, MaxRepeats: c.Limits.Repeats,
		MaxSpend: c.Limits.Spend, Currency: hexCurrency(c.Limits.Currency), EffectsDay: c.Limits.EffectsDay, EffectsMonth: c.Limits.EffectsMonth,
		SpendDay: c.Limits.SpendDay, SpendMonth: c.Limits.SpendMonth, MemberSpendDay: c.MemberSpendDay, MemberSpendMonth: c.MemberSpendMonth, Silence: c.WhenMoreIsNeeded,
		WindowMS: c.DecisionWindowS * 1000, NotBefore: c.NotBefore.Time(), ExpiresAt: c.Expires.Time(),
		FirstAt: first, Zone: hexOf(zone[:])}
	for _, g := range c.Grants {
		t.Grants = append(t.Grants, grantOf(g))
	}
	return t, nil
}

func grantOf(g document.ConsentGrant) grantLine {
	guard, action, resource := nameDigest(g.Guard), actionDigest(g.Action), resourceDigest(g.Resource)
	line := grantLine{Guard: hexOf(guard[:]), Action: hexOf(action[:]), Resource: hexOf(resource[:]), Risk: int16(g.Risk), MaxAmount: g.MaxAmount,
		Currency: hexCurrency(g.Currency)}
	for _, key := range g.PreApproved {
		d := canonical.Digest(canonical.DomainApproved, key)
		line.Keys = append(line.Keys, hexOf(d[:]))
	}
	return line
}

func hexCurrency(currency string) *string {
	d := currencyDigest(currency)
	if d == nil {
		return nil
	}
	text := hexOf(d[:])
	return &text
}

// GiveConsent records a member's yes to the offer whose digest it carries (A1).
func (a *Authority) GiveConsent(ctx context.Context, m Actor, reference string, answer api.Answer) (api.Consent, error) {
	offer, digest, err := answering(reference, answer, api.OfferChanged)
	if err != nil {
		return api.Consent{}, err
	}
	if err := a.refuseEarly(); err != nil {
		return api.Consent{}, err
	}
	if _, err := a.standing(m.spent); err != nil {
		return api.Consent{}, err
	}
	rows, err := a.offers(ctx, m.Member(), offer)
	if err != nil {
		return api.Consent{}, err
	}
	if len(rows) == 0 {
		return api.Consent{}, api.Refuse(api.NotFound)
	}
	consent, err := document.ParseConsent(rows[0].body)
	if err != nil {
		return api.Consent{}, fmt.Errorf("a stored consent document does not parse: %w", err)
	}
	now, err := a.databaseTime(ctx)
	if err != nil {
		return api.Consent{}, err
	}
	t, err := termsOf(consent, now)
	if err != nil {
		return api.Consent{}, err
	}
	ref := newReference()
	given, err := a.giveConsent(ctx, m, offer, digest, ref, t)
	if err != nil {
		return api.Consent{}, err
	}
	given.Consent, given.Task, given.Digest = encode(ref[:]), encode(rows[0].task), answer.Digest
	return given, nil
}

// Decline answers an offer with no.
func (a *Authority) Decline(ctx context.Context, m Actor, reference string, answer api.Answer) error {
	offer, digest, err := answering(reference, answer, api.OfferChanged)
	if err != nil {
		return err
	}
	return a.call(ctx, "decline", m.spent, `SELECT verdict FROM nw.decline($1, $2, $3, $4, $5, $6, $7, $8)`, m.args(offer, digest), nil)
}

// answering reads a person's answer to something that was shown, by its digest.
func answering(reference string, answer api.Answer, changed api.Code) (thing, digest []byte, err error) {
	var ok bool
	if thing, ok = decode(reference, 16); !ok {
		return nil, nil, api.Refuse(api.NotFound)
	}
	if digest, ok = decode(answer.Digest, 32); !ok {
		return nil, nil, api.Refuse(changed)
	}
	return thing, digest, nil
}

// Revoke ends the consent of a task: its owner's right, and an operator's. It
// returns when the new epoch is committed.
func (a *Authority) Revoke(ctx context.Context, m Actor, reference string) (api.Epoch, error) {
	task, err := named(reference)
	if err != nil {
		return api.Epoch{}, err
	}
	epoch := api.Epoch{Task: reference}
	args := m.args(task)
	args = append(args[:1:1], append([]any{m.Operator()}, args[1:]...)...)
	err = a.call(ctx, "revoke", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.revoke($1, $2, $3, $4, $5, $6, $7, $8)`, args, nil, &epoch.ActivationEpoch)
	return epoch, err
}

// CutOff advances a task's epoch and keeps its consent. Operators only.
func (a *Authority) CutOff(ctx context.Context, m Actor, reference string) (api.Epoch, error) {
	if err := m.operating(); err != nil {
		return api.Epoch{}, err
	}
	task, err := named(reference)
	if err != nil {
		return api.Epoch{}, err
	}
	epoch := api.Epoch{Task: reference}
	err = a.call(ctx, "cut_off", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.cut_off($1, $2, $3, $4, $5, $6, $7)`, m.args(task), nil, &epoch.ActivationEpoch)
	return epoch, err
}

// Withdraw takes a pre-approved key out of a task's consent (B5). Operators only.
func (a *Authority) Withdraw(ctx context.Context, m Actor, r api.WithdrawRequest) (api.Epoch, error) {
	if err := m.operating(); err != nil {
		return api.Epoch{}, err
	}
	task, err := named(r.Task)
	if err != nil {
		return api.Epoch{}, err
	}
	text, err := canonical.Canonicalize(r.Key)
	if err != nil {
		return api.Epoch{}, api.Refusef(api.InvalidRequest, "key must be the pre-approved object, as the consent shows it.")
	}
	guard, action, resource, key := nameDigest(r.Guard), actionDigest(r.Action), resourceDigest(r.Resource), canonical.Digest(canonical.DomainApproved, text)
	epoch := api.Epoch{Task: r.Task}
	err = a.call(ctx, "withdraw", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.withdraw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		m.args(task, guard[:], action[:], resource[:], key[:]), nil, &epoch.ActivationEpoch)
	return epoch, err
}

// named is the reference in a request's path or body. Nobody has another one.
func named(reference string) ([]byte, error) {
	ref, ok := decode(reference, 16)
	if !ok {
		return nil, api.Refuse(api.NotFound)
	}
	return ref, nil
}

// Tasks lists a member's tasks, newest first, at most 100.
func (a *Authority) Tasks(ctx context.Context, m Actor) ([]api.Task, error) {
	if err := a.present(ctx, m); err != nil {
		return nil, err
	}
	return a.tasks(ctx, m.Member(), false)
}

// maxRuns bounds a page of runs.
const maxRuns = 100

// Runs lists a member's runs, newest first; of one task when it is given.
// cursor is what the page before gave.
func (a *Authority) Runs(ctx context.Context, m Actor, task, cursor string) (api.Page[api.Run], error) {
	var none api.Page[api.Run]
	var one []byte
	if task != "" {
		var ok bool
		if one, ok = decode(task, 16); !ok {
			return none, api.Refuse(api.NotFound)
		}
	}
	before, ok := openCursor(cursor)
	if !ok {
		return none, api.Refusef(api.InvalidRequest, "The cursor is not one that a page before has given.")
	}
	if err := a.present(ctx, m); err != nil {
		return none, err
	}
	return a.runs(ctx, m.Member(), one, before, maxRuns)
}

// Ambiguous lists a member's ambiguous effects with what is known of each.
func (a *Authority) Ambiguous(ctx context.Context, m Actor) ([]api.AmbiguousEffect, error) {
	if err := a.present(ctx, m); err != nil {
		return nil, err
	}
	return a.ambiguous(ctx, m.Member())
}

// RecordFinding keeps what the owner found out about an ambiguous effect.
func (a *Authority) RecordFinding(ctx context.Context, m Actor, f api.Finding) error {
	effect, err := named(f.Effect)
	if err != nil {
		return err
	}
	if f.Finding != "happened" && f.Finding != "did_not" && f.Finding != "unknown" {
		return api.Refusef(api.InvalidRequest, "finding must be happened, did_not or unknown.")
	}
	return a.call(ctx, "finding", m.spent, `SELECT verdict FROM nw.record_finding($1, $2, $3, $4, $5, $6, $7, $8)`, m.args(effect, f.Finding), nil)
}

// taskName is what a task's name digest covers: names are unique within a client.
func taskName(client, task string) [32]byte {
	return canonical.Digest(canonical.DomainName, []byte(client), []byte(task))
}
