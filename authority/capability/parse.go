package capability

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"strings"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// ParseProof reads a proof in compact form and checks all that needs neither the request nor cryptography, the key's
// place on the curve included. It does not verify the signature.
func ParseProof(header string) (*Proof, error) {
	first, second, err := segments(header, maxProof)
	if err != nil {
		return nil, err
	}
	raw := []byte(header)
	p := &Proof{signed: raw[:second]}
	if !decodeExact(p.signature[:], raw[second+1:]) {
		return nil, badProof("the signature is not 64 bytes of base64url")
	}
	if err := readSegment(p.signed[:first], p.readHeader); err != nil {
		return nil, err
	}
	if err := readSegment(p.signed[first+1:], p.readClaims); err != nil {
		return nil, err
	}
	if err := p.importKey(); err != nil {
		return nil, err
	}
	return p, nil
}

// segments finds the two dots by index, so that a header of nothing but dots costs one pass and no memory.
func segments(s string, longest int) (first, second int, err error) {
	if len(s) > longest {
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

func readSegment(segment []byte, read func(document []byte) error) error {
	document, err := strict64.AppendDecode(nil, segment)
	if err != nil {
		return badProof("a segment is not base64url")
	}
	return read(document)
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
			text, _ := v.Bytes()
			typ = isMediaType(string(text), "dpop+jwt")
		case "alg":
			alg = v.Is("ES256")
		case "jwk":
			jwk = true
			return p.readKey(v)
		case "crit", "b64":
			return badProof("critical header members are not supported")
		case "kid", "jku", "x5u", "x5t", "x5t#S256", "cty", "nonce":
			return mustText(v)
		case "x5c":
			return mustTexts(v)
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

// mustText refuses a registered member of the wrong type even where it is ignored: it is never followed, but two readers
// must not disagree whether the proof is one.
func mustText(v canonical.Value) error {
	if !v.IsText() {
		return badProof("a member that must be a string is not")
	}
	return nil
}

func mustTexts(v canonical.Value) error {
	if canonical.Elements(v, mustText) != nil {
		return badProof("a member that must be an array of strings is not")
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
			return keyUse(name, v)
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
	text, ok := v.Bytes()
	return ok && decodeExact(dst, text)
}

// keyUse refuses a key that says that it is for something else (RFC 7517 §4.2 to §4.4).
func keyUse(name []byte, v canonical.Value) error {
	ok := true
	switch string(name) {
	case "use":
		ok = v.Is("sig")
	case "alg":
		ok = v.Is("ES256")
	case "key_ops":
		ok = opsVerify(v)
	case "kid":
		return mustText(v)
	case "x5u", "x5c", "x5t", "x5t#S256":
		return badProof("jwk holds a certificate")
	}
	if !ok {
		return badProof("jwk is not for verifying ES256")
	}
	return nil
}

// opsVerify wants verify, once, beside nothing but sign.
func opsVerify(ops canonical.Value) bool {
	verify, sign := 0, 0
	others := canonical.Elements(ops, func(v canonical.Value) error {
		switch {
		case v.Is("verify"):
			verify++
		case v.Is("sign"):
			sign++
		default:
			return badProof("")
		}
		return nil
	})
	return others == nil && verify == 1 && sign <= 1
}

func (p *Proof) readClaims(in []byte) error {
	var htu string
	var iat int64
	err := object(in, func(name []byte, v canonical.Value) error {
		var ok bool
		switch string(name) {
		case "jti":
			p.JTI, ok = v.Text()
		case "htm":
			p.Method, ok = v.Text()
		case "htu":
			htu, ok = v.Text()
		case "iat":
			iat, ok = v.Int()
		default:
			ok = p.readOptional(name, v)
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

func (p *Proof) readOptional(name []byte, v canonical.Value) bool {
	ok := true
	switch string(name) {
	case "nonce":
		p.Nonce, ok = v.Text()
	case "ath":
		p.ath, ok = v.Text()
	case "exp":
		p.expires, ok = date(v)
	case "nbf":
		p.notBefore, ok = date(v)
	case "iss", "sub":
		ok = v.IsText()
	case "aud":
		ok = v.IsText() || mustTexts(v) == nil
	}
	return ok
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
