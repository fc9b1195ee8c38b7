package guards

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/guards/internal/authoritytest"
)

// Or a stranger could keep a guard without keys.
func TestWhoeverHangsUpDoesNotUseUpTheRefresh(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	token, _ := s.mint("row.append", order("1"))
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	_, err := s.guard.verify(gone, token)
	require.NoError(t, err)
}

func TestReferenceHasOneSpelling(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[A-Za-z0-9_=\n -]{20,24}`).Draw(t, "text")
		ref, err := ParseRef(text)
		if err == nil && ref.String() != text {
			t.Fatalf("%q is also %q", text, ref)
		}
	})
	ref := NewRef()
	again, err := ParseRef(ref.String())
	require.NoError(t, err)
	require.Equal(t, ref, again)
	require.NotEqual(t, ref, NewRef())
}

// FuzzOperationBody holds the request decoder against encoding/json: what it takes, both read alike, and it is canonical
// in one way.
func FuzzOperationBody(f *testing.F) {
	for _, seed := range []string{
		`{"resource":"table:orders","parameters":{"table":"orders","values":{"id":"1","paid":true}}}`,
		`{"resource":"account:a","parameters":{"to":"a","cents":5},"amount":5,"currency":"EUR"}`,
		`{"resource":"a","resource":"b","parameters":{}}`, `{"resource":"a","parameters":[]}`, `{"resource":"a","parameters":{"x":1.5}}`,
		`{"resource":"a","parameters":{"x":null}}`, `{"RESOURCE":"a","parameters":{}}`, `{"resource":"\ud800","parameters":{}}`,
		`{"resource":"a","parameters":{"a":1,"\u0061":2}}`, `{"resource":"a","parameters":{},"amount":-0}`, `{}`, ``, `[]`, "\xff",
		`{"resource":"a","parameters":{"` + strings.Repeat(`a":{"`, 40) + `"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b, err := parseBody(body)
		if err != nil {
			require.Equal(t, operationBody{}, b)
			return
		}
		var plain authoritytest.Body
		decoder := json.NewDecoder(strings.NewReader(string(body)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(&plain))
		require.Equal(t, plain, authoritytest.Body{Resource: b.resource, Parameters: plain.Parameters, Amount: b.amount, Currency: b.currency})
		require.LessOrEqual(t, len(body), canonical.MaxSize)
		digest, params, err := capability.ParamsDigest(b.parameters)
		if err != nil {
			return
		}
		again, spelled, err := capability.ParamsDigest(params)
		require.NoError(t, err)
		require.Equal(t, digest, again)
		require.Equal(t, params, spelled)
	})
}

// FuzzRequest throws whole requests at a guard: none but the minted one is admitted, and nothing panics or fails with 5xx.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/ledger/operations/row.append", "DPoP a.b.c", "a.b.c", "application/json", []byte(`{}`))
	f.Add("GET", "/.well-known/oauth-protected-resource/ledger", "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, method, path, authorization, proof, mediaType string, body []byte) {
		if !strings.HasPrefix(path, "/") || method == "" || strings.ContainsAny(method+path, " \r\n\x7f") {
			return
		}
		request, err := http.NewRequest(method, "https://guard.example"+path, strings.NewReader(string(body)))
		if err != nil {
			return
		}
		request.Header.Set("Authorization", authorization)
		request.Header.Set("DPoP", proof)
		request.Header.Set("Content-Type", mediaType)
		s := fuzzStand(t)
		recorder := httptest.NewRecorder()
		s.guard.ServeHTTP(recorder, request)
		require.Less(t, recorder.Code, 500)
		require.Zero(t, s.ledger.count())
	})
}

func fuzzStand(t *testing.T) *stand {
	s := &stand{authority: authoritytest.New(), ledger: newMemory()}
	s.guard = s.newGuard(t)
	return s
}
