package capability

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// BenchmarkRawVerify is the floor: one P-256 verification of crypto/ecdsa with its key already imported.
func BenchmarkRawVerify(b *testing.B) {
	_, p, _ := benchProof(b)
	digest, sig := sha256.Sum256(p.signed), der(p.signature)
	b.ReportAllocs()
	for b.Loop() {
		require.True(b, ecdsa.VerifyASN1(p.public, digest[:], sig))
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

// BenchmarkProofRatio takes turns with the floor, so that what else the machine does falls on both; "ratio" is the figure.
func BenchmarkProofRatio(b *testing.B) {
	proof, p, e := benchProof(b)
	digest, sig := sha256.Sum256(p.signed), der(p.signature)
	var floor, whole time.Duration
	for b.Loop() {
		start := time.Now()
		require.True(b, ecdsa.VerifyASN1(p.public, digest[:], sig))
		middle := time.Now()
		_, err := CheckProof(proof, e)
		whole += time.Since(middle)
		floor += middle.Sub(start)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(whole)/float64(floor), "ratio")
}

// BenchmarkVerifyEffect is what go-jose and the claims cost a verifier of capabilities.
func BenchmarkVerifyEffect(b *testing.B) {
	token, err := SignEffect(issuer(b), goodEffectClaims(b))
	require.NoError(b, err)
	keys, e := testKeys(b), testExpectation()
	b.ReportAllocs()
	for b.Loop() {
		_, err := VerifyEffect(token, keys, e)
		require.NoError(b, err)
	}
}

// The allocations of a proof are bounded by the goal and counted, not timed.
func TestProofAllocations(t *testing.T) {
	proof, e := goodDraft(t).spell(t), goodExpect(t)
	allocations := testing.AllocsPerRun(100, func() {
		_, err := CheckProof(proof, e)
		require.NoError(t, err)
	})
	assert.LessOrEqual(t, allocations, 80.0)
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
