package server_test

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/internal/authoritytest"
)

// absentCase is a case about something that is not here: a pushed authorization request, a browser's code, a refresh token, introspection
// and revocation (RFC 9126, RFC 9449 §10, RFC 7662, RFC 7009). Its test is that it stays away.
type absentCase struct {
	number, name string
	path         string
	form         url.Values
	proof        bool
	status       int
	code         api.Code
}

var absentCases = []absentCase{
	{"73, 99", "a pushed request with dpop_jkt", "/v1/par", url.Values{"dpop_jkt": {"x"}}, true, 404, api.NotFound},
	{"73, 99", "the same, elsewhere", "/par", url.Values{"dpop_jkt": {"x"}}, true, 404, api.NotFound},
	{"100", "an authorization endpoint", "/v1/authorize", url.Values{"dpop_jkt": {"x"}}, false, 404, api.NotFound},
	{"100", "the same, elsewhere", "/authorize", url.Values{"dpop_jkt": {"x"}}, false, 404, api.NotFound},
	{"100", "a code", api.PathToken, url.Values{"grant_type": {"authorization_code"}, "code": {"x"}}, true, 400, api.UnsupportedGrantType},
	{"101", "dpop_jkt at the token endpoint, without a proof", api.PathToken, url.Values{"grant_type": {"authorization_code"}, "dpop_jkt": {strings.Repeat("A", 43)}}, false, 400, api.InvalidRequest},
	{"102", "a malformed dpop_jkt", api.PathToken, url.Values{"grant_type": {"authorization_code"}, "dpop_jkt": {strings.Repeat("=", 500)}}, true, 400, api.UnsupportedGrantType},
	{"103", "a refresh token", api.PathToken, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"x"}}, true, 400, api.UnsupportedGrantType},
	{"106", "introspection", "/v1/introspect", url.Values{"token": {"x"}}, true, 404, api.NotFound},
	{"106", "the same, elsewhere", "/introspect", url.Values{"token": {"x"}}, true, 404, api.NotFound},
	{"107", "revocation of a token", "/v1/revoke", url.Values{"token": {"x"}}, true, 404, api.NotFound},
	{"107", "the same, elsewhere", "/revoke", url.Values{"token": {"x"}}, true, 404, api.NotFound},
}

func TestAbsentEndpoints(t *testing.T) {
	t.Parallel()
	h := authoritytest.Bare(t)
	key := h.Key()
	for _, c := range absentCases {
		t.Run(c.number+" "+c.name, func(t *testing.T) {
			r := h.Request("POST", c.path, "application/x-www-form-urlencoded", []byte(c.form.Encode()))
			if c.proof {
				r.Header.Set(api.HeaderProof, h.Proof(key, "POST", c.path, ""))
			}
			before := h.Consumed()
			a := h.Send(r)
			assert.Equal(t, c.status, a.Status, string(a.Body))
			assert.Equal(t, c.code, a.Problem().Code)
			assert.Equal(t, before, h.Consumed(), "a refused request has consumed something")
		})
	}
	var metadata map[string]any
	h.Into(h.Send(h.Request("GET", api.PathMetadata, "", nil)), &metadata)
	for _, absent := range []string{"authorization_endpoint", "pushed_authorization_request_endpoint", "introspection_endpoint", "revocation_endpoint", "dpop_bound_access_tokens"} {
		assert.NotContains(t, metadata, absent)
	}
}

// listed are the 108 cases that a verifier of DPoP proofs is held to (RFC 9449 and what other verifiers got wrong), each with what they are about.
var listed = map[int]string{
	1: "no proof", 2: "no proof at the token endpoint", 3: "two headers", 4: "two proofs in one header", 5: "an empty header", 6: "odd bytes", 7: "spelling of the header", 8: "the proof as a parameter",
	9: "too large", 10: "Bearer", 11: "spelling of the scheme", 12: "two Authorization lines", 13: "a token without cnf", 14: "an unbound token", 15: "two tokens",
	16: "segments", 17: "JSON serialisation", 18: "an empty segment", 19: "dots", 20: "base64", 21: "JSON", 22: "a member twice", 23: "case of members", 24: "crit", 25: "unknown members", 26: "keys by reference",
	27: "typ", 28: "spelling of typ", 29: "one token as another", 30: "alg missing", 31: "alg none", 32: "HMAC", 33: "another alg", 34: "another curve", 35: "jwk missing", 36: "a private member", 37: "kty", 38: "crv",
	39: "x and y", 40: "length of a coordinate", 41: "a coordinate beyond p", 42: "off the curve", 43: "a leading zero", 44: "other members of jwk", 45: "a flipped bit", 46: "DER", 47: "length of the signature",
	48: "r and s at their edges", 49: "another key", 50: "the twin of a signature", 51: "jti", 52: "a long jti", 53: "a claim twice", 54: "htm", 55: "a method override", 56: "htu", 57: "htu malformed", 58: "another htu",
	59: "a trailing slash", 60: "a query", 61: "case and default port", 62: "percent-encoding", 63: "dot segments", 64: "a forged Host", 65: "another endpoint", 66: "iat", 67: "an old iat", 68: "iat a little ahead",
	69: "iat far ahead", 70: "exp and nbf", 71: "ath missing", 72: "another ath", 73: "ath at the token endpoint", 74: "another key than cnf.jkt", 75: "cnf", 76: "a certificate beside the key", 77: "a token that is not good",
	78: "nonce missing", 79: "a nonce that is not good", 80: "type of the nonce", 81: "nonce left out", 82: "another replica's nonce", 83: "a nonce twice", 84: "a nonce though nonces are off", 85: "the client's clock",
	86: "the nonce's header", 87: "the nonce before the last", 88: "challenges of other errors", 89: "twice", 90: "at once", 91: "to another replica", 92: "dated ahead", 93: "another key's jti", 94: "another URI",
	95: "a victim's jti", 96: "a flood", 97: "the store is away", 98: "spelled otherwise", 99: "PAR", 100: "a code's key", 101: "dpop_jkt alone", 102: "dpop_jkt malformed", 103: "refresh", 104: "token exchange", 105: "cnf of what is issued",
	106: "introspection", 107: "revocation", 108: "a good proof after all",
}

// whole are the cases that are no row but a whole test, or a check of every row's answer; 84 does not apply, because nonces are never off.
var whole = map[int]string{
	84:  "",
	86:  "dpop_cases_test.go#func assertAnswer",
	97:  "admission_test.go#func TestTheDatabaseIsAway",
	108: "dpop_cases_test.go#case 108: after all of it a correct proof still works",
}

// Every case of the list is a row of a table that a test here runs.
func TestEveryCaseOfTheListIsTried(t *testing.T) {
	t.Parallel()
	rows := map[int]int{}
	count := func(numbers string) {
		for _, n := range regexp.MustCompile(`\d+`).FindAllString(numbers, -1) {
			id, err := strconv.Atoi(n)
			require.NoError(t, err)
			require.NotEmpty(t, listed[id], "there is no case %d", id)
			rows[id]++
		}
	}
	for _, c := range proofCases {
		count(c.number)
	}
	nobody := &bound{}
	for _, c := range append(nobody.cases(t), nobody.tokens(t)...) {
		count(c.number)
	}
	for _, c := range replayCases {
		count(c.number)
	}
	for _, c := range absentCases {
		count(c.number)
	}
	require.Len(t, listed, 108)
	for id := range listed {
		where, is := whole[id]
		assert.NotEqual(t, is, rows[id] > 0, "case %d (%s) has %d rows", id, listed[id], rows[id])
		if file, name, found := strings.Cut(where, "#"); found {
			source, err := os.ReadFile(filepath.Clean(file))
			require.NoError(t, err)
			assert.Contains(t, string(source), name)
		}
	}
}
