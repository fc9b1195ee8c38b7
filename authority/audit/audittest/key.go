// Package audittest makes keys of logs for tests.
package audittest

import (
	"crypto/rand"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
)

// Key is a log's key, which signs checkpoints and verifies them.
type Key struct {
	note.Signer
	note.Verifier
}

// Name is the log's.
func (k Key) Name() string { return k.Verifier.Name() }

// KeyHash is that of both halves.
func (k Key) KeyHash() uint32 { return k.Verifier.KeyHash() }

// NewKey makes a key of a log with this name.
func NewKey(t require.TestingT, name string) Key {
	secret, public, err := note.GenerateKey(rand.Reader, name)
	require.NoError(t, err)
	signer, err := note.NewSigner(secret)
	require.NoError(t, err)
	verifier, err := note.NewVerifier(public)
	require.NoError(t, err)
	return Key{signer, verifier}
}
