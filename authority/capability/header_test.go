package capability

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// request reads headers as a server does, names canonicalized.
func request(lines ...string) http.Header {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return h
}

// Cases 1 to 8.
func TestHeaderProof(t *testing.T) {
	t.Parallel()
	const proof = "aaa.bbb.ccc"
	for name, c := range map[string]struct {
		h    http.Header
		want error
	}{
		"1 none":                      {request("Authorization: DPoP x"), ErrNoProof},
		"3 two lines":                 {request("DPoP: aaa.bbb.ccc", "DPoP: ddd.eee.fff"), badProof("there must be exactly one proof")},
		"3 the same twice":            {request("DPoP: aaa.bbb.ccc", "dpop: aaa.bbb.ccc"), badProof("there must be exactly one proof")},
		"3 an empty one first":        {request("DPoP: ", "DPoP: aaa.bbb.ccc"), badProof("there must be exactly one proof")},
		"4 two joined":                {request("DPoP: aaa.bbb.ccc,ddd.eee.fff"), badProof("there must be exactly one proof")},
		"4 two joined with a blank":   {request("DPoP: aaa.bbb.ccc, ddd.eee.fff"), badProof("there must be exactly one proof")},
		"5 empty":                     {request("DPoP: "), badProof("the DPoP header is empty")},
		"7 DPOP":                      {request("DPOP: aaa.bbb.ccc"), nil},
		"7 dpop":                      {request("dpop: aaa.bbb.ccc"), nil},
		"7 DPoP":                      {request("DPoP: aaa.bbb.ccc"), nil},
		"a name that only looks like": {request("DPoP-Nonce: x"), ErrNoProof},
	} {
		got, err := HeaderProof(c.h)
		assert.Equal(t, c.want, err, name)
		if c.want == nil {
			assert.Equal(t, proof, got, name)
		} else {
			assert.Empty(t, got, name)
			assert.Equal(t, CodeInvalidProof, code(t, err), name)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/token?DPoP=aaa.bbb.ccc", strings.NewReader("DPoP=aaa.bbb.ccc"))
	_, err := HeaderProof(r.Header)
	assert.ErrorIs(t, err, ErrNoProof, "8")
	assert.NotErrorIs(t, badProof(ErrNoProof.Reason), ErrNoProof, "nothing sent and something wrong sent are two things")
}

// Cases 10 to 15 as far as the header decides them.
func TestHeaderToken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		h    http.Header
		want string
		code string
	}{
		"1 none":                      {request("DPoP: x"), "", CodeInvalidToken},
		"10 Bearer":                   {request("Authorization: Bearer aaa"), "", CodeInvalidToken},
		"10 bearer":                   {request("Authorization: bEaReR aaa"), "", CodeInvalidToken},
		"10 Basic":                    {request("Authorization: Basic aaa"), "", CodeInvalidToken},
		"10 no scheme":                {request("Authorization: aaa"), "", CodeInvalidToken},
		"10 empty":                    {request("Authorization: "), "", CodeInvalidToken},
		"10 scheme with a tail":       {request("Authorization: DPoPx aaa"), "", CodeInvalidToken},
		"10 scheme with a tab":        {request("Authorization: DPoP\taaa"), "", CodeInvalidToken},
		"11 DPoP":                     {request("Authorization: DPoP aaa.bbb.ccc"), "aaa.bbb.ccc", ""},
		"11 dpop":                     {request("Authorization: dpop aaa"), "aaa", ""},
		"11 dPoP":                     {request("Authorization: dPoP aaa"), "aaa", ""},
		"11 two blanks":               {request("Authorization: DPoP  aaa"), "aaa", ""},
		"11 all of token68":           {request("Authorization: DPoP aZ09-._~+/=="), "aZ09-._~+/==", ""},
		"12 Bearer and DPoP":          {request("Authorization: Bearer aaa", "Authorization: DPoP aaa"), "", CodeInvalidRequest},
		"12 DPoP twice":               {request("Authorization: DPoP aaa", "Authorization: DPoP aaa"), "", CodeInvalidRequest},
		"15 two tokens":               {request("Authorization: DPoP aaa, DPoP bbb"), "", CodeInvalidRequest},
		"15 two tokens and one blank": {request("Authorization: DPoP aaa bbb"), "", CodeInvalidRequest},
		"no token":                    {request("Authorization: DPoP"), "", CodeInvalidRequest},
		"blank token":                 {request("Authorization: DPoP  "), "", CodeInvalidRequest},
		"only padding":                {request("Authorization: DPoP =="), "", CodeInvalidRequest},
		"padding inside":              {request("Authorization: DPoP a=b"), "", CodeInvalidRequest},
		"not ASCII":                   {request("Authorization: DPoP é"), "", CodeInvalidRequest},
		"quoted":                      {request(`Authorization: DPoP "aaa"`), "", CodeInvalidRequest},
		"too long":                    {request("Authorization: DPoP " + strings.Repeat("a", maxToken+1)), "", CodeInvalidRequest},
	} {
		got, err := HeaderToken(c.h)
		assert.Equal(t, c.want, got.Reveal(), name)
		assert.Equal(t, c.code, code(t, err), name)
	}
	_, err := HeaderToken(request())
	assert.ErrorIs(t, err, ErrNoToken)
	_, err = HeaderToken(request("Authorization: "))
	assert.NotErrorIs(t, err, ErrNoToken)
}

func TestRefusalsDoNotRepeatTheRequest(t *testing.T) {
	t.Parallel()
	const secret = "c2VjcmV0"
	for _, in := range []string{secret, secret + ".x.y", "{" + secret, strings.Repeat(secret, 10_000)} {
		_, err := ParseProof(in)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
		_, err = HeaderToken(request("Authorization: DPoP " + in + "!"))
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
		err = verifiers["run"](Token(in), testKeys(t), testExpectation())
		require.Error(t, err)
		assert.NotContains(t, err.Error(), secret)
	}
}

// A token and a key show nothing in any way that a program prints, logs or stores values.
func TestSecretsDoNotShow(t *testing.T) {
	t.Parallel()
	const secret = "very-secret-text"
	token := Token(secret)
	k := fixedKey(t, "holder")
	scalar, err := k.private.Bytes()
	require.NoError(t, err)
	var shown strings.Builder
	for _, v := range []any{token, &token, struct{ T Token }{token}, []Token{token}, map[string]Token{"a": token}, k, *k, struct{ K *Key }{k}, struct{ k Key }{*k}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%08b", "%t"} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
		for _, handler := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
			slog.New(handler).Info("x", "v", v)
		}
		if out, err := json.Marshal(v); err == nil {
			shown.Write(out)
		}
	}
	fmt.Fprintln(&shown, token.String(), fmt.Errorf("wrapped: %w %v", ErrNoToken, token))
	text := shown.String()
	require.Greater(t, len(text), 2000)
	assert.Contains(t, text, "[redacted]")
	assert.Contains(t, text, k.Thumbprint().String())
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("%x", scalar), fmt.Sprint(scalar), new(big.Int).SetBytes(scalar).String(), b64(scalar)} {
		assert.NotContains(t, text, form)
	}
	assert.Equal(t, secret, token.Reveal())
}
