package main

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys"
)

// A bundle goes from one pair of a token to the next, while one key host runs: what the old pair made is good for as
// long as the database says so.
func TestTheNextPairTakesOver(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	p := s.start(s.config(serial))
	c := s.client(p)
	identity, dir, next := filepath.Join(s.dir, "identity"), filepath.Join(s.dir, "bundle"), filepath.Join(s.dir, "next")
	require.NoError(t, keys.NewIdentity(identity))
	first, err := keys.InitWith(dir, identity, c)
	require.NoError(t, err)
	b, err := keys.OpenWith(dir, identity, c)
	require.NoError(t, err)
	require.NoError(t, b.Prove(first))
	nonce := b.Nonces().Mint("a")

	_, err = keys.Prepare(dir, identity, next, 1, 1, c)
	require.ErrorContains(t, err, "serves 0 pairs of keys that are new here")
	s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "03", "--usage-sign", "--sensitive")
	s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "04", "--usage-sign", "--sensitive")
	s.config(serial, `"02"}]`, `"02"}, {signing: "03", nonce: "04"}]`)
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
	require.Eventually(t, func() bool {
		d, err := c.Describe(t.Context())
		return err == nil && len(d.Pairs) == 2
	}, within, time.Millisecond)
	second, err := keys.Prepare(dir, identity, next, 1, 1, c)
	require.NoError(t, err)
	assert.NotEqual(t, first.KID, second.KID)

	b, err = keys.OpenWith(next, identity, c)
	require.NoError(t, err)
	both, err := b.Under([]keys.Registered{{Identity: first, State: keys.Previous}, {Identity: second, State: keys.Current}})
	require.NoError(t, err)
	require.NoError(t, both.Prove(second))
	assert.Equal(t, second.KID, both.Signer().KeyID())
	_, err = both.Signer().SignES256(digest)
	require.NoError(t, err)
	_, err = both.Nonces().Open(nonce, "a")
	require.NoError(t, err)
	alone, err := b.Under([]keys.Registered{{Identity: first, State: keys.Retired}, {Identity: second, State: keys.Current}})
	require.NoError(t, err)
	_, err = alone.Nonces().Open(nonce, "a")
	require.Error(t, err)
}
