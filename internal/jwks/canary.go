package jwks

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
)

var errCanary = errors.New("jwks: a canary token was judged wrongly")

// Canary judges a good and some bad tokens under a throwaway key, by the same
// steps as Verify. An error means that no verdict of this process can be trusted.
func (c *Cache) Canary(e Expect) error { return canary(e, c.cfg.Now()) }

func canary(e Expect, now time.Time) error {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return errCanary
	}
	k := key{alg: ES256, public: &private.PublicKey}
	compact, err := canaryToken(private, e, now)
	if err != nil || judge(compact, k, e, now) != nil {
		return errCanary
	}
	end := strings.LastIndexByte(compact, '.')
	other := e
	other.Audience += "/other"
	for _, bad := range []error{
		judge(compact[:end+1]+strings.Repeat("A", 86), k, e, now),
		judge(compact, k, other, now),
		judge(compact, k, e, now.Add(2*time.Minute)),
		judge(compact[:end], k, e, now),
	} {
		if bad == nil {
			return errCanary
		}
	}
	return nil
}

func canaryToken(private *ecdsa.PrivateKey, e Expect, now time.Time) (string, error) {
	expires := now.Add(min(time.Minute, e.MaxLifetime))
	claims := fmt.Sprintf(`{"iss":"canary","sub":"canary","aud":%q,"iat":%d,"exp":%d}`, e.Audience, now.Unix(), expires.Unix())
	encode := base64.RawURLEncoding.EncodeToString
	signed := encode([]byte(`{"alg":"ES256","kid":"canary"}`)) + "." + encode([]byte(claims))
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, private, digest[:])
	if err != nil {
		return "", err
	}
	var sig [64]byte
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return signed + "." + encode(sig[:]), nil
}

func judge(compact string, k key, e Expect, now time.Time) error {
	p, err := parse(compact)
	if err != nil {
		return err
	}
	if err := p.check(e, now, 0); err != nil {
		return err
	}
	if !k.verify(p) {
		return BadSignature
	}
	return nil
}
