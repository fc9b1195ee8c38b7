package server_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// raw builds proofs that no library would make.
type raw struct {
	key     *ecdsa.PrivateKey
	header  map[string]any
	payload map[string]any

	headerText, payloadText string                     // instead of the maps
	sign                    func(signed string) []byte // instead of r‖s
	whole                   func(compact string) string
}

func newRaw(t *testing.T) *raw {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return &raw{key: key}
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// prepare fills in what a correct proof for this request has.
func (r *raw) prepare(h *authoritytest.House, method, path string, token capability.Token) {
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	r.header = map[string]any{"typ": "dpop+jwt", "alg": "ES256", "jwk": jwkOf(&r.key.PublicKey)}
	r.payload = map[string]any{"jti": b64(id), "htm": method, "htu": h.URL + path, "iat": time.Now().Unix(), "nonce": h.Nonce()}
	if token != "" {
		sum := sha256.Sum256([]byte(token.Reveal()))
		r.payload["ath"] = b64(sum[:])
	}
}

func jwkOf(p *ecdsa.PublicKey) map[string]any {
	point, _ := p.Bytes()
	return map[string]any{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])}
}

func (r *raw) compact() string {
	header, payload := r.headerText, r.payloadText
	if header == "" {
		text, _ := json.Marshal(r.header)
		header = string(text)
	}
	if payload == "" {
		text, _ := json.Marshal(r.payload)
		payload = string(text)
	}
	signed := b64([]byte(header)) + "." + b64([]byte(payload))
	sign := r.sign
	if sign == nil {
		sign = func(s string) []byte { return signRS(r.key, s) }
	}
	out := signed + "." + b64(sign(signed))
	if r.whole != nil {
		out = r.whole(out)
	}
	return out
}

func signRS(key *ecdsa.PrivateKey, signed string) []byte {
	sum := sha256.Sum256([]byte(signed))
	a, b, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		panic(err)
	}
	out := make([]byte, 64)
	a.FillBytes(out[:32])
	b.FillBytes(out[32:])
	return out
}

// proofCase is a case of dpop-cases.md part 2 that is about the proof itself, so that it must be refused at every entry.
type proofCase struct {
	number string
	name   string
	change func(r *raw)
	accept bool
	code   api.Code // invalid_dpop_proof when empty
}

func set(part func(r *raw) map[string]any, name string, value any) func(r *raw) {
	return func(r *raw) { part(r)[name] = value }
}

func unset(part func(r *raw) map[string]any, name string) func(r *raw) {
	return func(r *raw) { delete(part(r), name) }
}

func inHeader(r *raw) map[string]any  { return r.header }
func inPayload(r *raw) map[string]any { return r.payload }
func inJWK(r *raw) map[string]any     { return r.header["jwk"].(map[string]any) }

func text(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// n of P-256.
var order = elliptic.P256().Params().N

func half(f func(r, s *big.Int) (a, b []byte)) func(r *raw) {
	return func(p *raw) {
		p.sign = func(signed string) []byte {
			sig := signRS(p.key, signed)
			a, b := f(new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:]))
			return append(a, b...)
		}
	}
}

func pad(n *big.Int) []byte { return n.FillBytes(make([]byte, 32)) }

var proofCases = []proofCase{
	{"4", "two proofs in one line", func(r *raw) { r.whole = func(c string) string { return c + "," + c } }, false, ""},
	{"6", "a blank inside", func(r *raw) { r.whole = func(c string) string { return c[:20] + " " + c[20:] } }, false, ""},
	{"6", "a byte outside ASCII", func(r *raw) { r.whole = func(c string) string { return c[:20] + "\xe9" + c[20:] } }, false, ""},
	{"9", "a header above the cap", set(inPayload, "pad", strings.Repeat("a", 9000)), false, ""},
	{"16", "two segments", func(r *raw) { r.whole = func(c string) string { return c[:strings.LastIndex(c, ".")] } }, false, ""},
	{"16", "four segments", func(r *raw) { r.whole = func(c string) string { return c + ".e30" } }, false, ""},
	{"16", "five segments", func(r *raw) { r.whole = func(c string) string { return c + ".e30.e30" } }, false, ""},
	{"17", "JSON serialisation", func(r *raw) {
		r.whole = func(c string) string {
			s := strings.Split(c, ".")
			return text(map[string]string{"protected": s[0], "payload": s[1], "signature": s[2]})
		}
	}, false, ""},
	{"18", "an empty header segment", func(r *raw) { r.whole = func(c string) string { return c[strings.Index(c, "."):] } }, false, ""},
	{"18", "an empty payload segment", func(r *raw) {
		r.whole = func(c string) string { s := strings.Split(c, "."); return s[0] + ".." + s[2] }
	}, false, ""},
	{"18", "an empty signature segment", func(r *raw) { r.sign = func(string) []byte { return nil } }, false, ""},
	{"19", "thousands of dots", func(r *raw) { r.whole = func(string) string { return strings.Repeat(".", 30000) } }, false, ""},
	{"20", "padding", func(r *raw) { r.whole = func(c string) string { return c + "==" } }, false, ""},
	{"20", "the standard alphabet", func(r *raw) { r.whole = func(c string) string { return "+" + c[1:] } }, false, ""},
	{"20", "non-zero trailing bits", func(r *raw) {
		r.whole = func(c string) string { return c[:len(c)-1] + string(otherLast(c[len(c)-1])) }
	}, false, ""},
	{"21", "a header that is an array", func(r *raw) { r.headerText = "[]" }, false, ""},
	{"21", "a payload that is a string", func(r *raw) { r.payloadText = `"x"` }, false, ""},
	{"21", "trailing bytes", func(r *raw) { r.payloadText = text(r.payload) + "{}" }, false, ""},
	{"21", "a byte order mark", func(r *raw) { r.headerText = "\ufeff" + text(r.header) }, false, ""},
	{"21", "bad UTF-8", func(r *raw) { r.payloadText = strings.Replace(text(r.payload), `"jti":"`, "\"jti\":\"\xff", 1) }, false, ""},
	{"22", "alg twice", func(r *raw) { r.headerText = strings.Replace(text(r.header), "{", `{"alg":"ES256",`, 1) }, false, ""},
	{"22", "alg twice, once escaped", func(r *raw) { r.headerText = strings.Replace(text(r.header), "{", `{"\u0061lg":"ES256",`, 1) }, false, ""},
	{"22", "a member twice in jwk", func(r *raw) { r.headerText = strings.Replace(text(r.header), `"crv":`, `"crv":"P-256","crv":`, 1) }, false, ""},
	{"23", "Alg", func(r *raw) { r.headerText = strings.Replace(text(r.header), `"alg"`, `"Alg"`, 1) }, false, ""},
	{"23", "JWK", func(r *raw) { r.headerText = strings.Replace(text(r.header), `"jwk"`, `"JWK"`, 1) }, false, ""},
	{"23", "Typ", func(r *raw) { r.headerText = strings.Replace(text(r.header), `"typ"`, `"Typ"`, 1) }, false, ""},
	{"24", "crit unknown", set(inHeader, "crit", []string{"x"}), false, ""},
	{"24", "crit empty", set(inHeader, "crit", []string{}), false, ""},
	{"24", "b64 false", func(r *raw) { r.header["crit"], r.header["b64"] = []string{"b64"}, false }, false, ""},
	{"25", "an unknown header member", set(inHeader, "x-note", "hello"), true, ""},
	{"25", "an unknown claim", set(inPayload, "note", map[string]any{"a": 1}), true, ""},
	{"26", "jku, x5u, x5c and kid", func(r *raw) {
		r.header["jku"], r.header["x5u"], r.header["x5c"], r.header["kid"] = "http://127.0.0.1:1/", "http://127.0.0.1:1/", []string{"AA"}, "k"
	}, true, ""},
	{"27", "typ missing", unset(inHeader, "typ"), false, ""},
	{"27", "typ JWT", set(inHeader, "typ", "JWT"), false, ""},
	{"27", "typ jwt+dpop", set(inHeader, "typ", "jwt+dpop"), false, ""},
	{"27", "typ with a suffix", set(inHeader, "typ", "dpop+jwt2"), false, ""},
	{"27", "typ a number", set(inHeader, "typ", 1), false, ""},
	{"27", "typ an array", set(inHeader, "typ", []string{"dpop+jwt"}), false, ""},
	{"28", "typ in another case", set(inHeader, "typ", "DPoP+JWT"), true, ""},
	{"28", "typ with application/", set(inHeader, "typ", "application/dpop+jwt"), true, ""},
	{"29", "an access token's typ", set(inHeader, "typ", "at+jwt"), false, ""},
	{"30", "alg missing", unset(inHeader, "alg"), false, ""},
	{"30", "alg null", set(inHeader, "alg", nil), false, ""},
	{"30", "alg a number", set(inHeader, "alg", 256), false, ""},
	{"31", "alg none", set(inHeader, "alg", "none"), false, ""},
	{"31", "alg NoNe, no signature", func(r *raw) { r.header["alg"] = "NoNe"; r.sign = func(string) []byte { return nil } }, false, ""},
	{"32", "HS256", set(inHeader, "alg", "HS256"), false, ""},
	{"33", "RS256", set(inHeader, "alg", "RS256"), false, ""},
	{"34", "ES384", set(inHeader, "alg", "ES384"), false, ""},
	{"34", "ES256K", set(inHeader, "alg", "ES256K"), false, ""},
	{"34", "ES256 with P-384", set(inJWK, "crv", "P-384"), false, ""},
	{"35", "jwk missing", unset(inHeader, "jwk"), false, ""},
	{"35", "jwk null", set(inHeader, "jwk", nil), false, ""},
	{"35", "jwk a string", set(inHeader, "jwk", "key"), false, ""},
	{"35", "jwk an array", set(inHeader, "jwk", []int{1}), false, ""},
	{"36", "jwk with d", set(inJWK, "d", "AAAA"), false, ""},
	{"36", "jwk with an empty d", set(inJWK, "d", ""), false, ""},
	{"36", "jwk with p", set(inJWK, "p", "AA"), false, ""},
	{"36", "jwk with oth", set(inJWK, "oth", []int{}), false, ""},
	{"36", "jwk with k", set(inJWK, "k", "AA"), false, ""},
	{"37", "kty oct", set(inJWK, "kty", "oct"), false, ""},
	{"37", "kty ec", set(inJWK, "kty", "ec"), false, ""},
	{"37", "kty a number", set(inJWK, "kty", 2), false, ""},
	{"38", "crv missing", unset(inJWK, "crv"), false, ""},
	{"38", "crv a number", set(inJWK, "crv", 256), false, ""},
	{"39", "x missing", unset(inJWK, "x"), false, ""},
	{"39", "y a number", set(inJWK, "y", 7), false, ""},
	{"39", "x padded", func(r *raw) { inJWK(r)["x"] = inJWK(r)["x"].(string) + "=" }, false, ""},
	{"40", "a coordinate of 31 bytes", set(inJWK, "x", b64(make([]byte, 31))), false, ""},
	{"40", "a coordinate of 33 bytes", func(r *raw) {
		x, _ := base64.RawURLEncoding.DecodeString(inJWK(r)["x"].(string))
		inJWK(r)["x"] = b64(append([]byte{0}, x...))
	}, false, ""},
	{"41", "a coordinate that is p or more", set(inJWK, "x", b64(pad(elliptic.P256().Params().P))), false, ""},
	{"42", "a point off the curve", func(r *raw) {
		inJWK(r)["x"], inJWK(r)["y"] = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqx7D4", "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"
	}, false, ""},
	{"42", "the point (0, 0)", func(r *raw) { inJWK(r)["x"], inJWK(r)["y"] = b64(make([]byte, 32)), b64(make([]byte, 32)) }, false, ""},
	{"44", "kid, alg and an unknown member in jwk", func(r *raw) { inJWK(r)["kid"], inJWK(r)["alg"], inJWK(r)["note"] = "k", "ES256", true }, true, ""},
	{"44", "use enc", set(inJWK, "use", "enc"), false, ""},
	{"44", "key_ops without verify", set(inJWK, "key_ops", []string{"encrypt"}), false, ""},
	{"45", "a flipped bit in the signature", func(r *raw) {
		r.sign = func(s string) []byte { b := signRS(r.key, s); b[10] ^= 1; return b }
	}, false, ""},
	{"45", "an altered payload", func(r *raw) {
		was := text(r.payload)
		r.payload["extra"] = true
		r.sign = func(s string) []byte { return signRS(r.key, s[:strings.Index(s, ".")+1]+b64([]byte(was))) }
	}, false, ""},
	{"46", "DER", func(r *raw) {
		r.sign = func(s string) []byte {
			sig := signRS(r.key, s)
			der, _ := asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])})
			return der
		}
	}, false, ""},
	{"47", "63 bytes", func(r *raw) { r.sign = func(s string) []byte { return signRS(r.key, s)[:63] } }, false, ""},
	{"47", "65 bytes", func(r *raw) { r.sign = func(s string) []byte { return append(signRS(r.key, s), 0) } }, false, ""},
	{"47", "96 bytes", func(r *raw) { r.sign = func(s string) []byte { return append(signRS(r.key, s), make([]byte, 32)...) } }, false, ""},
	{"48", "r = 0", half(func(_, s *big.Int) ([]byte, []byte) { return make([]byte, 32), pad(s) }), false, ""},
	{"48", "s = 0", half(func(r, _ *big.Int) ([]byte, []byte) { return pad(r), make([]byte, 32) }), false, ""},
	{"48", "r = n", half(func(_, s *big.Int) ([]byte, []byte) { return pad(order), pad(s) }), false, ""},
	{"48", "s = n", half(func(r, _ *big.Int) ([]byte, []byte) { return pad(r), pad(order) }), false, ""},
	{"48", "r = 1, s = 1", half(func(_, _ *big.Int) ([]byte, []byte) { return pad(big.NewInt(1)), pad(big.NewInt(1)) }), false, ""},
	{"49", "signed by another key than jwk", func(r *raw) {
		thief, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		r.sign = func(s string) []byte { return signRS(thief, s) }
	}, false, ""},
	{"51", "jti missing", unset(inPayload, "jti"), false, ""},
	{"51", "jti empty", set(inPayload, "jti", ""), false, ""},
	{"51", "jti a number", set(inPayload, "jti", 5), false, ""},
	{"52", "jti over the cap", set(inPayload, "jti", strings.Repeat("j", 129)), false, ""},
	{"53", "jti twice", func(r *raw) { r.payloadText = strings.Replace(text(r.payload), "{", `{"jti":"a",`, 1) }, false, ""},
	{"53", "JTI instead of jti", func(r *raw) { r.payloadText = strings.Replace(text(r.payload), `"jti"`, `"JTI"`, 1) }, false, ""},
	{"54", "htm missing", unset(inPayload, "htm"), false, ""},
	{"54", "htm PUT", set(inPayload, "htm", "PUT"), false, ""},
	{"54", "htm post", set(inPayload, "htm", "post"), false, ""},
	{"56", "htu missing", unset(inPayload, "htu"), false, ""},
	{"56", "htu a number", set(inPayload, "htu", 1), false, ""},
	{"56", "htu an object", set(inPayload, "htu", map[string]any{}), false, ""},
	{"57", "htu relative", set(inPayload, "htu", "/v1/token"), false, ""},
	{"57", "htu malformed", set(inPayload, "htu", "http://[::1"), false, ""},
	{"57", "htu of another scheme", set(inPayload, "htu", "ftp://127.0.0.1/v1/token"), false, ""},
	{"57", "htu with userinfo", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "http://", "http://me@", 1)
	}, false, ""},
	{"58", "another host", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "127.0.0.1", "127.0.0.2", 1)
	}, false, ""},
	{"58", "another port", func(r *raw) {
		u, _ := url.Parse(r.payload["htu"].(string))
		u.Host = u.Hostname() + ":1"
		r.payload["htu"] = u.String()
	}, false, ""},
	{"58", "another path", func(r *raw) { r.payload["htu"] = r.payload["htu"].(string) + "/more" }, false, ""},
	{"58", "another scheme", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "http://", "https://", 1)
	}, false, ""},
	{"58", "another path case", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "/v1/", "/V1/", 1)
	}, false, ""},
	{"59", "a trailing slash", func(r *raw) { r.payload["htu"] = r.payload["htu"].(string) + "/" }, false, ""},
	{"60", "htu with query and fragment", func(r *raw) { r.payload["htu"] = r.payload["htu"].(string) + "?a=b#c" }, true, ""},
	{"61", "upper-case scheme", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "http://", "HTTP://", 1)
	}, true, ""},
	{"62", "an unreserved character encoded", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "/v1/", "/%761/", 1)
	}, true, ""},
	{"62", "%2F for a slash", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "/v1/", "/v1%2F", 1)
	}, false, ""},
	{"63", "a double slash", func(r *raw) {
		r.payload["htu"] = strings.Replace(r.payload["htu"].(string), "/v1/", "//v1/", 1)
	}, false, ""},
	{"65", "the proof of another endpoint", func(r *raw) {
		u := r.payload["htu"].(string)
		r.payload["htu"] = u[:strings.Index(u, "/v1/")] + api.PathNonces
	}, false, ""},
	{"66", "iat missing", unset(inPayload, "iat"), false, ""},
	{"66", "iat null", set(inPayload, "iat", nil), false, ""},
	{"66", "iat a string", set(inPayload, "iat", "now"), false, ""},
	{"66", "iat negative", set(inPayload, "iat", -5), false, ""},
	{"66", "iat 1e400", func(r *raw) {
		r.payload["iat"] = 1
		r.payloadText = strings.Replace(text(r.payload), `"iat":1`, `"iat":1e400`, 1)
	}, false, ""},
	{"66", "iat in milliseconds", func(r *raw) { r.payload["iat"] = time.Now().UnixMilli() }, false, ""},
	{"67", "iat an hour old, where the nonce decides", func(r *raw) { r.payload["iat"] = time.Now().Unix() - 3600 }, true, ""},
	{"67", "iat 25 hours old", func(r *raw) { r.payload["iat"] = time.Now().Unix() - 25*3600 }, false, ""},
	{"68", "iat ten seconds ahead", func(r *raw) { r.payload["iat"] = time.Now().Unix() + 10 }, true, ""},
	{"69", "iat an hour ahead, where the nonce decides", func(r *raw) { r.payload["iat"] = time.Now().Unix() + 3600 }, true, ""},
	{"69", "iat 25 hours ahead", func(r *raw) { r.payload["iat"] = time.Now().Unix() + 25*3600 }, false, ""},
	{"70", "exp past", func(r *raw) { r.payload["exp"] = time.Now().Unix() - 60 }, false, ""},
	{"70", "nbf future", func(r *raw) { r.payload["nbf"] = time.Now().Unix() + 600 }, false, ""},
	{"70", "exp and nbf valid", func(r *raw) { r.payload["exp"], r.payload["nbf"] = time.Now().Unix()+60, time.Now().Unix()-60 }, true, ""},
	{"78", "nonce missing", unset(inPayload, "nonce"), false, api.UseDPoPNonce},
	{"79", "nonce garbled", set(inPayload, "nonce", "abcdefgh"), false, api.UseDPoPNonce},
	{"80", "nonce a number", set(inPayload, "nonce", 12), false, ""},
	{"80", "nonce empty", set(inPayload, "nonce", ""), false, api.UseDPoPNonce},
	{"85", "a client clock hours off, and a good nonce", func(r *raw) { r.payload["iat"] = time.Now().Unix() - 5*3600 }, true, ""},
	{"27, 30, 35", "every header member as a number", func(r *raw) {
		for name := range maps.Clone(r.header) {
			r.header[name] = 1
		}
	}, false, ""},
	{"51, 54, 56, 66", "an empty payload object", func(r *raw) { r.payloadText = "{}" }, false, ""},
}

// otherLast is another character with the same leading four bits: 64 bytes leave two bits of the last character unused.
func otherLast(c byte) byte {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return alphabet[strings.IndexByte(alphabet, c)|1]
}

// TestDPoPCases runs the cases that a proof decides by itself at the token endpoint and at a /v1 entry. What is refused
// is never a 5xx and leaves nothing consumed.
func TestDPoPCases(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	guard := newRaw(t)
	var component api.TokenResponse
	assertion := h.Assertion(authoritytest.GuardClaim)
	tokenEndpoint := func(proof string) authoritytest.Answer {
		r := h.Request("POST", api.PathToken, "application/x-www-form-urlencoded", []byte(authoritytest.ComponentForm(authoritytest.GuardName, assertion).Encode()))
		r.Header.Set(api.HeaderProof, proof)
		return h.Send(r)
	}
	guard.prepare(h, "POST", api.PathToken, "")
	h.Into(tokenEndpoint(guard.compact()), &component)
	assert.Equal(t, "DPoP", component.TokenType, "case 105")
	token := capability.Token(component.AccessToken)
	resource := func(proof string) authoritytest.Answer {
		r := h.Request("POST", api.PathNonces, "application/json", []byte(`{"count":1}`))
		r.Header.Set("Authorization", "DPoP "+token.Reveal())
		r.Header.Set(api.HeaderProof, proof)
		return h.Send(r)
	}
	for _, at := range []struct {
		name, path string
		token      capability.Token
		send       func(string) authoritytest.Answer
		status     int
	}{{"token endpoint", api.PathToken, "", tokenEndpoint, http.StatusBadRequest}, {"resource", api.PathNonces, token, resource, http.StatusUnauthorized}} {
		for _, c := range proofCases {
			t.Run(fmt.Sprintf("%s/%s %s", at.name, c.number, c.name), func(t *testing.T) {
				r := &raw{key: guard.key}
				r.prepare(h, "POST", at.path, at.token)
				if c.number == "65" && at.path == api.PathNonces {
					r.payload["htu"] = h.URL + api.PathToken
				} else {
					c.change(r)
				}
				before := h.Consumed()
				a := at.send(r.compact())
				assertAnswer(t, a)
				if c.accept {
					require.Equal(t, http.StatusOK, a.Status, string(a.Body))
					return
				}
				want := c.code
				if want == "" {
					want = api.InvalidDPoPProof
				}
				assert.Equal(t, at.status, a.Status, string(a.Body))
				assert.Equal(t, want, a.Problem().Code)
				assert.Equal(t, before, h.Consumed(), "a refused request has consumed something")
			})
		}
	}
	guard.prepare(h, "POST", api.PathNonces, token)
	assert.Equal(t, http.StatusOK, resource(guard.compact()).Status, "case 108: after all of it a correct proof still works")
}

// assertAnswer checks what every answer has (cases 86, 88; I-1).
func assertAnswer(t *testing.T, a authoritytest.Answer) {
	t.Helper()
	assert.Len(t, a.Header.Values("DPoP-Nonce"), 1)
	assert.Equal(t, "no-store", a.Header.Get("Cache-Control"))
	assert.Contains(t, a.Header.Get("Access-Control-Expose-Headers"), "DPoP-Nonce")
	for _, c := range a.Header.Get("DPoP-Nonce") {
		assert.True(t, c == 0x21 || c >= 0x23 && c <= 0x5b || c >= 0x5d && c <= 0x7e)
	}
	if a.Status == http.StatusUnauthorized {
		challenges := a.Header.Values("WWW-Authenticate")
		assert.Len(t, challenges, 1)
		assert.True(t, strings.HasPrefix(challenges[0], "DPoP error=\""), challenges[0])
	}
	assert.Less(t, a.Status, 500)
	assert.Contains(t, []string{"application/json", "application/problem+json"}, a.Header.Get("Content-Type"))
}

// The key of go-dpop#21: a coordinate that begins with a zero byte has the right thumbprint (case 43).
func TestLeadingZeroThumbprint(t *testing.T) {
	t.Parallel()
	x, _ := base64.RawURLEncoding.DecodeString("APgYG5BNQBWVT-w7yW51bi9M5hVluuqPOGXXl5if_NM")
	y, _ := base64.RawURLEncoding.DecodeString("QmnCr5fkc5hvPAHJlus28hFl9fvENm3BAHbt7YcDakQ")
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append([]byte{4}, append(x, y...)...))
	require.NoError(t, err)
	jkt, err := capability.JKT(key)
	require.NoError(t, err)
	assert.Equal(t, "blYhrm9qF1QjcvW-PCH4EI6gqOq6p1fcH8eCuxaT0WU", jkt.String())
}
