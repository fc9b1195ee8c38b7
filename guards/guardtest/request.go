package guardtest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// requestCases are about what a worker, or a thief, may send.
var requestCases = []named{
	{"exact match", exactMatch, calm},
	{"junk requests", junkRequests, calm},
	{"oversized body", oversizedBody, calm},
	{"wrong audience", wrongAudience, calm},
	{"capabilities that are none", badCapabilities, calm},
	{"proofs that are none", badProofs, calm},
	{"nonce challenge", nonceChallenge, calm},
	{"paths", paths, calm},
}

// spoiled sends an effect's request after each of the changes and expects that the guard refuses by itself.
func (w *world) spoiled(p *process, changes map[string]func(e *effect, r *http.Request)) {
	w.Helper()
	for name, change := range changes {
		e := w.next()
		a := p.send(w.request(e, func(r *http.Request) { change(e, r) }))
		assert.True(w, a.status >= 400 && a.status <= 499, "%s: it was answered with %d %s", name, a.status, a)
		assert.Equal(w, "minted", w.state(e), "%s: as the authority has it", name)
		assert.Zero(w, w.applied(e), "%s: times that effect %d happened", name, e.n)
	}
	w.requireNothingAsked()
	e := w.next()
	w.requireCommitted(e, w.present(p, e)) // and afterwards a good request still works
}

func setBody(r *http.Request, body []byte) {
	r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
}

// exactMatch: a capability is good for the effect that it names and for no other (P19).
func exactMatch(w *world) {
	p := w.start()
	changes := map[string]func(e *effect, r *http.Request){}
	var others []*effect
	for _, name := range []string{"the parameters of another effect", "another effect, wholly"} {
		other := w.fresh()
		others = append(others, other)
		changes[name] = func(_ *effect, r *http.Request) { setBody(r, other.body()) }
	}
	w.usual(changes, map[string]func(body *authoritytest.Body){
		"another resource":                   func(b *authoritytest.Body) { b.Resource += "x" },
		"an amount more":                     func(b *authoritytest.Body) { b.Amount++; b.Currency = "EUR" },
		"an amount that is negative":         func(b *authoritytest.Body) { b.Amount, b.Currency = -1, "EUR" },
		"an amount without a currency":       func(b *authoritytest.Body) { b.Amount, b.Currency = b.Amount+1, "" },
		"a currency without an amount":       func(b *authoritytest.Body) { b.Amount, b.Currency = 0, "XTS" },
		"a parameter more":                   func(b *authoritytest.Body) { b.Parameters = withMember(b.Parameters) },
		"no parameters":                      func(b *authoritytest.Body) { b.Parameters = json.RawMessage(`{}`) },
		"parameters that are none":           func(b *authoritytest.Body) { b.Parameters = json.RawMessage(`null`) },
		"a resource that is empty":           func(b *authoritytest.Body) { b.Resource = "" },
		"parameters that are text, escaped":  func(b *authoritytest.Body) { b.Parameters, _ = json.Marshal(string(b.Parameters)) },
		"parameters that are a list of them": func(b *authoritytest.Body) { b.Parameters = append(append([]byte("["), b.Parameters...), ']') },
	})
	w.spoiled(p, changes)
	for _, other := range others {
		assert.Zero(w, w.applied(other), "times that an effect happened which no capability names")
	}
}

// usual adds changes of the members of a body, for a guard that takes the usual one.
func (w *world) usual(changes map[string]func(e *effect, r *http.Request), bodies map[string]func(body *authoritytest.Body)) {
	if w.guard.Effect(int(w.suite.last.Add(1))).Body != nil {
		return
	}
	for name, change := range bodies {
		changes[name] = func(e *effect, r *http.Request) {
			b := authoritytest.Body{Resource: e.Resource, Parameters: e.Parameters, Amount: e.Amount, Currency: e.Currency}
			change(&b)
			encoded, _ := json.Marshal(b)
			setBody(r, encoded)
		}
	}
}

// withMember adds a member that nobody knows to an object.
func withMember(object []byte) []byte {
	rest := bytes.TrimSpace(object)[1:]
	if bytes.Equal(bytes.TrimSpace(rest), []byte("}")) {
		return []byte(`{"nw_unknown":1}`)
	}
	return append([]byte(`{"nw_unknown":1,`), rest...)
}

// junkRequests: what two readers could read in two ways is refused, and nothing is guessed.
func junkRequests(w *world) {
	p := w.start()
	body := func(change func(b []byte) []byte) func(*effect, *http.Request) {
		return func(e *effect, r *http.Request) { setBody(r, change(e.body())) }
	}
	head := func(change func(h http.Header)) func(*effect, *http.Request) {
		return func(_ *effect, r *http.Request) { change(r.Header) }
	}
	w.spoiled(p, map[string]func(e *effect, r *http.Request){
		"no body":                 body(func([]byte) []byte { return nil }),
		"no JSON":                 body(func([]byte) []byte { return []byte("resource=1") }),
		"a list":                  body(func(b []byte) []byte { return append(append([]byte("["), b...), ']') }),
		"something behind it":     body(func(b []byte) []byte { return append(bytes.Clone(b), "{}"...) }),
		"a byte order mark":       body(func(b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) }),
		"half of it":              body(func(b []byte) []byte { return b[:len(b)/2] }),
		"an unknown member":       body(withMember),
		"every member twice":      body(func(b []byte) []byte { return append(append(b[:len(b)-1:len(b)-1], ','), b[1:]...) }),
		"bytes that are no UTF-8": body(func(b []byte) []byte { return append([]byte("{\"\xff\":1,"), b[1:]...) }),
		"deep nesting":            body(func(b []byte) []byte { return bytes.Repeat([]byte("["), 20_000) }),
		"a form":                  head(func(h http.Header) { h.Set("Content-Type", "application/x-www-form-urlencoded") }),
		"no media type":           head(func(h http.Header) { h.Del("Content-Type") }),
		"a compressed body":       head(func(h http.Header) { h.Set("Content-Encoding", "gzip") }),
		"a query":                 func(_ *effect, r *http.Request) { r.URL.RawQuery = "force=true" },
		"another method":          func(_ *effect, r *http.Request) { r.Method = http.MethodPut },
		"no credential":           head(func(h http.Header) { h.Del("Authorization") }),
		"Bearer": head(func(h http.Header) {
			h.Set("Authorization", "Bearer"+strings.TrimPrefix(h.Get("Authorization"), "DPoP"))
		}),
		"two credentials":              head(func(h http.Header) { h.Add("Authorization", h.Get("Authorization")) }),
		"a credential of dots":         head(func(h http.Header) { h.Set("Authorization", "DPoP "+strings.Repeat(".", 6000)) }),
		"no proof":                     head(func(h http.Header) { h.Del(api.HeaderProof) }),
		"an empty proof":               head(func(h http.Header) { h.Set(api.HeaderProof, "") }),
		"two proofs":                   head(func(h http.Header) { h.Add(api.HeaderProof, h.Get(api.HeaderProof)) }),
		"two proofs in one line":       head(func(h http.Header) { h.Set(api.HeaderProof, h.Get(api.HeaderProof)+","+h.Get(api.HeaderProof)) }),
		"a proof that is a capability": head(func(h http.Header) { h.Set(api.HeaderProof, strings.TrimPrefix(h.Get("Authorization"), "DPoP ")) }),
		"a capability that is a proof": head(func(h http.Header) { h.Set("Authorization", "DPoP "+h.Get(api.HeaderProof)) }),
		"the capability beside, in form": func(e *effect, r *http.Request) {
			r.Header.Del("Authorization")
			r.URL.RawQuery = "access_token=" + e.token.Reveal()
		},
	})
}

// oversizedBody: a body over the bound is refused while it is read, not after.
func oversizedBody(w *world) {
	p := w.start()
	const large = 8 << 20
	w.spoiledByAny(p, map[string]func(e *effect, r *http.Request){
		"a large body":            func(e *effect, r *http.Request) { setBody(r, padded(e.body(), large)) },
		"a large body, in chunks": func(e *effect, r *http.Request) { setBody(r, padded(e.body(), large)); r.ContentLength = -1 },
		"a body without end": func(_ *effect, r *http.Request) {
			r.Body, r.ContentLength, r.GetBody = io.NopCloser(&endless{}), -1, nil
		},
		"a large header": func(_ *effect, r *http.Request) { r.Header.Set("X-Padding", strings.Repeat("x", 4<<20)) },
	})
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
}

// padded is the body behind so many blanks: no reader could take it for another one.
func padded(body []byte, n int) []byte { return append(bytes.Repeat([]byte(" "), n), body...) }

// endless goes on slowly after what no guard should have read: who reads on waits, and keeps nobody busy.
type endless struct{ given int }

func (e *endless) Read(b []byte) (int, error) {
	if e.given += len(b); e.given > 8<<20 {
		pause(10 * time.Millisecond)
	}
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// spoiledByAny also takes a connection that is closed for an answer.
func (w *world) spoiledByAny(p *process, changes map[string]func(e *effect, r *http.Request)) {
	w.Helper()
	for name, change := range changes {
		e, began := w.next(), time.Now()
		a := p.send(w.request(e, func(r *http.Request) { change(e, r) }))
		assert.True(w, a.status == 0 || a.refused(), "%s: it was answered with %d %s", name, a.status, a)
		assert.Less(w, time.Since(began), w.suite.patience(), "%s: the guard reads on and on", name)
		assert.Equal(w, "minted", w.state(e), "%s: as the authority has it", name)
		assert.Zero(w, w.applied(e), "%s: times that effect %d happened", name, e.n)
	}
	w.requireNothingAsked()
}

// wrongAudience: a capability for another guard is refused here, before the authority is troubled.
func wrongAudience(w *world) {
	p := w.start()
	for _, audience := range []string{"https://other.example/ledger", uri + "/", uri + "2", strings.TrimSuffix(uri, "/ledger"), strings.ToUpper(uri), w.authority.Issuer} {
		for name, change := range map[string]func(c *capability.EffectClaims){
			"claimed": func(c *capability.EffectClaims) { c.Audience = audience },
			"wholly":  func(c *capability.EffectClaims) { c.Audience, c.Details[0].Locations = audience, []string{audience} },
		} {
			e := w.forged(change)
			a := w.present(p, e)
			w.requireUntouched(e, a)
			require.Equal(w, http.StatusUnauthorized, a.status, "for %s, %s: %s", audience, name, a)
		}
	}
	e := w.forged(func(c *capability.EffectClaims) { c.Details[0].Locations = []string{"https://other.example/ledger"} })
	w.requireUntouched(e, w.present(p, e))
	w.requireNothingAsked()
}

// badCapabilities: whatever is not an effect capability of the authority, for this guard and alive, is none.
func badCapabilities(w *world) {
	p := w.start()
	now := time.Now().Unix()
	stranger := authoritytest.NewWorker(w.authority.Authority).Key.Thumbprint()
	for name, change := range map[string]func(c *capability.EffectClaims){
		"of another issuer":       func(c *capability.EffectClaims) { c.Issuer = "https://authority.example" },
		"expired":                 func(c *capability.EffectClaims) { c.IssuedAt, c.Expires = now-120, now-60 },
		"of the future":           func(c *capability.EffectClaims) { c.IssuedAt, c.Expires, c.Deadline = now+600, now+660, now+900 },
		"that lives for a day":    func(c *capability.EffectClaims) { c.Expires, c.Deadline = now+86400, now+90000 },
		"that outlives its run":   func(c *capability.EffectClaims) { c.Deadline = c.Expires - 10 },
		"of another generation":   func(c *capability.EffectClaims) { c.Generation++ },
		"for a run":               func(c *capability.EffectClaims) { c.Kind = "run" },
		"for a component":         func(c *capability.EffectClaims) { c.Kind = "component" },
		"of no kind":              func(c *capability.EffectClaims) { c.Kind = "" },
		"for another resource":    func(c *capability.EffectClaims) { c.Details[0].Identifier += "x" },
		"for another action":      func(c *capability.EffectClaims) { c.Details[0].Actions = []string{"other.action"} },
		"for two actions":         func(c *capability.EffectClaims) { c.Details[0].Actions = append(c.Details[0].Actions, "other.action") },
		"for two effects":         func(c *capability.EffectClaims) { c.Details = append(c.Details, c.Details[0]) },
		"for no effect":           func(c *capability.EffectClaims) { c.Details = nil },
		"for an amount":           func(c *capability.EffectClaims) { c.Details[0].Amount++; c.Details[0].Currency = "XTS" },
		"for other parameters":    func(c *capability.EffectClaims) { c.Details[0].ParamsSHA256 = strings.Repeat("A", 43) },
		"for the key of somebody": func(c *capability.EffectClaims) { c.Confirmation.JKT = stranger },
	} {
		e := w.forged(change)
		w.requireNone("a capability "+name, e, w.present(p, e))
	}
	for name, spoil := range spoiledTokens(w) {
		e := w.next()
		e.token = spoil(e)
		w.requireNone("a capability "+name, e, w.present(p, e))
	}
	w.requireNothingAsked()
	e := w.next()
	w.requireCommitted(e, w.present(p, e))
}

func (w *world) requireNone(name string, e *effect, a answer) {
	w.Helper()
	assert.True(w, a.status == 400 || a.status == 401 || a.status == 403, "%s: it was answered with %d %s", name, a.status, a)
	assert.Equal(w, "minted", w.state(e), "%s: as the authority has it", name)
	assert.Zero(w, w.applied(e), "%s: times that effect %d happened", name, e.n)
}

// forged is an effect whose capability was signed by the authority, but not as it signs.
func (w *world) forged(change func(c *capability.EffectClaims)) *effect {
	w.Helper()
	e := w.next()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(e.token.Reveal(), ".")[1])
	require.NoError(w, err)
	var claims capability.EffectClaims
	require.NoError(w, json.Unmarshal(payload, &claims))
	change(&claims)
	payload, err = json.Marshal(claims)
	require.NoError(w, err)
	e.token = w.sign(payload, w.authority.Key, w.authority.Key.KeyID(), "at+jwt")
	return e
}

// sign signs whatever it is given.
func (w *world) sign(payload []byte, key *capability.Key, kid, typ string) capability.Token {
	w.Helper()
	header, err := json.Marshal(map[string]string{"alg": "ES256", "kid": kid, "typ": typ})
	require.NoError(w, err)
	signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload)
	signature, err := key.SignES256(sha256.Sum256([]byte(signed)))
	require.NoError(w, err)
	return capability.Token(signed + "." + base64.RawURLEncoding.EncodeToString(signature[:]))
}

// spoiledTokens are capabilities whose claims are good.
func spoiledTokens(w *world) map[string]func(e *effect) capability.Token {
	part := func(e *effect, i int) string { return strings.Split(e.token.Reveal(), ".")[i] }
	header := func(format string, args ...any) string {
		return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, format, args...))
	}
	kid := w.authority.Key.KeyID()
	by := func(key *capability.Key, kid, typ string) func(e *effect) capability.Token {
		return func(e *effect) capability.Token {
			payload, _ := base64.RawURLEncoding.DecodeString(part(e, 1))
			return w.sign(payload, key, kid, typ)
		}
	}
	return map[string]func(e *effect) capability.Token{
		"unsigned": func(e *effect) capability.Token {
			return capability.Token(header(`{"alg":"none","kid":%q,"typ":"at+jwt"}`, kid) + "." + part(e, 1) + ".")
		},
		"without a key": func(e *effect) capability.Token {
			return capability.Token(header(`{"alg":"ES256","typ":"at+jwt"}`) + "." + part(e, 1) + "." + part(e, 2))
		},
		"with a spoiled signature": func(e *effect) capability.Token {
			signature := []byte(part(e, 2))
			signature[10] ^= 1
			return capability.Token(part(e, 0) + "." + part(e, 1) + "." + string(signature))
		},
		"signed by its worker":         by(w.worker.Key, kid, "at+jwt"),
		"signed by a key that is none": by(w.worker.Key, w.worker.Key.KeyID(), "at+jwt"),
		"that is something else":       by(w.authority.Key, kid, "nightwarrant-readiness+jwt"),
		"that is a proof":              by(w.authority.Key, kid, "dpop+jwt"),
	}
}

// badProofs: only who holds the capability's key, for this request at this guard (RFC 9449 §4.3, §7.1).
func badProofs(w *world) {
	p := w.start()
	with := func(change func(*capability.ProofParams)) func(*effect, *http.Request) {
		return func(e *effect, r *http.Request) { r.Header.Set(api.HeaderProof, w.proof(e, change)) }
	}
	w.spoiled(p, map[string]func(e *effect, r *http.Request){
		"for another token":  with(func(p *capability.ProofParams) { p.AccessToken = "another" }),
		"for no token":       with(func(p *capability.ProofParams) { p.AccessToken = "" }),
		"for another method": with(func(p *capability.ProofParams) { p.Method = http.MethodPut }),
		"for another path":   with(func(p *capability.ProofParams) { p.URL += "2" }),
		"with a slash more":  with(func(p *capability.ProofParams) { p.URL += "/" }),
		"of yesterday":       with(func(p *capability.ProofParams) { p.Now = time.Now().Add(-25 * time.Hour) }),
		"for the address that was dialled": with(func(q *capability.ProofParams) {
			q.URL = strings.Replace(q.URL, "https://guard.example", "http://"+p.address, 1)
		}),
		"for another host, which the request names": func(e *effect, r *http.Request) {
			r.Host = "evil.example"
			r.Header.Set("X-Forwarded-Host", "evil.example")
			r.Header.Set("Forwarded", "host=evil.example;proto=https")
			r.Header.Set(api.HeaderProof, w.proof(e, func(q *capability.ProofParams) { q.URL = strings.Replace(q.URL, "guard.example", "evil.example", 1) }))
		},
		"of another key": func(e *effect, r *http.Request) {
			proof, err := capability.NewProof(authoritytest.NewWorker(w.authority.Authority).Key, capability.ProofParams{Method: http.MethodPost,
				URL: uri + e.path(), Nonce: w.authority.Nonce(uri), AccessToken: e.token, Now: time.Now()})
			require.NoError(w, err)
			r.Header.Set(api.HeaderProof, proof)
		},
		"with a spoiled signature": func(_ *effect, r *http.Request) {
			proof := []byte(r.Header.Get(api.HeaderProof))
			proof[len(proof)-20] ^= 1
			r.Header.Set(api.HeaderProof, string(proof))
		},
	})
}

// nonceChallenge: a proof without a nonce, or with a stale one, is answered by one challenge in the one form that clients
// look for, with another nonce, and nothing is consumed (RFC 9449 §9).
func nonceChallenge(w *world) {
	p := w.start()
	for name, nonce := range map[string]string{
		"no nonce": "", "a stale nonce": "n.stale", "a nonce of the authority": w.authority.Nonce(w.authority.Issuer),
	} {
		e := w.next()
		a := p.send(w.request(e, func(r *http.Request) {
			r.Header.Set(api.HeaderProof, w.proof(e, func(q *capability.ProofParams) { q.Nonce = nonce }))
		}))
		w.requireUntouched(e, a)
		w.requireChallenge(name, a, nonce)
		again := p.send(w.request(e, func(r *http.Request) {
			r.Header.Set(api.HeaderProof, w.proof(e, func(q *capability.ProofParams) { q.Nonce = a.header.Get(api.HeaderNonce) }))
		}))
		w.requireCommitted(e, again)
	}
}

func (w *world) requireChallenge(name string, a answer, sent string) {
	w.Helper()
	require.Equal(w, http.StatusUnauthorized, a.status, "%s: %s", name, a)
	challenges, nonces := a.header.Values("WWW-Authenticate"), a.header.Values(api.HeaderNonce)
	require.Len(w, challenges, 1, "%s: challenges", name)
	require.True(w, strings.HasPrefix(challenges[0], `DPoP error="use_dpop_nonce"`), "%s: %s", name, challenges[0])
	require.NotContains(w, challenges[0], "Bearer", name)
	require.Len(w, nonces, 1, "%s: nonces", name)
	require.NotEmpty(w, nonces[0], name)
	require.NotEqual(w, sent, nonces[0], "%s: the nonce is the one that was refused", name)
	require.Contains(w, a.header.Get("Cache-Control"), "no-store", name)
}

// paths: the guard answers where it is, and sends nobody elsewhere with a capability.
func paths(w *world) {
	p := w.start()
	elsewhere := func(path string) func(*effect, *http.Request) {
		return func(_ *effect, r *http.Request) {
			r.URL.RawPath = path
			r.URL.Path, _ = url.PathUnescape(path)
		}
	}
	e := w.fresh()
	w.spoiled(p, map[string]func(e *effect, r *http.Request){
		"a slash at the end":   elsewhere("/ledger" + e.path() + "/"),
		"a slash twice":        elsewhere("/ledger/" + e.path()),
		"dots":                 elsewhere("/ledger/x/.." + e.path()),
		"an escaped slash":     elsewhere("/ledger%2F" + e.path()[1:]),
		"another action":       elsewhere("/ledger/operations/no.such.action"),
		"no action":            elsewhere("/ledger/operations/"),
		"the path of nothing":  elsewhere("/"),
		"the path in capitals": elsewhere(strings.ToUpper("/ledger" + e.path())),
	})
}
