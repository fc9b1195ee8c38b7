package jwks

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"
	"time"
)

// Fault says why a token or a key was refused. It is a finite list: a fault
// never carries text from the token.
type Fault string

// The faults.
const (
	Malformed       Fault = "it is not a well-formed signed token"
	UntrustedIssuer Fault = "its issuer is not configured"
	UnknownKey      Fault = "its issuer publishes no usable key of that name"
	BadSignature    Fault = "its signature does not verify"
	Expired         Fault = "it has expired or is older than allowed"
	NotYetValid     Fault = "it is not valid yet"
	TooLong         Fault = "its lifetime is longer than allowed"
	WrongAudience   Fault = "it is not addressed to this authority alone"
	Unavailable     Fault = "its issuer's keys could not be refreshed in time"
)

func (f Fault) Error() string { return string(f) }

// MaxToken bounds a compact token, in bytes.
const MaxToken = 16 << 10

// maxSeconds is the last second of year 9999; later NumericDates are malformed.
const maxSeconds = 253402300799

// Expect is what a relying party demands of a token besides a configured
// issuer's signature.
type Expect struct {
	Audience    string        // must be the token's only audience
	MaxLifetime time.Duration // of exp − iat
	MaxAge      time.Duration // of now − iat; zero means only exp counts
	// TrustDomain takes the trust domain of a SPIFFE id for the issuer, whatever
	// iss says (JWT-SVID §3); a token without such an id has none.
	TrustDomain bool
}

// Token is a verified token.
type Token struct {
	Issuer, Subject, ID string
	Audience            string
	IssuedAt, Expires   time.Time
	JKT                 *[32]byte      // cnf.jkt (RFC 7800, RFC 9449 §6.1); nil when the token names no key
	Claims              map[string]any // all of them; numbers are json.Number; not to be changed
	// Signed is the part of the compact form that the signature covers. It names
	// the token; the whole form does not, because ECDSA signatures can be rewritten.
	Signed string
}

// parsed is a token of which nothing has been verified.
type parsed struct {
	Token
	alg, kid    string
	trustDomain string // of a SPIFFE id, as an issuer; else empty, which none is
	audiences   int
	notBefore   time.Time
	signature   []byte
}

// Verify returns the token if a configured issuer signed it and it is what the
// caller expects, or a Fault. It may refresh that issuer's keys, within ctx.
func (c *Cache) Verify(ctx context.Context, compact string, e Expect) (Token, error) {
	if len(compact) > MaxToken {
		return Token{}, Malformed
	}
	name := sha256.Sum256([]byte(compact))
	held, hit := c.tokens.get(name)
	p := held.parsed
	if !hit {
		var err error
		if p, err = parse(compact); err != nil {
			return Token{}, err
		}
	}
	token := p.Token
	if e.TrustDomain {
		token.Issuer = p.trustDomain
	}
	s, ok := c.sources[token.Issuer]
	if !ok {
		return Token{}, UntrustedIssuer
	}
	now := c.cfg.Now()
	if err := p.check(e, now, c.cfg.Leeway); err != nil { // before anything is fetched
		return Token{}, err
	}
	k, err := s.key(ctx, p.kid)
	if err != nil {
		return Token{}, err
	}
	// A remembered token was verified under one key: that key must still be the
	// one that its issuer publishes under this name.
	if hit && held.key.equal(k) {
		return token, nil
	}
	if !k.verify(p) {
		return Token{}, BadSignature
	}
	c.tokens.put(name, entry{parsed: p, key: k})
	return token, nil
}

// check holds the claims against what is expected. exp gets no leeway.
func (p parsed) check(e Expect, now time.Time, leeway time.Duration) error {
	switch {
	case p.audiences != 1 || p.Audience != e.Audience: // never empty: readAudience
		return WrongAudience
	case !now.Before(p.Expires):
		return Expired
	case p.IssuedAt.After(now.Add(leeway)) || p.notBefore.After(now.Add(leeway)):
		return NotYetValid
	case !p.Expires.After(p.IssuedAt) || p.Expires.Sub(p.IssuedAt) > e.MaxLifetime:
		return TooLong
	case e.MaxAge > 0 && now.Sub(p.IssuedAt) > e.MaxAge:
		return Expired
	}
	return nil
}

// parse reads a compact JWS (RFC 7515 §7.1) whose payload is a claims set
// (RFC 7519 §4.1), without trusting any of it.
func parse(compact string) (parsed, error) {
	header, rest, ok := strings.Cut(compact, ".")
	payload, signature, more := strings.Cut(rest, ".")
	if !ok || !more || header == "" || payload == "" || signature == "" {
		return parsed{}, Malformed
	}
	var p parsed
	var err error
	if p.signature, err = decodeBase64(signature); err != nil {
		return parsed{}, Malformed
	}
	p.Signed = compact[:len(header)+1+len(payload)]
	if !p.readHeader(header) || !p.readClaims(payload) {
		return parsed{}, Malformed
	}
	return p, nil
}

func segment(s string) (map[string]any, bool) {
	b, err := decodeBase64(s)
	if err != nil {
		return nil, false
	}
	object, err := decodeObject(b)
	return object, err == nil
}

// readHeader accepts the types of plain JWTs only, so that proofs (dpop+jwt),
// access tokens (at+jwt) and whatever comes later are never taken for one. Keys
// and addresses in the header (jwk, jku, x5c, x5u) are ignored, never used.
func (p *parsed) readHeader(s string) bool {
	h, ok := segment(s)
	if !ok || caseVariant(h, "alg", "kid", "typ", "crit", "b64") {
		return false
	}
	p.alg, _ = h["alg"].(string)
	p.kid, _ = h["kid"].(string)
	_, crit := h["crit"]
	_, b64 := h["b64"]
	known := p.alg == RS256 || p.alg == ES256
	return known && !crit && !b64 && p.kid != "" && plainType(h)
}

func plainType(h map[string]any) bool {
	typ, present := h["typ"]
	if !present {
		return true
	}
	s, _ := typ.(string)
	s = strings.TrimPrefix(strings.ToLower(s), "application/")
	return s == "jwt" || s == "jose"
}

func (p *parsed) readClaims(s string) bool {
	c, ok := segment(s)
	if !ok || caseVariant(c, "iss", "sub", "aud", "exp", "nbf", "iat", "jti", "cnf") {
		return false
	}
	p.Claims = c
	var okSub, okExp, okIat, okNbf, okJTI bool
	p.Subject, okSub = text(c, "sub", true)
	p.ID, okJTI = text(c, "jti", false)
	p.Expires, okExp = numericDate(c, "exp", true)
	p.IssuedAt, okIat = numericDate(c, "iat", true)
	p.notBefore, okNbf = numericDate(c, "nbf", false)
	return okSub && okExp && okIat && okNbf && okJTI && p.readIssuer() && p.readAudience() && p.readKey()
}

// readIssuer takes iss; a SPIFFE token may lack it, its trust domain is then the
// issuer, and always when iss names a trust domain (SPIFFE JWT-SVID §3).
func (p *parsed) readIssuer() bool {
	id, isSPIFFE := strings.CutPrefix(p.Subject, "spiffe://")
	domain, path, _ := strings.Cut(id, "/")
	if isSPIFFE && domain != "" && path != "" {
		p.trustDomain = "spiffe://" + domain
	}
	iss, ok := text(p.Claims, "iss", false)
	switch {
	case !ok:
		return false
	case iss != "" && !strings.HasPrefix(iss, "spiffe://"):
		p.Issuer = iss
		return true
	}
	p.Issuer = p.trustDomain
	return p.trustDomain != "" && (iss == "" || iss == p.trustDomain)
}

// readAudience takes a string or an array of strings, and counts.
func (p *parsed) readAudience() bool {
	switch aud := p.Claims["aud"].(type) {
	case string:
		p.Audience, p.audiences = aud, 1
	case []any:
		for _, a := range aud {
			if p.Audience, _ = a.(string); p.Audience == "" {
				return false
			}
		}
		p.audiences = len(aud)
	}
	return p.Audience != ""
}

// readKey takes cnf.jkt. A cnf that says something else binds the token to a
// key that nobody here would check.
func (p *parsed) readKey() bool {
	claim, present := p.Claims["cnf"]
	if !present {
		return true
	}
	cnf, _ := claim.(map[string]any)
	jkt, _ := cnf["jkt"].(string)
	b, err := decodeBase64(jkt)
	if err != nil || len(b) != 32 || len(cnf) != 1 {
		return false
	}
	p.JKT = (*[32]byte)(b)
	return true
}

func text(c map[string]any, name string, required bool) (string, bool) {
	v, present := c[name]
	if !present {
		return "", !required
	}
	s, ok := v.(string)
	return s, ok && s != "" && len(s) <= 1024
}

// numericDate takes whole seconds: nobody who is configured here sends others,
// and a fraction has more than one reading.
func numericDate(c map[string]any, name string, required bool) (time.Time, bool) {
	v, present := c[name]
	if !present {
		return time.Time{}, !required
	}
	n, _ := v.(json.Number)
	seconds, err := n.Int64()
	if err != nil || seconds <= 0 || seconds > maxSeconds {
		return time.Time{}, false
	}
	return time.Unix(seconds, 0).UTC(), true
}

// caseVariant finds a member that a reader without letter case would take for
// one of names.
func caseVariant(object map[string]any, names ...string) bool {
	for m := range object {
		for _, n := range names {
			if m != n && strings.EqualFold(m, n) {
				return true
			}
		}
	}
	return false
}

// verify checks the signature with the key's own algorithm, which the token
// must name too; the token never chooses.
func (k key) verify(p parsed) bool {
	if p.alg != k.alg {
		return false
	}
	digest := sha256.Sum256([]byte(p.Signed))
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return rsa.VerifyPKCS1v15(public, crypto.SHA256, digest[:], p.signature) == nil
	case *ecdsa.PublicKey:
		if len(p.signature) != 64 { // r ‖ s (RFC 7518 §3.4)
			return false
		}
		r, s := new(big.Int).SetBytes(p.signature[:32]), new(big.Int).SetBytes(p.signature[32:])
		return ecdsa.Verify(public, digest[:], r, s)
	}
	return false
}
