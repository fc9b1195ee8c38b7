package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"runtime"
	"slices"
	"time"

	"github.com/nightwarrant/nightwarrant/authority/api"
	"github.com/nightwarrant/nightwarrant/authority/capability"
)

const (
	batches = 300
	inBatch = 8 // short, so that few batches are interrupted
)

// sides times functions in turns and returns what one call of each took: the
// median of its batches, so that what else the machine does falls on all.
func sides(now func() time.Time, calls ...func() error) ([]time.Duration, error) {
	took := make([][]time.Duration, len(calls))
	for range batches {
		for i, call := range calls {
			began := now()
			for range inBatch {
				if err := call(); err != nil {
					return nil, err
				}
			}
			took[i] = append(took[i], now().Sub(began)/inBatch)
		}
	}
	out := make([]time.Duration, len(calls))
	for i := range took {
		slices.Sort(took[i])
		out[i] = percentile(took[i], 50)
	}
	return out, nil
}

// raw is crypto/ecdsa over the same number of bytes as a proof, with its key imported.
type raw struct {
	key     *ecdsa.PrivateKey
	message []byte
	digest  [32]byte
	sig     []byte
}

func newRaw(message []byte) (r raw, err error) {
	r.message = message
	if r.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return r, err
	}
	r.digest = sha256.Sum256(message)
	r.sig, err = ecdsa.SignASN1(rand.Reader, r.key, r.digest[:])
	return r, err
}

func (r raw) verify() error {
	digest := sha256.Sum256(r.message)
	if !ecdsa.VerifyASN1(&r.key.PublicKey, digest[:], r.sig) {
		return errWrongSignature
	}
	return nil
}

func (r raw) sign() error {
	_, err := ecdsa.SignASN1(rand.Reader, r.key, r.digest[:])
	return err
}

// proofs is S1: the check of a proof at a resource, with everything that is checked there.
func proofs(now func() time.Time) (S1, error) {
	proof, expect, err := exampleProof(now())
	if err != nil {
		return S1{}, err
	}
	floor, err := newRaw([]byte(proof))
	if err != nil {
		return S1{}, err
	}
	check := func() error {
		_, err := capability.CheckProof(proof, expect)
		return err
	}
	took, err := sides(now, floor.verify, check)
	if err != nil {
		return S1{}, err
	}
	s := S1{RawUS: micro(took[0]), ProofUS: micro(took[1]), Ratio: float64(took[1]) / float64(took[0]), Goal: goalS1}
	s.Allocations, err = allocations(check)
	return s, err
}

func exampleProof(now time.Time) (string, capability.Expect, error) {
	key, err := capability.GenerateKey()
	if err != nil {
		return "", capability.Expect{}, err
	}
	const token = capability.Token("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2F1dGhvcml0eS5leGFtcGxlIn0.c2lnbmF0dXJl")
	p := capability.ProofParams{Method: "POST", URL: "https://authority.example" + api.PathAdmit, Nonce: "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA", AccessToken: token, Now: now}
	proof, err := capability.NewProof(key, p)
	wanted := func(nonce string) error {
		if nonce != p.Nonce {
			return errWrongNonce
		}
		return nil
	}
	return proof, capability.Expect{Method: p.Method, URL: p.URL, AccessToken: token, Holder: key.Thumbprint(), Nonce: wanted, Now: now}, err
}

// allocations of one call: the fewest of several rounds, because the process does other things too.
func allocations(call func() error) (uint64, error) {
	const rounds, calls = 5, 100
	fewest := ^uint64(0)
	for range rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			if err := call(); err != nil {
				return 0, err
			}
		}
		runtime.ReadMemStats(&after)
		fewest = min(fewest, (after.Mallocs-before.Mallocs)/calls)
	}
	return fewest, nil
}

// claimCrypto is the cryptography that no claim can do without: two verifications, of
// the assertion and the proof, and a signature.
func claimCrypto(now func() time.Time) (time.Duration, error) {
	r, err := newRaw(make([]byte, 600)) // about an assertion or a proof
	if err != nil {
		return 0, err
	}
	took, err := sides(now, r.verify, r.sign)
	if err != nil {
		return 0, err
	}
	return 2*took[0] + took[1], nil
}
