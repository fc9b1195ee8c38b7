package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProvenanceOfKeys(t *testing.T) {
	t.Parallel()
	good := func() *Keys {
		return &Keys{Host: Host{Socket: "/s"}, Provenance: Provenance{Records: []ProvenanceRecord{{File: "/r", Approvals: "/a"}}, Snapshot: "/c", SnapshotApprovals: "/ca",
			Officers: []Officer{{"anna", "security", "/anna.pem"}, {"ben", "operations", "/ben.pem"}}}}
	}
	k := good()
	require.NoError(t, k.checkProvenance())
	assert.EqualValues(t, 2, k.Provenance.Threshold, "nobody decides alone")
	require.NoError(t, (&Keys{}).checkProvenance())
	for name, c := range map[string]struct {
		change   func(*Keys)
		sentence string
	}{
		"no key host":               {func(k *Keys) { k.Host.Socket = "" }, "keys.provenance needs keys.host"},
		"no record":                 {func(k *Keys) { k.Provenance.Records = nil }, "records must be one, or two"},
		"three records":             {func(k *Keys) { k.Provenance.Records = make([]ProvenanceRecord, 3) }, "records must be one, or two"},
		"a record without a file":   {func(k *Keys) { k.Provenance.Records[0].File = "" }, "records[0].file is missing"},
		"a record without approval": {func(k *Keys) { k.Provenance.Records[0].Approvals = "" }, "records[0].approvals is missing"},
		"an attestation somewhere":  {func(k *Keys) { k.Provenance.Records[0].Attestation = "a" }, "records[0].attestation must be an absolute path"},
		"no snapshot":               {func(k *Keys) { k.Provenance.Snapshot = "" }, "keys.provenance.snapshot is missing"},
		"no approvals of it":        {func(k *Keys) { k.Provenance.SnapshotApprovals = "x" }, "snapshot_approvals must be an absolute path"},
		"a threshold of one":        {func(k *Keys) { k.Provenance.Threshold = 1 }, "threshold must be between 2 and 16"},
		"an officer without a role": {func(k *Keys) { k.Provenance.Officers[1].Role = "" }, "officers[1].role is missing"},
		"an officer without a name": {func(k *Keys) { k.Provenance.Officers[0].ID = "" }, "officers[0].id is missing"},
		"an officer without a key":  {func(k *Keys) { k.Provenance.Officers[0].KeyFile = "" }, "officers[0].key_file is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := good()
			c.change(k)
			assert.ErrorContains(t, k.checkProvenance(), c.sentence)
		})
	}
}

func TestKeysOfOfficers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, kind string, der []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode))
		return path
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	spki, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(t, err)
	largeSPKI, err := x509.MarshalPKIXPublicKey(&large.PublicKey)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	sec1, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	largeSec1, err := x509.MarshalECPrivateKey(large)
	require.NoError(t, err)

	public, err := ReadPublicKey(file("public", "PUBLIC KEY", spki, 0o644))
	require.NoError(t, err)
	assert.True(t, public.Equal(&key.PublicKey))
	for _, path := range []string{file("pkcs8", "PRIVATE KEY", pkcs8, 0o600), file("sec1", "EC PRIVATE KEY", sec1, 0o400)} {
		private, err := ReadPrivateKey(path)
		require.NoError(t, err)
		assert.True(t, private.Equal(key))
	}
	for name, path := range map[string]string{
		"another curve": file("large", "PUBLIC KEY", largeSPKI, 0o644), "a private key": file("private", "PRIVATE KEY", pkcs8, 0o600),
		"no key": file("none", "PUBLIC KEY", []byte("x"), 0o644), "nothing": filepath.Join(dir, "nothing"), "a folder": dir,
	} {
		_, err := ReadPublicKey(path)
		assert.Error(t, err, name)
	}
	for name, path := range map[string]string{
		"another curve": file("large private", "EC PRIVATE KEY", largeSec1, 0o600), "a public key": file("public private", "PUBLIC KEY", spki, 0o600),
		"open to a group": file("group", "PRIVATE KEY", pkcs8, 0o640), "nothing": filepath.Join(dir, "nothing"), "no key": file("no private", "PRIVATE KEY", []byte("x"), 0o600),
	} {
		_, err := ReadPrivateKey(path)
		assert.Error(t, err, name)
	}
}
