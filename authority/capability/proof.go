package capability

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const (
	maxProof  = 8 << 10 // bytes of a DPoP header
	maxJTI    = 128     // bytes
	maxIAT    = 1e11    // seconds; what is later is milliseconds
	skewAhead = 10 * time.Second

	// DefaultWindow is how far a proof's iat may be from the verifier's clock on either side where Expect gives none. It
	// is wide because the nonce decides freshness.
	DefaultWindow = 24 * time.Hour
)

// Proof is a DPoP proof (RFC 9449 §4.2) that is well-formed. Nothing in it is true before VerifySignature has returned
// nil.
type Proof struct {
	JTI      string     // 1 to 128 bytes
	Method   string     // htm, as sent
	Target   string     // htu, normalized
	Nonce    string     // "" if there is none
	IssuedAt time.Time  // whole seconds
	Key      Thumbprint // of the key in the header

	ath                string
	hasATH             bool
	expires, notBefore *int64

	signed    string // header and payload, as sent
	signature [64]byte
	point     [pointSize]byte
	public    *ecdsa.PublicKey
}

// Expect is what the request at hand demands of its proof.
type Expect struct {
	// Method and URL of the request, exact; URL is the configured public origin and the escaped path, never built from
	// Host or forwarded headers. Where the authority checks a proof that a guard passed on, it gives Under instead of
	// URL: the guard's registered base URLs, matched at path boundaries; only then may Method be empty.
	Method string
	URL    string
	Under  []string

	// AccessToken is the credential that came with the request at a resource: ath is then required. At the token
	// endpoint it is empty and an ath is ignored.
	AccessToken Token

	// Holder is the cnf.jkt of the capability that the proof speaks for, mandatory with AccessToken. It is zero where
	// the proof introduces its key.
	Holder Thumbprint

	// Nonce, if given, judges the nonce and returns its refusal; it is asked last, before the signature.
	Nonce func(nonce string) error

	Now    time.Time
	Window time.Duration // of iat on either side; 0 is DefaultWindow
}

// CheckProof does everything in order of cost: parse, clear, verify. Every refusal is a *ProofError, unless Nonce
// returned another.
func CheckProof(header string, e Expect) (*Proof, error) {
	p, err := ParseProof(header)
	if err != nil {
		return nil, err
	}
	if err := p.Clear(e); err != nil {
		return nil, err
	}
	if err := p.VerifySignature(); err != nil {
		return nil, err
	}
	return p, nil
}

// ParseProof reads a proof in compact form and checks all that needs neither the request nor cryptography, the key's
// place on the curve included. It does not verify the signature.
func ParseProof(header string) (*Proof, error) {
	first, second, err := segments(header)
	if err != nil {
		return nil, err
	}
	p := &Proof{signed: header[:second]}
	if !decodeExact(p.signature[:], header[second+1:]) {
		return nil, badProof("the signature is not 64 bytes of base64url")
	}
	buf := make([]byte, base64.RawURLEncoding.DecodedLen(second))
	h, err := decode(buf, header[:first])
	if err != nil {
		return nil, err
	}
	if err := p.readHeader(h); err != nil {
		return nil, err
	}
	c, err := decode(buf, header[first+1:second])
	if err != nil {
		return nil, err
	}
	if err := p.readClaims(c); err != nil {
		return nil, err
	}
	if err := p.importKey(); err != nil {
		return nil, err
	}
	return p, nil
}

// segments finds the two dots by index, so that a header of nothing but dots costs one pass and no memory.
func segments(s string) (first, second int, err error) {
	if len(s) > maxProof {
		return 0, 0, badProof("the proof is too large")
	}
	first, second = strings.IndexByte(s, '.'), strings.LastIndexByte(s, '.')
	if first <= 0 || second <= first+1 || second == len(s)-1 {
		return 0, 0, badProof("the proof is not three segments")
	}
	if !isBase64URL(s[:first]) || !isBase64URL(s[first+1:second]) {
		return 0, 0, badProof("a segment is not base64url")
	}
	return first, second, nil
}

func decode(buf []byte, segment string) ([]byte, error) {
	n, err := strict64.Decode(buf, []byte(segment))
	if err != nil {
		return nil, badProof("a segment is not base64url")
	}
	return buf[:n], nil
}

// object walks one JSON object; what the walk itself finds wrong is a refusal too.
func object(in []byte, visit func(name []byte, v canonical.Value) error) error {
	err := canonical.Members(in, visit)
	if _, malformed := err.(*canonical.Error); malformed {
		return badProof("the proof is not strict JSON")
	}
	return err
}

func (p *Proof) readHeader(in []byte) error {
	var typ, alg, jwk bool
	err := object(in, func(name []byte, v canonical.Value) error {
		switch string(name) {
		case "typ":
			text, _ := v.Text()
			typ = isMediaType(text, "dpop+jwt")
		case "alg":
			alg = v.Is("ES256")
		case "jwk":
			jwk = true
			return p.readKey(v)
		case "crit", "b64":
			return badProof("critical header members are not supported")
		case "kid", "jku", "x5u", "x5t", "x5t#S256", "cty":
			return mustText(v)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !typ:
		return badProof("typ must be dpop+jwt")
	case !alg:
		return badProof("alg must be ES256")
	case !jwk:
		return badProof("jwk is missing")
	}
	return nil
}

// isMediaType compares without case and with the prefix that RFC 7515 §4.1.9 lets a sender leave out.
func isMediaType(got, want string) bool {
	const prefix = "application/"
	if len(got) > len(prefix) && strings.EqualFold(got[:len(prefix)], prefix) {
		got = got[len(prefix):]
	}
	return strings.EqualFold(got, want)
}

func mustText(v canonical.Value) error {
	if v.Raw[0] != '"' {
		return badProof("a member that must be a string is not")
	}
	return nil
}

func (p *Proof) readKey(jwk canonical.Value) error {
	if !jwk.IsObject() {
		return badProof("jwk is not an object")
	}
	var kty, crv, x, y bool
	err := object(jwk.Raw, func(name []byte, v canonical.Value) error {
		switch string(name) {
		case "kty":
			kty = v.Is("EC")
		case "crv":
			crv = v.Is("P-256")
		case "x":
			x = coordinate(p.point[1:33], v)
		case "y":
			y = coordinate(p.point[33:], v)
		case "d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv":
			return badProof("jwk holds a private member")
		default:
			return keyUse(string(name), v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !kty || !crv || !x || !y {
		return badProof("jwk is not a P-256 key with full coordinates")
	}
	return nil
}

func coordinate(dst []byte, v canonical.Value) bool {
	text, ok := v.Text()
	return ok && decodeExact(dst, text)
}

// keyUse refuses a key that says that it is for something else (RFC 7517 §4.2 to §4.4).
func keyUse(name string, v canonical.Value) error {
	ok := true
	switch name {
	case "use":
		ok = v.Is("sig")
	case "alg":
		ok = v.Is("ES256")
	case "key_ops":
		ok = opsVerify(v)
	case "kid", "x5u", "x5t", "x5t#S256":
		return mustText(v)
	}
	if !ok {
		return badProof("jwk is not for verifying ES256")
	}
	return nil
}

func opsVerify(ops canonical.Value) bool {
	verify := false
	err := canonical.Elements(ops, func(v canonical.Value) error {
		switch {
		case v.Is("verify") && !verify:
			verify = true
		case v.Is("sign"):
		default:
			return errThumbprint
		}
		return nil
	})
	return err == nil && verify
}

func (p *Proof) readClaims(in []byte) error {
	var htu string
	var iat int64
	err := object(in, func(name []byte, v canonical.Value) error {
		ok := true
		switch string(name) {
		case "jti":
			p.JTI, ok = v.Text()
		case "htm":
			p.Method, ok = v.Text()
		case "htu":
			htu, ok = v.Text()
		case "nonce":
			p.Nonce, ok = v.Text()
		case "ath":
			p.hasATH = true
			p.ath, ok = v.Text()
		case "iat":
			iat, ok = v.Int()
		case "exp":
			p.expires, ok = date(v)
		case "nbf":
			p.notBefore, ok = date(v)
		case "iss", "sub":
			return mustText(v)
		}
		if !ok {
			return badProof("a claim is of the wrong type")
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.IssuedAt = time.Unix(iat, 0)
	return p.checkClaims(htu, iat)
}

func date(v canonical.Value) (*int64, bool) {
	n, ok := v.Int()
	return &n, ok
}

func (p *Proof) checkClaims(htu string, iat int64) (err error) {
	switch {
	case p.JTI == "" || len(p.JTI) > maxJTI:
		return badProof("jti must be 1 to 128 bytes")
	case p.Method == "":
		return badProof("htm is missing")
	case iat <= 0 || iat > maxIAT:
		return badProof("iat must be a time in seconds")
	}
	if p.Target, err = NormalizeHTU(htu); err != nil {
		return badProof("htu must be an absolute http or https URL")
	}
	return nil
}

// importKey lets crypto/ecdh decide whether the point is on the curve: it refuses coordinates past the prime, points off
// the curve and the one at infinity.
func (p *Proof) importKey() error {
	p.point[0] = 4
	if _, err := ecdh.P256().NewPublicKey(p.point[:]); err != nil {
		return badProof("jwk is not a point of P-256")
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), p.point[:])
	if err != nil {
		return badProof("jwk is not a point of P-256")
	}
	p.public = public
	p.Key = thumbprint(p.point[:])
	return nil
}

// VerifySignature checks r‖s over the first two segments with the key in the header (RFC 7518 §3.4).
func (p *Proof) VerifySignature() error {
	if !verifyRaw(p.public, sha256.Sum256([]byte(p.signed)), p.signature[:]) {
		return badProof("the signature is wrong")
	}
	return nil
}

// Clear holds the proof against the request. It does no cryptography but the hash of ath.
func (p *Proof) Clear(e Expect) error {
	if !e.AccessToken.IsZero() && e.Holder.IsZero() {
		return badToken("the capability names no key")
	}
	if err := p.clearTarget(e); err != nil {
		return err
	}
	if err := p.clearTime(e); err != nil {
		return err
	}
	if err := p.clearHolder(e); err != nil {
		return err
	}
	if e.Nonce != nil {
		return e.Nonce(p.Nonce)
	}
	return nil
}

func (p *Proof) clearTarget(e Expect) error {
	anyMethod := e.Method == "" && e.URL == "" && len(e.Under) > 0
	if p.Method != e.Method && !anyMethod {
		return badProof("htm is not the method of this request")
	}
	if e.URL != "" {
		if want, err := NormalizeHTU(e.URL); err != nil || p.Target != want {
			return badProof("htu is not the URL of this request")
		}
		return nil
	}
	for _, base := range e.Under {
		if want, err := NormalizeHTU(base); err == nil && isUnder(p.Target, want) {
			return nil
		}
	}
	return badProof("htu is not a URL of this guard")
}

func isUnder(target, base string) bool {
	rest, ok := strings.CutPrefix(target, strings.TrimSuffix(base, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

func (p *Proof) clearTime(e Expect) error {
	window := e.Window
	if window == 0 {
		window = DefaultWindow
	}
	switch off := e.Now.Sub(p.IssuedAt); {
	case off > window || off < -window:
		return badProof("iat is too far from now")
	case p.expires != nil && *p.expires <= e.Now.Unix():
		return badProof("the proof has expired")
	case p.notBefore != nil && *p.notBefore > e.Now.Add(skewAhead).Unix():
		return badProof("the proof is not valid yet")
	}
	return nil
}

func (p *Proof) clearHolder(e Expect) error {
	if !e.AccessToken.IsZero() {
		want := accessTokenHash(e.AccessToken)
		if !p.hasATH || subtle.ConstantTimeCompare([]byte(p.ath), want[:]) != 1 {
			return badProof("ath is not the hash of the access token")
		}
	}
	if !e.Holder.IsZero() && p.Key != e.Holder {
		return badToken("the proof's key is not the capability's")
	}
	return nil
}

func accessTokenHash(t Token) (out [43]byte) {
	sum := sha256.Sum256([]byte(t))
	base64.RawURLEncoding.Encode(out[:], sum[:])
	return out
}

// Digest is under what name the replay record knows this proof: over jkt and jti, because r‖s has two spellings.
func (p *Proof) Digest() [32]byte {
	return canonical.Digest(canonical.DomainProof, p.Key[:], []byte(p.JTI))
}

// order is n of P-256 (SP 800-186 §3.2.1.3).
var order = elliptic.P256().Params().N.Bytes()

// verifyRaw verifies r‖s, each in [1, n−1] and in 32 bytes. crypto/ecdsa takes DER, which is written here by hand.
func verifyRaw(pub *ecdsa.PublicKey, digest [32]byte, sig []byte) bool {
	if len(sig) != 64 || !isScalar(sig[:32]) || !isScalar(sig[32:]) {
		return false
	}
	var room [72]byte
	der := append(room[:0], 0x30, 0)
	der = appendInteger(der, sig[:32])
	der = appendInteger(der, sig[32:])
	der[1] = byte(len(der) - 2)
	return ecdsa.VerifyASN1(pub, digest[:], der)
}

func isScalar(b []byte) bool {
	return bytes.Compare(b, order) < 0 && !bytes.Equal(b, make([]byte, 32))
}

func appendInteger(der, b []byte) []byte {
	b = bytes.TrimLeft(b, "\x00")
	if b[0] >= 0x80 {
		der = append(der, 2, byte(len(b)+1), 0)
	} else {
		der = append(der, 2, byte(len(b)))
	}
	return append(der, b...)
}
