package principal

import (
	"context"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/jwks"
	"github.com/nightwarrant/nightwarrant/internal/jwks/jwkstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	own      = "https://authority.example"
	audience = "https://authority.example/console"
	subject  = "pairwise-7f3a"
	email    = "member@people.example"
)

var start = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func cacheFor(t testing.TB, issuers ...*jwkstest.Issuer) *jwks.Cache {
	t.Helper()
	cfg := jwks.Config{Own: own, Timeout: 30 * time.Second, Now: func() time.Time { return start }}
	for _, i := range issuers {
		cfg.Issuers = append(cfg.Issuers, jwks.Issuer{URL: i.URL, Algorithms: []string{"ES256"}})
	}
	c, err := jwks.New(cfg)
	require.NoError(t, err)
	return c
}

func config(t testing.TB, platform *jwkstest.Issuer, others ...*jwkstest.Issuer) Config {
	t.Helper()
	return Config{
		Keys: cacheFor(t, append(others, platform)...), Issuer: platform.URL, Audience: audience, Own: own, MaxAge: 10 * time.Minute,
	}
}

func envelopes(t testing.TB, cfg Config) *Envelopes {
	t.Helper()
	e, err := New(cfg)
	require.NoError(t, err)
	return e
}

// envelope are good claims, changed by pairs of name and value; a nil value
// removes the claim.
func envelope(pairs ...any) map[string]any {
	c := map[string]any{
		"sub": subject, "aud": audience, "email": email, "jti": "j1",
		"iat": start.Unix(), "exp": start.Add(time.Hour).Unix(),
	}
	for n := 0; n < len(pairs); n += 2 {
		name := pairs[n].(string)
		if c[name] = pairs[n+1]; pairs[n+1] == nil {
			delete(c, name)
		}
	}
	return c
}

func TestConfigRefused(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	good := config(t, platform)
	for name, change := range map[string]func(c *Config){
		"no keys":              func(c *Config) { c.Keys = nil },
		"no issuer":            func(c *Config) { c.Issuer = "" },
		"issuer without keys":  func(c *Config) { c.Issuer = "https://other.example" },
		"no audience":          func(c *Config) { c.Audience = "" },
		"blank audience":       func(c *Config) { c.Audience = " " },
		"audience of issuer":   func(c *Config) { c.Audience = c.Issuer },
		"assertions' audience": func(c *Config) { c.Audience = own },
		"own unknown":          func(c *Config) { c.Own = "" },
		"own is the issuer":    func(c *Config) { c.Own = c.Issuer },
		"no age":               func(c *Config) { c.MaxAge = 0 },
		"negative age":         func(c *Config) { c.MaxAge = -time.Second },
		"a week":               func(c *Config) { c.MaxAge = 7 * 24 * time.Hour },
		"operator elsewhere":   func(c *Config) { c.Operators = []OperatorRef{{"https://other.example", "root"}} },
		"operator is nobody":   func(c *Config) { c.Operators = []OperatorRef{{c.Issuer, ""}} },
		"auditor elsewhere":    func(c *Config) { c.Auditors = []OperatorRef{{"https://other.example", "root"}} },
		"auditor is nobody":    func(c *Config) { c.Auditors = []OperatorRef{{c.Issuer, ""}} },
	} {
		cfg := good
		change(&cfg)
		e, err := New(cfg)
		require.Error(t, err, name)
		require.Nil(t, e, name)
	}
	_, err := New(Config{})
	require.Error(t, err)
}

func TestRefused(t *testing.T) {
	t.Parallel()
	platform, cluster, stranger := jwkstest.New(t), jwkstest.New(t), jwkstest.New(t)
	platform.Add(t, "gone", "ES256")
	e := envelopes(t, config(t, platform, cluster))
	gone := platform.TokenBy("gone", envelope())
	platform.Remove("gone")
	good := platform.Token(envelope())
	for _, tc := range []struct {
		name, token string
		want        Reason
		code        api.Code
	}{
		{"none", "", Missing, api.InvalidEnvelope},
		{"junk", "secret-junk", Malformed, api.InvalidEnvelope},
		{"large", good + strings.Repeat("A", 16<<10), Malformed, api.InvalidEnvelope},
		{"cookie-like", email, Malformed, api.InvalidEnvelope},
		{"access token", typed(platform, "at+jwt"), Malformed, api.InvalidEnvelope},
		{"proof", typed(platform, "dpop+jwt"), Malformed, api.InvalidEnvelope},
		{"stranger", stranger.Token(envelope()), UntrustedIssuer, api.InvalidEnvelope},
		{"cluster", cluster.Token(envelope()), UntrustedIssuer, api.InvalidEnvelope},
		{"ours", platform.Token(envelope("iss", own)), UntrustedIssuer, api.InvalidEnvelope},
		{"cluster as platform", cluster.Token(envelope("iss", platform.URL)), BadSignature, api.InvalidEnvelope},
		{"key gone", gone, UnknownKey, api.InvalidEnvelope},
		{"assertions' audience", platform.Token(envelope("aud", own)), WrongAudience, api.InvalidEnvelope},
		{"two audiences", platform.Token(envelope("aud", []any{audience, own})), WrongAudience, api.InvalidEnvelope},
		{"no audience", platform.Token(envelope("aud", nil)), Malformed, api.InvalidEnvelope},
		{"ended", platform.Token(envelope("exp", start.Unix())), Expired, api.InvalidEnvelope},
		{"old", platform.Token(envelope("iat", start.Unix()-601)), Expired, api.InvalidEnvelope},
		{"no end", platform.Token(envelope("exp", nil)), Malformed, api.InvalidEnvelope},
		{"no begin", platform.Token(envelope("iat", nil)), Malformed, api.InvalidEnvelope},
		{"not yet", platform.Token(envelope("nbf", start.Unix()+60)), NotYetValid, api.InvalidEnvelope},
		{"for a day", platform.Token(envelope("exp", start.Unix()+86400)), TooLong, api.InvalidEnvelope},
		{"no subject", platform.Token(envelope("sub", nil)), Malformed, api.InvalidEnvelope},
		{"no jti", platform.Token(envelope("jti", nil)), WithoutID, api.InvalidEnvelope},
		{"empty jti", platform.Token(envelope("jti", "")), Malformed, api.InvalidEnvelope},
		{"no email", platform.Token(envelope("email", nil)), WithoutEmail, api.UnknownMember},
		{"empty email", platform.Token(envelope("email", "")), WithoutEmail, api.UnknownMember},
		{"blank email", platform.Token(envelope("email", " ")), WithoutEmail, api.UnknownMember},
		{"email null", platform.Token(envelope("email", (*int)(nil))), WithoutEmail, api.UnknownMember},
		{"email number", platform.Token(envelope("email", 1)), WithoutEmail, api.UnknownMember},
		{"email list", platform.Token(envelope("email", []any{email})), WithoutEmail, api.UnknownMember},
		{"email in other case", platform.Token(envelope("email", nil, "Email", email)), WithoutEmail, api.UnknownMember},
		{"email is a word", platform.Token(envelope("email", "member")), WithoutEmail, api.UnknownMember},
		{"email without host", platform.Token(envelope("email", "member@")), WithoutEmail, api.UnknownMember},
		{"email without name", platform.Token(envelope("email", "@people.example")), WithoutEmail, api.UnknownMember},
		{"email with name", platform.Token(envelope("email", "M <member@people.example>")), WithoutEmail, api.UnknownMember},
		{"email in brackets", platform.Token(envelope("email", "<"+email+">")), WithoutEmail, api.UnknownMember},
		{"email with comment", platform.Token(envelope("email", email+" (x)")), WithoutEmail, api.UnknownMember},
		{"email with blank", platform.Token(envelope("email", " "+email)), WithoutEmail, api.UnknownMember},
		{"two emails", platform.Token(envelope("email", email+","+email)), WithoutEmail, api.UnknownMember},
		{"email with line end", platform.Token(envelope("email", email+"\r\nBcc: x@y.example")), WithoutEmail, api.UnknownMember},
		{"huge email", platform.Token(envelope("email", strings.Repeat("a", 300)+"@people.example")), WithoutEmail, api.UnknownMember},
		{"subject is an email", platform.Token(envelope("sub", email)), SubjectIsEmail, api.InvalidEnvelope},
		{"subject is another", platform.Token(envelope("sub", "other@people.example")), SubjectIsEmail, api.InvalidEnvelope},
	} {
		p, err := e.FromEnvelope(t.Context(), tc.token)
		require.True(t, p.IsNobody(), tc.name)
		require.Zero(t, p, tc.name)
		requireReason(t, err, tc.want, tc.code, tc.name)
		for _, leak := range []string{"secret", email, subject} {
			require.NotContains(t, err.Error(), leak, tc.name)
		}
	}
	p, err := e.FromEnvelope(t.Context(), good)
	require.NoError(t, err)
	require.False(t, p.IsNobody())
}

func requireReason(t testing.TB, err error, want Reason, code api.Code, name string) {
	t.Helper()
	var r *Refusal
	require.ErrorAs(t, err, &r, name)
	require.Equal(t, want, r.Reason, name)
	var wire *api.Refusal
	require.ErrorAs(t, err, &wire, name)
	require.Equal(t, code, wire.Code, name)
	require.NotEmpty(t, wire.Sentence, name)
	require.Less(t, len(wire.Sentence), 120, name)
}

func typed(i *jwkstest.Issuer, typ string) string {
	payload, _ := json.Marshal(envelope("iss", i.URL))
	return jwkstest.Sign(i.Signer("one"), []byte(`{"alg":"ES256","kid":"one","typ":"`+typ+`"}`), payload)
}

func TestProviderDown(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	platform.Serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	e := envelopes(t, config(t, platform))
	_, err := e.FromEnvelope(t.Context(), platform.Token(envelope()))
	requireReason(t, err, Unavailable, api.Unavailable, "down")

	hanging := jwkstest.New(t)
	hanging.Serve(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = envelopes(t, config(t, hanging)).FromEnvelope(ctx, hanging.Token(envelope()))
	requireReason(t, err, Unavailable, api.Unavailable, "hanging")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestPrincipal(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	e := envelopes(t, config(t, platform))
	p, err := e.FromEnvelope(t.Context(), platform.Token(envelope()))
	require.NoError(t, err)
	require.Equal(t, platform.URL, p.Issuer())
	require.Equal(t, subject, p.Subject())
	require.Equal(t, canonical.Digest(canonical.DomainMember, []byte(platform.URL), []byte(subject)), p.Member())
	require.Equal(t, start.Add(10*time.Minute), p.Expires(), "the maximum age ends it before exp")
	require.False(t, p.Operator())
	require.Nil(t, p.JKT())

	again, err := e.FromEnvelope(t.Context(), platform.Token(envelope("jti", "j2", "email", "moved@people.example", "exp", start.Unix()+60)))
	require.NoError(t, err)
	require.Equal(t, p.Member(), again.Member(), "an address is not an identity")
	require.NotEqual(t, p.Digest(), again.Digest())
	require.Equal(t, start.Add(time.Minute), again.Expires())

	other, err := e.FromEnvelope(t.Context(), platform.Token(envelope("sub", subject+"x")))
	require.NoError(t, err)
	require.NotEqual(t, p.Member(), other.Member())
}

func TestNobody(t *testing.T) {
	t.Parallel()
	var nobody Principal
	require.True(t, nobody.IsNobody())
	require.Zero(t, nobody.Member())
	require.False(t, nobody.Operator())
	require.Nil(t, nobody.JKT())
	require.Zero(t, nobody.Digest())
	require.True(t, nobody.Expires().IsZero())
}

func TestOperatorsAreNamedExactly(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	cfg := config(t, platform)
	cfg.Operators = []OperatorRef{{platform.URL, "root"}}
	e := envelopes(t, cfg)
	for sub, want := range map[string]bool{"root": true, "Root": false, "root2": false, "roo": false, " root": false} {
		// Claims that would like to be a role are not one.
		p, err := e.FromEnvelope(t.Context(), platform.Token(envelope("sub", sub, "roles", []any{"operator"}, "operator", true)))
		require.NoError(t, err, sub)
		require.Equal(t, want, p.Operator(), sub)
		require.Equal(t, want, p.Auditor(), sub)
	}
}

// An auditor reads and is no operator; an operator may do what an auditor may.
func TestAuditors(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	cfg := config(t, platform)
	cfg.Operators, cfg.Auditors = []OperatorRef{{platform.URL, "root"}}, []OperatorRef{{platform.URL, "eve"}}
	e := envelopes(t, cfg)
	for sub, want := range map[string][2]bool{"root": {true, true}, "eve": {false, true}, "Eve": {}, "someone": {}} {
		p, err := e.FromEnvelope(t.Context(), platform.Token(envelope("sub", sub, "auditor", true)))
		require.NoError(t, err, sub)
		require.Equal(t, want, [2]bool{p.Operator(), p.Auditor()}, sub)
	}
	require.False(t, Principal{}.Auditor())
}

// A session names its member as the envelope did that began it, and has the
// roles of now.
func TestResume(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	cfg := config(t, platform)
	began, err := envelopes(t, cfg).FromEnvelope(t.Context(), platform.Token(envelope()))
	require.NoError(t, err)
	good := Session{Issuer: began.Issuer(), Subject: began.Subject(), Digest: [32]byte{7}, Expires: start.Add(time.Hour)}

	cfg.Operators = []OperatorRef{{platform.URL, subject}}
	e := envelopes(t, cfg)
	p, err := e.Resume(good)
	require.NoError(t, err)
	require.Equal(t, began.Member(), p.Member())
	require.NotEqual(t, began.Digest(), p.Digest())
	require.Equal(t, good.Expires, p.Expires())
	require.True(t, p.Operator(), "whoever has become one")
	require.Nil(t, p.JKT())

	for name, change := range map[string]func(*Session){
		"another issuer": func(s *Session) { s.Issuer = own },
		"no issuer":      func(s *Session) { s.Issuer = "" },
		"nobody":         func(s *Session) { s.Subject = "" },
		"an address":     func(s *Session) { s.Subject = email },
		"no session":     func(s *Session) { s.Digest = [32]byte{} },
		"for ever":       func(s *Session) { s.Expires = time.Time{} },
	} {
		bad := good
		change(&bad)
		p, err := e.Resume(bad)
		var r *Refusal
		require.ErrorAs(t, err, &r, name)
		require.Zero(t, p, name)
	}
}

// What makes an envelope unlike every other is the proxy's to say.
func TestUnique(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	for unique, claims := range map[string]map[string]any{
		"identity_nonce": envelope("jti", nil, "identity_nonce", "n1"),
		"iat":            envelope("jti", nil),
	} {
		cfg := config(t, platform)
		cfg.Unique = unique
		_, err := envelopes(t, cfg).FromEnvelope(t.Context(), platform.Token(claims))
		require.NoError(t, err, unique)
		_, err = envelopes(t, config(t, platform)).FromEnvelope(t.Context(), platform.Token(claims))
		requireReason(t, err, WithoutID, api.InvalidEnvelope, unique)
	}
	cfg := config(t, platform)
	cfg.Unique = "identity_nonce"
	for _, claims := range []map[string]any{envelope(), envelope("identity_nonce", ""), envelope("identity_nonce", (*int)(nil))} {
		_, err := envelopes(t, cfg).FromEnvelope(t.Context(), platform.Token(claims))
		requireReason(t, err, WithoutID, api.InvalidEnvelope, "none")
	}
}

func TestNamedKey(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	e := envelopes(t, config(t, platform))
	want := capability.Thumbprint{7}
	p, err := e.FromEnvelope(t.Context(), platform.Token(envelope("cnf", map[string]any{"jkt": want.String()})))
	require.NoError(t, err)
	require.Equal(t, want, *p.JKT())
	p.JKT()[0] = 8
	require.Equal(t, want, *p.JKT(), "a copy")
}

func TestRewrittenSignatureHasTheSameDigest(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	e := envelopes(t, config(t, platform))
	good := platform.Token(envelope())
	end := strings.LastIndexByte(good, '.') + 1
	sig, err := base64.RawURLEncoding.DecodeString(good[end:])
	require.NoError(t, err)
	new(big.Int).Sub(elliptic.P256().Params().N, new(big.Int).SetBytes(sig[32:])).FillBytes(sig[32:])
	a, err := e.FromEnvelope(t.Context(), good)
	require.NoError(t, err)
	b, err := e.FromEnvelope(t.Context(), good[:end]+jwkstest.B64(sig))
	require.NoError(t, err)
	require.Equal(t, a.Digest(), b.Digest(), "a replay is seen")
}

// The email is looked at and dropped: no value of a principal holds it.
func TestEmailIsDropped(t *testing.T) {
	t.Parallel()
	platform := jwkstest.New(t)
	p, err := envelopes(t, config(t, platform)).FromEnvelope(t.Context(), platform.Token(envelope()))
	require.NoError(t, err)
	type bare Principal // without String
	text, err := json.Marshal(p)
	require.Error(t, err)
	all := fmt.Sprintf("%v %+v %#v %s %+v", p, p, p, text, bare(p))
	require.NotContains(t, all, "people.example")
	require.NotContains(t, fmt.Sprintf("%v %+v %#v %s", p, &p, p, text), subject)
}

// One function of this package fills a Principal, and no other package can: the
// fields are not exported. An envelope leads to it, and a session that one began.
func TestOneConstructor(t *testing.T) {
	t.Parallel()
	files := token.NewFileSet()
	var makers, callers []string
	for _, name := range []string{"principal.go", "header.go", "refusal.go"} {
		file, err := parser.ParseFile(files, name, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if by, ok := call.Fun.(*ast.SelectorExpr); ok && by.Sel.Name == "make" {
						callers = append(callers, f.Name.Name)
					}
				}
				lit, ok := n.(*ast.CompositeLit)
				if !ok {
					return true
				}
				if id, ok := lit.Type.(*ast.Ident); ok && id.Name == "Principal" && len(lit.Elts) > 0 {
					makers = append(makers, f.Name.Name)
				}
				return true
			})
		}
	}
	require.Equal(t, []string{"make"}, makers)
	require.ElementsMatch(t, []string{"FromEnvelope", "Resume"}, callers)
}

// FuzzEnvelope: nothing but what the platform signed names anybody.
func FuzzEnvelope(f *testing.F) {
	platform := jwkstest.New(f)
	e := envelopes(f, config(f, platform))
	good := platform.Token(envelope())
	signed := good[:strings.LastIndexByte(good, '.')]
	f.Add(good)
	f.Add(good + ".")
	f.Add(good[1:])
	f.Add(platform.Token(envelope("email", nil)))
	f.Add(typed(platform, "at+jwt"))
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Fuzz(func(t *testing.T, compact string) {
		p, err := e.FromEnvelope(t.Context(), compact)
		if err == nil {
			require.Equal(t, signed, compact[:strings.LastIndexByte(compact, '.')])
			require.Equal(t, subject, p.Subject())
			return
		}
		var r *Refusal
		require.ErrorAs(t, err, &r)
		require.True(t, p.IsNobody())
	})
}
