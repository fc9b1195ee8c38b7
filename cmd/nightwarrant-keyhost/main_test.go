package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/sha256"
	"errors"
	"math/big"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nightwarrant/nightwarrant/keys/keyhost"
)

// The tests run the key host as what it is, a process: this test binary itself.
const asProcess = "NIGHTWARRANT_TEST_KEYHOST"

func TestMain(m *testing.M) {
	if os.Getenv(asProcess) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

const (
	pin    = "123456"
	within = 30 * time.Second
)

func codeOf(err error) keyhost.Code {
	e, _ := errors.AsType[*keyhost.Error](err)
	if e == nil {
		return ""
	}
	return e.Code
}

func verifies(t testing.TB, d keyhost.Descriptor, digest [32]byte, signature [64]byte) {
	t.Helper()
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), d.Pairs[0].PublicKey)
	require.NoError(t, err)
	assert.True(t, ecdsa.Verify(public, digest[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])))
}

// only is the one object of a class.
func only(t testing.TB, o keyhost.Observation, class string) keyhost.Object {
	t.Helper()
	var found []keyhost.Object
	for _, k := range o.Keys {
		if k.Class == class {
			found = append(found, k)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// generated is what SoftHSM says of a key pair's private half that it has made.
var generated = map[string]string{"LOCAL": "true", "ALWAYS_SENSITIVE": "true", "NEVER_EXTRACTABLE": "true", "EXTRACTABLE": "false", "SENSITIVE": "true",
	"MODIFIABLE": "true", "COPYABLE": "true", "WRAP_WITH_TRUSTED": "false", "KEY_GEN_MECHANISM": "0x1040"}

// What a host shows of its token is what the token says now, not what it said at the start.
func TestAnObservation(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	c := s.client(s.start(s.config(serial)))
	o, err := c.Observe(t.Context())
	require.NoError(t, err)
	file, err := os.ReadFile(s.library)
	require.NoError(t, err)
	assert.Equal(t, keyhost.Library{Cryptoki: "2.40", Manufacturer: "SoftHSM", Description: "Implementation of PKCS11", Version: "2.6", File: "libsofthsm2.so",
		FileSHA256: sha256.Sum256(file), EntryPoint: "C_GetFunctionList"}, o.Library)
	assert.Equal(t, keyhost.Token{Manufacturer: "SoftHSM project", Model: "SoftHSM v2", Serial: serial, Label: "one", HardwareVersion: "2.6", FirmwareVersion: "2.6", Flags: 0x42d}, o.Token)
	assert.WithinDuration(t, time.Now(), o.At, within)
	require.Len(t, o.Keys, 3)

	d, err := c.Describe(t.Context())
	require.NoError(t, err)
	assert.Equal(t, keyhost.Object{Purpose: keyhost.PairSigning, Class: keyhost.ClassPrivate, ID: []byte{1}, Mechanisms: []string{"0x1041"}, Attributes: generated,
		ECParams: oidP256}, only(t, o, keyhost.ClassPrivate))
	public := only(t, o, keyhost.ClassPublic)
	assert.Equal(t, d.Pairs[0].PublicKey, public.Point)
	assert.Equal(t, oidP256, public.ECParams)
	secret := only(t, o, keyhost.ClassSecret)
	assert.Equal(t, keyhost.PairNonce, secret.Purpose)
	assert.Equal(t, []string{"0x251"}, secret.Mechanisms)
	assert.Equal(t, "0x350", secret.Attributes["KEY_GEN_MECHANISM"])
	assert.False(t, secret.ValueReadable)

	s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "01", "--usage-sign", "--sensitive")
	o, err = c.Observe(t.Context())
	require.NoError(t, err)
	assert.Len(t, o.Keys, 5, "two keys of one name are shown, both")
}

func TestKeysOfAToken(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	c := s.client(s.start(s.config(serial)))
	d, err := c.Describe(t.Context())
	require.NoError(t, err)
	for _, purpose := range []string{keyhost.PurposeCapability, keyhost.PurposeReadiness, keyhost.PurposeReceipt, keyhost.PurposeChallenge} {
		signature, err := c.SignDigest(t.Context(), "01", purpose, digest)
		require.NoError(t, err)
		verifies(t, d, digest, signature)
	}
	_, err = c.SignDigest(t.Context(), "01", "checkpoint", digest)
	assert.Equal(t, keyhost.PurposeRefused, codeOf(err))

	mac, err := c.MAC(t.Context(), "02", []byte("nonce"))
	require.NoError(t, err)
	again, err := c.MAC(t.Context(), "02", []byte("nonce"))
	require.NoError(t, err)
	other, err := c.MAC(t.Context(), "02", []byte("another"))
	require.NoError(t, err)
	assert.Equal(t, mac, again)
	assert.NotEqual(t, mac, other)
}

func TestWhatIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	const pairs, fifth = `[{signing: "01", nonce: "02"}]`, `[{signing: "05", nonce: "02"}]`
	for name, c := range map[string]struct {
		prepare func(s *shelf)
		change  []string
		code    int
		word    string
	}{
		"a wrong PIN":  {nil, []string{"/pin\n", "/wrong\n"}, exitMisconfigured, "TOKEN_LOGIN_REFUSED: the token refuses the PIN (CKR 0xa0); it was tried once"},
		"no token":     {nil, []string{"serial: ", "serial: f"}, exitMisconfigured, "TOKEN_IDENTITY_MISMATCH"},
		"no library":   {nil, []string{"libsofthsm2.so", "libnone.so"}, exitSuspect, "TOKEN_UNAVAILABLE"},
		"no keys":      {nil, []string{pairs, fifth}, exitMisconfigured, "KEY_AMBIGUOUS: the signing key is 0 objects"},
		"no nonce key": {nil, []string{`nonce: "02"`, `nonce: "05"`}, exitMisconfigured, "KEY_AMBIGUOUS: the nonce key is 0 objects"},
		"two keys":     {func(s *shelf) { s.keys("one") }, nil, exitMisconfigured, "KEY_AMBIGUOUS: the signing key is 2 objects"},
		"another curve": {func(s *shelf) {
			s.tool("one", "--keypairgen", "--key-type", "EC:secp384r1", "--id", "05", "--sensitive")
		}, []string{pairs, fifth}, exitMisconfigured, "KEY_CURVE_INVALID"},
		"an extractable": {func(s *shelf) {
			s.tool("one", "--keypairgen", "--key-type", "EC:prime256v1", "--id", "05", "--extractable")
		}, []string{pairs, fifth}, exitMisconfigured, "KEY_EXTRACTABLE"},
		"an extractable nonce key": {func(s *shelf) {
			s.tool("one", "--keygen", "--key-type", "GENERIC:32", "--id", "06", "--usage-sign", "--extractable")
		}, []string{`nonce: "02"`, `nonce: "06"`}, exitMisconfigured, "KEY_EXTRACTABLE"},
		"one key under two names": {func(s *shelf) {
			key := s.made("key.pem")
			s.put(key, "05")
			s.put(key, "07")
		}, []string{pairs, `[{signing: "05", nonce: "02"}, {signing: "07", nonce: "02"}]`}, exitMisconfigured, "KEY_AMBIGUOUS: two pairs have one public key"},
		"one name twice":             {nil, []string{pairs, `[{signing: "0a", nonce: "02"}, {signing: "0A", nonce: "02"}]`}, exitMisconfigured, "name the signing key 0a twice"},
		"a name that is none":        {nil, []string{pairs, `[{signing: "1", nonce: "02"}]`}, exitMisconfigured, "hexadecimal"},
		"nothing to serve":           {nil, []string{pairs, "[]"}, exitMisconfigured, "must list between 1 and 4 pairs"},
		"FIPS without its module":    {nil, []string{"keys:", "fips: required\nkeys:"}, exitMisconfigured, "APP_MODULE_DISABLED"},
		"FIPS, perhaps":              {nil, []string{"keys:", "fips: off\nkeys:"}, exitMisconfigured, "fips must be required, or not be there"},
		"an unknown key of the file": {nil, []string{"keys:", "slot: 0\nkeys:"}, exitMisconfigured, "slot"},
		"too many sessions":          {nil, []string{"users:", "sessions: 17\nusers:"}, exitMisconfigured, "must be between 1 and 16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.word == "APP_MODULE_DISABLED" && fips140.Enabled() {
				t.Skip("this test computes in the module")
			}
			s, serial := made(t)
			if c.prepare != nil {
				c.prepare(s)
			}
			s.write("wrong", "999999")
			s.exits(s.start(s.config(serial, c.change...)), c.code, c.word)
			_, err := os.Stat(s.socket())
			assert.ErrorIs(t, err, os.ErrNotExist, "nothing listened")
		})
	}
}

func TestOtherUsersAreNotAnswered(t *testing.T) {
	t.Parallel()
	s, serial := made(t)
	p := s.start(s.config(serial, "users: ["+me(s)+"]", "users: [nobody]"))
	c := keyhost.NewClient(s.socket(), os.Getuid())
	require.Eventually(t, func() bool {
		conn, err := net.Dial("unix", s.socket())
		return err == nil && conn.Close() == nil
	}, within, 10*time.Millisecond)
	assert.Equal(t, keyhost.TokenUnavailable, codeOf(c.Health(t.Context())))
	stranger := keyhost.NewClient(s.socket(), os.Getuid()+1)
	assert.ErrorContains(t, stranger.Health(t.Context()), "it runs as user")
	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	s.exits(p, exitOK, "another user")
}
