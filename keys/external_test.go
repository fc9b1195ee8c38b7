package keys

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// hardware is a key host with keys of its own.
type hardware struct {
	private  *ecdsa.PrivateKey
	secret   []byte
	away     atomic.Bool
	purposes chan string // of what was signed
}

func newHardware(t testing.TB) *hardware {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	secret := make([]byte, 32)
	rand.Read(secret)
	return &hardware{private: private, secret: secret, purposes: make(chan string, 100)}
}

var errAway = errors.New("TOKEN_UNAVAILABLE")

func (h *hardware) Describe(context.Context) (keyhost.Descriptor, error) {
	public, err := h.private.PublicKey.Bytes()
	if h.away.Load() {
		err = errAway
	}
	return keyhost.Descriptor{Pairs: []keyhost.Pair{{Signing: "01", Nonce: "02", PublicKey: public}}}, err
}

func (h *hardware) SignDigest(_ context.Context, _, purpose string, digest [32]byte) ([64]byte, error) {
	if h.away.Load() {
		return [64]byte{}, errAway
	}
	h.purposes <- purpose
	return signES256(h.private, digest)
}

func (h *hardware) MAC(_ context.Context, _ string, message []byte) (mac [32]byte, err error) {
	if h.away.Load() {
		return mac, errAway
	}
	m := hmac.New(sha256.New, h.secret)
	m.Write(message)
	m.Sum(mac[:0])
	return mac, nil
}

// places are where a bundle and its identity lie.
func placesOf(t testing.TB) (dir, identity string) {
	t.Helper()
	identity = filepath.Join(t.TempDir(), "identity")
	require.NoError(t, NewIdentity(identity))
	return filepath.Join(t.TempDir(), "bundle"), identity
}

func TestABundleAroundAToken(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	id, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	assert.True(t, id.PublicKey.Equal(&h.private.PublicKey))
	b, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	require.NoError(t, b.Prove(id))
	for len(h.purposes) > 0 {
		assert.Equal(t, keyhost.PurposeChallenge, <-h.purposes)
	}

	digest := sha256.Sum256([]byte("x"))
	for _, purpose := range []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt} {
		signature, err := b.SignerFor(purpose).SignES256(digest)
		require.NoError(t, err)
		assert.True(t, verifyES256(id.PublicKey, digest, signature))
		assert.Equal(t, purpose, <-h.purposes)
	}
	_, err = b.SignerFor("checkpoint").SignES256(digest)
	require.ErrorIs(t, err, errSigning)
	assert.Equal(t, id.KID, b.Signer().KeyID())

	nonce := b.Nonces().Mint("https://authority.example")
	_, err = b.Nonces().Open(nonce, "https://authority.example")
	require.NoError(t, err)
	replica, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	_, err = replica.Nonces().Open(nonce, "https://authority.example")
	require.NoError(t, err, "every replica asks the same key")
	cursor := b.Cursors().Seal([32]byte{}, [16]byte{1})
	_, err = replica.Cursors().Open([32]byte{}, cursor)
	require.NoError(t, err)
}

func TestATokenThatIsAwaySignsNothing(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	id, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	b, err := OpenWith(dir, identity, h)
	require.NoError(t, err)
	nonce := b.Nonces().Mint("a")
	h.away.Store(true)
	_, err = b.Signer().SignES256([32]byte{})
	require.ErrorIs(t, err, errAway)
	_, err = b.Nonces().Open(nonce, "a")
	require.ErrorIs(t, err, ErrNonce)
	assert.Empty(t, b.Nonces().Mint("a"))
	cursor := b.Cursors().Seal([32]byte{}, [16]byte{1})
	_, err = b.Cursors().Open([32]byte{}, cursor)
	require.ErrorIs(t, err, ErrCursor, "the list does not seem to end")
	assert.NotEmpty(t, cursor)
	_, _, err = b.Challenge([32]byte{})
	require.Error(t, err)
	requireMaterial(t, b.Prove(id), "cannot sign")
	_, err = OpenWith(dir, identity, h)
	requireMaterial(t, err, "key host")
	h.away.Store(false)
	require.NoError(t, b.Prove(id))
	_, err = b.Nonces().Open(nonce, "a")
	require.NoError(t, err)
}

func TestOpenWithRefuses(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	_, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	m := makeBundle(t)
	other := newHardware(t)
	swapped := newHardware(t)
	swapped.private = h.private
	for name, c := range map[string]struct {
		open func() (*Bundle, error)
		word string
	}{
		"a token's bundle without its host": {func() (*Bundle, error) { return Open(dir, identity) }, "key host"},
		"a sealed bundle with a host":       {func() (*Bundle, error) { return OpenWith(m.dir, m.identity, h) }, "seals its keys itself"},
		"another token":                     {func() (*Bundle, error) { return OpenWith(dir, identity, other) }, "signing key is not one that"},
		"another nonce key":                 {func() (*Bundle, error) { return OpenWith(dir, identity, swapped) }, "nonce key is not the one"},
	} {
		_, err := c.open()
		requireMaterial(t, err, c.word)
		assert.False(t, strings.Contains(err.Error(), "/"), name)
	}
	_, err = InitWith(dir, identity, other)
	requireMaterial(t, err, "")
	_, err = Prepare(dir, identity, t.TempDir(), 1, 1, nil)
	requireMaterial(t, err, "key host")
}

// What is sealed of such a bundle is the audit key; moving a sealed key beside a token's public part opens nothing.
func TestATokensBundleSealsNoSigningKey(t *testing.T) {
	t.Parallel()
	dir, identity := placesOf(t)
	h := newHardware(t)
	_, err := InitWith(dir, identity, h)
	require.NoError(t, err)
	id, err := readIdentity(identity)
	require.NoError(t, err)
	s, err := openSecrets(dir, id)
	require.NoError(t, err)
	assert.Empty(t, s.SigningKey)
	assert.Empty(t, s.NonceKey)
	assert.NotEmpty(t, s.AuditKey)
	s.SigningKey = encode(make([]byte, 32))
	_, err = s.secretKeys.keys(true)
	require.ErrorIs(t, err, errFormat)
}
