package jwks

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"math/big"
	"slices"
)

// Algorithms that a configured issuer may use (RFC 7518 §3.1).
const (
	RS256 = "RS256"
	ES256 = "ES256"
)

// RSA keys outside these sizes are not usable: below 2048 bits they are weak,
// above 8192 one verification is a denial of service.
const (
	minRSABits = 2048
	maxRSABits = 8192
)

type key struct {
	alg    string // what this key verifies, decided by its type
	public crypto.PublicKey
}

func (k key) equal(other key) bool {
	public, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.alg == other.alg && public.Equal(other.public)
}

// parseSet reads a JWK set (RFC 7517 §5). Keys of other kinds, uses and
// algorithms are left out; a set that names one kid twice, publishes private
// material or holds no usable key is refused whole.
func parseSet(body []byte, issuer Issuer) (map[string]key, error) {
	object, err := decodeObject(body)
	if err != nil {
		return nil, fmt.Errorf("key set: %w", err)
	}
	members, ok := object["keys"].([]any)
	if !ok {
		return nil, errors.New("key set: no keys member")
	}
	set, seen := map[string]key{}, map[string]bool{}
	for _, m := range members {
		jwk, ok := m.(map[string]any)
		if !ok {
			return nil, errors.New("key set: a key is not an object")
		}
		if err := addKey(set, seen, jwk, issuer); err != nil {
			return nil, err
		}
	}
	if len(set) == 0 {
		return nil, errors.New("key set: no usable key")
	}
	return set, nil
}

func addKey(set map[string]key, seen map[string]bool, jwk map[string]any, issuer Issuer) error {
	if hasPrivate(jwk) {
		return errors.New("key set: it publishes private key material")
	}
	kid, _ := jwk["kid"].(string)
	if kid == "" {
		return nil
	}
	if seen[kid] {
		return errors.New("key set: one kid names two keys")
	}
	seen[kid] = true
	if k, ok := parseKey(jwk, issuer); ok {
		set[kid] = k
	}
	return nil
}

func hasPrivate(jwk map[string]any) bool {
	for _, member := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k"} {
		if _, ok := jwk[member]; ok {
			return true
		}
	}
	return false
}

func parseKey(jwk map[string]any, issuer Issuer) (key, bool) {
	var k key
	var ok bool
	switch jwk["kty"] {
	case "RSA":
		k.alg = RS256
		k.public, ok = parseRSA(jwk)
	case "EC":
		k.alg = ES256
		k.public, ok = parseEC(jwk)
	}
	return k, ok && slices.Contains(issuer.Algorithms, k.alg) && forSigning(jwk, k.alg, issuer)
}

// forSigning honours alg, use and key_ops where a key has them (RFC 7517 §4).
// A SPIFFE bundle marks its token keys jwt-svid.
func forSigning(jwk map[string]any, alg string, issuer Issuer) bool {
	if a, ok := jwk["alg"]; ok && a != alg {
		return false
	}
	if use, ok := jwk["use"]; ok && use != "sig" && (!issuer.spiffe() || use != "jwt-svid") {
		return false
	}
	ops, ok := jwk["key_ops"]
	if !ok {
		return true
	}
	list, _ := ops.([]any)
	return slices.Contains(list, any("verify"))
}

func parseRSA(jwk map[string]any) (*rsa.PublicKey, bool) {
	n, nErr := member(jwk, "n")
	e, eErr := member(jwk, "e")
	if nErr != nil || eErr != nil || len(e) > 4 {
		return nil, false
	}
	modulus, exponent := new(big.Int).SetBytes(n), new(big.Int).SetBytes(e).Int64()
	bits := modulus.BitLen()
	if bits < minRSABits || bits > maxRSABits || modulus.Bit(0) == 0 {
		return nil, false
	}
	if exponent < 65537 || exponent > 1<<31-1 || exponent%2 == 0 {
		return nil, false
	}
	return &rsa.PublicKey{N: modulus, E: int(exponent)}, true
}

// parseEC imports through crypto/ecdh, which refuses points off the curve.
func parseEC(jwk map[string]any) (*ecdsa.PublicKey, bool) {
	x, xErr := member(jwk, "x")
	y, yErr := member(jwk, "y")
	if jwk["crv"] != "P-256" || xErr != nil || yErr != nil || len(x) != 32 || len(y) != 32 {
		return nil, false
	}
	point := slices.Concat([]byte{4}, x, y)
	if _, err := ecdh.P256().NewPublicKey(point); err != nil {
		return nil, false
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	return public, err == nil
}

func member(jwk map[string]any, name string) ([]byte, error) {
	s, ok := jwk[name].(string)
	if !ok {
		return nil, errNotStrict
	}
	return decodeBase64(s)
}
