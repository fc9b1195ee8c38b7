package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
	"github.com/nightwarrant/nightwarrant/authority/catalogue"
	"github.com/nightwarrant/nightwarrant/internal/demo"
	"github.com/nightwarrant/nightwarrant/internal/dev"
)

// asking is an authority that gives every guard the same capability, and a bench in front of it.
func asking(t *testing.T) (*bench, *guard) {
	t.Helper()
	authority := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderNonce, "fresh")
		if r.URL.Path != api.PathToken {
			return
		}
		assert.Equal(t, api.GrantClientCredentials, r.FormValue("grant_type"))
		assert.Equal(t, "ledger", r.FormValue("client_id"))
		_ = json.NewEncoder(w).Encode(api.TokenResponse{AccessToken: "component", TokenType: "DPoP", ExpiresIn: 60})
	}))
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); authority.Close() })
	issuer, err := dev.NewIssuer("http://127.0.0.1:9", "ES256", "")
	require.NoError(t, err)
	stack, err := demo.New(demo.Options{Dir: t.TempDir(), Env: func(string) string { return "" }})
	require.NoError(t, err)
	b := &bench{stack: stack}
	b.target, err = newTarget(authority.URL, authority.URL, issuer)
	require.NoError(t, err)
	g, err := b.newGuard()
	require.NoError(t, err)
	return b, g
}

func keyed(t *testing.T, n int, answer api.TokenResponse) []promise {
	t.Helper()
	out := make([]promise, n)
	for i := range out {
		key, err := capability.GenerateKey()
		require.NoError(t, err)
		out[i] = promise{key: key, answer: answer}
	}
	return out
}

func read(t *testing.T, raw []byte) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
	require.NoError(t, err)
	return r
}

// proved is a proof that holds for exactly this call.
func proved(t *testing.T, proof, at, nonce string, token capability.Token, key *capability.Key) {
	t.Helper()
	fresh := func(n string) error { assert.Equal(t, nonce, n); return nil }
	_, err := capability.CheckProof(proof, capability.Expect{Method: "POST", URL: at, AccessToken: token, Holder: key.Thumbprint(), Nonce: fresh, Now: time.Now()})
	require.NoError(t, err)
}

// Each mint asks for an effect that its guard knows, with the key that claimed the run.
func TestMintsAskForAnEffectOfTheGuard(t *testing.T) {
	t.Parallel()
	b, g := asking(t)
	held := keyed(t, 2, api.TokenResponse{AccessToken: "run"})
	made, keys, err := b.target.mints(t.Context(), g, held)
	require.NoError(t, err)
	entry, known := catalogue.Lookup(catalogue.Postgres, act)
	require.True(t, known)
	effects := map[string]bool{}
	for i, raw := range made {
		r := read(t, raw)
		require.NoError(t, r.ParseForm())
		assert.Same(t, held[i].key, keys[i])
		proved(t, r.Header.Get(api.HeaderProof), b.target.origin.String()+api.PathToken, "fresh", "", held[i].key)
		assert.Equal(t, "run", r.PostForm.Get("subject_token"))
		assert.Equal(t, g.uri.String(), r.PostForm.Get("resource"))
		var details []api.Detail
		require.NoError(t, json.Unmarshal([]byte(r.PostForm.Get("authorization_details")), &details))
		require.Len(t, details, 1)
		target, err := entry.Target(details[0].Parameters)
		require.NoError(t, err)
		assert.Equal(t, catalogue.Target{Resource: details[0].Identifier}, target)
		effects[string(details[0].Parameters)] = true
	}
	assert.Len(t, effects, 2)
}

// Each admission carries a proof of its own worker, a proof of the guard and an attempt of its own.
func TestAdmissionsCarryTwoProofsAndTheirOwnAttempt(t *testing.T) {
	t.Parallel()
	b, g := asking(t)
	detail := api.Detail{Type: api.DetailTypeEffect, Actions: []string{act}, Locations: []string{g.uri.String()}, Identifier: entries, ParamsSHA256: "digest"}
	minted := keyed(t, 3, api.TokenResponse{AccessToken: "effect", GuardNonce: "guard's", Details: []api.Detail{detail}})
	made, err := b.target.admissions(t.Context(), g, minted)
	require.NoError(t, err)
	attempts, proofs := map[string]bool{}, map[string]bool{}
	for i, raw := range made {
		r := read(t, raw)
		assert.Equal(t, api.PathAdmit, r.URL.Path)
		assert.Equal(t, "DPoP component", r.Header.Get("Authorization"))
		proved(t, r.Header.Get(api.HeaderProof), b.target.origin.String()+api.PathAdmit, "fresh", "component", g.Client.Key)
		proofs[r.Header.Get(api.HeaderProof)] = true
		var asked api.AdmitRequest
		require.NoError(t, json.NewDecoder(r.Body).Decode(&asked))
		at, err := url.Parse(g.uri.Scheme + "://" + g.uri.Host + asked.Path)
		require.NoError(t, err)
		assert.Equal(t, g.uri.String()+"/operations/row.append", at.String())
		proved(t, asked.Proof, at.String(), "guard's", "effect", minted[i].key)
		assert.Equal(t, detail, asked.Effect)
		attempts[asked.Attempt] = true
	}
	assert.Len(t, attempts, 3)
	assert.Len(t, proofs, 3)
}

func TestACapabilityWithoutItsEffectIsNotAdmitted(t *testing.T) {
	t.Parallel()
	b, g := asking(t)
	_, err := b.target.admissions(t.Context(), g, keyed(t, 1, api.TokenResponse{AccessToken: "effect"}))
	require.ErrorContains(t, err, "without its effect")
}
