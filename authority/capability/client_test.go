package capability

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/gob"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewProof(t *testing.T) {
	t.Parallel()
	k := fixedKey(t, "holder")
	proof, err := NewProof(k, ProofParams{
		Method: "POST", URL: testURL + "?page=2#top", Nonce: "n-1", AccessToken: testToken, Now: testNow.Add(700 * time.Millisecond),
	})
	require.NoError(t, err)
	p, err := CheckProof(proof, goodExpect(t))
	require.NoError(t, err)
	assert.Equal(t, k.Thumbprint(), p.Key)
	assert.Equal(t, "n-1", p.Nonce)
	assert.Len(t, p.JTI, 22, "128 bits")
	assert.True(t, testNow.Equal(p.IssuedAt))
	require.NoError(t, judgeElsewhere(proof, p.Key), "go-jose and jwx agree")

	bare, err := NewProof(k, ProofParams{Method: "POST", URL: testURL, Now: testNow})
	require.NoError(t, err)
	assert.Less(t, len(bare), len(proof)-60)
	again, err := ParseProof(bare)
	require.NoError(t, err)
	assert.NotEqual(t, p.JTI, again.JTI)
	assert.Empty(t, again.Nonce)
	assert.Empty(t, again.ath)
}

func TestNewProofRefuses(t *testing.T) {
	t.Parallel()
	for name, params := range map[string]ProofParams{
		"no URL":       {Method: "POST", Now: testNow},
		"relative URL": {Method: "POST", URL: "/x", Now: testNow},
		"no method":    {URL: testURL, Now: testNow},
		"no time":      {Method: "POST", URL: testURL},
		"long nonce":   {Method: "POST", URL: testURL, Now: testNow, Nonce: strings.Repeat("n", maxProof)},
	} {
		proof, err := NewProof(fixedKey(t, "holder"), params)
		assert.Error(t, err, name)
		assert.Empty(t, proof, name)
	}
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	one, err := KeyOf(private)
	require.NoError(t, err)
	two, err := KeyOf(private)
	require.NoError(t, err)
	assert.Equal(t, one.Thumbprint(), two.Thumbprint())
	proof, err := NewProof(two, ProofParams{Method: "GET", URL: testURL, Now: testNow})
	require.NoError(t, err)
	p, err := ParseProof(proof)
	require.NoError(t, err)
	assert.Equal(t, one.Thumbprint(), p.Key)

	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	_, err = KeyOf(other)
	require.Error(t, err, "another curve")
	_, err = KeyOf(nil)
	require.Error(t, err)
}

func TestKeysDiffer(t *testing.T) {
	t.Parallel()
	a, err := GenerateKey()
	require.NoError(t, err)
	b, err := GenerateKey()
	require.NoError(t, err)
	assert.NotEqual(t, a.Thumbprint(), b.Thumbprint())
	assert.Equal(t, a.Thumbprint().String(), a.KeyID())
	jkt, err := JKT(a.Public())
	require.NoError(t, err)
	assert.Equal(t, jkt, a.Thumbprint())
}

func TestKeySigns(t *testing.T) {
	t.Parallel()
	k := fixedKey(t, "holder")
	for i := range 300 {
		digest := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		sig, err := k.SignES256(digest)
		require.NoError(t, err)
		require.True(t, verifyRaw(k.Public(), digest, sig[:]), "short r and s are padded")
	}
}

// A key has no form outside memory, by value and by pointer, alone and inside another value.
func TestKeyDoesNotLeaveMemory(t *testing.T) {
	t.Parallel()
	k := fixedKey(t, "holder")
	for _, v := range []any{k, *k, struct{ K *Key }{k}, struct{ K Key }{*k}, []*Key{k}, map[string]Key{"a": *k}} {
		_, err := json.Marshal(v)
		assert.ErrorIs(t, err, errSecretKey)
		assert.Error(t, gob.NewEncoder(&bytes.Buffer{}).Encode(v))
	}
	_, err := k.MarshalText()
	assert.ErrorIs(t, err, errSecretKey)
	_, err = k.MarshalBinary()
	assert.ErrorIs(t, err, errSecretKey)
	_, err = json.Marshal(map[Key]int{})
	assert.NoError(t, err, "an empty map has nothing to hide")
	_, err = json.Marshal(map[Key]int{*k: 1})
	assert.Error(t, err)
}
