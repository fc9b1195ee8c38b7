package guards

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// refusalCase spoils one thing of a good request.
type refusalCase struct {
	name   string
	spoil  func(s *stand, r *http.Request)
	status int
	code   api.Code
}

func setBody(r *http.Request, body string) { r.Body = io.NopCloser(strings.NewReader(body)) }

func proofWith(change func(*capability.ProofParams)) func(*stand, *http.Request) {
	return func(s *stand, r *http.Request) {
		token := capability.Token(strings.TrimPrefix(r.Header.Get("Authorization"), "DPoP "))
		r.Header.Set("DPoP", s.worker.Proof("row.append", token, change))
	}
}

var refusals = []refusalCase{
	{"no credential", func(_ *stand, r *http.Request) { r.Header.Del("Authorization") }, 401, api.InvalidToken},
	{"Bearer", func(_ *stand, r *http.Request) {
		r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "DPoP", "Bearer", 1))
	}, 401, api.InvalidToken},
	{"bearer without a proof", func(_ *stand, r *http.Request) {
		r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "DPoP", "bEaReR", 1))
		r.Header.Del("DPoP")
	}, 401, api.InvalidToken},
	{"two credentials", func(_ *stand, r *http.Request) { r.Header.Add("Authorization", r.Header.Get("Authorization")) }, 400, api.InvalidRequest},
	{"a credential that is no token", func(_ *stand, r *http.Request) { r.Header.Set("Authorization", "DPoP a b") }, 400, api.InvalidRequest},
	{"a token of nothing but dots", func(_ *stand, r *http.Request) { r.Header.Set("Authorization", "DPoP "+strings.Repeat(".", 8000)) }, 401, api.InvalidToken},
	{"no proof", func(_ *stand, r *http.Request) { r.Header.Del("DPoP") }, 401, api.InvalidDPoPProof},
	{"two proofs", func(s *stand, r *http.Request) { r.Header.Add("DPoP", r.Header.Get("DPoP")) }, 401, api.InvalidDPoPProof},
	{"two proofs in a line", func(_ *stand, r *http.Request) { r.Header.Set("DPoP", r.Header.Get("DPoP")+","+r.Header.Get("DPoP")) }, 401, api.InvalidDPoPProof},
	{"an empty proof", func(_ *stand, r *http.Request) { r.Header.Set("DPoP", "") }, 401, api.InvalidDPoPProof},
	{"a proof of another key", func(s *stand, r *http.Request) {
		thief := authoritytest.NewWorker(s.authority)
		token := capability.Token(strings.TrimPrefix(r.Header.Get("Authorization"), "DPoP "))
		r.Header.Set("DPoP", thief.Proof("row.append", token))
	}, 401, api.InvalidToken},
	{"a proof for another token", proofWith(func(p *capability.ProofParams) { p.AccessToken = "another" }), 401, api.InvalidDPoPProof},
	{"a proof without a token", proofWith(func(p *capability.ProofParams) { p.AccessToken = "" }), 401, api.InvalidDPoPProof},
	{"a proof for another method", proofWith(func(p *capability.ProofParams) { p.Method = "PUT" }), 401, api.InvalidDPoPProof},
	{"a proof for another action", proofWith(func(p *capability.ProofParams) { p.URL = authoritytest.GuardURI + "/operations/transfer" }), 401, api.InvalidDPoPProof},
	{"a proof with a slash more", proofWith(func(p *capability.ProofParams) { p.URL += "/" }), 401, api.InvalidDPoPProof},
	{"a proof for the host that was dialled", proofWith(func(p *capability.ProofParams) {
		p.URL = strings.Replace(p.URL, "guard.example", "internal.example:8443", 1)
	}), 401, api.InvalidDPoPProof},
	{"a proof of another day", proofWith(func(p *capability.ProofParams) { p.Now = time.Now().Add(-25 * time.Hour) }), 401, api.InvalidDPoPProof},
	{"a proof with a spoiled signature", func(_ *stand, r *http.Request) {
		proof := []byte(r.Header.Get("DPoP"))
		proof[len(proof)-20] ^= 1
		r.Header.Set("DPoP", string(proof))
	}, 401, api.InvalidDPoPProof},

	{"another parameter", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"2","paid":true}}}`)
	}, 403, api.EffectMismatch},
	{"a parameter less", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1"}}}`)
	}, 403, api.EffectMismatch},
	{"another table, consistently", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:wages","parameters":{"table":"wages","values":{"id":"1","paid":true}}}`)
	}, 403, api.EffectMismatch},
	{"another resource than the parameters'", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:wages","parameters":{"table":"orders","values":{"id":"1","paid":true}}}`)
	}, 400, api.InvalidRequest},
	{"an amount that the parameters do not have", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}},"amount":1,"currency":"EUR"}`)
	}, 400, api.InvalidRequest},
	{"an unknown member", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}},"force":true}`)
	}, 400, api.InvalidRequest},
	{"an unknown parameter", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true},"key":{"id":"1"}}}`)
	}, 400, api.InvalidRequest},
	{"a member twice", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:wages","resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}}}`)
	}, 400, api.InvalidRequest},
	{"a parameter twice", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"2","id":"1","paid":true}}}`)
	}, 400, api.InvalidRequest},
	{"a member in another case", func(_ *stand, r *http.Request) {
		setBody(r, `{"Resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}}}`)
	}, 400, api.InvalidRequest},
	{"something after the body", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}}}{}`)
	}, 400, api.InvalidRequest},
	{"no body", func(_ *stand, r *http.Request) { setBody(r, "") }, 400, api.InvalidRequest},
	{"an array", func(_ *stand, r *http.Request) { setBody(r, "[]") }, 400, api.InvalidRequest},
	{"no parameters", func(_ *stand, r *http.Request) { setBody(r, `{"resource":"table:orders"}`) }, 400, api.InvalidRequest},
	{"parameters that are null", func(_ *stand, r *http.Request) { setBody(r, `{"resource":"table:orders","parameters":null}`) }, 400, api.InvalidRequest},
	{"a body that breaks off", func(_ *stand, r *http.Request) {
		r.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{`), broken{}))
	}, 400, api.InvalidRequest},
	{"a body that is too large", func(_ *stand, r *http.Request) {
		setBody(r, `{"resource":"`+strings.Repeat("x", canonical.MaxSize)+`"}`)
	}, 413, api.PayloadTooLarge},
	{"a query", func(_ *stand, r *http.Request) { r.URL.RawQuery = "dry_run=1" }, 400, api.InvalidRequest},
	{"a form", func(_ *stand, r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, 415, api.UnsupportedMediaType},
	{"no media type", func(_ *stand, r *http.Request) { r.Header.Del("Content-Type") }, 415, api.UnsupportedMediaType},
	{"a compressed body", func(_ *stand, r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, 415, api.UnsupportedMediaType},

	{"another action", func(_ *stand, r *http.Request) { r.URL.Path = "/ledger/operations/row.delete" }, 404, api.NotFound},
	{"a slash more", func(_ *stand, r *http.Request) { r.URL.Path += "/" }, 404, api.NotFound},
	{"a double slash", func(_ *stand, r *http.Request) { r.URL.Path = "/ledger//operations/row.append" }, 404, api.NotFound},
	{"dots in the path", func(_ *stand, r *http.Request) { r.URL.Path = "/x/../ledger/operations/row.append" }, 404, api.NotFound},
	{"an escaped action", func(_ *stand, r *http.Request) {
		r.URL.Path, r.URL.RawPath = "/ledger/operations/row.append", "/ledger/operations/row%2eappend"
	}, 404, api.NotFound},
	{"no prefix", func(_ *stand, r *http.Request) { r.URL.Path = "/operations/row.append" }, 404, api.NotFound},
	{"another method", func(_ *stand, r *http.Request) { r.Method = http.MethodPut }, 405, api.MethodNotAllowed},
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestSpoiledRequestIsRefusedAndConsumesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range refusals {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			token, ref := s.mint("row.append", order("1"))
			r := s.worker.Request("row.append", token, order("1"))
			c.spoil(s, r)
			answer := s.do(r)
			require.Equal(t, c.code, answer.Problem.Code, answer.Text)
			require.Equal(t, c.status, answer.Status)
			require.Equal(t, c.status, answer.Problem.Status)
			requireOneChallengeIf401(t, answer)
			s.requireUntouched(t, ref)
			require.Zero(t, s.authority.Count(api.PathAdmit), "the authority was not asked")

			good := s.do(s.worker.Request("row.append", token, order("1")))
			s.requireCommitted(t, good, ref)
		})
	}
}

func requireOneChallengeIf401(t *testing.T, answer authoritytest.Answer) {
	t.Helper()
	require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
	if answer.Status != http.StatusUnauthorized {
		require.Empty(t, answer.Challenge)
		return
	}
	require.Len(t, answer.Challenge, 1)
	require.True(t, strings.HasPrefix(answer.Challenge[0], "DPoP "), answer.Challenge)
}

func TestRequestWithoutCredentialIsToldNoError(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	r, _ := s.minted()
	r.Header.Del("Authorization")
	answer := s.do(r)
	require.Equal(t, []string{`DPoP algs="ES256", resource_metadata="https://guard.example/.well-known/oauth-protected-resource/ledger"`}, answer.Challenge)
}

// TestSpoiledCapabilityIsRefused has capabilities that the cluster's key signed and that are still not good here.
func TestSpoiledCapabilityIsRefused(t *testing.T) {
	t.Parallel()
	other := capability.Effect{Guard: "https://other.example/ledger", Action: "row.append", Resource: "table:orders", ParamsDigest: [32]byte{1}}
	for name, spoil := range map[string]func(*capability.EffectClaims){
		"another audience": func(c *capability.EffectClaims) {
			c.Audience, c.Details = other.Guard, []capability.Detail{capability.DetailOf(other)}
		},
		"the guard's origin as audience": func(c *capability.EffectClaims) {
			e := other
			e.Guard = "https://guard.example"
			c.Audience, c.Details = e.Guard, []capability.Detail{capability.DetailOf(e)}
		},
		"another issuer":           func(c *capability.EffectClaims) { c.Issuer = "https://evil.example" },
		"expired":                  func(c *capability.EffectClaims) { c.IssuedAt, c.Expires = c.IssuedAt-66, c.Expires-66 },
		"not yet valid":            func(c *capability.EffectClaims) { c.IssuedAt, c.Expires = c.IssuedAt+30, c.Expires+30 },
		"another generation":       func(c *capability.EffectClaims) { c.Generation++ },
		"a reference that is none": func(c *capability.EffectClaims) { c.EffectRef = "1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStand(t)
			token, _ := s.mint("row.append", order("1"), spoil)
			answer := s.do(s.worker.Request("row.append", token, order("1")))
			require.Equal(t, 401, answer.Status, answer.Text)
			require.Equal(t, api.InvalidToken, answer.Problem.Code)
			require.Contains(t, answer.Challenge[0], `DPoP error="invalid_token", `)
			require.Zero(t, s.authority.Count(api.PathAdmit))
			require.Empty(t, s.ledger.intents)
		})
	}
}

func TestCapabilityOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	now := time.Now().Unix()
	header := capability.Header{Issuer: authoritytest.Issuer, Audience: authoritytest.Issuer, Subject: "s", ClientID: "c", IssuedAt: now, Expires: now + 60, ID: "i",
		Confirmation: capability.Confirmation{JKT: s.worker.Key.Thumbprint()}, Generation: 3}
	run, err := capability.SignRun(s.authority.Key, capability.RunClaims{Header: header, Binding: capability.Binding{
		Run: "r", Lane: "l", Fence: 1, Deadline: now + 600, ActivationEpoch: 1, ReadinessEpoch: 1, Incarnation: 1}})
	require.NoError(t, err)
	component, err := capability.SignComponent(s.authority.Key, capability.ComponentClaims{Header: header, Component: "c", ComponentKind: "guard", Boot: 1})
	require.NoError(t, err)
	decision, err := capability.SignDecision(s.authority.Key, 3, capability.DecisionClaims{Issuer: authoritytest.Issuer, IssuedAt: now, Expires: now + 1, Open: true,
		Incarnation: 1, Epoch: 1, Sequence: 1, Requirement: 1, ValidMS: 2000, SinceUnixMS: 1, InputsSHA256: strings.Repeat("A", 43),
		Families: []capability.DecidedFamily{{Family: "store", Good: true}}})
	require.NoError(t, err)
	for _, token := range []capability.Token{run, component, capability.Token(decision)} {
		answer := s.do(s.worker.Request("row.append", token, order("1")))
		require.Equal(t, api.InvalidToken, answer.Problem.Code)
	}
}

// TestForgedTokenIsRefused spoils the token itself, by hand.
func TestForgedTokenIsRefused(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	parts := strings.Split(token.Reveal(), ".")
	encode := func(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
	header, _ := base64.RawURLEncoding.DecodeString(parts[0])
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	der := append([]byte{0x30, 0x44, 2, 0x20}, append(append(append([]byte{}, signature[:32]...), 2, 0x20), signature[32:]...)...)
	forged, err := authoritytest.New().Key.SignES256([32]byte{1})
	require.NoError(t, err)
	join := func(parts ...string) string { return strings.Join(parts, ".") }
	for name, text := range map[string]string{
		"no signature":           join(parts[0], parts[1], ""),
		"alg none":               join(encode([]byte(`{"alg":"none","typ":"at+jwt","kid":"`+s.authority.Key.KeyID()+`"}`)), parts[1], ""),
		"a short signature":      join(parts[0], parts[1], encode(signature[:63])),
		"a long signature":       join(parts[0], parts[1], encode(append(signature, 0))),
		"a DER signature":        join(parts[0], parts[1], encode(der)),
		"another key":            join(parts[0], parts[1], encode(forged[:])),
		"a critical member":      join(encode(bytes.Replace(header, []byte("{"), []byte(`{"crit":["cnf"],`), 1)), parts[1], parts[2]),
		"a key of its own":       join(encode(bytes.Replace(header, []byte("{"), []byte(`{"jwk":{},`), 1)), parts[1], parts[2]),
		"a member twice":         join(encode(bytes.Replace(header, []byte("{"), []byte(`{"alg":"none",`), 1)), parts[1], parts[2]),
		"another type":           join(encode(bytes.Replace(header, []byte("at+jwt"), []byte("jwt"), 1)), parts[1], parts[2]),
		"an unknown kid":         join(encode([]byte(`{"alg":"ES256","typ":"at+jwt","kid":"other"}`)), parts[1], parts[2]),
		"no kid":                 join(encode([]byte(`{"alg":"ES256","typ":"at+jwt"}`)), parts[1], parts[2]),
		"four segments":          token.Reveal() + ".x",
		"another payload":        join(parts[0], encode([]byte(`{}`)), parts[2]),
		"JSON serialization":     fmt.Sprintf(`{"payload":%q,"protected":%q,"signature":%q}`, parts[1], parts[0], parts[2]),
		"a padded last segment":  token.Reveal() + "==",
		"trailing bits that are": parts[0] + "." + parts[1] + "." + parts[2][:len(parts[2])-1] + nextInAlphabet(parts[2][len(parts[2])-1]),
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.do(s.worker.Request("row.append", capability.Token(text), order("1")))
			require.Contains(t, []api.Code{api.InvalidToken, api.InvalidRequest}, answer.Problem.Code, answer.Text)
			s.requireUntouched(t, ref)
		})
	}
	s.requireCommitted(t, s.do(s.worker.Request("row.append", token, order("1"))), ref)
}

// TestTokenThatTheClusterSignedAndNeverWould: the signature is good, so that only what is named here can be what refuses it.
func TestTokenThatTheClusterSignedAndNeverWould(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, ref := s.mint("row.append", order("1"))
	parts := strings.Split(token.Reveal(), ".")
	decode := func(segment string) string {
		b, err := base64.RawURLEncoding.DecodeString(segment)
		require.NoError(t, err)
		return string(b)
	}
	header, payload := decode(parts[0]), decode(parts[1])
	sign := func(header, payload string) capability.Token {
		signed := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString([]byte(payload))
		signature, err := s.authority.Key.SignES256(sha256.Sum256([]byte(signed)))
		require.NoError(t, err)
		return capability.Token(signed + "." + base64.RawURLEncoding.EncodeToString(signature[:]))
	}
	change := func(text, from, to string) string {
		changed := strings.Replace(text, from, to, 1)
		require.NotEqual(t, text, changed, from)
		return changed
	}
	for name, forged := range map[string]capability.Token{
		"another kind":               sign(header, change(payload, `"cap":"effect"`, `"cap":"run"`)),
		"no kind":                    sign(header, change(payload, `"cap":"effect",`, ``)),
		"two audiences":              sign(header, change(payload, `"aud":"`+authoritytest.GuardURI+`"`, `"aud":["`+authoritytest.GuardURI+`"]`)),
		"an audience twice":          sign(header, change(payload, `{`, `{"aud":"https://other.example/x",`)),
		"a claim in capitals":        sign(header, change(payload, `{`, `{"AUD":"https://other.example/x",`)),
		"a claim too many":           sign(header, change(payload, `{`, `{"admin":true,`)),
		"no key":                     sign(header, change(payload, `"jkt"`, `"x5t#S256"`)),
		"an empty key":               sign(header, change(payload, `"cnf":{"jkt":"`+s.worker.Key.Thumbprint().String()+`"}`, `"cnf":{}`)),
		"a key that is null":         sign(header, change(payload, `"`+s.worker.Key.Thumbprint().String()+`"`, `null`)),
		"no expiry":                  sign(header, change(payload, `"exp"`, `"nbf"`)),
		"a life that is long":        sign(header, changeNumber(t, payload, "iat", -3600)),
		"an end after the run's":     sign(header, changeNumber(t, payload, "deadline", -595)),
		"a critical header":          sign(change(header, "{", `{"crit":["exp"],`), payload),
		"a key in its header":        sign(change(header, "{", `{"jwk":{"kty":"EC"},`), payload),
		"a key elsewhere":            sign(change(header, "{", `{"jku":"https://evil.example",`), payload),
		"another type":               sign(change(header, "at+jwt", "dpop+jwt"), payload),
		"no type":                    sign(change(header, `"typ":"at+jwt"`, `"typ":""`), payload),
		"two types":                  sign(change(header, "{", `{"typ":"jwt",`), payload),
		"another algorithm":          sign(change(header, "ES256", "ES384"), payload),
		"an algorithm in lower case": sign(change(header, "ES256", "es256"), payload),
		"claims that are none":       sign(header, "[]"),
		"two details":                sign(header, change(payload, `"authorization_details":[`, `"authorization_details":[{},`)),
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.do(s.worker.Request("row.append", forged, order("1")))
			require.Contains(t, []int{401, 403}, answer.Status, answer.Text)
			require.Zero(t, s.authority.Count(api.PathAdmit))
			s.requireUntouched(t, ref)
		})
	}
	s.requireCommitted(t, s.do(s.worker.Request("row.append", sign(header, payload), order("1"))), ref)
}

func changeNumber(t *testing.T, payload, claim string, by int64) string {
	t.Helper()
	changed := false
	out := regexp.MustCompile(`"`+claim+`":(\d+)`).ReplaceAllStringFunc(payload, func(found string) string {
		n, err := strconv.ParseInt(found[len(claim)+3:], 10, 64)
		require.NoError(t, err)
		changed = true
		return fmt.Sprintf("%q:%d", claim, n+by)
	})
	require.True(t, changed)
	return out
}

// nextInAlphabet changes only the bits that base64url of 64 bytes does not use.
func nextInAlphabet(c byte) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	return string(alphabet[strings.IndexByte(alphabet, c)|1])
}

// TestAmountIsBound: the amount is in the parameters, in the request and in the capability, or nothing happens.
func TestAmountIsBound(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	body := func(cents, amount int64) authoritytest.Body {
		return authoritytest.Body{Resource: "account:alice", Parameters: json.RawMessage(fmt.Sprintf(`{"cents":%d,"to":"alice"}`, cents)), Amount: amount, Currency: "EUR"}
	}
	token, ref := s.mint("transfer", body(100, 100))
	for name, c := range map[string]struct {
		body authoritytest.Body
		code api.Code
	}{
		"more, consistently":             {body(101, 101), api.EffectMismatch},
		"more in the parameters only":    {body(101, 100), api.InvalidRequest},
		"more in the request only":       {body(100, 101), api.InvalidRequest},
		"nothing in the request":         {body(100, 0), api.InvalidRequest},
		"another currency":               {authoritytest.Body{Resource: "account:alice", Parameters: body(100, 100).Parameters, Amount: 100, Currency: "USD"}, api.InvalidRequest},
		"less than the consented effect": {body(99, 99), api.EffectMismatch},
	} {
		answer := s.do(s.worker.Request("transfer", token, c.body))
		require.Equal(t, c.code, answer.Problem.Code, name)
		s.requireUntouched(t, ref)
	}
	s.requireCommitted(t, s.do(s.worker.Request("transfer", token, body(100, 100))), ref)
	require.Equal(t, Target{Resource: "account:alice", Amount: 100, Currency: "EUR"}, s.ledger.applied[0].Target)
	require.JSONEq(t, `{"cents":100,"to":"alice"}`, string(s.ledger.applied[0].Params))
}

// TestCapabilityForOneActionIsNoneForAnother: same parameters, another operation.
func TestCapabilityForOneActionIsNoneForAnother(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.guard.config.Operations["row.insert"] = s.guard.config.Operations["row.append"]
	token, ref := s.mint("row.append", order("1"))
	answer := s.do(s.worker.Request("row.insert", token, order("1")))
	require.Equal(t, api.EffectMismatch, answer.Problem.Code)
	s.requireUntouched(t, ref)
}

func TestNoSecretIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := newStand(t)
	s.guard = s.newGuard(t, func(c *Config) { c.Logger = textLogger(&log) })
	s.authority.Verdicts[api.PathAdmit] = api.InvalidToken
	r, _ := s.minted()
	s.do(r)
	s.ledger.refuse = io.ErrUnexpectedEOF
	r, _ = s.minted()
	s.do(r)
	require.NotEmpty(t, log.String())
	for _, secret := range []string{r.Header.Get("DPoP"), strings.TrimPrefix(r.Header.Get("Authorization"), "DPoP "), authoritytest.Assertion} {
		require.NotContains(t, log.String(), secret)
	}
}
