package capability

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/lestrrat-go/jwx/v2/jwa"
	"github.com/lestrrat-go/jwx/v2/jws"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

const testChallenge = "challenge-of-the-caller"

func openDecision() DecisionClaims {
	return DecisionClaims{
		Issuer: testIssuer, IssuedAt: testNow.Unix(), Expires: testNow.Unix() + 1, Open: true, Incarnation: 1, Epoch: 6, Sequence: 40, Requirement: 1,
		ValidMS: 1800, SinceUnixMS: testNow.UnixMilli() - 5000, InputsSHA256: strings.Repeat("A", 42) + "E", Challenge: testChallenge,
		Families: []DecidedFamily{{Family: "guards", Good: true, Instances: 3, Required: 2, AgeMS: 900}, {Family: "store", Good: true, Instances: 1, Required: 1}},
	}
}

func closedDecision() DecisionClaims {
	c := openDecision()
	c.Open, c.ValidMS, c.Expires, c.Reasons = false, 0, testNow.Unix()+2, []string{"guards: stale"}
	c.Families[0] = DecidedFamily{Family: "guards", Reason: "stale", Instances: 1, Required: 2}
	return c
}

func signDecision(t testing.TB, c DecisionClaims) string {
	t.Helper()
	signed, err := SignDecision(issuer(t), 3, c)
	require.NoError(t, err)
	return signed
}

func verifyDecision(t testing.TB, signed string) error {
	c, err := VerifyDecision(signed, testKeys(t), testExpectation(), testChallenge)
	return paired(c != nil, err)
}

func decisionHeader(t testing.TB) string {
	return `{"alg":"ES256","kid":"` + issuer(t).KeyID() + `","typ":"nightwarrant-readiness+jwt"}`
}

// payloadOf is the signed spelling of a decision that need not be one.
func payloadOf(t testing.TB, c DecisionClaims) string {
	t.Helper()
	c.Audience, c.Generation = testIssuer+"/v1/readiness", 3
	payload, err := canonical.CanonicalizeValue(c)
	require.NoError(t, err)
	return string(payload)
}

func TestDecisionsComeBackAsSigned(t *testing.T) {
	t.Parallel()
	for _, want := range []DecisionClaims{openDecision(), closedDecision()} {
		signed := signDecision(t, want)
		got, err := VerifyDecision(signed, testKeys(t), testExpectation(), testChallenge)
		require.NoError(t, err)
		want.Audience, want.Generation = testIssuer+"/v1/readiness", 3
		assert.Equal(t, want, *got)
	}
	assert.Equal(t, testIssuer+api.PathReadiness, decisionAudience(testIssuer))
}

func TestDecisionOnTheWire(t *testing.T) {
	t.Parallel()
	signed := signDecision(t, openDecision())
	header, err := base64.RawURLEncoding.DecodeString(signed[:strings.IndexByte(signed, '.')])
	require.NoError(t, err)
	assert.JSONEq(t, decisionHeader(t), string(header))
	payload, err := jws.Verify([]byte(signed), jws.WithKey(jwa.ES256, issuer(t).Public()))
	require.NoError(t, err, "stock libraries can read it")
	assert.Equal(t, `{"aud":"https://authority.example/v1/readiness","challenge":"challenge-of-the-caller","epoch":6,"exp":1780000001,`+
		`"families":[{"age_ms":900,"family":"guards","good":true,"instances":3,"required":2},{"age_ms":0,"family":"store","good":true,"instances":1,"required":1}],`+
		`"generation":3,"held":false,"iat":1780000000,"incarnation":1,"inputs_sha256":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE","iss":"https://authority.example",`+
		`"open":true,"requirement":1,"sequence":40,"since_unix_ms":1779999995000,"valid_ms":1800}`, string(payload))
}

// Claims that may not be signed may not be verified either: the second half of the test signs them past SignDecision.
func TestDecisionsThatAreRefused(t *testing.T) {
	t.Parallel()
	open := func(edit func(*DecisionClaims)) DecisionClaims {
		c := openDecision()
		edit(&c)
		return c
	}
	closed := func(edit func(*DecisionClaims)) DecisionClaims {
		c := closedDecision()
		edit(&c)
		return c
	}
	for name, c := range map[string]DecisionClaims{
		"no issuer":                   open(func(c *DecisionClaims) { c.Issuer = "" }),
		"no iat":                      open(func(c *DecisionClaims) { c.IssuedAt = 0 }),
		"no exp":                      open(func(c *DecisionClaims) { c.Expires = 0 }),
		"over before it began":        open(func(c *DecisionClaims) { c.Expires = c.IssuedAt - 1 }),
		"outlives its validity":       open(func(c *DecisionClaims) { c.Expires = c.IssuedAt + 3 }),
		"outlives a short validity":   open(func(c *DecisionClaims) { c.Expires, c.ValidMS = c.IssuedAt+2, 1000 }),
		"closed for too long":         closed(func(c *DecisionClaims) { c.Expires = c.IssuedAt + 3 }),
		"valid for too long":          open(func(c *DecisionClaims) { c.ValidMS = 2001 }),
		"open for no time":            open(func(c *DecisionClaims) { c.ValidMS = 0 }),
		"open for less than no time":  open(func(c *DecisionClaims) { c.ValidMS = -1 }),
		"closed for less than none":   closed(func(c *DecisionClaims) { c.ValidMS = -1 }),
		"closed and valid":            closed(func(c *DecisionClaims) { c.ValidMS = 1 }),
		"open and held":               open(func(c *DecisionClaims) { c.Held = true }),
		"open with a reason":          open(func(c *DecisionClaims) { c.Reasons = []string{"held"} }),
		"closed without a reason":     closed(func(c *DecisionClaims) { c.Reasons = nil }),
		"a reason of two lines":       closed(func(c *DecisionClaims) { c.Reasons[0] = "a\nb" }),
		"a reason that is none":       closed(func(c *DecisionClaims) { c.Reasons[0] = "" }),
		"a reason too long":           closed(func(c *DecisionClaims) { c.Reasons[0] = strings.Repeat("x", 129) }),
		"too many reasons":            closed(func(c *DecisionClaims) { c.Reasons = strings.Split(strings.Repeat("x,", 97)+"x", ",") }),
		"no epoch":                    open(func(c *DecisionClaims) { c.Epoch = 0 }),
		"no sequence":                 open(func(c *DecisionClaims) { c.Sequence = 0 }),
		"no incarnation":              open(func(c *DecisionClaims) { c.Incarnation = 0 }),
		"no requirement":              open(func(c *DecisionClaims) { c.Requirement = 0 }),
		"epoch past 53 bits":          open(func(c *DecisionClaims) { c.Epoch = 1 << 53 }),
		"since never":                 open(func(c *DecisionClaims) { c.SinceUnixMS = 0 }),
		"no digest":                   open(func(c *DecisionClaims) { c.InputsSHA256 = "" }),
		"digest in hexadecimal":       open(func(c *DecisionClaims) { c.InputsSHA256 = strings.Repeat("0", 64) }),
		"digest in another spelling":  open(func(c *DecisionClaims) { c.InputsSHA256 = strings.Repeat("A", 42) + "F" }),
		"challenge with a blank":      open(func(c *DecisionClaims) { c.Challenge = "a b" }),
		"challenge too long":          open(func(c *DecisionClaims) { c.Challenge = strings.Repeat("x", 129) }),
		"no families":                 open(func(c *DecisionClaims) { c.Families = []DecidedFamily{} }),
		"closed without families":     closed(func(c *DecisionClaims) { c.Families = []DecidedFamily{} }),
		"open, and a family is not":   open(func(c *DecisionClaims) { c.Families[0] = closedDecision().Families[0] }),
		"good with a reason":          closed(func(c *DecisionClaims) { c.Families[1].Reason = "stale" }),
		"not good without a reason":   closed(func(c *DecisionClaims) { c.Families[0].Reason = "" }),
		"fewer than required":         open(func(c *DecisionClaims) { c.Families[0].Instances = 1 }),
		"a family twice":              open(func(c *DecisionClaims) { c.Families[1] = c.Families[0] }),
		"families in no order":        open(func(c *DecisionClaims) { c.Families[0], c.Families[1] = c.Families[1], c.Families[0] }),
		"a family without a name":     open(func(c *DecisionClaims) { c.Families[0].Family = "" }),
		"a family of a negative age":  open(func(c *DecisionClaims) { c.Families[0].AgeMS = -1 }),
		"less than none is required":  open(func(c *DecisionClaims) { c.Families[0].Required = -1 }),
		"less than none is instances": closed(func(c *DecisionClaims) { c.Families[0].Instances = -1 }),
	} {
		text, err := SignDecision(issuer(t), 3, c)
		require.ErrorIs(t, err, errClaims, name)
		assert.Empty(t, text, name)
		if c.Epoch > canonical.MaxInt {
			continue // has no canonical spelling
		}
		err = verifyDecision(t, signed(t, issuer(t), decisionHeader(t), payloadOf(t, c)))
		assert.Equal(t, CodeInvalidToken, code(t, err), name)
	}
	_, err := SignDecision(issuer(t), 0, openDecision())
	require.ErrorIs(t, err, errClaims)
}

// P25: the two kinds of object are never taken for each other, whatever their claims, under whichever library.
func TestDecisionIsNoCapability(t *testing.T) {
	t.Parallel()
	decision := signDecision(t, openDecision())
	for kind, verify := range verifiers {
		assert.Equal(t, CodeInvalidToken, code(t, verify(Token(decision), testKeys(t), testExpectation())), kind)
	}
	component, err := SignComponent(issuer(t), goodComponent(t))
	require.NoError(t, err)
	for _, token := range []Token{signRun(t, goodRun(t)), component} {
		assert.Equal(t, CodeInvalidToken, code(t, verifyDecision(t, token.Reveal())))
	}
	good := payloadOf(t, openDecision())
	for _, typ := range []string{"at+jwt", "application/at+jwt", "dpop+jwt", "JWT", "", "nightwarrant-readiness", "nightwarrant-readiness+jwt ", "nightwarrant-receipt+jwt"} {
		header := strings.Replace(decisionHeader(t), "nightwarrant-readiness+jwt", typ, 1)
		assert.Equal(t, CodeInvalidToken, code(t, verifyDecision(t, signed(t, issuer(t), header, good))), "typ %q", typ)
	}
	header := strings.Replace(decisionHeader(t), "nightwarrant", "application/Nightwarrant", 1)
	assert.NoError(t, verifyDecision(t, signed(t, issuer(t), header, good)), "a media type is compared as one (RFC 7515 §4.1.9)")

	run := goodRun(t)
	run.Kind = kindRun
	payload, err := json.Marshal(run)
	require.NoError(t, err)
	assert.Equal(t, CodeInvalidToken, code(t, verifyDecision(t, signed(t, issuer(t), decisionHeader(t), string(payload)))), "a capability's claims under a decision's typ")
	for kind, verify := range verifiers {
		forged := Token(signed(t, issuer(t), tokenHeader(t), good))
		assert.Equal(t, CodeInvalidToken, code(t, verify(forged, testKeys(t), testExpectation())), "a decision's claims under a capability's typ, as %s", kind)
	}
}

// What is not spelled as it was signed is not what was signed.
func TestDecisionIsStrict(t *testing.T) {
	t.Parallel()
	good, kid := payloadOf(t, openDecision()), issuer(t).KeyID()
	require.NoError(t, verifyDecision(t, signed(t, issuer(t), decisionHeader(t), good)))
	body := func(from, to string) string {
		changed := strings.Replace(good, from, to, 1)
		require.NotEqual(t, good, changed, from)
		return signed(t, issuer(t), decisionHeader(t), changed)
	}
	head := func(header string) string { return signed(t, issuer(t), header, good) }
	part := strings.Split(signed(t, issuer(t), decisionHeader(t), good), ".")
	cases := map[string]string{
		"empty":                   "",
		"two segments":            part[0] + "." + part[1],
		"four segments":           strings.Join(part, ".") + ".",
		"no signature":            part[0] + "." + part[1] + ".",
		"another signature":       part[0] + "." + part[1] + "." + strings.Split(signed(t, issuer(t), decisionHeader(t), payloadOf(t, closedDecision())), ".")[2],
		"signature padded":        strings.Join(part, ".") + "==",
		"a JSON serialization":    `{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`,
		"too large":               body("{", "{"+strings.Repeat(" ", aDecision.longest)),
		"alg none":                b64([]byte(strings.Replace(decisionHeader(t), "ES256", "none", 1))) + "." + part[1] + ".",
		"alg ES384":               head(strings.Replace(decisionHeader(t), "ES256", "ES384", 1)),
		"alg missing":             head(`{"kid":"` + kid + `","typ":"nightwarrant-readiness+jwt"}`),
		"kid missing":             head(`{"alg":"ES256","typ":"nightwarrant-readiness+jwt"}`),
		"kid unknown":             head(strings.Replace(decisionHeader(t), kid, "x", 1)),
		"kid twice":               head(strings.Replace(decisionHeader(t), "{", `{"kid":"`+kid+`",`, 1)),
		"typ twice":               head(strings.Replace(decisionHeader(t), "{", `{"typ":"nightwarrant-readiness+jwt",`, 1)),
		"crit":                    head(strings.Replace(decisionHeader(t), "{", `{"crit":["exp"],`, 1)),
		"jwk":                     head(strings.Replace(decisionHeader(t), "{", `{"jwk":{},`, 1)),
		"signed by another":       signed(t, fixedKey(t, "another"), decisionHeader(t), good),
		"a claim more":            body(`{`, `{"act":{},`),
		"a claim twice":           body(`"open":true`, `"open":true,"open":true`),
		"a claim twice, escaped":  body(`"open":true`, `"open":true,"\u006fpen":true`),
		"in another case":         body(`"open":`, `"Open":`),
		"in both cases":           body(`{`, `{"Open":true,`),
		"in another order":        body(`"open":true,"requirement":1`, `"requirement":1,"open":true`),
		"with a blank":            body(`"open":true`, `"open": true`),
		"a family claim more":     body(`"age_ms":0,`, `"age_ms":0,"build":"1",`),
		"a family claim missing":  body(`"age_ms":0,`, ``),
		"a family claim in case":  body(`"good"`, `"Good"`),
		"reason empty, not left":  body(`"instances":3,"required"`, `"instances":3,"reason":"","required"`),
		"reasons empty, not left": body(`"requirement":1`, `"reasons":[],"requirement":1`),
		"open a string":           body(`"open":true`, `"open":"true"`),
		"open a number":           body(`"open":true`, `"open":1`),
		"open null":               body(`"open":true`, `"open":null`),
		"aud an array":            body(`"aud":"`+testIssuer+`/v1/readiness"`, `"aud":["`+testIssuer+`/v1/readiness"]`),
		"aud of another issuer":   body(`"aud":"`+testIssuer, `"aud":"https://other.example`),
		"aud the issuer":          body(`"aud":"`+testIssuer+`/v1/readiness"`, `"aud":"`+testIssuer+`"`),
		"generation of another":   body(`"generation":3`, `"generation":2`),
		"epoch a string":          body(`"epoch":6`, `"epoch":"6"`),
		"epoch a fraction":        body(`"epoch":6`, `"epoch":6.0`),
		"families an object":      body(`"families":[`, `"families":[[],`),
		"something after":         signed(t, issuer(t), decisionHeader(t), good+"{}"),
		"an array":                signed(t, issuer(t), decisionHeader(t), "["+good+"]"),
	}
	var claims map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(good), &claims))
	require.Len(t, claims, 16)
	for name := range claims {
		without, err := canonical.CanonicalizeValue(drop(claims, name))
		require.NoError(t, err)
		cases[name+" missing"] = signed(t, issuer(t), decisionHeader(t), string(without))
	}
	for name, in := range cases {
		assert.Equal(t, CodeInvalidToken, code(t, verifyDecision(t, in)), name)
	}
	_, err := jose.ParseSignedCompact(cases["in another order"], []jose.SignatureAlgorithm{jose.ES256})
	assert.NoError(t, err, "the libraries would take it")
}

func drop(claims map[string]json.RawMessage, name string) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for n, v := range claims {
		if n != name {
			out[n] = v
		}
	}
	return out
}

func TestDecisionIsForWhoAsked(t *testing.T) {
	t.Parallel()
	later := openDecision()
	later.IssuedAt, later.Expires = testNow.Unix()+2, testNow.Unix()+3
	unasked := openDecision()
	unasked.Challenge = ""
	for name, c := range map[string]struct {
		claims    DecisionClaims
		expect    func(*Expectation)
		challenge string
		ok        bool
	}{
		"good":                           {openDecision(), nil, testChallenge, true},
		"the audience is not looked at":  {openDecision(), func(e *Expectation) { e.Audience = "" }, testChallenge, true},
		"another challenge":              {openDecision(), nil, testChallenge + "x", false},
		"no challenge expected":          {openDecision(), nil, "", false},
		"no challenge on either side":    {unasked, nil, "", false},
		"no challenge in the decision":   {unasked, nil, testChallenge, false},
		"another issuer":                 {openDecision(), func(e *Expectation) { e.Issuer = "https://other.example" }, testChallenge, false},
		"issuer with a trailing slash":   {openDecision(), func(e *Expectation) { e.Issuer += "/" }, testChallenge, false},
		"no issuer expected":             {openDecision(), func(e *Expectation) { e.Issuer = "" }, testChallenge, false},
		"expired":                        {openDecision(), func(e *Expectation) { e.Now = testNow.Add(time.Second) }, testChallenge, false},
		"expired within the leeway":      {openDecision(), func(e *Expectation) { e.Now, e.Leeway = testNow.Add(5*time.Second), 5*time.Second }, testChallenge, true},
		"expired past the leeway":        {openDecision(), func(e *Expectation) { e.Now, e.Leeway = testNow.Add(6*time.Second), 5*time.Second }, testChallenge, false},
		"issued later":                   {later, nil, testChallenge, false},
		"issued later within the leeway": {later, func(e *Expectation) { e.Leeway = 2 * time.Second }, testChallenge, true},
	} {
		e := testExpectation()
		if c.expect != nil {
			c.expect(&e)
		}
		got, err := VerifyDecision(signDecision(t, c.claims), testKeys(t), e, c.challenge)
		assert.Equal(t, c.ok, paired(got != nil, err) == nil, "%s: %v", name, err)
		if !c.ok {
			assert.Equal(t, CodeInvalidToken, code(t, err), name)
		}
	}
}

// There is one order of decisions: of two, one is older, or they are the same.
func TestOrderOfDecisions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) *DecisionClaims {
			n := rapid.SliceOfN(rapid.Int64Range(1, 3), 3, 3).Draw(t, name)
			return &DecisionClaims{Incarnation: n[0], Epoch: n[1], Sequence: n[2]}
		}
		a, b := draw("a"), draw("b")
		weight := func(c *DecisionClaims) int64 { return c.Incarnation*100 + c.Epoch*10 + c.Sequence }
		require.Equal(t, weight(a) < weight(b), a.Older(b))
	})
}

// The largest decision that a requirement can lead to fits: 64 families of an operator's own beside those in code, none good.
func TestLargestDecision(t *testing.T) {
	t.Parallel()
	c := closedDecision()
	c.Families, c.Reasons = nil, []string{"requirement"}
	for i := range 72 {
		f := fmt.Sprintf("x_%064d", i)
		c.Families = append(c.Families, DecidedFamily{Family: f, Reason: "incompatible", Instances: 99, Required: 100, AgeMS: 2999})
		c.Reasons = append(c.Reasons, f+": incompatible")
	}
	require.NoError(t, verifyDecision(t, signDecision(t, c)))
}

func TestDecisionSignerFails(t *testing.T) {
	t.Parallel()
	signed, err := SignDecision(failing{assert.AnError}, 3, openDecision())
	require.ErrorIs(t, err, assert.AnError)
	assert.Empty(t, signed)
}

// FuzzDecision signs whatever header and claims it is given. What is accepted has one spelling, is no capability, and is never
// open with something in it that is not good.
func FuzzDecision(f *testing.F) {
	for _, c := range []DecisionClaims{openDecision(), closedDecision()} {
		payload := payloadOf(f, c)
		f.Add(decisionHeader(f), payload, "")
		f.Add(tokenHeader(f), payload, "")
		f.Add(decisionHeader(f), strings.ToUpper(payload), "")
		f.Add(decisionHeader(f), strings.Replace(payload, "{", `{"open":true,`, 1), "")
		f.Add(strings.Replace(decisionHeader(f), "{", `{"crit":["exp"],`, 1), payload, "")
		f.Add("", "", signDecision(f, c))
	}
	f.Add("", "", "a.b.c")
	keys := testKeys(f)
	f.Fuzz(func(t *testing.T, header, payload, text string) {
		if text == "" {
			text = signed(t, issuer(t), header, payload)
		}
		c, err := VerifyDecision(text, keys, testExpectation(), testChallenge)
		if err != nil {
			code(t, err)
			require.Nil(t, c)
			return
		}
		seen, err := jws.Verify([]byte(text), jws.WithKey(jwa.ES256, issuer(t).Public()))
		require.NoError(t, err, "jwx agrees")
		again, err := canonical.CanonicalizeValue(c)
		require.NoError(t, err)
		require.Equal(t, string(seen), string(again))
		for _, family := range c.Families {
			require.False(t, c.Open && (!family.Good || family.Instances < family.Required))
		}
		for _, verify := range verifiers {
			require.Error(t, verify(Token(text), keys, testExpectation()))
		}
	})
}
