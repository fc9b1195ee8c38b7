package authority

import (
	"context"
	"crypto/rand"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/principal"
)

// Actor is who asks, with what proves that the call is theirs. Only FromCall and
// FromSession make one; the zero value is nobody and is refused by every verb.
type Actor struct {
	principal.Principal
	spent
	session bool // which proves anew with each verb
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
	return Actor{who, p, false}, err
}

// FromSession makes the actor of a request that a browser sent in a session of
// the console. The session stands where a key stands elsewhere: the first one
// that presents an envelope owns it, so that an envelope without its session
// authorises nothing either. session is a digest of the browser's cookie.
func (a *Authority) FromSession(who principal.Principal, session [32]byte) Actor {
	p := spent{nonceAt: a.Now(), key: canonical.Digest(domainSession, session[:])}
	ref := who.Member()
	p.payer = payerOf("member", ref[:])
	return Actor{who, p, true}
}

const domainSession = "nightwarrant/session/v1"

// operating refuses who is no operator.
func (m Actor) operating() error {
	if !m.Operator() {
		return api.Refuse(api.Forbidden)
	}
	return nil
}

// auditing refuses who is neither operator nor auditor.
func (m Actor) auditing() error {
	if !m.Auditor() {
		return api.Refuse(api.Forbidden)
	}
	return nil
}

// args are the first arguments of every verb that a member's envelope opens.
// What a browser asks for may need several; its session is good for each.
func (m Actor) args(more ...any) []any {
	ref, envelope := m.Member(), m.Principal.Digest()
	if m.session {
		_, _ = rand.Read(m.digest[:]) // never fails (crypto/rand)
	}
	return append([]any{ref[:], envelope[:], m.Expires(), m.key[:], m.nonceAt, m.digest[:]}, more...)
}

// present spends the proof of a reading call.
func (a *Authority) present(ctx context.Context, m Actor) error {
	return a.call(ctx, "present", m.spent, `SELECT verdict FROM nw.present($1, $2, $3, $4, $5)`, m.args()[1:], nil)
}

// Revoke ends the consent of a task: its owner's right, and an operator's. It
// returns when the new epoch is committed.
func (a *Authority) Revoke(ctx context.Context, m Actor, reference string) (api.Epoch, error) {
	return a.revoke(ctx, m, reference, nil)
}

// RevokeShown is Revoke for a task that stands at the activation epoch that was
// shown. At another one it is refused as stale.
func (a *Authority) RevokeShown(ctx context.Context, m Actor, reference string, shown int64) (api.Epoch, error) {
	return a.revoke(ctx, m, reference, &shown)
}

func (a *Authority) revoke(ctx context.Context, m Actor, reference string, shown *int64) (api.Epoch, error) {
	task, err := named(reference)
	if err != nil {
		return api.Epoch{}, err
	}
	epoch := api.Epoch{Task: reference}
	args := m.args(task, shown)
	args = append(args[:1:1], append([]any{m.Operator()}, args[1:]...)...)
	err = a.ends(ctx, "revoke", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.revoke($1, $2, $3, $4, $5, $6, $7, $8, $9)`, args, &epoch.ActivationEpoch)
	return epoch, err
}

// CutOff advances a task's epoch and keeps its consent. Operators only.
func (a *Authority) CutOff(ctx context.Context, m Actor, reference string) (api.Epoch, error) {
	return a.cutOff(ctx, m, reference, nil)
}

// CutOffShown is to CutOff what RevokeShown is to Revoke.
func (a *Authority) CutOffShown(ctx context.Context, m Actor, reference string, shown int64) (api.Epoch, error) {
	return a.cutOff(ctx, m, reference, &shown)
}

func (a *Authority) cutOff(ctx context.Context, m Actor, reference string, shown *int64) (api.Epoch, error) {
	if err := m.operating(); err != nil {
		return api.Epoch{}, err
	}
	task, err := named(reference)
	if err != nil {
		return api.Epoch{}, err
	}
	epoch := api.Epoch{Task: reference}
	err = a.ends(ctx, "cut_off", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.cut_off($1, $2, $3, $4, $5, $6, $7, $8)`, m.args(task, shown), &epoch.ActivationEpoch)
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
	err = a.ends(ctx, "withdraw", m.regardless(), `SELECT verdict, coalesce(epoch, 0) FROM nw.withdraw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		m.args(task, guard[:], action[:], resource[:], key[:]), &epoch.ActivationEpoch)
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
