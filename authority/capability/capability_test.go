package capability

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v2/jwa"
	jwxkey "github.com/lestrrat-go/jwx/v2/jwk"
	"github.com/lestrrat-go/jwx/v2/jws"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	testIssuer = "https://authority.example"
	testGuard  = "https://guard.example"
)

// keySet is generation 3 of one key.
type keySet map[string]*ecdsa.PublicKey

func (s keySet) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	pub, ok := s[kid]
	return pub, 3, ok
}

func issuer(t testing.TB) *Key { return fixedKey(t, "issuer") }

func testKeys(t testing.TB) keySet { return keySet{issuer(t).KeyID(): issuer(t).Public()} }

func testExpectation() Expectation {
	return Expectation{Issuer: testIssuer, Audience: testGuard, Now: testNow}
}

func goodHeader(t testing.TB, audience string) Header {
	return Header{
		Issuer: testIssuer, Audience: audience, Subject: "task-1", ClientID: "shop", IssuedAt: testNow.Unix(),
		Expires: testNow.Unix() + 60, ID: "jti-1", Confirmation: Confirmation{fixedKey(t, "holder").Thumbprint()}, Generation: 3,
	}
}

func goodBinding() Binding {
	return Binding{
		Run: "run-1", Lane: "task-1", Fence: 1<<40 + 1, Deadline: testNow.Unix() + 60, ActivationEpoch: 5, ReadinessEpoch: 6, Incarnation: 1,
	}
}

func goodEffect() Effect {
	return Effect{Guard: testGuard, Action: "order.place", Resource: "orders/7", ParamsDigest: [32]byte{1}, Amount: 1250, Currency: "EUR"}
}

func goodRun(t testing.TB) RunClaims { return RunClaims{goodHeader(t, testIssuer), goodBinding()} }

func goodEffectClaims(t testing.TB) EffectClaims {
	return EffectClaims{goodHeader(t, testGuard), goodBinding(), "effect-1", []Detail{DetailOf(goodEffect())}}
}

func goodComponent(t testing.TB) ComponentClaims {
	return ComponentClaims{
		Header: goodHeader(t, testIssuer), Component: "orders", ComponentKind: "guard", Instance: "orders-0", Boot: 9,
		Families: []string{"guards", "orders"},
	}
}

func signRun(t testing.TB, c RunClaims) Token {
	t.Helper()
	token, err := SignRun(issuer(t), c)
	require.NoError(t, err)
	return token
}

func TestCapabilitiesComeBackAsSigned(t *testing.T) {
	t.Parallel()
	run, err := VerifyRun(signRun(t, goodRun(t)), testKeys(t), testExpectation())
	require.NoError(t, err)
	want := goodRun(t)
	want.Kind = "run"
	assert.Equal(t, want, *run)

	token, err := SignEffect(issuer(t), goodEffectClaims(t))
	require.NoError(t, err)
	effect, err := VerifyEffect(token, testKeys(t), testExpectation())
	require.NoError(t, err)
	wantEffect := goodEffectClaims(t)
	wantEffect.Kind = "effect"
	assert.Equal(t, wantEffect, *effect)
	named, err := effect.Effect()
	require.NoError(t, err)
	assert.True(t, named.Equal(goodEffect()))

	token, err = SignComponent(issuer(t), goodComponent(t))
	require.NoError(t, err)
	component, err := VerifyComponent(token, testKeys(t), testExpectation())
	require.NoError(t, err)
	wantComponent := goodComponent(t)
	wantComponent.Kind = "component"
	assert.Equal(t, wantComponent, *component)
}

// The wire form is what stock libraries expect: typ at+jwt, ES256, kid, and the claims of RFC 9068.
func TestWireForm(t *testing.T) {
	t.Parallel()
	token, err := SignEffect(issuer(t), goodEffectClaims(t))
	require.NoError(t, err)
	part := strings.Split(token.Reveal(), ".")
	header, err := base64.RawURLEncoding.DecodeString(part[0])
	require.NoError(t, err)
	assert.JSONEq(t, `{"alg":"ES256","typ":"at+jwt","kid":"`+issuer(t).KeyID()+`"}`, string(header))
	payload, err := jws.Verify([]byte(token.Reveal()), jws.WithKey(jwa.ES256, issuer(t).Public()))
	require.NoError(t, err, "jwx, which guards use, agrees")
	assert.JSONEq(t, `{
		"iss":"https://authority.example","aud":"https://guard.example","sub":"task-1","client_id":"shop",
		"iat":1780000000,"exp":1780000060,"jti":"jti-1","cnf":{"jkt":"`+fixedKey(t, "holder").Thumbprint().String()+`"},
		"cap":"effect","generation":3,"run":"run-1","lane":"task-1","fence":1099511627777,"deadline":1780000060,
		"activation_epoch":5,"readiness_epoch":6,"incarnation":1,"effect":"effect-1",
		"authorization_details":[{"type":"urn:nightwarrant:effect","actions":["order.place"],"locations":["https://guard.example"],
			"identifier":"orders/7","params_sha256":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","amount":1250,"currency":"EUR"}]
	}`, string(payload))

	free := goodEffectClaims(t)
	e := goodEffect()
	e.Amount, e.Currency = 0, ""
	free.Details = []Detail{DetailOf(e)}
	token, err = SignEffect(issuer(t), free)
	require.NoError(t, err)
	payload, err = base64.RawURLEncoding.DecodeString(strings.Split(token.Reveal(), ".")[1])
	require.NoError(t, err)
	assert.NotContains(t, string(payload), "amount")
	assert.NotContains(t, string(payload), "currency")
}

// Claims that may not be signed may not be verified either: the second half of the test signs them past SignRun.
func TestClaimsThatAreRefused(t *testing.T) {
	t.Parallel()
	run := func(edit func(*RunClaims)) claims {
		c := goodRun(t)
		c.Kind = "run"
		edit(&c)
		return &c
	}
	effect := func(edit func(*EffectClaims)) claims {
		c := goodEffectClaims(t)
		c.Kind = "effect"
		edit(&c)
		return &c
	}
	component := func(edit func(*ComponentClaims)) claims {
		c := goodComponent(t)
		c.Kind = "component"
		edit(&c)
		return &c
	}
	detail := func(edit func(*Detail)) claims {
		return effect(func(c *EffectClaims) { edit(&c.Details[0]) })
	}
	require.NoError(t, run(func(*RunClaims) {}).check())
	require.NoError(t, effect(func(*EffectClaims) {}).check())
	require.NoError(t, component(func(*ComponentClaims) {}).check())
	for name, c := range map[string]claims{
		"no issuer":                   run(func(c *RunClaims) { c.Issuer = "" }),
		"no subject":                  run(func(c *RunClaims) { c.Subject = "" }),
		"no client":                   run(func(c *RunClaims) { c.ClientID = "" }),
		"no jti":                      run(func(c *RunClaims) { c.ID = "" }),
		"jti with a blank":            run(func(c *RunClaims) { c.ID = "a b" }),
		"jti too long":                run(func(c *RunClaims) { c.ID = strings.Repeat("x", 513) }),
		"no key":                      run(func(c *RunClaims) { c.Confirmation.JKT = Thumbprint{} }),
		"no iat":                      run(func(c *RunClaims) { c.IssuedAt = 0 }),
		"no generation":               run(func(c *RunClaims) { c.Generation = 0 }),
		"expires when issued":         run(func(c *RunClaims) { c.Expires = c.IssuedAt }),
		"lives too long":              run(func(c *RunClaims) { c.Deadline += 1000; c.Expires = c.IssuedAt + 301 }),
		"outlives the deadline":       run(func(c *RunClaims) { c.Deadline = c.Expires - 1 }),
		"no kind":                     run(func(c *RunClaims) { c.Kind = "" }),
		"kind of another":             run(func(c *RunClaims) { c.Kind = "component" }),
		"a guard as audience":         run(func(c *RunClaims) { c.Audience = testGuard }),
		"no run":                      run(func(c *RunClaims) { c.Run = "" }),
		"no lane":                     run(func(c *RunClaims) { c.Lane = "" }),
		"no fence":                    run(func(c *RunClaims) { c.Fence = 0 }),
		"fence past 53 bits":          run(func(c *RunClaims) { c.Fence = 1 << 53 }),
		"no deadline":                 run(func(c *RunClaims) { c.Deadline = 0 }),
		"no activation epoch":         run(func(c *RunClaims) { c.ActivationEpoch = 0 }),
		"no readiness epoch":          run(func(c *RunClaims) { c.ReadinessEpoch = 0 }),
		"no incarnation":              run(func(c *RunClaims) { c.Incarnation = 0 }),
		"effect lives too long":       effect(func(c *EffectClaims) { c.Deadline += 1000; c.Expires = c.IssuedAt + 61 }),
		"effect for the issuer":       effect(func(c *EffectClaims) { c.Audience = testIssuer; c.Details[0].Locations[0] = testIssuer }),
		"effect for another guard":    effect(func(c *EffectClaims) { c.Audience = "https://other.example" }),
		"no effect reference":         effect(func(c *EffectClaims) { c.EffectRef = "" }),
		"no detail":                   effect(func(c *EffectClaims) { c.Details = nil }),
		"two details":                 effect(func(c *EffectClaims) { c.Details = append(c.Details, c.Details[0]) }),
		"effect without fence":        effect(func(c *EffectClaims) { c.Fence = 0 }),
		"detail of another type":      detail(func(d *Detail) { d.Type = "urn:other" }),
		"no action":                   detail(func(d *Detail) { d.Actions = nil }),
		"two actions":                 detail(func(d *Detail) { d.Actions = append(d.Actions, "x") }),
		"empty action":                detail(func(d *Detail) { d.Actions = []string{""} }),
		"no location":                 detail(func(d *Detail) { d.Locations = nil }),
		"two locations":               detail(func(d *Detail) { d.Locations = append(d.Locations, "https://x.example") }),
		"no resource":                 detail(func(d *Detail) { d.Identifier = "" }),
		"no digest":                   detail(func(d *Detail) { d.ParamsSHA256 = "" }),
		"digest in hexadecimal":       detail(func(d *Detail) { d.ParamsSHA256 = strings.Repeat("0", 64) }),
		"digest padded":               detail(func(d *Detail) { d.ParamsSHA256 += "=" }),
		"digest of zeros":             detail(func(d *Detail) { d.ParamsSHA256 = strings.Repeat("A", 43) }),
		"negative amount":             detail(func(d *Detail) { d.Amount = -1 }),
		"amount past 53 bits":         detail(func(d *Detail) { d.Amount = 1 << 53 }),
		"amount without currency":     detail(func(d *Detail) { d.Currency = "" }),
		"currency without amount":     detail(func(d *Detail) { d.Amount = 0 }),
		"currency in lower case":      detail(func(d *Detail) { d.Currency = "eur" }),
		"currency of four":            detail(func(d *Detail) { d.Currency = "EURO" }),
		"component of no kind":        component(func(c *ComponentClaims) { c.ComponentKind = "worker" }),
		"component without name":      component(func(c *ComponentClaims) { c.Component = "" }),
		"component without boot":      component(func(c *ComponentClaims) { c.Boot = 0 }),
		"component with empty family": component(func(c *ComponentClaims) { c.Families = []string{""} }),
		"component for a guard":       component(func(c *ComponentClaims) { c.Audience = testGuard }),
		"instance with a line break":  component(func(c *ComponentClaims) { c.Instance = "a\nb" }),
		"component for too long":      component(func(c *ComponentClaims) { c.Expires = c.IssuedAt + 301 }),
	} {
		token, err := sign(issuer(t), c)
		require.Error(t, err, name)
		assert.Empty(t, token.Reveal(), name)

		payload, err := json.Marshal(c)
		require.NoError(t, err)
		forged := Token(signed(t, issuer(t), tokenHeader(t), string(payload)))
		e := testExpectation()
		for _, verify := range verifiers {
			assert.Equal(t, CodeInvalidToken, code(t, verify(forged, testKeys(t), e)), name)
		}
	}
}

var verifiers = map[string]func(Token, KeySet, Expectation) error{
	"run": func(t Token, k KeySet, e Expectation) error {
		c, err := VerifyRun(t, k, e)
		return paired(c != nil, err)
	},
	"effect": func(t Token, k KeySet, e Expectation) error {
		c, err := VerifyEffect(t, k, e)
		return paired(c != nil, err)
	},
	"component": func(t Token, k KeySet, e Expectation) error {
		c, err := VerifyComponent(t, k, e)
		return paired(c != nil, err)
	},
}

// paired sees that claims come without an error and an error without claims.
func paired(claims bool, err error) error {
	if claims != (err == nil) {
		return errors.New("claims and error at once")
	}
	return err
}

func tokenHeader(t testing.TB) string {
	return `{"alg":"ES256","kid":"` + issuer(t).KeyID() + `","typ":"at+jwt"}`
}

// One kind never passes for another, in any pairing (P25).
func TestKindsAreDisjoint(t *testing.T) {
	t.Parallel()
	effect, err := SignEffect(issuer(t), goodEffectClaims(t))
	require.NoError(t, err)
	component, err := SignComponent(issuer(t), goodComponent(t))
	require.NoError(t, err)
	tokens := map[string]Token{"run": signRun(t, goodRun(t)), "effect": effect, "component": component}
	for have, token := range tokens {
		for want, verify := range verifiers {
			err := verify(token, testKeys(t), testExpectation())
			assert.Equal(t, have == want, err == nil, "%s as %s", have, want)
		}
	}
}

// Case 77 and P25: what the claims say is held against what is expected, and the key against its generation.
func TestCapabilityClaims(t *testing.T) {
	t.Parallel()
	effect, err := SignEffect(issuer(t), goodEffectClaims(t))
	require.NoError(t, err)
	later := goodRun(t)
	later.IssuedAt, later.Expires, later.Generation = testNow.Unix()+2, testNow.Unix()+50, 3
	old := goodRun(t)
	old.Generation = 2
	for name, c := range map[string]struct {
		token  Token
		kind   string
		expect func(*Expectation)
		ok     bool
	}{
		"good":                           {signRun(t, goodRun(t)), "run", nil, true},
		"another issuer":                 {signRun(t, goodRun(t)), "run", func(e *Expectation) { e.Issuer = "https://other.example" }, false},
		"no issuer expected":             {signRun(t, goodRun(t)), "run", func(e *Expectation) { e.Issuer = "" }, false},
		"another guard":                  {effect, "effect", func(e *Expectation) { e.Audience = "https://other.example" }, false},
		"guard with a trailing slash":    {effect, "effect", func(e *Expectation) { e.Audience += "/" }, false},
		"no audience expected":           {effect, "effect", func(e *Expectation) { e.Audience = "" }, false},
		"last second":                    {effect, "effect", func(e *Expectation) { e.Now = testNow.Add(59 * time.Second) }, true},
		"expired":                        {effect, "effect", func(e *Expectation) { e.Now = testNow.Add(60 * time.Second) }, false},
		"expired within the leeway":      {effect, "effect", func(e *Expectation) { e.Now, e.Leeway = testNow.Add(61*time.Second), 2*time.Second }, true},
		"expired past the leeway":        {effect, "effect", func(e *Expectation) { e.Now, e.Leeway = testNow.Add(62*time.Second), 2*time.Second }, false},
		"issued later":                   {signRun(t, later), "run", nil, false},
		"issued later within the leeway": {signRun(t, later), "run", func(e *Expectation) { e.Leeway = 2 * time.Second }, true},
		"generation is not the key's":    {signRun(t, old), "run", nil, false},
	} {
		e := testExpectation()
		if c.expect != nil {
			c.expect(&e)
		}
		err := verifiers[c.kind](c.token, testKeys(t), e)
		assert.Equal(t, c.ok, err == nil, "%s: %v", name, err)
		if !c.ok {
			assert.Equal(t, CodeInvalidToken, code(t, err), name)
		}
	}
}

// Cases 75, 76 and 13: a capability without exactly one key in cnf is nobody's.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	jkt := fixedKey(t, "holder").Thumbprint().String()
	payload := func(cnf string) string {
		c := goodRun(t)
		c.Kind = "run"
		out, err := json.Marshal(c)
		require.NoError(t, err)
		const mark = `"cnf":{"jkt":"`
		i := strings.Index(string(out), mark)
		return string(out[:i]) + cnf + string(out[i+len(mark)+len(jkt)+2:])
	}
	verify := func(cnf string) error {
		return verifiers["run"](Token(signed(t, issuer(t), tokenHeader(t), payload(cnf))), testKeys(t), testExpectation())
	}
	require.NoError(t, verify(`"cnf":{"jkt":"`+jkt+`"}`))
	for _, cnf := range []string{
		`"cnf":{}`, `"cnf":null`, `"cnf":"` + jkt + `"`, `"cnf":["` + jkt + `"]`, `"cnf":1`, `"cnf":{"jkt":""}`, `"cnf":{"jkt":1}`,
		`"cnf":{"jkt":null}`, `"cnf":{"jkt":["` + jkt + `"]}`, `"cnf":{"jkt":"` + jkt + `="}`, `"cnf":{"jkt":"` + loosen(jkt) + `"}`,
		`"cnf":{"x5t#S256":"` + jkt + `"}`, `"cnf":{"jkt":"` + jkt + `","x5t#S256":"` + jkt + `"}`, `"cnf":{"JKT":"` + jkt + `"}`,
		`"cnf":{"jkt":"` + jkt + `","jkt":"` + jkt + `"}`, `"cnf":{"jkt":"` + strings.Repeat("A", 43) + `"}`, `"CNF":{"jkt":"` + jkt + `"}`,
	} {
		assert.Equal(t, CodeInvalidToken, code(t, verify(cnf)), cnf)
	}
}

// Whatever is around and inside the claims must be in its one form.
func TestCapabilityStructure(t *testing.T) {
	t.Parallel()
	good := signRun(t, goodRun(t)).Reveal()
	part := strings.Split(good, ".")
	payload, err := base64.RawURLEncoding.DecodeString(part[1])
	require.NoError(t, err)
	kid := issuer(t).KeyID()
	body := func(old, new string) string {
		changed := strings.Replace(string(payload), old, new, 1)
		require.NotEqual(t, string(payload), changed)
		return signed(t, issuer(t), tokenHeader(t), changed)
	}
	head := func(header string) string { return signed(t, issuer(t), header, string(payload)) }
	require.NoError(t, verifiers["run"](Token(head(tokenHeader(t))), testKeys(t), testExpectation()))
	require.NoError(t, verifiers["run"](Token(head(`{"typ":"application/AT+JWT","kid":"`+kid+`","alg":"ES256"}`)), testKeys(t), testExpectation()))
	for name, in := range map[string]string{
		"empty":                   "",
		"dots":                    "..",
		"many dots":               strings.Repeat(".", 500_000),
		"two segments":            part[0] + "." + part[1],
		"four segments":           good + ".AAAA",
		"JSON":                    `{"payload":"` + part[1] + `","protected":"` + part[0] + `","signature":"` + part[2] + `"}`,
		"too large":               good + strings.Repeat("A", maxToken),
		"padded":                  good + "==",
		"line break":              good[:9] + "\n" + good[9:],
		"trailing bits":           part[0] + "." + part[1] + "." + loosen(part[2]),
		"no signature":            part[0] + "." + part[1] + ".",
		"signature of zeros":      part[0] + "." + part[1] + "." + strings.Repeat("A", 86),
		"signature cut":           good[:len(good)-4],
		"another payload":         part[0] + "." + b64([]byte(strings.Replace(string(payload), "run-1", "run-2", 1))) + "." + part[2],
		"another's signature":     signed(t, fixedKey(t, "thief"), tokenHeader(t), string(payload)),
		"alg none":                b64([]byte(`{"alg":"none","kid":"`+kid+`","typ":"at+jwt"}`)) + "." + part[1] + ".",
		"alg HS256":               head(`{"alg":"HS256","kid":"` + kid + `","typ":"at+jwt"}`),
		"alg missing":             head(`{"kid":"` + kid + `","typ":"at+jwt"}`),
		"alg twice":               head(`{"alg":"ES256","alg":"ES256","kid":"` + kid + `","typ":"at+jwt"}`),
		"Alg":                     head(`{"Alg":"ES256","kid":"` + kid + `","typ":"at+jwt"}`),
		"typ missing":             head(`{"alg":"ES256","kid":"` + kid + `"}`),
		"typ of a proof":          head(`{"alg":"ES256","kid":"` + kid + `","typ":"dpop+jwt"}`),
		"typ JWT":                 head(`{"alg":"ES256","kid":"` + kid + `","typ":"JWT"}`),
		"typ of a decision":       head(`{"alg":"ES256","kid":"` + kid + `","typ":"nightwarrant-readiness+jwt"}`),
		"kid missing":             head(`{"alg":"ES256","typ":"at+jwt"}`),
		"kid a number":            head(`{"alg":"ES256","kid":1,"typ":"at+jwt"}`),
		"kid unknown":             head(`{"alg":"ES256","kid":"x","typ":"at+jwt"}`),
		"crit":                    head(`{"alg":"ES256","crit":["exp"],"kid":"` + kid + `","typ":"at+jwt"}`),
		"jwk":                     head(`{"alg":"ES256","jwk":{},"kid":"` + kid + `","typ":"at+jwt"}`),
		"jku":                     head(`{"alg":"ES256","jku":"https://evil.example","kid":"` + kid + `","typ":"at+jwt"}`),
		"header is an array":      head(`[]`),
		"header and more":         head(tokenHeader(t) + "{}"),
		"payload and more":        signed(t, issuer(t), tokenHeader(t), string(payload)+"{}"),
		"payload is an array":     signed(t, issuer(t), tokenHeader(t), "["+string(payload)+"]"),
		"cap twice":               body(`"cap":"run"`, `"cap":"run","cap":"run"`),
		"cap twice, once escaped": body(`"cap":"run"`, `"cap":"run","\u0063ap":"run"`),
		"CAP":                     body(`"cap":`, `"CAP":`),
		"cap missing":             body(`"cap":"run",`, ``),
		"cap null":                body(`"cap":"run"`, `"cap":null`),
		"cap an array":            body(`"cap":"run"`, `"cap":["run"]`),
		"aud an array":            body(`"aud":"`+testIssuer+`"`, `"aud":["`+testIssuer+`"]`),
		"aud missing":             body(`"aud":"`+testIssuer+`",`, ``),
		"fence a string":          body(`"fence":1099511627777`, `"fence":"1099511627777"`),
		"fence a fraction":        body(`"fence":1099511627777`, `"fence":1099511627777.0`),
		"fence missing":           body(`"fence":1099511627777,`, ``),
		"fence in another case":   body(`"fence":`, `"Fence":`),
		"exp missing":             body(`"exp":1780000060,`, ``),
		"iat null":                body(`"iat":1780000000`, `"iat":null`),
		"a claim more":            body(`"cap":"run"`, `"cap":"run","act":{}`),
		"effect claims besides":   body(`"cap":"run"`, `"cap":"run","effect":"e"`),
	} {
		err := verifiers["run"](Token(in), testKeys(t), testExpectation())
		assert.Equal(t, CodeInvalidToken, code(t, err), name)
	}
}

func TestDigestOfCapability(t *testing.T) {
	t.Parallel()
	c, err := VerifyRun(signRun(t, goodRun(t)), testKeys(t), testExpectation())
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256([]byte("nightwarrant/capability/v1\x00jti-1")), c.Digest())
}

// failing is a key out of reach, and one that answers with rubbish.
type failing struct{ err error }

func (failing) KeyID() string                                  { return "k" }
func (f failing) SignES256(_ [32]byte) (s [64]byte, err error) { return s, f.err }

func TestSignerFails(t *testing.T) {
	t.Parallel()
	gone := errors.New("token gone")
	token, err := SignRun(failing{gone}, goodRun(t))
	require.ErrorIs(t, err, gone)
	assert.Empty(t, token.Reveal())
	token, err = SignRun(failing{}, goodRun(t))
	require.NoError(t, err)
	keys := keySet{"k": issuer(t).Public()}
	assert.Error(t, verifiers["run"](token, keys, testExpectation()))
	_, err = opaque{issuer(t)}.SignPayload(nil, "ES384")
	assert.Error(t, err)
}

func TestEffectDigest(t *testing.T) {
	t.Parallel()
	want := sha256.Sum256([]byte(`nightwarrant/effect/v1` + "\x00" + `{"action":"order.place","amount":1250,"currency":"EUR",` +
		`"guard":"https://guard.example","params_sha256":"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","resource":"orders/7"}`))
	got, err := goodEffect().Digest()
	require.NoError(t, err)
	assert.Equal(t, want, got)

	edits := map[string]func(*Effect){
		"guard": func(e *Effect) { e.Guard += "x" }, "action": func(e *Effect) { e.Action += "x" },
		"resource": func(e *Effect) { e.Resource += "x" }, "params": func(e *Effect) { e.ParamsDigest[31]++ },
		"amount": func(e *Effect) { e.Amount++ }, "currency": func(e *Effect) { e.Currency = "USD" },
	}
	for name, edit := range edits {
		e := goodEffect()
		edit(&e)
		other, err := e.Digest()
		require.NoError(t, err)
		assert.NotEqual(t, want, other, name)
		assert.False(t, e.Equal(goodEffect()), name)
	}
	_, err = Effect{}.Digest()
	assert.Error(t, err)
}

func TestEffectDigestIsInjective(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[!-~]{1,8}`)
	effect := rapid.Custom(func(t *rapid.T) Effect {
		e := Effect{Guard: name.Draw(t, "guard"), Action: name.Draw(t, "action"), Resource: name.Draw(t, "resource"), ParamsDigest: [32]byte{1}}
		if rapid.Bool().Draw(t, "paid") {
			e.Amount, e.Currency = rapid.Int64Range(1, 1<<53-1).Draw(t, "amount"), rapid.StringMatching(`[A-Z]{3}`).Draw(t, "currency")
		}
		return e
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := effect.Draw(t, "a"), effect.Draw(t, "b")
		x, err := a.Digest()
		require.NoError(t, err)
		y, err := b.Digest()
		require.NoError(t, err)
		require.Equal(t, a.Equal(b), x == y)
		c := EffectClaims{Details: []Detail{DetailOf(a)}}
		back, err := c.Effect()
		require.NoError(t, err)
		require.Equal(t, a, back)
	})
}

func TestParamsDigest(t *testing.T) {
	t.Parallel()
	digest, spelled, err := ParamsDigest(json.RawMessage(` { "b" : 1 , "a" : "x" } `))
	require.NoError(t, err)
	assert.Equal(t, `{"a":"x","b":1}`, string(spelled))
	assert.Equal(t, sha256.Sum256([]byte("nightwarrant/params/v1\x00"+`{"a":"x","b":1}`)), digest)
	for _, in := range []string{``, `null`, `[]`, `{"a":1.5}`, `{"a":null}`, `{"a":1,"a":1}`} {
		digest, spelled, err := ParamsDigest(json.RawMessage(in))
		require.Error(t, err, in)
		assert.Nil(t, spelled)
		assert.Zero(t, digest)
	}
	assert.Equal(t, sha256.Sum256([]byte("nightwarrant/effect-key/v1\x00step-1")), EffectKeyDigest("step-1"))
}

// A capability's clock is checked at every second around its life: it is good in [iat, exp) and nowhere else.
func TestLifetimeProperty(t *testing.T) {
	t.Parallel()
	token := signRun(t, goodRun(t))
	rapid.Check(t, func(r *rapid.T) {
		at := rapid.IntRange(-120, 180).Draw(r, "seconds")
		e := testExpectation()
		e.Now = testNow.Add(time.Duration(at) * time.Second)
		err := verifiers["run"](token, testKeys(t), e)
		require.Equal(r, at >= 0 && at < 60, err == nil)
	})
}

// jwk of jwx agrees on every thumbprint.
func TestThumbprintAgreesWithJWX(t *testing.T) {
	t.Parallel()
	for _, seed := range []string{"a", "b", "c", "d"} {
		k := fixedKey(t, seed)
		other, err := jwxkey.FromRaw(k.Public())
		require.NoError(t, err)
		sum, err := other.Thumbprint(crypto.SHA256)
		require.NoError(t, err)
		assert.Equal(t, b64(sum), k.Thumbprint().String())
	}
}
