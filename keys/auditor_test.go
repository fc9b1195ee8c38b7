package keys_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"github.com/nightwarrant/nightwarrant/keys"
)

// What the auditor signs, anybody's library opens with the registered key alone.
func TestAuditorSignsNotes(t *testing.T) {
	t.Parallel()
	dir, identity := t.TempDir(), filepath.Join(t.TempDir(), "identity")
	require.NoError(t, keys.NewIdentity(identity))
	first := filepath.Join(dir, "first")
	id, err := keys.Init(first, identity)
	require.NoError(t, err)
	b, err := keys.Open(first, identity)
	require.NoError(t, err)

	text, err := note.NewEd25519VerifierKey(keys.AuditOrigin(id.ClusterID), id.AuditKey[:])
	require.NoError(t, err)
	verifier, err := note.NewVerifier(text)
	require.NoError(t, err)
	signed, err := note.Sign(&note.Note{Text: "a checkpoint\n"}, b.Auditor())
	require.NoError(t, err)
	opened, err := note.Open(signed, note.VerifierList(verifier))
	require.NoError(t, err)
	assert.Equal(t, "a checkpoint\n", opened.Text)
	for _, ours := range []note.Verifier{id.AuditVerifier(), b.Auditor().Verifier()} {
		opened, err = note.Open(signed, note.VerifierList(ours))
		require.NoError(t, err)
		assert.Equal(t, "a checkpoint\n", opened.Text)
	}
	_, err = note.Open([]byte(strings.Replace(string(signed), "a ", "b ", 1)), note.VerifierList(verifier))
	require.Error(t, err)

	after, err := keys.Prepare(first, identity, filepath.Join(dir, "successor"), 1, 1, nil)
	require.NoError(t, err)
	assert.Equal(t, id.AuditKey, after.AuditKey, "the log goes on under its key")

	other, err := keys.Init(filepath.Join(dir, "other"), identity)
	require.NoError(t, err)
	assert.NotEqual(t, id.AuditKey, other.AuditKey)
	other.ClusterID, other.Generation, other.KID, other.PublicKey = id.ClusterID, id.Generation, id.KID, id.PublicKey
	other.NonceCheck, other.ProvenanceDigest = id.NonceCheck, id.ProvenanceDigest
	require.ErrorContains(t, b.Prove(other), "audit key")
}
