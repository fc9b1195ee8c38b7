package capability

import (
	"crypto/ecdsa"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type oneKey struct {
	k          *Key
	generation int64
}

func (o oneKey) Key(kid string) (*ecdsa.PublicKey, int64, bool) {
	return o.k.Public(), o.generation, kid == o.k.KeyID()
}

func TestSmoke(t *testing.T) {
	k, err := GenerateKey()
	require.NoError(t, err)
	now := time.Now()
	proof, err := NewProof(k, ProofParams{Method: "POST", URL: "https://a.example/token", Now: now})
	require.NoError(t, err)
	p, err := CheckProof(proof, Expect{Method: "POST", URL: "https://A.example:443/token", Now: now})
	require.NoError(t, err)
	require.Equal(t, k.Thumbprint(), p.Key)

	c := RunClaims{
		Header: Header{Issuer: "https://a.example", Audience: "https://a.example", Subject: "t", ClientID: "c", IssuedAt: now.Unix(),
			Expires: now.Unix() + 60, ID: "id", Confirmation: Confirmation{k.Thumbprint()}, Generation: 3},
		Binding: Binding{Run: "r", Lane: "l", Fence: 1, Deadline: now.Unix() + 100, ActivationEpoch: 1, ReadinessEpoch: 1, Incarnation: 1},
	}
	tok, err := SignRun(k, c)
	require.NoError(t, err)
	got, err := VerifyRun(tok, oneKey{k, 3}, Expectation{Issuer: "https://a.example", Now: now})
	require.NoError(t, err)
	require.Equal(t, "run", got.Kind)
	_, err = VerifyEffect(tok, oneKey{k, 3}, Expectation{Issuer: "https://a.example", Audience: "https://a.example", Now: now})
	require.Error(t, err)
}
