//go:build nightwarrant_synthetic

package keys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/authority/canonical"
)

// A binary of the synthetic profile makes test clusters, and opens no other's bundle.
func TestASyntheticBinaryOpensTestClustersOnly(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	id, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	require.Equal(t, "nwtest--", string(id.ClusterID[:8]))

	o, err := openParts(dir, identity, h)
	require.NoError(t, err)
	o.public.ClusterID = encode(make([]byte, 16))
	public, err := canonical.CanonicalizeValue(o.public)
	require.NoError(t, err)
	sealed, err := o.seal(*o.public, public, o.all[0], nil)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, publicFile), public, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, secretsFile), sealed, 0o600))
	_, err = OpenWith(dir, identity, h)
	requireMaterial(t, err, "synthetic profile")
}
