package leaks

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The search finds what it is for, in every spelling: otherwise the story test could not fail.
func TestSearchFinds(t *testing.T) {
	t.Parallel()
	const jwt = "eyJ0eXAiOiJhdCtqd3QifQ.eyJpc3MiOiJodHRwIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
	secret := []byte("0123456789abcdef0123456789abcdef")
	for name, text := range map[string]string{
		"a token in a log": `{"msg":"x","token":"` + jwt + `"}`, "a token as bytes of a row": `(1,"\\x` + hex.EncodeToString([]byte(jwt)) + `")`,
		"a private JWK": `{"kty":"EC","d":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`, "a PEM key": "-----BEGIN PRIVATE KEY-----",
		"an age identity": "AGE-SECRET-KEY-1QQQ", "a known secret": "x" + string(secret), "a known secret in hex": hex.EncodeToString(secret),
	} {
		assert.NotEmpty(t, Search("text", []byte(text), secret), name)
	}
	assert.Empty(t, Search("text", []byte(`{"kid":"eyJ","digest":"9f86d081"} DPoP error="use_dpop_nonce"`), secret))
}

func TestFilesSearchesAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a", "b", "log"), []byte("AGE-SECRET-KEY-1"), 0o600))
	found, err := Files(dir)
	require.NoError(t, err)
	assert.Len(t, found, 1)
}
