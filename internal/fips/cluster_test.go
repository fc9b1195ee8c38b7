package fips

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestASyntheticBinaryServesTestClustersOnly(t *testing.T) {
	t.Parallel()
	require.NoError(t, cluster([16]byte([]byte("nwtest--xxxxxxxx")), true))
	for _, id := range []string{"nwtest-xxxxxxxxx", "xnwtest--xxxxxxx", "NWTEST--xxxxxxxx", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		require.ErrorIs(t, cluster([16]byte([]byte(id)), true), ErrCluster, id)
		require.NoError(t, cluster([16]byte([]byte(id)), false), id)
	}
}

func TestANewClusterIsServed(t *testing.T) {
	t.Parallel()
	id := [16]byte{1, 2, 3}
	Mark(&id)
	assert.NoError(t, Cluster(id))
	assert.Equal(t, !Synthetic, id == [16]byte{1, 2, 3}, "a shipped binary marks nothing")
}
