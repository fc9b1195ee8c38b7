package authority

import (
	"context"
	"encoding/hex"
	"math"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
)

// Claim gives a run to the key that proves itself, for a workload that one of
// the run's role's profiles accepts (P7, P8).
func (a *Authority) Claim(ctx context.Context, c Call, reference, client string, assertion ClientAssertion) (api.TokenResponse, error) {
	p, err := a.prove(c, "", capability.Thumbprint{})
	if err != nil {
		return api.TokenResponse{}, err
	}
	run, ok := decode(reference, 16)
	if !ok {
		return api.TokenResponse{}, api.Refuse(api.UnknownRun)
	}
	by, _, err := a.identify(ctx, assertion, p.key)
	if err != nil {
		return api.TokenResponse{}, err
	}
	if err := a.refuseEarly(); err != nil {
		return api.TokenResponse{}, err
	}
	var named *[32]byte
	if client != "" {
		d := nameDigest(client)
		named = &d
	}
	h := a.header("", "", p.key)
	row, err := a.claim(ctx, run, named, by, p, h.Digest())
	if err != nil {
		return api.TokenResponse{}, err
	}
	return a.runCapability(h, row)
}

// Renew extends a lease and takes the run over a reopening (P23). Progress may
// only lower what is left.
func (a *Authority) Renew(ctx context.Context, c Call, token capability.Token, r api.RenewRequest) (api.TokenResponse, error) {
	claims, run, p, err := a.holder(c, token, token)
	if err != nil {
		return api.TokenResponse{}, err
	}
	for _, said := range []struct {
		left *int64
		most int64
	}{{r.EffectsLeft, math.MaxInt32}, {r.StepsLeft, math.MaxInt32}, {r.SpendLeft, catalogue.MaxAmount}} {
		if said.left != nil && (*said.left < 0 || *said.left > said.most) {
			return api.TokenResponse{}, api.Refusef(api.InvalidRequest, "What is left must be what the run still needs: whole and not negative.")
		}
	}
	if err := a.refuseEarly(); err != nil {
		return api.TokenResponse{}, err
	}
	h := a.header("", "", p.key)
	row, err := a.renew(ctx, claims, run, p, h.Digest(), r)
	if err != nil {
		return api.TokenResponse{}, err
	}
	return a.runCapability(h, row)
}

// holder verifies a run capability and the proof of its key. ath is the token
// that the proof must cover: empty at the token endpoint.
func (a *Authority) holder(c Call, token, ath capability.Token) (*capability.RunClaims, []byte, spent, error) {
	claims, err := capability.VerifyRun(token, a.Keys(), a.expectation())
	if err != nil {
		return nil, nil, spent{}, ProofRefusal(err)
	}
	p, err := a.prove(c, ath, claims.Confirmation.JKT)
	if err != nil {
		return nil, nil, spent{}, err
	}
	p.capability = claims.Generation
	run, ok := decode(claims.Run, 16)
	if !ok {
		return nil, nil, spent{}, api.Refuse(api.InvalidToken)
	}
	return claims, run, p, nil
}

// runCapability signs what a claim or a renewal has admitted.
func (a *Authority) runCapability(h capability.Header, row claimRow) (api.TokenResponse, error) {
	lane := encode(row.task)
	h.Subject, h.ClientID = lane, a.registry.now().name(row.client)
	if h.IssuedAt, h.Expires = a.expiry(tokenLifetime, row.deadline); h.Expires <= h.IssuedAt {
		return api.TokenResponse{}, api.Refuse(api.DeadlinePassed)
	}
	token, err := capability.SignRun(a.signing(&h), capability.RunClaims{Header: h, Binding: capability.Binding{
		Run: encode(row.run), Lane: lane, Fence: row.fence, Deadline: row.deadline.Unix(),
		ActivationEpoch: row.activation, ReadinessEpoch: row.readiness, Incarnation: row.incarnation}})
	if err != nil {
		return api.TokenResponse{}, err
	}
	return a.answer(token, h, api.TokenResponse{Run: row.state()}), nil
}

// wrapUp is how little time is left when a worker is told to come to an end.
const wrapUp = 10 * time.Second

// view adds the hint, which rises as a ceiling comes near (B7).
func (l leftRow) view(remainingMS int64) api.Left {
	out := api.Left{Effects: l.effects, Steps: l.steps, Spend: l.spend, Used: int(l.used), WrapUp: api.WrapUpNo}
	switch {
	case l.effects == 0, l.steps == 0, l.used >= 100:
		out.WrapUp = api.WrapUpStop
	case l.used >= 90, l.effects == 1, remainingMS < wrapUp.Milliseconds():
		out.WrapUp = api.WrapUpNow
	case l.used >= 75:
		out.WrapUp = api.WrapUpSoon
	}
	return out
}

func (r claimRow) state() *api.RunState {
	s := &api.RunState{Fence: r.fence, DeadlineUnixMS: r.deadline.UnixMilli(), LeaseMS: r.leaseMS, RemainingMS: r.remainingMS,
		ReadinessEpoch: r.readiness, ActivationEpoch: r.activation, Left: r.left.view(r.remainingMS)}
	for _, e := range r.effects {
		s.Effects = append(s.Effects, api.EffectLine{Effect: reencode(e.Ref), KeySHA256: reencode(e.Key), Digest: reencode(e.Digest), State: e.State})
	}
	return s
}

// reencode turns the hex of a JSON column into the wire's base64url.
func reencode(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		return ""
	}
	return encode(b)
}

// SettleRun ends a run. The authority computes its terminal state (B4).
func (a *Authority) SettleRun(ctx context.Context, c Call, token capability.Token, r api.SettleRunRequest) (api.Receipt, error) {
	claims, run, p, err := a.holder(c, token, token)
	if err != nil {
		return api.Receipt{}, err
	}
	if r.Result != "succeeded" && r.Result != "failed" {
		return api.Receipt{}, api.Refusef(api.InvalidRequest, "result must be succeeded or failed.")
	}
	row, err := a.settleRun(ctx, claims, run, p, r.Result == "succeeded")
	if err != nil {
		return api.Receipt{}, err
	}
	return api.Receipt{Run: encode(row.run), State: row.state, Fence: row.fence, Committed: row.committed, NotApplied: row.notApplied,
		Ambiguous: row.ambiguous, Steps: row.steps, Spent: row.spent, Currency: deref(row.currency), AuditSHA256: encode(row.audit)}, nil
}
