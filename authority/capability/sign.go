package capability

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const maxToken = 8 << 10 // bytes

// kindOf is a kind of signed object: a typ of its own, which is refused wherever another is expected (protocol P25,
// RFC 8725 §3.11), and how many bytes one may have.
type kindOf struct {
	typ     jose.ContentType
	longest int
}

var (
	aCapability = kindOf{"at+jwt", maxToken} // RFC 9068 §2.1
	aDecision   = kindOf{"nightwarrant-readiness+jwt", 32 << 10}
	aReceipt    = kindOf{"nightwarrant-receipt+jwt", 8 << 20}
)

// Signer signs with the cluster's P-256 key, which may live in another process or a token. The signature is r‖s.
type Signer interface {
	KeyID() string
	SignES256(digest [32]byte) ([64]byte, error)
}

// KeySet gives the public key of a kid that still verifies, and the generation that it belongs to.
type KeySet interface {
	Key(kid string) (pub *ecdsa.PublicKey, generation int64, ok bool)
}

// Expectation is what a verifier demands of a capability.
type Expectation struct {
	Issuer   string
	Audience string // of an effect capability: the guard's URI. Others are always for the issuer
	Now      time.Time
	Leeway   time.Duration // for iat and exp, where the clock is not the issuer's
}

// SignRun signs a run capability: typ at+jwt, alg ES256 and the signer's kid in its header. It sets cap and refuses
// claims that VerifyRun would refuse.
func SignRun(s Signer, c RunClaims) (Token, error) {
	c.Kind = kindRun
	return sign(s, &c)
}

// SignEffect signs an effect capability as SignRun does a run's.
func SignEffect(s Signer, c EffectClaims) (Token, error) {
	c.Kind = kindEffect
	return sign(s, &c)
}

// SignComponent signs a component capability as SignRun does a run's.
func SignComponent(s Signer, c ComponentClaims) (Token, error) {
	c.Kind = kindComponent
	return sign(s, &c)
}

func sign(s Signer, c claims) (Token, error) {
	if err := c.check(); err != nil {
		return "", err
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", err
	}
	text, err := signJWS(s, aCapability, payload)
	return Token(text), err
}

func signJWS(s Signer, kind kindOf, payload []byte) (string, error) {
	key := jose.SigningKey{Algorithm: jose.ES256, Key: opaque{s}}
	signer, err := jose.NewSigner(key, (&jose.SignerOptions{}).WithType(kind.typ))
	if err != nil {
		return "", err
	}
	jws, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return jws.CompactSerialize()
}

// opaque is a Signer as go-jose knows one.
type opaque struct{ Signer }

func (o opaque) Public() *jose.JSONWebKey {
	return &jose.JSONWebKey{KeyID: o.KeyID(), Algorithm: string(jose.ES256), Use: "sig"}
}

func (o opaque) Algs() []jose.SignatureAlgorithm { return []jose.SignatureAlgorithm{jose.ES256} }

func (o opaque) SignPayload(payload []byte, alg jose.SignatureAlgorithm) ([]byte, error) {
	if alg != jose.ES256 {
		return nil, jose.ErrUnsupportedAlgorithm
	}
	sig, err := o.SignES256(sha256.Sum256(payload))
	return sig[:], err
}

// VerifyRun verifies a run capability's signature and everything its claims say by themselves. Every refusal of any
// Verify* is a *ProofError with CodeInvalidToken.
func VerifyRun(t Token, keys KeySet, e Expectation) (*RunClaims, error) {
	e.Audience = e.Issuer
	c := new(RunClaims)
	if err := verify(t, keys, e, c); err != nil {
		return nil, err
	}
	return c, nil
}

// VerifyEffect verifies an effect capability for the guard e.Audience.
func VerifyEffect(t Token, keys KeySet, e Expectation) (*EffectClaims, error) {
	c := new(EffectClaims)
	if err := verify(t, keys, e, c); err != nil {
		return nil, err
	}
	return c, nil
}

// VerifyComponent verifies a component capability.
func VerifyComponent(t Token, keys KeySet, e Expectation) (*ComponentClaims, error) {
	e.Audience = e.Issuer
	c := new(ComponentClaims)
	if err := verify(t, keys, e, c); err != nil {
		return nil, err
	}
	return c, nil
}

func verify(t Token, keys KeySet, e Expectation, c claims) error {
	payload, generation, err := verifyJWS(t.Reveal(), aCapability, keys)
	if err != nil {
		return err
	}
	if canonical.Decode(payload, c) != nil || c.check() != nil {
		return badToken("the claims are not those of this kind of capability")
	}
	h := c.header()
	if h.Generation != generation {
		return badToken("the generation is not the key's")
	}
	return e.clear(h.Issuer, h.Audience, h.IssuedAt, h.Expires)
}

// verifyJWS verifies one of the authority's objects: of the one kind that is expected, under a key that is known.
func verifyJWS(t string, kind kindOf, keys KeySet) (payload []byte, generation int64, err error) {
	kid, err := readHeader(t, kind)
	if err != nil {
		return nil, 0, err
	}
	pub, generation, ok := keys.Key(kid)
	if !ok {
		return nil, 0, badToken("the key is unknown")
	}
	jws, err := jose.ParseSignedCompact(t, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, 0, badToken("it is not signed")
	}
	if payload, err = jws.Verify(pub); err != nil {
		return nil, 0, badToken("the signature is wrong")
	}
	return payload, generation, nil
}

// readHeader demands alg, kid and typ and nothing else: crit, jwk and their like have no place in what is our own.
func readHeader(t string, kind kindOf) (kid string, err error) {
	first, second, err := segments(t, kind.longest)
	if err != nil {
		return "", badToken("it is not three segments of base64url")
	}
	in, err := strict64.DecodeString(t[:first])
	if err != nil || !decodeExact(new([64]byte)[:], t[second+1:]) {
		return "", badToken("it is not three segments of base64url")
	}
	var alg, typ bool
	err = canonical.Members(in, func(name []byte, v canonical.Value) error {
		text, _ := v.Text()
		switch string(name) {
		case "alg":
			alg = text == "ES256"
		case "typ":
			typ = isMediaType(text, string(kind.typ))
		case "kid":
			kid = text
		default:
			return errClaims
		}
		return nil
	})
	if err != nil || !alg || !typ || kid == "" {
		return "", badToken("the header is another kind's")
	}
	return kid, nil
}

func (e Expectation) clear(issuer, audience string, issued, expires int64) error {
	switch {
	case e.Issuer == "" || issuer != e.Issuer:
		return badToken("the issuer is another")
	case e.Audience == "" || audience != e.Audience:
		return badToken("the audience is another")
	case issued > e.Now.Add(e.Leeway).Unix():
		return badToken("it is not valid yet")
	case expires <= e.Now.Add(-e.Leeway).Unix():
		return badToken("it has expired")
	}
	return nil
}
