// Package capability holds the tokens and proofs of the authority: capabilities (RFC 9068 access tokens bound to a key),
// the DPoP proofs of that key (RFC 9449), and the effects that capabilities name.
//
// Names: Parse* reads a form, Clear* holds it against what is expected, Verify* is cryptography; Check* does all that
// there is to do. Nothing here keeps state: nonces and replay belong to the authority.
package capability

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const (
	maxProof  = 8 << 10 // bytes of a DPoP header
	maxJTI    = 128     // bytes
	maxIAT    = 1e11    // seconds; what is later is milliseconds
	skewAhead = 10 * time.Second

	// A proof's iat may be this far from the verifier's clock on either side where Expect gives no window. It is wide
	// because the nonce decides freshness.
	defaultWindow = 24 * time.Hour
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

	ath                string // "" if there is none
	expires, notBefore *int64

	signed    []byte // header and payload, as sent
	signature [64]byte
	point     [pointSize]byte
	public    *ecdsa.PublicKey
}

// Expect is what the request at hand demands of its proof.
type Expect struct {
	// Method and URL of the request, both mandatory. URL is the configured public origin and the escaped path, never built
	// from Host or forwarded headers.
	Method string
	URL    string

	// AccessToken is the credential that came with the request at a resource: ath is then required. At the token
	// endpoint it is empty and an ath is ignored.
	AccessToken Token

	// Holder is the cnf.jkt of the capability that the proof speaks for, mandatory with AccessToken. It is zero where
	// the proof introduces its key.
	Holder Thumbprint

	// Nonce, if given, judges the nonce and returns its refusal; it is asked last, before the signature.
	Nonce func(nonce string) error

	Now    time.Time
	Window time.Duration // of iat on either side; 0 is 24 hours
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

// VerifySignature checks r‖s over the first two segments with the key in the header (RFC 7518 §3.4). A Proof that
// ParseProof did not make is never verified.
func (p *Proof) VerifySignature() error {
	if p.public == nil || !verifyRaw(p.public, sha256.Sum256(p.signed), p.signature[:]) {
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
	if p.Method != e.Method {
		return badProof("htm is not the method of this request")
	}
	if want, err := normalize(e.URL, false); err != nil || p.Target != want {
		return badProof("htu is not the URL of this request")
	}
	return nil
}

func (p *Proof) clearTime(e Expect) error {
	window := e.Window
	if window == 0 {
		window = defaultWindow
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
		if subtle.ConstantTimeCompare([]byte(p.ath), want[:]) != 1 {
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
