package authority

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/attestation"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/document"
	"github.com/nightwarrant/nightwarrant/internal/builds"
	"github.com/nightwarrant/nightwarrant/readiness"
)

// ClientAssertion is a workload's projected token as client authentication
// (RFC 7523 §2.2): its type as sent, and the token.
type ClientAssertion struct {
	Type  string
	Token capability.Token
}

// identify verifies a workload assertion and finds the registered profiles
// that it matches, exactly. It proves identity only (A2).
func (a *Authority) identify(ctx context.Context, assertion ClientAssertion, by capability.Thumbprint) (identified, attestation.Assertion, error) {
	verify := a.Assertions.Verify
	if assertion.Type == api.AssertionJWTSPIFFE {
		verify = a.Assertions.VerifySVID
	}
	verified, err := verify(ctx, assertion.Token.Reveal())
	if err != nil {
		return identified{}, verified, refusalOf(err)
	}
	if err := verified.BoundTo(by); err != nil {
		return identified{}, verified, refusalOf(err)
	}
	id := identified{digest: verified.Digest, until: verified.Expires, payer: payerOf("workload", []byte(verified.Issuer), []byte(verified.Subject))}
	for _, p := range a.registry.now().profiles {
		if p.Matches(verified) == nil {
			id.profiles = append(id.profiles, p.id)
			// A token that names its key needs no owner beside it. Otherwise one profile that ties is enough to tie.
			id.bound = id.bound || p.Binding == attestation.FirstKey && verified.JKT == nil
		}
	}
	if len(id.profiles) == 0 {
		return id, verified, api.Refuse(api.InvalidClient)
	}
	return id, verified, nil
}

// refusalOf finds the wire's refusal in an error of another package.
func refusalOf(err error) error {
	var r *api.Refusal
	if errors.As(err, &r) {
		return err
	}
	return unavailable(err)
}

// Component gives a guard, reporter or product its capability. A new key of an
// instance is a new boot.
func (a *Authority) Component(ctx context.Context, c Call, name string, assertion ClientAssertion) (api.TokenResponse, error) {
	p, err := a.prove(c, "", capability.Thumbprint{})
	if err != nil {
		return api.TokenResponse{}, err
	}
	by, verified, err := a.identify(ctx, assertion, p.key)
	if err != nil {
		return api.TokenResponse{}, err
	}
	claims := capability.ComponentClaims{Header: a.header(name, name, p.key), Component: name}
	instance := instanceOf(verified)
	kind, boot, err := a.bootComponent(ctx, nameDigest(name), instance, by, p, claims.Header.Digest())
	if err != nil {
		return api.TokenResponse{}, err
	}
	claims.ComponentKind, claims.Boot, claims.Instance = kind, boot, encode(instance[:])
	claims.IssuedAt, claims.Expires = a.expiry(tokenLifetime, verified.Expires)
	token, err := capability.SignComponent(a.signing(&claims.Header), claims)
	if err != nil {
		return api.TokenResponse{}, err
	}
	return a.answer(token, claims.Header, api.TokenResponse{Boot: boot}), nil
}

// instanceOf names one instance of a workload: its pod where the assertion
// names one, else its subject.
func instanceOf(v attestation.Assertion) [32]byte {
	return canonical.Digest(canonical.DomainReference, []byte(v.Issuer), []byte(v.Subject), []byte(v.Pod()))
}

// header begins a capability for a key; who signs it enters the generation.
func (a *Authority) header(subject, client string, key capability.Thumbprint) capability.Header {
	return capability.Header{Issuer: a.Issuer, Audience: a.Issuer, Subject: subject, ClientID: client, ID: newID(),
		Confirmation: capability.Confirmation{JKT: key}}
}

// answer wraps a signed capability (RFC 6749 §5.1, RFC 8693 §2.2.1).
func (a *Authority) answer(t capability.Token, h capability.Header, r api.TokenResponse) api.TokenResponse {
	r.AccessToken, r.TokenType, r.ExpiresIn, r.IssuedTokenType = t.Reveal(), "DPoP", h.Expires-h.IssuedAt, api.TokenTypeAccess
	return r
}

// caller verifies a component capability and the proof of its key.
func (a *Authority) caller(c Call, token capability.Token) (component, spent, error) {
	claims, err := capability.VerifyComponent(token, a.Keys(), a.expectation())
	if err != nil {
		return component{}, spent{}, ProofRefusal(err)
	}
	p, err := a.prove(c, token, claims.Confirmation.JKT)
	if err != nil {
		return component{}, spent{}, err
	}
	instance, ok := decode(claims.Instance, 32)
	if !ok {
		return component{}, spent{}, api.Refuse(api.InvalidToken)
	}
	g := component{name: nameDigest(claims.Component), instance: [32]byte(instance), kind: claims.ComponentKind, boot: claims.Boot}
	p.payer, p.capability = payerOf("component", g.name[:]), claims.Generation
	return g, p, nil
}

// MaxNonces bounds how many nonces a guard may ask for at once (P32).
const MaxNonces = 64

// Nonces gives a guard nonces for its own audience.
func (a *Authority) Nonces(ctx context.Context, c Call, token capability.Token, count int) (api.Nonces, error) {
	g, p, err := a.caller(c, token)
	if err != nil {
		return api.Nonces{}, err
	}
	uri, ok := a.guardURI(g)
	if !ok {
		return api.Nonces{}, api.Refuse(api.WrongGuard)
	}
	if count < 1 || count > MaxNonces {
		return api.Nonces{}, api.Refusef(api.InvalidRequest, "Ask for 1 to %d nonces.", MaxNonces)
	}
	if err := a.spendComponent(ctx, g, p); err != nil {
		return api.Nonces{}, err
	}
	out := api.Nonces{Nonces: make([]string, count)}
	for i := range out.Nonces {
		out.Nonces[i] = a.Keys().Nonces().Mint(uri)
	}
	return out, nil
}

// guardURI is the registered URI of the guard that calls.
func (a *Authority) guardURI(g component) (string, bool) {
	s := a.registry.now()
	name, known := s.byName[g.name]
	d, ok := find[*document.Guard](s, document.KindGuard, name, 1)
	if !known || !ok || g.kind != "guard" {
		return "", false
	}
	return d.URI, true
}

// Report takes a component's readiness report about a family. Whether the
// component may report it, and whether what it serves is required, the verb says.
func (a *Authority) Report(ctx context.Context, c Call, token capability.Token, family string, r api.Report) error {
	who, p, err := a.caller(c, token)
	if err != nil {
		return err
	}
	row := reportRow{family: document.FamilyCode(family), Report: r, reason: givenReason(r)}
	var ok, ok2, ok4 bool
	row.models, ok = digestsOf(r.Models)
	row.datasets, ok2 = digestsOf(r.Datasets)
	ok3 := true
	if r.Catalogue != "" {
		row.catalogue, ok3 = decode(r.Catalogue, 32)
	}
	row.build, ok4 = builtOf(r.Build)
	if !ok || !ok2 || !ok3 || !ok4 || r.Protocol < 0 || r.Protocol > math.MaxInt16 || len(family) > maxFamily {
		return a.misreported(ctx, p)
	}
	return a.reportComponent(ctx, who, p, row)
}

// misreported refuses a report that no verb needs to see. It is audited like those that the verb refuses.
func (a *Authority) misreported(ctx context.Context, p spent) error {
	return a.refuse(ctx, "report", p, api.Refuse(api.InvalidRequest))
}

// maxFamily is the longest name of a family; maxDigests bounds what one guard serves.
const (
	maxFamily  = 64
	maxDigests = 64
)

// givenReason keeps a reporter's reason when it is one that a component may give.
func givenReason(r api.Report) string {
	switch {
	case r.Healthy:
		return readiness.Good
	case slices.Contains([]string{readiness.Settings, readiness.Unreachable, readiness.Material, readiness.Canary, readiness.Disk}, r.Reason):
		return r.Reason
	}
	return readiness.Unhealthy
}

// builtOf reads what a component says that it runs, if anything.
func builtOf(b *api.Build) (out builds.Build, ok bool) {
	if b == nil {
		return out, true
	}
	digest, ok := decode(b.BinarySHA256, 32)
	if !ok {
		return out, false
	}
	return builds.Build{Binary: [32]byte(digest), Go: b.Go, Module: b.Module, FIPS: b.FIPS}, true
}

func digestsOf(list []string) (out [][]byte, ok bool) {
	out = make([][]byte, len(list))
	for n, text := range list {
		if out[n], ok = decode(text, 32); !ok {
			return nil, false
		}
	}
	return out, len(list) <= maxDigests
}
