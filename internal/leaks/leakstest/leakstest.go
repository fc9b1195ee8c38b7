// Package leakstest tells a search for leaks what must not be found: the secrets
// of a sealed key bundle, which no exported function of package keys gives away.
package leakstest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
)

// Material is every secret string in a bundle that is as long as a key: as it is
// spelled there, and as bytes.
func Material(t testing.TB, bundle, identity string) (all [][]byte) {
	t.Helper()
	line, err := os.ReadFile(identity)
	require.NoError(t, err)
	ids, err := age.ParseIdentities(bytes.NewReader(line))
	require.NoError(t, err)
	sealed, err := os.ReadFile(filepath.Join(bundle, "secrets.age"))
	require.NoError(t, err)
	r, err := age.Decrypt(bytes.NewReader(sealed), ids...)
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	var document any
	require.NoError(t, json.Unmarshal(text, &document))
	walk(document, &all)
	require.NotEmpty(t, all, "the bundle's secrets were not understood")
	return all
}

func walk(v any, into *[][]byte) {
	switch v := v.(type) {
	case map[string]any:
		for name, one := range v {
			if name != "public_sha256" { // of what everybody may read
				walk(one, into)
			}
		}
	case []any:
		for _, one := range v {
			walk(one, into)
		}
	case string:
		if b, err := base64.RawURLEncoding.DecodeString(v); err == nil && len(b) >= 30 {
			*into = append(*into, []byte(v), b)
		}
	}
}
