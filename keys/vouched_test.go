package keys

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A bundle around a recorded key has the record's digest, and is for the record's cluster.
func TestABundleOfARecordedKey(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	key, err := dated(1, &h.private.PublicKey)
	require.NoError(t, err)
	record := Vouched{Host: h, ClusterID: [16]byte{'n', 'w', 't', 'e', 's', 't', '-', '-', 1}, KID: key.KID, Digest: [32]byte{7}}

	other := record
	other.KID = "another"
	_, err = InitWith(dir, identity, other)
	require.ErrorContains(t, err, "another key")

	id, err := InitWith(dir, identity, record)
	require.NoError(t, err)
	assert.Equal(t, record.Digest, id.ProvenanceDigest)
	assert.Equal(t, record.ClusterID, id.ClusterID)
	b, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	assert.Equal(t, []Identity{id}, b.Recorded(), "the bundle keeps it")

	next := newHardware(t)
	both := tokens{h, next}
	key, err = dated(2, &next.private.PublicKey)
	require.NoError(t, err)
	_, err = Prepare(dir, identity, filepath.Join(t.TempDir(), "next"), 1, 1, Vouched{Host: both, KID: key.KID})
	require.ErrorContains(t, err, "another cluster")
	after, err := Prepare(dir, identity, filepath.Join(t.TempDir(), "next"), 1, 1, Vouched{Host: both, ClusterID: id.ClusterID, KID: key.KID, Digest: [32]byte{8}})
	require.NoError(t, err)
	assert.Equal(t, [32]byte{8}, after.ProvenanceDigest)
}

func TestABundleWithoutARecord(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	_, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	b, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	assert.Empty(t, b.Recorded())

	sealed := newProvenance(time.Now())
	sealed.Record = encode(make([]byte, 32))
	_, err = sealed.digest("kid")
	require.ErrorIs(t, err, errFormat, "a sealed key has no record")
	_, err = provenance{Origin: originToken, Record: "AAAA"}.digest("kid")
	require.ErrorIs(t, err, errFormat)
}
