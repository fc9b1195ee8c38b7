package jwks

import (
	"crypto"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func TestTokenStructure(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	good := issuer.Token(d.claims())
	_, err := d.verify(t, good)
	require.NoError(t, err)
	part := strings.Split(good, ".")
	for name, compact := range map[string]string{
		"empty":             "",
		"no dots":           "token",
		"dots":              "..",
		"many dots":         strings.Repeat(".", 1<<20),
		"two segments":      part[0] + "." + part[1],
		"four segments":     good + ".",
		"five segments":     good + "." + part[0] + "." + part[1],
		"no header":         "." + part[1] + "." + part[2],
		"no payload":        part[0] + ".." + part[2],
		"no signature":      part[0] + "." + part[1] + ".",
		"blank before":      " " + good,
		"line end after":    good + "\n",
		"line end inside":   part[0][:4] + "\n" + part[0][4:] + "." + part[1] + "." + part[2],
		"line end in sig":   part[0] + "." + part[1] + "." + part[2][:4] + "\r\n" + part[2][4:],
		"padded":            part[0] + "." + part[1] + "." + part[2] + "==",
		"trailing bits":     part[0] + "." + part[1] + "." + part[2][:85] + "B",
		"standard alphabet": part[0] + "." + part[1] + "." + "+/" + part[2][2:],
		"null byte":         good[:20] + "\x00" + good[21:],
		"too large":         issuer.Token(d.claims("pad", strings.Repeat("a", MaxToken))),
		"general JSON":      `{"payload":"` + part[1] + `","signatures":[{"protected":"` + part[0] + `","signature":"` + part[2] + `"}]}`,
		"flattened JSON":    `{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`,
	} {
		_, err := d.verify(t, compact)
		require.ErrorIs(t, err, Malformed, name)
	}
}

func TestTokenHeader(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	payload := claimsJSON(t, issuer, d.claims())
	for name, tc := range map[string]struct {
		header string
		want   error
	}{
		"typ absent":           {`{"alg":"ES256","kid":"one"}`, nil},
		"typ JWT":              {`{"alg":"ES256","kid":"one","typ":"JWT"}`, nil},
		"typ JOSE":             {`{"alg":"ES256","kid":"one","typ":"JOSE"}`, nil},
		"typ as media type":    {`{"alg":"ES256","kid":"one","typ":"application/jwt"}`, nil},
		"unknown member":       {`{"alg":"ES256","kid":"one","x5t":"AAAA","more":{"a":[1]}}`, nil},
		"typ proof":            {`{"alg":"ES256","kid":"one","typ":"dpop+jwt"}`, Malformed},
		"typ access token":     {`{"alg":"ES256","kid":"one","typ":"at+jwt"}`, Malformed},
		"typ access, long":     {`{"alg":"ES256","kid":"one","typ":"Application/AT+JWT"}`, Malformed},
		"typ something":        {`{"alg":"ES256","kid":"one","typ":"logout+jwt"}`, Malformed},
		"typ empty":            {`{"alg":"ES256","kid":"one","typ":""}`, Malformed},
		"typ null":             {`{"alg":"ES256","kid":"one","typ":null}`, Malformed},
		"typ number":           {`{"alg":"ES256","kid":"one","typ":1}`, Malformed},
		"typ array":            {`{"alg":"ES256","kid":"one","typ":["JWT"]}`, Malformed},
		"kid absent":           {`{"alg":"ES256"}`, Malformed},
		"kid empty":            {`{"alg":"ES256","kid":""}`, Malformed},
		"kid number":           {`{"alg":"ES256","kid":1}`, Malformed},
		"kid null":             {`{"alg":"ES256","kid":null}`, Malformed},
		"kid unknown":          {`{"alg":"ES256","kid":"two"}`, UnknownKey},
		"alg absent":           {`{"kid":"one"}`, Malformed},
		"alg none":             {`{"alg":"none","kid":"one"}`, Malformed},
		"alg None":             {`{"alg":"None","kid":"one"}`, Malformed},
		"alg lower case":       {`{"alg":"es256","kid":"one"}`, Malformed},
		"alg HS256":            {`{"alg":"HS256","kid":"one"}`, Malformed},
		"alg PS256":            {`{"alg":"PS256","kid":"one"}`, Malformed},
		"alg ES384":            {`{"alg":"ES384","kid":"one"}`, Malformed},
		"alg null":             {`{"alg":null,"kid":"one"}`, Malformed},
		"alg of another key":   {`{"alg":"RS256","kid":"one"}`, BadSignature},
		"crit":                 {`{"alg":"ES256","kid":"one","crit":["exp"],"exp":1}`, Malformed},
		"crit empty":           {`{"alg":"ES256","kid":"one","crit":[]}`, Malformed},
		"b64":                  {`{"alg":"ES256","kid":"one","b64":false}`, Malformed},
		"duplicate":            {`{"alg":"ES256","alg":"ES256","kid":"one"}`, Malformed},
		"duplicate escaped":    {`{"alg":"ES256","\u0061lg":"none","kid":"one"}`, Malformed},
		"duplicate nested":     {`{"alg":"ES256","kid":"one","jwk":{"x":1,"x":2}}`, Malformed},
		"case variant":         {`{"alg":"ES256","kid":"one","Alg":"none"}`, Malformed},
		"case variant folding": {`{"alg":"ES256","` + "\u212a" + `id":"one","kid":"one"}`, Malformed},
		"only a case variant":  {`{"Alg":"ES256","kid":"one"}`, Malformed},
		"array":                {`["ES256"]`, Malformed},
		"string":               {`"ES256"`, Malformed},
		"null":                 {`null`, Malformed},
		"trailing":             {`{"alg":"ES256","kid":"one"}{}`, Malformed},
		"byte order mark":      {"\ufeff" + `{"alg":"ES256","kid":"one"}`, Malformed},
		"bad UTF-8":            {`{"alg":"ES256","kid":"one","a":"` + "\xff" + `"}`, Malformed},
		"lone surrogate":       {`{"alg":"ES256","kid":"one","a":"\ud800"}`, Malformed},
		"lone surrogate name":  {`{"alg":"ES256","kid":"one","\udc00":1}`, Malformed},
		"deep":                 {`{"alg":"ES256","kid":"one","a":` + strings.Repeat("[", 50) + strings.Repeat("]", 50) + `}`, Malformed},
	} {
		_, err := d.verify(t, jwkstest.Sign(issuer.Signer("one"), []byte(tc.header), payload))
		if tc.want == nil {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, tc.want, name)
		}
	}
}

// Keys and addresses in a header are neither used nor visited.
func TestTokenCannotBringItsKey(t *testing.T) {
	t.Parallel()
	issuer, evil := jwkstest.New(t), jwkstest.New(t)
	d := newDesk(t, issuer)
	thief := evil.Signer("one")
	jwk, err := json.Marshal(jwkstest.PublicJWK(thief.Public()))
	require.NoError(t, err)
	for _, kid := range []string{"one", "two"} {
		header := fmt.Sprintf(`{"alg":"ES256","kid":%q,"jwk":%s,"jku":%q,"x5u":%q}`, kid, jwk, evil.JWKSURL(), evil.JWKSURL())
		_, err = d.verify(t, jwkstest.Sign(thief, []byte(header), claimsJSON(t, issuer, d.claims())))
		require.Error(t, err)
	}
	require.Zero(t, evil.Fetches())
}

func TestTokenClaims(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	now := d.clock.now().Unix()
	n := json.Number("1")
	for _, tc := range []struct {
		name  string
		pairs []any
		want  error
	}{
		{"good", nil, nil},
		{"array of one audience", []any{"aud", []any{audience}}, nil},
		{"more claims", []any{"a", nil, "b", 1.5, "c", map[string]any{"d": []any{true}}}, nil},
		{"ends now + 1", []any{"exp", now + 1}, nil},
		{"issued a little ahead", []any{"iat", now + 10}, nil},
		{"begins a little ahead", []any{"nbf", now + 10}, nil},
		{"longest", []any{"exp", now + 3600}, nil},

		{"no issuer", []any{"iss", ""}, Malformed},
		{"issuer null", []any{"iss", (*int)(nil)}, Malformed},
		{"issuer number", []any{"iss", 1}, Malformed},
		{"issuer array", []any{"iss", []any{issuer.URL}}, Malformed},
		{"issuer with slash", []any{"iss", issuer.URL + "/"}, UntrustedIssuer},
		{"issuer other case", []any{"iss", strings.ToUpper(issuer.URL)}, UntrustedIssuer},
		{"our issuer", []any{"iss", own}, UntrustedIssuer},
		{"no subject", []any{"sub", nil}, Malformed},
		{"empty subject", []any{"sub", ""}, Malformed},
		{"subject number", []any{"sub", 1}, Malformed},
		{"huge subject", []any{"sub", strings.Repeat("a", 1025)}, Malformed},
		{"jti number", []any{"jti", 1}, Malformed},
		{"jti empty", []any{"jti", ""}, Malformed},

		{"no audience", []any{"aud", nil}, Malformed},
		{"empty audience", []any{"aud", ""}, Malformed},
		{"empty audience array", []any{"aud", []any{}}, Malformed},
		{"audience of blank", []any{"aud", []any{""}}, Malformed},
		{"audience number", []any{"aud", 1}, Malformed},
		{"audience array of numbers", []any{"aud", []any{1}}, Malformed},
		{"audience object", []any{"aud", map[string]any{audience: 1}}, Malformed},
		{"audience nested", []any{"aud", []any{[]any{audience}}}, Malformed},
		{"two audiences", []any{"aud", []any{audience, "https://other.example"}}, WrongAudience},
		{"two audiences reversed", []any{"aud", []any{"https://other.example", audience}}, WrongAudience},
		{"one audience twice", []any{"aud", []any{audience, audience}}, WrongAudience},
		{"other audience", []any{"aud", "https://other.example"}, WrongAudience},
		{"audience with slash", []any{"aud", audience + "/"}, WrongAudience},
		{"audience prefix", []any{"aud", audience[:10]}, WrongAudience},
		{"audience other case", []any{"aud", strings.ToUpper(audience)}, WrongAudience},

		{"no exp", []any{"exp", nil}, Malformed},
		{"exp null", []any{"exp", (*int)(nil)}, Malformed},
		{"exp text", []any{"exp", fmt.Sprint(now + 600)}, Malformed},
		{"exp fraction", []any{"exp", float64(now) + 600.5}, Malformed},
		{"exp exponent", []any{"exp", json.Number("2e9")}, Malformed},
		{"exp zero", []any{"exp", 0}, Malformed},
		{"exp negative", []any{"exp", -now}, Malformed},
		{"exp after year 9999", []any{"exp", int64(maxSeconds + 1)}, Malformed},
		{"exp beyond int64", []any{"exp", json.Number("18446744073709551616")}, Malformed},
		{"exp now", []any{"exp", now}, Expired},
		{"exp past", []any{"exp", now - 1}, Expired},
		{"no iat", []any{"iat", nil}, Malformed},
		{"iat text", []any{"iat", fmt.Sprint(now)}, Malformed},
		{"iat ahead", []any{"iat", now + 11}, NotYetValid},
		{"nbf ahead", []any{"nbf", now + 11}, NotYetValid},
		{"nbf text", []any{"nbf", "0"}, Malformed},
		{"nbf null", []any{"nbf", (*int)(nil)}, Malformed},
		{"too long", []any{"exp", now + 3601}, TooLong},
		{"too long from the past", []any{"iat", now - 3000, "exp", now + 601}, TooLong},
		{"from 1970", []any{"iat", n}, TooLong},
		{"ends before it begins", []any{"iat", now + 5, "exp", now + 5}, TooLong},

		{"cnf null", []any{"cnf", (*int)(nil)}, Malformed},
		{"cnf text", []any{"cnf", strings.Repeat("A", 43)}, Malformed},
		{"cnf empty", []any{"cnf", map[string]any{}}, Malformed},
		{"cnf short", []any{"cnf", map[string]any{"jkt": "AAAA"}}, Malformed},
		{"cnf number", []any{"cnf", map[string]any{"jkt": 1}}, Malformed},
		{"cnf trailing bits", []any{"cnf", map[string]any{"jkt": strings.Repeat("A", 42) + "B"}}, Malformed},
		{"cnf certificate", []any{"cnf", map[string]any{"x5t#S256": strings.Repeat("A", 43)}}, Malformed},
		{"cnf both", []any{"cnf", map[string]any{"jkt": strings.Repeat("A", 43), "jwk": map[string]any{}}}, Malformed},
		{"case variant", []any{"Aud", audience}, Malformed},
		{"case variant of exp", []any{"EXP", now + 1}, Malformed},
		{"too many members", []any{"a", make([]int, maxMembers)}, Malformed},
	} {
		_, err := d.verify(t, issuer.Token(d.claims(tc.pairs...)))
		if tc.want == nil {
			require.NoError(t, err, tc.name)
		} else {
			require.ErrorIs(t, err, tc.want, tc.name)
		}
	}
}

func TestTokenPayloadIsOneStrictObject(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	good := string(claimsJSON(t, issuer, d.claims()))
	header := []byte(`{"alg":"ES256","kid":"one"}`)
	for name, payload := range map[string]string{
		"duplicate":         `{"sub":"admin",` + good[1:],
		"duplicate escaped": `{"s\u0075b":"admin",` + good[1:],
		"duplicate nested":  `{"k":{"a":1,"a":2},` + good[1:],
		"duplicate in list": `{"k":[{"a":1,"a":2}],` + good[1:],
		"trailing":          good + "x",
		"two":               good + good,
		"open":              good[:len(good)-1],
		"comma":             good[:len(good)-1] + ",}",
		"array":             "[" + good + "]",
		"null":              "null",
		"bad UTF-8":         `{"a":"` + "\xc3\x28" + `",` + good[1:],
		"surrogate":         `{"a":"\udead",` + good[1:],
		"empty":             " ",
	} {
		_, err := d.verify(t, jwkstest.Sign(issuer.Signer("one"), header, []byte(payload)))
		require.ErrorIs(t, err, Malformed, name)
	}
}

func TestTokenMaxAge(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	compact := issuer.Token(d.claims("exp", d.clock.now().Unix()+3600))
	e := Expect{Audience: audience, MaxLifetime: time.Hour, MaxAge: 5 * time.Minute}
	d.clock.advance(5 * time.Minute)
	_, err := d.Verify(t.Context(), compact, e)
	require.NoError(t, err)
	d.clock.advance(time.Second)
	_, err = d.Verify(t.Context(), compact, e)
	require.ErrorIs(t, err, Expired, "a remembered token ages too")
}

func TestZeroExpectAcceptsNothing(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	_, err := d.Verify(t.Context(), issuer.Token(d.claims()), Expect{})
	require.ErrorIs(t, err, WrongAudience)
	_, err = d.Verify(t.Context(), issuer.Token(d.claims()), Expect{Audience: audience})
	require.ErrorIs(t, err, TooLong)
	_, err = d.Verify(t.Context(), issuer.Token(d.claims("aud", nil)), Expect{MaxLifetime: time.Hour})
	require.ErrorIs(t, err, Malformed)
}

func TestTokenSignature(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Add(t, "rsa", "RS256")
	d := newDesk(t, issuer)
	good := issuer.Token(d.claims())
	signed, sig := good[:strings.LastIndexByte(good, '.')], jwkstest.Signature(issuer.Signer("one"), good[:strings.LastIndexByte(good, '.')])
	r, s := new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:])
	der, err := asn1.Marshal(struct{ R, S *big.Int }{r, s})
	require.NoError(t, err)
	order := elliptic.P256().Params().N
	for name, forged := range map[string][]byte{
		"DER":        der,
		"63 bytes":   sig[:63],
		"65 bytes":   append(sig[:64:64], 0),
		"s with 00":  append(append(sig[:32:32], 0), sig[32:]...),
		"zeros":      make([]byte, 64),
		"r is zero":  append(make([]byte, 32), sig[32:]...),
		"s is zero":  append(sig[:32:32], make([]byte, 32)...),
		"r is order": append(order.Bytes(), sig[32:]...),
		"swapped":    append(sig[32:64:64], sig[:32]...),
		"flipped":    append([]byte{sig[0] ^ 1}, sig[1:]...),
		"one byte":   {1},
	} {
		_, err := d.verify(t, signed+"."+jwkstest.B64(forged))
		require.ErrorIs(t, err, BadSignature, name)
	}
	rs := issuer.TokenBy("rsa", d.claims())
	_, err = d.verify(t, rs)
	require.NoError(t, err)
	cut := strings.LastIndexByte(rs, '.')
	_, err = d.verify(t, rs[:cut]+"."+jwkstest.B64(sig))
	require.ErrorIs(t, err, BadSignature)
}

// A token of one algorithm never verifies under a key of another, not even when
// the key's public bytes are used as a MAC secret.
func TestAlgorithmConfusion(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	issuer.Add(t, "rsa", "RS256")
	d := newDesk(t, issuer)
	payload := claimsJSON(t, issuer, d.claims())
	for _, kid := range []string{"one", "rsa"} {
		der, err := x509.MarshalPKIXPublicKey(issuer.Signer(kid).Public())
		require.NoError(t, err)
		for _, alg := range []string{"HS256", "RS256", "ES256", "none"} {
			signed := jwkstest.B64(fmt.Appendf(nil, `{"alg":%q,"kid":%q}`, alg, kid)) + "." + jwkstest.B64(payload)
			mac := hmac.New(sha256.New, der)
			mac.Write([]byte(signed))
			for _, sig := range []string{jwkstest.B64(mac.Sum(nil)), "AA"} {
				_, err := d.verify(t, signed+"."+sig)
				require.Error(t, err, "%s %s", kid, alg)
			}
		}
	}
	swapped := map[string]crypto.Signer{"one": issuer.Signer("rsa"), "rsa": issuer.Signer("one")}
	for kid, signer := range swapped {
		for _, alg := range []string{"RS256", "ES256"} {
			_, err := d.verify(t, jwkstest.Sign(signer, fmt.Appendf(nil, `{"alg":%q,"kid":%q}`, alg, kid), payload))
			require.ErrorIs(t, err, BadSignature)
		}
	}
}

// (r, n − s) is as good a signature as (r, s): what names a token must not
// change with it.
func TestRewrittenSignatureIsTheSameToken(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	good := issuer.Token(d.claims())
	cut := strings.LastIndexByte(good, '.')
	sig, err := decodeBase64(good[cut+1:])
	require.NoError(t, err)
	s := new(big.Int).Sub(elliptic.P256().Params().N, new(big.Int).SetBytes(sig[32:]))
	other := good[:cut+1] + jwkstest.B64(append(sig[:32:32], s.FillBytes(make([]byte, 32))...))
	require.NotEqual(t, good, other)
	a, err := d.verify(t, good)
	require.NoError(t, err)
	b, err := d.verify(t, other)
	require.NoError(t, err)
	require.Equal(t, a.Signed, b.Signed)
}

func TestTwoIssuersWithOneKid(t *testing.T) {
	t.Parallel()
	a, b := jwkstest.New(t), jwkstest.New(t)
	d := newDesk(t, a, b)
	for _, i := range []*jwkstest.Issuer{a, b} {
		got, err := d.verify(t, i.Token(d.claims()))
		require.NoError(t, err)
		require.Equal(t, i.URL, got.Issuer)
	}
	_, err := d.verify(t, a.Token(d.claims("iss", b.URL)))
	require.ErrorIs(t, err, BadSignature)
}

func TestTokenContent(t *testing.T) {
	t.Parallel()
	issuer := jwkstest.New(t)
	d := newDesk(t, issuer)
	jkt := strings.Repeat("A", 42) + "E"
	compact := issuer.Token(d.claims("jti", "j", "n", 7, "cnf", map[string]any{"jkt": jkt}))
	got, err := d.verify(t, compact)
	require.NoError(t, err)
	require.Equal(t, "worker", got.Subject)
	require.Equal(t, "j", got.ID)
	require.Equal(t, audience, got.Audience)
	require.Equal(t, d.clock.now().UTC(), got.IssuedAt)
	require.Equal(t, d.clock.now().UTC().Add(600*time.Second), got.Expires)
	require.Equal(t, jkt, jwkstest.B64(got.JKT[:]))
	require.Equal(t, json.Number("7"), got.Claims["n"])
	require.Equal(t, compact[:strings.LastIndexByte(compact, '.')], got.Signed)
}

func TestSPIFFE(t *testing.T) {
	t.Parallel()
	bundle, oidc := jwkstest.New(t), jwkstest.New(t)
	bundle.Publish("one", "use", "jwt-svid")
	oidc.Publish("one", "use", "jwt-svid")
	d := newDeskOf(t, Config{Own: own, Issuers: []Issuer{
		{URL: "spiffe://prod.example", JWKSURL: bundle.JWKSURL(), Algorithms: []string{ES256}},
		configured(oidc),
	}})
	svid := func(pairs ...any) string {
		payload, err := json.Marshal(d.claims(append([]any{"sub", "spiffe://prod.example/worker"}, pairs...)...))
		require.NoError(t, err)
		return jwkstest.Sign(bundle.Signer("one"), []byte(`{"alg":"ES256","kid":"one","typ":"JWT"}`), payload)
	}
	for name, compact := range map[string]string{"without iss": svid(), "with iss": svid("iss", "spiffe://prod.example")} {
		got, err := d.verify(t, compact)
		require.NoError(t, err, name)
		require.Equal(t, "spiffe://prod.example", got.Issuer)
		require.Equal(t, "spiffe://prod.example/worker", got.Subject)
	}
	for name, tc := range map[string]struct {
		compact string
		want    Fault
	}{
		"other trust domain":        {svid("sub", "spiffe://test.example/worker"), UntrustedIssuer},
		"other domain's id":         {svid("iss", "spiffe://prod.example", "sub", "spiffe://test.example/worker"), Malformed},
		"no path":                   {svid("sub", "spiffe://prod.example"), Malformed},
		"empty path":                {svid("sub", "spiffe://prod.example/"), Malformed},
		"no id":                     {svid("sub", "worker"), Malformed},
		"no id with iss":            {svid("iss", "spiffe://prod.example", "sub", "worker"), Malformed},
		"iss is a path":             {svid("iss", "spiffe://prod.example/worker"), Malformed},
		"keys for SVIDs at an OIDC": {oidc.Token(d.claims()), Unavailable},
		"no audience":               {svid("aud", nil), Malformed},
	} {
		_, err := d.verify(t, tc.compact)
		require.ErrorIs(t, err, tc.want, name)
	}
}

// Whatever is accepted here, go-jose and jwx accept too.
func FuzzTokenAgainstLibraries(f *testing.F) {
	issuer := jwkstest.New(f)
	d := newDesk(f, issuer)
	signer := issuer.Signer("one")
	f.Add([]byte(`{"alg":"ES256","kid":"one"}`), claimsJSON(f, issuer, d.claims()))
	f.Add([]byte(`{"alg":"ES256","kid":"one","typ":"JWT"}`), claimsJSON(f, issuer, d.claims("cnf", map[string]any{"jkt": strings.Repeat("A", 43)})))
	f.Add([]byte(`{"alg":"none","kid":"one"}`), []byte(`{}`))
	f.Add([]byte(`{"alg":"ES256","kid":"one","a":"\ud800\udc00"}`), []byte(`{"sub":"a","sub":"b"}`))
	f.Fuzz(func(t *testing.T, header, payload []byte) {
		compact := jwkstest.Sign(signer, header, payload)
		got, err := d.verify(t, compact)
		if err != nil {
			require.Zero(t, got)
			return
		}
		parsed, err := jose.ParseSignedCompact(compact, []jose.SignatureAlgorithm{jose.ES256})
		require.NoError(t, err)
		b, err := parsed.Verify(signer.Public())
		require.NoError(t, err)
		require.Equal(t, payload, b)
		_, err = jws.Verify([]byte(compact), jws.WithKey(jwa.ES256, signer.Public()))
		require.NoError(t, err)
		var claims map[string]any
		require.NoError(t, json.Unmarshal(payload, &claims))
		require.Equal(t, claims["sub"], got.Subject)
	})
}

func FuzzDecodeObject(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2.5e3,null,true,"\u00e9"]}`, `{"a":1,"a":2}`, `[1]`, `{"a":{"b":{}}}`, `{"a":1,}`, `{"a" 1}`, `{"":""}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := decodeObject(in)
		if err != nil {
			return
		}
		require.True(t, json.Valid(in))
		var want map[string]any
		require.NoError(t, json.Unmarshal(in, &want))
		require.Len(t, got, len(want))
	})
}

func BenchmarkVerify(b *testing.B) {
	issuer := jwkstest.New(b)
	d := newDesk(b, issuer)
	compact := issuer.Token(d.claims())
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			if _, err := d.verify(b, compact); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new", func(b *testing.B) {
		for b.Loop() {
			clear(d.tokens.younger)
			clear(d.tokens.older)
			if _, err := d.verify(b, compact); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func claimsJSON(t testing.TB, i *jwkstest.Issuer, claims map[string]any) []byte {
	t.Helper()
	claims["iss"] = i.URL
	b, err := json.Marshal(claims)
	require.NoError(t, err)
	return b
}
