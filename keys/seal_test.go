package keys

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sealKeyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "identity")
	require.NoError(t, NewSealKey(path))
	return path
}

// A bundle whose seal is AES holds what one of age holds, and neither identity opens the other's.
func TestASealOfTheModuleAlone(t *testing.T) {
	t.Parallel()
	dir, h := filepath.Join(t.TempDir(), "bundle"), newHardware(t)
	identity := sealKeyFile(t)
	id, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	b, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	require.NoError(t, b.Prove(id))
	assert.Equal(t, id.AuditKey, b.Identity().AuditKey)
	sealed, err := os.ReadFile(filepath.Join(dir, secretsFile))
	require.NoError(t, err)
	assert.NotContains(t, string(sealed), "age-encryption.org")

	_, aged := placesOf(t)
	for _, other := range []string{sealKeyFile(t), aged} {
		_, err = OpenWith(dir, other, h)
		requireMaterial(t, err, "does not open the bundle's seal")
	}
	m := makeBundle(t)
	_, err = Open(m.dir, sealKeyFile(t))
	requireMaterial(t, err, "does not open the bundle's seal")
}

func TestEveryBitOfASealCounts(t *testing.T) {
	t.Parallel()
	by := newAESSeal([32]byte{1})
	sealed, err := by.seal([]byte("hush"))
	require.NoError(t, err)
	plain, err := by.unseal(sealed)
	require.NoError(t, err)
	require.Equal(t, "hush", string(plain))
	again, err := by.seal([]byte("hush"))
	require.NoError(t, err)
	assert.NotEqual(t, sealed, again, "a nonce of its own each time")
	for i := range sealed {
		for bit := range 8 {
			sealed[i] ^= 1 << bit
			_, err := by.unseal(sealed)
			require.Error(t, err, "%d.%d", i, bit)
			sealed[i] ^= 1 << bit
		}
		_, err = by.unseal(sealed[:i])
		require.Error(t, err, "the first %d bytes", i)
	}
}

func TestSealKeysThatAreNone(t *testing.T) {
	t.Parallel()
	path := sealKeyFile(t)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	require.Error(t, NewSealKey(path), "never over another")
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, content := range map[string]string{
		"cut": string(good[:len(good)-3]), "long": strings.TrimSuffix(string(good), "\n") + "AAAA\n", "two": string(good) + string(good),
		"empty": sealKeyHead + "\n", "padded": strings.TrimSuffix(string(good), "\n") + "=\n", "SECRET": sealKeyHead + strings.Repeat("SECRET!", 6),
	} {
		path := filepath.Join(t.TempDir(), "identity")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := readIdentity(path)
		requireMaterial(t, err, "exactly one seal key")
		assert.NotContains(t, fullText(err), "SECRET!", name)
	}
	require.NoError(t, os.Chmod(path, 0o640))
	_, err = readIdentity(path)
	requireMaterial(t, err, "open to others")
}
