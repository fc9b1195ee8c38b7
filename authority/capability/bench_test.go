package capability

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkRawVerify is the floor: one P-256 verification of crypto/ecdsa with its key already imported.
func BenchmarkRawVerify(b *testing.B) {
	_, p, _ := benchProof(b)
	k, err := GenerateKey()
	require.NoError(b, err)
	digest := sha256.Sum256(p.signed)
	der, err := ecdsa.SignASN1(rand.Reader, k.private, digest[:])
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		require.True(b, ecdsa.VerifyASN1(k.Public(), digest[:], der))
	}
}

// BenchmarkProof is everything that CheckProof does for a resource; the goal is 1.20 of the floor and 80 allocations.
func BenchmarkProof(b *testing.B) {
	proof, _, e := benchProof(b)
	b.ReportAllocs()
	for b.Loop() {
		_, err := CheckProof(proof, e)
		require.NoError(b, err)
	}
}

// BenchmarkProofCheap is the same without the signature: what a flood of bad proofs costs.
func BenchmarkProofCheap(b *testing.B) {
	proof, _, e := benchProof(b)
	b.ReportAllocs()
	for b.Loop() {
		p, err := ParseProof(proof)
		require.NoError(b, err)
		require.NoError(b, p.Clear(e))
	}
}

func benchProof(b *testing.B) (string, *Proof, Expect) {
	k, err := GenerateKey()
	require.NoError(b, err)
	now := time.Now()
	const url = "https://authority.example/v1/effects/admit"
	token := Token("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2F1dGhvcml0eS5leGFtcGxlIn0.c2lnbmF0dXJl")
	proof, err := NewProof(k, ProofParams{Method: "POST", URL: url, Nonce: "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA", AccessToken: token, Now: now})
	require.NoError(b, err)
	e := Expect{Method: "POST", URL: url, AccessToken: token, Holder: k.Thumbprint(), Now: now}
	p, err := CheckProof(proof, e)
	require.NoError(b, err)
	return proof, p, e
}
