package capability

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// proofCase is one row of the list of 108 negative checks (docs: DPoP cases), by its number there.
type proofCase struct {
	number int
	name   string
	edit   func(d *draft)
	want   string // the code; empty accepts
}

func header(name, value string) func(*draft) {
	return func(d *draft) { d.header = d.header.set(name, value) }
}
func claim(name, value string) func(*draft) {
	return func(d *draft) { d.claims = d.claims.set(name, value) }
}
func jwk(name, value string) func(*draft) { return func(d *draft) { d.jwk = d.jwk.set(name, value) } }

func noHeader(name string) func(*draft) { return func(d *draft) { d.header = d.header.drop(name) } }
func noClaim(name string) func(*draft)  { return func(d *draft) { d.claims = d.claims.drop(name) } }
func noJWK(name string) func(*draft)    { return func(d *draft) { d.jwk = d.jwk.drop(name) } }

const bad = CodeInvalidProof

// Members of header and key: sections B to D.
var headerCases = []proofCase{
	{0, "good", func(*draft) {}, ""},
	{22, "alg twice", func(d *draft) { d.header = d.header.add(`"alg"`, `"ES256"`) }, bad},
	{22, "alg twice, first none", func(d *draft) { d.header = append(rawObject{{`"alg"`, `"none"`}}, d.header...) }, bad},
	{22, "alg twice, one escaped", func(d *draft) { d.header = d.header.add(`"\u0061lg"`, `"ES256"`) }, bad},
	{22, "unknown member twice", func(d *draft) { d.header = d.header.add(`"z"`, `1`).add(`"z"`, `1`) }, bad},
	{22, "x twice in jwk", func(d *draft) { d.jwk = append(d.jwk, d.jwk[2]) }, bad},
	{22, "x twice in jwk, one escaped", func(d *draft) { d.jwk = d.jwk.add(`"\u0078"`, d.jwk[2].value) }, bad},
	{22, "twice, deep in an unknown member", header("z", `[{"a":{"b":1,"b":1}}]`), bad},
	{23, "Alg", func(d *draft) { d.header = d.header.rename("alg", "Alg") }, bad},
	{23, "JWK", func(d *draft) { d.header = d.header.rename("jwk", "JWK").set("JWK", `{}`) }, bad},
	{23, "Typ", func(d *draft) { d.header = d.header.rename("typ", "Typ") }, bad},
	{23, "Kty", func(d *draft) { d.jwk = d.jwk.rename("kty", "Kty") }, bad},
	{23, "X", func(d *draft) { d.jwk = d.jwk.rename("x", "X") }, bad},
	{23, "ALG beside alg is ignored", header("ALG", `"none"`), ""},
	{24, "crit unknown", header("crit", `["x"]`), bad},
	{24, "crit empty", header("crit", `[]`), bad},
	{24, "crit names a known member", header("crit", `["alg"]`), bad},
	{24, "crit is null", header("crit", `null`), bad},
	{24, "b64 false", func(d *draft) { d.header = d.header.set("b64", `false`).set("crit", `["b64"]`) }, bad},
	{24, "b64 false without crit", header("b64", `false`), bad},
	{25, "unknown header member", header("zzz", `{"a":[1.5,null,"x",1e3]}`), ""},
	{25, "unknown claim", claim("zzz", `[null,1.5]`), ""},
	{25, "number that no double holds", claim("zzz", `1e400`), bad},
	{26, "jku", header("jku", `"https://evil.example/"`), ""},
	{26, "x5u", header("x5u", `"https://evil.example/"`), ""},
	{26, "x5c", header("x5c", `["AAAA"]`), ""},
	{26, "kid", header("kid", `"k"`), ""},
	{26, "kid is a number", header("kid", `1`), bad},
	{26, "x5c is a string", header("x5c", `"AAAA"`), bad},
	{26, "x5c of numbers", header("x5c", `[1]`), bad},
	{27, "typ missing", noHeader("typ"), bad},
	{27, "typ JWT", header("typ", `"JWT"`), bad},
	{27, "typ jwt+dpop", header("typ", `"jwt+dpop"`), bad},
	{27, "typ with a suffix", header("typ", `"dpop+jwt+x"`), bad},
	{27, "typ with a parameter", header("typ", `"dpop+jwt; a=b"`), bad},
	{27, "typ a number", header("typ", `1`), bad},
	{27, "typ an array", header("typ", `["dpop+jwt"]`), bad},
	{27, "typ null", header("typ", `null`), bad},
	{27, "typ empty", header("typ", `""`), bad},
	{28, "typ in capitals", header("typ", `"DPoP+JWT"`), ""},
	{28, "typ with prefix", header("typ", `"application/dpop+jwt"`), ""},
	{28, "typ with prefix in capitals", header("typ", `"Application/DPOP+jwt"`), ""},
	{28, "typ with the prefix twice", header("typ", `"application/application/dpop+jwt"`), bad},
	{28, "typ with another prefix", header("typ", `"text/dpop+jwt"`), bad},
	{29, "typ of an access token", header("typ", `"at+jwt"`), bad},

	{30, "alg missing", noHeader("alg"), bad},
	{30, "alg null", header("alg", `null`), bad},
	{30, "alg a number", header("alg", `256`), bad},
	{30, "alg an array", header("alg", `["ES256"]`), bad},
	{31, "none", header("alg", `"none"`), bad},
	{31, "None", header("alg", `"None"`), bad},
	{31, "NONE", header("alg", `"NONE"`), bad},
	{32, "HS256 with a public key", header("alg", `"HS256"`), bad},
	{32, "HS256 with an oct key", func(d *draft) {
		d.header = d.header.set("alg", `"HS256"`).set("jwk", `{"kty":"oct","k":"AAAA"}`)
	}, bad},
	{33, "RS256", header("alg", `"RS256"`), bad},
	{33, "EdDSA", header("alg", `"EdDSA"`), bad},
	{33, "es256", header("alg", `"es256"`), bad},
	{34, "ES384 with P-256", header("alg", `"ES384"`), bad},
	{34, "ES256 with P-384", jwk("crv", `"P-384"`), bad},
	{34, "ES256K", header("alg", `"ES256K"`), bad},
	{34, "secp256k1", jwk("crv", `"secp256k1"`), bad},
	{34, "jwk says another alg", jwk("alg", `"ES384"`), bad},

	{35, "jwk missing", noHeader("jwk"), bad},
	{35, "jwk null", header("jwk", `null`), bad},
	{35, "jwk a string", header("jwk", `"x"`), bad},
	{35, "jwk an array", header("jwk", `[]`), bad},
	{35, "jwk a number", header("jwk", `1`), bad},
	{35, "jwk empty", header("jwk", `{}`), bad},
	{36, "d", jwk("d", `"AAAA"`), bad},
	{36, "d empty", jwk("d", `""`), bad},
	{36, "d null", jwk("d", `null`), bad},
	{36, "d escaped", func(d *draft) { d.jwk = d.jwk.add(`"\u0064"`, `""`) }, bad},
	{36, "p", jwk("p", `""`), bad},
	{36, "q", jwk("q", `""`), bad},
	{36, "dp", jwk("dp", `""`), bad},
	{36, "dq", jwk("dq", `""`), bad},
	{36, "qi", jwk("qi", `""`), bad},
	{36, "oth", jwk("oth", `[]`), bad},
	{36, "k", jwk("k", `""`), bad},
	{36, "priv", jwk("priv", `""`), bad},
	{37, "kty missing", noJWK("kty"), bad},
	{37, "kty oct", jwk("kty", `"oct"`), bad},
	{37, "kty ec", jwk("kty", `"ec"`), bad},
	{37, "kty a number", jwk("kty", `1`), bad},
	{38, "crv missing", noJWK("crv"), bad},
	{38, "crv a number", jwk("crv", `256`), bad},
	{38, "crv p-256", jwk("crv", `"p-256"`), bad},
	{39, "x missing", noJWK("x"), bad},
	{39, "y missing", noJWK("y"), bad},
	{39, "x a number", jwk("x", `1`), bad},
	{39, "y null", jwk("y", `null`), bad},
	{39, "x padded", func(d *draft) { d.jwk = d.jwk.set("x", strings.TrimSuffix(d.jwk[2].value, `"`)+`="`) }, bad},
	{39, "x with trailing bits", func(d *draft) { d.jwk = d.jwk.set("x", `"`+loosen(strings.Trim(d.jwk[2].value, `"`))+`"`) }, bad},
	{39, "x with a line break", func(d *draft) { d.jwk = d.jwk.set("x", strings.TrimSuffix(d.jwk[2].value, `"`)+`\n"`) }, bad},
	{39, "x escaped is still x", func(d *draft) {
		x := d.jwk[2].value
		d.jwk = d.jwk.set("x", `"\u00`+hex2(x[1])+x[2:])
	}, ""},
	{40, "31 bytes", jwk("x", `"`+b64(make([]byte, 31))+`"`), bad},
	{40, "33 bytes", jwk("x", `"`+b64(make([]byte, 33))+`"`), bad},
	{40, "empty", jwk("y", `""`), bad},
	{41, "x = p", jwk("x", `"_____wAAAAEAAAAAAAAAAAAAAAD_______________8"`), bad},
	{41, "y = 2^256-1", jwk("y", `"`+b64([]byte(strings.Repeat("\xff", 32)))+`"`), bad},
	{42, "off the curve (jwx#840)", func(d *draft) {
		d.jwk = d.jwk.set("x", `"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqx7D4"`).set("y", `"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"`)
	}, bad},
	{42, "(0,0)", func(d *draft) {
		zero := `"` + b64(make([]byte, 32)) + `"`
		d.jwk = d.jwk.set("x", zero).set("y", zero)
	}, bad},
	{44, "kid, use, alg and an unknown member", func(d *draft) {
		d.jwk = d.jwk.set("kid", `"k"`).set("use", `"sig"`).set("alg", `"ES256"`).set("zzz", `null`)
	}, ""},
	{44, "use enc", jwk("use", `"enc"`), bad},
	{44, "use null", jwk("use", `null`), bad},
	{44, "key_ops verify", jwk("key_ops", `["verify"]`), ""},
	{44, "key_ops sign and verify", jwk("key_ops", `["sign","verify"]`), ""},
	{44, "key_ops sign", jwk("key_ops", `["sign"]`), bad},
	{44, "key_ops empty", jwk("key_ops", `[]`), bad},
	{44, "key_ops a string", jwk("key_ops", `"verify"`), bad},
	{44, "key_ops verify twice", jwk("key_ops", `["verify","verify"]`), bad},
	{44, "key_ops with another", jwk("key_ops", `["verify","deriveKey"]`), bad},
	{44, "kid a number", jwk("kid", `1`), bad},
	{44, "a certificate", jwk("x5c", `[]`), bad},
}

// Claims: section F, and of G what a parser decides.
var claimCases = []proofCase{
	{51, "jti missing", noClaim("jti"), bad},
	{51, "jti empty", claim("jti", `""`), bad},
	{51, "jti a number", claim("jti", `1`), bad},
	{51, "jti null", claim("jti", `null`), bad},
	{52, "jti of 128 bytes", claim("jti", `"`+strings.Repeat("j", 128)+`"`), ""},
	{52, "jti of 129 bytes", claim("jti", `"`+strings.Repeat("j", 129)+`"`), bad},
	{53, "jti twice", func(d *draft) { d.claims = d.claims.add(`"jti"`, `"x"`) }, bad},
	{53, "jti twice, one escaped", func(d *draft) { d.claims = d.claims.add(`"\u006ati"`, `"x"`) }, bad},
	{53, "JTI beside jti is ignored", claim("JTI", `"x"`), ""},
	{53, "only JTI", func(d *draft) { d.claims = d.claims.rename("jti", "JTI") }, bad},
	{54, "htm missing", noClaim("htm"), bad},
	{54, "htm of another method", claim("htm", `"PUT"`), bad},
	{54, "htm in lower case", claim("htm", `"post"`), bad},
	{54, "htm empty", claim("htm", `""`), bad},
	{54, "htm an array", claim("htm", `["POST"]`), bad},
	{56, "htu missing", noClaim("htu"), bad},
	{56, "htu a number", claim("htu", `1`), bad},
	{56, "htu an array", claim("htu", `["`+testURL+`"]`), bad},
	{56, "htu an object", claim("htu", `{}`), bad},
	{56, "htu empty", claim("htu", `""`), bad},
	{57, "htu malformed", claim("htu", `"https://guard.example/%zz"`), bad},
	{57, "htu relative", claim("htu", `"/orders/7"`), bad},
	{57, "htu without scheme", claim("htu", `"//guard.example/orders/7"`), bad},
	{57, "htu of another scheme", claim("htu", `"ftp://guard.example/orders/7"`), bad},
	{57, "htu with user information", claim("htu", `"https://a@guard.example/orders/7"`), bad},
	{57, "htu with a blank", claim("htu", `" `+testURL+`"`), bad},
	{58, "htu of another host", claim("htu", `"https://evil.example/orders/7"`), bad},
	{58, "htu of another port", claim("htu", `"https://guard.example:444/orders/7"`), bad},
	{58, "htu with http", claim("htu", `"http://guard.example/orders/7"`), bad},
	{58, "htu of another path", claim("htu", `"https://guard.example/orders/8"`), bad},
	{58, "htu with another path case", claim("htu", `"https://guard.example/Orders/7"`), bad},
	{59, "trailing slash", claim("htu", `"`+testURL+`/"`), bad},
	{60, "htu with query and fragment", claim("htu", `"`+testURL+`?a=b/c#d"`), ""},
	{61, "capitals in scheme and host", claim("htu", `"HTTPS://Guard.EXAMPLE/orders/7"`), ""},
	{61, "explicit default port", claim("htu", `"https://guard.example:443/orders/7"`), ""},
	{61, "empty port", claim("htu", `"https://guard.example:/orders/7"`), ""},
	{62, "unreserved encoded", claim("htu", `"https://guard.example/%6frders/%37"`), ""},
	{62, "slash encoded", claim("htu", `"https://guard.example/orders%2F7"`), bad},
	{63, "dot segments", claim("htu", `"https://guard.example/a/../orders/./7"`), ""},
	{63, "double slash", claim("htu", `"https://guard.example//orders/7"`), bad},
	{64, "internal name", claim("htu", `"http://guard.svc.cluster.local:8080/orders/7"`), bad},
	{65, "another endpoint", claim("htu", `"https://guard.example/token"`), bad},
	{66, "iat missing", noClaim("iat"), bad},
	{66, "iat null", claim("iat", `null`), bad},
	{66, "iat a string", claim("iat", `"1780000000"`), bad},
	{66, "iat negative", claim("iat", `-1780000000`), bad},
	{66, "iat zero", claim("iat", `0`), bad},
	{66, "iat 1e400", claim("iat", `1e400`), bad},
	{66, "iat with an exponent", claim("iat", `178e7`), bad},
	{66, "iat with a fraction", claim("iat", `1780000000.5`), bad},
	{66, "iat in milliseconds", claim("iat", `1780000000000`), bad},
	{67, "iat 25 h old", claim("iat", `1779910000`), bad},
	{67, "iat 23 h old", claim("iat", `1779917200`), ""},
	{68, "iat 10 s ahead", claim("iat", `1780000010`), ""},
	{69, "iat 1 h ahead: the nonce decides", claim("iat", `1780003600`), ""},
	{69, "iat 25 h ahead", claim("iat", `1780090000`), bad},
	{70, "exp past", claim("exp", `1779999999`), bad},
	{70, "exp now", claim("exp", `1780000000`), bad},
	{70, "exp to come", claim("exp", `1780000001`), ""},
	{70, "exp a string", claim("exp", `"1780000001"`), bad},
	{70, "exp null", claim("exp", `null`), bad},
	{70, "nbf past", claim("nbf", `1779999999`), ""},
	{70, "nbf 10 s ahead", claim("nbf", `1780000010`), ""},
	{70, "nbf 11 s ahead", claim("nbf", `1780000011`), bad},
	{71, "ath missing", noClaim("ath"), bad},
	{71, "ath empty", claim("ath", `""`), bad},
	{71, "ath a number", claim("ath", `1`), bad},
	{72, "ath of another token", claim("ath", `"`+ath("other")+`"`), bad},
	{72, "ath in hexadecimal", claim("ath", `"`+strings.Repeat("0", 64)+`"`), bad},
	{72, "ath padded", claim("ath", `"`+ath(testToken)+`="`), bad},
	{72, "ath of SHA-512", claim("ath", `"`+strings.Repeat("A", 86)+`"`), bad},
	{80, "nonce a number", claim("nonce", `1`), bad},
	{80, "nonce null", claim("nonce", `null`), bad},
	{80, "nonce empty is no nonce", claim("nonce", `""`), ""},
	{25, "aud of one", claim("aud", `"a"`), ""},
	{25, "aud of two", claim("aud", `["a","b"]`), ""},
	{25, "aud a number", claim("aud", `1`), bad},
	{25, "iss a number", claim("iss", `1`), bad},
}

func TestProofCases(t *testing.T) {
	t.Parallel()
	for _, c := range append(headerCases, claimCases...) {
		t.Run(c.title(), func(t *testing.T) {
			t.Parallel()
			d := goodDraft(t)
			c.edit(d)
			p, err := CheckProof(d.spell(t), goodExpect(t))
			assert.Equal(t, c.want, code(t, err))
			assert.Equal(t, c.want == "", p != nil)
		})
	}
}

// Cases 16 to 21: what is wrong before there is any JSON.
func TestProofStructure(t *testing.T) {
	t.Parallel()
	k := fixedKey(t, "holder")
	good := goodDraft(t).spell(t)
	part := strings.Split(good, ".")
	d := goodDraft(t)
	d.header = d.header.set("jwk", d.jwk.String())
	h, c := d.header.String(), d.claims.String()
	for name, in := range map[string]string{
		"5 empty":                     "",
		"6 blank":                     " " + good,
		"6 line break":                good[:20] + "\n" + good[20:],
		"6 carriage return at end":    good + "\r\n",
		"6 NUL":                       good + "\x00",
		"6 not ASCII":                 good + "é",
		"4 two joined by a comma":     good + "," + good,
		"9 too large":                 strings.Repeat("A", maxProof+1),
		"9 too large but good":        signed(t, k, h, d.claims.set("z", `"`+strings.Repeat("z", maxProof)+`"`).String()),
		"16 one segment":              part[0],
		"16 two segments":             part[0] + "." + part[1],
		"16 four segments":            good + ".AAAA",
		"16 five segments":            good + ".AAAA.AAAA",
		"17 flattened":                `{"protected":"` + part[0] + `","payload":"` + part[1] + `","signature":"` + part[2] + `"}`,
		"18 empty header":             "." + part[1] + "." + part[2],
		"18 empty payload":            part[0] + ".." + part[2],
		"18 empty signature":          part[0] + "." + part[1] + ".",
		"18 only dots":                "..",
		"19 dots":                     strings.Repeat(".", maxProof),
		"19 many dots":                strings.Repeat(".", 500_000),
		"20 padded signature":         good + "==",
		"20 padded header":            part[0] + "=." + part[1] + "." + part[2],
		"20 standard alphabet":        part[0] + "." + part[1] + "." + strings.Repeat("+/", 43),
		"20 line break in payload":    part[0] + "." + part[1][:8] + "\n" + part[1][8:] + "." + part[2],
		"20 trailing bits, signature": part[0] + "." + part[1] + "." + loosen(part[2]),
		"20 length 1 mod 4":           part[0] + "." + part[1][:len(part[1])/4*4] + "A." + part[2],
		"21 header is an array":       signed(t, k, "["+h+"]", c),
		"21 header is a string":       signed(t, k, `"x"`, c),
		"21 payload is an array":      signed(t, k, h, "["+c+"]"),
		"21 payload is null":          signed(t, k, h, "null"),
		"21 trailing bytes":           signed(t, k, h+"x", c),
		"21 trailing object":          signed(t, k, h, c+"{}"),
		"21 trailing NUL":             signed(t, k, h, c+"\x00"),
		"21 byte order mark":          signed(t, k, "\xef\xbb\xbf"+h, c),
		"21 bad UTF-8":                signed(t, k, h, d.claims.set("z", "\"\xff\"").String()),
		"21 lone surrogate":           signed(t, k, h, d.claims.set("z", `"\ud800"`).String()),
		"21 deep":                     signed(t, k, h, d.claims.set("z", strings.Repeat("[", 100)+strings.Repeat("]", 100)).String()),
		"45 signature of nothing":     part[0] + "." + part[1] + "." + strings.Repeat("A", 86),
	} {
		p, err := CheckProof(in, goodExpect(t))
		assert.Equal(t, bad, code(t, err), name)
		assert.Nil(t, p, name)
	}
	for name, in := range map[string]string{
		"white space in JSON": signed(t, k, " "+strings.ReplaceAll(h, ",", " ,\n\t")+"\r\n", c),
		"escaped slashes":     signed(t, k, h, strings.ReplaceAll(c, "/", `\/`)),
	} {
		_, err := CheckProof(in, goodExpect(t))
		assert.NoError(t, err, name)
	}
}

// loosen sets a trailing bit that a lenient decoder drops, in text of 2 or 3 characters past a multiple of 4.
func loosen(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	i := strings.IndexByte(alphabet, s[len(s)-1])
	return s[:len(s)-1] + alphabet[i^1:i^1+1]
}

func hex2(c byte) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[c>>4], digits[c&15]})
}

// Cases 45 to 50.
func TestProofSignature(t *testing.T) {
	t.Parallel()
	good := goodDraft(t).spell(t)
	part := strings.Split(good, ".")
	p, err := CheckProof(good, goodExpect(t))
	require.NoError(t, err)
	n := new(big.Int).SetBytes(order)
	r, s := new(big.Int).SetBytes(p.signature[:32]), new(big.Int).SetBytes(p.signature[32:])
	pair := func(r, s *big.Int) string {
		var sig [64]byte
		r.FillBytes(sig[:32])
		s.FillBytes(sig[32:])
		return part[0] + "." + part[1] + "." + b64(sig[:])
	}
	one, zero, last := big.NewInt(1), big.NewInt(0), new(big.Int).Sub(n, big.NewInt(1))
	top := new(big.Int).Sub(new(big.Int).Lsh(one, 256), one)
	var bits int
	for i := range 64 {
		flipped := p.signature
		flipped[i] ^= 1
		_, err := CheckProof(part[0]+"."+part[1]+"."+b64(flipped[:]), goodExpect(t))
		assert.Equal(t, bad, code(t, err), "45 byte %d", i)
		bits++
	}
	require.Equal(t, 64, bits)

	d := goodDraft(t)
	d.claims = d.claims.set("jti", `"other"`)
	other := strings.Split(d.spell(t), ".")
	d = goodDraft(t)
	d.header = d.header.set("kid", `"k"`)
	spelled := strings.Split(d.spell(t), ".")
	d = goodDraft(t)
	d.key = fixedKey(t, "thief")
	for name, in := range map[string]string{
		"45 payload of another": part[0] + "." + other[1] + "." + part[2],
		"45 header of another":  spelled[0] + "." + part[1] + "." + part[2],
		"46 DER":                part[0] + "." + part[1] + "." + b64(der(p.signature)),
		"47 63 bytes":           part[0] + "." + part[1] + "." + b64(p.signature[:63]),
		"47 65 bytes":           part[0] + "." + part[1] + "." + b64(append(p.signature[:], 0)),
		"47 96 bytes":           part[0] + "." + part[1] + "." + b64(make([]byte, 96)),
		"49 another key":        d.spell(t),
	} {
		_, err := CheckProof(in, goodExpect(t))
		assert.Equal(t, bad, code(t, err), name)
	}
	odd := []*big.Int{zero, one, last, n, new(big.Int).Add(n, one), top}
	for _, a := range odd {
		for _, b := range odd {
			_, err := CheckProof(pair(a, b), goodExpect(t))
			assert.Equal(t, bad, code(t, err), "48")
		}
		_, err := CheckProof(pair(r, a), goodExpect(t))
		assert.Equal(t, bad, code(t, err), "48")
		_, err = CheckProof(pair(a, s), goodExpect(t))
		assert.Equal(t, bad, code(t, err), "48")
	}

	twin, err := CheckProof(pair(r, new(big.Int).Sub(n, s)), goodExpect(t))
	require.NoError(t, err, "50: ECDSA gives every signature a twin")
	assert.Equal(t, p.Digest(), twin.Digest(), "50: the replay record knows both by one name")
	assert.NotEqual(t, p.signature, twin.signature)
}

func der(sig [64]byte) []byte {
	out := appendInteger(appendInteger([]byte{0x30, 0}, sig[:32]), sig[32:])
	out[1] = byte(len(out) - 2)
	return out
}

// Cases 71 to 74, 84 and 85 seen from the request's side.
func TestProofAgainstRequest(t *testing.T) {
	t.Parallel()
	holder, thief := fixedKey(t, "holder").Thumbprint(), fixedKey(t, "thief").Thumbprint()
	bare := func(d *draft) { d.claims = d.claims.drop("ath") }
	for name, c := range map[string]struct {
		edit   func(*draft)
		expect func(*Expect)
		want   string
	}{
		"54 wrong method":                   {nil, func(e *Expect) { e.Method = "GET" }, bad},
		"54 no method expected":             {nil, func(e *Expect) { e.Method = "" }, bad},
		"58 no URL expected":                {nil, func(e *Expect) { e.URL = "" }, bad},
		"58 broken URL expected":            {nil, func(e *Expect) { e.URL = "guard.example" }, bad},
		"62 expected URL is normalized too": {nil, func(e *Expect) { e.URL = "HTTPS://guard.example:443/%6frders/7" }, ""},
		"63 dot segments in the request":    {nil, func(e *Expect) { e.URL = "https://guard.example/a/../orders/7" }, bad},
		"63 the same, encoded":              {nil, func(e *Expect) { e.URL = "https://guard.example/a/%2e%2e/orders/7" }, bad},
		"64 URL from a forged Host":         {nil, func(e *Expect) { e.URL = "https://evil.example/orders/7" }, bad},
		"71 ath is required with a token":   {bare, nil, bad},
		"71 a token without a holder":       {nil, func(e *Expect) { e.Holder = Thumbprint{} }, CodeInvalidToken},
		"73 ath is ignored without a token": {nil, func(e *Expect) { e.AccessToken = "" }, ""},
		"73 no ath and no token":            {bare, func(e *Expect) { e.AccessToken = "" }, ""},
		"74 another key than cnf.jkt":       {nil, func(e *Expect) { e.Holder = thief }, CodeInvalidToken},
		"74 the same without a token":       {nil, func(e *Expect) { e.AccessToken, e.Holder = "", thief }, CodeInvalidToken},
		"74 a first proof brings its key":   {nil, func(e *Expect) { e.AccessToken, e.Holder = "", Thumbprint{} }, ""},
		"85 clock off by 23 h":              {nil, func(e *Expect) { e.Now = e.Now.Add(23 * 3600e9) }, ""},
		"67 window of a minute":             {nil, func(e *Expect) { e.Window, e.Now = 60e9, e.Now.Add(61e9) }, bad},
		"69 window of a minute, ahead":      {nil, func(e *Expect) { e.Window, e.Now = 60e9, e.Now.Add(-61e9) }, bad},
		"67 at the edge of the window":      {nil, func(e *Expect) { e.Window, e.Now = 60e9, e.Now.Add(60e9) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, e := goodDraft(t), goodExpect(t)
			if c.edit != nil {
				c.edit(d)
			}
			if c.expect != nil {
				c.expect(&e)
			}
			require.Equal(t, holder, d.key.Thumbprint())
			_, err := CheckProof(d.spell(t), e)
			assert.Equal(t, c.want, code(t, err))
		})
	}
}

// A stale nonce must be refused as such, and neither judged before the request fits nor paid for with a signature.
func TestNonceIsAskedLastAndBeforeTheSignature(t *testing.T) {
	t.Parallel()
	stale := &ProofError{CodeUseNonce, "stale"}
	var asked []string
	e := goodExpect(t)
	e.Nonce = func(nonce string) error {
		asked = append(asked, nonce)
		return stale
	}
	d := goodDraft(t)
	d.claims = d.claims.set("nonce", `"n-1"`)
	d.key = fixedKey(t, "thief")
	_, err := CheckProof(d.spell(t), e)
	assert.Equal(t, stale, err, "although the signature is wrong too")
	assert.Equal(t, []string{"n-1"}, asked)

	d.claims = d.claims.set("htm", `"PUT"`)
	_, err = CheckProof(d.spell(t), e)
	assert.Equal(t, bad, code(t, err))
	assert.Len(t, asked, 1, "a proof for another request is not asked for its nonce")
}

// What a caller reads from a proof, and cases 83, 93, 94 and 98 as far as the record's name decides them.
func TestProofDigest(t *testing.T) {
	t.Parallel()
	digest := func(edit func(*draft)) [32]byte {
		d := goodDraft(t)
		edit(d)
		p, err := ParseProof(d.spell(t))
		require.NoError(t, err)
		return p.Digest()
	}
	same := digest(func(*draft) {})
	jkt := fixedKey(t, "holder").Thumbprint()
	assert.Equal(t, sha256.Sum256([]byte("nightwarrant/proof/v1\x00"+string(jkt[:])+"\x00a-b-c")), same)
	assert.NotEqual(t, same, digest(claim("jti", `"other"`)), "83: a new jti")
	assert.Equal(t, same, digest(claim("htu", `"https://guard.example/other"`)), "94: another URI is the same proof")
	assert.Equal(t, same, digest(claim("nonce", `"n"`)), "P29: the minute is the authority's part of the key")
	assert.Equal(t, same, digest(claim("jti", `"a\u002db-c"`)), "98: another spelling of one jti")

	a, err := NewProof(fixedKey(t, "thief"), ProofParams{Method: "POST", URL: testURL, Now: testNow})
	require.NoError(t, err)
	p, err := ParseProof(a)
	require.NoError(t, err)
	p.JTI = "a-b-c"
	assert.NotEqual(t, same, p.Digest(), "93: the same jti of another key")
}

func TestProofFields(t *testing.T) {
	t.Parallel()
	d := goodDraft(t)
	d.claims = d.claims.set("nonce", `"n-1"`).set("htu", `"HTTPS://guard.example:443/orders/7?x"`)
	p, err := ParseProof(d.spell(t))
	require.NoError(t, err)
	assert.Equal(t, "a-b-c", p.JTI)
	assert.Equal(t, "POST", p.Method)
	assert.Equal(t, testURL, p.Target)
	assert.Equal(t, "n-1", p.Nonce)
	assert.True(t, testNow.Equal(p.IssuedAt))
	assert.Equal(t, d.key.Thumbprint(), p.Key)
	require.NoError(t, p.VerifySignature())
	assert.Equal(t, bad, code(t, new(Proof).VerifySignature()), "made by hand")
}

// Case 29: nothing that is not a proof passes for one, and no proof for a capability.
func TestProofIsNothingElse(t *testing.T) {
	t.Parallel()
	_, err := CheckProof(signRun(t, goodRun(t)).Reveal(), goodExpect(t))
	assert.Equal(t, bad, code(t, err))
	proof := Token(goodDraft(t).spell(t))
	_, err = VerifyRun(proof, testKeys(t), testExpectation())
	assert.Equal(t, CodeInvalidToken, code(t, err))
}

// Every case of sections B to F that a parser can decide is in one of the tables above.
func TestProofCasesAreComplete(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, c := range append(headerCases, claimCases...) {
		seen[c.number] = true
	}
	elsewhere := map[int]string{
		43: "TestLeadingZeroKey", 45: "TestProofSignature", 46: "TestProofSignature", 47: "TestProofSignature", 48: "TestProofSignature",
		49: "TestProofSignature", 50: "TestProofSignature", 55: "the server's", 73: "TestProofAgainstRequest", 74: "TestProofAgainstRequest",
		75: "TestConfirmation", 76: "TestConfirmation", 77: "TestCapabilityClaims",
	}
	for n := 22; n <= 77; n++ {
		assert.True(t, seen[n] != (elsewhere[n] != ""), "case %d", n)
	}
}

func (c proofCase) title() string { return fmt.Sprintf("%d %s", c.number, c.name) }
