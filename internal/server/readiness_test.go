package server_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
	"github.com/nightwarrant/nightwarrant/internal/server"
)

const challenge = "0123456789abcdefghijkl"

func askReadiness(h *authoritytest.House, query string) (d api.Decision) {
	h.T.Helper()
	a := h.Send(h.Request("GET", api.PathReadiness+query, "", nil))
	require.Equal(h.T, http.StatusOK, a.Status, string(a.Body))
	h.Into(a, &d)
	return d
}

func verifyDecision(h *authoritytest.House, d api.Decision) *capability.DecisionClaims {
	h.T.Helper()
	c, err := capability.VerifyDecision(d.Signed, h.Bundle, capability.Expectation{Issuer: h.URL, Now: time.Now(), Leeway: 5 * time.Second}, challenge)
	require.NoError(h.T, err)
	return c
}

// What is signed is what is said, whole.
func TestSignedReadiness(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	said := askReadiness(h, "?challenge="+challenge)
	require.True(t, said.Open, said.Reasons)
	require.Len(t, said.Families, 10)
	signed := verifyDecision(h, said)
	assert.Equal(t, said, decisionOf(t, signed, said.Signed))
	assert.Positive(t, said.ValidMS)
	assert.LessOrEqual(t, said.ValidMS, int64(2000))
	assert.LessOrEqual(t, signed.Expires*1000, time.Now().UnixMilli()+said.ValidMS)
	assert.Empty(t, said.Reasons)

	h.Close()
	h.See()
	said = askReadiness(h, "?challenge="+challenge)
	assert.False(t, said.Open)
	assert.Zero(t, said.ValidMS)
	assert.Equal(t, []string{"queue: unhealthy"}, said.Reasons)
	assert.Equal(t, said, decisionOf(t, verifyDecision(h, said), said.Signed))
	assert.Equal(t, signed.Epoch+1, said.Epoch)

	unasked := askReadiness(h, "")
	assert.NotEmpty(t, unasked.Signed)
	assert.Empty(t, unasked.Challenge)
}

// decisionOf spells what was signed as it is said.
func decisionOf(t *testing.T, c *capability.DecisionClaims, signed string) (d api.Decision) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	var claims map[string]any
	require.NoError(t, json.Unmarshal(text, &claims))
	for _, name := range []string{"iss", "aud", "iat", "exp", "generation"} {
		delete(claims, name)
	}
	claims["signed"] = signed
	text, err = json.Marshal(claims)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// A decision that is open while a family no longer is good is not given to anybody as open.
func TestPartialReadinessIsClosed(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	require.True(t, askReadiness(h, "").Open)
	h.Exec(`UPDATE nw.readiness_reports SET expires_at = clock_timestamp(), sequence = sequence + 1 WHERE family = 'audit'`)
	h.See()
	require.True(t, h.Gate.Known().Open, "nobody has evaluated yet")
	d := askReadiness(h, "?challenge="+challenge)
	assert.False(t, d.Open)
	assert.Equal(t, []string{"audit: stale"}, d.Reasons)
	assert.False(t, verifyDecision(h, d).Open)
}

// Whatever is wrong with its key, a replica answers: closed, unsigned, and the operators read why, once.
func TestReadinessThatCannotBeSigned(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	a, gate, s := h.Replica(h.Bundle)
	_, err := gate.Current(context.Background())
	require.NoError(t, err)
	a.Issuer = "" // nothing can be signed for it
	for range 20 {
		d := askAt(t, s, http.StatusOK)
		assert.False(t, d.Open)
		assert.Empty(t, d.Signed)
		assert.Equal(t, []string{"signing: material"}, d.Reasons)
		assert.Equal(t, challenge, d.Challenge)
	}
	assert.LessOrEqual(t, strings.Count(h.Log.String(), "readiness is answered closed and unsigned"), 2)
	assert.Contains(t, h.Log.String(), "readiness is answered closed and unsigned")
}

func askAt(t *testing.T, s *server.Server, status int) (d api.Decision) {
	t.Helper()
	out := httptest.NewRecorder()
	s.Handler().ServeHTTP(out, httptest.NewRequest("GET", api.PathReadiness+"?challenge="+challenge, nil))
	require.Equal(t, status, out.Code, out.Body)
	if status == http.StatusOK {
		require.NoError(t, json.Unmarshal(out.Body.Bytes(), &d))
	}
	return d
}

// Too many questions are told to come again; nothing is worse for them, and nothing else is refused meanwhile.
func TestReadinessIsRateLimited(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	_, _, s := h.Replica(h.Bundle)
	server.LimitQuestions(s, 3)
	for range 3 {
		askAt(t, s, http.StatusOK)
	}
	for range 5 {
		out := httptest.NewRecorder()
		s.Handler().ServeHTTP(out, httptest.NewRequest("GET", api.PathReadiness, nil))
		require.Equal(t, http.StatusTooManyRequests, out.Code)
		assert.Equal(t, "1", out.Header().Get("Retry-After"))
		var p api.Problem
		require.NoError(t, json.Unmarshal(out.Body.Bytes(), &p))
		assert.Equal(t, api.TooManyRequests, p.Code)
		assert.Equal(t, api.After, p.Retry)
	}
	out := httptest.NewRecorder()
	s.Handler().ServeHTTP(out, httptest.NewRequest("GET", api.PathJWKS, nil))
	assert.Equal(t, http.StatusOK, out.Code)
	assert.True(t, askReadiness(h, "").Open, "another replica has a limit of its own")
}

// The three questions are kept apart (design.md §5): healthz is the process, readyz is whether to route here, and
// /v1/readiness is the decision, which alone says whether new work is admitted.
func TestThreeQuestions(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	is := func(situation string, healthz, readyz int, open bool) {
		t.Helper()
		assert.Equal(t, healthz, h.Send(h.Request("GET", "/healthz", "", nil)).Status, "%s: healthz", situation)
		assert.Equal(t, readyz, h.Send(h.Request("GET", "/readyz", "", nil)).Status, "%s: readyz", situation)
		d := askReadiness(h, "?challenge="+challenge)
		assert.Equal(t, open, d.Open, "%s: readiness", situation)
		assert.Equal(t, open, verifyDecision(h, d).Open, "%s: signed readiness", situation)
	}
	is("all is well", 200, 200, true)
	h.Close()
	h.See()
	is("closed: revocations still come here", 200, 200, false)
	h.Open()
	is("open again", 200, 200, true)
	h.Pool.Close()
	require.Eventually(t, func() bool { return !h.Gate.Fresh() }, 10*time.Second, 10*time.Millisecond)
	is("the database is away: route elsewhere", 200, 503, false)
}

// A decision is no capability and no subject token, whatever it says (P25).
func TestADecisionIsNoCapability(t *testing.T) {
	t.Parallel()
	h := authoritytest.New(t)
	d := askReadiness(h, "?challenge="+challenge)
	require.True(t, d.Open)
	token, key := capability.Token(d.Signed), h.Key()
	for _, path := range []string{api.PathNonces, api.PathRenew, api.PathAdmit, api.PathSettle} {
		refusedWith(t, h, api.InvalidToken, func() authoritytest.Answer {
			return h.Send(h.Bearing(key, token, "POST", path, map[string]any{}))
		})
	}
	exchange := url.Values{"grant_type": {api.GrantTokenExchange}, "subject_token": {d.Signed}, "subject_token_type": {api.TokenTypeAccess},
		"resource": {authoritytest.GuardURI}, "authorization_details": {"[{}]"}, "effect_key": {"k"}}
	a := h.Send(h.Form(key, exchange))
	assert.Contains(t, []api.Code{api.InvalidToken, api.InvalidGrant}, a.Problem().Code, string(a.Body))
}
